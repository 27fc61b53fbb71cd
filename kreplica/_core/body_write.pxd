# Writes a large batch's records past the mapping: the kernel clears a page that is first touched through a mapping,
# but not one that is written whole by a call. Only for threads that may wait for the disk.

from libc.stdint cimport uint8_t

from kreplica._core.log_segment cimport Append
from kreplica._core.region cimport Region

# If WRITES_BODY requests it and the batch is large and complete: write its records at the end of the region, and set
# BODY_WRITTEN. The space is reserved. On any failure the batch is written through the mapping instead.
cdef void write_body(Region region, Append *a) noexcept nogil
# Copy the unwritten part of the batch from byte 21 on to `target`, under the guard; return whether its CRC is valid.
cdef bint copy_body(uint8_t *target, const Append *a) noexcept nogil
