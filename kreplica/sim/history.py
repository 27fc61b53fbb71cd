"""History: what clients did, and the responses they got; the checker compares it with a log's guarantees.

A process is a client that does one operation after the other. An operation is `ok` if it was answered, `fail`
if it certainly did not happen, `info` if the outcome is unknown. Values are unique in a history. The messages
are immutable; a History belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
