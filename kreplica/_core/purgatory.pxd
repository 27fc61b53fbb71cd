# Purgatory: holds operations until a watermark has reached what they need. Waiting is data, not callbacks. A produce
# with acks=all waits for the high watermark of each of its partitions, a deletion of records for the low watermark.
#
# A partition with waiting operations has a ring of parts, ordered by their required offsets, and a head that a hash
# table finds by the partition's key; a partition without waiting operations has neither. An operation has a part for
# each of its partitions, and a timer:
#
#    partition 7  head <-> part 90 <-> part 95 <-> part 99 <-> (head)
#                             |          |
#    partition 9  head <-> part 12 <-> (head)
#                             |          |
#                       operation A   operation B        each with its token, its tag and its timer
#
# Offsets mostly arrive in ascending order: a part finds its place from the end of the ring, in as many steps as parts
# with a greater offset came before it. All other operations take constant time. An operation that is done, for
# whatever reason, leaves every ring and the timing wheel in the same call: there are no completed operations to purge,
# and none stays after its deadline. A part that is done leaves its ring at once; its 24 bytes belong to its operation
# until that is done.
#
# No wake-up is lost: `watch` checks the partition's Watermark itself, under the lock. A caller that moves the mark
# first advances the Watermark and then calls complete_to. If that came before the watch, the watch sees the mark and
# returns COMPLETE; if not, complete_to finds the waiting operation. The same holds for the end of a leadership: close
# the Watermark, then call `fail`. So a Watermark also decides about each part of a finished operation, because a closed
# one never moves again: committed if value >= required offset; else the leadership ended if it is closed; else the
# deadline has passed.
#
# Ownership: the purgatory holds one reference to each token while the operation waits, and hands over that reference
# with the finished_t. It shows tokens to the garbage collector, so a token may refer back to the purgatory's owner.
# Thread rule: the GIL is the lock, for both Purgatory and Watermark. No function here releases it, or runs foreign
# code, between its first read and its last change; none is declared nogil, so the compiler makes native callers hold
# it. (A separate lock would cost as much as all the rest of an operation, and without the GIL a token cannot change
# owners safely with respect to the garbage collector.)

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kreplica._core.slots cimport slots_t
from kreplica._core.timing_wheel cimport TimingWheel

cdef enum:
    COMPLETE = 0                       # not a handle: there is nothing to wait for
    MAX_WAITING = 1 << 26              # limit for operations, and for parts together with heads

cdef struct watch_t:                   # 24 bytes: a part, or the head of a partition's ring
    int32_t next
    int32_t previous                   # NO_SLOT: the part is done and in no ring
    int32_t operation                  # NO_SLOT in a head
    int32_t sibling                    # the operation's next part, or NO_SLOT
    int64_t offset                     # required offset; in a head: the partition's key

cdef struct operation_t:               # 32 bytes
    int32_t first                      # its parts, linked by `sibling`
    int32_t waiting                    # number of parts that are not done
    int64_t timer                      # its handle in the timing wheel, which also identifies the operation
    PyObject *token                    # owned; NULL: none, or a free slot
    int64_t tag

cdef struct part_t:
    int64_t partition
    int64_t required_offset
    PyObject *watermark                # a Watermark, borrowed for the call; NULL: the caller has checked it

cdef struct finished_t:
    PyObject *token                    # the receiver owns the reference; NULL: none
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
    cdef readonly int64_t watched      # number of waiting parts
    # For the owner's use: when its alarm for the next deadline rings, and whether it takes no more operations.
    cdef public int64_t armed_ms
    cdef public bint closed

    # Wait for all parts; return the operation's handle (positive), COMPLETE, or NO_MEMORY (also past MAX_WAITING). If
    # it returns a handle, the purgatory has taken its own reference to `token` (may be NULL).
    cdef int64_t watch_parts(self, const part_t *parts, int64_t count, int64_t deadline_ms, PyObject *token,
                             int64_t tag) noexcept
    # Return the tokens of what is done when `partition` reaches `watermark`.
    cpdef list complete_to(self, int64_t partition, int64_t watermark)
    # The next two write finished operations to `finished`, at most `limit` (at least 1), and return their number. If
    # that is `limit` there may be more: call again. Finish the parts of `partition` that require at most `watermark`,
    # in the order of their offsets.
    cdef int64_t complete_into(self, int64_t partition, int64_t watermark, finished_t *finished,
                               int64_t limit) noexcept
    # Finish the operations whose deadline has passed, in the order of their deadlines.
    cdef int64_t expire_into(self, int64_t now_ms, finished_t *finished, int64_t limit) noexcept
    # Finish the operation and return True, if it was waiting.
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
