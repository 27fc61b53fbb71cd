"""BrokerDriver: a cluster under random load and faults from one seed, with every invariant checked.

A run has rounds of faults. After each, all faults are repaired, and within a bounded time the cluster must be
healthy: leaders, full ISRs, equal replicas, and no operation left waiting. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from kreplica.common.config import LogConfig
from kreplica.common.ports import NANOSECONDS_PER_MS, Random
from kreplica.common.rare_collections import rare_collections
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.actions import Actions
from kreplica.sim.brokers.faults import Faults
from kreplica.sim.brokers.leader_changes import ControllersWill
from kreplica.sim.brokers.load import Load
from kreplica.sim.brokers.observer import Observer
from kreplica.sim.cluster import LOG_CONFIG, SimCluster, broker_factory
from kreplica.sim.invariants.checker import INVARIANTS, InvariantChecker
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.rules import Invariant
from kreplica.sim.invariants.violation import InvariantViolated

# The factors by which a seed may scale the weight of a fault, and the weights in a run about one fault.
FACTORS = (0, 0, 1, 1, 3)
OFTEN, MOST_OFTEN = 40, 6
# Faults that most seeds do not have, and their weights in the others.
RARE_FAULTS = ("late divergence", "failing flush")
RARELY = (0, 0, 6, 40)
# The weights of the kinds of faults, unless a seed changes them.
FAULTS: Mapping[str, int] = {
    "kill": 5,
    "power cut": 6,
    "power cut of all": 1,
    "quick restart": 4,
    "pause": 3,
    "cut": 4,
    "slow link": 2,
    "slow answers": 2,
    "date jump": 2,
    "slow disk": 2,
    "full disk": 3,
    "broken disk": 2,
    "passing disk error": 2,
    "rot": 16,
    "isolation": 3,
    "move": 3,
    "elections in turns": 4,
    "late word": 3,
    "slow controller": 4,
    "config change": 2,
    "retention": 2,
    "late divergence": 0,
    "failing flush": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of a run. `unclean`: whether a replica outside the ISR may lead if no other can."""

    name: str
    partitions: int
    config: LogConfig
    unclean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Average intervals: `fault_every_ms` between faults, `operation_every_ms` between client operations.

    `faults`: the weight of each kind of FAULTS; `value_bytes`: the minimum size of a value; `straggling`: the
    chance that a message takes long while others overtake it.
    """

    topics: tuple[TopicPlan, ...]
    replica_config: ReplicaConfig
    brokers: int = 3
    operation_every_ms: int = 4
    fault_every_ms: int = 40
    value_bytes: int = 0
    straggling: float = 0.0
    faults: Mapping[str, int] = field(default_factory=lambda: FAULTS)


def draw_workload(random: Random) -> Workload:
    """Draw a workload."""

    def choice(*values: int) -> int:
        return values[random.randrange(len(values))]

    replica_config = ReplicaConfig(
        replica_lag_time_max_ms=200,
        # Before Kafka 0.9 a replica that lagged by this many messages was out of sync.
        replica_lag_max_messages=20 if random.randrange(8) == 0 else None,
        replica_fetch_wait_max_ms=50,
        replica_fetch_backoff_ms=30,
        replica_fetch_max_bytes=choice(1 << 20, 512),
        replica_socket_timeout_ms=150,
        replica_high_watermark_checkpoint_interval_ms=choice(50, 300),
        num_replica_fetchers=choice(1, 2),
        truncation_on_fetch=random.randrange(4) > 0,
    )
    # So that a batch may have disk pages to itself, or share them.
    value_bytes = choice(0, 0, 0, 1_500)
    most_bytes = 4 * value_bytes
    topics = tuple(
        TopicPlan(
            name=name,
            partitions=partitions,
            config=LOG_CONFIG.replace(
                {
                    "min.insync.replicas": choice(1, 2, 2, 3),
                    "durability": durability,
                    # A power cut may remove the end of a segment and leave the next segment, which counts as
                    # damage.
                    "segment.bytes": 2_048 + most_bytes
                    if durability == "fsync_quorum"
                    else 65_536 + most_bytes * 1_000,
                    "retention.bytes": choice(-1, 6_000 + 3 * most_bytes),
                }
            ),
            unclean=random.randrange(2) == 0,
        )
        for name, partitions in (("t", 1), ("u", choice(1, 2)))
        for durability in (("page_cache", "page_cache", "fsync", "fsync_quorum")[random.randrange(4)],)
    )
    return Workload(
        topics=topics,
        replica_config=replica_config,
        value_bytes=value_bytes,
        straggling=choice(0, 0, 1, 5, 15) / 100,
        operation_every_ms=choice(2, 4, 4, 10),
        fault_every_ms=choice(20, 40, 40, 80),
        faults=FAULTS if random.randrange(4) == 0 else _draw_faults(random),
    )


def _draw_faults(random: Random) -> Mapping[str, int]:
    """Draw the weights of faults: some kinds are absent, others more frequent.

    What hides a bug in one seed is absent in another (swarm testing; Groce and others, 2012).
    """
    names = [name for name, weight in FAULTS.items() if weight]
    faults = {name: FAULTS[name] * FACTORS[random.randrange(len(FACTORS))] for name in names}
    for _ in range(random.randrange(MOST_OFTEN)):
        faults[names[random.randrange(len(names))]] += OFTEN
    # There is always at least one kind.
    faults["cut"] = max(faults["cut"], 1)
    return {**faults, **{name: RARELY[random.randrange(len(RARELY))] for name in RARE_FAULTS}}


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
