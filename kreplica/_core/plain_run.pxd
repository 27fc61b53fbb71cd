# Where a check of plain batches stands; the functions are Python's (plain_run.pyx).

from libc.stdint cimport int64_t, uint8_t

cdef struct PlainRun:
    # In: what the segment's batches and index entries must fit. In and out: how far they do.
    int64_t base_offset           # of the segment
    int64_t leader_epoch          # of every batch
    int64_t stop_offset           # a batch at or above it has another leader epoch
    const uint8_t *offsets        # the entries of the offset index
    int64_t offset_count
    const uint8_t *times          # of the time index
    int64_t time_count
    int64_t position
    int64_t next_offset           # the base offset of the next batch
    int64_t offset_at             # the first entry whose position was not met
    int64_t open_at               # the entry whose position was met, and its offset not yet; -1: none
    int64_t time_at               # the first entry whose offset was not met
    int64_t greatest              # timestamp so far
