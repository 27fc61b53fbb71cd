# Region: memory with a base that never moves, a capacity, a valid length and pins (design decision 2).
#
# A Region stands for one file (or, in the simulator, for memory that plays one). Its address range is
# reserved once (`capacity`) and backed in steps (`allocated`): every byte below `allocated` may be written
# without a SIGBUS on a full disk. `length` is the number of valid bytes: the one writer publishes it with a
# release store after the bytes are there, readers take it with an acquire load and never look past it.
#
# Ownership: the Region owns the mapping; a Slice keeps it alive by its pin, so close() ends writes and the
# last pin unmaps. Thread rule: one writer at a time (the log's lock); any number of readers.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef struct region_t:
    uint8_t *base          # NULL while unmapped (cold); stable while mapped
    int64_t capacity       # bytes of address space reserved: length never exceeds it
    int64_t allocated      # bytes that are backed and may be written
    int64_t length         # valid bytes; use load_length / publish_length
    int64_t pins           # slices out there; atomic
    int32_t fault          # Status of the first failure that took the region out of use, else 0; atomic
    int32_t generation     # process generation at open: another one means we are after a fork

cdef extern from "atomics.h" nogil:
    int64_t kr_load_acquire(const int64_t *p)
    void kr_store_release(int64_t *p, int64_t value)
    int64_t kr_fetch_add(int64_t *p, int64_t value)

cdef extern from "guard.h" nogil:
    # Run fn(argument) so that a SIGBUS on the way returns PAGE_FAULT instead of killing the process.
    ctypedef int (*kr_guarded)(void *argument) noexcept nogil
    int kr_guard_call(kr_guarded fn, void *argument)
    int kr_generation()

cdef inline int64_t load_length(const region_t *r) noexcept nogil:
    return kr_load_acquire(&r.length)

cdef inline void publish_length(region_t *r, int64_t length) noexcept nogil:
    kr_store_release(&r.length, length)


cdef class Region:
    cdef region_t r
    cdef readonly str path
    cdef readonly bint writable
    cdef object __weakref__

    # OK when the region may be used by this process for reading (writing): not closed, forked or failed, and
    # mapped. Maps a cold region again if the map budget allows (else OUT_OF_MAPS).
    cdef int ready(self, bint for_write) noexcept nogil
    # Make [0, need) writable: OK, STORAGE_FULL, OUT_OF_RANGE (need > capacity), IO_FAILED.
    cdef int reserve(self, int64_t need) noexcept nogil
    # Tell the prefaulter how far the writer is, after an append; cheap, called on every append.
    cdef void advanced(self) noexcept nogil
    # The bytes [position, position + size) as a pinned slice of the mapping, or, where the region is cold
    # and may not be mapped, read with pread into memory of the slice's own.
    cdef Slice pin(self, int64_t position, int64_t size)
    # Copy bytes to `target` under the guard, mapped or not: OK or an error.
    cdef int copy_out(self, int64_t position, int64_t size, uint8_t *target) noexcept nogil


cdef class Slice:
    # A pinned, read-only range with the buffer protocol: a pinned byte never changes and never disappears.
    cdef readonly Region region
    cdef const uint8_t *data
    cdef readonly int64_t position
    cdef readonly int64_t size
    cdef readonly bint mapped       # False: a private copy (cold or foreign file)
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
