"""Measure what a cluster's nodes spend on fixed work: the processor time of all of their processes together.

Other programs on the machine hardly change it, so it compares two clusters better than rates do. The client
is librdkafka with the same settings for every cluster, and its own time does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.librdkafka import create_topic, latencies_us, produce

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
IDLE_S = 60.0
# Time for the nodes to finish what the last acknowledgement left to do: high watermarks, checkpoints.
REST_S = 1.0


@dataclass(frozen=True)
class Work:
    """`records` of `size` bytes, produced with acks=all to a topic with three replicas.

    `settings`: properties of the producer beside those of `librdkafka.produce`.
    """

    name: str
    goal_s: float
    records: int
    size: int
    partitions: int = 1
    settings: Mapping[str, object] | None = None


BATCHES_OF_10 = {"batch.num.messages": 10}
COMPRESSED = {"enable.idempotence": True, "compression.type": "lz4"}
WORKS = (
    Work("1 M records of 100 B", 0.6, 1_000_000, 100),
    Work("1 M records of 1 KiB", 3.2, 1_000_000, 1024),
    Work("1 M of 100 B, idempotent, lz4, 12 partitions", 1.5, 1_000_000, 100, 12, COMPRESSED),
    Work("1 M of 100 B in batches of 10", 4.0, 1_000_000, 100, settings=BATCHES_OF_10),
)


def cpu_s(cluster: Any) -> float:
    """Return the processor time that the cluster's processes have used since their starts."""
    return sum(process_s(cluster.pid(node)) for node in cluster.ids)


def process_s(pid: int) -> float:
    """Return the processor time that the process has used since its start."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_A_SECOND


def spent_s(cluster: Any, work: Callable[[], object]) -> float:
    """Return the processor time that the nodes use until shortly after `work` returns."""
    before = cpu_s(cluster)
    work()
    time.sleep(REST_S)
    return cpu_s(cluster) - before


def of_produce(cluster: Any, topic: str, work: Work, scale: float) -> float:
    """Return what the nodes spend on the work, with `scale` times its records, for all of its records."""
    create_topic(cluster.bootstrap, topic, work.partitions)
    records = max(1, int(work.records * scale))
    settings = work.settings or {}
    partitions = range(work.partitions)
    # The connections are open and the producer id is known before the work begins.
    produce(cluster.bootstrap, topic, partitions, records=1_000, size=work.size, settings=settings)
    spent = spent_s(
        cluster,
        lambda: produce(
            cluster.bootstrap, topic, partitions, records=records, size=work.size, settings=settings
        ),
    )
    return spent / scale


def of_one_in_flight(cluster: Any, topic: str, records: int) -> float:
    """Return what the nodes spend on 1,000 records of 100 B, each sent after the last was acknowledged."""
    create_topic(cluster.bootstrap, topic)
    latencies_us(cluster.bootstrap, topic, records=1)
    return spent_s(cluster, lambda: latencies_us(cluster.bootstrap, topic, records=records)) * 1_000 / records


def of_idle(cluster: Any) -> float:
    """Return what the nodes spend in a minute without clients."""
    before = cpu_s(cluster)
    time.sleep(IDLE_S)
    return cpu_s(cluster) - before
