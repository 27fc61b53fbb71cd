# Slots: fixed-size records in one growing array, identified by their index.
#
# Waiting objects (timers, operations, what they watch) come and go by the million, so none of them costs an allocation
# of its own. The index of a slot that is given back is the next one taken, and the array doubles when it is full.
# When the last slot is given back, the array starts over in ascending order, and at half its size if at most a quarter
# of it was in use since the last time. So memory also follows the load down.
#
# Ownership: the owner of a slots_t calls slots_open once and slots_close once. The indexes below `reserved` belong to
# the owner and always exist. An index stays valid until it is given back; a pointer to a slot stays valid only until
# the next slots_take or slots_give, which may move the array. The bytes of a free slot do not change until the array
# starts over.
# Thread rule: none of its own; the lock that guards the owner guards its slots.

from libc.stdint cimport int32_t, int64_t

cdef extern from "slots.h" nogil:
    enum:
        NO_SLOT          # 0: this index is always reserved, so that it can represent no slot
        FEWEST_SLOTS

    ctypedef struct slots_t:
        char *base
        int32_t used     # taken slots lie below this index

    # Return False if there is no memory. `reserved` is at least 1. The array never grows beyond `limit`, which is at
    # least reserved + FEWEST_SLOTS.
    bint slots_open(slots_t *slots, int64_t slot_bytes, int32_t reserved, int32_t limit)
    void slots_close(slots_t *slots)
    # Return the number of taken slots, without the reserved ones.
    int32_t slots_taken(const slots_t *slots)
    int64_t slots_allocated_bytes(const slots_t *slots)
    # Return the index of a slot with undefined contents, or NO_SLOT at the limit or if there is no memory.
    int32_t slots_take(slots_t *slots)
    void slots_give(slots_t *slots, int32_t index)
