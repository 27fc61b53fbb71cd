"""Fetches whose connection is gone: they no longer wait, and hold no memory."""

from __future__ import annotations

import gc
import uuid
from datetime import timedelta
from pathlib import Path

from kreplica import Cluster
from kreplica.broker.node import Node
from kreplica.common.messages.data import FetchPartition, FetchRequest, FetchTopic
from kreplica.common.wire import uuid_of
from kreplica.replica.delayed_fetch import DelayedFetch
from tests.support.requests import frame_of
from tests.support.sockets import connected, framed, until
from tests.support.tcp_cluster import WAIT_S, TcpClient, TcpCluster

CONNECTIONS = 50
WAITING = "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation=Fetch"


def patient_fetch(topic_id: uuid.UUID) -> bytes:
    """The frame of one that waits for a mebibyte as long as the protocol can say."""
    asked = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    return framed(
        frame_of(
            FetchRequest(
                max_wait=timedelta(milliseconds=2**31 - 1),
                min_bytes=1 << 20,
                topics=(FetchTopic(topic_id=topic_id, partitions=(asked,)),),
                forgotten_topics_data=(),
            ),
            1,
        )
    )


def assert_fetches_end_with_their_connections(node: Node, address: tuple[str, int]) -> None:
    def waiting() -> int:
        return int(
            next(
                v
                for name, v in node.metrics.values().items()
                if "Fetch" in name and "NumDelayedOperations" in name
            )
        )

    frame = patient_fetch(uuid_of(node.loader.published.topics["orders"].topic_id))
    with connected(address) as patient:
        patient.sendall(frame)
        until(lambda: waiting() == 1)
        for _ in range(CONNECTIONS):
            with connected(address) as hostile:
                hostile.sendall(frame)
                until(lambda: waiting() == 2)
            until(lambda: waiting() == 1)
        # Nothing else is left of them, either.
        until(lambda: gc.collect() >= 0 and sum(type(each) is DelayedFetch for each in gc.get_objects()) == 1)
    until(lambda: waiting() == 0)


def test_fetches_of_a_node_end_with_their_connections(tmp_path: Path) -> None:
    cluster = TcpCluster(tmp_path, 1)
    cluster.start()
    client = TcpClient(cluster)
    try:
        client.admin.create_topic("orders", partitions=1, replication_factor=1).result(WAIT_S)
        client.append("orders", 0, [b"first"])
        assert_fetches_end_with_their_connections(cluster.nodes[1].node, cluster.addresses[1])
    finally:
        client.close()
        cluster.close()


def test_fetches_of_a_cluster_in_one_process_end_with_their_connections() -> None:
    with Cluster(brokers=1, serve=True) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", [b"first"], partition=0).result(WAIT_S)
        host, port = cluster.bootstrap_servers.split(":")
        node = cluster._nodes.node(1)
        assert node is not None
        assert_fetches_end_with_their_connections(node, (host, int(port)))
