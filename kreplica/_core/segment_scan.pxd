# Where a scan through a segment stands; the functions are Python's (segment_scan.pyx).

from libc.stdint cimport int64_t

from kreplica._core.record_batch cimport BatchHeader

cdef struct Scan:
    # A recovery scan: in and out.
    int64_t position
    int64_t limit
    int64_t next_offset           # the least base offset that the next batch may have
    int64_t leader_epoch          # of the batch before; a batch of another one stops the scan
    BatchHeader header            # of the batch that stopped it
