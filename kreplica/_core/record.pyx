"""Record: a key, a value, headers and a timestamp, and an offset once it is read from a log.

A record read from a log points into its batch, which it keeps alive, and makes bytes objects on demand. Records are
immutable. Thread rule: any thread, under the GIL.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from kreplica._core.record_batch cimport parse_record_header
from kreplica._core.region cimport Slice
from kreplica._core.scratch cimport Scratch, reserve
from kreplica._core.status cimport check
from kreplica._core.varint cimport write_varint

from datetime import datetime, timedelta, timezone
from operator import index as index_of

cdef object EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
cdef object MILLISECOND = timedelta(milliseconds=1)
# An int in this range is a number of seconds, of the years 2001 to 2286, taken for milliseconds by mistake.
cdef int64_t SECONDS_FROM = 1_000_000_000
cdef int64_t SECONDS_UNTIL = 10_000_000_000


@cython.no_gc
cdef class _MappedBytes:
    pass


cdef const int32_t *fault_of(object owner) except? NULL:
    # The region lives as long as its slice.
    if isinstance(owner, _MappedBytes):
        return (<_MappedBytes>owner).fault
    return &(<Slice>owner).region.r.fault if isinstance(owner, Slice) and (<Slice>owner).mapped else NULL


cdef str place(int64_t index):
    return f"record {index}: " if index >= 0 else ""


cdef int put_sized(Scratch *s, const uint8_t *data, int64_t size) except -1:
    if size > INT32_MAX:
        raise ValueError(f"a header of {size} bytes is too large: at most {INT32_MAX} are allowed")
    reserve(s, size + 5)
    s.size += write_varint(s.data + s.size, <int32_t>size if data != NULL else -1)
    if size:
        memcpy(s.data + s.size, data, <size_t>size)
    s.size += size
    return 0


cdef int put_headers(Scratch *s, object headers, int64_t index) except -1:
    cdef const char *key
    cdef const uint8_t *value
    cdef Py_ssize_t key_size
    cdef int64_t value_size
    cdef Py_buffer held
    cdef int kind, count = 0
    if not isinstance(headers, (list, tuple)):
        hint = ": use list(headers.items())" if isinstance(headers, dict) else ""
        raise TypeError(f"{place(index)}headers must be a list of (str, bytes or None), not "
                        f"{type(headers).__name__}{hint}")
    for header in headers:
        # Only the items themselves count, whatever a subclass makes of them.
        if (not isinstance(header, tuple) or PyTuple_GET_SIZE(header) != 2
                or not isinstance(<object>PyTuple_GET_ITEM(header, 0), str)):
            shown = f"{header!r:.80}"
            raise TypeError(f"{place(index)}a header must be a tuple (str, bytes or None), not {shown}")
        key = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(header, 0), &key_size)
        put_sized(s, <const uint8_t *>key, key_size)
        kind = borrow(<object>PyTuple_GET_ITEM(header, 1), &value, &value_size, &held)
        if kind == 2:
            raise wrong_bytes(<object>PyTuple_GET_ITEM(header, 1), f"{place(index)}a header's value")
        try:
            put_sized(s, value, value_size)
        finally:
            if kind == 1:
                PyBuffer_Release(&held)
        count += 1
    return count


cdef int64_t timestamp_ms(object value, int64_t index) except? -2:
    # Return the milliseconds since 1970 of an int of milliseconds or a datetime with a time zone. A datetime's tzinfo
    # may run any Python code.
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{place(index)}the timestamp {value} has no time zone: "
                             "use datetime.now(timezone.utc) or datetime.astimezone()")
        return (value - EPOCH) // MILLISECOND
    if not isinstance(value, (int, bool)) and hasattr(value, "__index__"):
        value = index_of(value)  # an integer of numpy
    if not isinstance(value, int) or isinstance(value, bool):
        hint = ": use int(seconds * 1000)" if isinstance(value, float) else ""
        raise TypeError(f"{place(index)}a timestamp must be an int of milliseconds since 1970, a datetime or "
                        f"None, not {type(value).__name__}{hint}")
    if value < -1:
        raise ValueError(f"{place(index)}a timestamp of {value} ms is negative: use 0 or more, or -1 for none")
    if SECONDS_FROM <= value < SECONDS_UNTIL:
        raise ValueError(f"{place(index)}a timestamp of {value} ms would be in the first months of 1970 and looks "
                         f"like seconds: use {value} * 1000")
    if value > INT64_MAX:
        raise ValueError(f"{place(index)}a timestamp of {value} ms is above the largest one, {INT64_MAX}")
    return value


def milliseconds(value):
    """Return the milliseconds since 1970 of an int of milliseconds or a datetime with a time zone.

    Raises TypeError for another type, and ValueError for an int below -1 or one that looks like seconds.
    """
    return timestamp_ms(value, -1)


cdef object wrong_bytes(object item, str what):
    # Return the error for `item`, which is given as the bytes of `what`.
    hint = ": encode text, as in text.encode()" if isinstance(item, str) else ""
    return TypeError(f"{what} must be bytes, bytearray, memoryview or None, not {type(item).__name__}{hint}")


cdef object _as_bytes(object item, str what):
    if item is None or isinstance(item, bytes):
        return item
    if isinstance(item, (bytearray, memoryview)):
        return bytes(item)
    raise wrong_bytes(item, f"a record's {what}")


cdef inline bint _same(const uint8_t *a, int64_t a_size, const uint8_t *b, int64_t b_size) noexcept:
    if a == NULL or b == NULL:
        return a == b
    return a_size == b_size and memcmp(a, b, <size_t>a_size) == 0


cdef inline int _point(object data, const uint8_t **start, int64_t *size) except -1:
    cdef Py_buffer unused         # bytes and None are not held
    return borrow(data, start, size, &unused)


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Record:
    """One record.

    `Record(value=b"v", key=b"k", headers=[("h", b"1")], timestamp=None)` makes one to be written. `timestamp` is
    an int of milliseconds since 1970 or a datetime with a time zone; None means the time of the append. Raises
    ValueError for an int between 10^9 and 10^10, which looks like seconds. A record read from a log also has `offset`
    and `timestamp_type` ("create", or "log_append" if the broker's time replaced the producer's). Two records are
    equal if all of this is equal.
    """

    # Nothing that a record refers to can refer back to it, so the garbage collector need not track it (no_gc).

    def __init__(self, value=None, key=None, headers=(), timestamp=None):
        cdef Scratch scratch
        self.record_offset = NO_OFFSET
        self.log_append = False
        self.time_ms = INT64_MIN if timestamp is None else timestamp_ms(timestamp, -1)
        self.value_bytes = _as_bytes(value, "value")
        self.key_bytes = _as_bytes(key, "key")
        _point(self.key_bytes, &self.view.key, &self.view.key_size)
        _point(self.value_bytes, &self.view.value, &self.view.value_size)
        scratch.data = NULL
        scratch.size = scratch.capacity = 0
        self.view.header_count = 0
        self.view.headers_size = 0
        if headers:
            try:
                self.view.header_count = put_headers(&scratch, headers, -1)
                self.owner = PyBytes_FromStringAndSize(<char *>scratch.data, scratch.size)
            finally:
                free(scratch.data)
            _point(self.owner, &self.view.headers, &self.view.headers_size)

    @property
    def value(self):
        """The value: bytes, or None (a tombstone)."""
        if self.value_bytes is None and self.view.value != NULL:
            value = PyBytes_FromStringAndSize(<const char *>self.view.value, self.view.value_size)
            check_fault(self.fault)
            self.value_bytes = value
        return self.value_bytes

    @property
    def key(self):
        """The key: bytes or None."""
        if self.key_bytes is None and self.view.key != NULL:
            key = PyBytes_FromStringAndSize(<const char *>self.view.key, self.view.key_size)
            check_fault(self.fault)
            self.key_bytes = key
        return self.key_bytes

    @property
    def headers(self):
        """A new list of (str, bytes or None). Bytes in a name that are not UTF-8 become lone surrogates."""
        cdef const uint8_t *p = self.view.headers
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef int64_t left = self.view.headers_size, key_size = 0, value_size = 0, used = 0
        cdef int32_t i
        cdef list headers = []
        for i in range(self.view.header_count):
            status = parse_record_header(p, left, &key, &key_size, &value, &value_size, &used)
            check(status, "reading a header", i)
            headers.append((
                PyUnicode_DecodeUTF8(<const char *>key, key_size, "surrogateescape"),
                PyBytes_FromStringAndSize(<const char *>value, value_size) if value != NULL else None,
            ))
            p += used
            left -= used
        check_fault(self.fault)
        return headers

    @property
    def offset(self):
        """The offset in its partition, or None if the record was not read from a log."""
        return None if self.record_offset == NO_OFFSET else self.record_offset

    @property
    def timestamp(self):
        """Milliseconds since 1970; -1 if the producer gave none, None if the append is to set it."""
        return None if self.time_ms == INT64_MIN else self.time_ms

    @property
    def timestamp_type(self):
        """"create" or "log_append"."""
        return "log_append" if self.log_append else "create"

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        cdef Record them = other
        return (
            self.record_offset == them.record_offset
            and self.time_ms == them.time_ms
            and self.log_append == them.log_append
            and _same(self.view.key, self.view.key_size, them.view.key, them.view.key_size)
            and _same(self.view.value, self.view.value_size, them.view.value, them.view.value_size)
            and self.headers == them.headers
        )

    def __hash__(self):
        return hash((self.record_offset, self.time_ms, self.key, self.value))

    def __reduce__(self):
        when = None if self.time_ms == INT64_MIN else self.time_ms
        return _restored, (self.value, self.key, self.headers, when, self.record_offset, self.log_append)

    def __repr__(self):
        at = "" if self.record_offset == NO_OFFSET else f"offset={self.record_offset}, "
        headers = f", headers={self.headers!r}" if self.view.header_count else ""
        when = "" if self.time_ms == INT64_MIN else f", timestamp={self.time_ms}"
        return f"Record({at}key={self.key!r}, value={self.value!r}{headers}{when})"


def _restored(value, key, headers, timestamp, int64_t offset, bint log_append):
    # Unpickle a record: it has its own bytes and no batch.
    cdef Record record = Record(value, key, headers)
    record.time_ms = INT64_MIN if timestamp is None else timestamp
    record.record_offset = offset
    record.log_append = log_append
    return record
