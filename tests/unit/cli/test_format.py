"""`kreplica format` with the first voters of a quorum whose voters come and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplica import Cluster
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import read_properties
from kreplica.cli import format as command
from kreplica.cli.app import app
from kreplica.common.errors import InvalidConfig, InvalidFile, LogDirLocked
from kreplica.common.types import Uuid
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.runtime.storage import FileStorage

CLUSTER = "abcdefghijklmnopqrstuv"
FIRST, SECOND = "4B5DMGYqTE-HwVOXNbBncQ", "bX0uExdrQi2F4Kd6wVjLiA"
CONTROLLERS = f"1@10.0.0.1:9093:{FIRST},2@[::1]:9093:{SECOND}"


def formatted(directory: Path, node_id: int, controllers: str = CONTROLLERS) -> Uuid | None:
    """The id of the directory then."""
    assert command.run([str(directory)], node_id, CLUSTER, False, False, controllers) == 0
    config = NodeConfig(node_id=node_id, cluster_id=CLUSTER, directories=(str(directory),))
    found = read_properties(config, FileStorage(), str(directory))
    assert found is not None
    return found.directory_id


def test_a_first_voter_has_the_directory_that_the_others_know(tmp_path: Path) -> None:
    assert formatted(tmp_path / "1", 1) == Uuid.parse(FIRST)
    assert formatted(tmp_path / "2", 2) == Uuid.parse(SECOND)
    # A node that is not among the first voters gets an id of its own.
    assert formatted(tmp_path / "3", 3) not in (Uuid.parse(FIRST), Uuid.parse(SECOND))


def test_the_voters_have_listeners() -> None:
    voters = command.parse_controllers(CONTROLLERS)
    assert voters.voters[2].endpoints == (VoterEndpoint(name="CONTROLLER", host="::1", port=9093),)


def test_a_directory_keeps_its_id(tmp_path: Path) -> None:
    formatted(tmp_path / "1", 1)
    other = f"1@10.0.0.1:9093:{SECOND}"
    with pytest.raises(InvalidConfig, match=FIRST):
        command.run([str(tmp_path / "1")], 1, CLUSTER, True, False, other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1@h:9093",
        "1@h:9093:",
        "1@h:9093:x",
        f"h:9093:{FIRST}",
        f"1@h:{FIRST}",
        f"1@h:1:{FIRST},1@h:2:{FIRST}",
    ],
)
def test_what_names_no_voters_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidConfig, match="--initial-controllers"):
        command.run([str(tmp_path / "1")], 1, CLUSTER, False, False, text)
    assert not (tmp_path / "1").exists()


# ---- the way back ----------------------------------------------------------------------------------------


def recover(directory: Path, node_id: int, *more: str) -> str:
    flags = ["--directory", str(directory), "--node-id", str(node_id), "--recover", *more]
    done = CliRunner().invoke(app, ["format", *flags], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("stored", [[2**31] * 3, [2**31 - 1] * 3, [2**31, 2**31 - 2, 2**31 - 1]])
def test_a_cluster_whose_epochs_are_used_up_comes_back_with_all_its_records(
    tmp_path: Path, stored: list[int]
) -> None:
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", [b"before"], partition=0).result(60)
    for node_id, epoch in enumerate(stored, 1):
        file = tmp_path / f"node-{node_id}" / CLUSTER_METADATA_DIRECTORY / "quorum-state"
        fields = {**json.loads(file.read_text()), "leaderEpoch": epoch, "leaderId": -1, "votedId": -1}
        file.write_text(json.dumps(fields))
    if 2**31 in stored:
        with pytest.raises(InvalidFile, match="format --recover"):
            Cluster(brokers=3, directory=tmp_path)
    for node_id in (1, 2, 3):
        assert "lowered the quorum's epoch" in recover(tmp_path / f"node-{node_id}", node_id)
        # What is sound stays as it is.
        assert json.loads(recover(tmp_path / f"node-{node_id}", node_id, "--json"))["epoch"] < 2**22
    with Cluster(brokers=3, directory=tmp_path) as cluster:
        cluster.append("orders", [b"after"], partition=0).result(60)
        assert [record.value for record in cluster.read("orders", 0, 0)] == [b"before", b"after"]


def test_a_node_that_runs_is_not_recovered(tmp_path: Path) -> None:
    with Cluster(brokers=1, directory=tmp_path), pytest.raises(LogDirLocked):
        command.recover([str(tmp_path / "node-1")], 1, False)


def test_another_nodes_directory_is_not_recovered(tmp_path: Path) -> None:
    formatted(tmp_path / "1", 1)
    with pytest.raises(InvalidFile, match="belongs to node 1, not to 2"):
        command.recover([str(tmp_path / "1")], 2, False)
