# CRC-32C, the checksum of record batches, with the fastest implementation for the machine (native/crc32c.c).

from libc.stdint cimport int64_t, uint8_t, uint32_t

# The checksum of p[0:size].
cdef uint32_t crc32c(const uint8_t *p, int64_t size) noexcept nogil
# The checksum of the data with checksum `crc` followed by p[0:size]; the checksum of empty data is 0.
cdef uint32_t crc32c_extend(uint32_t crc, const uint8_t *p, int64_t size) noexcept nogil
# Copy p[0:size] to `target`, which does not overlap it, and return its checksum: one pass over the bytes.
cdef uint32_t crc32c_copy(uint8_t *target, const uint8_t *p, int64_t size) noexcept nogil
# The same, continuing `crc`.
cdef uint32_t crc32c_copy_extend(uint32_t crc, uint8_t *target, const uint8_t *p, int64_t size) noexcept nogil
# The checksum of a followed by b, from their checksums and the size of b.
cdef uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, int64_t size_b) noexcept nogil
