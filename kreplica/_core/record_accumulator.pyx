"""RecordAccumulator: the appends to one partition that wait to be sent, encoded into batches as they come.

Purpose, ownership and thread rule: record_accumulator.pxd.
"""

from collections import deque

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kreplica._core.batch_builder cimport BatchBuilder, PendingRecord
from kreplica._core.produce_frames cimport MOST_HEAD_BYTES, PLAIN_VERSION, TAIL_BYTES, head_size, produce_t, write_head
from kreplica._core.record_batch cimport HEADER_SIZE, TRANSACTIONAL, seal, write_header
from kreplica._core.scratch cimport reserve
from kreplica._core.status cimport BATCH_TOO_LARGE, check

cdef enum:
    LEAST_CAPACITY = 640
    MOST_SMALL = 32768            # a batch that outgrows this gets a whole buffer of the pool
    POOLED = 1052672              # the size of these: a batch of 1 MiB, and a request around it


@cython.final
cdef class BufferPool:
    """The memory of the large batches of one producer that are done, for its next ones."""

    def __dealloc__(self):
        cdef int i
        for i in range(self.count):
            free(self.free_buffers[i])

    def __len__(self):
        """Return the number of free buffers."""
        return self.count

    cdef uint8_t *take(self, int64_t least, int64_t *capacity) except NULL:
        cdef uint8_t *data
        capacity[0] = POOLED if MOST_SMALL < least <= POOLED else least
        if capacity[0] == POOLED and self.count:
            self.count -= 1
            data = self.free_buffers[self.count]
        else:
            data = <uint8_t *>malloc(<size_t>capacity[0])
        if data == NULL:
            raise MemoryError(f"no memory for a batch of {least} bytes")
        self.used += capacity[0]
        return data

    cdef void give(self, uint8_t *data, int64_t capacity) noexcept:
        self.used -= capacity
        if capacity == POOLED and self.count < MOST_FREE:
            self.free_buffers[self.count] = data
            self.count += 1
        else:
            free(data)


@cython.final
@cython.no_gc_clear  # its memory returns to its pool, also if both are garbage
cdef class ProducerBatch:
    """Appends that are sent as one batch, each with its future, records and deadline.

    `owner`: the accumulator's owner. `acks`: of all appends. `base_offset`: the first record's offset, set by the
    sender before it resolves the futures; -1 is unknown. An append is named by its index.
    """

    def __cinit__(self):
        memset(&self.h, 0, sizeof(self.h))
        self.h.size = HEADER_SIZE
        self.h.leader_epoch = -1
        self.futures = []
        self.earliest = INT64_MAX
        self.base_offset = -1

    def __dealloc__(self):
        free(self.entries.data)
        if self.data != NULL:
            self.pool.give(self.data, self.capacity)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.is_sealed or self.data == NULL:
            raise BufferError("the batch is open, or was released")
        cdef int64_t head = self.exported_head
        PyBuffer_FillInfo(
            view, self, self.batch() - head, head + self.h.size + (TAIL_BYTES if head else 0), 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1
        if self.is_released:
            self.drop()

    @property
    def record_count(self):
        """The number of records."""
        return self.h.record_count

    @property
    def size(self):
        """The batch's size in bytes."""
        return self.h.size

    @property
    def earliest_deadline_ms(self):
        """The lowest deadline of the appends that have not expired; None if all have."""
        return None if self.earliest == INT64_MAX else self.earliest

    @property
    def latest_deadline_ms(self):
        """The highest deadline of all appends."""
        return self.latest

    @property
    def expired_appends(self):
        """The number of appends that have expired."""
        return self.expired

    def __len__(self):
        """Return the number of appends."""
        return self.entries.size // <int64_t>sizeof(AppendEntry)

    def place(self, Py_ssize_t index):
        """Return the offset delta of the append's first record, and the number of its records."""
        cdef AppendEntry *entry
        if not 0 <= index < len(self):
            raise IndexError(f"append {index} of {len(self)}")
        entry = &(<AppendEntry *>self.entries.data)[index]
        return entry.first, entry.count

    def deadline_ms(self, Py_ssize_t index):
        """Return the append's deadline."""
        self.place(index)
        return (<AppendEntry *>self.entries.data)[index].deadline_ms

    def pending(self):
        """Return the appends that have not expired: pairs of index and future."""
        return [(index, future) for index, future in enumerate(self.futures) if future is not None]

    def expire(self, int64_t now_ms):
        """Take out and return the futures of the appends whose deadline is `now_ms` or before."""
        cdef AppendEntry *entries = <AppendEntry *>self.entries.data
        cdef list found = []
        cdef Py_ssize_t i
        if self.earliest > now_ms:
            return found
        self.earliest = INT64_MAX
        for i in range(len(self.futures)):
            if self.futures[i] is None:
                continue
            if entries[i].deadline_ms <= now_ms:
                found.append(self.futures[i])
                self.futures[i] = None
                self.expired += 1
            elif entries[i].deadline_ms < self.earliest:
                self.earliest = entries[i].deadline_ms
        return found

    def seal(
            self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint is_transactional=False):
        """End the batch, and return its bytes under this producer id and sequence number (-1: none), as a buffer.

        A batch may be sealed again under another producer id; bytes returned before stay as they are.
        """
        cdef bytes copy
        if self.data == NULL or self.is_released:
            raise RuntimeError("the batch is empty or was released")
        self.h.last_offset_delta = self.h.record_count - 1
        self.h.producer_id = producer_id
        self.h.producer_epoch = producer_epoch
        self.h.base_sequence = base_sequence
        self.h.attributes = TRANSACTIONAL if is_transactional else 0
        if not self.is_sealed:
            self._write_header(self.batch())
            self.is_sealed = True
            return memoryview(self)
        copy = PyBytes_FromStringAndSize(<char *>self.batch(), self.h.size)
        self._write_header(<uint8_t *>PyBytes_AS_STRING(copy))
        return copy

    def frame(
            self, data, int32_t number, bytes client_id not None, int32_t timeout_ms, bytes name not None,
            int version=PLAIN_VERSION, bytes transactional_id=None):
        """Return the frame of a Produce request with this batch alone, as a buffer.

        `data`: what `seal` has returned. `number`, `version`: of the request. `name`: the partition's `wire_name`. The
        first frame is written around the batch where it is; later ones are copies, since the first may still be in use.
        """
        cdef produce_t request
        cdef int64_t size
        cdef bytes head
        if self.data == NULL or not self.is_sealed:
            raise BufferError("the batch is open, or was released")
        request.number = number
        request.version = version
        request.acks = self.acks
        request.timeout_ms = timeout_ms
        request.batch_size = self.h.size
        size = head_size(&request, client_id, transactional_id, name)
        if self.is_framed or size > MOST_HEAD_BYTES or isinstance(data, bytes):
            head = PyBytes_FromStringAndSize(NULL, size)
            write_head(<uint8_t *>PyBytes_AS_STRING(head), &request, client_id, transactional_id, name)
            return b"".join((head, data, bytes(TAIL_BYTES)))
        self.is_framed = True
        write_head(self.batch() - size, &request, client_id, transactional_id, name)
        memset(self.batch() + self.h.size, 0, TAIL_BYTES)
        self.exported_head = size
        try:
            return memoryview(self)
        finally:
            self.exported_head = 0

    cdef uint8_t *batch(self) noexcept:
        return self.data + MOST_HEAD_BYTES

    cdef void _write_header(self, uint8_t *p) noexcept:
        write_header(p, &self.h)
        seal(p, self.h.size)

    def release(self):
        """Drop the records, and return the futures of the appends that have not expired."""
        cdef list futures = self.futures
        self.futures = []
        self.earliest = INT64_MAX
        self.is_released = True
        self.drop()
        return [future for future in futures if future is not None] if self.expired else futures

    cdef void drop(self) noexcept:
        if self.views == 0 and self.data != NULL:
            self.pool.give(self.data, self.capacity)
            self.data = NULL

    cdef int make_room(self, int64_t more) except -1:
        # Reserve all memory that an append of `more` bytes takes.
        cdef int64_t capacity = MOST_HEAD_BYTES + self.h.size + more + TAIL_BYTES
        cdef uint8_t *data
        reserve(&self.entries, sizeof(AppendEntry))
        if capacity <= self.capacity:
            return 0
        data = self.pool.take(max(capacity, 2 * self.capacity, LEAST_CAPACITY), &capacity)
        if self.data != NULL:
            memcpy(data, self.data, <size_t>(MOST_HEAD_BYTES + self.h.size))
            self.pool.give(self.data, self.capacity)
        self.data = data
        self.capacity = capacity
        return 0

    cdef int put(self, BatchBuilder builder, int64_t size, int64_t deadline_ms, object future) except -1:
        # Add an append whose records the builder has planned, as `size` bytes. There is room for it.
        cdef AppendEntry *entry = <AppendEntry *>(self.entries.data + self.entries.size)
        future._result = self
        future._index = len(self.futures)
        self.futures.append(future)
        entry.deadline_ms = deadline_ms
        entry.first = self.h.record_count
        entry.count = builder.h.record_count
        self.entries.size += sizeof(AppendEntry)
        builder.write_records(self.batch() + self.h.size)
        self.h.size += size
        if self.h.record_count == 0:
            self.h.base_timestamp = builder.h.base_timestamp
            self.h.max_timestamp = builder.h.max_timestamp
        elif builder.h.max_timestamp > self.h.max_timestamp:
            self.h.max_timestamp = builder.h.max_timestamp
        self.h.record_count += builder.h.record_count
        if deadline_ms < self.earliest:
            self.earliest = deadline_ms
        if deadline_ms > self.latest:
            self.latest = deadline_ms
        return 0


@cython.final
cdef class RecordAccumulator:
    """The batches of one partition that wait to be sent.

    A batch takes appends up to `max_batch_size` bytes; an append of its own may have up to `max_request_size`.
    `owner`: any object, for the batches' attribute of that name. `pool`: where their memory comes from.
    """

    def __cinit__(self, object owner, int64_t max_request_size, BufferPool pool not None):
        self.owner = owner
        self.pool = pool
        self.max_request_size = min(max_request_size, INT32_MAX)
        self.max_batch_size = self.max_request_size
        self.waiting = deque()
        self.builder = BatchBuilder()
        self.earliest = INT64_MAX

    def __len__(self):
        """Return the number of batches that wait."""
        return len(self.waiting)

    @property
    def acks(self):
        """The acks of the first batch; None if no batch waits."""
        return (<ProducerBatch>self.waiting[0]).acks if self.waiting else None

    def append(self, object records, int64_t now_ms, int64_t deadline_ms, int acks, object future):
        """Encode the records into the open batch, or into a new one; `now_ms` is the time of those without one.

        `future` must have the attributes `_result` and `_index`, which become the batch and the append's index.
        Returns whether a full batch waits. Raises TypeError for an invalid record, InvalidRecord for no records,
        MessageTooLarge past `max_request_size`; nothing was appended then.
        """
        cdef BatchBuilder builder = self.builder
        self.builder = None
        if builder is None:
            # Another thread is in this call, or the records' own code has called it.
            builder = BatchBuilder()
        try:
            while True:
                # Before the records are borrowed: creating an object may run the garbage collector, and that any code.
                if self.spare is None:
                    self.spare = ProducerBatch()
                builder.gather(records, now_ms)
                if self.spare is not None:
                    break
            self.commit(builder, deadline_ms, acks, future)
        finally:
            builder.release()
            self.builder = builder
        return len(self.waiting) > 1

    def take(self):
        """Remove and return the first batch; None if no batch waits. No append joins it from now on."""
        cdef ProducerBatch batch
        if not self.waiting:
            return None
        batch = self.waiting.popleft()
        if batch is self.open:
            self.open = None
        return batch

    def batches(self):
        """Return the batches that wait, in order."""
        return list(self.waiting)

    def drop_expired(self):
        """Drop the batches that wait and whose appends have all expired: nothing of them is sent."""
        cdef list dropped = []
        cdef ProducerBatch batch
        cdef Py_ssize_t _
        for _ in range(len(self.waiting)):
            batch = self.waiting.popleft()
            if batch.expired < len(batch):
                self.waiting.append(batch)
                continue
            if batch is self.open:
                self.open = None
            dropped.append(batch)
        for batch in dropped:
            batch.release()

    def take_earliest_deadline(self):
        """Return the lowest deadline of the appends made since the last call; None if none was made."""
        cdef int64_t earliest = self.earliest
        self.earliest = INT64_MAX
        return None if earliest == INT64_MAX else earliest

    cdef int commit(self, BatchBuilder builder, int64_t deadline_ms, int acks, object future) except -1:
        cdef ProducerBatch batch
        cdef int64_t size
        batch = self.open
        # With acks=0 there is no answer to which append of a batch is at fault.
        if batch is not None and batch.acks == acks != 0:
            size = builder.plan_records(batch.h.base_timestamp, batch.h.record_count)
            if (batch.h.size + size <= self.max_batch_size
                    and batch.h.record_count <= INT32_MAX - builder.h.record_count):
                batch.make_room(size)
                batch.put(builder, size, deadline_ms, future)
                self.earliest = min(self.earliest, deadline_ms)
                return 0
        size = builder.plan_records((<PendingRecord *>builder.pending.data).timestamp, 0)
        if HEADER_SIZE + size > self.max_request_size:
            check(BATCH_TOO_LARGE,
                  f"building a batch of {HEADER_SIZE + size} bytes with max_request_size={self.max_request_size}")
        batch = self.spare
        self.spare = None
        batch.owner = self.owner
        batch.pool = self.pool
        batch.acks = acks
        batch.make_room(size)
        batch.put(builder, size, deadline_ms, future)
        self.waiting.append(batch)
        self.open = batch
        self.earliest = min(self.earliest, deadline_ms)
        return 0
