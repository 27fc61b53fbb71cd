"""What a stock consumer read of a partition, and how a reading of kreplica's differs from it.

Needs no Java: this reads the files of JSON lines that make_fixtures wrote beside Kafka's log directories,
those under tests/data/kafka-4.3 among them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import kreplica

FIXTURES = Path(__file__).parents[1] / "data" / "kafka-4.3"


@dataclass(frozen=True)
class Digest:
    """Bytes too long to be written down: equal to any bytes of this length and SHA-256."""

    length: int
    sha256: str

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (bytes, bytearray, memoryview)):
            return len(other) == self.length and hashlib.sha256(other).hexdigest() == self.sha256
        return isinstance(other, Digest) and (self.length, self.sha256) == (other.length, other.sha256)

    __hash__ = None  # type: ignore[assignment]  # it would have to be that of the bytes


@dataclass(frozen=True)
class ExpectedRecord:
    """A record as the consumer returned it; `committed`: under read_committed too."""

    offset: int
    leader_epoch: int | None
    timestamp: int
    timestamp_type: str
    key: bytes | Digest | None
    value: bytes | Digest | None
    headers: list[tuple[str, bytes | None]]
    committed: bool


@dataclass(frozen=True)
class Expectation:
    """A partition as the consumer saw it.

    `begin`, `end` and `last_stable` are offsets (the last two exclusive); `for_times` are pairs of a
    timestamp and the offset that offsetsForTimes answered, None where no record is as late. `log` is the
    partition's directory.
    """

    log: Path
    begin: int
    end: int
    last_stable: int
    for_times: list[tuple[int, int | None]]
    records: list[ExpectedRecord]

    @property
    def committed(self) -> list[ExpectedRecord]:
        """The records that read_committed returns."""
        return [record for record in self.records if record.committed]


def expectations(directory: Path) -> list[Expectation]:
    """All of `directory` (a `clean` or `unclean` that make_fixtures wrote), by the partition's name."""
    return [_load(file, directory / "logs") for file in sorted((directory / "expected").iterdir())]


def expectation(directory: Path, partition: str) -> Expectation:
    """That of one partition, as "codec-gzip-0"."""
    return _load(directory / "expected" / f"{partition}.jsonl.gz", directory / "logs")


def copy_of(log: Path, target: Path) -> Path:
    """A copy of a partition's directory in `target`, with what its node's log directory says beside it."""
    target.mkdir(parents=True, exist_ok=True)
    for file in log.parent.iterdir():
        if file.is_file():
            shutil.copy(file, target)
    return Path(shutil.copytree(log, target / log.name))


def differences(log: kreplica.Log, expected: Expectation) -> list[str]:
    """How the log's reading differs from the consumer's, in both isolation levels, and how its offsets do;
    [] where nothing does."""
    ours = (log.log_start_offset, log.log_end_offset, log.last_stable_offset)
    theirs = (expected.begin, expected.end, expected.last_stable)
    found = [] if ours == theirs else [f"{expected.log.name}: offsets {ours} are not {theirs}"]
    found += _differences_by_time(log, expected)
    for isolation, records in (("log_end", expected.records), ("txn_committed", expected.committed)):
        readings = itertools.zip_longest(log.read(start=expected.begin, isolation=isolation), records)
        for ours, theirs in readings:
            if ours is None or theirs is None or _facts(ours) != _facts(theirs):
                found.append(f"{expected.log.name}, {isolation}: {ours} is not {theirs}")
                break
    return found


def _differences_by_time(log: kreplica.Log, expected: Expectation) -> list[str]:
    found = []
    for timestamp, theirs in expected.for_times:
        answer = log.offset_for_timestamp(timestamp)
        ours = None if answer is None else answer.offset
        # Kafka knows no answer where a segment is there still, but lies below the log's start as a whole.
        passed_over = theirs is None and ours == expected.begin > 0
        if ours != theirs and not passed_over:
            found.append(f"{expected.log.name}: at {timestamp} there is {ours}, not {theirs}")
    return found


def _facts(record: Any) -> tuple[object, ...]:
    """What both kinds of record say of themselves."""
    when = (record.timestamp, record.timestamp_type)
    return (record.offset, *when, record.key, record.value, list(record.headers))


def _load(file: Path, logs: Path) -> Expectation:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        facts = json.loads(next(lines))
        records = [_record(json.loads(line)) for line in lines]
    for_times = [(timestamp, offset) for timestamp, offset in facts["for_times"]]
    log = logs / facts["partition"]
    return Expectation(log, facts["begin"], facts["end"], facts["last_stable"], for_times, records)


def _record(line: dict[str, Any]) -> ExpectedRecord:
    headers: Iterable[tuple[str, str | None]] = line.pop("headers")
    key, value = _bytes(line.pop("key")), _bytes(line.pop("value"))
    decoded = [(name, None if value is None else base64.b64decode(value)) for name, value in headers]
    return ExpectedRecord(key=key, value=value, headers=decoded, **line)


def _bytes(value: str | dict[str, Any] | None) -> bytes | Digest | None:
    if isinstance(value, dict):
        return Digest(**value)
    return None if value is None else base64.b64decode(value)
