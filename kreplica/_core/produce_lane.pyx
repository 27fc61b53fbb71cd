"""The native way of a Produce request; what it takes, and its contract: produce_lane.pxd."""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from concurrent.futures import CancelledError

from kreplica._core.append_job cimport AppendJob, let_go, view_of
from kreplica._core.big_endian cimport load16, load32, store16, store32, store64
from kreplica._core.leader_state cimport LeaderState, Term
from kreplica._core.log_lock cimport LogLock
from kreplica._core.record_batch cimport CODEC_MASK, CONTROL, TRANSACTIONAL
from kreplica._core.status cimport OK
from kreplica._core.varint cimport read_unsigned_varint, size_of_unsigned_varint, write_unsigned_varint

# The names of the reasons to decline a request, in the order of produce_lane.pxd.
DECLINED = (
    "version", "layout", "transactional id", "acks", "several partitions", "unknown partition", "not leader",
    "too few in sync", "busy", "durability", "settings", "batch", "compressed", "sequence",
    "core",
)
assert len(DECLINED) == DECLINES

cdef enum:
    FIRST_VERSION = 9                  # the first version with compact fields
    LAST_VERSION = 11
    ACKS_ALL = -1
    ACKS_LEADER = 1
    ONE = 2                            # the size of a compact array with one element
    LONGEST_WAIT_MS = 300000           # limits how long the request's memory is held
    ANSWER_BYTES = 45                  # the size of an answer without the partition's wire name and an error


def wire_name(str topic not None, int32_t partition):
    """Return the bytes of a flexible request that name one partition: the topic, an array's size of 1, the number."""
    cdef bytes name = topic.encode()
    cdef uint8_t size[5]
    cdef int used = write_unsigned_varint(size, <uint32_t> (len(name) + 1))
    return (<char *> size)[:used] + name + bytes([ONE]) + partition.to_bytes(4, "big")


# ---- reading -----------------------------------------------------------------------------------------------

# Read the request at p[0:size], whose API key was checked. Returns OK, or the reason to decline it, negated and less 1.
cdef int parse(const uint8_t *p, int64_t size, request_t *request) noexcept nogil:
    cdef int64_t at = 8
    cdef uint32_t count
    cdef int used
    cdef int malformed = -1 - LAYOUT
    if size < 10:
        return malformed
    request.version = load16(p + 2)
    if not FIRST_VERSION <= request.version <= LAST_VERSION:
        return -1 - VERSION
    request.correlation_id = load32(p + 4)
    at = 10 + (load16(p + 8) if load16(p + 8) > 0 else 0)  # the client id; -1 is null
    if size - at < 9 or load16(p + 8) < -1 or p[at] != 0:
        return malformed
    if p[at + 1] != 0:
        return -1 - TRANSACTIONAL_ID
    request.acks = load16(p + at + 2)
    request.timeout_ms = load32(p + at + 4)
    at += 8
    if request.acks != ACKS_ALL and request.acks != ACKS_LEADER:
        return -1 - ACKS
    if p[at] != ONE:
        return -1 - SEVERAL_PARTITIONS
    at += 1
    request.name = at
    used = read_unsigned_varint(p + at, size - at, &count)
    if used < 0 or count < 2 or <int64_t> count - 1 > size - at - used - 5:
        return malformed
    at += used + count - 1
    if p[at] != ONE:
        return -1 - SEVERAL_PARTITIONS
    at += 5
    request.name_size = at - request.name
    used = read_unsigned_varint(p + at, size - at, &count)
    # Behind the records come the counts of unknown fields: of the partition, the topic and the request.
    if used < 0 or count < 1 or <int64_t> count - 1 > size - at - used - 3:
        return malformed
    request.records = at + used
    request.records_size = count - 1
    at = request.records + request.records_size
    return OK if p[at] == 0 and p[at + 1] == 0 and p[at + 2] == 0 else malformed


# ---- the lane ----------------------------------------------------------------------------------------------


cdef class ProduceLane:
    """Takes the Produce requests of one broker that need no decision.

    `partitions`: the partitions that clients may write to, by `wire_name`; the owner keeps it. `owner`: the
    AppendManager, see its section about the lane. `inline`: the disk whose appends are made in the caller's turn.
    `bytes_in`, `messages_in`: meters. `await_commit`: DelayedRequests.await_token.
    """

    def __init__(self, dict partitions not None, owner, inline, bytes_in, messages_in, await_commit):
        self.partitions = partitions
        self.owner = owner
        self.inline = inline
        self.bytes_in = bytes_in
        self.messages_in = messages_in
        self.await_commit = await_commit

    def declined(self, int reason):
        """Return how many requests were declined for a reason, an index into DECLINED."""
        if not 0 <= reason < DECLINES:
            raise IndexError(reason)
        return self.declines[reason]

    def take(self, frame, answered, connection):
        """Take the Produce request in `frame`, without its size field; return the LaneAppend, None if declined.

        `answered(buffers, error)` is called once, perhaps before this returns. `connection`: the origin of the request,
        whose appends to a partition keep their order.
        """
        cdef request_t request
        cdef Py_buffer view
        cdef int status
        cdef LaneAppend append
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        status = parse(<const uint8_t *> view.buf, view.len, &request)
        PyBuffer_Release(&view)
        if status < 0:
            self.declines[-1 - status] += 1
            return None
        append = self.start(frame, &request, answered, connection)
        if append is None:
            return None
        self.taken += 1
        if append.job is None:
            # It was made in this turn.
            try:
                append.finish()
            except BaseException:
                # The caller answers with the error.
                append.answered = None
                raise
        return append

    cdef LaneAppend start(self, object frame, const request_t *request, object answered, object connection):
        cdef LaneAppend append = LaneAppend.__new__(LaneAppend)
        cdef LeaderState partition
        cdef int reason
        append.view = view_of(frame)
        append.request = request[0]
        append.name = PyBytes_FromStringAndSize(<const char *> append.view.buf + request.name, request.name_size)
        partition = self.partitions.get(append.name)
        if partition is None:
            self.declines[UNKNOWN_PARTITION] += 1
            return None
        append.lane = self
        append.frame = frame
        append.partition = partition
        append.answered = answered
        append.connection = connection
        if not partition.leader_isr_update_lock.acquire(False):
            self.declines[BUSY] += 1
            return None
        try:
            reason = self.submit(append)
        finally:
            partition.leader_isr_update_lock.release()
        if reason >= 0:
            self.declines[reason] += 1
            return None
        return append

    cdef int submit(self, LaneAppend append) except -2:
        # Give the append to the disk; return the reason to decline it, or -1. The partition's lock is held.
        cdef LeaderState partition = append.partition
        cdef Term term = partition.term
        cdef object log = term.log
        cdef object queue = partition.queue
        cdef object plain
        cdef LogLock lock
        if not term.leads or log is None or queue is None or self.owner.is_stopped:
            return NOT_LEADER
        if append.request.acks == ACKS_ALL and partition.is_under_min_isr:
            return TOO_FEW_IN_SYNC
        if (self.owner.unsubmitted or queue.waiting or queue.returned or queue.aside is not None
                or queue.log is not log):
            return BUSY
        if log.durable:
            return DURABILITY
        plain = log.plain
        if plain.epoch != term.leader_epoch:
            return SETTINGS
        append.begin(log.active, log.state, append.request.records, append.request.records_size, term.leader_epoch)
        append.append.latest = plain.latest_ms
        append.append.max_size = plain.max_bytes
        if append.append.header.attributes & CODEC_MASK:
            return COMPRESSED
        if (append.append.header.attributes & (CONTROL | TRANSACTIONAL)
                or append.append.header.size != append.append.size or append.append.size == 0):
            return BATCH
        append.log = log
        append.queue = queue
        append.mark = term.watermark
        lock = log.offsets_lock
        if not lock.try_take():
            return BUSY
        try:
            return self.submit_locked(append, queue, lock)
        finally:
            lock.give()

    cdef int submit_locked(self, LaneAppend append, object queue, LogLock lock) except -2:
        cdef list in_flight = queue.in_flight
        cdef int32_t count = append.append.header.last_offset_delta + 1
        if not in_flight:
            queue.end = append.state.now.log_end_offset
            queue.producers.clear()
        if append.append.header.producer_id >= 0:
            if append.partition.refused_sequences or queue.end is None:
                return SEQUENCE
            try:
                append.producer = queue.continue_sequence(
                    append.append.header.producer_id, append.append.header.producer_epoch,
                    append.append.header.base_sequence, count, append.append.header.max_timestamp)
            except lock.own_error:
                return SEQUENCE
            if append.producer is None:
                return SEQUENCE
            append.expected = queue.end
        # As in log_lock.pxd: only an exception from outside leaves the step open.
        lock.steps += 1
        if queue.disk is self.inline:
            append.run()
            if append.cell.job.status == OK:
                append.note(queue, append)
        else:
            append.job = append
            if queue.end is not None:
                queue.end += count
            queue.disk.submit(append, queue.job_done, queue.lane)
            in_flight.append(append)
        lock.steps -= 1
        return CORE if append.job is None and append.cell.job.status != OK else -1


# ---- one request -------------------------------------------------------------------------------------------


cdef class LaneAppend(AppendJob):
    """A Produce request of one batch on its native way.

    For its log's AppendQueue it is like a QueuedAppend, and its own `job`. `partition`: the Partition.
    """

    # ---- what the AppendQueue needs -------------------------------------------------------------------------

    @property
    def check(self):
        """Always None: no other thread checks the batch."""
        return None

    def note(self, queue, _job):
        """Record the effects of the job, as QueuedAppend.note."""
        if self.producer is not None and self.cell.job.status == OK:
            queue.note_producer(self.producer, self.required_offset)

    def come_back(self, bint is_declined):
        """Return the append that takes this one's place in the queue, since its job was not done."""
        if is_declined:
            self.lane.declines[CORE] += 1
        append = self.lane.owner.take_over(self)
        append.is_declined = is_declined
        return append

    # ---- what Python decides ---------------------------------------------------------------------------------

    @property
    def records(self):
        """The batch as it was sent; None once it is in the log."""
        cdef int64_t start = self.request.records
        return None if self.frame is None else memoryview(self.frame)[start:start + self.request.records_size]

    @property
    def required_acks(self):
        return self.request.acks

    @property
    def timeout_ms(self):
        """How long the request may wait for its commit."""
        return min(self.request.timeout_ms, LONGEST_WAIT_MS)

    @property
    def base_offset(self):
        """The offset of the batch; valid once it is in the log."""
        return self.append.base_offset

    @property
    def required_offset(self):
        """The high watermark that commits the batch."""
        return self.append.base_offset + self.append.header.last_offset_delta + 1

    @property
    def watermark(self):
        """The watermark of the leader's term in which the batch was appended."""
        return self.mark

    # ---- its way ----------------------------------------------------------------------------------------------

    def finish(self):
        """Answer the request, or let it wait for the high watermark: the batch is in the log."""
        cdef LeaderState partition = self.partition
        cdef ProduceLane lane = self.lane
        cdef bint has_moved = False
        cdef bint is_short = False
        partition.leader_isr_update_lock.acquire()
        try:
            if partition.term.leads and partition.term.log is self.log:
                has_moved = partition.appended(self.log, self.append.base_offset)
            # An append that arrived now would be rejected.
            is_short = self.request.acks == ACKS_ALL and partition.is_under_min_isr
        finally:
            partition.leader_isr_update_lock.release()
        # The frame may be large, and is no longer needed.
        self.frame = None
        let_go(self.view)
        self.view = NULL
        lane.bytes_in.count += self.append.header.size
        lane.messages_in.count += self.append.header.record_count
        if self.request.acks != ACKS_ALL:
            self.succeed()
        elif is_short:
            self.fail(lane.owner.not_enough_replicas(partition))
        else:
            lane.await_commit(self, partition.key, self.required_offset, self.timeout_ms, self.mark)
        lane.owner.appended(partition, has_moved)

    def complete(self, given_up=None):
        """Answer the request if its commit is decided. `given_up`: the error to answer if it is not."""
        if self.answered is None:
            return
        if self.mark.value >= self.required_offset:
            if self.partition.has_enough_in_sync:
                self.succeed()
            else:
                self.fail(self.lane.owner.not_enough_replicas(self.partition))
        elif self.mark.closed:
            self.fail(self.lane.owner.no_longer_leader(self.partition))
        elif given_up is not None:
            self.fail(given_up)

    cdef int succeed(self) except -1:
        return self.respond(0, self.append.base_offset, -1, self.state.now.log_start_offset, None, ())

    def fail(self, error):
        """Answer the request with an error. If the batch is in the log, the answer has its offset, too."""
        if self.cell.job.status == OK and self.frame is None:
            self.respond(error.code, self.append.base_offset, -1, self.state.now.log_start_offset, str(error), ())
        else:
            self.respond(error.code, -1, -1, -1, str(error), error.record_errors)

    def answer(self, future):
        """Answer with the result of the Produce request that has taken the place of this one."""
        error = future.exception()
        if error is not None:
            self.abort(error)
            return
        [response] = future.result().values()
        error = response.error
        self.respond(
            0 if error is None else error.code, response.base_offset, response.log_append_time,
            response.log_start_offset, None if error is None else str(error), response.record_errors)

    def cancel(self):
        """Drop the answer: the client is gone. Return whether there was none yet."""
        return self.abort(CancelledError())

    def abort(self, error):
        """Close the request's connection because of `error`. Return whether the request had no answer yet."""
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(None, error)
        return answered is not None

    cdef int respond(self, int16_t code, int64_t base_offset, int64_t append_time, int64_t log_start_offset,
                     str message, object record_errors) except -1:
        cdef bytes text = b"" if message is None else message.encode()
        cdef bytes errors = errors_of(record_errors) if record_errors else b"\x01"
        cdef Py_ssize_t name_size = len(self.name)
        cdef Py_ssize_t size = ANSWER_BYTES - 1 + name_size + len(errors) + len(text)
        cdef bytes answer
        cdef uint8_t *p
        answered, self.answered = self.answered, None
        if answered is None:
            return 0
        if message is not None:
            size += size_of_unsigned_varint(<uint32_t> (len(text) + 1)) - 1
        answer = PyBytes_FromStringAndSize(NULL, size)
        p = <uint8_t *> PyBytes_AS_STRING(answer)
        store32(p, <int32_t> (size - 4))
        store32(p + 4, self.request.correlation_id)
        p[8] = 0                                   # unknown fields of the header
        p[9] = ONE                                 # topics
        p += 10
        memcpy(p, PyBytes_AS_STRING(self.name), name_size)
        p += name_size
        store16(p, code)
        store64(p + 2, base_offset)
        store64(p + 10, append_time)
        store64(p + 18, log_start_offset)
        p += 26
        memcpy(p, PyBytes_AS_STRING(errors), len(errors))
        p += len(errors)
        p += write_unsigned_varint(p, 0 if message is None else <uint32_t> (len(text) + 1))
        memcpy(p, PyBytes_AS_STRING(text), len(text))
        p += len(text)
        p[0] = p[1] = 0                            # unknown fields of the partition and the topic
        store32(p + 2, 0)                          # throttle time
        p[6] = 0                                   # unknown fields of the answer
        answered([answer], None)
        return 0


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
