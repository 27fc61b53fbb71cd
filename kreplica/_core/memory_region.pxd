# A file in memory, for the simulator, whose storage keeps flushed data and may lose the rest.
#
# MemoryFile models what a disk and its page cache hold of one file. A MemoryRegion is a Region over it, with the same
# contract as one over a real file (region.pxd). Regions of the same file share its bytes.
#
# Ownership: the file owns its memory; regions and slices keep it alive while they need it, even after crash() has
# given the file new memory. Thread rule: Region's for the regions; the file's own methods hold the GIL.

from libc.stdint cimport int64_t, uint8_t

from kreplica._core.backing cimport kr_mapping
from kreplica._core.region cimport Region


cdef class MemoryFile:
    cdef kr_mapping *memory         # the page cache: [0, size), then zeros up to the capacity
    cdef readonly int64_t capacity
    cdef readonly int64_t size      # the file's size, including unused space
    cdef readonly bytes durable     # what is on disk
    cdef public int64_t room        # the size at which the disk is full: growing beyond it gives StorageFull
    cdef public object on_flush     # called before a flush as on_flush(start, stop); if it raises, nothing is flushed
    cdef int64_t crashes

    cdef int set_size(self, int64_t size) noexcept nogil
    cdef int make_room(self, int64_t capacity, const uint8_t *source, int64_t size) except -1


cdef class MemoryRegion(Region):
    cdef readonly MemoryFile contents
    cdef int64_t crashes            # the file's crashes when the region was opened; after another one it is dead

    cdef bint dead(self) noexcept nogil
