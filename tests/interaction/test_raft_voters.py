"""Voters of a quorum of processes come and go, by Kafka's requests over TCP (KIP-853)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kreplica.cli import quorum
from kreplica.common.errors import (
    DuplicateVoter,
    InconsistentClusterId,
    InvalidRequest,
    RequestTimedOut,
    UnsupportedVersion,
    VoterNotFound,
)
from tests.support.node_processes import NodeProcesses
from tests.support.ports import free_addresses
from tests.support.sockets import until
from tests.support.tcp_cluster import CLUSTER_ID, WAIT_S, TcpClient

OTHER_CLUSTER = "another-cluster-------"


def listener_of(nodes: NodeProcesses, node_id: int) -> str:
    host, port = nodes.controllers[node_id]
    return f"CONTROLLER://{host}:{port}"


def voters(nodes: NodeProcesses, capsys: pytest.CaptureFixture[str]) -> set[int]:
    """The ids of the voters, as a broker reports them."""
    capsys.readouterr()
    quorum.describe(nodes.bootstrap, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["node"] for line in lines if line["role"] != "observer"}


def is_done(change: Callable[..., int], nodes: NodeProcesses, *arguments: object) -> bool:
    """Ask for the change, which a busy machine may not make in the half second that it has."""
    try:
        change(nodes.bootstrap, *arguments)
    except RequestTimedOut:
        return False
    except (DuplicateVoter, VoterNotFound):
        pass  # an earlier try has come through
    return True


def test_a_fourth_controller_takes_the_place_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NodeProcesses(tmp_path, nodes=4, voters=3) as nodes:
        client = TcpClient(nodes)
        client.admin.create_topic("orders", partitions=1, replication_factor=3).result(WAIT_S)
        client.append("orders", 0, [b"before"])
        assert voters(nodes, capsys) == {1, 2, 3}
        directory = {node_id: str(found) for node_id, found in nodes.directory_ids.items()}
        with pytest.raises(InconsistentClusterId):
            quorum.add_voter(nodes.bootstrap, OTHER_CLUSTER, 4, directory[4], [listener_of(nodes, 4)])
        with pytest.raises(VoterNotFound):
            quorum.remove_voter(nodes.bootstrap, CLUSTER_ID, 4, directory[4])
        until(lambda: is_done(quorum.add_voter, nodes, CLUSTER_ID, 4, directory[4], [listener_of(nodes, 4)]))
        until(lambda: voters(nodes, capsys) == {1, 2, 3, 4})
        until(lambda: is_done(quorum.remove_voter, nodes, None, 1, directory[1]))
        until(lambda: voters(nodes, capsys) == {2, 3, 4})
        # The first one is needed no more, nor is one of the others; all know where the fourth listens.
        nodes.kill(1, 2)
        client.admin.create_topic("without-two", partitions=1, replication_factor=1).result(WAIT_S)
        nodes.start(2)
        nodes.kill(3)
        client.admin.create_topic("by-the-fourth", partitions=1, replication_factor=1).result(WAIT_S)
        client.close()


def test_a_controller_joins_a_quorum_that_it_knows_by_bootstrap_servers_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is formatted without voters, and becomes one without an operator; the others then reach it."""
    with NodeProcesses(tmp_path, nodes=3, voters=2, joining={3}) as nodes:
        until(lambda: voters(nodes, capsys) == {1, 2, 3})
        client = TcpClient(nodes)
        client.admin.create_topic("orders", partitions=1, replication_factor=3).result(WAIT_S)
        # Two of three voters decide, so the third one's vote is needed from here on.
        nodes.kill(1)
        client.admin.create_topic("by-the-third", partitions=1, replication_factor=1).result(WAIT_S)
        nodes.start(1)
        nodes.stop(3)
        nodes.start(3)
        assert voters(nodes, capsys) == {1, 2, 3}
        client.close()


def test_a_node_that_was_a_controller_and_is_a_broker_now_does_not_become_a_voter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could not be elected: two of four voters that are gone would leave a quorum without a leader."""
    with NodeProcesses(tmp_path, nodes=4, voters=3) as nodes:
        nodes.stop(4)
        nodes.change(4, **{"process.roles": "broker"})
        nodes.start(4)

        def is_refused() -> bool:
            with pytest.raises((InvalidRequest, RequestTimedOut)) as raised:
                quorum.add_voter(
                    nodes.bootstrap, CLUSTER_ID, 4, str(nodes.directory_ids[4]), [listener_of(nodes, 4)]
                )
            return raised.type is InvalidRequest

        until(is_refused)
        assert voters(nodes, capsys) == {1, 2, 3}


@pytest.mark.parametrize("count", [1, 3])
def test_controllers_that_are_started_at_other_addresses_are_found_there(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One at a time: the others find it by the quorum's log. A single one writes its own listener there."""
    with NodeProcesses(tmp_path, nodes=count, voters=count) as nodes:

        def listeners() -> dict[int, list[str]]:
            capsys.readouterr()
            quorum.describe(nodes.bootstrap, as_json=True)
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            return {line["node"]: line["listeners"] for line in lines}

        for node_id in nodes.ids:
            nodes.stop(node_id)
            nodes.controllers[node_id] = free_addresses(1)[0]
            nodes.start(node_id)
            until(lambda moved=node_id: listeners()[moved] == [listener_of(nodes, moved)])


def test_configured_voters_stay(tmp_path: Path) -> None:
    with NodeProcesses(tmp_path, nodes=1) as nodes:
        directory = str(nodes.directory_ids[1])
        with pytest.raises(UnsupportedVersion, match="fixed by its configuration"):
            quorum.add_voter(nodes.bootstrap, CLUSTER_ID, 2, directory, [listener_of(nodes, 1)])


@pytest.mark.parametrize("voters", [None, 3])
def test_a_node_that_is_formatted_for_another_cluster_ends_and_says_so(
    tmp_path: Path, voters: int | None
) -> None:
    stranger = 4 if voters else 3
    nodes = NodeProcesses(tmp_path, nodes=stranger, voters=voters, cluster_ids={stranger: OTHER_CLUSTER})
    try:
        for node_id in nodes.ids:
            nodes.start(node_id, wait=False)
        assert nodes.wait_for_end(stranger) == 1
        said = nodes.log_file(stranger).read_text()
        assert f"node {stranger} is formatted for cluster '{OTHER_CLUSTER}'" in said
        for node_id in nodes.live:
            nodes.wait_until_ready(node_id)
        assert stranger not in nodes.live
    except BaseException:
        nodes.show_logs()
        raise
    finally:
        nodes.close()
