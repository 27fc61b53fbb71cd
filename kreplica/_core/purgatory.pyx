"""The purgatory: operations that wait for watermarks, completed together when a mark reaches them.

Purpose, layout, ownership and thread rule: purgatory.pxd.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.ref cimport Py_DECREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from kreplica._core.slots cimport (
    NO_SLOT, slots_allocated_bytes, slots_close, slots_give, slots_open, slots_t, slots_take, slots_taken,
)
from kreplica._core.status cimport NO_MEMORY, check
from kreplica._core.timing_wheel cimport TimingWheel

cdef enum:
    FEWEST_HEAD_BITS = 6
    AT_ONCE = 256                      # operations to finish natively before objects are created


@cython.final
cdef class Watermark:
    """The progress of a partition during one term of its leadership.

    `value`: an offset; everything below it is done. `closed`: the term is over. Moved by one owner, under the
    partition's lock; any thread may read it.
    """

    def __cinit__(self, int64_t value=0):
        self.value = value

    def advance(self, int64_t value):
        """Move the mark to `value`; return False if it is not higher, or the mark is closed."""
        if self.closed or value <= self.value:
            return False
        self.value = value
        return True

    def close(self):
        """End the term: operations that wait for more than `value` will not be completed."""
        self.closed = True

    def __repr__(self):
        return f"Watermark({self.value}{', closed' if self.closed else ''})"


@cython.final
cdef class Purgatory:
    """Operations that wait for offsets, each with a deadline.

    A token is any object, such as a future. It is returned when its operation is done, or the tag if the token
    is None. Times are in ms, on the clock whose readings are passed to `expire`. `tick_ms`,
    `buckets_per_level` and `start_ms` are those of its TimingWheel, `wheel`, which raises ValueError.
    """

    def __cinit__(self, int64_t tick_ms=1, int32_t buckets_per_level=20, int64_t start_ms=0):
        self.wheel = TimingWheel(tick_ms, buckets_per_level, start_ms)
        if not (slots_open(&self.operations, sizeof(operation_t), 1, MAX_WAITING)
                and slots_open(&self.watches, sizeof(watch_t), 1, MAX_WAITING)
                and self.resize_heads(FEWEST_HEAD_BITS)):
            raise MemoryError()

    def __dealloc__(self):
        let_go(self)
        slots_close(&self.operations)
        slots_close(&self.watches)
        free(self.heads)

    def __len__(self):
        """Return the number of waiting operations, like `delayed`."""
        return slots_taken(&self.operations)

    @property
    def delayed(self):
        """The number of waiting operations, Kafka's NumDelayedOperations.

        `watched` counts their parts, Kafka's PurgatorySize.
        """
        return slots_taken(&self.operations)

    @property
    def partitions(self):
        """The number of partitions with waiting operations."""
        return self.head_count

    @property
    def allocated_bytes(self):
        """The size of the memory for operations and parts, used or free, without the wheel's, in bytes."""
        return (slots_allocated_bytes(&self.operations) + slots_allocated_bytes(&self.watches)
                + (sizeof(int32_t) << self.head_bits))

    def watch(self, int64_t partition, int64_t required_offset, int64_t deadline_ms, object token=None,
              int64_t tag=0, Watermark watermark=None):
        """Wait until `partition` has reached `required_offset`; return the handle, or 0 if it has, or is `closed`.

        `watermark`: the partition's mark. Without it nothing is checked; that is correct only if the caller holds the
        lock under which the mark moves, and has checked it. Raises KafkaStorageError if there is no memory, or with
        2**26 parts waiting.
        """
        cdef part_t part = part_t(partition, required_offset, pointer_to(watermark))
        return check_handle(self.watch_parts(&part, 1, deadline_ms, pointer_to(token), tag))

    def watch_all(self, list parts not None, int64_t deadline_ms, object token=None, int64_t tag=0):
        """Start an operation that waits for several partitions; return its handle, or 0 if none needs waiting.

        `parts`: tuples (partition, required offset, Watermark or None), as in `watch`. It is done when all parts are.
        """
        # These copies keep the watermarks alive while the pointers are used.
        cdef list rows = [(int(partition), int(required_offset), watermark)
                          for partition, required_offset, watermark in parts]
        cdef part_t *native = <part_t *> malloc((len(rows) + 1) * sizeof(part_t))
        if native == NULL:
            raise MemoryError()
        cdef Watermark mark
        cdef Py_ssize_t i
        try:
            for i in range(len(rows)):
                mark = rows[i][2]
                native[i] = part_t(rows[i][0], rows[i][1], pointer_to(mark))
            return check_handle(self.watch_parts(native, len(rows), deadline_ms, pointer_to(token), tag))
        finally:
            free(native)

    cpdef list complete_to(self, int64_t partition, int64_t watermark):
        """Return the tokens of all operations done when `partition` reaches `watermark`, in the order of offsets.

        Advance the partition's Watermark first. Operations that still wait for another partition are not among them.
        """
        cdef finished_t finished[AT_ONCE]
        cdef int64_t count = AT_ONCE
        cdef list tokens = []
        while count == AT_ONCE:
            count = self.complete_into(partition, watermark, finished, AT_ONCE)
            hand_over(finished, count, tokens)
        return tokens

    def fail(self, int64_t partition):
        """End all waiting for `partition`; return the tokens of operations that waited only for it, in order.

        Close the partition's Watermark first. Operations that wait for another partition continue to wait.
        """
        return self.complete_to(partition, INT64_MAX)

    def expire(self, int64_t now_ms):
        """Return the tokens of all operations whose deadline has passed, in the order of their deadlines."""
        cdef finished_t finished[AT_ONCE]
        cdef int64_t count = AT_ONCE
        cdef list tokens = []
        while count == AT_ONCE:
            count = self.expire_into(now_ms, finished, AT_ONCE)
            hand_over(finished, count, tokens)
        return tokens

    def drain(self):
        """End all operations, regardless of deadlines, and return their tokens: for a node that shuts down."""
        cdef list tokens = []
        cdef int64_t place = 0
        while self.head_count > 0:
            place = (place + 1) & ((1 << self.head_bits) - 1)
            if self.heads[place] != NO_SLOT:
                tokens += self.fail(self.watch_at(self.heads[place]).offset)
        return tokens

    def cancel(self, int64_t handle):
        """Cancel an operation and drop its token; return whether it was waiting. An outdated handle is harmless."""
        cdef finished_t finished
        if not self.cancel_into(handle, &finished):
            return False
        hand_over(&finished, 1, [])
        return True

    def next_deadline(self):
        """Return the earliest time in ms at which `expire` may find something; None if nothing waits."""
        return self.wheel.next_deadline()

    cdef int64_t watch_parts(self, const part_t *parts, int64_t count, int64_t deadline_ms, PyObject *token,
                             int64_t tag) noexcept:
        cdef int64_t i = 0
        while i < count and covered(&parts[i]):
            i += 1
        if i == count:
            return COMPLETE
        cdef int32_t index = slots_take(&self.operations)
        if index == NO_SLOT:
            return NO_MEMORY
        cdef operation_t *operation = self.operation_at(index)
        operation[0] = operation_t(NO_SLOT, 0, 0, NULL, tag)
        cdef bint enlisted = True
        while i < count and enlisted:
            if not covered(&parts[i]):
                enlisted = self.enlist(index, parts[i].partition, parts[i].required_offset)
            i += 1
        cdef finished_t nothing
        if enlisted:
            operation.timer = self.wheel.add_timer(deadline_ms, index)
        if not enlisted or operation.timer < 0:
            self.finish(index, &nothing)
            return NO_MEMORY
        Py_XINCREF(token)
        operation.token = token
        return operation.timer

    cdef int64_t complete_into(self, int64_t partition, int64_t watermark, finished_t *finished,
                               int64_t limit) noexcept:
        cdef int32_t head = self.heads[self.place_of(partition)]
        if head == NO_SLOT:
            return 0
        cdef int32_t index = self.watch_at(head).next
        cdef int64_t count = 0
        cdef int64_t i
        cdef watch_t *part
        # First walk along the ring, and cut it once. Finished operations are kept in `finished`, with their index as
        # the tag.
        while index != head and count < limit:
            part = self.watch_at(index)
            if part.offset > watermark:
                break
            index = part.next
            part.previous = NO_SLOT
            self.watched -= 1
            self.operation_at(part.operation).waiting -= 1
            if self.operation_at(part.operation).waiting == 0:
                finished[count].tag = part.operation
                count += 1
        self.watch_at(head).next = index
        self.watch_at(index).previous = head
        for i in range(count):
            self.finish(<int32_t> finished[i].tag, finished + i)
        if self.watch_at(head).next == head:
            self.forget(head)
        return count

    cdef int64_t expire_into(self, int64_t now_ms, finished_t *finished, int64_t limit) noexcept:
        cdef int64_t expired[AT_ONCE]
        cdef int64_t count = 0
        cdef int64_t asked, got, i
        while count < limit:
            asked = min(<int64_t> AT_ONCE, limit - count)
            got = self.wheel.advance_into(now_ms, expired, asked)
            for i in range(got):
                self.finish(<int32_t> expired[i], finished + count + i)
            count += got
            if got < asked:
                break
        return count

    cdef bint cancel_into(self, int64_t handle, finished_t *finished) noexcept:
        cdef int64_t index
        if not self.wheel.find_timer(handle, &index):
            return False
        self.finish(<int32_t> index, finished)
        return True

    cdef inline watch_t *watch_at(self, int32_t index) noexcept:
        return <watch_t *> self.watches.base + index

    cdef inline operation_t *operation_at(self, int32_t index) noexcept:
        return <operation_t *> self.operations.base + index

    # Add a part to the operation and to its partition's ring; return False without memory.
    cdef bint enlist(self, int32_t operation, int64_t partition, int64_t required_offset) noexcept:
        cdef int32_t head = self.head_for(partition)
        if head == NO_SLOT:
            return False
        cdef int32_t index = slots_take(&self.watches)
        if index == NO_SLOT:
            if self.watch_at(head).next == head:
                self.forget(head)
            return False
        cdef int32_t previous = self.watch_at(head).previous
        while previous != head and self.watch_at(previous).offset > required_offset:
            previous = self.watch_at(previous).previous
        cdef int32_t next = self.watch_at(previous).next
        self.watch_at(index)[0] = watch_t(next, previous, operation, self.operation_at(operation).first,
                                          required_offset)
        self.watch_at(previous).next = index
        self.watch_at(next).previous = index
        self.operation_at(operation).first = index
        self.operation_at(operation).waiting += 1
        self.watched += 1
        return True

    # Take a part out of its ring; the head stays, even alone. Return the next part of the ring.
    cdef inline int32_t unlink(self, int32_t index) noexcept:
        cdef int32_t next = self.watch_at(index).next
        cdef int32_t previous = self.watch_at(index).previous
        self.watch_at(previous).next = next
        self.watch_at(next).previous = previous
        self.watch_at(index).previous = NO_SLOT
        self.watched -= 1
        return next

    # Finish the operation: remove it everywhere and hand over its token.
    cdef void finish(self, int32_t index, finished_t *finished) noexcept:
        cdef operation_t *operation = self.operation_at(index)
        cdef int32_t part = operation.first
        cdef int32_t sibling, next
        while part != NO_SLOT:
            sibling = self.watch_at(part).sibling
            if self.watch_at(part).previous != NO_SLOT:
                next = self.unlink(part)
                if self.watch_at(next).next == next:
                    self.forget(next)
            slots_give(&self.watches, part)
            part = sibling
        self.wheel.cancel_timer(operation.timer)
        finished[0] = finished_t(operation.token, operation.tag)
        operation.token = NULL
        operation.waiting = 0
        slots_give(&self.operations, index)

    cdef inline int32_t home_of(self, int64_t partition) noexcept:
        # Fibonacci hashing: the golden ratio spreads consecutive keys.
        return <int32_t> ((<uint64_t> partition * 0x9E3779B97F4A7C15ULL) >> (64 - self.head_bits))

    # Return the place of the partition's head in the table, or the free place where it belongs.
    cdef inline int32_t place_of(self, int64_t partition) noexcept:
        cdef int32_t last = (1 << self.head_bits) - 1
        cdef int32_t place = self.home_of(partition)
        while self.heads[place] != NO_SLOT and self.watch_at(self.heads[place]).offset != partition:
            place = (place + 1) & last
        return place

    # Return the partition's head, created if nothing waits there yet; NO_SLOT without memory.
    cdef int32_t head_for(self, int64_t partition) noexcept:
        cdef int32_t place = self.place_of(partition)
        cdef int32_t head = self.heads[place]
        if head != NO_SLOT:
            return head
        if (self.head_count + 1) * 2 > 1 << self.head_bits:
            if not self.resize_heads(self.head_bits + 1):
                return NO_SLOT
            place = self.place_of(partition)
        head = slots_take(&self.watches)
        if head == NO_SLOT:
            return NO_SLOT
        self.watch_at(head)[0] = watch_t(head, head, NO_SLOT, NO_SLOT, partition)
        self.heads[place] = head
        self.head_count += 1
        return head

    # Remove the head of a partition in which nothing waits.
    cdef void forget(self, int32_t head) noexcept:
        cdef int32_t last = (1 << self.head_bits) - 1
        cdef int32_t hole = self.place_of(self.watch_at(head).offset)
        cdef int32_t place = (hole + 1) & last
        cdef int32_t home
        # Move up entries that were displaced past the hole, so that a search never stops too early.
        while self.heads[place] != NO_SLOT:
            home = self.home_of(self.watch_at(self.heads[place]).offset)
            if ((place - home) & last) >= ((place - hole) & last):
                self.heads[hole] = self.heads[place]
                hole = place
            place = (place + 1) & last
        self.heads[hole] = NO_SLOT
        self.head_count -= 1
        slots_give(&self.watches, head)
        if self.head_bits > FEWEST_HEAD_BITS and self.head_count * 8 < 1 << self.head_bits:
            # If the smaller table cannot be allocated, keep the larger one.
            self.resize_heads(self.head_bits - 1)

    cdef bint resize_heads(self, int32_t bits) noexcept:
        cdef int32_t *larger = <int32_t *> calloc(<size_t> 1 << bits, sizeof(int32_t))
        cdef int32_t *old = self.heads
        cdef int64_t size = <int64_t> 1 << self.head_bits if old != NULL else 0
        cdef int64_t i
        if larger == NULL:
            return False
        self.heads = larger
        self.head_bits = bits
        for i in range(size):
            if old[i] != NO_SLOT:
                self.heads[self.place_of(self.watch_at(old[i]).offset)] = old[i]
        free(old)
        return True


cdef inline bint covered(const part_t *part) noexcept:
    if part.watermark == NULL:
        return False
    return (<Watermark> part.watermark).closed or (<Watermark> part.watermark).value >= part.required_offset


cdef inline PyObject *pointer_to(object token) noexcept:
    return NULL if token is None else <PyObject *> token


cdef int64_t check_handle(int64_t handle) except -1:
    if handle < 0:
        check(<int> handle, "watching")
    return handle


# Append the finished operations' tokens to `tokens`.
cdef int hand_over(finished_t *finished, int64_t count, list tokens) except -1:
    cdef int64_t i
    cdef object token
    for i in range(count):
        if finished[i].token == NULL:
            tokens.append(finished[i].tag)
        else:
            token = <object> finished[i].token
            Py_DECREF(token)
            tokens.append(token)
    return 0


# ---- garbage collection ---------------------------------------------------------------------------------
#
# Tokens are held by plain pointers, which the functions that Cython generates for the collector do not know. These
# show it the tokens, and drop them. The wheel, which refers to nothing, stays: so a purgatory that was cleared can
# still be called.

cdef int traverse(PyObject *self, visitproc visit, void *argument) except -1:
    cdef slots_t *operations = &(<Purgatory> self).operations
    cdef int32_t index
    cdef int result
    for index in range(1, operations.used):
        if (<operation_t *> operations.base + index).token != NULL:
            result = visit((<operation_t *> operations.base + index).token, argument)
            if result != 0:
                return result
    return traverse_attributes(self, visit, argument)


cdef int clear(object self) except -1:
    return let_go(<Purgatory> self)


# Drop all tokens. Their destructors may do anything, so no state is kept from one to the next.
cdef int let_go(Purgatory self) except -1:
    cdef int32_t index = 1
    cdef PyObject *token
    while index < self.operations.used:
        token = self.operation_at(index).token
        self.operation_at(index).token = NULL
        Py_XDECREF(token)
        index += 1
    return 0


cdef PyTypeObject *purgatory_type = <PyTypeObject *> Purgatory
cdef traverseproc traverse_attributes = purgatory_type.tp_traverse
assert traverse_attributes != NULL
purgatory_type.tp_traverse = traverse
purgatory_type.tp_clear = clear
