# Record: one record as seen by Python, created by a program or read from a batch; and helpers that the batch builder
# shares: borrowing bytes and encoding headers.

from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record_batch cimport RecordView
from kreplica._core.scratch cimport Scratch
from kreplica._core.status cimport PAGE_FAULT, check

cdef inline int borrow(object item, const uint8_t **data, int64_t *size, Py_buffer *held) except -1:
    # Borrow the bytes of a bytes, bytearray, memoryview or None (data NULL). Returns 1 if `held` was filled and must
    # be released after use, 2 for any other type. Other exporters are not accepted: they could run Python
    # code, which could change what was borrowed before.
    if PyBytes_Check(item):
        data[0] = <const uint8_t *>PyBytes_AS_STRING(item)
        size[0] = PyBytes_GET_SIZE(item)
        return 0
    if item is None:
        data[0] = NULL
        size[0] = 0
        return 0
    if not (PyByteArray_Check(item) or PyMemoryView_Check(item)):
        return 2
    PyObject_GetBuffer(item, held, PyBUF_SIMPLE)
    # An empty buffer may have no address, which would mean null.
    data[0] = <const uint8_t *>held.buf if held.buf != NULL else <const uint8_t *>b""
    size[0] = held.len
    return 1


cdef extern from "atomics.h" nogil:
    int32_t kr_load_acquire32(const int32_t *p)


cdef inline int check_fault(const int32_t *fault) except -1:
    # Call after reading bytes of a mapping: a page lost meanwhile reads as zeros, and raises here.
    if fault != NULL and kr_load_acquire32(fault) == PAGE_FAULT:
        check(PAGE_FAULT, "reading a mapped record")
    return 0


cdef class _MappedBytes:
    # Bytes that may lie in a mapping, without the object that keeps them.
    cdef const int32_t *fault     # of the mapping; NULL: plain memory


# Return where the mapping behind a Slice or a _MappedBytes records a lost page; NULL for other owners.
cdef const int32_t *fault_of(object owner) except? NULL


cdef enum:
    NO_OFFSET = -1


cdef class Record:
    cdef RecordView view          # refers to memory that `owner`, key_bytes and value_bytes keep alive
    cdef object owner
    cdef const int32_t *fault     # of the mapping that `view` refers to; NULL: plain memory
    cdef object key_bytes         # created on first use, or the given object
    cdef object value_bytes
    cdef int64_t record_offset    # NO_OFFSET: not read from a log
    cdef int64_t time_ms          # INT64_MIN: created without one
    cdef bint log_append


# Append one part of a header: a length and the bytes; NULL means null, length -1.
cdef int put_sized(Scratch *s, const uint8_t *data, int64_t size) except -1
# Append the encoding of headers, a list or tuple of (str, bytes-like or None), without their count; return the count.
# Errors name record `index` (-1: none).
cdef int put_headers(Scratch *s, object headers, int64_t index) except -1
# Return the prefix that names the record in an error message.
cdef str place(int64_t index)
# Return the TypeError for an item that should be bytes; `what` names it.
cdef object wrong_bytes(object item, str what)
# Return a record's timestamp, given as milliseconds or as a datetime, which may run Python code. Raises TypeError,
# ValueError.
cdef int64_t timestamp_ms(object value, int64_t index) except? -2
