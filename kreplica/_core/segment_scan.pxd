# The position of a scan through a segment; the functions are Python's (segment_scan.pyx).

from libc.stdint cimport int64_t

from kreplica._core.record_batch cimport BatchHeader

cdef struct Scan:
    # The input and output of a recovery scan.
    int64_t position
    int64_t limit
    int64_t next_offset           # the lowest base offset that the next batch may have
    int64_t leader_epoch          # of the previous batch; a batch with another one stops the scan
    BatchHeader header            # of the batch that stopped the scan
