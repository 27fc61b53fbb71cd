"""MessageReader: reads a message of Kafka's protocol by its schema, from untrusted bytes.

Each length and count is checked against the remaining bytes before it is used. The total number of elements is
limited, since an element of two bytes may become an object of a hundred. Records are not copied: such a field is a
read-only memoryview of the message, and keeps the whole message alive. Invalid data raises the exception of
BAD_MESSAGE, and nothing else. Thread rule: one thread at a time.
"""

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.datetime cimport import_datetime, timedelta_new
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kreplica._core.big_endian cimport load16, load32, load64
from kreplica._core.message_schema cimport (
    BOOL,
    BYTES,
    DURATION32,
    DURATION64,
    ERROR_CODE,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    MOMENT,
    RECORDS,
    STRING,
    STRUCTURE,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    UUID,
    Field,
    MessageSchema,
)
from kreplica._core.status cimport BAD_MESSAGE, check
from kreplica._core.varint cimport read_unsigned_varint

import_datetime()

# Maximum elements in all arrays of one message.
cdef int64_t LIMIT = 262_144
MAX_ELEMENTS = LIMIT
# Kafka refuses longer strings in every version.
cdef int64_t MOST_TEXT = 0x7FFF

cdef int64_t DAY_MS = 86_400_000
# Longer durations do not fit a timedelta.
cdef int64_t MOST_DAYS = 999_999_999
cdef object ZERO_DURATION = timedelta_new(0, 0, 0)


cdef class MessageReader:
    """Reads the bytes of `data` from `position` on; keeps the data alive."""

    def __cinit__(self, data not None, int64_t position=0):
        # This view is private, so it cannot be released. It exports no buffer, because the garbage collector could
        # then not clear it when an error's traceback makes it part of a cycle.
        self._data = memoryview(data)
        if not self._data.readonly:
            self._data = self._data.toreadonly()
        cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(self._data)
        if not PyBuffer_IsContiguous(buffer, b"C"):
            raise ValueError("a message must be contiguous")
        self._start = <const uint8_t *>buffer.buf
        self._end = buffer.len
        self._elements_left = LIMIT
        if not 0 <= position <= self._end:
            raise ValueError(f"position {position} is out of range: there are {self._end} bytes")
        self.position = position

    @property
    def left(self):
        """The number of unread bytes."""
        return self._end - self.position

    def read(self, MessageSchema schema not None):
        """Read a structure as an entity; the bytes after it stay `left`."""
        return self._structure(schema)

    # ---- headers -------------------------------------------------------------------------------------------

    def int16(self):
        return load16(self._take(2))

    def int32(self):
        return load32(self._take(4))

    def text(self, int64_t size):
        """Read `size` bytes of UTF-8."""
        return self._text(size)

    def skip_tags(self):
        """Skip the tagged fields: the reader knows no tags."""
        self._tags(None, None)

    def unsigned_varint(self):
        return self._varint()

    # ---- bytes ---------------------------------------------------------------------------------------------

    cdef const uint8_t *_take(self, int64_t size) except NULL:
        # Return the address of the next `size` bytes, and advance past them.
        cdef const uint8_t *place = self._start + self.position
        if size < 0 or size > self._end - self.position:
            check(BAD_MESSAGE, f"{size} bytes expected in a message of {self._end}", self.position)
        self.position += size
        # An empty message may have no memory at all.
        return place if place != NULL else <const uint8_t *>b""

    cdef uint32_t _varint(self) except? 0xFFFFFFFF:
        cdef uint32_t value = 0
        cdef int used = read_unsigned_varint(self._start + self.position, self._end - self.position, &value)
        if used < 0:
            check(BAD_MESSAGE, "a varint that is truncated or has more than 32 bits", self.position)
        self.position += used
        return value

    cdef int64_t _count(self, int64_t size) except -1:
        # Check a number of elements; each takes at least a byte, if only for null.
        if size < 0 or size > self._end - self.position:
            check(BAD_MESSAGE, f"{size} elements in {self._end - self.position} bytes", self.position)
        self._elements_left -= size
        if self._elements_left < 0:
            check(BAD_MESSAGE, f"a message with more than {LIMIT} elements", self.position)
        return size

    # ---- structures ----------------------------------------------------------------------------------------

    cdef object _structure(self, MessageSchema schema):
        cdef object entity = schema.made()
        cdef object value
        cdef Field *field = schema.plain
        cdef int _left
        for _left in range(schema.plain_count):
            value = self._field(field, schema.is_flexible, False)
            field.set(field.slot, <PyObject *>entity, <PyObject *>value)
            field += 1
        for _left in range(schema.absent_count):
            _set_default(&schema.absent[_left], entity)
        if schema.is_flexible:
            self._tags(schema, entity)
        elif schema.make_unknown is not None:
            _set_default(&schema.unknown, entity)
        return entity

    cdef int _tags(self, MessageSchema schema, object entity) except -1:
        # The tagged fields (KIP-482): in ascending order, each once; unknown ones are skipped.
        cdef int64_t left = self._count(self._varint())
        cdef int64_t last = -1
        cdef int known_count = 0 if schema is None else schema.tagged_count
        cdef int known = 0
        cdef uint32_t tag
        cdef list unknown = None
        while left:
            left -= 1
            tag = self._varint()
            if tag <= last:
                check(BAD_MESSAGE, f"tag {tag} after tag {last}", self.position)
            last = tag
            while known < known_count and schema.tagged[known].tag < tag:
                _set_default(&schema.tagged[known], entity)
                known += 1
            if known < known_count and schema.tagged[known].tag == tag:
                self._tagged(&schema.tagged[known], entity)
                known += 1
            elif schema is None or schema.make_unknown is None:
                self._take(self._varint())
            else:
                if unknown is None:
                    unknown = []
                unknown.append(schema.make_unknown(tag, self._content(self._varint())))
        while known < known_count:
            _set_default(&schema.tagged[known], entity)
            known += 1
        if schema is not None and schema.make_unknown is not None:
            value = <object>schema.unknown.default if unknown is None else tuple(unknown)
            schema.unknown.set(schema.unknown.slot, <PyObject *>entity, <PyObject *>value)
        return 0

    cdef int _tagged(self, Field *field, object entity) except -1:
        cdef int64_t size = self._varint()
        cdef int64_t end = self._end
        cdef int64_t stop = self.position + size
        cdef object value
        if size > end - self.position:
            check(BAD_MESSAGE, f"a tagged field of {size} bytes in {end - self.position}", self.position)
        self._end = stop
        value = self._field(field, True, True)
        if self.position != stop:
            check(BAD_MESSAGE, f"{stop - self.position} unexpected bytes in tagged field {field.tag}", stop)
        self._end = end
        return field.set(field.slot, <PyObject *>entity, <PyObject *>value)

    # ---- fields --------------------------------------------------------------------------------------------

    cdef object _field(self, Field *field, bint is_flexible, bint is_tagged):
        if field.is_array:
            return self._array(field, is_flexible)
        # A byte before a nullable structure says whether it is present (KIP-893): 1 if so; else -1, or 0 with a tag.
        if field.kind == STRUCTURE and field.is_nullable and <int8_t>self._take(1)[0] < is_tagged:
            return None
        return self._value(field, is_flexible, field.is_nullable)

    cdef object _array(self, Field *field, bint is_flexible):
        cdef int64_t size, index
        cdef object value, made
        size = <int64_t>self._varint() - 1 if is_flexible else load32(self._take(4))
        if size == -1 and field.is_nullable:
            return None
        size = self._count(size)
        made = PyTuple_New(size)
        for index in range(size):
            # The elements of a nullable array are not nullable.
            value = self._value(field, is_flexible, False)
            Py_INCREF(value)
            PyTuple_SET_ITEM(made, index, value)
        return made

    cdef object _value(self, Field *field, bint is_flexible, bint is_nullable):
        cdef int kind = field.kind
        if kind == STRUCTURE:
            return self._structure(<MessageSchema>field.schema)
        if kind == STRING or kind == BYTES or kind == RECORDS:
            return self._sized(field, is_flexible, is_nullable)
        if kind == INT32:
            return load32(self._take(4))
        if kind == INT64:
            return load64(self._take(8))
        if kind == INT16:
            return load16(self._take(2))
        if kind == INT8:
            return <int8_t>self._take(1)[0]
        if kind == BOOL:
            return self._take(1)[0] != 0
        if kind == ERROR_CODE:
            return (<object>field.decode)[load16(self._take(2))]
        if kind == DURATION32:
            return _duration(load32(self._take(4)))
        if kind == DURATION64:
            return self._long_duration(load64(self._take(8)))
        return self._rare_value(field, kind)

    cdef object _rare_value(self, Field *field, int kind):
        cdef int64_t bits
        cdef double real
        if kind == UUID:
            return (<object>field.decode)(PyBytes_FromStringAndSize(<const char *>self._take(16), 16))
        if kind == UINT8:
            return self._take(1)[0]
        if kind == UINT16:
            return <uint16_t>load16(self._take(2))
        if kind == UINT32:
            return <uint32_t>load32(self._take(4))
        if kind == UINT64:
            return <uint64_t>load64(self._take(8))
        if kind == FLOAT64:
            bits = load64(self._take(8))
            memcpy(&real, &bits, sizeof(real))
            return real
        assert kind == MOMENT
        try:
            return (<object>field.decode)(load64(self._take(8)))
        except (OverflowError, ValueError):
            check(BAD_MESSAGE, "a timestamp out of range", self.position)

    cdef object _long_duration(self, int64_t milliseconds):
        if not -MOST_DAYS * DAY_MS <= milliseconds <= MOST_DAYS * DAY_MS:
            check(BAD_MESSAGE, "a duration of more than a billion days", self.position)
        return _duration(milliseconds)

    cdef object _sized(self, Field *field, bint is_flexible, bint is_nullable):
        cdef int64_t size
        if is_flexible:
            size = <int64_t>self._varint() - 1
        elif field.kind == STRING:
            size = load16(self._take(2))
        else:
            size = load32(self._take(4))
        if size == -1 and is_nullable:
            return None
        if size == -1:
            check(BAD_MESSAGE, "null for a field that is not nullable", self.position)
        if field.kind == STRING:
            if size > MOST_TEXT:
                check(BAD_MESSAGE, f"a string of {size} bytes, more than {MOST_TEXT},", self.position)
            return self._text(size)
        if field.kind == RECORDS:
            return self._view(size)
        return self._content(size)

    cdef object _content(self, int64_t size):
        return PyBytes_FromStringAndSize(<const char *>self._take(size), size)

    cdef object _text(self, int64_t size):
        cdef const uint8_t *place = self._take(size)
        try:
            return PyUnicode_DecodeUTF8(<char *>place, size, NULL)
        except UnicodeDecodeError as error:
            reason = error.reason
        check(BAD_MESSAGE, f"text that is not UTF-8: {reason}", self.position)

    cdef object _view(self, int64_t size):
        cdef int64_t start = self.position
        self._take(size)
        return self._data[start:start + size]


def read_exactly(MessageSchema schema not None, data not None, int64_t position=0):
    """Read a structure as an entity from byte `position` on. It must end with the data."""
    cdef MessageReader reader = MessageReader.__new__(MessageReader, data, position)
    made = reader._structure(schema)
    if reader.position != reader._end:
        check(BAD_MESSAGE, f"{reader._end - reader.position} unexpected bytes after it", reader.position)
    return made


cdef int _set_default(Field *field, object entity) except -1:
    return field.set(field.slot, <PyObject *>entity, field.default)


cdef object _duration(int64_t milliseconds):
    cdef int64_t days, rest
    if milliseconds == 0:
        return ZERO_DURATION
    # Rounded toward zero: the rest may be negative, which a timedelta accepts.
    days = milliseconds // DAY_MS
    rest = milliseconds - days * DAY_MS
    return timedelta_new(<int>days, <int>(rest // 1000), <int>(rest % 1000 * 1000))
