"""The protocol of an invariant, and the rules that speak of who is in sync.

An invariant looks at one partition that an event has touched: `partition.changed` lists the replicas that are
not as they were, `partition.was_decided` tells that the controller's word is new. It raises
InvariantViolated, or it keeps quiet. The numbers are those of the list in docs/SIMULATOR.md. Thread rule: one
thread.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from kreplica.sim.invariants.partition_view import PartitionView


class Invariant(Protocol):
    """One rule. `name`: as the specifications name it."""

    name: ClassVar[str]

    def check(self, partition: PartitionView) -> None:
        """Look at what the last event has touched. Raises InvariantViolated."""
        ...
