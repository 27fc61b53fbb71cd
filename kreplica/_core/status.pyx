"""Status codes of the native core, and the only place where the core raises.

The core does not know Kafka's error classes: `kreplica.common.errors` installs a factory that creates the exception
for a code. Thread rule: `install` is called once, on import, under the GIL.
"""

from libc.stdint cimport int64_t

import errno as _errno

# The name of each code, for messages and for the table in common/errors.
NAMES = {
    SHORT_INPUT: "SHORT_INPUT", BAD_BATCH_LENGTH: "BAD_BATCH_LENGTH", BAD_MAGIC: "BAD_MAGIC",
    BAD_CRC: "BAD_CRC", BAD_RECORD_COUNT: "BAD_RECORD_COUNT", BAD_RECORD_LENGTH: "BAD_RECORD_LENGTH",
    BAD_HEADER_COUNT: "BAD_HEADER_COUNT", BAD_OFFSET_DELTA: "BAD_OFFSET_DELTA",
    OFFSET_OVERFLOW: "OFFSET_OVERFLOW", OFFSET_REGRESSION: "OFFSET_REGRESSION",
    EPOCH_REGRESSION: "EPOCH_REGRESSION", UNKNOWN_CODEC: "UNKNOWN_CODEC", BAD_VARINT: "BAD_VARINT",
    BAD_COMPRESSED_DATA: "BAD_COMPRESSED_DATA", DECOMPRESSION_TOO_LARGE: "DECOMPRESSION_TOO_LARGE",
    TRAILING_BYTES: "TRAILING_BYTES", BAD_TIMESTAMP: "BAD_TIMESTAMP",
    BAD_CONTROL_RECORD: "BAD_CONTROL_RECORD", BATCH_TOO_LARGE: "BATCH_TOO_LARGE",
    BAD_ATTRIBUTES: "BAD_ATTRIBUTES", BAD_PRODUCER_FIELDS: "BAD_PRODUCER_FIELDS",
    CONTROL_FROM_CLIENT: "CONTROL_FROM_CLIENT", EMPTY_BATCH: "EMPTY_BATCH", BAD_MESSAGE: "BAD_MESSAGE",
    EPOCH_MISMATCH: "EPOCH_MISMATCH",
    STORAGE_FULL: "STORAGE_FULL", IO_FAILED: "IO_FAILED", PAGE_FAULT: "PAGE_FAULT",
    OUT_OF_MAPS: "OUT_OF_MAPS", OUT_OF_DESCRIPTORS: "OUT_OF_DESCRIPTORS", NO_MEMORY: "NO_MEMORY",
    CLOSED: "CLOSED", READ_ONLY: "READ_ONLY", FORKED: "FORKED", OUT_OF_RANGE: "OUT_OF_RANGE",
    PINNED: "PINNED", BAD_INDEX: "BAD_INDEX",
}

cdef object _factory = None


def install(factory):
    """Use `factory(status: int, what: str, where: int) -> BaseException` for every error from now on."""
    global _factory
    _factory = factory


def status_of_errno(int number):
    """Return the status for the errno of a failed file operation."""
    if number in (_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG):
        return STORAGE_FULL
    if number in (_errno.EMFILE, _errno.ENFILE):
        return OUT_OF_DESCRIPTORS
    if number == _errno.ENOMEM:
        return NO_MEMORY
    return IO_FAILED


cdef int check(int status, str what, int64_t where=-1) except? -128:
    if status >= 0:
        return status
    if _factory is None:
        raise RuntimeError(f"{NAMES.get(status, status)} while {what} at {where}")
    raise _factory(status, what, where)


def raise_status(int status, str what, int64_t where=-1):
    """Raise the exception for a negative `status`, or return any other one; for Python callers."""
    return check(status, what, where)
