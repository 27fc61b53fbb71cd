"""InvariantChecker: checks all invariants after every event of a simulation. Thread rule: one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kreplica.sim.cluster import SimCluster
from kreplica.sim.invariants.cluster_view import ClusterView, ScriptedWord
from kreplica.sim.invariants.rules import (
    ConsistentRead,
    Durable,
    Invariant,
    IsrGrowth,
    LeaderCompleteness,
    LeaderInIsr,
    LogMatching,
    NeverBack,
    NoCommittedRecordLost,
    NothingAfterFailure,
    OneFetcher,
    StrongIsr,
    ValidHighWatermark,
    WeakIsr,
)
from kreplica.sim.scheduler import SimEvent

# LogMatching records what is committed and ends excuses; NeverBack needs the excuses as they were before, so
# it comes first.
INVARIANTS: tuple[type[Invariant], ...] = (
    NeverBack,
    Durable,
    NothingAfterFailure,
    LogMatching,
    WeakIsr,
    StrongIsr,
    LeaderInIsr,
    ValidHighWatermark,
    IsrGrowth,
    LeaderCompleteness,
    NoCommittedRecordLost,
    ConsistentRead,
    OneFetcher,
)


class InvariantChecker:
    """Checks `cluster` after each of its events, from now on."""

    def __init__(self, cluster: SimCluster, invariants: Sequence[type[Invariant]] = INVARIANTS) -> None:
        self._prepare(ClusterView(cluster.brokers, ScriptedWord(cluster.controller)), invariants)
        cluster.scheduler.after_event = self.check

    def _prepare(self, view: ClusterView, invariants: Sequence[type[Invariant]]) -> None:
        self.view = view
        self.checks = 0
        self._failure: Exception | None = None
        self._invariants = [invariant() for invariant in invariants]

    def watched(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap the callback of a future; the next check raises what the callback raises."""

        def call(answer: Any) -> None:
            try:
                callback(answer)
            except Exception as error:
                self._failure = self._failure or error

        return call

    def check(self, event: SimEvent | None = None) -> None:
        """Check what the event has touched (None: everything that has changed).

        Raises InvariantViolated; the scheduler adds the seed and the event's number as a note.
        """
        if self._failure is not None:
            raise self._failure
        # What a script does to a broker is not an event of that broker.
        of_broker = event is not None and event.node_id in self.view.brokers
        self._check_partitions((event.node_id,) if event is not None and of_broker else None)

    def _check_partitions(self, broker_ids: Sequence[int] | None) -> None:
        """Check the partitions that have changed on these brokers (None: on any), or by a decision."""
        touched = self.view.look(broker_ids)
        for partition in touched:
            for invariant in self._invariants:
                invariant.check(partition)
                self.checks += 1
        self.view.done(touched)
