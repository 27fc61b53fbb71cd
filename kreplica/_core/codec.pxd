# Compression, which kreplica.record.compression installs here as two functions. Codecs are the numbers in a batch's
# attributes. Thread rule: called under the GIL; the installed functions may release it.

from libc.stdint cimport int64_t

# Return `data` (any buffer) compressed, as an object with the buffer protocol; level None is the codec's default.
cdef object compress(int codec, object data, object level)
# Return `data` decompressed. Raises for BAD_COMPRESSED_DATA, also if it does not hold record_count records, and for
# DECOMPRESSION_TOO_LARGE if the output would exceed max_size bytes.
cdef object decompress(int codec, object data, int64_t max_size, int64_t record_count)
