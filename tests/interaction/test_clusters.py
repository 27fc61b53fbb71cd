"""Clusters in one process, with real threads and files: what changes the quorum, and disks without room."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kreplica.broker.node_directories import read_properties
from kreplica.cluster import Cluster
from kreplica.common.errors import InvalidRequest, KreplicaError, StorageFull
from kreplica.common.messages.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest
from kreplica.common.wire import error_of, uuid_of
from kreplica.runtime import local_node
from kreplica.runtime.storage import FileStorage

WAIT_S = 30
VOTERS = {1001, 1002, 1003}


def values(cluster: Cluster, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.read(topic, partition)]


# ---- leaders ----------------------------------------------------------------------------------------------


def test_appends_go_on_after_an_unclean_election(tmp_path: Path) -> None:
    with Cluster(3, tmp_path / "data", controllers=1) as cluster:
        cluster.create_topic("t", config={"min.insync.replicas": 1})
        view = cluster.partition("t", 0)
        assert cluster.append("t", [b"a"]).result(WAIT_S).base_offset == 0
        leader, *others = view.replicas
        for other in others:
            cluster.kill(other)
        for value in (b"lost", b"lost, too"):
            cluster.append("t", [value]).result(WAIT_S)
        cluster.kill(leader)
        for other in others:
            cluster.start(other)
        cluster._wait(lambda: view.leader is None, WAIT_S, "its leader is gone")
        cluster.elect("t", 0, "unclean")
        # A batch that reaches the new leader before it leads may be appended for all that its producer knows.
        assert values(cluster, "t") == [b"a"]
        futures = [cluster.append("t", [value]) for value in (b"b", b"c")]
        assert [future.result(WAIT_S).base_offset for future in futures] == [1, 2]
        assert values(cluster, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("topic_config", [{}, {"unclean.leader.election.enable": False}])
def test_nodes_that_are_configured_to_elect_uncleanly_do_unless_the_topic_forbids_it(
    tmp_path: Path, topic_config: dict[str, object]
) -> None:
    settings = {"unclean.leader.election.enable": True}
    with Cluster(3, tmp_path / "data", controllers=1, config=settings) as cluster:
        cluster.create_topic("t", config=topic_config)
        view = cluster.partition("t", 0)
        cluster.append("t", [b"a"]).result(WAIT_S)
        leader, *others = view.replicas
        for other in others:
            cluster.kill(other)
        cluster._wait(lambda: view.isr == (leader,), WAIT_S, "the others are out of sync")
        cluster.append("t", [b"lost"], acks=1).result(WAIT_S)
        cluster.kill(leader)
        cluster._wait(lambda: view.leader is None, WAIT_S, "its leader is gone")
        for other in others:
            cluster.start(other)
        if topic_config:
            cluster.start(leader)
        cluster._wait(lambda: view.leader is not None, WAIT_S, "it has a leader")
        assert (view.leader == leader) == bool(topic_config)
        cluster.append("t", [b"b"]).result(WAIT_S)
        assert values(cluster, "t") == ([b"a", b"lost", b"b"] if topic_config else [b"a", b"b"])


# ---- the quorum -------------------------------------------------------------------------------------------


def directory_id(cluster: Cluster, node_id: int) -> Any:
    config = cluster._nodes.local(node_id).config
    found = read_properties(config, FileStorage(), config.metadata_directory)
    assert found is not None
    assert found.directory_id is not None
    return uuid_of(found.directory_id)


def voters(cluster: Cluster, node_id: int) -> set[int]:
    """As that node knows them."""
    return set(cluster.node(node_id).raft.voters.voters)


def begins_at(directory: Path, node_id: int) -> int:
    """The first offset of the node's metadata log."""
    log = directory / f"node-{node_id}" / "__cluster_metadata-0"
    return min(int(path.stem) for path in log.glob("*.log"))


def ask(cluster: Cluster, request: Any) -> None:
    """Repeat the request to the current active controller until it succeeds."""

    def is_done() -> bool:
        controller = cluster.controller
        if controller is None:
            return False
        reply = cluster.node(controller).handle(request).result(WAIT_S)
        return error_of(reply.error_code) is None

    for _ in range(100):
        if is_done():
            return
    raise AssertionError(f"not done: {request}")


def test_voters_change_while_the_cluster_goes_on(tmp_path: Path) -> None:
    with Cluster(2, tmp_path, controllers=3) as cluster:
        cluster.create_topic("orders", replication_factor=2)
        leader = cluster.controller
        assert leader is not None
        ask(
            cluster,
            RemoveRaftVoterRequest(
                cluster_id=cluster.cluster_id,
                voter_id=leader,
                voter_directory_id=directory_id(cluster, leader),
            ),
        )
        left = VOTERS - {leader}
        cluster._wait(lambda: cluster.controller in left, WAIT_S, "another controller")
        cluster._wait(lambda: voters(cluster, leader) == left, WAIT_S, "what the removed one knows")
        # Two voters are left, and both are needed; the third node only listens.
        cluster.kill(leader)
        cluster.create_topic("payments", replication_factor=2)
        cluster.start(leader)
        ask(
            cluster,
            AddRaftVoterRequest(
                cluster_id=cluster.cluster_id,
                timeout=timedelta(seconds=WAIT_S),
                voter_id=leader,
                voter_directory_id=directory_id(cluster, leader),
                listeners=(),
            ),
        )
        cluster._wait(lambda: voters(cluster, leader) == VOTERS, WAIT_S, "three voters")
        # It counts again: one of the others may go.
        cluster.kill(min(left))
        cluster.create_topic("returns", replication_factor=2)
        assert cluster.append("orders", [b"a"], partition=0).result(WAIT_S).base_offset == 0
    with Cluster(2, tmp_path, controllers=3) as cluster:
        assert cluster.topics() == ["orders", "payments", "returns"]
        assert voters(cluster, leader) == VOTERS
        assert values(cluster, "orders") == [b"a"]


def test_a_broker_is_not_added_as_a_voter(tmp_path: Path) -> None:
    """It would lead the quorum, and the cluster would have no controller."""
    with Cluster(2, tmp_path, controllers=1) as cluster:
        request: Any = AddRaftVoterRequest
        asked = request(
            cluster_id=cluster.cluster_id,
            timeout=timedelta(seconds=WAIT_S),
            voter_id=2,
            voter_directory_id=directory_id(cluster, 2),
            listeners=(),
        )
        answer = cluster.node(1001).handle(asked).result(WAIT_S)
        with pytest.raises(InvalidRequest, match="node 2 has not registered as a controller"):
            raise error_of(answer.error_code, answer.error_message) or AssertionError("it was added")
        assert voters(cluster, 1001) == {1001}
        cluster.create_topic("orders")


def remove_voter(cluster: Cluster, removed: int) -> None:
    """Remove a voter, and wait until the broker knows."""
    request = RemoveRaftVoterRequest(
        cluster_id=cluster.cluster_id,
        voter_id=removed,
        voter_directory_id=directory_id(cluster, removed),
    )
    ask(cluster, request)
    cluster._wait(lambda: removed not in voters(cluster, 1), WAIT_S, "the new voters")


def test_a_quorum_is_a_majority_of_its_voters_of_now(tmp_path: Path) -> None:
    with Cluster(1, tmp_path, controllers=3) as cluster:
        for removed in sorted(VOTERS - {cluster.controller})[:2]:
            remove_voter(cluster, removed)
        [last] = voters(cluster, 1)
        for other in VOTERS - {last}:
            cluster.kill(other)
        assert cluster._nodes.has_quorum()
        cluster.create_topic("orders")
        for other in VOTERS - {last}:
            cluster.start(other)
        cluster.kill(last)
        assert not cluster._nodes.has_quorum()


def test_a_node_that_is_added_begins_with_a_snapshot(tmp_path: Path) -> None:
    small = {
        "metadata.log.segment.bytes": 1 << 12,
        "controller.quorum.max.batch.size.bytes": 1 << 12,
        "metadata.log.cleanup.interval.ms": 50,
        "metadata.log.max.record.bytes.between.snapshots": 1 << 10,
        "metadata.max.retention.bytes": 1 << 10,
    }
    with Cluster(3, tmp_path, config=small) as cluster:
        for number in range(30):
            cluster.create_topic(f"topic-{number}", partitions=4)
        cluster.append("topic-7", [b"a"], partition=0).result(WAIT_S)
        cluster._wait(
            lambda: all(begins_at(tmp_path, each) > 0 for each in cluster.nodes),
            WAIT_S,
            "logs that no longer begin at the beginning",
        )
    with Cluster(4, tmp_path, config=small) as cluster:
        added = cluster.node(4)
        assert begins_at(tmp_path, 4) > 0
        assert len(added.loader.published.topics) == 30
        cluster.reassign("topic-7", 0, [4, 1, 2])
        cluster.elect("topic-7", 0)
        assert cluster.partition("topic-7").leader == 4
        assert values(cluster, "topic-7") == [b"a"]
        assert cluster.failures == []


# ---- a full disk ------------------------------------------------------------------------------------------


class SmallDisk(FileStorage):
    """A disk without room for the files below `full`."""

    full: str | None = None

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Any:
        if create and not self.exists(path):
            self._ask(path)
        return super().open_region(path, capacity, writable=writable, create=create)

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        self._ask(path)
        super().write_file_atomically(path, data, flush_name=flush_name)

    def write_file(self, path: str, data: bytes) -> None:
        self._ask(path)
        super().write_file(path, data)

    def make_directory(self, path: str) -> None:
        if not self.is_directory(path):
            self._ask(path)
        super().make_directory(path)

    def _ask(self, path: str) -> None:
        if SmallDisk.full is not None and path.startswith(SmallDisk.full):
            raise StorageFull(f"{path}: no space left on device")


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> type[SmallDisk]:
    monkeypatch.setattr(local_node, "FileStorage", SmallDisk)
    monkeypatch.setattr(SmallDisk, "full", None)
    return SmallDisk


# A follower that cannot append what it fetches leaves the ISR after this.
SOON = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 500}


def test_one_nodes_full_disk_does_not_delay_the_others(tmp_path: Path, small_disk: type[SmallDisk]) -> None:
    with Cluster(3, tmp_path, config=SOON) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", [b"a"], partition=0).result(WAIT_S)
        first = cluster.partition("orders").leader
        other = next(each for each in cluster.nodes if each != first)
        small_disk.full = str(tmp_path / f"node-{other}")
        # It has no room for another log; the other brokers are enough.
        cluster.create_topic("payments", assignment={0: [first, other, 6 - first - other]})
        cluster.append("payments", [b"a"], partition=0).result(WAIT_S)
        assert other not in cluster.partition("payments").isr
        cluster.append("orders", [b"b"], partition=0).result(WAIT_S)
        assert not cluster.node(other).broker.log_manager.offline_directories

        small_disk.full = None
        for topic in ("orders", "payments"):
            view = cluster.partition(topic)
            cluster._wait(lambda view=view: set(view.isr) == {1, 2, 3}, WAIT_S, "all in sync")
        assert cluster.failures == []


# A metadata log that soon wants another file.
SMALL_LOG = {"metadata.log.segment.bytes": 1 << 12, "controller.quorum.max.batch.size.bytes": 1 << 12}


def refusal(cluster: Cluster, retention_ms: int) -> KreplicaError | None:
    try:
        cluster.alter_config("orders", {"retention.ms": retention_ms}, timeout=2)
    except KreplicaError as error:
        return error
    return None


def test_a_cluster_without_any_room_waits_for_some(tmp_path: Path, small_disk: type[SmallDisk]) -> None:
    with Cluster(3, tmp_path, config={"min.insync.replicas": 2, **SMALL_LOG}) as cluster:
        cluster.create_topic("orders")
        cluster.append("orders", [b"a"], partition=0).result(WAIT_S)
        small_disk.full = str(tmp_path)
        refused = next(error for number in range(100) if (error := refusal(cluster, 10_000 + number)))
        assert refused.retriable
        # No voter can put on disk that it voted, and none ends for that.
        assert cluster.failures == []

        small_disk.full = None
        cluster.alter_config("orders", {"retention.ms": 20_000})
        cluster.append("orders", [b"b"], partition=0).result(WAIT_S)
        cluster.create_topic("payments")
        assert values(cluster, "orders") == [b"a", b"b"]
        assert cluster.failures == []


def test_a_cluster_lets_go_of_a_full_disk(tmp_path: Path, small_disk: type[SmallDisk]) -> None:
    cluster = Cluster(1, tmp_path)
    cluster.create_topic("orders")
    cluster.append("orders", [b"a"], partition=0).result(WAIT_S)
    small_disk.full = str(tmp_path / "node-1")
    with pytest.raises(StorageFull):
        cluster.close()
    small_disk.full = None
    with Cluster(1, tmp_path) as again:
        assert values(again, "orders") == [b"a"]
