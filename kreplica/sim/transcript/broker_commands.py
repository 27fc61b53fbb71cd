"""The commands of scripts of brokers; those of whole nodes and of quorums share many.

Messages, links and time; clients and the state of logs; topics and leaders; faults of machines and disks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.config import LogConfig
from kreplica.common.dataclass import replace
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError, StorageFull, StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import error_of
from kreplica.log.recovery_scan import Recovery
from kreplica.log.scrubber import Scrubber
from kreplica.sim import client
from kreplica.sim.faults import flip_a_bit
from kreplica.sim.network import Message
from kreplica.sim.transcript.runner import (
    Arguments,
    ScriptError,
    Transcript,
    brokers_of,
    command,
    error_name,
    listed,
    number_of,
    refused,
)

NODE = r"\d+|controller|client"
ARROW = rf"({NODE})->({NODE})"
ANY = "any"


def pattern_of(script: Transcript, arguments: Arguments) -> tuple[str, Callable[[Message], bool]]:
    """Return the messages that the words match: `[FROM->TO] [API] [request|response]`.

    A client's messages match only if its arrow is given.
    """
    words = " ".join(arguments.words)
    arrow = arguments.maybe_word(ARROW)
    ends = None if arrow is None else tuple(script.node_of(end) for end in arrow.split("->"))
    kind = None
    if arguments.words and arguments.words[-1] in ("request", "response"):
        kind = arguments.words.pop() == "request"
    api = (arguments.maybe_word(r"[a-z-]+") or ANY).replace("-", "")
    arguments.end()

    def fits(message: Message) -> bool:
        return (
            _joins(script, message, ends)
            and (kind is None or kind == message.is_request)
            and (api == ANY or message.name.lower() == api)
        )

    return words or ANY, fits


def _joins(script: Transcript, message: Message, ends: tuple[int, ...] | None) -> bool:
    # Commands about followers' messages do not mean a client that reads in the script.
    if ends is None:
        return script.NAMES["client"] not in (message.sender_id, message.receiver)
    return ends == (message.sender_id, message.receiver)


def first_held(script: Transcript, fits: Callable[[Message], bool]) -> Message | None:
    return next((message for message in script.cluster.held() if fits(message)), None)


# ---- held messages ---------------------------------------------------------------------------------------


@command("hold [FROM->TO] [API] [request|response]")
def hold(script: Transcript, arguments: Arguments) -> None:
    """Hold such messages from now on, until deliver or release."""
    words, fits = pattern_of(script, arguments)
    if words in script.holds:
        raise ScriptError("they are held already")
    script.holds[words] = script.cluster.hold(fits)


@command("release [FROM->TO] [API] [request|response]")
def release(script: Transcript, arguments: Arguments) -> None:
    """End the hold with the same words, and deliver its messages."""
    words, fits = pattern_of(script, arguments)
    if words not in script.holds:
        raise ScriptError(f"no such hold; there are: {', '.join(script.holds) or 'none'}")
    script.holds.pop(words)()
    for message in script.cluster.held():
        if fits(message):
            script.cluster.release(message)


@command("deliver [FROM->TO] [API] [request|response]")
def deliver(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Deliver the first such held message."""
    words, fits = pattern_of(script, arguments)
    message = first_held(script, fits)
    if message is None:
        raise ScriptError(f"no message is held like {words}")
    yield describe(script, message)
    script.cluster.release(message)


@command("drop [FROM->TO] [API] [request|response]")
def drop(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Drop the first such held message."""
    words, fits = pattern_of(script, arguments)
    message = first_held(script, fits)
    if message is None:
        raise ScriptError(f"no message is held like {words}")
    yield f"lost: {describe(script, message)}"
    script.cluster.drop(message)


@command("messages")
def messages(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the held messages."""
    arguments.end()
    yield from sorted(describe(script, message) for message in script.cluster.held())


@command("fetch BROKER...")
def fetch(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Let each follower fetch once while fetches are held: request, answer, append."""
    if not arguments.words:
        raise ScriptError("a broker is missing")
    while arguments.words:
        follower = arguments.number("a broker")
        yield f"{follower}: {_fetch_once(script, follower)}"


def _fetch_once(script: Transcript, follower: int) -> str:
    if not script.holds:
        raise ScriptError("hold fetch first")
    request = first_held(script, lambda m: m.is_request and m.name == "Fetch" and m.sender_id == follower)
    if request is not None:
        script.cluster.release(request)
        script.cluster.settle()
    answer = first_held(script, lambda m: not m.is_request and m.name == "Fetch" and m.receiver == follower)
    if answer is None:
        return "the leader keeps its fetch until there is news"
    text = describe(script, answer).partition(": ")[2]
    script.cluster.release(answer)
    script.cluster.settle()
    return text or "nothing new"


def describe(script: Transcript, message: Message) -> str:
    """Describe a message in a line: sender and receiver, type, and for fetches what they request or
    return."""
    way = f"{script.name_of(message.sender_id)}->{script.name_of(message.receiver)}"
    api = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", message.name).lower()
    kind = "request" if message.is_request else "response"
    said = "; ".join(_said(script, message))
    return f"{way} {api} {kind}" + (f": {said}" if said else "")


def _said(script: Transcript, message: Message) -> Iterator[str]:
    body = message.body
    if message.name == "Fetch":
        yield from (_fetch_asks if message.is_request else _fetch_brings)(script, body)
    elif message.name == "AlterPartition" and message.is_request:
        for topic in body.topics:
            for partition in topic.partitions:
                isr = listed([broker.broker_id for broker in partition.new_isr_with_epochs])
                yield f"{_name(script, topic, partition.partition_index)} ISR {isr}"
    elif message.name == "AlterPartition":
        for topic in body.topics:
            for partition in topic.partitions:
                error = partition.error_code.name if partition.error_code else ""
                yield error or f"ISR {listed(partition.isr)}"
    elif message.name == "OffsetForLeaderEpoch":
        for topic in body.topics:
            for partition in topic.partitions:
                epoch = f"epoch {partition.leader_epoch}"
                if message.is_request:
                    yield f"{epoch}, asked in {partition.current_leader_epoch}"
                elif partition.error_code:
                    yield partition.error_code.name
                else:
                    yield f"{epoch} ends at {partition.end_offset}"


def _fetch_asks(script: Transcript, request: Any) -> Iterator[str]:
    for topic in request.topics:
        for asked in topic.partitions:
            name = _name(script, topic, asked.partition)
            yield f"{name} from {asked.fetch_offset}, epoch {asked.current_leader_epoch}"
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            yield f"{_name(script, topic, index)} no more"


def _fetch_brings(script: Transcript, response: Any) -> Iterator[str]:
    if response.error_code:
        yield response.error_code.name
    for topic in response.responses:
        for got in topic.partitions:
            name = _name(script, topic, got.partition_index)
            if got.error_code:
                yield f"{name} {got.error_code.name}"
            elif got.diverging_epoch.epoch >= 0:
                diverging = got.diverging_epoch
                yield f"{name} diverges: epoch {diverging.epoch} ends at {diverging.end_offset}"
            else:
                yield f"{name} {_records(got.records)}, HW {got.high_watermark}"


def _records(data: Any) -> str:
    found, _ = client.records_in(data, 0)
    return " ".join(value_text(value) for _, _, value in found) or "no records"


def value_text(value: bytes | None) -> str:
    """Return a record's value as a script writes it."""
    return "null" if value is None else value.decode("utf-8", "backslashreplace")


def _name(script: Transcript, topic: Any, index: int) -> str:
    return f"{script.topic_name(Uuid(topic.topic_id.bytes))}-{index}"


# ---- links and time --------------------------------------------------------------------------------------


@command("cut A B | cut A->B")
def cut(script: Transcript, arguments: Arguments) -> None:
    """Drop all messages between two nodes; with an arrow in that direction only."""
    arrow = arguments.maybe_word(ARROW)
    if arrow is not None:
        sender, receiver = (script.node_of(end) for end in arrow.split("->"))
        script.cluster.cut(sender, receiver, both_ways=False)
    else:
        one, other = (script.node_of(arguments.word("a node")) for _ in range(2))
        script.cluster.cut(one, other)
    arguments.end()


@command("heal [A B]")
def heal(script: Transcript, arguments: Arguments) -> None:
    """Reconnect two nodes, or all."""
    if arguments.words:
        one, other = (script.node_of(arguments.word("a node")) for _ in range(2))
        script.cluster.heal(one, other)
    else:
        script.cluster.heal_all()


@command("disconnect NODE")
def disconnect(script: Transcript, arguments: Arguments) -> None:
    """Break a node's connections; new ones may follow."""
    script.cluster.disconnect(script.node_of(arguments.word("a node")))


@command("clock +MS")
def clock(script: Transcript, arguments: Arguments) -> None:
    """Advance the clock by this number of milliseconds."""
    script.cluster.pass_time(arguments.number("milliseconds"))


@command("date BROKER +MS|-MS")
def date(script: Transcript, arguments: Arguments) -> None:
    """Move a machine's date forward or back, but not its monotonic clock."""
    script.cluster.jump_date(arguments.number("a broker"), arguments.number("milliseconds"))


@command("isr hold | isr accept | isr reject ERROR")
def isr(script: Transcript, arguments: Arguments) -> None:
    """Set how the controller answers AlterPartition: not yet, by its rules, or with an error."""
    controller = script.cluster.controller
    how = arguments.word("hold, accept or reject")
    if how == "hold":
        controller.holds = True
    elif how == "accept":
        controller.holds = False
        script.cluster.do(controller.answer)
    elif how == "reject":
        error = arguments.word("an error").lower()
        if error not in ErrorCode.__members__:
            raise ScriptError(f"there is no error {error!r}")
        if not script.cluster.do(partial(controller.answer, error_of(ErrorCode[error]))):
            raise ScriptError("no request waits")
    else:
        raise ScriptError(f"hold, accept or reject, not {how!r}")


@command("asked")
def asked(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the requests that the controller has not answered."""
    arguments.end()
    for waiting in script.cluster.controller.waiting:
        for topic in waiting.request.topics:
            for partition in topic.partitions:
                name = _name(script, topic, partition.partition_index)
                brokers = listed([broker.broker_id for broker in partition.new_isr_with_epochs])
                epochs = f"epoch {partition.leader_epoch}, partition epoch {partition.partition_epoch}"
                yield f"{waiting.request.broker_id} asks for ISR {brokers} of {name} ({epochs})"


ACKS = {"all": -1, "1": 1, "0": 0}
PRODUCER_ID = 7
PRODUCED_AT_MS = 1_600_000_000_000


@command("produce [PARTITION] VALUE... [acks=all|1|0] [to=BROKER] [timeout=MS] [sequence=NUMBER]")
def produce(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Send a batch of values to the leader, or to the broker of `to`. Prints the answer when it comes.

    With `sequence` it is the batch of an idempotent producer, the same one in the whole script.
    """
    topic_partition = script.the_partition(arguments)
    acks = ACKS[arguments.option("acks", "all")]
    receiver = number_of(arguments.option("to", str(script.leader_of(topic_partition))), "a broker")
    timeout_ms = number_of(arguments.option("timeout", str(client.PATIENCE_MS)), "a timeout")
    sequence = arguments.option("sequence", "")
    words = arguments.words
    label = words[0] if len(words) == 1 else f"{words[0]}..{words[-1]}"
    cluster = script.cluster
    values, batch = [value.encode() for value in words], None
    if sequence:
        builder = BatchBuilder()
        builder.producer_id, builder.producer_epoch = PRODUCER_ID, 0
        builder.base_sequence = number_of(sequence, "a sequence number")
        batch = builder.build(values, now_ms=PRODUCED_AT_MS)
    request = client.ProduceRequest(topic_partition, values, acks, timeout_ms, batch)
    script.add_produce(label, cluster.send(receiver, request, timeout_ms=2 * client.PATIENCE_MS))
    cluster.settle()
    if script.is_waiting(label):
        yield f"{label}: pending"


@command("read [PARTITION] [at=BROKER] [from=OFFSET] [isolation=committed]")
def read(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Read as a consumer does, below the high watermark."""
    topic_partition = script.the_partition(arguments)
    broker_id = number_of(arguments.option("at", str(script.leader_of(topic_partition))), "a broker")
    offset = number_of(arguments.option("from", "0"), "an offset")
    read_committed = arguments.option("isolation", "") == "committed"
    arguments.end()
    topic_id = script.decided(topic_partition).topic_id
    request = client.fetch_request(topic_id, topic_partition.partition, offset, read_committed=read_committed)
    answer = script.cluster.send(broker_id, request, timeout_ms=client.PATIENCE_MS)
    script.cluster.settle()
    if not answer.done():
        yield "no answer"
        return
    got = client.consumed(answer, offset)
    if got.error is not None:
        yield error_name(got.error)
    else:
        yield " ".join(f"{at}={value_text(value)}" for at, _, value in got.records) or "nothing"


@command("delete-records [PARTITION] before=OFFSET")
def delete_records(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Delete the records before an offset (-1: the high watermark) on the leader, then on followers."""
    topic_partition = script.the_partition(arguments)
    offset = number_of(arguments.option("before", "-1"), "an offset")
    arguments.end()
    replica = script.replica(script.leader_of(topic_partition), topic_partition)
    try:
        script.cluster.do(partial(replica.delete_records_on_leader, offset))
    except KreplicaError as error:
        yield refused(error)


# ---- showing the state -----------------------------------------------------------------------------------


@command("status [PARTITION]")
def status(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the replicas: role, epoch, log start, HW, LEO; of leaders also the ISR and the maximal ISR."""
    topic_partition = script.the_partition(arguments)
    arguments.end()
    head = ("broker", "role", "epoch", "start", "HW", "LEO", "ISR", "maximal ISR")
    rows = [_row(script, broker_id, topic_partition) for broker_id in _brokers(script, topic_partition)]
    yield from table([head, *rows])


def _row(script: Transcript, broker_id: int, topic_partition: Any) -> Sequence[str]:
    if script.cluster.program(broker_id) is None:
        return (str(broker_id), "down")
    replica = script.replica(broker_id, topic_partition)
    if replica is None or replica.log is None:
        return (str(broker_id), "none")
    log = replica.log
    offsets = (str(log.log_start_offset), str(log.high_watermark), str(log.log_end_offset))
    if replica.is_leader:
        isr, maximal = listed(replica.isr), listed(replica.state.maximal_isr)
        return (str(broker_id), "leader", str(replica.leader_epoch), *offsets, isr, maximal)
    return (str(broker_id), "follower", str(replica.leader_epoch), *offsets)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format the rows as a table with aligned columns."""
    count = max(len(row) for row in rows)
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(count)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def _brokers(script: Transcript, topic_partition: Any) -> list[int]:
    return sorted(script.decided(topic_partition).replicas)


@command("records [PARTITION] [BROKER...]")
def records(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the records in the brokers' logs, by leader epoch."""
    topic_partition = script.the_partition(arguments)
    asked = [number_of(word, "a broker") for word in arguments.words]
    for broker_id in asked or _brokers(script, topic_partition):
        log = log_of(script, broker_id, topic_partition)
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else _contents(log)}"


def log_of(script: Transcript, broker_id: int, topic_partition: Any) -> Any:
    """Return the partition's log on the broker, with or without a role; None if the broker has no log or is
    down."""
    program = script.cluster.program(broker_id)
    return None if program is None else program.log_manager.get_log(topic_partition)


def _absent(script: Transcript, broker_id: int) -> str:
    return "down" if script.cluster.program(broker_id) is None else "no log"


def _contents(log: Any) -> str:
    parts: list[str] = []
    epoch = None
    for batch in log.batches(log.log_start_offset, isolation="log_end"):
        if batch.leader_epoch != epoch:
            epoch = batch.leader_epoch
            parts.append(f"e{epoch}:")
        parts += [f"{record.offset}={value_text(record.value)}" for record in batch]
    return " ".join(parts) or "empty"


@command("epochs [PARTITION] [BROKER...]")
def epochs(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print where each leader epoch begins in the brokers' logs."""
    topic_partition = script.the_partition(arguments)
    asked = [number_of(word, "a broker") for word in arguments.words]
    for broker_id in asked or _brokers(script, topic_partition):
        log = log_of(script, broker_id, topic_partition)
        known = () if log is None else log.epochs.entries
        shown = " ".join(f"e{entry.epoch}@{entry.start_offset}" for entry in known) or "none"
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else shown}"


@command("recovery [PARTITION] BROKER...")
def recovery(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print what a broker had to recover when it opened the log; nothing after a clean shutdown."""
    topic_partition = script.the_partition(arguments)
    for broker_id in [number_of(word, "a broker") for word in arguments.words]:
        log = log_of(script, broker_id, topic_partition)
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else _recovered(log.recovered)}"


def _recovered(recovery: Recovery) -> str:
    return "nothing" if recovery.clean else f"{recovery.scanned_bytes} bytes read through"


@command("why [PARTITION] BROKER")
def why(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print why a replica is not in the ISR, according to its leader."""
    topic_partition = script.the_partition(arguments)
    broker_id = arguments.number("a broker")
    arguments.end()
    leader = script.replica(script.leader_of(topic_partition), topic_partition)
    out = leader.why_not_in_isr(broker_id)
    if out is None:
        yield f"{broker_id} is in the ISR"
        return
    yield f"{broker_id} is out: {out.reason}; {out.keeps_out}"
    yield f"  its LEO {out.log_end_offset}, the leader's {out.leader_log_end_offset}, HW {out.high_watermark}"


@command("history [PARTITION]")
def history(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the changes of the ISR that the leader has recorded."""
    topic_partition = script.the_partition(arguments)
    arguments.end()
    leader = script.replica(script.leader_of(topic_partition), topic_partition)
    for change in leader.isr_history:
        ends = f"LEO {change.log_end_offset} of {change.leader_log_end_offset}"
        offsets = f"{ends}, HW {change.high_watermark}"
        sign = "+" if change.kind == "expand" else "-"
        epoch = change.partition_epoch
        yield f"{sign}{change.broker_id} {change.reason} ({offsets}, partition epoch {epoch})"


# Logs in scripts are small; other settings have Kafka's defaults.
SCRIPT_LOG = {"segment.bytes": "65536", "segment.index.bytes": "4096"}
DISK_FAULTS = {"full": StorageFull, "broken": StorageIOError}


@command("brokers ID... [SETTING=VALUE...]")
def brokers(script: Transcript, arguments: Arguments) -> None:
    """Start brokers with empty disks. Settings are Kafka's settings of replication."""
    cluster = script.begin(arguments.options)
    for word in arguments.words:
        broker_id = number_of(word, "a broker")
        cluster.add_broker(broker_id)
        cluster.start(broker_id)


@command("topic NAME REPLICAS [partitions=N] [SETTING=VALUE...]")
def topic(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Create a topic. Its first replica leads, and all are in sync."""
    name = arguments.word("a name")
    replicas = [script.broker(str(each)) for each in brokers_of(arguments.word("the replicas"))]
    count = number_of(arguments.option("partitions", "1"), "the number of partitions")
    config = LogConfig.parse({**SCRIPT_LOG, **arguments.options})
    cluster = script.cluster
    cluster.controller.add_topic(name, config)
    for broker_id in replicas:
        set_config(script, broker_id, name, config)
    states = [cluster.controller.create(TopicPartition(name, index), replicas) for index in range(count)]
    script.partition = script.partition or states[0].topic_partition
    for broker_id in replicas:
        yield from hand_out(script, broker_id, states)


@command("config TOPIC SETTING=VALUE...")
def config(script: Transcript, arguments: Arguments) -> None:
    """Change a topic's settings."""
    name = arguments.word("a topic")
    controller = script.cluster.controller
    changed = controller.topics[name].config.replace(arguments.options)
    controller.topics[name] = controller.topics[name]._replace(config=changed)
    for state in controller.partitions.values():
        for broker_id in state.replicas if state.topic_partition.topic == name else ():
            set_config(script, broker_id, name, changed)


def set_config(script: Transcript, broker_id: int, name: str, config: LogConfig) -> None:
    program = script.cluster.program(broker_id)
    if program is not None:
        script.cluster.do(partial(program.log_manager.configs.change, {name: config}))


def hand_out(script: Transcript, broker_id: int, states: list[LeaderAndIsr]) -> Iterator[str]:
    """Send the broker its roles; prints what it refuses."""
    cluster = script.cluster
    program = cluster.program(broker_id)
    if program is None:
        return
    become = partial(program.become_leader_or_follower, states, cluster.controller.epoch)
    try:
        results = cluster.do(become)
    except KreplicaError as error:
        yield f"{broker_id}: {error_name(error)}"
        return
    for topic_partition, refusal in results.items():
        if refusal is not None:
            yield f"{broker_id}: {error_name(refusal)} for {topic_partition}"


@command("lead [PARTITION] BROKER [isr=IDS] [to=IDS] [unclean=yes]")
def lead(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Elect a leader in a new leader epoch, and notify all running replicas, or those of `to`.

    `isr` is as before unless given; `unclean=yes` is an election of a replica out of sync.
    """
    topic_partition = script.the_partition(arguments)
    leader = arguments.number("the leader")
    before = script.decided(topic_partition)
    unclean = arguments.option("unclean", "no") == "yes"
    isr = arguments.brokers_option("isr", [leader] if unclean else before.isr)
    receivers = arguments.brokers_option("to", before.replicas)
    arguments.end()
    state = script.cluster.controller.elect(topic_partition, leader, isr, unclean=unclean)
    for broker_id in receivers:
        yield from hand_out(script, broker_id, [state])
    yield f"{topic_partition}: leader {leader} in epoch {state.leader_epoch}, ISR {listed(isr)}"


@command("notify [PARTITION] BROKER... [leader=ID] [epoch=N] [isr=IDS] [partition.epoch=N]")
def send_decision(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Send brokers the controller's current decision, or the given one, as a late message would."""
    topic_partition = script.the_partition(arguments)
    state = script.decided(topic_partition)
    state = replace(
        state,
        leader=number_of(arguments.option("leader", str(state.leader)), "a leader"),
        leader_epoch=number_of(arguments.option("epoch", str(state.leader_epoch)), "an epoch"),
        isr=tuple(arguments.brokers_option("isr", state.isr)),
        partition_epoch=number_of(
            arguments.option("partition.epoch", str(state.partition_epoch)), "a partition epoch"
        ),
    )
    for word in arguments.words:
        yield from hand_out(script, script.broker(word, runs=True), [state])


@command("assign [PARTITION] IDS [isr=IDS]")
def assign(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Change the assigned replicas in the same leader epoch, without notifying brokers."""
    topic_partition = script.the_partition(arguments)
    replicas = brokers_of(arguments.word("the replicas"))
    before = script.decided(topic_partition)
    isr = arguments.brokers_option("isr", [each for each in before.isr if each in replicas])
    arguments.end()
    recovered = LeaderRecoveryState.RECOVERED
    state = script.cluster.controller.decide(
        topic_partition, replicas=tuple(replicas), isr=tuple(isr), leader_recovery_state=recovered
    )
    yield f"{topic_partition}: replicas {listed(replicas)}, ISR {listed(isr)}, " + (
        f"partition epoch {state.partition_epoch}"
    )


@command("stop-replica [PARTITION] BROKER [delete=yes]")
def stop_replica(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make a broker give up its replica; with delete also its log."""
    topic_partition = script.the_partition(arguments)
    program = script.cluster.program(script.broker(arguments.word("a broker"), runs=True))
    delete = arguments.option("delete", "no") == "yes"
    arguments.end()
    results = script.cluster.do(partial(program.replica_manager.stop_replicas, {topic_partition: delete}))
    if results[topic_partition] is not None:
        yield f"{error_name(results[topic_partition])}"


# ---- machines --------------------------------------------------------------------------------------------


@command("start BROKER...")
def start(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Start brokers on their disks as they are. They have no roles until the script gives them one."""
    for word in arguments.words:
        broker_id = script.broker(word, runs=False)
        try:
            script.cluster.start(broker_id)
        except KreplicaError as error:
            yield f"{broker_id}: {error_name(error)}"


@command("stop BROKER")
def stop(script: Transcript, arguments: Arguments) -> None:
    """Shut a broker down cleanly."""
    script.cluster.stop(script.broker(arguments.word("a broker"), runs=True))


@command("kill BROKER...")
def kill(script: Transcript, arguments: Arguments) -> None:
    """Kill brokers, as kill -9 does: nothing that was written is lost."""
    for word in arguments.words:
        script.cluster.kill(script.broker(word, runs=True))


@command("power-cut BROKER... [names=kept]")
def power_cut(script: Transcript, arguments: Arguments) -> None:
    """Cut a machine's power: unflushed data is lost; `names=kept` keeps the names of files."""
    names = arguments.option("names", "lost")
    if names not in ("kept", "lost"):
        raise ScriptError(f"names are kept or lost, not {names!r}")
    for word in arguments.words:
        script.cluster.power_cut(script.broker(word, runs=True), keeps_names=names == "kept")


@command("pause BROKER")
def pause(script: Transcript, arguments: Arguments) -> None:
    """Pause a broker, as a long garbage collection does."""
    script.cluster.pause(script.broker(arguments.word("a broker"), runs=True))


@command("resume BROKER")
def resume(script: Transcript, arguments: Arguments) -> None:
    """Resume a paused broker."""
    script.cluster.resume(script.broker(arguments.word("a broker"), runs=True))


@command("fence BROKER")
def fence(script: Transcript, arguments: Arguments) -> None:
    """Make the controller consider a broker dead."""
    script.cluster.controller.fenced.add(arguments.number("a broker"))


@command("unfence BROKER")
def unfence(script: Transcript, arguments: Arguments) -> None:
    """Make the controller consider a broker alive."""
    script.cluster.controller.fenced.discard(arguments.number("a broker"))


@command("disk BROKER full|broken|well [FILES]")
def disk(script: Transcript, arguments: Arguments) -> None:
    """Make a broker's disk refuse changes and flushes, of all files or of those with FILES in their path."""
    broker_id = script.broker(arguments.word("a broker"))
    state = arguments.word("the disk's state")
    named = arguments.word("files") if arguments.words else ""
    arguments.end()
    if state == "well":
        script.cluster.set_disk_fault(broker_id, None)
    elif state in DISK_FAULTS:
        script.cluster.set_disk_fault(broker_id, partial(_refuse, DISK_FAULTS[state], named))
    else:
        raise ScriptError(f"a disk is full, broken or well, not {state!r}")


def _refuse(error: type[KreplicaError], named: str, operation: str, path: str) -> None:
    if named in path:
        raise error(f"{operation} of {path}")


@command("flush [PARTITION] BROKER...")
def flush(script: Transcript, arguments: Arguments) -> None:
    """Flush a broker's log of the partition to its disk, and write its checkpoints."""
    topic_partition = script.the_partition(arguments)
    for word in arguments.words:
        manager = script.cluster.program(script.broker(word, runs=True)).log_manager
        script.cluster.do(manager.get_log(topic_partition).flush)
        script.cluster.do(manager.checkpoint_recovery_points)
        script.cluster.do(manager.checkpoint_log_starts)


@command("checkpoint BROKER...")
def checkpoint(script: Transcript, arguments: Arguments) -> None:
    """Write a broker's high watermarks to its disk."""
    for word in arguments.words:
        program = script.cluster.program(script.broker(word, runs=True))
        script.cluster.do(program.replica_manager.checkpoint_high_watermarks)


@command("rot [PARTITION] BROKER OFFSET")
def rot(script: Transcript, arguments: Arguments) -> None:
    """Flip a bit of the batch with that offset in a broker's file. The broker may be down."""
    topic_partition = script.the_partition(arguments)
    broker_id = script.broker(arguments.word("a broker"))
    offset = arguments.number("an offset")
    arguments.end()
    storage, root = script.cluster.disk(broker_id)
    if not script.cluster.do(partial(flip_a_bit, storage, root, topic_partition, offset)):
        raise ScriptError(f"offset {offset} is in no file of {topic_partition}")


@command("scrub BROKER...")
def scrub(script: Transcript, arguments: Arguments) -> None:
    """Make the brokers' scrubbers read all closed segments now."""
    for word in arguments.words:
        program = script.cluster.program(script.broker(word, runs=True))
        script.cluster.do(partial(_scrub, program.log_manager))


def _scrub(manager: Any) -> None:
    # A new scrubber: the broker's own is in the middle of a round, which takes a week.
    own = manager.scrubber
    scrubber = Scrubber(manager.logs, own.clock, own.on_error, manager.settings)
    while scrubber.status.rounds == 0:
        scrubber.do_work()


@command("damage [PARTITION] [BROKER...]")
def damage(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the damaged ranges that brokers know of."""
    topic_partition = script.the_partition(arguments)
    asked = [script.broker(word) for word in arguments.words]
    for broker_id in asked or brokers_of(listed(script.decided(topic_partition).replicas)):
        yield f"{broker_id}  {_damages(log_of(script, broker_id, topic_partition))}"


def _damages(log: Any) -> str:
    if log is None:
        return "down"
    ranges = [_range(each) for each in log.damages]
    if log.stopped_at is not None:
        return f"offsets {', '.join(ranges)}: recovery stopped there"
    return f"offsets {', '.join(ranges)}" if ranges else "none"


def _range(known: Any) -> str:
    return f"{known.first_offset}-" + ("" if known.next_offset is None else f"{known.next_offset - 1}")
