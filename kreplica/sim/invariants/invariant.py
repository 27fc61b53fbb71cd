"""The protocol of an invariant.

An invariant checks one partition that an event has touched. `partition.changed` lists the replicas that have
changed; `partition.was_decided` is set after a new decision of the controller. It raises InvariantViolated,
or returns. The numbers are those of the list in docs/SIMULATOR.md. Thread rule: one thread.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from kreplica.sim.invariants.partition_view import PartitionView


class Invariant(Protocol):
    """A rule. `name`: as in the specifications."""

    name: ClassVar[str]

    def check(self, partition: PartitionView) -> None:
        """Check what the last event has touched. Raises InvariantViolated."""
        ...
