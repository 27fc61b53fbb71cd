"""Faults for your own tests, each as a `with` block that undoes it at its end.

    from kreplica.testing import faults

    with faults.killed(cluster, cluster.partition("orders").leader):
        ...  # the application goes on; at the end the node starts again

A cluster is a `kreplica.Cluster`, such as that of the fixture `kreplica_cluster`, or a `kreplica.Simulation`,
whose clock and network are simulated, too. What a block leaves to do later, `CheckedCluster.check` waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kreplica.cluster.cluster import Cluster
from kreplica.cluster.faults import require_delay
from kreplica.cluster.simulation import Simulation

__all__ = ["cut", "delayed", "full_disk", "isolated", "killed", "paused", "rot"]


@contextmanager
def killed(cluster: Cluster | Simulation, node_id: int) -> Iterator[None]:
    """Kill the node, as kill -9 would; at the end it starts again on its directory, if it does not run yet.

    Raises InvalidRequest if it does not run.
    """
    cluster.kill(node_id)
    try:
        yield
    finally:
        if not cluster.is_running(node_id):
            cluster.start(node_id)


@contextmanager
def paused(cluster: Cluster | Simulation, node_id: int) -> Iterator[None]:
    """Stall the node, as SIGSTOP would; at the end it resumes, if it still runs.

    Raises InvalidRequest if it does not run.
    """
    cluster.pause(node_id)
    try:
        yield
    finally:
        if cluster.is_running(node_id):
            cluster.resume(node_id)


@contextmanager
def cut(cluster: Cluster | Simulation, one: int, other: int, *, both_ways: bool = True) -> Iterator[None]:
    """Drop all messages from `one` to `other`, and with `both_ways` also back; neither is notified.

    At the end they arrive again, except where another fault still drops them. Raises InvalidRequest if there
    is no such node.
    """
    links = [(one, other), (other, one)] if both_ways else [(one, other)]
    with _dropped(cluster, links):
        yield


@contextmanager
def isolated(cluster: Cluster | Simulation, node_id: int) -> Iterator[None]:
    """Cut the node off from all other nodes; this program still reaches it.

    Raises InvalidRequest if there is no such node.
    """
    cluster.is_running(node_id)  # refuses an unknown one
    others = [other for other in cluster.nodes if other != node_id]
    with _dropped(cluster, [link for other in others for link in ((node_id, other), (other, node_id))]):
        yield


@contextmanager
def _dropped(cluster: Cluster | Simulation, links: list[tuple[int, int]]) -> Iterator[None]:
    links = [link for link in links if not cluster.is_cut(*link)]
    for one, other in links:
        cluster.cut(one, other, both_ways=False)
    try:
        yield
    finally:
        for one, other in links:
            cluster.heal(one, other, both_ways=False)


@contextmanager
def delayed(cluster: Cluster | Simulation, delay_ms: float) -> Iterator[None]:
    """Let each message take `delay_ms` longer: between nodes, and between them and this program.

    Delays of several blocks add up. Raises TypeError, and ValueError if a message would take more than a
    minute, or less long than before.
    """
    require_delay(delay_ms)
    cluster.add_delay(delay_ms)
    try:
        yield
    finally:
        cluster.add_delay(-delay_ms)


@contextmanager
def full_disk(cluster: Cluster | Simulation, node_id: int) -> Iterator[None]:
    """Let the node's disk be full: it refuses all that would need space. At the end there is space again.

    A node that died of it, as its process would, starts again then. Raises InvalidRequest if it does not run.
    """
    cluster.set_disk(node_id, "full")
    try:
        yield
    finally:
        if isinstance(cluster, Simulation) or cluster.is_running(node_id):
            cluster.set_disk(node_id, "well")
        if not cluster.is_running(node_id):
            cluster.start(node_id)


def rot(cluster: Cluster, topic: str, partition: int, offset: int, *, broker: int) -> None:
    """Flip a bit of the record at `offset` in the files of one replica; nothing undoes it but a repair.

    Raises InvalidRequest if the broker does not run or has no replica of the partition, OffsetOutOfRange.
    """
    cluster.rot(topic, partition, offset, broker=broker)
