# Record: one record as Python sees it, made by a program or read from a batch, and what its making shares
# with the batch builder: borrowed bytes and the wire form of headers.

from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check
from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.record_batch cimport RecordView
from kreplica._core.scratch cimport Scratch
from kreplica._core.status cimport PAGE_FAULT, check

cdef inline int borrow(object item, const uint8_t **data, int64_t *size, Py_buffer *held) except -1:
    # The bytes of a bytes, bytearray, memoryview or None (data NULL). 1 where `held` was filled and is to be
    # released after use, 2 where the item is none of these. No other exporter is taken: asking one could run
    # Python code, which could change what was borrowed before.
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
    # An empty buffer may have no address, which would read as null.
    data[0] = <const uint8_t *>held.buf if held.buf != NULL else <const uint8_t *>b""
    size[0] = held.len
    return 1


cdef extern from "atomics.h" nogil:
    int32_t kr_load_acquire32(const int32_t *p)


cdef inline int check_fault(const int32_t *fault) except -1:
    # After bytes of a mapping were read: a page that was lost meanwhile reads as zeros, and says so here.
    if fault != NULL and kr_load_acquire32(fault) == PAGE_FAULT:
        check(PAGE_FAULT, "reading a mapped record")
    return 0


cdef enum:
    NO_OFFSET = -1


cdef class Record:
    cdef RecordView view          # points into what `owner`, key_bytes and value_bytes keep alive
    cdef object owner
    cdef const int32_t *fault     # of the mapping that `view` points into; NULL: plain memory
    cdef object key_bytes         # made on first use, or what was given
    cdef object value_bytes
    cdef int64_t record_offset    # NO_OFFSET: not read from a log
    cdef int64_t time_ms          # INT64_MIN: made without one
    cdef bint log_append


# Append one part of a header: a length and the bytes; NULL is null, length -1.
cdef int put_sized(Scratch *s, const uint8_t *data, int64_t size) except -1
# Append headers, a list or tuple of (str, bytes-like or None), in wire form (without their count); returns
# the count. Errors name record `index` (-1: none).
cdef int put_headers(Scratch *s, object headers, int64_t index) except -1
# Which record an error speaks of.
cdef str place(int64_t index)
# A record's timestamp, given as milliseconds or as a datetime, which may run Python code. Raises TypeError,
# ValueError.
cdef int64_t timestamp_ms(object value, int64_t index) except? -2
