"""The file names of snapshots in the metadata log's directory, which are Kafka's.

00000000000000004711-0000000003.checkpoint           all below offset 4711, the last record of epoch 3
00000000000000004711-0000000003-7.checkpoint.part    being written
00000000000000004711-0000000003.checkpoint.deleted   about to be removed by Kafka
"""

from __future__ import annotations

import re

from kreplica.common.types import INT32_MAX, INT64_MAX
from kreplica.metadata.image_format import OffsetAndEpoch

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"

_FROZEN = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_LEFT = re.compile(r"\d{20}-\d{10}.*\.checkpoint\.(part|deleted)", re.ASCII)


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """Return the file name of a frozen snapshot."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


def partial_name(snapshot_id: OffsetAndEpoch, number: int) -> str:
    """Return the file name of a snapshot that is being written, the `number`th of its process."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}-{number}{PARTIAL_SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """Return the id of a frozen snapshot, or None for any other name."""
    found = _FROZEN.fullmatch(name)
    if found is None or int(found[1]) > INT64_MAX or int(found[2]) > INT32_MAX:
        return None
    return OffsetAndEpoch(int(found[1]), int(found[2]))


def is_left_over(name: str) -> bool:
    """Whether a crash left the file, while a snapshot was being written or removed."""
    return _LEFT.fullmatch(name) is not None
