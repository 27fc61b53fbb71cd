# Purgatory: where operations wait until a watermark has reached what they need. Waiting is data, not
# callbacks. A produce with acks=all waits for the high watermark of each of its partitions, a deletion of
# records for the low one.
#
# A partition in which something waits has a ring of parts, in the order of the offsets they require, and a
# head that a hash table finds by the partition's key; one in which nothing waits has neither. An operation
# has a part for each of its partitions, and a timer:
#
#    partition 7  head <-> part 90 <-> part 95 <-> part 99 <-> (head)
#                             |          |
#    partition 9  head <-> part 12 <-> (head)
#                             |          |
#                       operation A   operation B        each with its token, its tag and its timer
#
# Offsets mostly come ascending: a part finds its place from the ring's end, in as many steps as parts with
# a greater offset came before it. Everything else takes the same time for any number that waits. An
# operation that is done, for whatever reason, leaves every ring and the timing wheel in the same call:
# there are no completed operations to be purged, and none is left behind once its deadline has expired. A
# part that is done leaves its ring at once; its 24 bytes are its operation's until that is done.
#
# No wake-up is lost: `watch` looks at the partition's Watermark itself, under the lock. Who moves the mark
# advances the Watermark first and calls complete_to after it. If that came before the watch, the watch sees
# the mark and returns COMPLETE; if not, complete_to finds what is waiting. The same holds for the end of a
# leadership: close the Watermark, then call `fail`. So a Watermark is also the last word on each part of an
# operation that is done, for a closed one never moves again: committed where value >= required offset; else
# the leadership ended where it is closed; else the deadline has passed.
#
# Ownership: the purgatory holds one reference to each token while the operation waits, and hands that very
# reference over with the finished_t. It shows them to the garbage collector, so a token may well refer back
# to the purgatory's owner.
# Thread rule: the GIL is the lock, for Purgatory and Watermark both. No function here lets go of it, or
# runs foreign code, between its first look and its last change; none is declared nogil, so the compiler
# holds native callers to it. (A lock of its own costs as much as all the rest of an operation, and a token
# cannot change hands beside the collector without the GIL.)

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kreplica._core.slots cimport slots_t
from kreplica._core.timing_wheel cimport TimingWheel

cdef enum:
    COMPLETE = 0                       # no handle: there is nothing to wait for
    MAX_WAITING = 1 << 26              # operations, and their parts with the partitions' heads

cdef struct watch_t:                   # 24 bytes: a part, or the head of a partition's ring
    int32_t next
    int32_t previous                   # NO_SLOT: the part is done, and in no ring
    int32_t operation                  # NO_SLOT in a head
    int32_t sibling                    # the operation's next part, or NO_SLOT
    int64_t offset                     # required offset; in a head: the partition's key

cdef struct operation_t:               # 32 bytes
    int32_t first                      # its parts, linked by `sibling`
    int32_t waiting                    # how many are not done
    int64_t timer                      # its handle in the timing wheel, which names the operation too
    PyObject *token                    # owned; NULL: none, or a free slot
    int64_t tag

cdef struct part_t:
    int64_t partition
    int64_t required_offset
    PyObject *watermark                # a Watermark, borrowed for the call; NULL: the caller has looked

cdef struct finished_t:
    PyObject *token                    # the reference is the receiver's; NULL: none
    int64_t tag


@cython.final
cdef class Watermark:
    cdef readonly int64_t value
    cdef readonly bint closed


@cython.final
cdef class Purgatory:
    cdef readonly TimingWheel wheel
    cdef slots_t operations
    cdef slots_t watches
    cdef int32_t *heads                # open addressing, linear probing: indexes of heads, or NO_SLOT
    cdef int32_t head_bits             # the table has 2**head_bits places
    cdef int32_t head_count
    cdef readonly int64_t watched      # parts that wait

    # Wait for all parts: the operation's handle (positive), COMPLETE, or NO_MEMORY (also past MAX_WAITING).
    # The purgatory takes a reference to `token` (may be NULL) of its own if it returns a handle.
    cdef int64_t watch_parts(self, const part_t *parts, int64_t count, int64_t deadline_ms, PyObject *token,
                             int64_t tag) noexcept
    # The next two write what they finish to `finished`, at most `limit` (at least 1), and return the number
    # written. At `limit` there may be more: call again until it is less.
    # All parts of `partition` that require no more than `watermark`, in the order of their offsets.
    cdef int64_t complete_into(self, int64_t partition, int64_t watermark, finished_t *finished,
                               int64_t limit) noexcept
    # All operations whose deadline has passed, in the order of their deadlines.
    cdef int64_t expire_into(self, int64_t now_ms, finished_t *finished, int64_t limit) noexcept
    # True, and the operation, if it was waiting.
    cdef bint cancel_into(self, int64_t handle, finished_t *finished) noexcept

    cdef watch_t *watch_at(self, int32_t index) noexcept
    cdef operation_t *operation_at(self, int32_t index) noexcept
    cdef bint enlist(self, int32_t operation, int64_t partition, int64_t required_offset) noexcept
    cdef int32_t unlink(self, int32_t index) noexcept
    cdef void finish(self, int32_t operation, finished_t *finished) noexcept
    cdef int32_t home_of(self, int64_t partition) noexcept
    cdef int32_t place_of(self, int64_t partition) noexcept
    cdef int32_t head_for(self, int64_t partition) noexcept
    cdef void forget(self, int32_t head) noexcept
    cdef bint resize_heads(self, int32_t bits) noexcept
