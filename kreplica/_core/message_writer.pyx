"""MessageWriter: writes messages of Kafka's protocol by their schemas, as the buffers of one frame.

Small values are collected in one piece of memory. A larger buffer of records becomes an entry of the list itself, by
reference: a slice of a log stays pinned while the list is held, and goes to the socket without a copy. A value that
its field cannot hold raises the exception of BAD_MESSAGE, after which the writer must not be used. Thread rule: one
thread at a time.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.datetime cimport import_datetime, timedelta, timedelta_days, timedelta_microseconds, timedelta_seconds
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from kreplica._core.big_endian cimport store16, store32, store64
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
from kreplica._core.scratch cimport reserve
from kreplica._core.status cimport BAD_MESSAGE, check
from kreplica._core.varint cimport size_of_unsigned_varint, write_unsigned_varint

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

import_datetime()

# Below this size a copy is cheaper than one more entry for the system call.
cdef int64_t COPIED = 1024
COPIED_BYTES = COPIED
# Kafka refuses longer strings in every version.
cdef int64_t MOST_TEXT = 0x7FFF
# The size field before a frame.
cdef int64_t SIZE_BYTES = 4

cdef int64_t DAY_MS = 86_400_000
cdef int64_t MOST = 0x7FFFFFFFFFFFFFFF
cdef int64_t LEAST = -MOST - 1


cdef class MessageWriter:
    """Collects what is written; `buffers` returns the frame, preceded by its size."""

    def __cinit__(self):
        self._buffers = []
        self._room(SIZE_BYTES)

    def __dealloc__(self):
        free(self._gathered.data)

    def write(self, MessageSchema schema not None, entity not None):
        """Write an entity of the schema's class."""
        if type(entity) is not schema.entity:
            raise TypeError(f"a {type(entity).__name__} does not fit the schema of {schema.entity.__name__}")
        self._structure(schema, entity)

    def int16(self, int64_t value):
        self._number(value, -0x8000, 0x7FFF)
        store16(self._room(2), <int16_t>value)

    def int32(self, int64_t value):
        self._number(value, -0x80000000, 0x7FFFFFFF)
        store32(self._room(4), <int32_t>value)

    def raw(self, bytes data not None):
        """Write these bytes as they are."""
        self._bytes(<const uint8_t *>PyBytes_AS_STRING(data), len(data))

    def buffers(self):
        """Return everything written, preceded by its size. Nothing may be written afterwards."""
        self._cut()
        if self._size - SIZE_BYTES > 0x7FFFFFFF:
            check(BAD_MESSAGE, f"a frame of {self._size} bytes")
        # The first buffer is the writer's own and has not been handed out, so it may be changed.
        store32(<uint8_t *>PyBytes_AS_STRING(self._buffers[0]), <int32_t>(self._size - SIZE_BYTES))
        return self._buffers

    def content(self, MessageSchema schema not None, entity not None):
        """Write an entity and return everything written as one piece, without its size. Nothing may follow."""
        # Copies what would be a buffer of its own.
        self._depth += 1
        self.write(schema, entity)
        return PyBytes_FromStringAndSize(
            <char *>self._gathered.data + SIZE_BYTES, self._gathered.size - SIZE_BYTES
        )

    # ---- bytes ---------------------------------------------------------------------------------------------

    cdef uint8_t *_room(self, int64_t size) except NULL:
        # Return the address for the next `size` bytes, which count as written.
        reserve(&self._gathered, size)
        self._gathered.size += size
        return self._gathered.data + self._gathered.size - size

    cdef int _bytes(self, const uint8_t *data, int64_t size) except -1:
        if size:
            memcpy(self._room(size), data, <size_t>size)
        return 0

    cdef int _varint(self, int64_t value) except -1:
        if not 0 <= value <= 0xFFFFFFFF:
            check(BAD_MESSAGE, f"the size {value} is out of range")
        write_unsigned_varint(self._room(size_of_unsigned_varint(<uint32_t>value)), <uint32_t>value)
        return 0

    cdef int _cut(self) except -1:
        # Turn the collected bytes into a buffer.
        if self._gathered.size:
            self._buffers.append(
                PyBytes_FromStringAndSize(<char *>self._gathered.data, self._gathered.size)
            )
            self._size += self._gathered.size
            self._gathered.size = 0
        return 0

    # ---- structures ----------------------------------------------------------------------------------------

    cdef int _structure(self, MessageSchema schema, object entity) except -1:
        if type(entity) is not schema.entity:
            raise TypeError(f"{schema.entity.__name__} is required")
        try:
            self._fields(schema, entity)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            # Structures around this one do not catch what this raises.
            check(BAD_MESSAGE, self._described(schema, entity, error))
        return 0

    cdef str _described(self, MessageSchema schema, object entity, object error):
        cdef str at = f"{schema.entity.__name__}.{(<object>self._at.slot).__name__}"
        if isinstance(error, (ValueError, OverflowError)):
            return f"{at}: {error}"
        value = self._at.get(self._at.slot, <PyObject *>entity, <PyObject *>schema.entity)
        if self._at.is_array and isinstance(value, (list, tuple)):
            types = ", ".join(sorted({type(each).__name__ for each in value}))
            return f"{at}: an item of type {types} does not fit: {error}"
        return f"{at}: a value of type {type(value).__name__} does not fit: {error}"

    cdef int _fields(self, MessageSchema schema, object entity) except -1:
        cdef int _left
        cdef Field *field = schema.plain
        cdef object value
        for _left in range(schema.plain_count):
            value = field.get(field.slot, <PyObject *>entity, <PyObject *>schema.entity)
            self._field(field, value, schema.is_flexible, False)
            field += 1
        if schema.refuse is not None:
            for _left in range(schema.absent_count):
                field = &schema.absent[_left]
                value = field.get(field.slot, <PyObject *>entity, <PyObject *>schema.entity)
                if <PyObject *>value != field.default and value != <object>field.default:
                    raise schema.refuse((<object>field.slot).__name__)
        if schema.make_unknown is not None:
            value = schema.unknown.get(schema.unknown.slot, <PyObject *>entity, <PyObject *>schema.entity)
            if value:
                if not schema.is_flexible:
                    raise schema.refuse("for unknown tagged fields")
                return self._all_tags(schema, entity, value)
        if schema.is_flexible:
            self._tags(schema, entity)
        return 0

    cdef int _all_tags(self, MessageSchema schema, object entity, object unknown) except -1:
        # Write the tagged fields that differ from their defaults and the unknown ones, by ascending tag.
        cdef int index
        cdef Field *field
        cdef dict data = {tag: content for tag, content in unknown}
        cdef dict known = {}
        if len(data) != len(unknown):
            check(BAD_MESSAGE, "two tagged fields with the same tag")
        for index in range(schema.tagged_count):
            field = &schema.tagged[index]
            if field.tag in data:
                check(BAD_MESSAGE, "two tagged fields with the same tag")
            value = field.get(field.slot, <PyObject *>entity, <PyObject *>schema.entity)
            if <PyObject *>value != field.default and value != <object>field.default:
                data[field.tag] = None
                known[field.tag] = index, value
        self._varint(len(data))
        for tag in sorted(data):
            if tag in known:
                index, value = known[tag]
                self._tagged(&schema.tagged[index], value)
            else:
                self._varint(tag)
                self._varint(len(data[tag]))
                self.raw(data[tag])
        return 0

    cdef int _tags(self, MessageSchema schema, object entity) except -1:
        # Write the tagged fields (KIP-482) that differ from their defaults.
        cdef uint64_t differing = 0
        cdef int count = 0
        cdef int index
        cdef Field *field
        cdef object value
        for index in range(schema.tagged_count):
            field = &schema.tagged[index]
            value = field.get(field.slot, <PyObject *>entity, <PyObject *>schema.entity)
            if <PyObject *>value != field.default and value != <object>field.default:
                differing |= <uint64_t>1 << index
                count += 1
        self._varint(count)
        for index in range(schema.tagged_count):
            if differing >> index & 1:
                field = &schema.tagged[index]
                value = field.get(field.slot, <PyObject *>entity, <PyObject *>schema.entity)
                self._tagged(field, value)
        return 0

    cdef int _tagged(self, Field *field, object value) except -1:
        cdef int64_t start, size
        cdef int prefix
        self._varint(field.tag)
        start = self._gathered.size
        # No value becomes a separate buffer here, so the size can be inserted afterwards.
        self._depth += 1
        self._field(field, value, True, True)
        self._depth -= 1
        size = self._gathered.size - start
        prefix = size_of_unsigned_varint(<uint32_t>size)
        self._room(prefix)
        memmove(self._gathered.data + start + prefix, self._gathered.data + start, <size_t>size)
        write_unsigned_varint(self._gathered.data + start, <uint32_t>size)
        return 0

    # ---- fields --------------------------------------------------------------------------------------------

    cdef int _field(self, Field *field, object value, bint is_flexible, bint is_tagged) except -1:
        self._at = field
        if value is None and not field.is_nullable and field.default != <PyObject *>None:
            value = <object>field.default
        if field.is_array:
            return self._array(field, value, is_flexible)
        # A byte before a nullable structure says whether it is present (KIP-893): 1 if so; else -1, or 0 with a tag.
        if field.kind == STRUCTURE and field.is_nullable:
            self._room(1)[0] = 1 if value is not None else 0 if is_tagged else 0xFF
            if value is None:
                return 0
        return self._value(field, value, is_flexible, field.is_nullable and not is_tagged)

    cdef int _array(self, Field *field, object values, bint is_flexible) except -1:
        cdef int64_t size = -1
        if values is not None:
            size = len(values)
        elif not field.is_nullable:
            raise ValueError("null for an array that is not nullable")
        if is_flexible:
            self._varint(size + 1)
        else:
            self._number(size, -1, 0x7FFFFFFF)
            store32(self._room(4), <int32_t>size)
        if values is not None:
            for value in values:
                self._value(field, value, is_flexible, False)
        return 0

    cdef int _value(self, Field *field, object value, bint is_flexible, bint is_nullable) except -1:
        cdef int kind = field.kind
        cdef int64_t number
        if kind == STRUCTURE:
            return self._structure(<MessageSchema>field.schema, value)
        if kind == STRING or kind == BYTES or kind == RECORDS:
            return self._sized(field, value, is_flexible, is_nullable)
        if kind == INT32 or kind == DURATION32:
            number = value if kind == INT32 else _milliseconds(value)
            self._number(number, -0x80000000, 0x7FFFFFFF)
            store32(self._room(4), <int32_t>number)
            return 0
        if kind == INT64 or kind == DURATION64:
            store64(self._room(8), value if kind == INT64 else _milliseconds(value))
            return 0
        if kind == INT16 or kind == ERROR_CODE:
            number = value
            self._number(number, -0x8000, 0x7FFF)
            store16(self._room(2), <int16_t>number)
            return 0
        if kind == INT8:
            number = value
            self._number(number, -0x80, 0x7F)
            self._room(1)[0] = <uint8_t><int8_t>number
            return 0
        if kind == BOOL:
            if value is not True and value is not False:
                raise TypeError("a boolean is required")
            self._room(1)[0] = value is True
            return 0
        return self._rare_value(field, value)

    cdef int _rare_value(self, Field *field, object value) except -1:
        cdef int kind = field.kind
        cdef int64_t bits, number
        cdef double real
        if kind == UUID:
            raw = (<object>field.encode)(value)
            self._number(len(raw), 16, 16)
            return self._bytes(<const uint8_t *>PyBytes_AS_STRING(raw), 16)
        if kind == FLOAT64:
            real = value
            memcpy(&bits, &real, sizeof(real))
            store64(self._room(8), bits)
            return 0
        if kind == UINT64:
            store64(self._room(8), <int64_t><uint64_t>value)
            return 0
        if kind == MOMENT:
            store64(self._room(8), (<object>field.encode)(value))
            return 0
        number = value
        if kind == UINT8:
            self._number(number, 0, 0xFF)
            self._room(1)[0] = <uint8_t>number
        elif kind == UINT16:
            self._number(number, 0, 0xFFFF)
            store16(self._room(2), <int16_t>number)
        else:
            assert kind == UINT32
            self._number(number, 0, 0xFFFFFFFF)
            store32(self._room(4), <int32_t>number)
        return 0

    cdef int _number(self, int64_t number, int64_t low, int64_t high) except -1:
        if not low <= number <= high:
            raise ValueError(f"{number} is out of range: {low} to {high} are allowed")
        return 0

    # ---- values with a length ------------------------------------------------------------------------------

    cdef int _sized(self, Field *field, object value, bint is_flexible, bint is_nullable) except -1:
        cdef Py_ssize_t size = -1
        cdef const char *text
        cdef Py_buffer buffer
        if value is None:
            if not is_nullable:
                raise ValueError("null for a field that is not nullable")
            return self._size_of(field, -1, is_flexible)
        if PyUnicode_Check(value) != (field.kind == STRING):
            raise TypeError("text is required" if field.kind == STRING else "bytes are required")
        if field.kind == STRING:
            text = PyUnicode_AsUTF8AndSize(value, &size)
            if size > MOST_TEXT:
                raise ValueError(f"a string of {size} bytes; at most {MOST_TEXT} bytes are allowed")
            self._size_of(field, size, is_flexible)
            return self._bytes(<const uint8_t *>text, size)
        PyObject_GetBuffer(value, &buffer, PyBUF_SIMPLE)
        try:
            self._size_of(field, buffer.len, is_flexible)
            return self._data(value, buffer.len, <const uint8_t *>buffer.buf)
        finally:
            PyBuffer_Release(&buffer)

    cdef int _size_of(self, Field *field, int64_t size, bint is_flexible) except -1:
        if is_flexible:
            return self._varint(size + 1)
        if field.kind == STRING:
            store16(self._room(2), <int16_t>size)
            return 0
        self._number(size, -1, 0x7FFFFFFF)
        store32(self._room(4), <int32_t>size)
        return 0

    cdef int _data(self, object data, int64_t size, const uint8_t *start) except -1:
        if size < COPIED or self._depth:
            return self._bytes(start, size)
        self._cut()
        self._buffers.append(data)
        self._size += size
        return 0


cdef int64_t _milliseconds(timedelta duration) except? -1:
    # Half a millisecond is rounded to even, as by Python's round().
    cdef int64_t whole = <int64_t>timedelta_days(duration) * DAY_MS + <int64_t>timedelta_seconds(duration) * 1000
    cdef int64_t part = timedelta_microseconds(duration)
    whole += part // 1000
    part %= 1000
    return whole + (part > 500 or (part == 500 and whole & 1))
