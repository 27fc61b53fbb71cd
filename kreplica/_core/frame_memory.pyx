"""FrameMemory: the memory of one large frame, or of a decompressed batch.

It returns to a pool when it is no longer referenced, or to the system if it is large. It is not written to before
bytes arrive, so a claimed length costs only address space and no pages. The kernel must clear each new page, which
takes longer than to receive into it; so used memory is kept for reuse, up to KEPT_BYTES in total. Reused memory may
contain data received before.

Thread rule: any thread; the pool is changed under the GIL.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "sys/mman.h" nogil:
    enum:
        MAP_ANONYMOUS
        MAP_PRIVATE
        PROT_READ
        PROT_WRITE
    void *MAP_FAILED
    void *mmap(void *address, size_t length, int protection, int flags, int descriptor, long offset)
    int munmap(void *address, size_t length)

# Capacities are powers of two between the first and the last of these. Larger memory is mapped separately and not
# kept, because malloc may keep freed memory for each thread.
cdef int FIRST_SHIFT = 16
cdef enum: CLASSES = 7
cdef int64_t KEPT = 32 << 20
KEPT_BYTES = KEPT

cdef struct Block:
    Block *next

# The pool: free blocks by capacity; each begins with the address of the next one.
cdef Block *pool[CLASSES]
cdef int64_t kept = 0


cdef int _class_of(int64_t size) noexcept:
    # -1 for sizes that are not kept.
    cdef int found = 0
    while found < CLASSES:
        if size <= <int64_t>1 << (FIRST_SHIFT + found):
            return found
        found += 1
    return -1


cdef class FrameMemory:
    """`size` bytes of memory to write and read. Raises MemoryError, ValueError for a size below 1."""

    def __cinit__(self, int64_t size):
        global kept
        cdef int found = _class_of(size)
        cdef void *data
        if size < 1:
            raise ValueError(f"size={size} is below the minimum of 1")
        self.size = size
        self._capacity = size if found < 0 else <int64_t>1 << (FIRST_SHIFT + found)
        if found >= 0 and pool[found] != NULL:
            self._data = <uint8_t *>pool[found]
            pool[found] = pool[found].next
            kept -= self._capacity
            return
        if found < 0:
            data = mmap(NULL, <size_t>self._capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if data == MAP_FAILED:
                data = NULL
        else:
            data = malloc(<size_t>self._capacity)
        if data == NULL:
            raise MemoryError(f"no memory for a frame of {size} bytes")
        self._data = <uint8_t *>data

    def __dealloc__(self):
        global kept
        cdef int found
        cdef Block *block
        if self._data == NULL:
            return
        found = _class_of(self._capacity)
        if found < 0:
            with nogil:
                munmap(self._data, <size_t>self._capacity)
            return
        if kept + self._capacity > KEPT:
            free(self._data)
            return
        block = <Block *>self._data
        block.next = pool[found]
        pool[found] = block
        kept += self._capacity

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._data, <Py_ssize_t>self.size, 0, flags)

    def __len__(self):
        return self.size


def kept_bytes():
    """Return the size of the memory in the pool, in bytes."""
    return kept
