# TimingWheel: a hierarchical timing wheel (Varghese and Lauck, 1987), the clock face of everything that
# waits.
#
# Time is counted in ticks. A bucket of level 0 is one tick, a bucket of level n+1 is as wide as all of
# level n, and each level covers the bucket of the next one in which the wheel stands. With 3 buckets a
# level, at tick 4:
#
#    level 0    [ 3 | 4 | 5 ]                         one tick a bucket
#    level 1    [ 0.. | 3.. | 6.. ]                   three ticks a bucket
#    level 2    [ 0.. | 9.. | 18.. ]                  nine; made when the first deadline asks for it
#
# A timer goes to the lowest level that reaches its tick: 5 to level 0, 7 to the bucket "6.." of level 1, 20
# to "18.." of level 2. When the wheel comes to a bucket of a higher level, it hands that bucket's timers
# down. So what time has passed is empty, all of a level comes before what is in the next, and the first
# timer is in the first occupied bucket of the lowest occupied level: a jump over hours costs one step for
# each bucket that has something in it, not for each tick. And a bucket is filled from above before a timer
# can come to it directly, so timers of the same tick keep the order in which they were added.
#
# A bucket is a ring: its timers and a head, linked by index. The heads are the first slots of the array.
#
# Ownership: a payload is a number, which the wheel does not look into. A handle names a timer until it has
# expired or is cancelled; a handle from before does no harm for the next 2**37 additions (38 hours at one
# million a second). Thread rule: one call at a time. Python's callers have the GIL; native ones hold the
# lock of what the wheel belongs to. The wheel has no clock: time is what `advance` was told last.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from kreplica._core.slots cimport slots_t

cdef enum:
    MAX_LEVELS = 63                    # what the smallest bucket count, 2, needs for 2**63 ticks
    MAX_BUCKETS_PER_LEVEL = 64         # a level's occupied buckets are the bits of one word
    TIMER_INDEX_BITS = 26
    MAX_TIMERS = 1 << TIMER_INDEX_BITS

cdef struct timer_t:                   # 32 bytes: two in a cache line
    int32_t next
    int32_t previous
    int64_t handle                     # 0 where no timer is: a free slot, or the head of a bucket
    int64_t deadline_ms                # in a head: its level
    int64_t payload                    # in a head: its place in the level

cdef struct level_t:
    int64_t width                      # ticks a bucket
    int64_t start                      # the ticks [start, last] that the level covers now
    int64_t last
    uint64_t occupied                  # bit n: bucket n has a timer


@cython.final
cdef class TimingWheel:
    cdef readonly int64_t tick_ms
    cdef readonly int32_t buckets_per_level
    cdef int64_t tick                  # where the wheel stands
    cdef int64_t last_tick             # the last one that int64 milliseconds can name
    cdef int64_t additions
    cdef readonly int32_t level_count  # levels that deadlines have asked for so far, at least 1
    cdef uint64_t occupied             # bit n: level n has a timer
    cdef level_t levels[MAX_LEVELS]
    cdef slots_t timers

    # The new timer's handle (positive), or NO_MEMORY (also past MAX_TIMERS).
    cdef int64_t add_timer(self, int64_t deadline_ms, int64_t payload) noexcept nogil
    # True if the timer was pending: it will not expire any more. False: it has expired or was cancelled
    # before.
    cdef bint cancel_timer(self, int64_t handle) noexcept nogil
    # True, and the payload of a pending timer; False if it has expired or was cancelled.
    cdef bint find_timer(self, int64_t handle, int64_t *payload) noexcept nogil
    # Move on to `now_ms` and write the payloads of what has expired, in the order of their deadlines, at
    # most `limit` (at least 1) of them; the number written. At `limit` there may be more: call again with
    # the same time until it is less. Nothing expires when the clock went back.
    cdef int64_t advance_into(self, int64_t now_ms, int64_t *payloads, int64_t limit) noexcept nogil
    # The earliest time at which advance_into may do something; INT64_MAX if no timer is pending.
    cdef int64_t earliest_ms(self) noexcept nogil

    cdef timer_t *timer(self, int32_t index) noexcept nogil
    cdef int64_t tick_of(self, int64_t deadline_ms) noexcept nogil
    cdef void place(self, int32_t index) noexcept nogil
    cdef void unlink(self, int32_t index) noexcept nogil
    cdef void release(self, int32_t index) noexcept nogil
    cdef void open_level(self) noexcept nogil
    cdef void cover(self, level_t *level) noexcept nogil
    cdef void stand_at(self, int64_t tick) noexcept nogil
    cdef void hand_down(self, int32_t head) noexcept nogil
    cdef int64_t drain(self, int32_t head, int64_t *payloads, int64_t limit) noexcept nogil
