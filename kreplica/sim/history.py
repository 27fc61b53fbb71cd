"""History: what clients did and the responses they got, and which guarantees of a log they violate.

A process is a client that does one operation after the other. An operation is `ok` if it was answered, `fail`
if it certainly did not happen, `info` if the outcome is unknown. Values are unique in a history.

`check` names anomalies as Jepsen's workload for Kafka does. All are derived from what clients saw, so it
works for any cluster: simulated, real processes, or another implementation.

     inconsistent-offsets   one offset held two values
     G1a                    a poll returned the value of a failed send
     lost-write             an acknowledged or read value below the highest read offset is gone
     duplicate              a value is at two offsets
     unseen                 an acknowledged value is missing in the final read
     poll-skip              a process did not get a record between two records that it got
     nonmonotonic-poll      a process got a record after a later one
     nonmonotonic-send      a process's later value got an earlier offset

The messages are immutable; a History belongs to one thread.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kreplica.common.dataclass import dataclass, field
from kreplica.common.types import TopicPartition

Status = Literal["ok", "info", "fail"]


class Sent(NamedTuple):
    """A value of a send; `offset` is None if unknown."""

    partition: TopicPartition
    value: Hashable
    offset: int | None = None


class Polled(NamedTuple):
    """A record of a poll, in the order of delivery."""

    partition: TopicPartition
    offset: int
    value: Hashable


@dataclass(frozen=True, slots=True)
class Send:
    """A process sent these values, in this order."""

    process: Hashable
    status: Status
    values: Sequence[Sent]


@dataclass(frozen=True, slots=True)
class Poll:
    """A process polled; only an `ok` poll has records."""

    process: Hashable
    records: Sequence[Polled]
    status: Status = "ok"


@dataclass(frozen=True, slots=True)
class Assign:
    """A process starts to read at other positions: its next polls have no order with the earlier ones.

    `partitions`: those it starts anew; None means all.
    """

    process: Hashable
    partitions: Sequence[TopicPartition] | None = None


Operation = Send | Poll | Assign


@dataclass(slots=True)
class History:
    """Operations in the order they ended, and the final contents of each partition.

    `final`: by partition, the records from its start to its end, read after all faults were repaired.
    """

    operations: list[Operation] = field(default_factory=list)
    final: dict[TopicPartition, list[Polled]] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)


class Anomaly(NamedTuple):
    """A violated guarantee: its name, its partition, and the evidence."""

    name: str
    partition: TopicPartition
    text: str


class _Partition:
    """Everything a history says about one partition."""

    __slots__ = ("acknowledged", "failed", "offsets_of", "polled_offsets_of", "values_at")

    def __init__(self) -> None:
        self.values_at: dict[int, set[Hashable]] = defaultdict(set)  # as acknowledged or polled
        self.offsets_of: dict[Hashable, set[int]] = defaultdict(set)
        self.polled_offsets_of: dict[Hashable, set[int]] = defaultdict(set)
        self.acknowledged: dict[Hashable, int | None] = {}
        self.failed: set[Hashable] = set()

    def place(self, value: Hashable, offset: int) -> None:
        self.values_at[offset].add(value)
        self.offsets_of[value].add(offset)


def check(
    history: History,
    *,
    log_starts: Mapping[TopicPartition, int] | None = None,
    may_duplicate: Callable[[Hashable], bool] = lambda _: False,
) -> list[Anomaly]:
    """Return every anomaly of the history, in the order of the table above.

    `log_starts`: records below these offsets were deleted on purpose and may be missing.
    `may_duplicate(value)`: whether its producer was not idempotent, so that a retry may have duplicated it.
    """
    partitions = _collect(history)
    starts = log_starts or {}
    found: list[Anomaly] = []
    for at in sorted(partitions):
        partition, start = partitions[at], starts.get(at, 0)
        found += _inconsistent_offsets(at, partition)
        found += _aborted_reads(at, partition)
        found += _lost_writes(at, partition, start)
        found += _duplicates(at, partition, may_duplicate)
        found += _unseen(at, partition, start, history.final.get(at))
    found += _poll_anomalies(history, partitions)
    found += _send_anomalies(history)
    return found


# ---- collecting -----------------------------------------------------------------------------------------


def _collect(history: History) -> dict[TopicPartition, _Partition]:
    partitions: dict[TopicPartition, _Partition] = defaultdict(_Partition)
    for operation in history.operations:
        if isinstance(operation, Send):
            for sent in operation.values:
                _note_send(partitions[sent.partition], operation.status, sent)
        elif isinstance(operation, Poll) and operation.status == "ok":
            _note_polled(partitions, operation.records)
    for at, records in history.final.items():
        _note_polled(partitions, records)
        partitions[at]  # an empty one counts, too
    return dict(partitions)


def _note_send(partition: _Partition, status: str, sent: Sent) -> None:
    if status == "fail":
        partition.failed.add(sent.value)
    elif status == "ok":
        partition.acknowledged[sent.value] = sent.offset
        if sent.offset is not None:
            partition.place(sent.value, sent.offset)


def _note_polled(partitions: dict[TopicPartition, _Partition], records: Iterable[Polled]) -> None:
    for at, offset, value in records:
        partition = partitions[at]
        partition.place(value, offset)
        partition.polled_offsets_of[value].add(offset)


# ---- the contents of a partition ------------------------------------------------------------------------


def _inconsistent_offsets(at: TopicPartition, partition: _Partition) -> Iterator[Anomaly]:
    for offset, values in sorted(partition.values_at.items()):
        if len(values) > 1:
            named = ", ".join(sorted(map(repr, values)))
            yield Anomaly("inconsistent-offsets", at, f"offset {offset} held {named}")


def _aborted_reads(at: TopicPartition, partition: _Partition) -> Iterator[Anomaly]:
    for value in sorted(partition.failed & partition.polled_offsets_of.keys(), key=repr):
        offsets = sorted(partition.polled_offsets_of[value])
        yield Anomaly("G1a", at, f"{value!r} was refused, and read at {offsets}")


def _lost_writes(at: TopicPartition, partition: _Partition, start: int) -> Iterator[Anomaly]:
    read = [offset for offsets in partition.polled_offsets_of.values() for offset in offsets]
    highest = max(read, default=-1)
    for value, offset in partition.acknowledged.items():
        if offset is not None and start <= offset < highest and value not in partition.polled_offsets_of:
            text = f"{value!r} was acknowledged at {offset}, {highest} was read, and it never was"
            yield Anomaly("lost-write", at, text)


def _duplicates(
    at: TopicPartition, partition: _Partition, may_duplicate: Callable[[Hashable], bool]
) -> Iterator[Anomaly]:
    for value, offsets in partition.offsets_of.items():
        if len(offsets) > 1 and not may_duplicate(value):
            yield Anomaly("duplicate", at, f"{value!r} is at {sorted(offsets)}")


def _unseen(
    at: TopicPartition, partition: _Partition, start: int, final: list[Polled] | None
) -> Iterator[Anomaly]:
    if final is None:
        return
    there = {record.value for record in final}
    # A value that was read was committed, so it must survive just as an acknowledged one.
    promised: dict[Hashable, int | None] = {
        value: max(offsets) for value, offsets in partition.polled_offsets_of.items()
    }
    for value, offset in partition.acknowledged.items():
        # A producer that only learned of a duplicate has no offset; a reader may have one.
        if offset is not None or value not in promised:
            promised[value] = offset
    for value, offset in promised.items():
        # A duplicate without any reader has no offset, so it may have been below the start.
        is_deleted = start > (0 if offset is None else offset)
        if value not in there and not is_deleted:
            how = "acknowledged" if value in partition.acknowledged else "read"
            yield Anomaly("unseen", at, f"{value!r} was {how} at {offset}, and is not there at the end")


# ---- what a process observed ----------------------------------------------------------------------------


def _poll_anomalies(history: History, partitions: Mapping[TopicPartition, _Partition]) -> Iterator[Anomaly]:
    known = {at: sorted(partition.values_at) for at, partition in partitions.items()}
    last: dict[Hashable, dict[TopicPartition, int]] = defaultdict(dict)
    for operation in history.operations:
        if isinstance(operation, Assign):
            _forget(last[operation.process], operation)
        elif isinstance(operation, Poll) and operation.status == "ok":
            positions = last[operation.process]
            for at, offset, _ in operation.records:
                if at in positions:
                    yield from _step(operation.process, at, positions[at], offset, known[at])
                positions[at] = offset
    for at, records in history.final.items():
        for before, after in itertools.pairwise(records):
            yield from _step("the final read", at, before.offset, after.offset, known[at])


def _forget(positions: dict[TopicPartition, int], assign: Assign) -> None:
    for at in list(positions) if assign.partitions is None else assign.partitions:
        positions.pop(at, None)


def _step(
    process: Hashable, at: TopicPartition, before: int, after: int, known: list[int]
) -> Iterator[Anomaly]:
    if after <= before:
        yield Anomaly("nonmonotonic-poll", at, f"{process} was given {after} after {before}")
        return
    skipped = known[bisect_right(known, before) : bisect_left(known, after)]
    if skipped:
        yield Anomaly("poll-skip", at, f"{process} was given {after} after {before}, without {skipped[:5]}")


def _send_anomalies(history: History) -> Iterator[Anomaly]:
    last: dict[tuple[Hashable, TopicPartition], int] = {}
    for operation in history.operations:
        if not isinstance(operation, Send) or operation.status != "ok":
            continue
        for at, value, offset in operation.values:
            if offset is None:
                continue
            before = last.get((operation.process, at), -1)
            if offset <= before:
                text = f"{operation.process} sent {value!r}, which got {offset}, after {before}"
                yield Anomaly("nonmonotonic-send", at, text)
            last[operation.process, at] = offset
