from enum import IntEnum

class Stop(IntEnum):
    DONE = 0
    MORE = 1
    TARGET_FULL = 2
    MAP_FULL = 3
    DECISION = 4

class BatchWalk:
    position: int
    bytes_read: int
    records_read: int
    batches_read: int
    next_offset: int
