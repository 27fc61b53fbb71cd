# LogState: where a log stands, published for readers in this and other processes (file kreplica.state.deleted).
#
# Little-endian, 256 bytes, fixed (docs/FORMATS.md draws it for readers in other languages):
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
# The writer fills the slot that is not current and then stores sequence + 1 (release): the slot of a sequence s is
# s & 1. A reader loads the sequence (acquire), copies that slot, loads it again, and repeats if it moved. A writer
# that dies in the middle leaves the former slot whole. Within a boot a whole slot is the truth up to the last
# append; after a power cut it may be an older one, whose flush offset holds all the same.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kreplica._core.backing cimport pthread_mutex_t
from kreplica._core.region cimport Region

cdef enum:
    STATE_SIZE = 256
    STATE_SLOT = 64               # position of slot 0
    STATE_SLOT_STRIDE = 80
    CUT_SHIFT = 8                 # a reader that sees another count opens the files anew
    FLAG_CLEAN = 1                # closed in order: everything is flushed, nothing is to be recovered
    FLAG_GAPS = 2                 # segments need not follow one another: another program wrote some of them

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
    cdef readonly Region region   # None: published to nobody
    cdef Standing now             # the writer's own copy; guarded by the log's lock, where it is shared by `lock`
    cdef public bint follows      # the HW follows the log end at each append: a log that is its only replica
    cdef public bint stable       # no transaction holds the last stable offset back, so that it follows the HW
    cdef str boot_id
    cdef object process_id
    cdef bint begun               # the file is this writer's
    # A disk thread appends, while the holder of the log's lock moves the other offsets.
    cdef readonly bint shared
    cdef bint unpublished         # `now` has moved since the last publication; guarded by `lock`
    cdef pthread_mutex_t lock     # held for a copy at most
    cdef pthread_mutex_t turn     # whose turn it is to publish, while pages may be waited for

    cdef void publish(self) noexcept nogil
    # Whether the file is mapped; to be asked before the guard is entered.
    cdef bint can_publish(self) noexcept nogil
    # After an append, under the guard: the new end, in one publication if `publishes` (can_publish).
    cdef void appended(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch,
                       bint publishes) noexcept nogil
    # The same where the state is shared, outside of the guard.
    cdef void appended_aside(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch) noexcept nogil
    cdef int _begin(self) except -1
