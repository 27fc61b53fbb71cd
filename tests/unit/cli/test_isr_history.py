"""`kreplica isr-history`: when leaders and ISRs changed, from a node's metadata log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


def run(*arguments: str | Path, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["isr-history", *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result.output


def changes(*arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("--json", *arguments).splitlines()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster's, in which broker 3 left the ISR of orders-0 and came back, and which was closed then."""
    path = tmp_path_factory.mktemp("cluster")
    with kreplica.Cluster(3, path) as cluster:
        cluster.create_topic("orders", 1, 3)
        cluster.create_topic("other", 1, 3)
        view = cluster.partition("orders")
        cluster.stop(3)
        cluster._wait(lambda: 3 not in view.isr, 30, "a smaller ISR")
        cluster.start(3)
        cluster._wait(lambda: 3 in view.isr, 30, "the whole ISR")
        cluster._wait(
            lambda: cluster.node(1).raft.high_watermark == cluster.node(1).raft.log.end_offset, 30, ""
        )
    return path


def test_changes_are_listed_after_the_cluster_has_ended(directory: Path) -> None:
    found = changes(directory / "node-1", "--topic", "orders")
    assert [each["offset"] for each in found] == sorted(each["offset"] for each in found)
    assert {(each["topic"], each["partition"]) for each in found} == {("orders", 0)}
    first = found[0]
    assert first["change"] == "created"
    assert sorted(first["isr"]) == [1, 2, 3]
    left = next(each for each in found if each["left"] == [3])
    assert sorted(left["isr"]) == [1, 2]
    back = next(each for each in found if each["joined"] == [3])
    assert first["timestamp"] <= left["timestamp"] <= back["timestamp"]
    assert back["offset"] > left["offset"]
    assert sorted(back["isr"]) == [1, 2, 3]


def test_all_topics_are_listed_and_the_log_itself_may_be_named(directory: Path) -> None:
    found = changes(directory / "node-2" / "__cluster_metadata-0")
    assert {each["topic"] for each in found} == {"orders", "other"}
    assert found == changes(directory / "node-2")
    assert changes(directory / "node-2", "--topic", "orders", "--partition", "1") == []


def test_a_table_has_the_changes_with_their_dates(directory: Path) -> None:
    text = run(directory / "node-1", "--topic", "orders")
    assert "created" in text
    assert "orders" in text


def test_what_kafka_wrote_is_read() -> None:
    assert {each["change"] for each in changes(KAFKA)} <= {"snapshot", "created", "changed", "deleted"}


def test_a_directory_without_a_metadata_log_is_refused(tmp_path: Path) -> None:
    text = run(tmp_path, exit_code=2)
    assert "no metadata log" in text


def test_a_log_that_begins_behind_a_snapshot_begins_with_its_state(directory: Path, tmp_path: Path) -> None:
    log = directory / "node-1" / "__cluster_metadata-0"
    copied = tmp_path / "__cluster_metadata-0"
    copied.mkdir()
    for path in log.iterdir():
        if path.suffix == ".log":
            data = path.read_bytes()
            size = kreplica.RecordBatch(data, 0).size
            end = kreplica.RecordBatch(data, 0).next_offset
            (copied / f"{end:020}-0000000001.checkpoint").write_bytes(data[:size])
            (copied / f"{end:020}.log").write_bytes(data[size:])
            break
    assert changes(tmp_path) == changes(directory / "node-1")
