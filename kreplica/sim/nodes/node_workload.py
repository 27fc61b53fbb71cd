"""The parameters of a random run of whole nodes: nodes, settings and topics, drawn from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kreplica.common.ports import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorkload:
    """Average intervals: `fault_every_ms` between faults, `operation_every_ms` between client operations.

    `controllers`: number of dedicated controllers; 0: brokers are controllers. `standbys`: additional
    controllers that are not voters at first. `settings`: of every node, by Kafka's names.
    """

    brokers: int
    controllers: int
    standbys: int
    settings: Mapping[str, object]
    operation_every_ms: int
    fault_every_ms: int


def draw_node_workload(random: Random) -> NodeWorkload:
    """Draw a workload."""

    def choice(*values: int) -> int:
        return values[random.randrange(len(values))]

    brokers, controllers = choice(3, 3, 3, 4), choice(0, 0, 0, 3)
    return NodeWorkload(
        brokers=brokers,
        controllers=controllers,
        standbys=1 if controllers else 0,
        settings={
            "replica.fetch.max.bytes": choice(1 << 20, 512),
            "num.replica.fetchers": choice(1, 1, 2),
            "replica.high.watermark.checkpoint.interval.ms": choice(50, 300),
            "controller.quorum.append.linger.ms": choice(0, 5),
            "metadata.log.max.record.bytes.between.snapshots": choice(1_000, 3_000),
        },
        operation_every_ms=choice(4, 8),
        fault_every_ms=choice(60, 120, 250),
    )


def draw_topic_settings(random: Random) -> dict[str, object]:
    """Draw the settings of a new topic."""
    durability = ("page_cache", "page_cache", "fsync", "fsync_quorum")[random.randrange(4)]
    return {
        "min.insync.replicas": (1, 2, 2, 3)[random.randrange(4)],
        "unclean.leader.election.enable": "true" if random.randrange(6) == 0 else "false",
        "durability": durability,
        # A power cut may remove the end of a segment and leave the next segment, which counts as damage.
        "segment.bytes": 2_048 if durability == "fsync_quorum" else 65_536,
        "retention.bytes": (-1, 6_000)[random.randrange(2)],
    }
