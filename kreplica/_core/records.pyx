"""RecordBatch: one batch of a log for Python, and iteration from batch to batch and record to record.

A batch is a view of a pinned slice of a segment, of a fetch response or of any other bytes. It copies nothing and
keeps the viewed bytes alive. Its CRC, header and all records are checked before the first record is returned, so a
reader gets valid records or a typed error. Thread rule: any thread, under the GIL.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core cimport codec
from kreplica._core.big_endian cimport load16
from kreplica._core.record cimport Record, _MappedBytes, check_fault, fault_of
from kreplica._core.record_batch cimport (
    CODEC_MASK,
    COMPRESSED,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_DECOMPRESSED,
    TRANSACTIONAL,
    BatchHeader,
    RecordScan,
    RecordView,
    check_crc,
    check_fields,
    check_produced_batch,
    parse_header,
    parse_record,
    record_timestamp,
    scan_records,
)
from kreplica._core.record_batch import CODECS as _CODECS
from kreplica._core.status cimport BAD_CONTROL_RECORD, OK, SHORT_INPUT, check
from kreplica._core.varint cimport read_varint

cdef enum:
    HELD_GIL_BYTES = 16384        # below this, releasing the GIL costs more than holding it


cdef object _decompressed(const uint8_t *p, const BatchHeader *h, int64_t max_size, Py_buffer *section):
    # Return the records section of a compressed batch and, as the result, the object that keeps it alive.
    cdef object source = PyMemoryView_FromMemory(<char *>p + HEADER_SIZE, h.size - HEADER_SIZE, PyBUF_READ)
    cdef object data = codec.decompress(h.attributes & CODEC_MASK, source, max_size, h.record_count)
    PyObject_GetBuffer(data, section, PyBUF_SIMPLE)
    PyBuffer_Release(section)     # `data` itself keeps the bytes: codec's results do not change
    return data


# Objects that hold a buffer are hidden from the garbage collector (no_gc). If an error's traceback made a memoryview
# part of a cycle, the collector would clear the memoryview before the object that holds its buffer, and that fails.
# Nothing that these objects refer to refers back to them.
@cython.final
@cython.no_gc
cdef class RecordBatch(_MappedBytes):
    """A record batch of format v2 in `data[position:]`, any bytes-like object, which must not change meanwhile.

    Creating it checks the frame; raises InvalidBatchLength, UnsupportedMagic or TruncatedInput. Iterating yields
    `Record`s and checks everything else; raises InvalidCrc or another subclass of CorruptMessage, or
    DecompressionTooLarge beyond `max_decompressed` bytes. `memoryview(batch)` gives its bytes without a copy.
    """

    def __cinit__(self):
        self.max_decompressed = MAX_DECOMPRESSED

    def __init__(self, data, int64_t position=0):
        if self.data != NULL:
            raise TypeError("a RecordBatch can be initialized only once: create another one")
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.viewed = True
        if not 0 <= position < self.view.len:
            check(SHORT_INPUT, "reading a batch", position)
        self.owner = data
        check(parse_header(<const uint8_t *>self.view.buf + position, self.view.len - position, &self.h),
              "reading a batch", position)
        self.data = <const uint8_t *>self.view.buf + position
        self.fault = fault_of(data)

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef int check_header(self) except -1:
        if self.data == NULL:
            raise ValueError("a RecordBatch without bytes")
        if not self.checked:
            status = check_crc(self.data, &self.h)
            check_fault(self.fault)
            check(status, "checking a batch", self.h.base_offset)
            check(check_fields(&self.h), "checking a batch", self.h.base_offset)
            self.checked = True
        return 0

    cdef object section(self, int64_t max_decompressed, const uint8_t **records, int64_t *size):
        cdef Py_buffer view
        self.check_header()
        if self.h.attributes & CODEC_MASK == 0:
            records[0] = self.data + HEADER_SIZE
            size[0] = self.h.size - HEADER_SIZE
            return self
        keeper = _decompressed(self.data, &self.h, max_decompressed, &view)
        check_fault(self.fault)
        records[0] = <const uint8_t *>view.buf
        size[0] = view.len
        return keeper

    def check(self, *, bint dense=False):
        """Raise unless the CRC, the header and every record are valid; `dense` also requires a batch without gaps."""
        cdef const uint8_t *records = NULL
        cdef int64_t size = 0
        cdef RecordScan found
        keeper = self.section(self.max_decompressed, &records, &size)
        check(scan_records(records, size, &self.h, dense, &found), "checking records", self.h.base_offset)
        del keeper

    def records(self, *, start=None, stop=None, max_decompressed=None):
        """Iterate over the records with offsets in [start, stop); a bound of None is no bound.

        All records are checked before the first one is returned, and only those in the range become Python objects. In
        a batch without gaps, those before `start` are skipped by their lengths. `max_decompressed` replaces the
        attribute.
        """
        cdef RecordIterator iterator = RecordIterator.__new__(RecordIterator)
        cdef RecordScan found
        iterator.batch = self
        iterator.keeper = self.section(
            self.max_decompressed if max_decompressed is None else max_decompressed,
            &iterator.position, &iterator.left,
        )
        iterator.remaining = self.h.record_count
        if start is None or start <= self.h.base_offset or not _passed_over(iterator, start - self.h.base_offset):
            check(scan_records(iterator.position, iterator.left, &self.h, False, &found), "reading records",
                  self.h.base_offset)
        if start is not None or stop is not None:
            _narrow(
                iterator,
                self.h.base_offset if start is None else start,
                self.h.base_offset + self.h.last_offset_delta + 1 if stop is None else stop,
            )
        return iterator

    def __iter__(self):
        return self.records()

    def uncompressed(self, *, max_decompressed=None):
        """Return the records section as a memoryview, decompressed if need be, once CRC and header are checked."""
        cdef const uint8_t *records = NULL
        cdef int64_t size = 0
        keeper = self.section(
            self.max_decompressed if max_decompressed is None else max_decompressed, &records, &size
        )
        return memoryview(keeper)[HEADER_SIZE:] if keeper is self else memoryview(keeper)

    def to_arrow(self, columns=None, *, bint views=False):
        """Return the records as a pyarrow.RecordBatch, which is empty for a control batch; see kreplica._core.columns.

        `columns` names the columns to return; `views` makes binary_view columns that point into the batch without a
        copy. Raises what iterating raises, and ImportError without pyarrow.
        """
        from kreplica._core.arrow import to_arrow
        from kreplica._core.columns import ColumnBuilder

        builder = ColumnBuilder(columns, views=views)
        builder.max_decompressed = self.max_decompressed
        builder.extend(self)
        return to_arrow(builder.finish())

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.data == NULL:
            raise ValueError("a RecordBatch without bytes")
        PyBuffer_FillInfo(buffer, self, <void *>self.data, self.h.size, 1, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        pass

    def __repr__(self):
        return (f"RecordBatch(base_offset={self.base_offset}, last_offset={self.last_offset}, "
                f"records={self.record_count}, size={self.size}, codec={self.codec!r})")

    @property
    def crc_valid(self):
        """Whether the CRC matches the bytes; if so, reading the records does not check it again."""
        if self.data == NULL or check_crc(self.data, &self.h) != OK:
            return False
        # If a page was lost on the way, reading the records reports it.
        if check_fields(&self.h) == OK and (self.fault == NULL or self.fault[0] == 0):
            self.checked = True
        return True

    @property
    def base_offset(self):
        """The offset of the first record that was written to the batch."""
        return self.h.base_offset

    @property
    def last_offset(self):
        """The offset of the last record that was written to the batch, even if compaction removed it."""
        return self.h.base_offset + self.h.last_offset_delta

    @property
    def next_offset(self):
        """The offset after the batch."""
        return self.h.base_offset + self.h.last_offset_delta + 1

    @property
    def leader_epoch(self):
        return self.h.leader_epoch

    @property
    def size(self):
        """The size in bytes, header included."""
        return self.h.size

    @property
    def crc(self):
        """The CRC-32C in the header."""
        return self.h.crc

    @property
    def codec(self):
        """"none", "gzip", "snappy", "lz4", "zstd", or the number of a codec that does not exist."""
        number = self.h.attributes & CODEC_MASK
        return _CODECS[number] if number < len(_CODECS) else str(number)

    @property
    def timestamp_type(self):
        """"create" or "log_append"."""
        return "log_append" if self.h.attributes & LOG_APPEND_TIME else "create"

    @property
    def base_timestamp(self):
        """The base of the records' timestamps, in ms; with a delete horizon, that horizon."""
        return self.h.base_timestamp

    @property
    def max_timestamp(self):
        """The largest timestamp in ms; with LogAppendTime, that of every record."""
        return self.h.max_timestamp

    @property
    def producer_id(self):
        return self.h.producer_id

    @property
    def producer_epoch(self):
        return self.h.producer_epoch

    @property
    def base_sequence(self):
        return self.h.base_sequence

    @property
    def record_count(self):
        return self.h.record_count

    @property
    def is_transactional(self):
        return self.h.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self):
        return self.h.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self):
        """The time from which the cleaner may drop the batch's tombstones and markers (KIP-534), or None."""
        return self.h.base_timestamp if self.h.attributes & DELETE_HORIZON else None

    @property
    def control_type(self):
        """The type in a control batch's first key (see kreplica.record.control); None for other batches."""
        cdef const uint8_t *records = NULL
        cdef int64_t size = 0, used = 0
        cdef RecordView first
        if not self.h.attributes & CONTROL:
            return None
        keeper = self.section(self.max_decompressed, &records, &size)
        check(parse_record(records, size, &first, &used), "reading a control record", self.h.base_offset)
        if first.key == NULL or first.key_size < 4:
            check(BAD_CONTROL_RECORD, "reading a control record", self.h.base_offset)
        control_type = load16(first.key + 2)
        del keeper
        return control_type


cdef bint _passed_over(RecordIterator iterator, int64_t before) noexcept nogil:
    # Skip this many records by their lengths alone, and scan the rest. If there may be gaps or something is invalid,
    # nothing is done, because a scan of all records reports what it is.
    cdef const BatchHeader *h = &iterator.batch.h
    cdef BatchHeader rest = h[0]
    cdef const uint8_t *position = iterator.position
    cdef int64_t left = iterator.left, skipped = 0, size = 0
    cdef int32_t length = 0
    cdef int used
    cdef RecordView first
    cdef RecordScan found
    if h.last_offset_delta != h.record_count - 1 or before >= h.record_count:
        return False
    while skipped < before:
        used = read_varint(position, left, &length)
        if used < 0 or length < 0 or length > left - used:
            return False
        position += used + length
        left -= used + length
        skipped += 1
    # The deltas of the rest ascend and end at the last one, so none is missing if they begin here.
    if parse_record(position, left, &first, &size) != OK or first.offset_delta != before:
        return False
    rest.record_count -= <int32_t>before
    if scan_records(position, left, &rest, False, &found) != OK:
        return False
    iterator.position, iterator.left, iterator.remaining = position, left, rest.record_count
    return True


cdef int _narrow(RecordIterator iterator, int64_t start, int64_t stop) except -1:
    # Skip the records before `start` and leave out those from `stop` on; all have been scanned.
    cdef const BatchHeader *h = &iterator.batch.h
    cdef RecordView record
    cdef const uint8_t *position = iterator.position
    cdef int64_t left = iterator.left, used = 0, offset
    cdef int32_t _, before = 0, within = 0
    with nogil:
        for _ in range(iterator.remaining):
            if parse_record(position, left, &record, &used) != OK:
                break             # the page was lost since the scan; __next__ raises
            offset = h.base_offset + record.offset_delta
            if offset >= stop:
                break
            position += used
            left -= used
            if offset < start:
                before += 1
                iterator.position = position
                iterator.left = left
            else:
                within += 1
                if stop > h.base_offset + h.last_offset_delta:
                    within = iterator.remaining - before
                    break
    check_fault(iterator.batch.fault)
    iterator.remaining = within
    return 0


@cython.final
cdef class RecordIterator:
    """The iterator over the records of one batch, which have been checked."""

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        cdef int64_t used = 0
        cdef const BatchHeader *h = &self.batch.h
        if self.remaining == 0:
            raise StopIteration
        record = Record.__new__(Record)
        check(parse_record(self.position, self.left, &record.view, &used), "reading a record", h.base_offset)
        check(record_timestamp(h, record.view.timestamp_delta, &record.time_ms), "reading a record",
              h.base_offset)
        record.owner = self.keeper
        record.fault = self.batch.fault if self.keeper is self.batch else NULL
        record.record_offset = h.base_offset + record.view.offset_delta
        record.log_append = h.attributes & LOG_APPEND_TIME != 0
        self.position += used
        self.left -= used
        self.remaining -= 1
        return record

    def __length_hint__(self):
        return self.remaining


@cython.final
@cython.no_gc
cdef class BatchIterator:
    """The iterator that `batches` returns."""

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordBatch batch
        cdef BatchHeader h
        cdef const uint8_t *p = <const uint8_t *>self.view.buf + self.position
        cdef int64_t left = self.view.len - self.position
        if left == 0 or self.partial and (left < HEADER_SIZE or left < 12 + <int64_t>_length(p)):
            raise StopIteration
        check(parse_header(p, left, &h), "reading a batch", self.position)
        batch = RecordBatch.__new__(RecordBatch)
        batch.owner = self
        batch.fault = self.fault
        batch.data = p
        batch.h = h
        self.position += h.size
        return batch


cdef inline int32_t _length(const uint8_t *p) noexcept:
    return (<int32_t>load16(p + 8) << 16) | (<int32_t>load16(p + 10) & 0xFFFF)


def batches(data, *, bint partial=False):
    """Iterate over the batches in `data` (bytes-like); each is a view of it.

    `partial` accepts that the last one is truncated, as in a fetch response, and leaves it out.
    """
    cdef BatchIterator iterator = BatchIterator.__new__(BatchIterator)
    PyObject_GetBuffer(data, &iterator.view, PyBUF_SIMPLE)
    iterator.viewed = True
    iterator.data = data
    iterator.fault = fault_of(data)
    iterator.partial = partial
    return iterator


cdef RecordBatch wrap(object owner, const uint8_t *p, int64_t left, bint checked):
    cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
    check(parse_header(p, left, &batch.h), "reading a batch")
    batch.data = p
    batch.owner = owner
    batch.fault = fault_of(owner)
    batch.checked = checked
    return batch


# ---- what a leader checks --------------------------------------------------------------------------------


cdef int check_produced(const uint8_t *p, int64_t left, bint allow_control, bint check_sum,
                        int64_t max_decompressed, BatchHeader *h, RecordScan *found) except? -128:
    cdef Py_buffer section
    cdef int status
    if left < HELD_GIL_BYTES:
        status = check_produced_batch(p, left, allow_control, check_sum, h, found)
    else:
        with nogil:
            status = check_produced_batch(p, left, allow_control, check_sum, h, found)
    if status != COMPRESSED:
        return status
    keeper = _decompressed(p, h, max_decompressed, &section)
    status = scan_records(<const uint8_t *>section.buf, section.len, h, True, found)
    del keeper
    return status


def validate_for_append(data, *, bint allow_control=False, int64_t max_decompressed=MAX_DECOMPRESSED):
    """Check that `data` is exactly one batch that a leader may append; return (max timestamp, its offset delta).

    Checks everything: format v2 with nothing after it, CRC, known codec and attributes, record count, offset
    deltas 0, 1, 2 ..., and every record's lengths and headers, decompressing up to `max_decompressed` bytes. Only
    the coordinator and the controller write control batches (`allow_control`). The timestamp is that of the
    records; a leader corrects a header that differs. Raises CorruptMessage, InvalidRecord or InvalidTimestamp.
    """
    cdef const uint8_t[::1] view = data
    cdef const uint8_t *p = &view[0] if view.shape[0] else NULL
    cdef BatchHeader h
    cdef RecordScan found
    status = check_produced(p, view.shape[0], allow_control, True, max_decompressed, &h, &found)
    check(status, "validating a batch", 0)
    return found.max_timestamp, found.max_timestamp_delta
