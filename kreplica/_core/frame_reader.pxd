# FrameReader: splits the bytes of a connection into Kafka's frames, with few copies and bounded memory.
#
#     socket --receives into--> ReceiveBuffer, shared by all connections of an event loop --next--> a frame of its own
#                       \-----> the memory of one large frame ---------------------------next--> that memory
#
# The connections of an event loop receive one after the other, and each reads its frames at once, so they share one
# ReceiveBuffer. What is left of it, the beginning of a frame or frames that have to wait, the reader keeps in memory
# of its own. An idle connection thus holds no buffer. A frame that does not fit into the ReceiveBuffer gets its own
# memory, into which the socket then receives directly. That memory is mapped, so a claimed length costs only address
# space; pages are used as bytes arrive (frame_memory.pxd).
#
# Ownership: a frame is read-only and belongs to its receiver alone. Thread rule: one thread, that of the event loop.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.frame_memory cimport FrameMemory

cdef enum:
    RECEIVE = 65536


cdef class ReceiveBuffer:
    cdef int64_t used             # the bytes at the front that are received already
    cdef uint8_t data[RECEIVE]


cdef class FrameReader:
    cdef int64_t min_bytes
    cdef int64_t max_bytes
    cdef ReceiveBuffer received
    # What is not read yet, data[at:end], in the ReceiveBuffer or in `kept`.
    cdef const uint8_t *data
    cdef int64_t at
    cdef int64_t end
    cdef bytes kept
    # The large frame being received, and the number of its bytes received so far.
    cdef FrameMemory frame
    cdef int64_t filled

    cpdef object get_buffer(self)
    cpdef object buffer_updated(self, int64_t size)
    # Return the next frame, None if there is no complete one.
    cpdef object next(self)
    # Keep what is not read; call before another connection receives, unless `next` has returned None.
    cpdef object keep(self)
    cdef int begin_large(self, int64_t size, int64_t body) except -1
    cdef int64_t receiving(self) noexcept
