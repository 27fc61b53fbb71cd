"""What a random run is like: its topics and the settings of its brokers, drawn from its seed. No state."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.config import LogConfig
from kreplica.common.ports import Random
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.broker_factory import LOG_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of a run. `unclean`: whether a replica out of sync may lead where no other can."""

    name: str
    partitions: int
    config: LogConfig
    unclean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Faults come every `fault_every_ms` on average, client operations every `operation_every_ms`."""

    topics: tuple[TopicPlan, ...]
    replica_config: ReplicaConfig
    brokers: int = 3
    operation_every_ms: int = 4
    fault_every_ms: int = 40


def draw_workload(random: Random) -> Workload:
    """One of the workloads that runs are to be tried with."""

    def choice(*values: int) -> int:
        return values[random.randrange(len(values))]

    replica_config = ReplicaConfig(
        replica_lag_time_max_ms=200,
        # Before Kafka 0.9 a replica was out that lagged so many messages.
        replica_lag_max_messages=20 if random.randrange(8) == 0 else None,
        replica_fetch_wait_max_ms=50,
        replica_fetch_backoff_ms=30,
        replica_fetch_max_bytes=choice(1 << 20, 512),
        replica_socket_timeout_ms=150,
        replica_high_watermark_checkpoint_interval_ms=choice(50, 300),
        num_replica_fetchers=choice(1, 2),
        truncation_on_fetch=random.randrange(4) > 0,
    )
    topics = tuple(
        TopicPlan(
            name=name,
            partitions=partitions,
            config=LOG_CONFIG.replace(
                {
                    "min.insync.replicas": choice(1, 2, 2, 3),
                    "durability": durability,
                    # A power cut may take the end of a segment and leave the next one, which is damage.
                    "segment.bytes": 2_048 if durability == "fsync_quorum" else 65_536,
                    "retention.bytes": choice(-1, 6_000),
                }
            ),
            unclean=random.randrange(2) == 0,
        )
        for name, partitions in (("t", 1), ("u", choice(1, 2)))
        for durability in (("page_cache", "page_cache", "fsync", "fsync_quorum")[random.randrange(4)],)
    )
    return Workload(topics=topics, replica_config=replica_config)
