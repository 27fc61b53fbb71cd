"""The names of a log's files, as in Kafka: the base offset in twenty digits, and a suffix for the kind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from kreplica.common.types import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_DIRECTORY_SUFFIX = "-delete"
# The directory of the metadata log, which the quorum owns.
CLUSTER_METADATA_DIRECTORY = "__cluster_metadata-0"
# The prefix of the directories of the partitions with the offsets of consumer groups.
CONSUMER_OFFSETS_DIRECTORY = "__consumer_offsets-"
# The copy of a log that is being moved to this log directory.
FUTURE_DIRECTORY_SUFFIX = "-future"
# The directory of a stray partition, which belongs to no topic of the cluster, set aside.
STRAY_DIRECTORY_SUFFIX = "-stray"
# The suffix makes Kafka remove the file before it loads a log. So the state never outlives appends and
# truncations by Kafka, which would make it untrue.
STATE_FILE = "kreplica.state.deleted"
# The known damaged ranges of a running log. Kafka ignores this file.
DAMAGE_FILE = "kreplica.damage.json"
# The settings of a log that is opened without a node. Kafka ignores this file.
SETTINGS_FILE = "kreplica.settings.json"
# Recovery keeps the bytes of a truncated tail in <base offset>.log.<position>.cut.
CUT_SUFFIX = ".cut"
# A repair keeps the bytes that it removed from a segment in <base offset>.log.<position>.rot, and describes
# them in .rot.json.
ROT_SUFFIX = ".rot"

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)", re.ASCII)
_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) of a segment file, or None for any other name."""
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def segment_bases(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments among the files `names`, sorted; none without a log."""
    found = map(parse_file_name, names)
    return sorted(each[0] for each in found if each is not None and each[1] == LOG_SUFFIX)


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose directory has this name, or None."""
    found = _DIRECTORY.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found else None


def partition_of(directory: str) -> TopicPartition:
    """Return the partition that a directory is named after; for another name, partition 0 of such a topic."""
    name = os.path.basename(directory)
    return parse_directory_name(name) or TopicPartition(name, 0)
