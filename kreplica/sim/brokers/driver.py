"""BrokerDriver: a cluster under random load and faults from one seed, with every invariant checked.

After the faults the cluster must have leaders, full ISRs, equal replicas, and no operation left waiting.
Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence

from kreplica.common.config import LogConfig
from kreplica.common.dataclass import dataclass, field
from kreplica.common.ports import Random
from kreplica.common.types import TopicPartition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.brokers.faults import BrokerFaults
from kreplica.sim.brokers.leader_changes import ControllersWill
from kreplica.sim.brokers.load import BrokerLoad
from kreplica.sim.brokers.observer import EXPECTED, Observer
from kreplica.sim.cluster import LOG_CONFIG, SimCluster, broker_factory
from kreplica.sim.driver import ReplicaDriver
from kreplica.sim.invariants.checker import INVARIANTS, InvariantChecker
from kreplica.sim.invariants.rules import Invariant
from kreplica.sim.story import BrokerStory, Story

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


class BrokerDriver(ReplicaDriver):
    """One random run of brokers with a scripted controller. `with_disks`: see broker_factory."""

    cluster: SimCluster
    EXPECTED = EXPECTED
    HEALED_WITHIN_MS = 3_000

    def __init__(
        self,
        seed: int,
        workload: Workload | None = None,
        invariants: Sequence[type[Invariant]] = INVARIANTS,
        *,
        without: Container[int] = (),
        with_disks: bool = False,
    ) -> None:
        super().__init__(seed, without)
        workload = self.workload = workload or draw_workload(random.Random(f"{seed}/workload"))
        self.operation_every_ms, self.fault_every_ms = workload.operation_every_ms, workload.fault_every_ms
        cluster = self.cluster = SimCluster(
            broker_factory(workload.replica_config, with_disks=with_disks), seed=seed
        )
        self.checker = InvariantChecker(cluster, invariants)
        self.observer = Observer(cluster, self.counts)
        unclean = [topic.name for topic in workload.topics if topic.unclean]
        self.will = ControllersWill(cluster, self.observer, unclean, self.checker.view.note_decisions)
        drawn = self.actions.random
        self.faults = BrokerFaults(
            cluster, self.will, self.counts, drawn, workload.faults, workload.straggling
        )
        self.load = BrokerLoad(cluster, self.checker, self.counts, drawn, workload.value_bytes)
        self._create(list(range(1, workload.brokers + 1)))

    def _create(self, ids: list[int]) -> None:
        """Start the brokers and create the topics."""
        controller = self.cluster.controller
        for topic in self.workload.topics:
            controller.add_topic(topic.name, topic.config)
        for broker_id in ids:
            self.cluster.add_broker(broker_id)
            self.cluster.start(broker_id)
        first = 0
        for topic in self.workload.topics:
            for index in range(topic.partitions):
                replicas = ids[first:] + ids[:first]
                first = (first + 1) % len(ids)
                self.will.hand_out(controller.create(TopicPartition(topic.name, index), replicas))
        self.checker.check()

    def ails(self) -> Iterator[str]:
        if self.cluster.controller.waiting:
            yield f"{len(self.cluster.controller.waiting)} requests wait at the controller"
        yield from super().ails()

    def story(self) -> Story:
        return BrokerStory(self.cluster, self.will)

    def _becomes_well(self) -> bool:
        return self.cluster.scheduler.run_until(self._is_well, self.HEALED_WITHIN_MS)
