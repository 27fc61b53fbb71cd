"""`kreplica verify`: exit codes, and where it says the problem is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


def test_sound_files() -> None:
    result = CliRunner().invoke(app, ["verify", str(KAFKA), str(KAFKA / "segments-0")])
    assert result.exit_code == 0
    assert result.stdout.startswith("no problems in ")
    assert CliRunner().invoke(app, ["verify", "--json", str(KAFKA)]).stdout == ""


def test_the_place_of_a_problem(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(damaged)])
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "InvalidCrc" in line]
    assert " 1029 " in line
    assert " 9 " in line
    assert result.stdout.splitlines()[-1].startswith("1 problem in ")


def test_the_place_of_a_problem_for_programs(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--json", str(damaged)])
    assert result.exit_code == 1
    (problem,) = map(json.loads, result.stdout.splitlines())
    text = problem.pop("text")
    assert "BAD_CRC" in text
    path = str(damaged / "00000000000000000000.log")
    assert problem == {"path": path, "kind": "InvalidCrc", "offset": 9, "position": 1029}


@pytest.mark.parametrize("path", [KAFKA / "meta.properties", KAFKA / "missing", KAFKA.parents[3] / "unit"])
def test_what_is_no_log_is_a_usage_error(path: Path) -> None:
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == 2


@pytest.mark.parametrize("name", ["junk.log", "node-1/junk.log", "t-0/00000000000000000000.index"])
def test_where_nothing_is_checked_nothing_is_said_to_be_sound(tmp_path: Path, name: str) -> None:
    junk = tmp_path / name
    junk.parent.mkdir(exist_ok=True)
    junk.write_bytes(b"rubble")
    for path in (junk, tmp_path):
        result = CliRunner().invoke(app, ["verify", str(path)])
        assert (result.exit_code, "with logs" in result.stderr) == (2, True), path
        assert result.stdout == ""


def test_six_bytes_are_no_segment(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(b"rubble")
    for path in (tmp_path, tmp_path / f"{0:020}.log"):
        result = CliRunner().invoke(app, ["verify", "--json", str(path)])
        problems = [json.loads(line) for line in result.stdout.splitlines()]
        assert result.exit_code == 1
        assert (str(tmp_path / f"{0:020}.log"), 0) in [(each["path"], each["position"]) for each in problems]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The folder of a cluster of two nodes with a partition each, beside files that belong to neither."""
    root = tmp_path / "cluster"
    with kreplica.Cluster(brokers=2, directory=root) as running:
        running.create_topic("t", partitions=1, replication_factor=2)
        running.append("t", [b"value"], partition=0).result(30)
    (root / "notes").mkdir()
    (root / "node-1" / "junk.bin").write_bytes(b"rubble")
    (root / "node-1" / "empty-0").mkdir()
    (root / "node-1" / "t-0" / "copy.log").touch()
    return root


def test_a_clusters_folder_is_walked(cluster: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(cluster)])
    assert result.exit_code == 0, result.output
    each = [CliRunner().invoke(app, ["verify", str(cluster / name)]) for name in ("node-1", "node-2")]
    assert size_in(result.stdout) == sum(size_in(one.stdout) for one in each) > 0
    left_out = [line.removeprefix("not checked: ") for line in result.stderr.splitlines()]
    assert sorted(left_out) == [
        f"{cluster}/node-1/empty-0: holds no segment and no log directory",
        f"{cluster}/node-1/junk.bin: no file of a log directory is named so",
        f"{cluster}/node-1/t-0/copy.log: no segment is named so: twenty digits and .log",
        f"{cluster}/notes: holds no segment and no log directory",
    ]
    segment = cluster / "node-2" / "t-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    result = CliRunner().invoke(app, ["verify", "--json", str(cluster)])
    assert result.exit_code == 1
    assert {json.loads(line)["path"] for line in result.stdout.splitlines()} >= {str(segment)}


def test_the_snapshots_of_a_clusters_nodes_are_looked_at(cluster: Path) -> None:
    (snapshot,) = (cluster / "node-1" / "__cluster_metadata-0").glob("*.checkpoint")
    snapshot.write_bytes(b"rubble")
    result = CliRunner().invoke(app, ["verify", "--json", str(cluster)])
    assert result.exit_code == 1
    assert str(snapshot) in {json.loads(line)["path"] for line in result.stdout.splitlines()}


def size_in(text: str) -> int:
    return int(text.split(" in ")[1].split(" bytes")[0].replace(",", ""))
