"""The positions of fields in the header of a batch (format v2), to read one field without reading the batch.

docs/FORMATS.md draws the header. The native core reads and writes whole headers. All fields are big-endian.
"""

from __future__ import annotations

HEADER_BYTES = 61
# The size of the base offset and the length, which the length itself does not count.
LOG_OVERHEAD_BYTES = 12

BASE_OFFSET = slice(0, 8)
LEADER_EPOCH = slice(12, 16)
# The low byte of the attributes, and its bit for batches of a transaction.
ATTRIBUTES = 22
TRANSACTIONAL = 0x10
LAST_OFFSET_DELTA = slice(23, 27)
PRODUCER_ID = slice(43, 51)
PRODUCER_EPOCH = slice(51, 53)
BASE_SEQUENCE = slice(53, 57)
# The producer id, the producer epoch and the first sequence number.
PRODUCER = slice(43, 57)
