# LogState: a log's offsets, published for readers in this and other processes (file kreplica.state.deleted).
#
# Little-endian, 256 bytes, fixed (docs/FORMATS.md describes it for readers in other languages):
#
#     0 magic "KRLOG\0\0\1"    8       64 slot 0: 10 x int64      each slot:  0 log start offset
#     8 sequence               8      144 slot 1: 10 x int64                  8 high watermark
#    16 boot id               36                                             16 last stable offset
#    52 segments at close      4                                             24 log end offset
#    56 writer's process id    8                                             32 base offset of the active segment
#                                                                            40 its valid length in bytes
#                                                                            48 flush offset (all below is on disk)
#                                                                            56 leader epoch
#                                                                            64 flags: bit 0 closed in order; bit 1
#                                                                               gaps; bits 8 and up count the cuts
#                                                                            72 CRC-32C of bytes 0 to 71
#
# The writer fills the slot that is not current, and then stores sequence + 1 (release): the slot of sequence s is s &
# 1. A reader loads the sequence (acquire), copies that slot, loads the sequence again, and retries if it changed. If a
# writer dies in the middle, the previous slot is still whole. Within one boot a whole slot is exact up to the last
# append; after a power failure it may be an older one, but its flush offset is still valid.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kreplica._core.backing cimport pthread_mutex_t
from kreplica._core.region cimport Region

cdef enum:
    STATE_SIZE = 256
    STATE_SLOT = 64               # position of slot 0
    STATE_SLOT_STRIDE = 80
    CUT_SHIFT = 8                 # a reader that sees another count reopens the files
    FLAG_CLEAN = 1                # closed cleanly: everything is flushed, no recovery is needed
    FLAG_GAPS = 2                 # segments need not be contiguous: another program wrote some of them

cdef struct Standing:
    int64_t log_start_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_end_offset
    int64_t active_base_offset
    int64_t valid_length
    int64_t flush_offset
    int64_t leader_epoch
    int64_t flags


cdef class LogState:
    cdef readonly Region region   # None: not published
    cdef Standing now             # the writer's own copy; guarded by the log's lock; if shared, by `lock`
    cdef public bint follows      # the high watermark follows the log end at each append: the log is its only replica
    cdef public bint stable       # no open transaction: the last stable offset follows the high watermark
    cdef str boot_id
    cdef object process_id
    cdef bint begun               # this writer has written the file
    # A disk thread appends while the holder of the log's lock changes the other offsets.
    cdef readonly bint shared
    cdef bint unpublished         # `now` has changed since the last publication; guarded by `lock`
    cdef pthread_mutex_t lock     # held at most for a copy
    cdef pthread_mutex_t turn     # serializes publications, which may wait for pages

    cdef void publish(self) noexcept nogil
    # Whether the file is mapped; must be called before entering the guard.
    cdef bint can_publish(self) noexcept nogil
    # Record an append, under the guard: the new end, in one publication if `publishes` (can_publish).
    cdef void appended(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch,
                       bint publishes) noexcept nogil
    # Record an append when the state is shared, outside the guard.
    cdef void appended_aside(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch) noexcept nogil
    cdef int _begin(self) except -1
