"""Splits the bytes of a connection into frames; purpose, ownership and thread rule: frame_reader.pxd."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from kreplica._core.big_endian cimport load32
from kreplica._core.status cimport BAD_MESSAGE, check

RECEIVE_BYTES = RECEIVE

cdef enum:
    SIZE_BYTES = 4


cdef class ReceiveBuffer:
    """Memory into which the sockets of one event loop receive. Its buffer is the part for the next bytes."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data + self.used, RECEIVE - self.used, 0, flags)

    def __len__(self):
        return RECEIVE - self.used


cdef class FrameReader:
    """Reads frames of `min_bytes` to `max_bytes`, not counting the size field before each."""

    def __init__(self, ReceiveBuffer received not None, *, int64_t min_bytes, int64_t max_bytes):
        self.received = received
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes

    cpdef object get_buffer(self):
        """Return the buffer for the next bytes; never empty if all complete frames were read."""
        if self.frame is not None:
            return memoryview(self.frame)[self.filled:]
        self.received.used = 0
        if self.kept is not None:
            self.received.used = self.end - self.at
            memcpy(self.received.data, self.data + self.at, self.received.used)
        return self.received

    cpdef object buffer_updated(self, int64_t size):
        """Note that `size` bytes were received into the buffer."""
        if self.frame is not None:
            self.filled += size
            return
        self.kept = None
        self.data = self.received.data
        self.at = 0
        self.end = self.received.used + size

    @property
    def receiving_bytes(self):
        """The number of bytes received of an incomplete large frame."""
        return self.receiving()

    cdef int64_t receiving(self) noexcept:
        return 0 if self.frame is None else self.filled

    cpdef object next(self):
        """Return the next complete frame, or None.

        Raises InvalidRequest for a size out of bounds; after that nothing more can be read.
        """
        cdef int64_t size, body
        if self.frame is not None:
            if self.filled < self.frame.size:
                return None
            frame, self.frame = self.frame, None
            return memoryview(frame).toreadonly()
        if self.end - self.at >= SIZE_BYTES:
            size = load32(self.data + self.at)
            if not self.min_bytes <= size <= self.max_bytes:
                check(BAD_MESSAGE, f"a frame of {size} bytes, allowed are {self.min_bytes} to {self.max_bytes}")
            body = self.at + SIZE_BYTES
            if size <= self.end - body:
                self.at = body + size
                return PyBytes_FromStringAndSize(<const char *> self.data + body, size)
            if size > RECEIVE - SIZE_BYTES:
                self.begin_large(size, body)
        self.keep()
        return None

    cpdef object keep(self):
        """Keep what is not read; call before another connection receives, unless `next` has returned None."""
        if self.at == self.end:
            self.kept = None
        elif self.kept is None:
            self.kept = PyBytes_FromStringAndSize(<const char *> self.data + self.at, self.end - self.at)
            self.data = <const uint8_t *> PyBytes_AS_STRING(self.kept)
            self.end -= self.at
            self.at = 0

    cdef int begin_large(self, int64_t size, int64_t body) except -1:
        self.frame = FrameMemory(size)
        self.filled = self.end - body
        memcpy(self.frame._data, self.data + body, self.filled)
        self.at = self.end
        return 0
