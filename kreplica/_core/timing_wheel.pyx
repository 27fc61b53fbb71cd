"""The hierarchical timing wheel: adding and cancelling a timer take constant time, however many there are.

Purpose, layout, ownership and thread rule: timing_wheel.pxd.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t

from kreplica._core.slots cimport (
    NO_SLOT, slots_allocated_bytes, slots_close, slots_give, slots_open, slots_take, slots_taken,
)
from kreplica._core.status cimport NO_MEMORY, check

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t word) nogil   # undefined for 0

cdef enum:
    EXPIRED_AT_ONCE = 256              # payloads that Python's `advance` collects before it creates objects
    LOOK_AT = 16                       # timers of a bucket that `earliest_ms` looks at


@cython.final
cdef class TimingWheel:
    """Timers with a deadline in milliseconds and a number as payload.

    `tick_ms`: the resolution; a timer expires less than a tick after its deadline, never before it.
    `buckets_per_level`: 2 to 64; Kafka's wheel has 20. `start_ms`: the wheel's first time, 0 or later. Raises
    ValueError for other values.
    """

    def __cinit__(self, int64_t tick_ms=1, int32_t buckets_per_level=20, int64_t start_ms=0):
        if tick_ms < 1 or start_ms < 0 or not 2 <= buckets_per_level <= MAX_BUCKETS_PER_LEVEL:
            raise ValueError(f"{tick_ms=}, {buckets_per_level=}, {start_ms=}")
        self.tick_ms = tick_ms
        self.buckets_per_level = buckets_per_level
        self.tick = start_ms // tick_ms
        self.last_tick = INT64_MAX // tick_ms
        # There are heads for as many levels as last_tick has digits in this base.
        cdef int32_t heads = buckets_per_level
        cdef int64_t rest = self.last_tick // buckets_per_level
        while rest > 0:
            heads += buckets_per_level
            rest //= buckets_per_level
        if not slots_open(&self.timers, sizeof(timer_t), heads, MAX_TIMERS):
            raise MemoryError()
        self.open_level()

    def __dealloc__(self):
        slots_close(&self.timers)

    def __len__(self):
        """Return the number of pending timers."""
        return slots_taken(&self.timers)

    @property
    def now_ms(self):
        """The wheel's present time: the start of a tick, at most the latest time it was advanced to."""
        return self.tick * self.tick_ms

    @property
    def allocated_bytes(self):
        """The bytes of memory that hold timers, pending or free."""
        return slots_allocated_bytes(&self.timers)

    def add(self, int64_t deadline_ms, int64_t payload):
        """Add a timer and return its handle, a positive number.

        If the deadline is not after `now_ms`, the timer expires with the next `advance` that does not go back. Raises
        KafkaStorageError if there is no memory or 2**26 timers are pending.
        """
        return check_handle(self.add_timer(deadline_ms, payload))

    def cancel(self, int64_t handle):
        """Cancel a timer; return True if it was pending and will not expire. An old handle does no harm."""
        return self.cancel_timer(handle)

    def advance(self, int64_t now_ms):
        """Advance to `now_ms` and return the payloads of the expired timers, by tick and then in the order of `add`.

        If the clock went back, nothing expires and the wheel's time does not change.
        """
        cdef int64_t payloads[EXPIRED_AT_ONCE]
        cdef int64_t count = EXPIRED_AT_ONCE
        cdef list expired = []
        while count == EXPIRED_AT_ONCE:
            count = self.advance_into(now_ms, payloads, EXPIRED_AT_ONCE)
            expired.extend([payloads[i] for i in range(count)])
        return expired

    def next_deadline(self):
        """Return the earliest time in ms at which a timer may expire, or None if no timer is pending.

        The time is exact for timers that expire soon, and for others unless many expire at about the same time.
        Otherwise it is earlier than the expiry: `advance(next_deadline())` either returns something or moves this time
        on, at most once for each level.
        """
        return self.earliest_ms() if self.occupied else None

    cdef int64_t add_timer(self, int64_t deadline_ms, int64_t payload) noexcept nogil:
        cdef int32_t index = slots_take(&self.timers)
        if index == NO_SLOT:
            return NO_MEMORY
        self.additions += 1
        cdef timer_t *timer = self.timer(index)
        # The shift drops the highest bits of the count, and the sign is never set.
        timer.handle = (<uint64_t> self.additions << (TIMER_INDEX_BITS + 1) >> 1) | index
        timer.deadline_ms = deadline_ms
        timer.payload = payload
        self.place(index)
        return timer.handle

    cdef bint cancel_timer(self, int64_t handle) noexcept nogil:
        cdef int64_t payload
        if not self.find_timer(handle, &payload):
            return False
        cdef int32_t index = handle & (MAX_TIMERS - 1)
        self.unlink(index)
        self.release(index)
        return True

    cdef bint find_timer(self, int64_t handle, int64_t *payload) noexcept nogil:
        cdef int32_t index = handle & (MAX_TIMERS - 1)
        if handle <= 0 or index >= self.timers.used or self.timer(index).handle != handle:
            return False
        payload[0] = self.timer(index).payload
        return True

    cdef int64_t advance_into(self, int64_t now_ms, int64_t *payloads, int64_t limit) noexcept nogil:
        cdef int64_t now = now_ms // self.tick_ms
        cdef int64_t count = 0
        cdef int64_t first
        cdef int32_t number, place, head
        if now_ms < 0 or now < self.tick:
            return 0
        while self.occupied:
            number = lowest_bit(self.occupied)
            place = lowest_bit(self.levels[number].occupied)
            first = self.levels[number].start + place * self.levels[number].width
            if first > now:
                break
            self.stand_at(first)
            head = number * self.buckets_per_level + place
            if number > 0:
                self.hand_down(head)
                continue
            count += self.drain(head, payloads + count, limit - count)
            if count == limit:
                return count
        self.stand_at(now)
        return count

    cdef int64_t earliest_ms(self) noexcept nogil:
        if not self.occupied:
            return INT64_MAX
        cdef int32_t number = lowest_bit(self.occupied)
        cdef level_t *level = &self.levels[number]
        cdef int32_t place = lowest_bit(level.occupied)
        cdef int64_t first = level.start + place * level.width
        if number == 0:
            return first * self.tick_ms
        # A wake-up for the start of a wide bucket costs its owner more than a look at a few timers.
        cdef int32_t head = number * self.buckets_per_level + place
        cdef int32_t index = self.timer(head).next
        cdef int64_t earliest = INT64_MAX
        cdef int32_t _looked_at
        for _looked_at in range(LOOK_AT):
            earliest = min(earliest, self.tick_of(self.timer(index).deadline_ms))
            index = self.timer(index).next
            if index == head:
                return max(earliest, first) * self.tick_ms
        return first * self.tick_ms

    cdef inline timer_t *timer(self, int32_t index) noexcept nogil:
        return <timer_t *> self.timers.base + index

    # Return the tick at which a timer expires: the first that does not start before its deadline.
    cdef inline int64_t tick_of(self, int64_t deadline_ms) noexcept nogil:
        if deadline_ms <= 0:
            return 0
        if self.tick_ms == 1:
            return deadline_ms
        return min((deadline_ms - 1) // self.tick_ms + 1, self.last_tick)

    # Put a timer at the end of its bucket.
    cdef inline void place(self, int32_t index) noexcept nogil:
        cdef int64_t tick = max(self.tick_of(self.timer(index).deadline_ms), self.tick)
        cdef int32_t number = 0
        while tick > self.levels[number].last:
            number += 1
            if number == self.level_count:
                self.open_level()
        cdef level_t *level = &self.levels[number]
        cdef int32_t place = <int32_t> ((tick - level.start) // level.width)
        level.occupied |= <uint64_t> 1 << place
        self.occupied |= <uint64_t> 1 << number
        cdef int32_t head = number * self.buckets_per_level + place
        cdef int32_t last = self.timer(head).previous
        self.timer(index).next = head
        self.timer(index).previous = last
        self.timer(last).next = index
        self.timer(head).previous = index

    cdef inline void unlink(self, int32_t index) noexcept nogil:
        cdef int32_t next = self.timer(index).next
        cdef int32_t previous = self.timer(index).previous
        self.timer(previous).next = next
        self.timer(next).previous = previous
        cdef level_t *level
        cdef timer_t *head
        if next == previous:
            # Only the head is left in the ring.
            head = self.timer(next)
            level = &self.levels[head.deadline_ms]
            level.occupied &= ~(<uint64_t> 1 << head.payload)
            if level.occupied == 0:
                self.occupied &= ~(<uint64_t> 1 << head.deadline_ms)

    cdef inline void release(self, int32_t index) noexcept nogil:
        self.timer(index).handle = 0
        slots_give(&self.timers, index)

    # Open the next level, whose buckets are as wide as the whole of the last one.
    cdef void open_level(self) noexcept nogil:
        cdef int32_t number = self.level_count
        cdef level_t *level = &self.levels[number]
        cdef int32_t place, head
        level.width = self.levels[number - 1].width * self.buckets_per_level if number > 0 else 1
        level.occupied = 0
        self.cover(level)
        for place in range(self.buckets_per_level):
            head = number * self.buckets_per_level + place
            self.timer(head).next = head
            self.timer(head).previous = head
            self.timer(head).handle = 0
            self.timer(head).deadline_ms = number
            self.timer(head).payload = place
        self.level_count = number + 1

    # Let the level cover the ticks around the wheel's present tick.
    cdef void cover(self, level_t *level) noexcept nogil:
        if level.width > INT64_MAX // self.buckets_per_level:
            level.start = 0
            level.last = INT64_MAX
            return
        cdef int64_t span = level.width * self.buckets_per_level
        level.start = self.tick - self.tick % span
        level.last = level.start + (span - 1) if level.start <= INT64_MAX - (span - 1) else INT64_MAX

    cdef inline void stand_at(self, int64_t tick) noexcept nogil:
        cdef int32_t number
        self.tick = tick
        for number in range(self.level_count):
            if tick <= self.levels[number].last:
                break
            self.cover(&self.levels[number])

    # Move the timers of a higher level's bucket, which the wheel has reached, to lower levels, in their order.
    cdef void hand_down(self, int32_t head) noexcept nogil:
        cdef int32_t index = self.timer(head).next
        cdef int32_t next
        cdef level_t *level = &self.levels[self.timer(head).deadline_ms]
        level.occupied &= ~(<uint64_t> 1 << self.timer(head).payload)
        if level.occupied == 0:
            self.occupied &= ~(<uint64_t> 1 << self.timer(head).deadline_ms)
        self.timer(head).next = head
        self.timer(head).previous = head
        while index != head:
            next = self.timer(index).next
            self.place(index)
            index = next

    cdef int64_t drain(self, int32_t head, int64_t *payloads, int64_t limit) noexcept nogil:
        cdef int64_t count = 0
        cdef int32_t index = self.timer(head).next
        while count < limit and index != head:
            payloads[count] = self.timer(index).payload
            count += 1
            self.unlink(index)
            self.release(index)
            index = self.timer(head).next
        return count


cdef int64_t check_handle(int64_t handle) except -1:
    if handle < 0:
        check(<int> handle, "adding a timer")
    return handle
