# MessageWriter: collects the buffers of one frame.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kreplica._core.message_schema cimport Field, MessageSchema
from kreplica._core.scratch cimport Scratch


cdef class MessageWriter:
    cdef Scratch _gathered      # data not in a separate buffer yet
    cdef list _buffers
    cdef int64_t _size          # total size of the buffers
    cdef int _depth             # nesting of the tagged fields being written
    cdef Field *_at             # the field that is written, of the innermost structure

    cdef uint8_t *_room(self, int64_t size) except NULL
    cdef int _bytes(self, const uint8_t *data, int64_t size) except -1
    cdef int _varint(self, int64_t value) except -1
    cdef int _structure(self, MessageSchema schema, object entity) except -1
    cdef int _fields(self, MessageSchema schema, object entity) except -1
    cdef str _described(self, MessageSchema schema, object entity, object error)
    cdef int _tags(self, MessageSchema schema, object entity) except -1
    cdef int _all_tags(self, MessageSchema schema, object entity, object unknown) except -1
    cdef int _tagged(self, Field *field, object value) except -1
    cdef int _field(self, Field *field, object value, bint is_flexible, bint is_tagged) except -1
    cdef int _array(self, Field *field, object values, bint is_flexible) except -1
    cdef int _value(self, Field *field, object value, bint is_flexible, bint is_nullable) except -1
    cdef int _rare_value(self, Field *field, object value) except -1
    cdef int _number(self, int64_t number, int64_t low, int64_t high) except -1
    cdef int _sized(self, Field *field, object value, bint is_flexible, bint is_nullable) except -1
    cdef int _size_of(self, Field *field, int64_t size, bint is_flexible) except -1
    cdef int _data(self, object data, int64_t size, const uint8_t *start) except -1
    cdef int _cut(self) except -1
