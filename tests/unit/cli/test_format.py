"""`kreplica format` with the first voters of a quorum whose voters come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_format import read_properties
from kreplica.cli import format as command
from kreplica.common.errors import InvalidConfig
from kreplica.common.types import Uuid
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
    # Who is none of them has an id of its own.
    assert formatted(tmp_path / "3", 3) not in (Uuid.parse(FIRST), Uuid.parse(SECOND))


def test_the_voters_have_listeners() -> None:
    voters = command.parse_controllers(CONTROLLERS)
    assert voters.endpoint(2, "CONTROLLER") == VoterEndpoint(name="CONTROLLER", host="::1", port=9093)


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
