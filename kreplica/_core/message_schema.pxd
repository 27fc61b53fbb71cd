# MessageSchema: what the fields of one structure of Kafka's protocol are, for the reader and the writer.

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

cdef extern from "Python.h":
    ctypedef object (*descrgetfunc)(PyObject *, PyObject *, PyObject *)
    ctypedef int (*descrsetfunc)(PyObject *, PyObject *, PyObject *) except -1

cdef enum Kind:
    INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT64, BOOL
    UUID, ERROR_CODE, DURATION32, DURATION64, MOMENT, STRING, BYTES, RECORDS, STRUCTURE

# All objects are borrowed: the schema keeps them.
cdef struct Field:
    Kind kind
    bint is_array
    bint is_nullable
    uint32_t tag
    # Where an entity holds it: the descriptor of a slot, and what sets and reads it.
    PyObject *slot
    descrsetfunc set
    descrgetfunc get
    # What a tagged field holds where it is left out.
    PyObject *default
    # Of a STRUCTURE.
    PyObject *schema
    # From what is in the message to what an entity holds, and back; NULL where the kind says it all.
    PyObject *decode
    PyObject *encode


cdef class MessageSchema:
    cdef readonly type entity
    cdef readonly bint is_flexible
    cdef int plain_count
    cdef int tagged_count
    cdef Field *plain
    cdef Field *tagged      # in the order of their tags
    cdef list _kept

    cdef int _add(self, Field *field, tuple declared) except -1
    cdef object made(self)
