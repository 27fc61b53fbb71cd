# Slots: records of one size in one growing array, named by their index.
#
# What waits (timers, operations, what they watch) comes and goes by the million, so nothing here costs an
# allocation of its own: the index of a slot that is given back is the next to be taken, and the array
# doubles when there is none. When the last slot comes back the array starts over in ascending order, and at
# half its size if no more than a quarter of it was in use since the last time; so memory follows the load
# down as well.
#
# Ownership: the owner of a slots_t calls slots_open once and slots_close once. The indexes below `reserved`
# are its own, and always there. An index stays valid until it is given back; a pointer to a slot only until
# the next slots_take or slots_give, which may move the array. The bytes of a free slot stay as they are
# until the array starts over.
# Thread rule: none of its own; what guards the owner guards its slots.

from libc.stdint cimport int32_t, int64_t

cdef extern from "slots.h" nogil:
    enum:
        NO_SLOT          # 0: that index is always reserved, so that it can stand for none
        FEWEST_SLOTS

    ctypedef struct slots_t:
        char *base
        int32_t used     # slots that are taken lie below this index

    # False when there is no memory. `reserved` is at least 1. `limit`, at least reserved + FEWEST_SLOTS, is
    # the size past which the array never grows.
    bint slots_open(slots_t *slots, int64_t slot_bytes, int32_t reserved, int32_t limit)
    void slots_close(slots_t *slots)
    # How many are out there, the reserved ones not counted.
    int32_t slots_taken(const slots_t *slots)
    int64_t slots_allocated_bytes(const slots_t *slots)
    # The index of a slot whose bytes mean nothing yet; NO_SLOT at the limit, or when there is no memory.
    int32_t slots_take(slots_t *slots)
    void slots_give(slots_t *slots, int32_t index)
