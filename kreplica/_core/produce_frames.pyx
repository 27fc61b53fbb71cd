"""A producer's Produce request of one batch, and the plain answer to it, written and read without message objects.

A ProducerBatch has its request written around its bytes. `read_produce_answer` reads an answer that needs no decision,
and the caller reads every other one as a message. Both know the versions 11 and 12 of the protocol, which have the same
layout; PRODUCE_VERSION is that of plain batches. An answer is untrusted: its size is checked before it is read.
Stateless; any thread may call.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from kreplica._core.big_endian cimport load16, load64, store16, store32
from kreplica._core.varint cimport size_of_unsigned_varint, write_unsigned_varint

PRODUCE_VERSION = PLAIN_VERSION

cdef enum:
    PRODUCE = 0
    ONE = 2                        # the size of a compact array with one element
    NONE = 1                       # ... and of an empty one
    # Of a request's head: all but the client id, a transactional id, the wire name and the batch's size.
    FIXED_BYTES = 23
    # Of an answer, around the wire name: no tagged fields of the header, one topic ...
    BEFORE_NAME = 2
    # ... and the error, three offsets and times, no errors of records, no message, the counts of unknown fields of the
    # partition and the topic, the throttle time, and the count of the answer's.
    BEHIND_NAME = 2 + 24 + 2 + 2 + 4 + 1


cdef int64_t head_size(const produce_t *request, bytes client_id, bytes transactional, bytes name) except -1:
    cdef int64_t size = 0
    if PyBytes_GET_SIZE(client_id) > 0x7FFF:
        raise ValueError(f"a client id of {len(client_id)} bytes; at most {0x7FFF} are allowed")
    if transactional is not None:
        size = PyBytes_GET_SIZE(transactional)
        size += size_of_unsigned_varint(<uint32_t> (size + 1)) - 1
    return (FIXED_BYTES + PyBytes_GET_SIZE(client_id) + size + PyBytes_GET_SIZE(name)
            + size_of_unsigned_varint(<uint32_t> (request.batch_size + 1)))


cdef int write_head(
        uint8_t *p, const produce_t *request, bytes client_id, bytes transactional, bytes name) except -1:
    cdef Py_ssize_t client_size = PyBytes_GET_SIZE(client_id)
    cdef Py_ssize_t size
    store32(p, <int> (head_size(request, client_id, transactional, name) + request.batch_size + TAIL_BYTES - 4))
    store16(p + 4, PRODUCE)
    store16(p + 6, request.version)
    store32(p + 8, request.number)
    store16(p + 12, <int> client_size)
    memcpy(p + 14, PyBytes_AS_STRING(client_id), client_size)
    p += 14 + client_size
    p[0] = 0                       # no tagged fields of the header
    p += 1
    if transactional is None:
        p[0] = 0
        p += 1
    else:
        size = PyBytes_GET_SIZE(transactional)
        p += write_unsigned_varint(p, <uint32_t> (size + 1))
        memcpy(p, PyBytes_AS_STRING(transactional), size)
        p += size
    store16(p, request.acks)
    store32(p + 2, request.timeout_ms)
    p[6] = ONE                     # topics
    p += 7
    memcpy(p, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    p += PyBytes_GET_SIZE(name)
    write_unsigned_varint(p, <uint32_t> (request.batch_size + 1))
    return 0


def read_produce_answer(frame not None, int64_t position, bytes name not None):
    """Return the batch's offset from an answer without errors for the partition of this wire name; else None.

    From `position` on the frame has the header's tagged fields and the body.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t size = PyBytes_GET_SIZE(name)
    cdef object offset = None
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or view.len - position != BEFORE_NAME + size + BEHIND_NAME:
            return None
        p = <const uint8_t *> view.buf + position
        if p[0] != 0 or p[1] != ONE or memcmp(p + BEFORE_NAME, PyBytes_AS_STRING(name), size) != 0:
            return None
        p += BEFORE_NAME + size
        if load16(p) == 0 and p[26] == NONE and p[27] == p[28] == p[29] == p[34] == 0:
            offset = load64(p + 2)
    finally:
        PyBuffer_Release(&view)
    return offset
