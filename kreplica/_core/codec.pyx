"""Where the core finds compression: two functions that kreplica.record.compression installs at its import."""

from libc.stdint cimport int64_t

from kreplica._core.status cimport UNKNOWN_CODEC, check

cdef object _compress = None
cdef object _decompress = None


def install(compress, decompress):
    """Use `compress(codec, data, level)` and `decompress(codec, data, max_size)` from now on.

    Both return an object with the buffer protocol, which nobody changes afterwards.
    """
    global _compress, _decompress
    _compress = compress
    _decompress = decompress


cdef object compress(int codec, object data, object level):
    if _compress is None:
        check(UNKNOWN_CODEC, "compressing without kreplica.record.compression", codec)
    return _compress(codec, data, level)


cdef object decompress(int codec, object data, int64_t max_size):
    if _decompress is None:
        check(UNKNOWN_CODEC, "decompressing without kreplica.record.compression", codec)
    return _decompress(codec, data, max_size)
