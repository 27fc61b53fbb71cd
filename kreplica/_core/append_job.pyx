"""Appends as jobs of a disk thread: a leader's batch, a follower's run, and the publication of a log's state.

Like the calls of LogSegment, a job declines what needs a decision; its lane is then held. Contract: append_job.pxd.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc

from kreplica._core.disk_thread cimport DiskJob
from kreplica._core.fields cimport (
    LOG_STATE, QUEUE_DISK, QUEUE_IN_FLIGHT, QUEUE_LANE, QUEUE_LOG, QUEUE_NOTED, QUEUE_PUBLISHING, QUEUE_RETURNED,
    QUEUE_WAITING,
)
from kreplica._core.follower_append cimport append_batches
from kreplica._core.log_lock cimport LogLock
from kreplica._core.log_segment cimport (
    AS_LEADER, CHECK_RECORDS, MAY_ROLL, ONLY_PLAIN, WITH_PRODUCER, WRITES_BODY, LogSegment,
)
from kreplica._core.log_state cimport LogState
from kreplica._core.record_batch cimport CODEC_MASK, CONTROL, TRANSACTIONAL, parse_header
from kreplica._core.status cimport END, OK


cdef enum:
    # Up to this size the thread takes some microseconds.
    BRIEF_BYTES = 16384


cdef bint take_back(DiskJob append, object queue, LogLock lock) except -1:
    cdef list in_flight = QUEUE_IN_FLIGHT.of(queue)
    cdef object done = append
    if not in_flight or in_flight[0] is not append or done.is_given_up:
        return False
    # An append that came back and was submitted again may get the report of its first try.
    if not QUEUE_DISK.of(queue).is_finished(append) or append.cell.job.status != OK:
        return False
    if QUEUE_WAITING.of(queue) or QUEUE_RETURNED.of(queue) or not lock.try_take():
        return False
    try:
        noted = QUEUE_NOTED.of(queue)
        if not noted:
            noted = queue.noted = 1
            done.note(queue, append)
        queue.noted = noted - 1
        del in_flight[0]
        done.job = None
    finally:
        lock.give()
    return True


cdef int go_on(DiskJob append, object queue, LogState state) except -1:
    if QUEUE_WAITING.of(queue):
        queue.job_done(append)
    elif state.unpublished:
        publish_soon(queue)
    return 0


cdef Py_buffer *view_of(data) except NULL:
    # Allocated separately, so that the garbage collector does not follow it. If a job that was never done became
    # garbage together with a memoryview that it holds, the memoryview would be cleared first, which fails.
    cdef Py_buffer *view = <Py_buffer *> PyMem_Malloc(sizeof(Py_buffer))
    if view == NULL:
        raise MemoryError
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except BaseException:
        PyMem_Free(view)
        raise
    return view


cdef void let_go(Py_buffer *view):
    if view != NULL:
        PyBuffer_Release(view)
        PyMem_Free(view)


cdef class AppendJob(DiskJob):
    """A leader's append of one encoded batch at the log end that `state` has when the job runs.

    It accepts only plain batches, as LogSegment.append_plain does; `latest` and `max_bytes` as there. A batch that was
    `checked` before may be compressed. For a batch with a producer id the caller maintains the producer's state.
    `expected`: the append is declined if the batch would get another offset.
    """

    def __init__(self, data, LogSegment segment not None, LogState state not None, int32_t leader_epoch, *,
                 int64_t latest=INT64_MAX, int64_t max_bytes=INT64_MAX, bint checked=False, int64_t append_time=-1,
                 int64_t expected=-1):
        if self.view != NULL:
            raise ValueError("a job can be initialized only once: create another one")
        self.view = view_of(data)
        self.begin(segment, state, <const uint8_t *> self.view.buf, self.view.len, leader_epoch)
        self.append.append_time = append_time
        self.append.latest = latest
        self.append.max_size = max_bytes
        if checked:
            self.take_as_checked()
        self.expected = expected

    cdef int begin(self, LogSegment segment, LogState state, const uint8_t *data, int64_t size,
                   int32_t leader_epoch) except -1:
        segment.know()
        self.segment = segment
        self.state = state
        self.append.data = data
        self.append.size = size
        self.cell.job.brief = size <= BRIEF_BYTES
        self.append.leader_epoch = leader_epoch
        self.append.append_time = -1
        self.append.flags = AS_LEADER | MAY_ROLL | WRITES_BODY | ONLY_PLAIN | WITH_PRODUCER | CHECK_RECORDS
        self.expected = -1
        self.append.header.producer_id = -1
        self.append.header.attributes = 0
        self.append.header.last_offset_delta = 0
        parse_header(self.append.data, self.append.size, &self.append.header)
        return 0

    cdef void take_as_checked(self) noexcept:
        self.append.flags &= ~(ONLY_PLAIN | WITH_PRODUCER | CHECK_RECORDS)

    def __dealloc__(self):
        let_go(self.view)

    cdef int perform(self) noexcept nogil:
        self.append.base_offset = self.state.now.log_end_offset
        if self.expected >= 0 and self.expected != self.append.base_offset:
            return END
        return self.segment.append_native(&self.append, self.state)

    @property
    def producer_id(self):
        """The batch's producer id; -1 if it has none or cannot be parsed."""
        return self.append.header.producer_id

    @property
    def is_plain(self):
        """Whether nothing in the header needs a decision that the core leaves to its caller."""
        return not self.append.header.attributes & (CODEC_MASK | CONTROL | TRANSACTIONAL)

    @property
    def offset_count(self):
        """The number of offsets that the batch takes."""
        return self.append.header.last_offset_delta + 1

    def expect(self, int64_t offset):
        """Decline the append if the batch would get another offset."""
        self.expected = offset

    def info(self):
        """Return the LogAppendInfo of a successful job."""
        cdef int64_t base = self.append.base_offset
        return self.segment._info(
            base, base + self.append.header.last_offset_delta, self.append.leader_epoch,
            self.append.append_time if self.append.append_time >= 0 else self.append.header.max_timestamp,
            self.append.append_time, self.append.header.record_count, self.append.header.size, self.append.position,
            self.state)


cdef class RunJob(DiskJob):
    """A follower's append of the batches in `data` as they are, up to the first one that needs a decision.

    `with_producers`: a batch with a producer id needs none; the caller then records the producers of `bytes_used`.
    """

    def __init__(self, data, LogSegment segment not None, LogState state not None, int32_t leader_epoch, *,
                 bint with_producers=False):
        self.begin(data, segment, state, leader_epoch, with_producers)

    cdef int begin(self, data, LogSegment segment, LogState state, int32_t leader_epoch,
                   bint with_producers) except -1:
        if self.view != NULL:
            raise ValueError("a job can be initialized only once: create another one")
        segment.know()
        self.segment = segment
        self.state = state
        self.view = view_of(data)
        self.run.data = <const uint8_t *> self.view.buf
        self.run.size = self.view.len
        self.cell.job.brief = self.view.len <= BRIEF_BYTES
        self.run.used = 0
        self.run.with_producers = with_producers
        self.run.has_producers = False
        self.run.decided = 0
        self.run.last.leader_epoch = leader_epoch
        self.run.last.append_time = -1
        self.run.last.latest = INT64_MAX
        self.run.last.flags = MAY_ROLL | WRITES_BODY
        return 0

    def __dealloc__(self):
        let_go(self.view)

    cdef int perform(self) noexcept nogil:
        append_batches(self.segment, self.state, &self.run)
        return OK if self.run.used == self.run.size else END

    @property
    def bytes_used(self):
        """The size of the appended batches."""
        return self.run.used

    @property
    def has_producers(self):
        """Whether one of the appended batches has a producer id."""
        return self.run.has_producers

    def info(self):
        """Return the LogAppendInfo of the last appended batch, or None."""
        if self.run.used == 0:
            return None
        return self.segment._info(
            self.run.last.header.base_offset,
            self.run.last.header.base_offset + self.run.last.header.last_offset_delta,
            self.run.last.header.leader_epoch, self.run.last.header.max_timestamp, -1,
            self.run.last.header.record_count, self.run.last.header.size, self.run.last.position, self.state)


cpdef int publish_soon(object queue) except -1:
    """Write an advanced high watermark of the AppendQueue's log to the state file soon, if no append will do so."""
    cdef LogState state
    cdef PublishJob job
    if QUEUE_PUBLISHING.of(queue) or QUEUE_IN_FLIGHT.of(queue):
        return 0
    state = LOG_STATE.of(QUEUE_LOG.of(queue))
    if state.unpublished:
        job = PublishJob(state)
        job.queue = queue
        queue.is_publishing = True
        QUEUE_DISK.of(queue).submit(job, job.published, QUEUE_LANE.of(queue), lazily=True)
    return 0


cdef class PublishJob(DiskJob):
    """Publishes the log's state, see LogState.advance."""

    def __init__(self, LogState state not None):
        self.state = state

    def published(self, _job):
        """Note the end of the job of `publish_soon`, and look whether another one is due."""
        self.queue.is_publishing = False
        publish_soon(self.queue)

    cdef int perform(self) noexcept nogil:
        if self.state.unpublished:
            self.state.publish()
        return OK
