"""MetadataLoader: from the committed log to the cluster, its image, and the publishers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common.errors import (
    KreplicaError,
    StorageFull,
    StorageIOError,
    UnknownTopicId,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import Uuid
from kreplica.metadata import image_paths
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch, key_of
from kreplica.metadata.image_writer import GATHER_MS, NO_SPACE_RETRY_MS, ImageStore, ImageWriter
from kreplica.metadata.metadata_loader import CATCH_UP_RETRY_MS, IDLE_RECORDS, MetadataLoader
from kreplica.metadata.metadata_store import MemoryImageDirectory
from kreplica.runtime.lmdb_store import DATA_FILE, LmdbImageDirectory
from tests.support.cluster_records import cluster_records
from tests.support.metadata_log import MetadataLog, Snapshot, topic
from tests.support.virtual import VirtualMachine

CLUSTER = "a3JlcGxpY2EtY29uZm9ybQ"
A, B, C = (Uuid(name * 16) for name in (b"a", b"b", b"c"))


def change(topic_id: Uuid = A, **fields: Any) -> kinds.PartitionChangeRecord:
    return kinds.PartitionChangeRecord(partition_id=0, topic_id=topic_id, **fields)


class Publisher:
    """Keeps the updates that it gets, and builds its own view of the cluster from the deltas alone."""

    def __init__(self) -> None:
        self.updates: list[tuple[MetadataDelta, ClusterMetadata, OffsetAndEpoch]] = []
        self.leaders: list[object] = []
        self.topics: set[str] = set()
        self.fails = False

    def on_metadata_update(
        self, delta: MetadataDelta, metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        if self.fails:
            raise ValueError("a publisher's own mistake")
        self.updates.append((delta, metadata, applied))
        self.topics -= {each.name for each in delta.topics_deleted}
        self.topics |= {each.name for each in delta.topics_created}

    def on_leader_change(self, leader: object) -> None:
        self.leaders.append(leader)


class Node:
    """A loader over a log, a virtual clock, and an image that outlives it."""

    def __init__(self, log: MetadataLog, directory: Any = None) -> None:
        self.log = log
        self.directory = directory or MemoryImageDirectory()
        self.machine = VirtualMachine()
        self.high_watermark: int | None = 0
        self.start()

    def start(self, cluster_id: str = CLUSTER) -> OffsetAndEpoch:
        """As a process does: nothing but the log and the image is left of what was."""
        self.metrics = MetricRegistry()
        self.image = ImageWriter(self.directory, cluster_id, self.machine.loop)
        self.loader = MetadataLoader(
            self.image,
            loop=self.machine.loop,
            high_watermark=lambda: self.high_watermark,
            metrics=self.metrics,
        )
        self.publisher = Publisher()
        applied = self.loader.startup(self.log.end_offset, self.log.epoch_before)
        self.loader.install_publishers([self.publisher])
        return applied

    def commit(self, start: int | None = None) -> None:
        """Hand over what the log has from `start`, else from where the loader is."""
        start = self.loader.applied.offset if start is None else start
        self.loader.handle_commit(self.log.reader(start))

    def write(self) -> None:
        """Let the image catch up."""
        self.machine.pass_time(GATHER_MS)

    def restart(self) -> OffsetAndEpoch:
        """In order: what is known stands in the image."""
        self.image.close()
        return self.start()

    def in_image(self) -> ClusterMetadata:
        return image_paths.load(self.stored().contents())

    def stored(self) -> ImageStore:
        return ImageStore(self.directory.open(), CLUSTER)


@pytest.fixture
def log() -> MetadataLog:
    made = MetadataLog()
    made.append(*topic(A, "t", partitions=2))
    return made


@pytest.fixture
def node(log: MetadataLog) -> Node:
    return Node(log)


def test_a_commit_is_published_at_once_and_written_a_moment_later(node: Node, log: MetadataLog) -> None:
    applied = log.append(change(leader=2), epoch=3)
    node.commit()
    everything, delta = node.publisher.updates[0][0], node.publisher.updates[-1][0]
    assert everything.is_empty
    assert [each.name for each in delta.topics_created] == ["t"]
    assert node.publisher.updates[-1][2] == applied == node.loader.applied
    assert node.loader.published.topics["t"].partitions[0].leader == 2
    assert node.image.applied == (0, 0)
    node.write()
    assert node.image.applied == applied
    assert node.in_image() == node.loader.published
    assert node.loader.bytes_applied == 200


def test_many_commits_are_one_write(node: Node, log: MetadataLog) -> None:
    node.commit()
    for leader in (2, 1, 2, 1):
        log.append(change(leader=leader))
        node.commit()
    writes = []
    store = node.directory.store
    write = store.write
    store.write = lambda changes: (writes.append(changes), write(changes))
    node.write()
    assert len(writes) == 1
    assert node.in_image().topics["t"].partitions[0].leader_epoch == 4


def test_what_is_published_never_changes(node: Node, log: MetadataLog) -> None:
    node.commit()
    _, first, _ = node.publisher.updates[-1]
    log.append(change(leader=2), kinds.RemoveTopicRecord(topic_id=A))
    node.commit()
    assert first.topics["t"].partitions[0].leader == 1
    assert node.publisher.updates[-1][1].topics == {}


def test_a_restart_replays_only_the_rest(node: Node, log: MetadataLog) -> None:
    node.commit()
    applied = node.restart()
    assert applied == OffsetAndEpoch(3, 1)
    # The log's head is no longer needed: it may be gone.
    log.append(change(leader=2))
    log.batches[0] = log.batches[0]._replace(records=())
    node.commit(start=0)
    assert node.loader.published.topics["t"].partitions[0].leader == 2
    assert node.loader.applied == OffsetAndEpoch(4, 1)


def test_a_write_that_a_power_cut_took_is_made_up_for_from_the_log(node: Node, log: MetadataLog) -> None:
    node.commit()
    node.write()
    log.append(change(leader=2))
    node.commit()
    node.write()
    node.directory.store.lose_last_write()
    assert node.start() == OffsetAndEpoch(3, 1)
    node.commit()
    assert node.loader.published.topics["t"].partitions[0].leader == 2


# ---- images that cannot be used ---------------------------------------------------------------------------


def test_an_image_of_another_cluster_is_made_anew(node: Node) -> None:
    node.commit()
    node.image.close()
    assert node.start("another-cluster-------") == (0, 0)
    assert node.loader.published == ClusterMetadata()
    node.commit()
    node.write()
    assert node.image.applied == OffsetAndEpoch(3, 1)


def test_an_image_ahead_of_its_log_is_made_anew(node: Node, log: MetadataLog) -> None:
    log.append(change(leader=2))
    node.commit()
    node.image.close()
    log.batches.pop()
    assert node.start() == (0, 0)
    node.commit()
    assert node.loader.published.topics["t"].partitions[0].leader == 1


def test_an_image_of_another_history_is_made_anew(node: Node, log: MetadataLog) -> None:
    log.append(change(leader=2), epoch=4)
    node.commit()
    node.image.close()
    log.batches[-1] = log.batches[-1]._replace(epoch=5)
    assert node.start() == (0, 0)


def test_a_node_of_the_image_that_rotted_costs_the_image(node: Node) -> None:
    node.commit()
    node.image.close()
    values = node.directory.store._values
    key = key_of(image_paths.partition_path("t", 0))
    values[key] = values[key][:-1] + b"\xff"
    assert node.start() == (0, 0)
    node.commit()
    node.write()
    assert node.in_image() == node.loader.published


def test_rot_under_an_open_file_costs_the_image_and_nothing_else(
    log: MetadataLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = LmdbImageDirectory(str(tmp_path / "image"))
    for number in range(50):
        log.append(*topic(Uuid(bytes([number + 1]) * 16), f"topic-{number}", partitions=20))
    node = Node(log, directory)
    node.commit()
    node.write()
    with (tmp_path / "image" / DATA_FILE).open("r+b") as file:
        for page in range(2, 60):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    log.append(*[change(each.topic_id, leader=2) for each in node.loader.published.topics.values()])
    node.commit()
    with caplog.at_level(logging.ERROR):
        node.write()
    assert "rebuilt" in caplog.text
    assert node.image.error_count == 1
    assert node.image.applied == node.loader.applied
    assert node.restart() == OffsetAndEpoch(log.end_offset, 1)
    assert node.loader.published.topics["topic-7"].partitions[0].leader == 2
    node.image.close()


def failing(error: Exception) -> Callable[[object], None]:
    def write(_: object) -> None:
        raise error

    return write


def test_an_image_waits_for_space(node: Node, log: MetadataLog) -> None:
    store = node.directory.store
    store.write = failing(StorageFull("no space"))
    node.commit()
    node.write()
    assert node.image.applied == (0, 0)
    log.append(change(leader=2))
    node.commit()
    node.write()
    assert node.image.applied == (0, 0)
    del store.write
    node.machine.pass_time(NO_SPACE_RETRY_MS)
    assert node.in_image() == node.loader.published
    assert node.image.error_count == 1


def test_an_image_that_the_disk_refuses_is_given_up_and_the_node_goes_on(
    node: Node, log: MetadataLog
) -> None:
    node.directory.store.write = failing(StorageIOError("EIO"))
    node.commit()
    node.write()
    log.append(change(leader=2))
    node.commit()
    node.write()
    assert node.publisher.updates[-1][1].topics["t"].partitions[0].leader == 2
    assert node.image.error_count == 1
    del node.directory.store.write
    assert node.restart() == (0, 0)


# ---- when publishers are notified -------------------------------------------------------------------------


def test_publishers_are_not_notified_before_the_node_has_caught_up(node: Node, log: MetadataLog) -> None:
    node.commit()
    node.image.close()
    log.append(change(leader=2))
    node.high_watermark = None
    node.start()
    assert node.publisher.updates == []
    node.high_watermark = log.end_offset
    node.machine.pass_time(CATCH_UP_RETRY_MS)
    assert node.publisher.updates == []  # a commit is missing yet
    node.commit()
    ((delta, metadata, applied),) = node.publisher.updates
    assert applied == (4, 1)
    assert metadata.topics["t"].partitions[0].leader == 2
    assert [each.name for each in delta.topics_created] == ["t"]


def test_a_node_with_nothing_to_catch_up_with_learns_so_by_and_by(node: Node, log: MetadataLog) -> None:
    node.commit()
    node.image.close()
    node.high_watermark = None
    node.start()
    node.machine.pass_time(10 * CATCH_UP_RETRY_MS)
    assert node.publisher.updates == []
    node.high_watermark = log.end_offset
    node.machine.pass_time(CATCH_UP_RETRY_MS)
    assert len(node.publisher.updates) == 1


def test_a_publisher_that_fails_does_not_stop_the_others(
    node: Node, log: MetadataLog, caplog: pytest.LogCaptureFixture
) -> None:
    other = Publisher()
    node.loader.install_publishers([other])
    node.publisher.fails = True
    with caplog.at_level(logging.ERROR):
        node.commit()
    assert other.topics == {"t"}
    assert "Publisher failed" in caplog.text
    assert "a publisher's own mistake" in caplog.text
    log.append(kinds.RemoveTopicRecord(topic_id=A))
    node.commit()
    assert other.topics == set()


def test_a_change_of_leader_is_published_and_written_to_the_image(node: Node) -> None:
    leaders = [Leader(None, 6), Leader(3, 7)]
    for leader in leaders:
        node.loader.handle_leader_change(leader)
        node.write()
    assert node.publisher.leaders == leaders
    nodes = {"/".join(names): each for names, each in node.stored().contents()}
    assert nodes == {image_paths.CONTROLLER: image_paths.controller_node(3, 7)}


class Leader:
    def __init__(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.epoch = epoch


def test_a_log_that_only_moves_on_is_written_now_and_then(node: Node, log: MetadataLog) -> None:
    node.commit()
    node.write()
    for _ in range(IDLE_RECORDS):
        log.append()
        node.commit()
        node.write()
    written = node.image.applied.offset
    assert log.end_offset - IDLE_RECORDS <= written <= log.end_offset
    assert written > 3


# ---- snapshots --------------------------------------------------------------------------------------------


def test_a_snapshot_replaces_everything_and_its_delta_has_what_vanished(node: Node) -> None:
    node.commit()
    after = ClusterMetadata()
    for record in topic(B, "u"):
        after.replay(record)
    node.loader.handle_load_snapshot(Snapshot(OffsetAndEpoch(50, 4), after))
    delta, metadata, applied = node.publisher.updates[-1]
    assert [each.name for each in delta.topics_deleted] == ["t"]
    assert [each.name for each in delta.topics_created] == ["u"]
    assert (metadata, applied) == (after, OffsetAndEpoch(50, 4))
    node.write()
    assert node.in_image() == after
    assert node.image.applied == OffsetAndEpoch(50, 4)


def test_a_snapshot_of_what_is_known_already_is_passed_over(node: Node, log: MetadataLog) -> None:
    log.append(change(leader=2))
    node.commit()
    node.loader.handle_load_snapshot(Snapshot(OffsetAndEpoch(3, 1), ClusterMetadata()))
    assert "t" in node.loader.published.topics


def test_the_bootstrap_snapshot_is_loaded_at_offset_0(node: Node) -> None:
    formatted = ClusterMetadata()
    formatted.replay(kinds.FeatureLevelRecord(name="metadata.version", feature_level=20))
    node.loader.handle_load_snapshot(Snapshot(OffsetAndEpoch(0, 0), formatted))
    assert node.loader.published.features == {"metadata.version": 20}
    node.commit()
    assert node.restart() == OffsetAndEpoch(3, 1)
    assert node.loader.published.features == {"metadata.version": 20}


def test_a_snapshot_that_does_not_fit_together_changes_nothing(node: Node, log: MetadataLog) -> None:
    node.commit()
    before = node.loader.published
    broken = Snapshot(OffsetAndEpoch(9, 1), before)
    broken._batches = iter(log.append(change(B, leader=1)) and log.batches[-1:])
    with pytest.raises(UnknownTopicId):
        node.loader.handle_load_snapshot(broken)
    assert node.loader.published is before
    assert node.loader.metadata == before


# ---- what cannot be ---------------------------------------------------------------------------------------


def test_a_record_that_does_not_fit_is_raised_with_its_offset(node: Node, log: MetadataLog) -> None:
    log.append(kinds.NoOpRecord(), change(C, leader=1))
    reader = log.reader()
    with pytest.raises(UnknownTopicId) as raised:
        node.loader.handle_commit(reader)
    assert "PartitionChangeRecord at offset 4" in raised.value.__notes__[0]
    assert list(reader) == []  # closed, so that it pins nothing


# ---- transactions of the log (KIP-868) --------------------------------------------------------------------


def test_a_transaction_is_published_and_written_once_it_ends(node: Node, log: MetadataLog) -> None:
    log.append(change(isr=(1,)), kinds.BeginTransactionRecord(name="n"), change(leader=2))
    node.commit()
    # What stands before the begin counts; the image ends right there, in the middle of a batch.
    assert node.loader.applied == OffsetAndEpoch(4, 1)
    assert node.publisher.updates[-1][1].topics["t"].partitions[0].leader == 1
    assert node.publisher.updates[-1][1].topics["t"].partitions[0].isr == (1,)
    node.write()
    assert node.start() == OffsetAndEpoch(4, 1)
    node.commit()
    log.append(*topic(B, "u"), kinds.EndTransactionRecord())
    node.commit(start=6)
    assert node.loader.applied == OffsetAndEpoch(log.end_offset, 1)
    assert node.loader.published.topics["t"].partitions[0].leader == 2
    assert node.publisher.topics == {"t", "u"}


def test_an_aborted_transaction_is_never_published(node: Node, log: MetadataLog) -> None:
    log.append(kinds.BeginTransactionRecord(), *topic(B, "u"))
    node.commit()
    log.append(kinds.AbortTransactionRecord(reason="r"), change(leader=2))
    node.commit(start=7)
    assert node.publisher.topics == {"t"}
    assert node.loader.published.topics["t"].partitions[0].leader == 2


# ---- what holds whatever comes ----------------------------------------------------------------------------


def fitting(records: list) -> list:
    """Those of the records that a cluster takes, one after the other."""
    metadata, kept = ClusterMetadata(), []
    for record, version in records:
        try:
            metadata.replay(record, version)
        except KreplicaError:
            continue
        kept.append(record)
    return kept


STEPS = st.lists(
    st.sampled_from(["commit", "write", "kill", "stop", "power cut", "snapshot"]), min_size=1, max_size=20
)


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=60).map(fitting), STEPS, st.randoms(use_true_random=False))
def test_however_often_it_starts_a_node_knows_what_the_log_says(
    records: list, steps: list, random: Any
) -> None:
    log = MetadataLog()
    node = Node(log)
    for step in steps:
        if step == "commit":
            count = random.randrange(1, 8)
            log.append(*records[:count], epoch=1 + log.end_offset // 20)
            del records[:count]
            node.commit()
        elif step == "snapshot":
            published, applied = node.loader.published, node.loader.applied
            node.directory.discard()
            node.start()
            node.loader.handle_load_snapshot(Snapshot(applied, published))
            node.commit()
        elif step == "write":
            node.write()
        else:
            if step == "power cut":
                node.directory.store.lose_last_write()
            node.restart() if step == "stop" else node.start()
            node.commit()
        straight = ClusterMetadata()
        for batch in log.batches:
            for offset, (record, _) in enumerate(batch.records, batch.base_offset):
                straight.replay(record, 0, offset)
        assert node.loader.metadata == straight
        if not straight.in_transaction:
            assert node.loader.published == straight
            assert node.publisher.topics == set(straight.topics)
