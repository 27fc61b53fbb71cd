// Cases of kafkajs against a cluster: `node cases.js BOOTSTRAP CASE` ends with 0 if the case passes.
'use strict'

const assert = require('node:assert/strict')
const fs = require('node:fs')
const readline = require('node:readline')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel, Partitioners } = require('kafkajs')

const LIMIT_MS = 90_000
const END = 'end of the partition'
const FENCED = ['PRODUCER_FENCED', 'INVALID_PRODUCER_EPOCH']

const [bootstrap, name] = process.argv.slice(2)
const { CLIENT_CA, CLIENT_CERTIFICATE, CLIENT_MECHANISM, CLIENT_USER, CLIENT_PASSWORD } = process.env
const file = path => path && fs.readFileSync(path)
const settings = {
  ssl: CLIENT_CA ? { ca: [file(CLIENT_CA)], key: file(CLIENT_CERTIFICATE), cert: file(CLIENT_CERTIFICATE) } : undefined,
  sasl: CLIENT_MECHANISM
    ? { mechanism: CLIENT_MECHANISM.toLowerCase(), username: CLIENT_USER, password: CLIENT_PASSWORD }
    : undefined,
  clientId: 'conformance',
  brokers: (bootstrap ?? '').split(','),
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, maxRetryTime: 1000, retries: 30 },
}
const kafka = new Kafka(settings)
let made = 0
let admin

// ---- what the cases share ----

const unique = kind => `${name}-${kind}-${process.pid}-${made++}`

const open = async client => {
  await client.connect()
  return client
}

const topic = async (partitions, settings = {}) => {
  const created = unique('topic')
  const configEntries = Object.entries(settings).map(([key, value]) => ({ name: key, value }))
  await admin.createTopics({ topics: [{ topic: created, numPartitions: partitions, configEntries }], waitForLeaders: true })
  return created
}

const producer = (settings = {}) =>
  open(kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...settings }))

const transactional = (id, settings = {}) =>
  producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1, ...settings })

// One partition after another: when a leader changes, this client loses records of a request that names several. A
// broker that has answered for one of them gets no second request for those that it leads from then on.
const write = async (writer, into, value, ...partitions) => {
  for (const partition of partitions) await writer.send({ topic: into, messages: [{ value, partition }] })
}

const until = async (what, holds) => {
  const limit = Date.now() + LIMIT_MS / 2
  while (!(await holds())) {
    assert(Date.now() < limit, `${what}: not in time`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

const reader = async (from, settings = {}) => {
  const values = []
  const consumer = await open(kafka.consumer({ groupId: unique('readers'), maxWaitTimeInMs: 100, ...settings }))
  await consumer.subscribe({ topics: [from].flat(), fromBeginning: true })
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void values.push(message.value.toString()) })
  return { consumer, values }
}

// Returns the values that a reader of committed records sees, sorted. Only what has ended is in front of the end.
const committed = async (from, partitions) => {
  const plain = await producer()
  const topics = [from].flat()
  for (const each of topics) await write(plain, each, END, ...Array(partitions).keys())
  const { consumer, values } = await reader(from)
  await until('all transactions have ended', () => values.filter(each => each === END).length === topics.length * partitions)
  await consumer.disconnect()
  return values.filter(each => each !== END).sort()
}

const failure = async promise => {
  try {
    await promise
  } catch (error) {
    return (error.cause ?? error).type ?? (error.cause ?? error).name
  }
  return 'no error'
}

// ---- plain ----

const records = async () => {
  for (const settings of [{ acks: -1 }, { acks: 1 }, { acks: 0 }, { compression: CompressionTypes.GZIP }]) {
    const into = await topic(1)
    const sent = [...Array(50).keys()].map(i => ({
      key: i === 7 ? null : `key ${i}`,
      value: i === 8 ? null : `value ${i} `.repeat(10),
      headers: { h: 'x' },
      timestamp: `${1_000_000 + i}`,
    }))
    await (await producer()).send({ topic: into, messages: sent, ...settings })
    const found = []
    const consumer = await open(kafka.consumer({ groupId: unique('readers'), maxWaitTimeInMs: 100 }))
    await consumer.subscribe({ topic: into, fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => void found.push(message) })
    await until('all records', () => found.length === sent.length)
    await consumer.disconnect()
    found.forEach((message, i) => {
      assert.equal(message.offset, `${i}`)
      assert.equal(message.key?.toString() ?? null, sent[i].key)
      assert.equal(message.value?.toString() ?? null, sent[i].value)
      assert.equal(message.headers.h.toString(), 'x')
      assert.equal(message.timestamp, sent[i].timestamp)
    })
  }
}

const groups = async () => {
  const from = await topic(4)
  const groupId = unique('group')
  const plain = await producer()
  for (let i = 0; i < 40; i++) await write(plain, from, `${i}`.padStart(2, '0'), i % 4)
  const member = async () => {
    const found = { assigned: 0, values: [] }
    found.consumer = await open(kafka.consumer({ groupId, maxWaitTimeInMs: 100, heartbeatInterval: 100 }))
    found.consumer.on(found.consumer.events.GROUP_JOIN, ({ payload }) => {
      found.assigned = payload.memberAssignment[from]?.length ?? 0
    })
    await found.consumer.subscribe({ topic: from, fromBeginning: true })
    await found.consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void found.values.push(message.value.toString()) })
    return found
  }
  const first = await member()
  await until('one member has all partitions', () => first.assigned === 4)
  const second = await member()
  await until('two members share', () => first.assigned === 2 && second.assigned === 2)
  await second.consumer.disconnect()
  await until('the other one has all again', () => first.assigned === 4)
  await first.consumer.commitOffsets([0, 1, 2, 3].map(partition => ({ topic: from, partition, offset: '8' })))
  await first.consumer.disconnect()
  const again = await member()
  await until('a member reads what is left', () => again.values.length >= 8)
  await again.consumer.disconnect()
  assert.deepEqual(again.values.sort(), ['32', '33', '34', '35', '36', '37', '38', '39'])
  const described = await admin.describeGroups([groupId])
  assert.equal(described.groups[0].state, 'Empty')
  await admin.deleteGroups([groupId])
}

const administration = async () => {
  const created = await topic(2)
  const cluster = await admin.describeCluster()
  assert.deepEqual(cluster.brokers.map(each => each.nodeId).sort(), [1, 2, 3])
  await admin.createPartitions({ topicPartitions: [{ topic: created, count: 3 }] })
  const resource = { type: ConfigResourceTypes.TOPIC, name: created }
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '7000' }] }] })
  await until('three partitions', async () => (await admin.fetchTopicMetadata({ topics: [created] })).topics[0].partitions.length === 3)
  await until('a setting', async () => {
    const found = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
    return found.resources[0].configEntries[0].configValue === '7000'
  })
  await admin.deleteTopics({ topics: [created] })
  await until('no topic', async () => !(await admin.listTopics()).includes(created))
}

// ---- transactions ----

const commitsAndAborts = async () => {
  const [one, two] = [await topic(3), await topic(3)]
  const writer = await transactional(unique('id'))
  const expected = []
  for (let i = 0; i < 12; i++) {
    const transaction = await writer.transaction()
    const value = `${i}`.padStart(2, '0')
    const messages = [0, 1, 2].map(partition => ({ value, partition }))
    await transaction.sendBatch({ compression: CompressionTypes.GZIP, topicMessages: [one, two].map(each => ({ topic: each, messages })) })
    if (i % 3 === 2) {
      await transaction.abort()
    } else {
      await transaction.commit()
      expected.push(...Array(6).fill(value))
    }
  }
  assert.deepEqual(await committed([one, two], 3), expected)
}

const manyInARow = async () => {
  const into = await topic(2)
  const writer = await transactional(unique('id'))
  for (let i = 0; i < 60; i++) {
    const transaction = await writer.transaction()
    await write(transaction, into, `${i}`, i % 2)
    await transaction.commit()
  }
  assert.equal((await committed(into, 2)).length, 60)
}

const withoutRecords = async () => {
  const into = await topic(1)
  const writer = await transactional(unique('id'))
  for (let i = 0; i < 3; i++) {
    await (await writer.transaction()).commit()
    await (await writer.transaction()).abort()
    const transaction = await writer.transaction()
    await write(transaction, into, `${i}`, 0)
    await transaction.commit()
  }
  assert.deepEqual(await committed(into, 1), ['0', '1', '2'])
}

const severalBatches = async () => {
  const into = await topic(3)
  const writer = await transactional(unique('id'))
  for (const how of ['abort', 'commit']) {
    const transaction = await writer.transaction()
    for (let batch = 0; batch < 10; batch++) {
      const messages = [...Array(300).keys()].map(i => ({ value: `${how} ${batch} ${i} `.padEnd(900, '-'), partition: i % 3 }))
      await transaction.send({ topic: into, messages })
    }
    await transaction[how]()
  }
  const found = await committed(into, 3)
  assert.equal(new Set(found).size, 3000)
  assert(found.every(each => each.startsWith('commit')))
}

const openTransactions = async () => {
  const into = await topic(1)
  const plain = await producer()
  const writer = await transactional(unique('id'))
  await write(plain, into, '1 before', 0)
  const transaction = await writer.transaction()
  await write(transaction, into, '2 open', 0)
  await write(plain, into, '3 behind', 0)
  const careful = await reader(into)
  const curious = await reader(into, { readUncommitted: true })
  await until('the committed record', () => careful.values.length > 0)
  await until('all records', () => curious.values.length === 3)
  assert.deepEqual(careful.values, ['1 before'])
  await transaction.commit()
  await until('the transaction', () => careful.values.length === 3)
  assert.deepEqual(careful.values, ['1 before', '2 open', '3 behind'])
}

const copiesWithOffsets = async () => {
  const [source, target, groupId] = [await topic(2), await topic(2), unique('group')]
  const plain = await producer()
  const expected = []
  for (let i = 0; i < 60; i++) {
    expected.push(`${i}`.padStart(3, '0'))
    await write(plain, source, expected[i], i % 2)
  }
  const writer = await transactional(unique('id'))
  let [round, copied] = [0, 0]
  // One member after another, each of which stops in the middle.
  while (copied < 60) {
    const before = copied
    const consumer = await open(kafka.consumer({ groupId, maxWaitTimeInMs: 100, heartbeatInterval: 100 }))
    await consumer.subscribe({ topic: source, fromBeginning: true })
    let aborted = false
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (aborted || copied - before === 25) return
        const transaction = await writer.transaction()
        await write(transaction, target, message.value.toString(), partition)
        const offset = `${Number(message.offset) + 1}`
        await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: source, partitions: [{ partition, offset }] }] })
        aborted = ++round % 20 === 15
        if (aborted) {
          await transaction.abort()
        } else {
          await transaction.commit()
          copied++
        }
      },
    })
    await until('some copies', () => aborted || copied - before === 25 || copied === 60)
    await consumer.disconnect()
  }
  assert.deepEqual(await committed(target, 2), expected)
  await until('the offsets', async () => {
    const [found] = await admin.fetchOffsets({ groupId, topics: [source] })
    return found.partitions.every(each => each.offset === '30')
  })
}

const fenced = async () => {
  const [into, id] = [await topic(1), unique('id')]
  const zombie = await transactional(id)
  const lost = await zombie.transaction()
  await write(lost, into, 'of the zombie', 0)
  const successor = await transactional(id)
  const transaction = await successor.transaction()
  await write(transaction, into, 'of the successor', 0)
  const refused = [await failure(write(lost, into, 'too late', 0)), await failure(lost.commit())]
  assert(refused.every(each => FENCED.includes(each)), refused.join())
  await transaction.commit()
  assert.deepEqual(await committed(into, 1), ['of the successor'])
}

const timedOut = async () => {
  const [into, id] = [await topic(1), unique('id')]
  const slow = await transactional(id, { transactionTimeout: 300 })
  const lost = await slow.transaction()
  await write(lost, into, 'too slow', 0)
  const plain = await producer()
  await write(plain, into, 'behind', 0)
  const careful = await reader(into)
  await until('the abort', () => careful.values.length > 0)
  assert.deepEqual(careful.values, ['behind'])
  const refused = await failure(lost.commit())
  assert(FENCED.includes(refused), refused)
  const transaction = await (await transactional(id)).transaction()
  await write(transaction, into, 'in time', 0)
  await transaction.commit()
  assert.deepEqual(await committed(into, 1), ['behind', 'in time'])
}

const messageTooLarge = async () => {
  const into = await topic(1, { 'max.message.bytes': '2000' })
  const writer = await transactional(unique('id'))
  for (const value of ['fits', 'fits, too']) {
    const failed = await writer.transaction()
    await write(failed, into, 'aborted', 0)
    assert.equal(await failure(write(failed, into, 'large '.repeat(1000), 0)), 'MESSAGE_TOO_LARGE')
    await failed.abort()
    const transaction = await writer.transaction()
    await write(transaction, into, value, 0)
    await transaction.commit()
  }
  assert.deepEqual(await committed(into, 1), ['fits', 'fits, too'])
}

// A producer of this client has one transaction after another; what it writes beside them is not part of any.
const besideTransactions = async () => {
  const into = await topic(1)
  const writer = await transactional(unique('id'))
  const plain = await producer({ idempotent: true, maxInFlightRequests: 1 })
  for (const value of ['0', '2', '4']) {
    const transaction = await writer.transaction()
    await write(transaction, into, `${value} aborted`, 0)
    await write(plain, into, `${Number(value) + 1} beside`, 0)
    await transaction.abort()
  }
  assert.deepEqual(await committed(into, 1), ['1 beside', '3 beside', '5 beside'])
}

// Prints the number of each transaction, and waits for a line before it goes on, while nodes are killed and started.
// A commit whose answer was lost may hold or not, as a whole.
const outlivesNodes = async () => {
  const into = await topic(3)
  const id = unique('id')
  let writer = await transactional(id)
  const [expected, unknown] = [[], []]
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  for (let i = 0; i < 24; i++) {
    const value = `${i}`.padStart(2, '0')
    console.log(`transaction ${i}`)
    assert(!(await lines.next()).done, 'the input has ended')
    const transaction = await writer.transaction()
    let step = 'write'
    try {
      await write(transaction, into, value, 0, 1, 2)
      step = 'commit'
      await transaction.commit()
      expected.push(value)
    } catch (error) {
      console.log(`${step} of ${value}: ${error.message}`)
      if (step === 'commit') unknown.push(value)
      // Another instance of the same producer goes on.
      writer = await transactional(id)
    }
  }
  const times = {}
  for (const value of await committed(into, 3)) times[value] = (times[value] ?? 0) + 1
  for (const value of expected) {
    assert.equal(times[value], 3, value)
    delete times[value]
  }
  for (const value of unknown) {
    assert([undefined, 3].includes(times[value]), `${value} is on ${times[value]} of 3 partitions`)
    delete times[value]
  }
  assert.deepEqual(times, {})
  assert(expected.length >= 18, `only ${expected.length} transactions are committed`)
}

// ---- logins ----

const refusal = async () => {
  try {
    await new Kafka({ ...settings, retry: { retries: 0 } }).admin().connect()
  } catch (error) {
    return error.cause ?? error
  }
  return undefined
}

const refusedLogin = async () => {
  const error = await refusal()
  assert.equal(error?.name, 'KafkaJSSASLAuthenticationError', `${error}`)
}

const refusedCertificate = async () => {
  const error = await refusal()
  assert(['KafkaJSConnectionError', 'KafkaJSConnectionClosedError'].includes(error?.name), `${error}`)
}

const refusals = { 'refused-login': refusedLogin, 'refused-certificate': refusedCertificate }
const cases = {
  ...refusals,
  records,
  groups,
  administration,
  'commits-and-aborts': commitsAndAborts,
  'many-in-a-row': manyInARow,
  'without-records': withoutRecords,
  'several-batches': severalBatches,
  'open-transactions': openTransactions,
  'copies-with-offsets': copiesWithOffsets,
  fenced,
  'timed-out': timedOut,
  'message-too-large': messageTooLarge,
  'beside-transactions': besideTransactions,
  'outlives-nodes': outlivesNodes,
}

const main = async () => {
  assert(Object.hasOwn(cases, name ?? ''), `usage: node cases.js BOOTSTRAP CASE, with one of ${Object.keys(cases).join()}`)
  if (!Object.hasOwn(refusals, name)) admin = await open(kafka.admin())
  await cases[name]()
}

setTimeout(() => {
  console.error(`not within ${LIMIT_MS} ms`)
  process.exit(2)
}, LIMIT_MS)
// Clients are not disconnected: one whose broker was killed may wait for ever for an answer of it.
main().then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  }
)
