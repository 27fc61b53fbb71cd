"""States of share partitions on three nodes over sockets: found, stored, read elsewhere, and taken over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kreplica.common import errors
from kreplica.common.share_state import ACKNOWLEDGED, SharePartitionKey, ShareState, StateBatch
from kreplica.common.types import TopicPartition, Uuid
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.share_coordinator import SHARE_GROUP_STATE
from tests.support.tcp_cluster import TcpClient, TcpCluster

TIMEOUT_S = 60
BATCH = StateBatch(3, 5, ACKNOWLEDGED, 1)


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[TcpCluster]:
    with TcpCluster(tmp_path, brokers=3) as cluster:
        yield cluster


@pytest.fixture
def topic_id(cluster: TcpCluster) -> Iterator[Uuid]:
    client = TcpClient(cluster)
    client.admin.create_topic("t", partitions=2, replication_factor=3).result(TIMEOUT_S)
    found = next(iter(cluster.nodes.values())).node.topic_id("t")
    assert found is not None
    yield found
    client.close()


def persister(cluster: TcpCluster, node_id: int) -> Any:
    return cluster.nodes[node_id].node.share_persister


def coordinator(cluster: TcpCluster, key: SharePartitionKey) -> int:
    metadata = cluster.nodes[cluster.live[0]].node.loader.published
    at = TopicPartition(SHARE_GROUP_STATE, partition_for(str(key), 50))
    found = metadata.partition(at)
    assert found is not None
    return int(found.leader)


def test_states_outlive_their_coordinator(cluster: TcpCluster, topic_id: Uuid) -> None:
    keys = [SharePartitionKey("g", topic_id, number) for number in (0, 1)]
    # The first of these calls creates the topic.
    for future in [persister(cluster, 1).initialize(key, 1, 0) for key in keys]:
        assert future.result(TIMEOUT_S) is None
    for node_id in (1, 2, 3):
        written = persister(cluster, node_id).write(keys[0], ShareState(1, node_id, node_id, (BATCH,), 3))
        assert written.result(TIMEOUT_S) is None
    stored = ShareState(1, 3, 3, (BATCH,))
    assert persister(cluster, 1).read(keys[0], 3).result(TIMEOUT_S) == stored
    late = persister(cluster, 2).write(keys[0], ShareState(1, 2, 9))
    assert isinstance(late.exception(TIMEOUT_S), errors.FencedLeaderEpoch)

    lost = coordinator(cluster, keys[0])
    cluster.nodes[lost].close()
    left = cluster.live[0]
    assert persister(cluster, left).read(keys[0], 3).result(TIMEOUT_S) == stored
    assert coordinator(cluster, keys[0]) != lost
    assert persister(cluster, left).delete(keys[0]).result(TIMEOUT_S) is None
    assert isinstance(persister(cluster, left).read(keys[0], 3).exception(TIMEOUT_S), errors.InvalidRequest)
    assert persister(cluster, left).summary(keys[1], 0).result(TIMEOUT_S).state_epoch == 1
