# Writing a large batch's records past the mapping: a page that is first touched through a mapping is cleared before it
# is written, one that is written whole by a call is not. Only for who may wait for the disk.

from libc.stdint cimport uint8_t

from kreplica._core.log_segment cimport Append
from kreplica._core.region cimport Region

# Where WRITES_BODY asks for it and the batch is large and whole: write its records where the region ends, and set
# BODY_WRITTEN. The room is there. Whatever is in the way, the mapping takes the batch then.
cdef void write_body(Region region, Append *a) noexcept nogil
# Put what is not written yet of the batch from byte 21 on at `target`, under the guard; whether its CRC is right.
cdef bint copy_body(uint8_t *target, const Append *a) noexcept nogil
