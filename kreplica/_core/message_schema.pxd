# MessageSchema: the fields of one structure of Kafka's protocol, for the reader and the writer.

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

cdef extern from "Python.h":
    ctypedef object (*descrgetfunc)(PyObject *, PyObject *, PyObject *)
    ctypedef int (*descrsetfunc)(PyObject *, PyObject *, PyObject *) except -1

cdef enum Kind:
    INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT64, BOOL
    UUID, ERROR_CODE, DURATION32, DURATION64, MOMENT, STRING, BYTES, RECORDS, STRUCTURE

# All objects are borrowed; the schema keeps them alive.
cdef struct Field:
    Kind kind
    bint is_array
    bint is_nullable
    uint32_t tag
    # The entity's slot for the field: its descriptor, and the functions that set and read it.
    PyObject *slot
    descrsetfunc set
    descrgetfunc get
    # The value of an absent field. Of a field that is present and has no tag: the value that stands for None, if any.
    PyObject *default
    # For a STRUCTURE.
    PyObject *schema
    # Converters from the message's value to the entity's, and back; NULL if none is needed.
    PyObject *decode
    PyObject *encode


cdef class MessageSchema:
    cdef readonly object entity     # a class
    cdef readonly bint is_flexible
    cdef int plain_count
    cdef int tagged_count
    cdef int absent_count
    cdef Field *plain
    cdef Field *tagged      # sorted by tag
    cdef Field *absent      # fields of other versions; only slot and default are set
    cdef object refuse      # makes the error for a set field that the version lacks; None: it is dropped
    cdef object make_unknown
    cdef Field unknown      # the slot of the unknown tagged fields, if make_unknown is set
    cdef list _kept

    cdef int _add(self, Field *field, tuple declared) except -1
    cdef int _add_slot(self, Field *field, name, default) except -1
    cdef object made(self)
