# TimingWheel: a hierarchical timing wheel (Varghese and Lauck, 1987), the clock for everything that waits.
#
# Time is counted in ticks. A bucket of level 0 is one tick wide, a bucket of level n+1 is as wide as all of level n,
# and each level covers the current bucket of the next level. With 3 buckets a level, at tick 4:
#
#
#    level 0    [ 3 | 4 | 5 ]                         one tick a bucket
#    level 1    [ 0.. | 3.. | 6.. ]                   three ticks a bucket
#    level 2    [ 0.. | 9.. | 18.. ]                  nine; created when the first deadline needs it
#
# A timer goes to the lowest level that reaches its tick: 5 to level 0, 7 to the bucket "6.." of level 1, 20 to "18.."
# of level 2. When the wheel reaches a bucket of a higher level, it hands that bucket's timers down. So no timer is
# left in the past, all timers of a level come before those of the next, and the first timer is in the first occupied
# bucket of the lowest occupied level. A jump over hours therefore costs one step for each occupied bucket, not for each
# tick. A bucket is filled from above before a timer can enter it directly, so timers of the same tick keep the order in
# which they were added.
#
# A bucket is a ring: its timers and a head, linked by index. The heads are the first slots of the array.
#
# Ownership: a payload is a number, which the wheel does not interpret. A handle identifies a timer until the timer has
# expired or is cancelled; an old handle does no harm for the next 2**37 additions (38 hours at one million a second).
# Thread rule: one call at a time. Python callers have the GIL; native callers hold the lock of the wheel's owner. The
# wheel has no clock: its time is the last argument of `advance`.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from kreplica._core.slots cimport slots_t

cdef enum:
    MAX_LEVELS = 63                    # as many as the smallest bucket count, 2, needs for 2**63 ticks
    MAX_BUCKETS_PER_LEVEL = 64         # a level's occupied buckets are the bits of one word
    TIMER_INDEX_BITS = 26
    MAX_TIMERS = 1 << TIMER_INDEX_BITS

cdef struct timer_t:                   # 32 bytes: two in a cache line
    int32_t next
    int32_t previous
    int64_t handle                     # 0 without a timer: a free slot, or the head of a bucket
    int64_t deadline_ms                # in a head: its level
    int64_t payload                    # in a head: its place in the level

cdef struct level_t:
    int64_t width                      # ticks in a bucket
    int64_t start                      # the level now covers the ticks [start, last]
    int64_t last
    uint64_t occupied                  # bit n: bucket n has a timer


@cython.final
cdef class TimingWheel:
    cdef readonly int64_t tick_ms
    cdef readonly int32_t buckets_per_level
    cdef int64_t tick                  # the wheel's present tick
    cdef int64_t last_tick             # the last tick that int64 milliseconds can express
    cdef int64_t additions
    cdef readonly int32_t level_count  # levels that deadlines have needed so far, at least 1
    cdef uint64_t occupied             # bit n: level n has a timer
    cdef level_t levels[MAX_LEVELS]
    cdef slots_t timers

    # Return the new timer's handle (positive), or NO_MEMORY (also beyond MAX_TIMERS).
    cdef int64_t add_timer(self, int64_t deadline_ms, int64_t payload) noexcept nogil
    # Return True if the timer was pending and will not expire, False if it has expired or was cancelled before.
    cdef bint cancel_timer(self, int64_t handle) noexcept nogil
    # Return True and the payload of a pending timer, False if it has expired or was cancelled.
    cdef bint find_timer(self, int64_t handle, int64_t *payload) noexcept nogil
    # Advance to `now_ms` and write the payloads of at most `limit` (at least 1) expired timers, in the order of their
    # deadlines. Returns the number written. If it is `limit`, there may be more: call again with the same time until
    # it is less. Nothing expires if the clock went back.
    cdef int64_t advance_into(self, int64_t now_ms, int64_t *payloads, int64_t limit) noexcept nogil
    # Return the earliest time at which advance_into may do something; INT64_MAX if no timer is pending.
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
