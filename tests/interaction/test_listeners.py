"""What each listener of a node answers: clients, brokers and controllers each have theirs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from kreplica import Cluster
from kreplica.broker.api_versions import API_RANGES, Scope
from kreplica.common.messages.data import (
    ApiVersionsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ReplicaState,
)
from kreplica.common.quorum_state import LAST_EPOCH
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.raft_messages import make_begin_request, make_snapshot_request, make_vote_request
from kreplica.raft.voter_set import ReplicaKey
from tests.support.asking import answer, is_closed_for_key
from tests.support.node_processes import NodeProcesses
from tests.support.ports import free_ports
from tests.support.serving import WAIT_S, Command
from tests.support.tcp_cluster import CLUSTER_ID, TcpClient

METADATA_TOPIC = uuid.UUID(int=1)
FAR_END = OffsetAndEpoch(1 << 40, LAST_EPOCH - 1)
VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")
ALL_TOPICS = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)


def fetch(topic_id: uuid.UUID, replica_id: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id),
        max_wait=timedelta(0),
        min_bytes=1,
        topics=(FetchTopic(topic_id=topic_id, partitions=(asked,)),),
        forgotten_topics_data=(),
    )


OF_NODES = {
    "Vote": make_vote_request("c", ReplicaKey(1), ReplicaKey(2), 5, OffsetAndEpoch(9, 1), pre_vote=False),
    "BeginQuorumEpoch": make_begin_request("c", ReplicaKey(1), 2, 5),
    "FetchSnapshot": make_snapshot_request("c", ReplicaKey(2), 1, OffsetAndEpoch(1, 1), 0, 100),
    "Fetch of a replica": fetch(uuid.UUID(int=99), 2),
    "Fetch of the metadata log": fetch(METADATA_TOPIC, -1),
    "ListOffsets of a replica": ListOffsetsRequest(replica_id=2, isolation_level=0, topics=()),
    "OffsetForLeaderEpoch of a replica": OffsetForLeaderEpochRequest(replica_id=2, topics=()),
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.mark.parametrize("name", OF_NODES)
def test_a_clients_port_is_closed_to_what_nodes_ask(nodes: NodeProcesses, name: str) -> None:
    assert answer(nodes.addresses[1], OF_NODES[name]) is None
    assert answer(nodes.controllers[1], OF_NODES[name]) is not None
    assert answer(nodes.addresses[1], ALL_TOPICS) is not None


def test_a_listener_has_the_apis_that_it_says_it_has(nodes: NodeProcesses) -> None:
    listed = {each.api_key for each in answer(nodes.addresses[1], VERSIONS).api_keys}
    controllers = {each.api_key for each in answer(nodes.controllers[1], VERSIONS).api_keys}
    assert listed == {key for key, each in API_RANGES.items() if Scope.CLIENTS in each.scope}
    assert {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}.isdisjoint(listed)
    for key in set(API_RANGES) - listed:
        assert is_closed_for_key(nodes.addresses[1], key), key
    assert {3, 8, 11}.isdisjoint(controllers)
    # Dead letters go to the leaders of their topics.
    assert 0 in controllers
    assert answer(nodes.controllers[1], ALL_TOPICS) is None


def test_forged_votes_do_not_end_a_cluster(nodes: NodeProcesses) -> None:
    client = TcpClient(nodes)
    try:
        client.admin.create_topic("votes", partitions=1, replication_factor=3).result(WAIT_S)
        client.append("votes", 0, [b"before"])
        for cluster_id in (None, CLUSTER_ID):
            for voter, candidate in ((1, 2), (2, 3), (3, 1)):
                for address in (nodes.controllers[voter], nodes.addresses[voter]):
                    sender = ReplicaKey(candidate)
                    vote = make_vote_request(
                        cluster_id, ReplicaKey(voter), sender, LAST_EPOCH, FAR_END, pre_vote=False
                    )
                    found = answer(address, vote)
                    assert found is None or not any(
                        topic.partitions[0].vote_granted for topic in found.topics
                    )
        nodes.kill(1, 2, 3)
        nodes.start_all()
        client.append("votes", 0, [b"after"])
        assert client.values("votes", 0, 2) == [b"before", b"after"]
    finally:
        client.close()


def test_the_ports_of_a_cluster_in_one_process_are_for_clients() -> None:
    with Cluster(brokers=1, serve=True) as cluster:
        host, port = cluster.bootstrap_servers.split(":")
        for request in OF_NODES.values():
            assert answer((host, int(port)), request) is None, request
        assert answer((host, int(port)), ALL_TOPICS) is not None


def test_brokers_that_are_no_voters_have_a_port_for_each_other(tmp_path: Path) -> None:
    port = free_ports(8)
    with Command("serve", "--brokers", 4, "--directory", tmp_path / "d", "--listen", f":{port}") as cluster:
        cluster.lines_until("nodes are ready")
        for node in range(4):
            client, inner = ("127.0.0.1", port + node), ("127.0.0.1", port + 4 + node)
            assert answer(client, fetch(uuid.UUID(int=99), 2)) is None
            assert answer(inner, fetch(uuid.UUID(int=99), 2)) is not None
