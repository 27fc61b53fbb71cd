"""The native way of a Produce request; what it takes, and its contract: produce_lane.pxd."""

from cpython.object cimport PyObject
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from concurrent.futures import CancelledError

from kreplica._core.append_job cimport AppendJob, go_on, let_go, take_back, view_of
from kreplica._core.big_endian cimport load16, load32, store16, store32, store64
from kreplica._core.fields cimport (
    LOG_ACTIVE, LOG_DURABLE, LOG_LOCK, LOG_PLAIN, LOG_PRODUCERS, LOG_STATE, PLAIN_EPOCH, PLAIN_KEYED_EPOCH,
    PLAIN_LATEST_MS, PLAIN_MAX_BYTES, QUEUE_ASIDE, QUEUE_DISK, QUEUE_IN_FLIGHT, QUEUE_LANE, QUEUE_LOG, QUEUE_RETURNED,
    QUEUE_WAITING,
)
from kreplica._core.grants cimport Grants
from kreplica._core.leader_state cimport LeaderState, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_segment cimport WITH_TRANSACTION
from kreplica._core.log_state cimport LogState
from kreplica._core.producer_append_info cimport ProducerAppendInfo, ProducerStateEntry
from kreplica._core.producer_table cimport PendingProducers, ProducerTable
from kreplica._core.purgatory cimport COMPLETE, Purgatory, part_t as waiting_t
from kreplica._core.record_batch cimport (
    CODEC_MASK, CONTROL, TRANSACTIONAL, BatchHeader, RecordScan, parse_header,
)
from kreplica._core.records cimport check_produced
from kreplica._core.status cimport OK
from kreplica._core.varint cimport read_unsigned_varint, size_of_unsigned_varint, write_unsigned_varint

# The names of the reasons to decline a request or to hand over a batch, in the order of produce_lane.pxd.
DECLINED = (
    "version", "layout", "transaction", "acks", "partitions", "unknown partition", "stopped", "behind",
    "rights", "quota",
    "not leader", "too few in sync", "busy", "durability", "settings", "batch", "compressed", "sequence", "core",
)
assert len(DECLINED) == DECLINES

cdef enum:
    FIRST_VERSION = 9                  # the first version with compact fields
    LAST_VERSION = 12                  # the last version with topics by name
    ATTRIBUTES = 22                    # the position of a batch's attributes, their lower byte
    ACKS_ALL = -1
    ACKS_LEADER = 1
    ONE = 2                            # the size of a compact array with one element
    APPENDS_A_STEP = 64                # the most that are finished at once, since heartbeats wait for them
    LONGEST_WAIT_MS = 300000           # limits how long the request's memory is held
    NANOSECONDS_PER_MS = 1000000
    NUMBER_BYTES = 5                   # what ends a wire name: an array's size of 1, the partition's number
    HEAD_BYTES = 9                     # an answer's size, correlation id, and unknown fields of the header
    TAIL_BYTES = 5                     # ... throttle time and unknown fields
    PART_BYTES = 31                    # a partition's answer without its error: number, code, three offsets, no fields


cdef bytes NO_ERRORS = b"\x01"        # an empty compact array


def wire_name(str topic not None, int32_t partition):
    """Return the bytes of a flexible request that name one partition: the topic, an array's size of 1, the number."""
    cdef bytes name = topic.encode()
    cdef uint8_t size[5]
    cdef int used = write_unsigned_varint(size, <uint32_t> (len(name) + 1))
    return (<char *> size)[:used] + name + bytes([ONE]) + partition.to_bytes(4, "big")


# ---- reading -----------------------------------------------------------------------------------------------

# Read one topic's partitions at p[at:size]; return the position behind them, or the reason to decline the request,
# negated and less 1.
cdef int64_t parse_parts(const uint8_t *p, int64_t size, int64_t at, int64_t topic, produce_t *request) noexcept nogil:
    cdef uint32_t count, length
    cdef uint32_t number
    cdef int32_t topic_size = <int32_t> (at - topic)
    cdef part_t *part
    cdef int used = read_unsigned_varint(p + at, size - at, &count)
    if used < 0:
        return -1 - LAYOUT
    if count < 2 or <int64_t> count - 1 > MOST_APPENDS - request.count:
        return -1 - PARTITIONS
    at += used
    for number in range(count - 1):
        part = &request.parts[request.count]
        request.count += 1
        part.topic = topic
        part.topic_size = topic_size
        part.count = <int32_t> count - 1 if number == 0 else 0
        part.number = at
        if size - at < 5:
            return -1 - LAYOUT
        used = read_unsigned_varint(p + at + 4, size - at - 4, &length)
        # The count of the partition's unknown fields comes behind the records.
        if used < 0 or length < 1 or <int64_t> length - 1 > size - at - 4 - used - 1:
            return -1 - LAYOUT
        part.records = at + 4 + used
        part.records_size = <int64_t> length - 1
        at = part.records + part.records_size + 1
        if p[at - 1] != 0:
            return -1 - LAYOUT
    # The topic's unknown fields.
    return at + 1 if at < size and p[at] == 0 else -1 - LAYOUT


# Read the request at p[0:size], whose API key was checked. Returns OK, or the reason to decline it, negated and less 1.
cdef int parse(const uint8_t *p, int64_t size, produce_t *request) noexcept nogil:
    cdef int64_t at, topic
    cdef uint32_t topics, length
    cdef int used
    cdef int malformed = -1 - LAYOUT
    if size < 10:
        return malformed
    if not FIRST_VERSION <= load16(p + 2) <= LAST_VERSION:
        return -1 - VERSION
    request.version = load16(p + 2)
    request.correlation_id = load32(p + 4)
    at = 10 + (load16(p + 8) if load16(p + 8) > 0 else 0)  # the client id; -1 is null
    if size - at < 9 or load16(p + 8) < -1 or p[at] != 0:
        return malformed
    at += 1
    used = read_unsigned_varint(p + at, size - at, &length)
    if used < 0 or <int64_t> length > size - at - used:
        return malformed
    request.transactional_id = at + used
    request.transactional_id_size = <int32_t> length - 1
    at += used + (<int64_t> length - 1 if length else 0)
    if size - at < 7:
        return malformed
    request.acks = load16(p + at)
    request.timeout_ms = load32(p + at + 2)
    at += 6
    if request.acks != ACKS_ALL and request.acks != ACKS_LEADER:
        return -1 - ACKS
    used = read_unsigned_varint(p + at, size - at, &topics)
    if used < 0:
        return malformed
    if topics < 2 or topics > MOST_APPENDS + 1:
        return -1 - PARTITIONS
    request.topics = <int32_t> topics - 1
    request.count = 0
    at += used
    for _ in range(1, topics):
        topic = at
        used = read_unsigned_varint(p + at, size - at, &length)
        if used < 0 or length < 2 or <int64_t> length - 1 > size - at - used:
            return malformed
        at = parse_parts(p, size, at + used + length - 1, topic, request)
        if at < 0:
            return <int> at
    # The request's unknown fields.
    return OK if at < size and p[at] == 0 else malformed


# ---- the lane ----------------------------------------------------------------------------------------------


cdef class ProduceLane:
    """Takes the Produce requests of one broker, and hands over to Python what needs a decision.

    `partitions`: the partitions that clients may write to, by `wire_name`; the owner keeps it. `owner`: the
    AppendManager, see its section about the lane. `client`: the AppendOrigin of clients. `open_already`: the
    Verification of a batch whose transaction is open. `inline`: the disk whose appends are made in the caller's turn.
    `bytes_in`, `messages_in`: meters. `delayed`: the DelayedRequests, in which appends wait.
    """

    def __init__(self, dict partitions not None, owner, client, open_already, inline, bytes_in, messages_in,
                 delayed):
        self.partitions = partitions
        self.owner = owner
        self.client = client
        self.open_already = open_already
        self.inline = inline
        self.bytes_in = bytes_in
        self.messages_in = messages_in
        self.delayed = delayed
        self.operations = delayed.operations
        self.timer = delayed.produce
        self.purgatory = self.timer.native

    def declined(self, int reason):
        """Return how many requests were declined or batches handed over for a reason, an index into DECLINED."""
        if not 0 <= reason < DECLINES:
            raise IndexError(reason)
        return self.declines[reason]

    def decline_for_quota(self):
        """Count a request that is not taken because a quota makes its client wait, or may do so."""
        self.declines[QUOTA] += 1

    def take(self, frame, answered, connection, Grants grants=None):
        """Take the Produce request in `frame`, without its size field; return the LaneRequest, None if declined.

        `answered(buffers, error)` is called once, perhaps before this returns. `connection`: the origin of the request,
        whose appends to a partition keep their order. `grants`: what its client has been allowed; None: everything.
        """
        cdef produce_t asked
        cdef int status
        cdef LaneRequest request = LaneRequest.__new__(LaneRequest)
        request.view = view_of(frame)
        status = parse(<const uint8_t *> request.view.buf, request.view.len, &asked)
        if status == OK:
            request.frame = frame
            request.connection = connection
            status = self.prepare(request, &asked, grants)
        if status < 0:
            self.declines[-1 - status] += 1
            return None
        self.taken += 1
        request.answered = answered
        try:
            if request.transactional_id is None:
                self.start(request)
            else:
                self.owner.begin_transaction(request, request.transactional_id)
        except BaseException:
            # The caller answers with the error.
            request.answered = None
            raise
        return request

    def append(self, LeaderState partition not None, bytes batch not None, answered, origin, int64_t leader_epoch,
               int32_t timeout_ms, marker, verification):
        """Append a batch of the broker's own with acks=all; return its request, None if declined.

        `answered(base_offset, error)` is called once, perhaps before this returns. `origin`: an AppendOrigin. Records
        of compacted topics have keys. `marker`: what the batch says if it is a control batch. `verification`: of the
        transaction that begins with the batch. Otherwise as AppendManager.append.
        """
        cdef LaneRequest request
        cdef LaneAppend append
        if self.owner.is_stopped or self.owner.unsubmitted:
            return None
        request = LaneRequest.__new__(LaneRequest)
        request.view = view_of(batch)
        request.frame = batch
        request.is_own, request.origin, request.in_epoch, request.marker = True, origin, leader_epoch, marker
        request.required_acks, request.timeout = ACKS_ALL, timeout_ms
        request.readers = request.undecided = 1
        append = LaneAppend.__new__(LaneAppend)
        append.lane, append.request, append.partition = self, request, partition
        append.data, append.size = <const uint8_t *> request.view.buf, request.view.len
        append.append.header.producer_id = -1
        append.verification = verification
        request.appends = [append]
        request.is_transactional = append.size > ATTRIBUTES and append.data[ATTRIBUTES] & TRANSACTIONAL
        request.answered = answered
        self.start(request)
        return request

    cdef int prepare(self, LaneRequest request, const produce_t *asked, Grants grants) except -64:
        cdef const uint8_t *p = <const uint8_t *> request.view.buf
        cdef const part_t *part
        cdef LaneAppend append
        cdef LeaderState partition
        cdef bytes name
        cdef char *to
        cdef int32_t i
        cdef set names = set()
        cdef list appends = []
        if self.owner.is_stopped:
            return -1 - STOPPED
        if self.owner.unsubmitted:
            return -1 - BEHIND
        if grants is not None and not self.is_granted(request, asked, grants):
            return -1 - RIGHTS
        for i in range(asked.count):
            part = &asked.parts[i]
            name = PyBytes_FromStringAndSize(NULL, part.topic_size + NUMBER_BYTES)
            to = PyBytes_AS_STRING(name)
            memcpy(to, p + part.topic, part.topic_size)
            to[part.topic_size] = ONE
            memcpy(to + part.topic_size + 1, p + part.number, 4)
            partition = self.partitions.get(name)
            if partition is None:
                return -1 - UNKNOWN_PARTITION
            if (part.records_size > ATTRIBUTES and p[part.records + ATTRIBUTES] & TRANSACTIONAL
                    and asked.transactional_id_size < 0):
                return -1 - TRANSACTION
            if asked.count > 1:
                if name in names:
                    return -1 - PARTITIONS
                names.add(name)
            append = LaneAppend.__new__(LaneAppend)
            append.lane = self
            append.request = request
            append.data = p + part.records
            append.size = part.records_size
            append.name = name
            append.count = part.count
            append.partition = partition
            append.append.header.producer_id = -1
            appends.append(append)
        request.appends = appends
        request.topics = asked.topics
        request.correlation_id = asked.correlation_id
        request.version = asked.version
        request.required_acks = asked.acks
        request.origin, request.in_epoch = self.client, -1
        request.timeout = asked.timeout_ms
        request.readers = request.undecided = asked.count
        if asked.transactional_id_size >= 0:
            name = PyBytes_FromStringAndSize(<char *> p + asked.transactional_id, asked.transactional_id_size)
            try:
                transactional_id = name.decode()
            except UnicodeDecodeError:
                return -1 - LAYOUT
            if not self.is_of_one_producer(request):
                return -1 - TRANSACTION
            request.is_transactional = True
            if self.owner.has_line(transactional_id) or not self.continues(request):
                if self.owner.begin_transaction is None:
                    return -1 - TRANSACTION
                request.transactional_id = transactional_id
        return OK

    cdef bint is_granted(self, LaneRequest request, const produce_t *asked, Grants grants) except -1:
        cdef const char *p = <const char *> request.view.buf
        cdef const part_t *part
        cdef int32_t i
        if (asked.transactional_id_size >= 0
                and p[asked.transactional_id:asked.transactional_id + asked.transactional_id_size]
                not in grants.transactional_ids):
            return False
        for i in range(asked.count):
            part = &asked.parts[i]
            if part.count and p[part.topic:part.topic + part.topic_size] not in grants.writable:
                return False
        return True

    cdef bint is_of_one_producer(self, LaneRequest request) except -1:
        cdef LaneAppend append
        cdef BatchHeader *h
        cdef int64_t producer_id = -1
        cdef int32_t epoch = -1
        for append in request.appends:
            h = &append.append.header
            if parse_header(append.data, append.size, h) != OK:
                return False
            if not h.attributes & TRANSACTIONAL or h.producer_id < 0:
                return False
            if producer_id >= 0 and (h.producer_id != producer_id or h.producer_epoch != epoch):
                return False
            producer_id, epoch = h.producer_id, h.producer_epoch
        return True

    cdef bint continues(self, LaneRequest request) except -1:
        cdef LaneAppend append
        cdef object log
        cdef ProducerTable producers
        cdef ProducerStateEntry entry
        for append in request.appends:
            log = append.partition.term.log
            if log is None:
                return False
            producers = LOG_PRODUCERS.of(log)
            entry = producers.last_entry(append.append.header.producer_id)
            if (entry is None or entry.now.producer_epoch != append.append.header.producer_epoch
                    or not entry.has_open_transaction()):
                return False
            append.verification = self.open_already
        return True

    cpdef object await_commits(self, list appends):
        """Let appends wait for the high watermark."""
        cdef LaneAppend append
        cdef int64_t now_ms = <int64_t> self.timer.monotonic_ns() // NANOSECONDS_PER_MS
        cdef int64_t first_ms = self.purgatory.armed_ms
        for append in appends:
            first_ms = min(first_ms, append.wait(self.purgatory, now_ms))
        if first_ms < self.purgatory.armed_ms:
            # The alarm is seldom set: it rings at the first deadline of all.
            self.timer.arm(first_ms)
        if self.purgatory.closed:
            self.delayed.fail_produces()

    cdef int start(self, LaneRequest request) except -1:
        return self.submit_all(request.appends)

    cdef int submit_all(self, list appends) except -1:
        cdef LaneAppend append
        cdef int reason
        for append in appends:
            reason = self.submit(append, False)
            if reason >= 0:
                self.declines[reason] += 1
                self.owner.make(append.hand_over(reason == CORE))
        for append in appends:
            if append.is_in_log:
                # It was made in this turn.
                append.finish()
        return 0

    cdef int submit(self, LaneAppend append, bint in_turn) except -2:
        cdef LeaderState partition = append.partition
        cdef BatchHeader *header = &append.append.header
        if parse_header(append.data, append.size, header) != OK or header.size != append.size:
            return BATCH
        if header.attributes & CONTROL and append.request.marker is None:
            return BATCH
        if header.attributes & CODEC_MASK and not append.is_checked:
            # Without a lock, since it may take a while.
            if not append.check_records(partition.term.log):
                return COMPRESSED
        if not partition.leader_isr_update_lock.acquire(False):
            return BUSY
        try:
            return self.submit_as_leader(append, partition.term, in_turn)
        finally:
            partition.leader_isr_update_lock.release()

    cdef int submit_as_leader(self, LaneAppend append, Term term, bint in_turn) except -2:
        cdef LeaderState partition = append.partition
        cdef object log = term.log
        cdef object queue = partition.queue
        cdef object plain
        cdef LogLock lock
        if not term.leads or log is None or queue is None:
            return NOT_LEADER
        if append.request.in_epoch >= 0 and append.request.in_epoch != term.leader_epoch:
            return NOT_LEADER
        if append.request.required_acks == ACKS_ALL and partition.is_under_min_isr:
            return TOO_FEW_IN_SYNC
        if QUEUE_LOG.of(queue) is not log:
            return BUSY
        if (not in_turn
                and (QUEUE_WAITING.of(queue) or QUEUE_RETURNED.of(queue) or QUEUE_ASIDE.of(queue) is not None)
                and not queue.admit(append)):
            return -1
        if LOG_DURABLE.of(log):
            return DURABILITY
        plain = LOG_PLAIN.of(log)
        epoch = PLAIN_KEYED_EPOCH.of(plain) if append.request.is_own else PLAIN_EPOCH.of(plain)
        if epoch != term.leader_epoch:
            return SETTINGS
        append.begin(LOG_ACTIVE.of(log), LOG_STATE.of(log), append.data, append.size, term.leader_epoch)
        append.append.latest = PLAIN_LATEST_MS.of(plain)
        append.append.max_size = PLAIN_MAX_BYTES.of(plain)
        if append.request.is_transactional:
            append.append.flags |= WITH_TRANSACTION
        if append.request.marker is not None:
            append.take_as_checked()
        if append.is_checked:
            # The topic's settings, and the clock, may have changed while it waited for its turn.
            if (not plain.max_decompressed or append.size > append.append.max_size
                    or append.append.header.max_timestamp > append.append.latest):
                return COMPRESSED
            append.take_as_checked()
        append.log = log
        append.queue = queue
        append.mark = term.watermark
        lock = LOG_LOCK.of(log)
        if not lock.try_take():
            return BUSY
        try:
            return self.submit_locked(append, queue, lock)
        finally:
            lock.give()

    cdef int submit_locked(self, LaneAppend append, PendingProducers queue, LogLock lock) except -2:
        cdef list in_flight = QUEUE_IN_FLIGHT.of(queue)
        cdef object disk = QUEUE_DISK.of(queue)
        cdef int32_t count = append.append.header.last_offset_delta + 1
        append.producer = None
        append.begins_at = -1
        if not in_flight:
            queue.end = append.state.now.log_end_offset
            queue.producers.clear()
        if append.append.header.producer_id >= 0:
            if append.partition.refused_sequences or queue.end is None:
                return SEQUENCE
            try:
                append.producer = self.producer_of(append, queue)
            except lock.own_error:
                return SEQUENCE
            if append.producer is None:
                return SEQUENCE
            append.expected = queue.end
            if append.producer.started:
                append.begin_transaction()
        # As in log_lock.pxd: only an exception from outside leaves the step open.
        lock.steps += 1
        if disk is self.inline:
            append.run()
            append.is_in_log = append.cell.job.status == OK
            if append.is_in_log:
                append.note(queue, append)
            else:
                append.no_longer_begins()
        else:
            append.job = append
            if queue.end is not None:
                queue.end += count
            disk.submit(append, append.job_done, QUEUE_LANE.of(queue))
            in_flight.append(append)
        lock.steps -= 1
        return -1 if append.is_in_log or append.job is not None else CORE

    cdef ProducerAppendInfo producer_of(self, LaneAppend append, PendingProducers queue):
        cdef LaneRequest request = append.request
        if request.marker is not None:
            return queue.add_marker(&append.append.header, request.marker, request.origin)
        return queue.add_records(&append.append.header, request.origin, append.verification)


# ---- one request -------------------------------------------------------------------------------------------


cdef class LaneRequest:
    """A Produce request on its native way: its frame, its appends and its answer."""

    def __dealloc__(self):
        let_go(self.view)

    @property
    def timeout_ms(self):
        """How long the request may wait for its commits."""
        return min(self.timeout, LONGEST_WAIT_MS)

    def producers(self):
        """Return the producer of each batch: the partition, producer id, epoch and first sequence number."""
        cdef LaneAppend append
        cdef list found = []
        for append in self.appends:
            found.append((
                append.partition, append.append.header.producer_id, append.append.header.producer_epoch,
                append.append.header.base_sequence))
        return found

    def append_verified(self, dict verifications not None, dict refused not None):
        """Append the batches, after the coordinator has been asked.

        Both arguments are by topic and partition: the Verification of a batch, without one it needs none; and the error
        of a batch that is not appended.
        """
        cdef ProduceLane lane
        cdef LaneAppend append
        cdef list wanted = []
        cdef list appends = self.appends
        # Behind a request of Python's whose batches are not all submitted, or while the broker stops.
        cdef bint is_late = False
        for append in appends:
            lane = append.lane
            is_late = bool(lane.owner.is_stopped or lane.owner.unsubmitted)
            error = refused.get(append.partition.topic_partition)
            if error is None:
                append.verification = verifications.get(append.partition.topic_partition)
                wanted.append(append)
            else:
                self.release()
                append.fail(error)
        for append in wanted:
            if is_late:
                append.lane.owner.append_late(append)
                self.release()
        if wanted and not is_late:
            lane.submit_all(wanted)

    @property
    def leader_epoch(self):
        """The leader epoch in which the partition must be led; None: any."""
        return None if self.in_epoch < 0 else self.in_epoch

    def cancel(self):
        """Drop the answer: the client is gone. Return whether there was none yet."""
        return self.abort(CancelledError())

    def abort(self, error):
        """Close the request's connection because of `error`. Return whether the request had no answer yet."""
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(-1 if self.is_own else None, error)
        return answered is not None

    cdef int release(self) except -1:
        # One append less needs the frame, which may be large.
        self.readers -= 1
        if self.readers == 0:
            self.frame = None
            let_go(self.view)
            self.view = NULL
        return 0

    cdef int decided(self) except -1:
        cdef LaneAppend append
        cdef int64_t began_ns
        # One append less is without a result. Answer after the last one.
        self.undecided -= 1
        if self.undecided:
            return 0
        answered, self.answered = self.answered, None
        if answered is not None and self.is_own:
            append = self.appends[0]
            answered(append.result_offset, append.refusal)
        elif answered is not None:
            began_ns = 0 if self.account is None else self.account.now_ns()
            answered([self.answer_frame()], None)
            if self.account is not None:
                self.account.note_time(began_ns)
        self.appends = None
        return 0

    cdef bytes answer_frame(self):
        cdef LaneAppend append
        cdef int64_t size = HEAD_BYTES + size_of_unsigned_varint(<uint32_t> self.topics + 1) + TAIL_BYTES
        cdef bytes answer
        cdef uint8_t *p
        for append in self.appends:
            size += append.answer_size()
        answer = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t *> PyBytes_AS_STRING(answer)
        store32(p, <int32_t> (size - 4))
        store32(p + 4, self.correlation_id)
        p[8] = 0                                   # unknown fields of the header
        p += HEAD_BYTES
        p += write_unsigned_varint(p, <uint32_t> self.topics + 1)
        is_first = True
        for append in self.appends:
            if append.count and not is_first:
                p[0] = 0                           # unknown fields of the topic before
                p += 1
            is_first = False
            p = append.write_answer(p)
        p[0] = 0                                   # ... of the last topic
        store32(p + 1, 0)                          # throttle time
        p[5] = 0                                   # unknown fields of the answer
        return answer


# ---- one batch ---------------------------------------------------------------------------------------------


cdef class LaneAppend(AppendJob):
    """A batch of a Produce request on its native way.

    For its log's AppendQueue it is like a QueuedAppend, and its own `job`. `partition`: the Partition.
    """

    # ---- what the AppendQueue needs -------------------------------------------------------------------------

    @property
    def check(self):
        """Always None: no other thread checks the batch."""
        return None

    @property
    def is_in_check(self):
        """Always False."""
        return False

    @property
    def connection(self):
        """The origin of the request."""
        return self.request.connection

    def note(self, PendingProducers queue not None, _job):
        """Record the effects of the job, as QueuedAppend.note."""
        if self.producer is not None and self.cell.job.status == OK:
            queue.note_producer(self.producer, self.end())
            if self.begins_at >= 0:
                self.begin_next(queue)
            elif self.request.marker is not None:
                queue.table().note_end(self.producer.ended, self.state)

    def come_back(self, bint is_declined):
        """Return what takes this append's place in the queue, since its job was not done: Python's, or a new one."""
        cdef LaneAppend again
        self.no_longer_begins()
        if is_declined:
            self.lane.declines[CORE] += 1
            return self.hand_over(True)
        # The disk may not have reported this job yet, so it cannot be submitted again.
        again = LaneAppend.__new__(LaneAppend)
        again.lane, again.request, again.partition = self.lane, self.request, self.partition
        again.data, again.size = self.data, self.size
        again.name, again.count = self.name, self.count
        again.is_checked, again.verification = self.is_checked, self.verification
        again.append.header = self.append.header
        self.request.appends[self.request.appends.index(self)] = again
        return again

    def take_turn(self):
        """Submit the append, whose turn in the queue has come. Return the one that Python makes instead, or None."""
        cdef int reason = self.lane.submit(self, True)
        if reason < 0:
            return None
        self.lane.declines[reason] += 1
        return self.hand_over(reason == CORE)

    def hand_over(self, bint is_declined):
        """Return the append that Python makes instead. `is_declined`: the core has left it to its owner."""
        append = self.lane.owner.take_over(self)
        append.is_declined = is_declined
        self.request.release()
        return append

    # ---- what Python decides ---------------------------------------------------------------------------------

    @property
    def records(self):
        """The batch as it was sent. Read it before `hand_over` returns."""
        cdef int64_t start = self.data - <const uint8_t *> self.request.view.buf
        return memoryview(self.request.frame)[start:start + self.size]

    @property
    def base_offset(self):
        """The offset of the batch; valid once it is in the log."""
        return self.append.base_offset

    @property
    def required_offset(self):
        """The high watermark that commits the batch."""
        return self.end()

    cdef inline int64_t end(self) noexcept:
        return self.append.base_offset + self.append.header.last_offset_delta + 1

    @property
    def watermark(self):
        """The watermark of the leader's term in which the batch was appended."""
        return self.mark

    # ---- its way ----------------------------------------------------------------------------------------------

    cdef int begin_transaction(self) except -1:
        cdef ProducerTable producers = LOG_PRODUCERS.of(self.log)
        self.begins_at = self.expected
        if producers.beginning is None:
            producers.beginning = self.begins_at
            self.state.stable = False
        return 0

    cdef int begin_next(self, object queue) except -1:
        cdef ProducerTable producers = LOG_PRODUCERS.of(self.log)
        cdef object after = None
        cdef object each
        for each in queue.in_flight:
            if type(each) is LaneAppend and (<LaneAppend> each).begins_at > self.begins_at:
                after = (<LaneAppend> each).begins_at
                break
        producers.beginning = after
        return producers.publish(self.state)

    cdef int no_longer_begins(self) except -1:
        cdef ProducerTable producers
        if self.begins_at >= 0:
            # Those behind it are not appended, either.
            producers = LOG_PRODUCERS.of(self.log)
            self.begins_at = -1
            producers.beginning = None
            producers.publish(self.state)
        return 0

    cdef bint check_records(self, object log) except -1:
        # Check a compressed batch. Return whether it may be stored as it is.
        cdef BatchHeader header
        cdef RecordScan found
        cdef int64_t limit = 0 if log is None else log.plain.max_decompressed
        if self.size > limit:
            return False
        try:
            if check_produced(self.data, self.size, False, True, limit, &header, &found) != OK:
                return False
        except (<LogLock> log.offsets_lock).own_error:
            # Python checks it again, and answers with the error.
            return False
        self.is_checked = found.max_timestamp == header.max_timestamp
        return self.is_checked

    def job_done(self, _job):
        """Go on after the disk thread has done the job, or held it back."""
        cdef object queue = self.queue
        cdef LogState state = self.state
        if take_back(self, queue, LOG_LOCK.of(self.log)):
            self.finish_with_following()
            go_on(self, queue, state)
        else:
            queue.job_done(self)

    cdef int finish_with_following(self) except -1:
        # Finish this append and those behind it that are done, too. They wait together, and wake fetches once.
        cdef ProduceLane lane = self.lane
        cdef object queue = self.queue
        cdef LeaderState partition = self.partition
        cdef LaneAppend append = self
        cdef list in_flight = QUEUE_IN_FLIGHT.of(queue)
        cdef list waiting = []
        cdef bint has_moved = False
        cdef int left = APPENDS_A_STEP
        try:
            while True:
                has_moved |= append.record()
                if append.waits:
                    waiting.append(append)
                left -= 1
                if left == 0 or not in_flight or type(in_flight[0]) is not LaneAppend:
                    break
                append = in_flight[0]
                if not take_back(append, queue, LOG_LOCK.of(append.log)):
                    break
                # Its end needs no further report.
                append.done = None
        finally:
            if waiting:
                lane.await_commits(waiting)
            lane.operations.appended(partition, has_moved)
        return 0

    def finish(self):
        """Record that the batch is in the log, and notify the owner."""
        cdef bint has_moved = self.record()
        if self.waits:
            self.lane.await_commits([self])
        self.lane.operations.appended(self.partition, has_moved)

    cdef bint record(self) except -1:
        # Record that the batch is in the log. Decide its result, or set `waits`: for the high watermark. Return whether
        # that has moved. The caller then calls ProduceLane.await_commits and DelayedOperations.appended.
        cdef LeaderState partition = self.partition
        cdef ProduceLane lane = self.lane
        cdef bint has_moved = False
        cdef bint is_short = False
        partition.leader_isr_update_lock.acquire()
        try:
            if partition.term.leads and partition.term.log is self.log:
                has_moved = partition.appended(self.log, self.append.base_offset)
            # An append that arrived now would be rejected.
            is_short = self.request.required_acks == ACKS_ALL and partition.is_under_min_isr
        finally:
            partition.leader_isr_update_lock.release()
        self.is_in_log = True
        self.request.release()
        lane.bytes_in.count += self.append.header.size
        lane.messages_in.count += self.append.header.record_count
        if self.request.required_acks != ACKS_ALL:
            self.succeed()
        elif is_short:
            self.fail(lane.owner.not_enough_replicas(partition))
        else:
            self.waits = True
        return has_moved

    cdef int64_t wait(self, Purgatory purgatory, int64_t now_ms) except -1:
        cdef int64_t deadline_ms = now_ms + max(0, min(self.request.timeout, LONGEST_WAIT_MS))
        cdef waiting_t part = waiting_t(self.partition.key, self.end(), <PyObject *> self.mark)
        cdef int64_t handle = purgatory.watch_parts(&part, 1, deadline_ms, <PyObject *> self, 0)
        if handle == COMPLETE:
            self.complete()
        elif handle < 0:
            # There is no memory to wait in.
            if self.request.is_own:
                self.fail(self.lane.owner.not_enough_replicas(self.partition))
            else:
                self.request.abort(MemoryError("no memory to wait for the high watermark"))
        return deadline_ms

    def complete(self, given_up=None):
        """Decide the result if the commit is decided. `given_up`: the error to answer if it is not."""
        if self.is_decided:
            return
        if self.mark.value >= self.end():
            if self.partition.has_enough_in_sync:
                self.succeed()
            else:
                self.fail(self.lane.owner.not_enough_replicas(self.partition))
        elif self.mark.closed:
            self.fail(self.lane.owner.no_longer_leader(self.partition))
        elif given_up is not None:
            self.fail(given_up)

    cdef int succeed(self) except -1:
        return self.decide(0, self.append.base_offset, -1, self.state.now.log_start_offset, None, None)

    def fail(self, error):
        """Answer with an error. If the batch is in the log, the answer has its offset, too."""
        self.refusal = error
        if self.is_in_log:
            self.decide(error.code, self.append.base_offset, -1, self.state.now.log_start_offset, str(error), None)
        else:
            self.decide(error.code, -1, -1, -1, str(error), error.record_errors)

    def answer(self, future):
        """Answer with the result of the Produce request that has taken the place of this append."""
        error = future.exception()
        if error is not None:
            self.request.abort(error)
            return
        [response] = future.result().values()
        self.refusal = error = response.error
        self.decide(
            0 if error is None else error.code, response.base_offset, response.log_append_time,
            response.log_start_offset, None if error is None else str(error), response.record_errors)

    cdef int decide(self, int16_t code, int64_t base_offset, int64_t append_time, int64_t log_start_offset,
                    str message, object record_errors) except -1:
        if self.is_decided:
            return 0
        self.is_decided = True
        self.code = code
        self.result_offset = base_offset
        self.append_time = append_time
        self.log_start_offset = log_start_offset
        self.text = None if message is None else message.encode()
        self.record_errors = errors_of(record_errors) if record_errors else NO_ERRORS
        return self.request.decided()

    cdef int64_t answer_size(self) noexcept:
        cdef int64_t size = PART_BYTES + PyBytes_GET_SIZE(self.record_errors)
        if self.text is None:
            size += 1
        else:
            size += size_of_unsigned_varint(<uint32_t> PyBytes_GET_SIZE(self.text) + 1) + PyBytes_GET_SIZE(self.text)
        if self.count:
            # The topic's name and its unknown fields.
            size += PyBytes_GET_SIZE(self.name) - NUMBER_BYTES + size_of_unsigned_varint(<uint32_t> self.count + 1) + 1
        return size

    cdef uint8_t *write_answer(self, uint8_t *p) noexcept:
        # Write the result, after the topic's name in its first partition; return the position behind it.
        cdef Py_ssize_t name_size = PyBytes_GET_SIZE(self.name) - NUMBER_BYTES
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.record_errors)
        if self.count:
            memcpy(p, PyBytes_AS_STRING(self.name), name_size)
            p += name_size
            p += write_unsigned_varint(p, <uint32_t> self.count + 1)
        memcpy(p, PyBytes_AS_STRING(self.name) + name_size + 1, 4)
        store16(p + 4, self.code)
        store64(p + 6, self.result_offset)
        store64(p + 14, self.append_time)
        store64(p + 22, self.log_start_offset)
        p += 30
        memcpy(p, PyBytes_AS_STRING(self.record_errors), size)
        p += size
        if self.text is None:
            p += write_unsigned_varint(p, 0)
        else:
            size = PyBytes_GET_SIZE(self.text)
            p += write_unsigned_varint(p, <uint32_t> size + 1)
            memcpy(p, PyBytes_AS_STRING(self.text), size)
            p += size
        p[0] = 0                                   # unknown fields of the partition
        return p + 1


cdef bytes errors_of(object record_errors):
    """Return a compact array of the errors of single records, each with its index and its message."""
    cdef uint8_t size[5]
    cdef int used = write_unsigned_varint(size, <uint32_t> (len(record_errors) + 1))
    cdef list parts = [(<char *> size)[:used]]
    cdef bytes text
    for each in record_errors:
        parts.append((<int> each.batch_index).to_bytes(4, "big"))
        text = b"" if each.message is None else each.message.encode()
        used = write_unsigned_varint(size, 0 if each.message is None else <uint32_t> (len(text) + 1))
        parts += [(<char *> size)[:used], text, b"\0"]
    return b"".join(parts)
