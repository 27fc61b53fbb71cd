"""What clients did and were told: the history that the checker holds a cluster to.

A process is one client that does one operation after the other. An operation is `ok` where it was answered,
`fail` where it certainly did not happen, `info` where nobody knows. Values are unique in a history. The
messages are immutable; a History belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kreplica.common.types import TopicPartition

Status = Literal["ok", "info", "fail"]


class Sent(NamedTuple):
    """One value of a send; `offset` is None where it is not known."""

    partition: TopicPartition
    value: Hashable
    offset: int | None = None


class Polled(NamedTuple):
    """One record of a poll, in the order it was delivered."""

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
    """A process begins to read elsewhere: what it polls next has no order with what it polled before.

    `partitions`: those that it begins anew with; None stands for all.
    """

    process: Hashable
    partitions: Sequence[TopicPartition] | None = None


Operation = Send | Poll | Assign


@dataclass(slots=True)
class History:
    """Operations in the order they ended, and the values that reading each partition to its end gave.

    `final`: by partition the records from its start to its end, read after everything was healed.
    """

    operations: list[Operation] = field(default_factory=list)
    final: dict[TopicPartition, list[Polled]] = field(default_factory=dict)

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
