"""`kreplica diff`: exit codes, and what it says of two partitions and of two nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app
from tests.conformance.expectation import FIXTURES
from tests.support.batches import build
from tests.unit.log.diff.replicas import batch, replica

KAFKA = FIXTURES / "clean" / "logs"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory like Kafka's, but for a rotted batch, a partition too few and one too many."""
    copy = shutil.copytree(KAFKA, tmp_path / "node")
    shutil.rmtree(copy / "idempotent-0")
    shutil.copytree(KAFKA / "segments-0", copy / "other-7")
    path = copy / "segments-0" / "00000000000000000012.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return copy


def test_partitions_that_agree() -> None:
    result = CliRunner().invoke(app, ["diff", str(KAFKA / "segments-0"), str(KAFKA / "segments-0")])
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "segments-0" in line]
    assert line.replace("│", " ").split() == ["segments-0", "agree", "0", "120", "120", "0"]


def test_two_nodes(node: Path) -> None:
    result = CliRunner().invoke(app, ["diff", "--json", str(KAFKA), str(node)])
    assert result.exit_code == 1
    facts = {fact["partition"]: fact for fact in map(json.loads, result.stdout.splitlines())}
    outcomes = {name: fact["outcome"] for name, fact in facts.items()}
    assert outcomes.pop("segments-0") == "damaged"
    assert outcomes.pop("idempotent-0") == "only left"
    assert outcomes.pop("other-7") == "only right"
    assert len(outcomes) == 14
    assert set(outcomes.values()) == {"agree"}
    (lost,) = facts["segments-0"]["lost"]
    assert (lost["side"], lost["first_offset"], lost["next_offset"]) == ("right", 12, 15)
    assert facts["epochs-0"]["epochs"]["agreed"] == {"epoch": 6, "start_offset": 16}


def test_without_a_partition_in_common_there_is_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(KAFKA / "segments-0", other / "other-7")
    for left, right in ((tmp_path / "empty", KAFKA), (KAFKA, tmp_path / "empty"), (KAFKA, other)):
        result = CliRunner().invoke(app, ["diff", str(left), str(right)])
        assert (result.exit_code, "no partition in common" in result.stderr) == (2, True)


def test_a_divergence_is_reported_with_offset_and_epoch(tmp_path: Path) -> None:
    common = [batch(0, [b"a", b"b"])]
    left = replica(tmp_path / "l" / "t-0", [*common, batch(2, [b"left"], 4)], epochs=[(0, 0), (4, 2)])
    right = replica(tmp_path / "r" / "t-0", [*common, batch(2, [b"right"], 5)], epochs=[(0, 0), (5, 2)])
    result = CliRunner().invoke(app, ["diff", left, right])
    assert result.exit_code == 1
    assert "the batches differ at offset 2, leader epoch 5" in result.stdout
    assert "By leader epochs alone they agree up to epoch 0, offset 2." in result.stdout
    result = CliRunner().invoke(app, ["diff", "--json", left, right])
    fact = json.loads(result.stdout)
    assert (fact["outcome"], fact["agreed_offset"], fact["divergence"]["offset"]) == ("differ", 2, 2)
    assert fact["divergence"]["right"]["leader_epoch"] == 5


def test_records_of_compacted_replicas(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", [batch(0, [b"a"]), batch(1, [b"b", b"c"])])
    right = replica(tmp_path / "r" / "t-0", [batch(0, [b"a"]), batch(2, [b"c"])])
    assert CliRunner().invoke(app, ["diff", left, right]).exit_code == 1
    result = CliRunner().invoke(app, ["diff", "--records", left, right])
    assert result.exit_code == 0
    assert "1 record only on the left, the first at offset 1." in result.stdout


def test_an_unreadable_partition_is_reported_and_the_others_are_compared(node: Path) -> None:
    (node / "epochs-0" / "leader-epoch-checkpoint").write_text("no such file\n")
    result = CliRunner().invoke(app, ["diff", "--json", str(KAFKA), str(node)])
    assert result.exit_code == 1
    outcomes = {fact["partition"]: fact["outcome"] for fact in map(json.loads, result.stdout.splitlines())}
    assert outcomes["epochs-0"] == "unread"
    assert outcomes["trimmed-0"] == "agree"


def test_the_folders_of_two_clusters(tmp_path: Path) -> None:
    """Two folders are compared as a cluster and its copy: node by node, with an outcome for each log."""
    for side in ("left", "right"):
        for node in ("node-1", "node-2"):
            shutil.copytree(KAFKA / "segments-0", tmp_path / side / node / "t-0")
    (last := tmp_path / "right" / "node-2" / "t-0").rename(tmp_path / "moved")
    last.mkdir()
    result = CliRunner().invoke(app, ["diff", "--json", str(tmp_path / "left"), str(tmp_path / "right")])
    assert result.exit_code == 1
    outcomes = {fact["partition"]: fact["outcome"] for fact in map(json.loads, result.stdout.splitlines())}
    assert outcomes == {"node-1/t-0": "agree", "node-2/t-0": "unread"}
    assert f"not checked: {last}: holds no segment" in result.stderr


def test_empty_replicas_are_equal(tmp_path: Path) -> None:
    paths = []
    for name, start in (("a", 0), ("b", 0), ("c", 3)):
        with kreplica.Log.open(tmp_path / name / "t-0") as log:
            if start:
                log.append([b"value"] * start)
                log.delete_records(start)
        paths.append(str(tmp_path / name / "t-0"))
    for right, outcome in ((paths[1], "agree"), (paths[2], "nothing in common")):
        result = CliRunner().invoke(app, ["diff", "--json", paths[0], right])
        assert (result.exit_code, json.loads(result.stdout)["outcome"]) == (0, outcome)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (KAFKA, KAFKA / "segments-0"),
        (KAFKA / "segments-0", KAFKA),
        (KAFKA, KAFKA / "missing"),
        (FIXTURES.parent, KAFKA / "segments-0"),
        (KAFKA / "meta.properties", KAFKA),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(left: Path, right: Path) -> None:
    assert CliRunner().invoke(app, ["diff", str(left), str(right)]).exit_code == 2


def test_an_isolation_level_bounds_what_is_compared(tmp_path: Path) -> None:
    sides = []
    for name in ("l", "r"):
        with kreplica.Log.open(tmp_path / name / "t-0") as log:
            log.append_batch(build([b"a"], now_ms=0))
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            log.append_batch(build([b"open"], now_ms=0, transactional=True, **producer))
            log.append_batch(build([name.encode()], now_ms=0))
        sides.append(str(tmp_path / name / "t-0"))
    codes = {
        level: CliRunner().invoke(app, ["diff", *sides, "--isolation", level]).exit_code
        for level in ("log_end", "read_uncommitted", "read_committed", "txn_committed")
    }
    assert codes == {"log_end": 1, "read_uncommitted": 1, "read_committed": 0, "txn_committed": 0}
