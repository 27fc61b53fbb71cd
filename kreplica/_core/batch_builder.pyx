"""BatchBuilder: builds the bytes of one record batch from Python values.

A record is a value (`bytes`, `bytearray`, `memoryview` or None), a tuple (key, value), (key, value, headers)
or (key, value, headers, timestamp in ms), or a `Record`; RecordColumns hold many records. Building takes two
steps, so that the caller can reserve space in between: measure() borrows the records' bytes and computes the
batch's size, emit() writes it. In between, no code may run that changes the records; so objects that could run
Python code to provide their bytes are not accepted. Thread rule: one thread at a time, under the GIL.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kreplica._core cimport codec
from kreplica._core.record cimport Record, borrow, place, put_headers, put_sized, timestamp_ms, wrong_bytes
from kreplica._core.record_batch cimport (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    seal,
    write_header,
)
from kreplica._core.record_batch import CODECS as _CODECS
from kreplica._core.record_columns cimport RecordColumns, is_valid, value_at
from kreplica._core.scratch cimport reserve
from kreplica._core.status cimport BATCH_TOO_LARGE, EMPTY_BATCH, check
from kreplica._core.varint cimport size_of_varint, size_of_varlong, write_varint, write_varlong

cdef extern from "Python.h":
    object PySequence_Fast(object o, const char *message)
    Py_ssize_t PySequence_Fast_GET_SIZE(object o)
    PyObject *PySequence_Fast_GET_ITEM(object o, Py_ssize_t i)
    int PyBUF_READ

cdef enum:
    NO_HORIZON = -1


@cython.final
cdef class BatchBuilder:
    """Builds record batches; the attributes apply to every batch until they are changed.

    `codec` by name; `level` of the codec or None; `log_append_time` makes a batch of LogAppendTime;
    `producer_id`, `producer_epoch`, `base_sequence`, `transactional` as for an idempotent producer (-1: none);
    `control` for control records; `delete_horizon_ms` or -1; `max_size` limits the whole batch, in bytes;
    `limit` is the name of the setting that it comes from.
    """

    def __cinit__(self):
        self.codec_number = 0
        self.level = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.delete_horizon_ms = NO_HORIZON
        self.max_size = INT32_MAX
        self.limit = "max_size"

    def __dealloc__(self):
        self.release()
        free(self.pending.data)
        free(self.headers.data)
        free(self.held.data)
        free(self.section.data)

    @property
    def codec(self):
        """The codec's name: "none", "gzip", "snappy", "lz4" or "zstd"."""
        return _CODECS[self.codec_number]

    @codec.setter
    def codec(self, str name not None):
        if name not in _CODECS:
            raise ValueError(f"unknown codec {name!r}: use one of {', '.join(_CODECS)}")
        self.codec_number = _CODECS.index(name)

    def build(self, records, *, int64_t base_offset=0, int32_t leader_epoch=-1, int64_t now_ms=-1):
        """Build one batch of `records` as bytes; `now_ms` is the timestamp of records without one.

        Raises TypeError for an invalid record, InvalidRecord for no records, MessageTooLarge past `max_size`.
        """
        cdef int64_t size = self.measure(records, now_ms)
        cdef bytes batch
        try:
            batch = PyBytes_FromStringAndSize(NULL, size)
            self.emit(<uint8_t *>PyBytes_AS_STRING(batch), base_offset, leader_epoch)
        finally:
            self.release()
        return batch

    cdef int64_t measure(self, object records, int64_t now_ms) except -1:
        cdef int64_t size
        try:
            self.gather(records, now_ms)
            size = self._plan(now_ms)
            if self.codec_number:
                size = self._compress(size)
            self.h.size = HEADER_SIZE + size
            if self.h.size > min(self.max_size, INT32_MAX):
                check(BATCH_TOO_LARGE, f"a batch of {self.h.size:,} bytes is above {self.limit}={self.max_size:,}")
        except BaseException:
            self.release()
            raise
        return self.h.size

    cdef int gather(self, object records, int64_t now_ms) except -1:
        self.release()
        if isinstance(records, RecordColumns):
            self.sequence = records
            self._gather_columns(<RecordColumns>records, now_ms)
        else:
            require_list(records)
            self.sequence = PySequence_Fast(records, b"records must be a list of records")
            self._gather(now_ms)
        return 0

    cdef int emit(self, uint8_t *target, int64_t base_offset, int32_t leader_epoch) except? -128:
        if self.sequence is None:
            raise RuntimeError("emit() without measure()")
        self.write(target, base_offset, leader_epoch)
        self.release()
        return 0

    cdef int write(self, uint8_t *target, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
        self.h.base_offset = base_offset
        self.h.leader_epoch = leader_epoch
        write_header(target, &self.h)
        if self.compressed == NULL:
            self.write_records(target + HEADER_SIZE)
        else:
            memcpy(target + HEADER_SIZE, self.compressed, <size_t>self.compressed_size)
        seal(target, self.h.size)
        return 0

    cdef void release(self) noexcept:
        cdef int64_t i
        for i in range(self.held.size // <int64_t>sizeof(Py_buffer)):
            PyBuffer_Release(&(<Py_buffer *>self.held.data)[i])
        self.held.size = 0
        self.sequence = None
        self.compressed = NULL
        self.compressed_keeper = None

    # ---- measuring ---------------------------------------------------------------------------------------

    cdef int _gather(self, int64_t now_ms) except -1:
        # Borrow the bytes of every record.
        cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(self.sequence)
        cdef PendingRecord *r
        cdef Py_ssize_t i
        cdef object item
        self._begin(count)
        for i in range(count):
            item = <object>PySequence_Fast_GET_ITEM(self.sequence, i)
            r = &(<PendingRecord *>self.pending.data)[i]
            r.key = NULL
            r.key_size = 0
            r.headers_size = 0
            r.header_count = 0
            r.timestamp = now_ms
            if PyBytes_CheckExact(item):
                r.value = <const uint8_t *>PyBytes_AS_STRING(item)
                r.value_size = PyBytes_GET_SIZE(item)
            elif isinstance(item, tuple):
                self._gather_tuple(<tuple>item, r, i)
            elif isinstance(item, Record):
                self._gather_record(<Record>item, r)
            else:
                self._borrow(item, &r.value, &r.value_size, i, "the value")
        return 0

    cdef int _begin(self, Py_ssize_t count) except -1:
        if count == 0:
            check(EMPTY_BATCH, "the list of records is empty")
        if count > INT32_MAX:
            check(BATCH_TOO_LARGE, f"building a batch of {count} records")
        self.pending.size = 0
        self.headers.size = 0
        reserve(&self.pending, count * <int64_t>sizeof(PendingRecord))
        self.h.record_count = <int32_t>count
        self.h.last_offset_delta = <int32_t>(count - 1)
        return 0

    cdef int _gather_columns(self, RecordColumns columns, int64_t now_ms) except -1:
        cdef PendingRecord *r
        cdef int64_t row
        self._begin(columns.rows)
        for row in range(columns.rows):
            r = &(<PendingRecord *>self.pending.data)[row]
            value_at(&columns.key, row, &r.key, &r.key_size)
            value_at(&columns.value, row, &r.value, &r.value_size)
            r.headers_size = 0
            r.header_count = 0
            r.timestamp = now_ms
            if columns.timestamp != NULL and is_valid(columns.timestamp_validity, columns.timestamp_first + row):
                r.timestamp = columns.timestamp[row]
                if r.timestamp < -1:
                    raise ValueError(f"{place(row)}a timestamp of {r.timestamp} ms")
            if columns.lists != NULL and is_valid(columns.lists_validity, columns.lists_first + row):
                self._gather_headers(columns, r, row)
        return 0

    cdef int _gather_headers(self, RecordColumns columns, PendingRecord *r, int64_t row) except -1:
        cdef const uint8_t *data = NULL
        cdef int64_t size = 0, i
        r.headers = NULL
        r.headers_at = self.headers.size
        for i in range(columns.lists[row], columns.lists[row + 1]):
            value_at(&columns.header_key, i, &data, &size)
            if data == NULL:
                raise ValueError(f"{place(row)}a header without a key")
            put_sized(&self.headers, data, size)
            value_at(&columns.header_value, i, &data, &size)
            put_sized(&self.headers, data, size)
        r.header_count = columns.lists[row + 1] - columns.lists[row]
        r.headers_size = self.headers.size - r.headers_at
        return 0

    cdef int _gather_tuple(self, tuple item, PendingRecord *r, int64_t index) except -1:
        cdef Py_ssize_t size = PyTuple_GET_SIZE(item)
        cdef object headers, timestamp
        if not 2 <= size <= 4:
            raise TypeError(f"{place(index)}a tuple of {size}, not (key, value[, headers[, timestamp]])")
        self._borrow(<object>PyTuple_GET_ITEM(item, 0), &r.key, &r.key_size, index, "the key")
        self._borrow(<object>PyTuple_GET_ITEM(item, 1), &r.value, &r.value_size, index, "the value")
        if size > 2 and <object>PyTuple_GET_ITEM(item, 2) is not None:
            headers = <object>PyTuple_GET_ITEM(item, 2)
            if type(headers) is not list and type(headers) is not tuple:
                self._keep()
            r.headers = NULL
            r.headers_at = self.headers.size
            r.header_count = put_headers(&self.headers, headers, index)
            r.headers_size = self.headers.size - r.headers_at
        if size > 3 and <object>PyTuple_GET_ITEM(item, 3) is not None:
            timestamp = <object>PyTuple_GET_ITEM(item, 3)
            if type(timestamp) is not int:
                self._keep()
            r.timestamp = timestamp_ms(timestamp, index)
        return 0

    cdef int _keep(self) except -1:
        # Keep the records borrowed so far: the code of a class, such as a tzinfo, may change the caller's list.
        self.sequence = tuple(self.sequence)
        return 0

    cdef int _gather_record(self, Record item, PendingRecord *r) except -1:
        r.key = item.view.key
        r.key_size = item.view.key_size
        r.value = item.view.value
        r.value_size = item.view.value_size
        r.headers = item.view.headers
        r.headers_size = item.view.headers_size
        r.header_count = item.view.header_count
        if item.time_ms != INT64_MIN:
            r.timestamp = item.time_ms
        return 0

    cdef int _borrow(self, object item, const uint8_t **data, int64_t *size, int64_t index,
                     str what) except -1:
        cdef int kind
        reserve(&self.held, sizeof(Py_buffer))
        kind = borrow(item, data, size, <Py_buffer *>(self.held.data + self.held.size))
        if kind == 1:
            self.held.size += sizeof(Py_buffer)
        elif kind == 2:
            raise wrong_bytes(item, f"{place(index)}{what}")
        return 0

    cdef int64_t _plan(self, int64_t now_ms) except -1:
        # Fill in the header and each record's size; return the uncompressed size of the records section.
        cdef int64_t base = (<PendingRecord *>self.pending.data).timestamp, total
        if self.delete_horizon_ms < NO_HORIZON or now_ms < -1:
            raise ValueError(f"a delete horizon of {self.delete_horizon_ms} ms, a time of {now_ms} ms")
        if self.delete_horizon_ms != NO_HORIZON:
            base = self.delete_horizon_ms
        total = self.plan_records(base, 0)
        if self.log_append_time:
            self.h.max_timestamp = now_ms
            self.max_timestamp_delta = 0
        self.h.attributes = <int16_t>(
            self.codec_number
            | (LOG_APPEND_TIME if self.log_append_time else 0)
            | (TRANSACTIONAL if self.transactional else 0)
            | (CONTROL if self.control else 0)
            | (DELETE_HORIZON if self.delete_horizon_ms != NO_HORIZON else 0)
        )
        self.h.producer_id = self.producer_id
        self.h.producer_epoch = self.producer_epoch
        self.h.base_sequence = self.base_sequence
        return total

    cdef int64_t plan_records(self, int64_t base, int32_t first_delta) except -1:
        cdef PendingRecord *r = <PendingRecord *>self.pending.data
        cdef int64_t largest = r.timestamp, total = 0, body
        cdef int32_t i
        self.max_timestamp_delta = 0
        for i in range(self.h.record_count):
            if r.timestamp > largest:
                largest = r.timestamp
                self.max_timestamp_delta = i
            if r.timestamp == INT64_MAX or r.key_size > INT32_MAX or r.value_size > INT32_MAX:
                check(BATCH_TOO_LARGE, "building a batch", i)
            body = (
                1 + size_of_varlong(r.timestamp - base) + size_of_varint(first_delta + i)
                + size_of_varint(<int32_t>r.key_size if r.key != NULL else -1) + r.key_size
                + size_of_varint(<int32_t>r.value_size if r.value != NULL else -1) + r.value_size
                + size_of_varint(r.header_count) + r.headers_size
            )
            if body > INT32_MAX:
                check(BATCH_TOO_LARGE, f"building a batch, a record of {body} bytes", i)
            r.body_size = <int32_t>body
            total += size_of_varint(r.body_size) + body
            r += 1
        self.first_delta = first_delta
        self.h.base_timestamp = base
        self.h.max_timestamp = largest
        return total

    cdef int64_t _compress(self, int64_t size) except -1:
        # Write the records into scratch memory and compress them; return the compressed size.
        cdef Py_buffer *held
        if size > INT32_MAX:
            check(BATCH_TOO_LARGE, f"building a batch of {size} bytes before compression")
        self.section.size = 0
        reserve(&self.section, size)
        self.write_records(self.section.data)
        section = PyMemoryView_FromMemory(<char *>self.section.data, size, PyBUF_READ)
        self.compressed_keeper = codec.compress(self.codec_number, section, self.level)
        reserve(&self.held, sizeof(Py_buffer))
        held = <Py_buffer *>(self.held.data + self.held.size)
        PyObject_GetBuffer(self.compressed_keeper, held, PyBUF_SIMPLE)
        self.held.size += sizeof(Py_buffer)
        self.compressed = <const uint8_t *>held.buf
        self.compressed_size = held.len
        return held.len

    # ---- writing -----------------------------------------------------------------------------------------

    cdef void write_records(self, uint8_t *p) noexcept nogil:
        cdef const PendingRecord *r = <const PendingRecord *>self.pending.data
        cdef const uint8_t *headers
        cdef int64_t base = self.h.base_timestamp
        cdef int32_t i
        for i in range(self.h.record_count):
            p += write_varint(p, r.body_size)
            p[0] = 0
            p += 1
            p += write_varlong(p, r.timestamp - base)
            p += write_varint(p, self.first_delta + i)
            p = _write_sized(p, r.key, r.key_size)
            p = _write_sized(p, r.value, r.value_size)
            p += write_varint(p, r.header_count)
            if r.headers_size:
                headers = r.headers if r.headers != NULL else self.headers.data + r.headers_at
                memcpy(p, headers, <size_t>r.headers_size)
                p += r.headers_size
            r += 1


cpdef int require_list(object records) except -1:
    """Raises TypeError if `records` is a single record instead of a list of records.

    A tuple is rejected although it is a sequence: it could mean one record (key, value) or several.
    """
    if records is not None and not isinstance(
        records, (tuple, bytes, bytearray, memoryview, str, dict, set, frozenset, Record, int, float)
    ):
        return 0
    kind = type(records).__name__
    hint = ""
    if isinstance(records, tuple):
        hint = ": [(key, value)] is one record with a key, [value, value] are two without"
    elif isinstance(records, (bytes, bytearray, memoryview, Record)):
        hint = ": use [record] for a single one"
    elif isinstance(records, str):
        hint = ": encode text and put it into a list, as in [text.encode()]"
    elif isinstance(records, dict):
        hint = ": use a list of (key, value)"
    raise TypeError(f"records must be a list of records, not a {kind}{hint}")


cdef inline uint8_t *_write_sized(uint8_t *p, const uint8_t *data, int64_t size) noexcept nogil:
    p += write_varint(p, <int32_t>size if data != NULL else -1)
    if size:
        memcpy(p, data, <size_t>size)
    return p + size
