"""`kreplica watch`: the changes of the tree, from a log on disk and from a leader with a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli import watch
from kreplica.cli.app import app
from kreplica.common.errors import NetworkException
from kreplica.metadata.image_paths import TreeChange
from kreplica.metadata.image_writer import ImageStore
from kreplica.metadata.metadata_loader import TreeReplay
from kreplica.sim.nodes.node_cluster import NodeCluster

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"
SHORT_LOG = {
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "metadata.log.segment.bytes": 4_096,
    "metadata.max.retention.bytes": 4_096,
}


def run(*arguments: str | Path, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["watch", *map(str, arguments)])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return result.output


def test_a_log_on_disk_has_all_changes(tmp_path: Path) -> None:
    with kreplica.Cluster(1, tmp_path) as cluster, cluster.watch() as own:
        cluster.create_topic("orders", config={"retention.ms": 5})
        seen = [next(own) for _ in range(3)]
        cluster.alter_config("orders", {"retention.ms": 6})
        seen.append(next(own))
        options = ("--directory", tmp_path / "node-1", "--from-beginning", "--timeout", "0")
        found = [TreeChange(**json.loads(line)) for line in run("--json", *options).splitlines()]
        assert [each for each in found if "orders" in each.path] == seen
        assert found[0].path == "/controller"
        line = run("/config", *options).splitlines()[-1]
        assert line.split(maxsplit=1)[1] == "/config/2/orders  retention.ms 5 -> 6"
        assert run("/config", "--directory", tmp_path / "node-1", "--timeout", "0") == ""


def test_what_kafka_wrote_is_read() -> None:
    text = run("/brokers", "--directory", KAFKA, "--from-beginning", "--timeout", "0")
    assert "/brokers/ids/1  created" in text


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    assert "no metadata log" in run("--directory", tmp_path, exit_code=2)
    assert "is not a path" in run("orders", "--directory", KAFKA, exit_code=2)


def test_a_wrong_address_is_an_error_before_the_patience_with_elections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "CONNECT_S", 0.0)
    monkeypatch.setattr(watch, "NO_LEADER_S", float("inf"))
    with pytest.raises(NetworkException, match=r"no leader of the quorum answers at 127\.0\.0\.1:1"):
        list(watch.of_quorum("127.0.0.1:1", from_beginning=False, timeout_s=3.0))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (None, {"leader": 1, "isr": [1, 2]}, "created leader=1  isr=[1, 2]"),
        ({"leader": 1}, None, "deleted"),
        ({"leader": 1, "isr": [1]}, {"leader": None, "isr": [1]}, "leader 1 -> None"),
        (3, 4, "3 -> 4"),
    ],
)
def test_a_change_is_a_line(old: Any, new: Any, text: str) -> None:
    assert watch.described(TreeChange("/a", 12, old, new)) == f"      12  /a  {text}"


class SimulatedLeader(watch._Leader):
    """The connection to the leader of a simulated quorum."""

    def __init__(self, cluster: NodeCluster) -> None:
        node = cluster.node(cluster.controller)
        self._cluster_id = node.config.cluster_id
        self._epoch = node.raft.leader_and_epoch.epoch
        self._connection = self
        self.asked: list[str] = []
        self.ask = lambda request: self._answered(cluster, node, request)

    def _answered(self, cluster: NodeCluster, node: Any, request: Any) -> Any:
        self.asked.append(type(request).__name__)
        return cluster.result(node.handle(request), 5_000)


def test_a_leader_without_the_first_records_gives_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FETCH_BYTES", 512)
    cluster = NodeCluster(1, seed=5, settings=SHORT_LOG)
    cluster.boot()
    for number in range(60):
        cluster.result(cluster.client.admin.create_topic(f"topic-{number}"), 5_000)
        cluster.run_until(lambda: False, 100)
    leader, replay, found, is_at_end = SimulatedLeader(cluster), TreeReplay(), [], False
    while not is_at_end:
        changes, is_at_end = leader.fetch(replay)
        found += changes
    assert leader.asked.count("FetchSnapshotRequest") > 1
    topics = [each for each in found if each.path.endswith(("/partitions/0", "/topic-0"))]
    assert len(topics) == 61
    assert {each.path: each.version for each in found} | {"/controller": 1} == {
        "/".join(names): version for names, (_, version) in stored(cluster).contents()
    }


def stored(cluster: NodeCluster) -> Any:
    return ImageStore(cluster.images[1].open(), cluster.configs[1].cluster_id)
