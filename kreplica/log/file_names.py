"""The names of a log's files, as Kafka gives them: the base offset in twenty digits and what the file is."""

from __future__ import annotations

import re

from kreplica.common.errors import InvalidTopic
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
# The metadata log's directory, which belongs to the quorum alone.
CLUSTER_METADATA_DIRECTORY = "__cluster_metadata-0"
# And those of the partitions with the offsets of consumer groups, but for their number.
CONSUMER_OFFSETS_DIRECTORY = "__consumer_offsets-"
# The copy of a log that is moved into this log directory.
FUTURE_DIRECTORY_SUFFIX = "-future"
# A partition's directory that no topic of the cluster has any more, moved aside.
STRAY_DIRECTORY_SUFFIX = "-stray"
# Kafka removes every file with the suffix .deleted before it loads a log. So it removes this one, and a state
# that Kafka's own appends and cuts would make untrue never outlives them.
STATE_FILE = "kreplica.state.deleted"
# The ranges that are known to have rotted in a log that goes on; Kafka passes over it.
DAMAGE_FILE = "kreplica.damage.json"
# The settings of a log that is opened by itself; Kafka passes over it.
SETTINGS_FILE = "kreplica.settings.json"
# Bytes that recovery cut from a segment's tail are kept in <base offset>.log.<position>.cut.
CUT_SUFFIX = ".cut"
# Bytes that a repair took out of a segment are kept in <base offset>.log.<position>.rot, and .rot.json says
# what they were.
ROT_SUFFIX = ".rot"

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> tuple[int, str] | None:
    """(base offset, suffix) of a segment's file, or None for any other name."""
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def check_topic(topic: str) -> str:
    """The topic's name if Kafka allows it, else InvalidTopic."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopic(
            f"topic {topic!r}: 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-', and neither '.' nor '..'"
        )
    return topic


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory of this name holds, or None."""
    found = _DIRECTORY.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found else None
