"""RandomDriver: a cluster under random load and faults from one seed, with every invariant checked.

A run has rounds of faults. After each, all faults are repaired, and within a bounded time the cluster must be
healthy: leaders, full ISRs, equal replicas, and no operation left waiting. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Sequence

from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.rare_collections import rare_collections
from kreplica.common.types import TopicPartition
from kreplica.sim.actions import Actions
from kreplica.sim.broker_factory import broker_factory
from kreplica.sim.cluster import SimCluster
from kreplica.sim.faults import Faults
from kreplica.sim.invariants.checker import INVARIANTS, InvariantChecker
from kreplica.sim.invariants.invariant import Invariant
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.load import Load
from kreplica.sim.observer import Observer
from kreplica.sim.will import ControllersWill
from kreplica.sim.workload import Workload, draw_workload

ROUNDS = 2
# Longer than any client's deadline, so an operation that still waits after it was forgotten.
HEALED_WITHIN_MS = 3_000


class RandomDriver:
    """One random run. `counts` has what happened in it, under the observer's names.

    `without`: the numbers of the actions to leave out. `with_disks`: see
    broker_factory.
    """

    def __init__(
        self,
        seed: int,
        workload: Workload | None = None,
        invariants: Sequence[type[Invariant]] = INVARIANTS,
        *,
        without: Container[int] = (),
        with_disks: bool = False,
    ) -> None:
        self.actions = Actions(seed, without)
        self.workload = workload or draw_workload(random.Random(f"{seed}/workload"))
        self.counts: Counter[str] = Counter()
        self.cluster = SimCluster(
            broker_factory(self.workload.replica_config, with_disks=with_disks), seed=seed
        )
        self.checker = InvariantChecker(self.cluster, invariants)
        self.observer = Observer(self.cluster, self.counts)
        unclean = [topic.name for topic in self.workload.topics if topic.unclean]
        self.will = ControllersWill(self.cluster, self.observer, unclean, self.checker.view.note_decisions)
        self.faults = Faults(
            self.cluster,
            self.will,
            self.counts,
            self.actions.random,
            self.workload.faults,
            self.workload.straggling,
        )
        self.load = Load(
            self.cluster, self.checker, self.counts, self.actions.random, self.workload.value_bytes
        )
        # The times at which the rounds of faults ended, so far.
        self.round_ends_ns: list[int] = []
        self.is_in_round = False
        self._begin()

    @rare_collections()
    def run(self, events: int = 2_000, *, round_ends_ns: Sequence[int] = ()) -> None:
        """Run this number of events, and check that the cluster recovers. Raises InvariantViolated.

        `round_ends_ns`: end the rounds of faults at these virtual times instead.
        """
        for number in range(len(round_ends_ns) or ROUNDS):
            self.faults.begin()
            self.is_in_round = True
            self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
            self._later(self.workload.fault_every_ms, "fault", "fault", self._strike)
            if round_ends_ns:
                self._pass_time(round_ends_ns[number])
            else:
                self._pass_events(events * (number + 1) // ROUNDS)
            self.round_ends_ns.append(self.cluster.time.now_ns)
            self.is_in_round = False
            self._heal()
        self.observer.finish()

    # ---- internals ----------------------------------------------------------------------------------------

    def _pass_events(self, until: int) -> None:
        while self.cluster.scheduler.events < until:
            if self.cluster.scheduler.step() is None:
                raise AssertionError("nothing is left to happen")
        # Finish the current moment, so that a run limited by time is the same run.
        self._pass_time(self.cluster.time.now_ns)

    def _pass_time(self, until_ns: int) -> None:
        while self.cluster.scheduler.step(until_ns) is not None:
            pass

    def _begin(self) -> None:
        workload, cluster = self.workload, self.cluster
        ids = list(range(1, workload.brokers + 1))
        for topic in workload.topics:
            cluster.controller.add_topic(topic.name, topic.config)
        for broker_id in ids:
            cluster.add_broker(broker_id)
            cluster.start(broker_id)
        first = 0
        for topic in workload.topics:
            for index in range(topic.partitions):
                replicas = ids[first:] + ids[:first]
                first = (first + 1) % len(ids)
                state = cluster.controller.create(TopicPartition(topic.name, index), replicas)
                self.will.hand_out(state)
        self.checker.check()

    def _operate(self) -> None:
        if not self.faults.is_calm:
            self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
            self.actions.run(self.load.operate)

    def _strike(self) -> None:
        if not self.faults.is_calm:
            self._later(self.workload.fault_every_ms, "fault", "fault", self._strike)
            self.actions.run(self.faults.strike)

    def _later(self, mean_ms: int, kind: str, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self.actions.delay_ms(mean_ms)
        self.cluster.scheduler.add(kind, summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))

    def _heal(self) -> None:
        # Run it as an event, so that every invariant is checked after it.
        scheduler = self.cluster.scheduler
        scheduler.add("fault", "heal", self.faults.heal)
        scheduler.run_until(lambda: self.faults.is_calm)
        views = self.checker.view.partitions.values()
        if not scheduler.run_until(self._is_well, limit_ms=HEALED_WITHIN_MS):
            why = "; ".join(str(self._what_ails(view) or view) for view in views)
            late = f"{self.load.pending} clients wait, {self._waiting()} operations; {why}"
            raise self._violation("Liveness", f"{HEALED_WITHIN_MS} ms after all faults: {late}")
        self.faults.healed()
        for view in views:
            self._compare(view)
            for replica in view.replicas.values():
                self.counts["truncations"] += replica.truncations
                replica.truncations = 0

    def _is_well(self) -> bool:
        if self.load.pending or self._waiting():
            return False
        return not any(self._what_ails(view) for view in self.checker.view.partitions.values())

    def _waiting(self) -> int:
        """Count the operations in purgatories, without followers' fetches, which always wait."""
        count = len(self.cluster.controller.waiting)
        for broker in self.cluster.brokers.values():
            delayed = broker.program.replica_manager.delayed
            for purgatory in (delayed.produce, delayed.delete_records):
                count += purgatory.delayed
        return count

    def _what_ails(self, view: PartitionView) -> str | None:
        """Return what is wrong with the partition, None if it is healthy."""
        leader, decided = view.leader, view.decided
        if leader is None or decided is None:
            return f"no leader; {view}"
        if len(decided.isr) < len(decided.replicas):
            return f"the ISR is not full: {leader.partition.state}; {view}"
        if leader.partition.state.is_inflight:
            return f"an AlterPartition is under way; {view}"
        offsets = {(replica.log_end, replica.high_watermark) for replica in view.replicas.values()}
        if offsets != {(leader.log_end, leader.log_end)}:
            return f"the replicas do not end together; {view}"
        # Records that another replica has deleted can no longer be fetched.
        start = max(replica.log_start for replica in view.replicas.values())
        if any(each.stop_offset > start for replica in view.replicas.values() for each in replica.damages):
            return f"a range is damaged; {view}"
        if any(replica.is_excused for replica in view.replicas.values()):
            return f"a replica has not come back to the committed log; {view}"
        return None

    def _compare(self, view: PartitionView) -> None:
        logs = [replica.log for replica in view.replicas.values()]
        start = max(log.log_start_offset for log in logs)
        first, *others = ([bytes(batch) for batch in log.batches(start)] for log in logs)
        if any(other != first for other in others):
            raise self._violation("Equal", f"the replicas are not byte-equal from {start} on; {view}")

    def _violation(self, name: str, facts: str) -> InvariantViolated:
        error = InvariantViolated(name, facts)
        error.add_note(f"{self.cluster.scheduler.name}after event {self.cluster.scheduler.steps}")
        return error
