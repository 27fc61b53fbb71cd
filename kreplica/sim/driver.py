"""Driver: one random run from a seed, with every invariant checked after every event.

What happens in a run are events of weighted kinds: operations of clients (sim.load) and faults (sim.faults).
BrokerDriver, NodeDriver and QuorumDriver are tables of kinds over this one loop.

A run has rounds of faults. After each, all faults are repaired, and within a bounded time the cluster must be
well. Each client operation and each fault is a numbered action with its own random numbers, drawn from the
seed and that number. Leaving one out does not change what the others draw, so a failing run can be reduced to
the actions it needs (sim.reduction). Thread rule: one thread.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import ClassVar

from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.rare_collections import rare_collections
from kreplica.sim.faults import Faults
from kreplica.sim.invariants.checker import InvariantChecker
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.load import Load
from kreplica.sim.machines import SimMachines
from kreplica.sim.story import Story

ROUNDS = 2


class Actions:
    """The actions of the run of `seed`; those numbered in `without` are skipped. `number`: the last one."""

    def __init__(self, seed: int, without: Container[int] = ()) -> None:
        self.number = 0
        # The random numbers of an action, also for what it postpones.
        self.random = random.Random(f"{seed}/action 0")
        self._seed = seed
        self._without = without
        self._moments = random.Random(f"{seed}/moments")

    def run(self, action: Callable[[], None]) -> None:
        """Run the next action, unless it is to be left out."""
        self.number += 1
        if self.number not in self._without:
            self.random.seed(f"{self._seed}/action {self.number}")
            action()

    def delay_ms(self, mean_ms: float) -> float:
        """Draw the time until the next action of a kind."""
        return self._moments.expovariate(1 / mean_ms)


class Driver(ABC):
    """One random run. A subclass makes the cluster, its load and its faults, and decides when it is well.

    `counts`: how often each thing happened. Over many runs each name of EXPECTED must occur, or they prove
    nothing.
    `operation_every_ms`, `fault_every_ms`: the average intervals between actions. `without`: the numbers of
    the actions to leave out.
    """

    EXPECTED: ClassVar[Sequence[str]]
    # Longer than any client's deadline, so an operation that still waits after it was forgotten.
    HEALED_WITHIN_MS: ClassVar[int]
    # The interval between two looks at whether the cluster is well.
    LOOK_MS: ClassVar[int]

    cluster: SimMachines
    load: Load
    faults: Faults
    operation_every_ms: int
    fault_every_ms: int

    def __init__(self, seed: int, without: Container[int] = ()) -> None:
        self.seed = seed
        self.actions = Actions(seed, without)
        self.counts: Counter[str] = Counter()
        # The times at which the rounds of faults ended, so far.
        self.round_ends_ns: list[int] = []
        self.is_in_round = False

    @rare_collections()
    def run(self, events: int = 2_000, *, round_ends_ns: Sequence[int] = ()) -> None:
        """Run this number of events, and check that the cluster recovers. Raises InvariantViolated.

        `round_ends_ns`: end the rounds of faults at these virtual times instead.
        """
        for machine in self.cluster.brokers.values():
            machine.storage.is_traced = False
        self.begin()
        for number in range(len(round_ends_ns) or ROUNDS):
            self.faults.begin()
            self.is_in_round = True
            self.start_operations()
            self._later(self.fault_every_ms, "fault", "fault", self._strike)
            if round_ends_ns:
                self._pass_time(round_ends_ns[number])
            else:
                self._pass_events(events * (number + 1) // ROUNDS)
            self.round_ends_ns.append(self.cluster.time.now_ns)
            self.is_in_round = False
            self.heal()
        self.finish()
        for name in ("lost", "duplicated", "cut"):
            self.counts[f"messages {name}"] += self.cluster.network.counts[name]

    def start_operations(self) -> None:
        """Let clients operate until the faults are repaired."""
        self._later(self.operation_every_ms, "client", "operation", self._operate)

    def heal(self) -> None:
        """Repair all faults, and check that the cluster becomes well."""
        scheduler = self.cluster.scheduler
        # Run it as an event, so that every invariant is checked after it.
        scheduler.add("fault", "heal", self.faults.heal)
        scheduler.run_until(lambda: self.faults.is_calm)
        self.require_well()
        self.healed()
        self.faults.healed()

    def require_well(self) -> None:
        """Check that the cluster becomes well in time. Raises InvariantViolated with what is wrong."""
        if not self._becomes_well():
            facts = f"{self.HEALED_WITHIN_MS} ms after all faults: {'; '.join(self.ails())}"
            raise self.violation("Liveness", facts)

    def violation(self, name: str, facts: str) -> InvariantViolated:
        """Return a violation that was found between two events."""
        error = InvariantViolated(name, facts)
        error.add_note(f"{self.cluster.scheduler.name}after event {self.cluster.scheduler.steps}")
        return error

    # ---- what a subclass adds -----------------------------------------------------------------------------

    @abstractmethod
    def ails(self) -> Iterator[str]:
        """Yield what is wrong with the cluster while no fault is left; nothing if it is well."""

    @abstractmethod
    def story(self) -> Story:
        """Record the story of the run from now on; call it before `run`."""

    def begin(self) -> None:  # noqa: B027
        """Start the cluster, if the constructor has not."""

    def healed(self) -> None:  # noqa: B027
        """Check the cluster further when it is well after a round."""

    def finish(self) -> None:  # noqa: B027
        """Check the run as a whole, and add what other objects have counted."""

    # ---- internals ----------------------------------------------------------------------------------------

    def _becomes_well(self) -> bool:
        stop_ms = self.cluster.now_ms() + self.HEALED_WITHIN_MS
        while self.cluster.now_ms() < stop_ms:
            self.cluster.scheduler.run_for(self.LOOK_MS)
            # A node may just have been shutting down.
            self.faults.start_dead()
            if self._is_well():
                return True
        return False

    def _is_well(self) -> bool:
        return next(self.ails(), None) is None

    def _pass_events(self, until: int) -> None:
        while self.cluster.scheduler.events < until:
            if self.cluster.scheduler.step() is None:
                raise AssertionError("nothing is left to happen")
        # Finish the current moment, so that a run limited by time is the same run.
        self._pass_time(self.cluster.time.now_ns)

    def _pass_time(self, until_ns: int) -> None:
        while self.cluster.scheduler.step(until_ns) is not None:
            pass

    def _operate(self) -> None:
        if not self.faults.is_calm:
            self._later(self.operation_every_ms, "client", "operation", self._operate)
            self.actions.run(self.load.operate)

    def _strike(self) -> None:
        if not self.faults.is_calm:
            self._later(self.fault_every_ms, "fault", "fault", self._strike)
            self.actions.run(self.faults.strike)

    def _later(self, mean_ms: int, kind: str, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self.actions.delay_ms(mean_ms)
        self.cluster.scheduler.add(kind, summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))


class ReplicaDriver(Driver):
    """A random run of brokers with replicated partitions."""

    checker: InvariantChecker

    def ails(self) -> Iterator[str]:
        if self.load.pending:
            yield f"{self.load.pending} clients wait"
        yield from self.checker.view.ails()

    def healed(self) -> None:
        """Check that replicas are equal, and count how often they have truncated."""
        for view in self.checker.view.partitions.values():
            inequality = view.inequality()
            if inequality is not None:
                raise self.violation("Equal", inequality)
            for replica in view.replicas.values():
                self.counts["truncations"] += replica.truncations
                replica.truncations = 0
