# The state of a check of plain batches; the Python functions are in plain_run.pyx.

from libc.stdint cimport int64_t, uint8_t

cdef struct PlainRun:
    # In: the values that the segment's batches and index entries must fit. In and out: the progress.
    int64_t base_offset           # of the segment
    int64_t leader_epoch          # required of every batch
    int64_t stop_offset           # batches at or above it have another leader epoch
    const uint8_t *offsets        # the entries of the offset index
    int64_t offset_count
    const uint8_t *times          # of the time index
    int64_t time_count
    int64_t position
    int64_t next_offset           # the base offset of the next batch
    int64_t offset_at             # the first entry whose position has not been reached
    int64_t open_at               # the entry whose position was reached but not its offset; -1: none
    int64_t time_at               # the first entry whose offset has not been reached
    int64_t greatest              # the greatest timestamp so far
