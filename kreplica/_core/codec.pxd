# Compression, which the core has none of: kreplica.record.compression installs two functions here. Codecs are
# the numbers in a batch's attributes. Thread rule: called under the GIL; what is installed may release it.

from libc.stdint cimport int64_t

# `data` (any buffer) compressed, as an object with the buffer protocol; level None is the codec's own
# default.
cdef object compress(int codec, object data, object level)
# `data` decompressed; BAD_COMPRESSED_DATA, also when it begins with anything but so many records, and
# DECOMPRESSION_TOO_LARGE when it would be more than max_size bytes.
cdef object decompress(int codec, object data, int64_t max_size, int64_t record_count)
