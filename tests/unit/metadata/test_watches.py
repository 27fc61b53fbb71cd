"""Watches: every change of the tree once, from whichever node has it first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica.common.errors import ClusterClosed, InvalidRequest, KreplicaError, WatchOverflowed
from kreplica.common.types import Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_paths import TreeChange, path_of_step, shown
from kreplica.metadata.image_writer import ImageWriter
from kreplica.metadata.metadata_loader import MetadataLoader
from kreplica.metadata.metadata_store import MemoryImageDirectory
from kreplica.metadata.watches import Watch, Watches
from tests.support.cluster_records import cluster_records
from tests.support.metadata_log import MetadataLog, Snapshot, topic
from tests.support.virtual import VirtualMachine

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
ORDERS = "/brokers/topics/orders"


def change(**fields: Any) -> kinds.PartitionChangeRecord:
    return kinds.PartitionChangeRecord(partition_id=0, topic_id=A, **fields)


class Leader:
    def __init__(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.epoch = epoch


class Nodes:
    """Loaders of several nodes on one log."""

    def __init__(self, count: int = 2) -> None:
        self.log = MetadataLog()
        self.watches = Watches()
        self.directories = [MemoryImageDirectory() for _ in range(count)]
        self.loaders = [self.started(number) for number in range(count)]

    def started(self, number: int) -> MetadataLoader:
        machine = VirtualMachine()
        image = ImageWriter(self.directories[number], "c", machine.loop)
        loader = MetadataLoader(image, loop=machine.loop, high_watermark=lambda: None, watches=self.watches)
        loader.startup(self.log.end_offset, self.log.epoch_before)
        return loader

    def restart(self, number: int) -> None:
        """The node finds the image that its last life has written, or an older one."""
        self.loaders[number] = self.started(number)

    def commit(self, number: int, *records: Any, stop: int | None = None) -> None:
        """Append the records, if any, and let one node apply the log, up to `stop`."""
        if records:
            self.log.append(*records)
        loader = self.loaders[number]
        loader.handle_commit(self.log.reader(loader.applied.offset, stop))


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def taken(watch: Watch) -> list[TreeChange]:
    found = []
    while (each := watch.pop()) is not None:
        found.append(each)
    return found


def brief(watch: Watch) -> list[tuple[str, int, Any, Any]]:
    """Path, version, and the ISR before and after."""

    def isr(value: Any) -> Any:
        return None if value is None else value["isr"]

    return [(each.path, each.version, isr(each.old), isr(each.new)) for each in taken(watch)]


def test_each_record_is_a_change_with_its_offset(nodes: Nodes) -> None:
    watch = nodes.watches.watch(f"{ORDERS}/partitions/0")
    nodes.commit(0, *topic(A, "orders"), change(isr=(1,)), change(isr=(1, 2)), change(leader=2))
    path = f"{ORDERS}/partitions/0"
    assert brief(watch) == [
        (path, 1, None, [1, 2]),
        (path, 2, [1, 2], [1]),
        (path, 3, [1], [1, 2]),
        (path, 4, [1, 2], [1, 2]),
    ]
    nodes.commit(0, kinds.RemoveTopicRecord(topic_id=A))
    (gone,) = taken(watch)
    assert (gone.version, gone.new, gone.old["leader"], gone.old["partition_epoch"]) == (5, None, 2, 3)


def test_a_watch_concerns_its_path_and_what_is_below(nodes: Nodes) -> None:
    root, one, none = (nodes.watches.watch(path) for path in ("/", ORDERS, "/brokers/topics/order"))
    nodes.commit(0, *topic(A, "orders"), *topic(B, "orders-2"))
    assert [each.path for each in taken(one)] == [ORDERS, f"{ORDERS}/partitions/0"]
    assert len(taken(root)) == 4
    assert taken(none) == []


def test_a_change_arrives_once_from_the_first_node_that_has_it(nodes: Nodes) -> None:
    watch = nodes.watches.watch()
    nodes.commit(0, *topic(A, "orders"))
    nodes.commit(1)
    nodes.commit(1, change(isr=(1,)))
    nodes.commit(0)
    assert [each.version for each in taken(watch)] == [0, 1, 2]


def test_a_node_that_starts_again_and_applies_old_records_repeats_nothing(nodes: Nodes) -> None:
    watch = nodes.watches.watch()
    nodes.commit(0, *topic(A, "orders"))
    nodes.restart(0)
    nodes.commit(0, change(isr=(1,)))
    assert [each.version for each in taken(watch)] == [0, 1, 2]


def test_records_that_all_nodes_skipped_are_the_difference_of_two_states(nodes: Nodes) -> None:
    nodes.commit(0, *topic(A, "orders"), *topic(B, "gone"))
    watch = nodes.watches.watch()
    after = ClusterMetadata()
    records = [*topic(A, "orders"), change(isr=(1,)), change(isr=(1, 2)), change(isr=(2,))]
    for offset, record in zip([0, 1, 6, 7, 8], records, strict=True):
        after.replay(record, 0, offset)
    nodes.loaders[1].handle_load_snapshot(Snapshot(OffsetAndEpoch(20, 1), after))
    found = taken(watch)
    assert [(each.path, each.version) for each in found] == [
        (f"{ORDERS}/partitions/0", 8),
        ("/brokers/topics/gone/partitions/0", 19),
        ("/brokers/topics/gone", 19),
    ]
    assert found[0].old["isr"] == [1, 2]
    assert found[0].new["isr"] == [2]


def test_a_transaction_is_seen_when_it_is_decided(nodes: Nodes) -> None:
    watch = nodes.watches.watch()
    nodes.commit(0, kinds.BeginTransactionRecord(), *topic(A, "orders"))
    assert taken(watch) == []
    nodes.commit(0, kinds.AbortTransactionRecord())
    nodes.commit(0, kinds.BeginTransactionRecord(), *topic(B, "kept"), kinds.EndTransactionRecord())
    assert [(each.path, each.version) for each in taken(watch)] == [
        ("/brokers/topics/kept", 5),
        ("/brokers/topics/kept/partitions/0", 6),
    ]


def test_initial_is_what_exists_and_then_the_changes(nodes: Nodes) -> None:
    nodes.loaders[0].handle_leader_change(Leader(3, 7))
    nodes.commit(0, *topic(A, "orders"))
    watch = nodes.watches.watch(initial=True)
    later = nodes.watches.watch()
    nodes.commit(0, change(isr=(1,)))
    found = taken(watch)
    assert [(each.path, each.version) for each in found] == [
        ("/controller", 7),
        (ORDERS, 0),
        (f"{ORDERS}/partitions/0", 1),
        (f"{ORDERS}/partitions/0", 2),
    ]
    assert all(each.old is None for each in found[:3])
    assert found[3:] == taken(later)


def test_the_controller_is_the_leader_of_an_epoch(nodes: Nodes) -> None:
    watch = nodes.watches.watch("/controller")
    for number, leader in ((0, Leader(None, 1)), (0, Leader(3, 2)), (1, Leader(3, 2)), (1, Leader(1, 5))):
        nodes.loaders[number].handle_leader_change(leader)
    assert taken(watch) == [
        TreeChange("/controller", 2, None, {"leader": 3, "epoch": 2}),
        TreeChange("/controller", 5, {"leader": 3, "epoch": 2}, {"leader": 1, "epoch": 5}),
    ]
    with pytest.raises(AssertionError, match="epoch 5 has two leaders"):
        nodes.loaders[0].handle_leader_change(Leader(2, 5))


# ---- the end of a watch -----------------------------------------------------------------------------------


def test_a_slow_reader_gets_what_is_kept_and_then_an_error(nodes: Nodes) -> None:
    watch = nodes.watches.watch(max_pending=3)
    nodes.commit(0, *topic(A, "orders"), *(change(leader=leader) for leader in (1, 2, 1, 2)))
    assert [watch.pop().version for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(WatchOverflowed, match=r"3 changes below / are waiting.* missed has version 3"):
            watch.pop()
    nodes.commit(0, change(leader=1))
    with pytest.raises(ValueError, match="max_pending=0"):
        nodes.watches.watch(max_pending=0)


def test_the_end_of_the_cluster_is_an_error_after_the_last_change(nodes: Nodes) -> None:
    watch = nodes.watches.watch()
    waiting = nodes.watches.watch().ready()
    nodes.commit(0, *topic(A, "orders"))
    nodes.watches.close(ClusterClosed("the cluster was closed"))
    assert waiting.done()
    assert [watch.pop().version for _ in range(2)] == [0, 1]
    with pytest.raises(ClusterClosed):
        watch.pop()
    with pytest.raises(ClusterClosed):
        nodes.watches.watch()


def test_a_closed_watch_has_nothing_more(nodes: Nodes) -> None:
    watch = nodes.watches.watch()
    ready = watch.ready()
    watch.close()
    assert ready.done()
    nodes.commit(0, *topic(A, "orders"))
    assert watch.is_closed
    assert watch.pop() is None
    assert watch.ready().done()
    watch.close()


def test_ready_is_done_when_there_is_something_to_take(nodes: Nodes) -> None:
    watch = nodes.watches.watch(ORDERS)
    first = watch.ready()
    nodes.commit(0, *topic(B, "payments"))
    assert not first.done()
    first.cancel()
    second = watch.ready()
    nodes.commit(0, *topic(A, "orders"))
    assert second.done()
    assert watch.ready().done()
    taken(watch)
    assert not watch.ready().done()


@pytest.mark.parametrize("path", ["", "orders", "/a//b", "/a/"])
def test_what_is_no_path_cannot_be_watched(nodes: Nodes, path: str) -> None:
    with pytest.raises(InvalidRequest):
        nodes.watches.watch(path)


# ---- what holds whatever comes ----------------------------------------------------------------------------


def expected(log: MetadataLog) -> list[tuple[str, int, Any, Any]]:
    """The changes of the log, by a metadata that replays it without nodes."""
    metadata, found = ClusterMetadata(), []
    metadata.record_steps()
    for batch in log.batches:
        for offset, (record, version) in enumerate(batch.records, batch.base_offset):
            if isinstance(record, kinds.BeginTransactionRecord):
                found += metadata.take_steps()
            metadata.replay(record, version, offset)
    found += metadata.take_steps()
    changes = [shown(step, path_of_step(step), -1) for step in found]
    return [(each.path, each.version, each.old, each.new) for each in changes]


STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["append", "catch up", "part", "restart"])))


@settings(deadline=None)
@given(st.lists(cluster_records(), max_size=40), STEPS, st.randoms(use_true_random=False))
def test_whatever_the_nodes_do_a_watch_has_every_change_of_the_log_once(
    records: list, steps: list, random: Any
) -> None:
    known, nodes = ClusterMetadata(), Nodes()
    watch = nodes.watches.watch()
    for number, step in steps:
        if step == "append":
            fitting = []
            for record, version in records[:5]:
                try:
                    known.replay(record, version)
                    fitting.append(record)
                except KreplicaError:
                    continue
            del records[:5]
            nodes.commit(number, *fitting)
        elif step == "restart":
            nodes.restart(number)
        else:
            ends = [batch.last_offset + 1 for batch in nodes.log.batches]
            nodes.commit(number, stop=random.choice(ends) if step == "part" and ends else None)
    nodes.commit(0)
    found = [(each.path, each.version, each.old, each.new) for each in taken(watch)]
    assert found == expected(nodes.log)
