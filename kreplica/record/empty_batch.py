"""Builds a batch without records, which covers offsets whose records are gone.

Kafka's compaction leaves such batches where a header is still needed; every reader skips them.
"""

from __future__ import annotations

import struct

from kreplica._core.crc32c import checksum
from kreplica.common.types import INT32_MAX

# See docs/FORMATS.md: the fields before the CRC, and the fields that it covers.
_BEFORE_CRC = struct.Struct(">qiib")
_COVERED = struct.Struct(">hiqqqhii")
_CRC = struct.Struct(">I")
_LENGTH = _CRC.size + _COVERED.size + 5  # the batch length also counts leader epoch and magic


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Build a batch without producer and timestamp for the offsets from `base_offset` to `last_offset`.

    Raises ValueError for no offsets, or more than 2^31.
    """
    delta = last_offset - base_offset
    if not 0 <= delta <= INT32_MAX:
        raise ValueError(f"a batch cannot cover the offsets from {base_offset} to {last_offset}")
    covered = _COVERED.pack(0, delta, -1, -1, -1, -1, -1, 0)
    head = _BEFORE_CRC.pack(base_offset, _LENGTH, leader_epoch, 2)
    return head + _CRC.pack(checksum(covered)) + covered
