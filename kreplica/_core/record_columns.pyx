"""RecordColumns: records given as columns in Arrow's memory layout, from which a BatchBuilder builds a batch.

Nothing is copied. Every offset is checked once against its buffer before use, so that an invalid column raises
an exception and does no harm. Ownership: the columns hold their buffers, which must not change meanwhile.
Thread rule: immutable once made.
Layout: https://arrow.apache.org/docs/format/Columnar.html
"""

cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)


cdef bint _ascend(const int32_t *ends, int64_t rows, int64_t size) noexcept nogil:
    cdef int64_t i
    if ends[0] < 0 or ends[rows] > size:
        return False
    for i in range(rows):
        if ends[i] > ends[i + 1]:
            return False
    return True


cdef int _check_place(object first, int64_t rows, str what) except -1:
    if not 0 <= first <= INT32_MAX or not 0 <= rows <= INT32_MAX:
        raise ValueError(f"{what}: {rows} rows from row {first} on are out of range")
    return 0


@cython.final
cdef class RecordColumns:
    """`rows` records given as columns.

    A column is (first, validity or None, ends, data or None): Arrow's binary layout, beginning at row `first`.
    `timestamp` is (first, validity or None, int64 ms). `headers` are (first, validity or None, ends, count, keys,
    values) with `count` keys and values. Raises ValueError if a column is inconsistent.
    """

    def __cinit__(self, int64_t rows, value, key=None, timestamp=None, headers=None):
        self.held = []
        self.rows = rows
        self.load_binary(&self.value, value, rows, "value")
        if key is not None:
            self.load_binary(&self.key, key, rows, "key")
        if timestamp is not None:
            self.load_timestamp(timestamp)
        if headers is not None:
            self.load_headers(headers)

    def __len__(self):
        return self.rows

    cdef int load_binary(self, binary_source *s, object source, int64_t rows, str what) except -1:
        first, validity, ends, data = source
        _check_place(first, rows, what)
        s.first = first
        if validity is not None:
            s.validity = self.hold(validity, (s.first + rows + 7) >> 3, what)
        s.ends = <const int32_t *>self.hold(ends, (s.first + rows + 1) * 4 if rows else 0, what) + s.first
        # A row without bytes is not null, so its address must not be NULL.
        s.data = <const uint8_t *>b""
        size = 0
        if data is not None:
            s.data = self.hold(data, 0, what)
            size = memoryview(data).nbytes
        if rows and not _ascend(s.ends, rows, size):
            raise ValueError(f"{what}: its offsets do not ascend within {size} bytes")
        return 0

    cdef int load_timestamp(self, object source) except -1:
        first, validity, numbers = source
        _check_place(first, self.rows, "timestamp")
        self.timestamp_first = first
        if validity is not None:
            self.timestamp_validity = self.hold(validity, (self.timestamp_first + self.rows + 7) >> 3, "timestamp")
        self.timestamp = <const int64_t *>self.hold(
            numbers, (self.timestamp_first + self.rows) * 8, "timestamp") + self.timestamp_first
        return 0

    cdef int load_headers(self, object source) except -1:
        cdef int64_t count
        first, validity, lists, count, key, value = source
        _check_place(first, self.rows, "headers")
        self.lists_first = first
        if validity is not None:
            self.lists_validity = self.hold(validity, (self.lists_first + self.rows + 7) >> 3, "headers")
        self.load_binary(&self.header_key, key, count, "header key")
        self.load_binary(&self.header_value, value, count, "header value")
        need = (self.lists_first + self.rows + 1) * 4 if self.rows else 0
        self.lists = <const int32_t *>self.hold(lists, need, "headers") + self.lists_first
        if self.rows and not _ascend(self.lists, self.rows, count):
            raise ValueError(f"headers: their offsets do not ascend within {count}")
        return 0

    cdef const uint8_t *hold(self, object buffer, int64_t need, str what) except? NULL:
        cdef const Py_buffer *held
        view = memoryview(buffer)
        held = PyMemoryView_GET_BUFFER(view)
        if held.len < need or not view.c_contiguous:
            raise ValueError(f"{what}: a contiguous buffer of at least {need} bytes is needed, not one of {held.len}")
        self.held.append(view)
        # An empty buffer may have the address NULL, which would read as null.
        return <const uint8_t *>held.buf if held.buf != NULL else <const uint8_t *>b""
