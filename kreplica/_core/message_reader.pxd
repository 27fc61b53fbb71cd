# MessageReader: a read position in the bytes of one message, and its remaining limits.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kreplica._core.message_schema cimport Field, MessageSchema


cdef class MessageReader:
    cdef object _data           # a read-only memoryview
    cdef const uint8_t *_start
    cdef int64_t _end
    cdef int64_t _elements_left
    cdef readonly int64_t position

    cdef const uint8_t *_take(self, int64_t size) except NULL
    cdef uint32_t _varint(self) except? 0xFFFFFFFF
    cdef int64_t _count(self, int64_t size) except -1
    cdef object _structure(self, MessageSchema schema)
    cdef int _tags(self, MessageSchema schema, object entity) except -1
    cdef int _tagged(self, Field *field, object entity) except -1
    cdef object _field(self, Field *field, bint is_flexible, bint is_tagged)
    cdef object _array(self, Field *field, bint is_flexible)
    cdef object _value(self, Field *field, bint is_flexible, bint is_nullable)
    cdef object _rare_value(self, Field *field, int kind)
    cdef object _long_duration(self, int64_t milliseconds)
    cdef object _sized(self, Field *field, bint is_flexible, bint is_nullable)
    cdef object _content(self, int64_t size)
    cdef object _text(self, int64_t size)
    cdef object _view(self, int64_t size)
