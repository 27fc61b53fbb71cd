# Status: the result of every hot function of the core. Zero is success, positive values are outcomes that the caller
# acts on, negative values are errors. Hot functions are `noexcept nogil` and return one of these; a module's Python
# functions call `check`, the only place where the core raises.

from libc.stdint cimport int64_t

cdef enum Status:
    OK = 0
    # Outcomes
    END = 1                       # nothing (more) here: the end of a batch, a log, an index
    NEEDS_ROLL = 2                # the active segment must be rolled before this append
    NEEDS_GROWTH = 3              # the region must be grown before this append
    NEEDS_LOOK = 5                # a scan met a batch that its caller must look at
    FULL = 4                      # an index or a table has no slot left
    HELD = 6                      # not done, because what must come before it was not done
    # Malformed records and batches (Kafka: CORRUPT_MESSAGE, and friends)
    SHORT_INPUT = -1              # a field extends past the end of the input
    BAD_BATCH_LENGTH = -2         # below the header, negative, or past the end of the file
    BAD_MAGIC = -3                # magic 0 or 1 (refused), or no known magic
    BAD_CRC = -4
    BAD_RECORD_COUNT = -5         # negative, huge, or different from the number of records
    BAD_RECORD_LENGTH = -6        # a record, key, value or header length out of bounds
    BAD_HEADER_COUNT = -7
    BAD_OFFSET_DELTA = -8         # deltas not 0, 1, 2 ..., or different from lastOffsetDelta
    OFFSET_OVERFLOW = -9          # base offset + delta leaves int64, or the segment's int32 range
    OFFSET_REGRESSION = -10       # a batch starts below the log's end
    EPOCH_REGRESSION = -11
    UNKNOWN_CODEC = -12
    BAD_VARINT = -13              # longer than 5 (10) bytes
    BAD_COMPRESSED_DATA = -14     # a codec's stream is corrupt or truncated
    DECOMPRESSION_TOO_LARGE = -15  # more than the caller's limit
    TRAILING_BYTES = -16
    BAD_TIMESTAMP = -17
    BAD_CONTROL_RECORD = -18
    BATCH_TOO_LARGE = -19
    BAD_ATTRIBUTES = -20
    BAD_PRODUCER_FIELDS = -21     # a producer id without an epoch or a sequence number
    CONTROL_FROM_CLIENT = -22     # only the coordinator and the controller write control batches
    EMPTY_BATCH = -23             # no record to build a batch from
    BAD_MESSAGE = -24             # a message of the protocol that cannot be read or written
    EPOCH_MISMATCH = -25          # a batch with a leader epoch other than the log's for its offset
    # Storage
    STORAGE_FULL = -40            # ENOSPC, EDQUOT, EFBIG
    IO_FAILED = -41               # errno is in the detail
    PAGE_FAULT = -42              # a mapped page is not available: SIGBUS, turned into this
    OUT_OF_MAPS = -43             # the map budget is exhausted; use pread instead
    OUT_OF_DESCRIPTORS = -44
    NO_MEMORY = -45
    # Use
    CLOSED = -60
    READ_ONLY = -61
    FORKED = -62                  # the region was opened by the parent process
    OUT_OF_RANGE = -63            # a position, an offset or a size outside its bounds
    PINNED = -64                  # a slice of what was to change is in use
    BAD_INDEX = -65               # an index that does not fit its segment


# Raise the exception for a negative `status`, with the place where it happened. Returns any other `status`, so that a
# call reads `check(f(...), "appending", position)`.
cdef int check(int status, str what, int64_t where=*) except? -128
