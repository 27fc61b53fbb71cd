"""Read and write Kafka's checkpoint files: small text files of rows, replaced as a whole.

    0                     the format's version
    2                     the number of rows
    orders 0 4711         one row a line; its fields separated by one space
    orders 1 815

Every line ends with a newline, so the last line or the row count reveals a file that was cut short. Kafka's
format has no checksum. Reading checks what the text allows (numbers, ranges, order, duplicates), and
InvalidFile gives the file and the line. A missing file means no rows. So does an empty one, which Kafka
leaves until it first writes a checkpoint.

Thread rule: the objects hold only the path. The owner reads and writes from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kreplica.common.errors import InvalidFile
from kreplica.common.types import INT32_MAX, INT64_MAX, TopicPartition, check_topic_name
from kreplica.log.small_file import SmallFile

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

VERSION = 0

# The checkpoints of a log directory: how far each partition is flushed, replicated, deleted and cleaned.
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"

# The checkpoint in each partition's directory.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of the first record written in it."""

    epoch: int
    start_offset: int


def format_rows(rows: Iterable[str]) -> bytes:
    """Return the bytes of a checkpoint file with these rows."""
    lines = list(rows)
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode("utf-8")


def parse_rows(data: bytes, path: str) -> list[str]:
    """Return the unparsed rows of a checkpoint file. Raises InvalidFile with `path` and the bad line."""
    if not data:
        return []
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise _invalid(path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    if lines.pop() != "":
        raise _invalid(path, len(lines) + 1, "is cut short: it does not end with a newline")
    if lines[0] != str(VERSION):
        raise _invalid(path, 1, f"says version {lines[0][:20]!r}, not {VERSION}")
    if len(lines) < 2:
        raise _invalid(path, 2, "is missing: the number of rows")
    count = _number(lines[1], INT32_MAX, path, 2)
    if len(lines) - 2 != count:
        raise _invalid(path, 2, f"says {count} rows, but {len(lines) - 2} are there")
    return lines[2:]


class OffsetCheckpointFile:
    """A file with one offset per partition of a log directory: rows of topic, partition, offset."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        """Return all offsets, in the file's order. Raises InvalidFile."""
        return self.parse(_read(self._storage, self.path), self.path)

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file durably."""
        self._storage.write_file_atomically(self.path, self.format(offsets))

    @staticmethod
    def format(offsets: Mapping[TopicPartition, int]) -> bytes:
        return format_rows(f"{check_topic_name(t)} {p} {offset}" for (t, p), offset in offsets.items())

    @staticmethod
    def parse(data: bytes, path: str) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        for line, row in enumerate(parse_rows(data, path), start=3):
            topic, partition, offset = _fields(row, 3, path, line)
            key = TopicPartition(topic, _number(partition, INT32_MAX, path, line))
            if not topic or key in offsets:
                raise _invalid(path, line, f"has the partition {key} again" if topic else "has no topic")
            offsets[key] = _number(offset, INT64_MAX, path, line)
        return offsets


class LeaderEpochCheckpointFile(SmallFile[Iterable[EpochEntry]]):
    """A file with the leader epochs of one partition: rows of epoch, start offset, both strictly
    increasing."""

    __slots__ = ()

    NAME = LEADER_EPOCH_CHECKPOINT

    def read(self) -> list[EpochEntry]:
        """Return all entries, oldest first. Raises InvalidFile."""
        return list(super().read() or ())

    @staticmethod
    def format(content: Iterable[EpochEntry]) -> bytes:
        return format_rows(f"{epoch} {start_offset}" for epoch, start_offset in content)

    @staticmethod
    def parse(data: bytes, path: str) -> list[EpochEntry]:
        entries: list[EpochEntry] = []
        for line, row in enumerate(parse_rows(data, path), start=3):
            epoch, start_offset = _fields(row, 2, path, line)
            new = EpochEntry(
                _number(epoch, INT32_MAX, path, line), _number(start_offset, INT64_MAX, path, line)
            )
            if entries and not (
                new.epoch > entries[-1].epoch and new.start_offset > entries[-1].start_offset
            ):
                raise _invalid(path, line, f"does not follow the line before it: {row!r}")
            entries.append(new)
        return entries


def _read(storage: Storage, path: str) -> bytes:
    return storage.read_file(path) if storage.exists(path) else b""


def _fields(row: str, count: int, path: str, line: int) -> list[str]:
    fields = row.split(" ")
    if len(fields) != count:
        raise _invalid(path, line, f"has {len(fields)} fields, not {count}: {row[:80]!r}")
    return fields


def _number(text: str, most: int, path: str, line: int) -> int:
    """Parse a decimal number from 0 to `most`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or int(text) > most:
        raise _invalid(path, line, f"has no number from 0 to {most} where one belongs: {text[:40]!r}")
    return int(text)


def _invalid(path: str, line: int, what: str) -> InvalidFile:
    return InvalidFile(f"{path}: line {line} {what}", where=line)
