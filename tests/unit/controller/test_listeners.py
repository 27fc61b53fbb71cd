"""The listeners: told by the image's watches and the loader's deltas, they do what is left to do."""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.types import Uuid
from kreplica.controller.listeners import PartitionReassignmentListener, register_listeners
from kreplica.controller.state_machines import StateMachines
from kreplica.controller.states import PartitionState
from kreplica.metadata import image_paths
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_store import ImageStore
from kreplica.metadata.metadata_store import MemoryMetadataStore
from kreplica.metadata.records import PartitionRecord, TopicRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.metadata.watches import Event, Watches
from tests.support.controllers import ControllerStage


class Node:
    """A controller, and an image to which what it appends is committed."""

    def __init__(self) -> None:
        self.stage = ControllerStage()
        self.watches = Watches()
        self.image = ImageStore(MemoryMetadataStore(), "cluster")
        self.image.watches = self.watches
        self.events: list[str] = []
        self.reassignment: PartitionReassignmentListener = register_listeners(self, [], self.run)
        self.commit(image_paths.changed_nodes(self.stage.context.metadata.take_delta()))

    def watch_children(self, path: str, listener: Callable[[Event], None]) -> None:
        self.watches.watch_children(path, listener)

    def unwatch(self, path: str, listener: Callable[[Event], None]) -> None:
        self.watches.unwatch(path, listener)

    def run(self, name: str, event: Callable[[StateMachines], object]) -> None:
        self.events.append(name)
        event(self.stage.machines)

    def publish(self) -> None:
        """What was appended is committed and applied."""
        delta = self.stage.context.metadata.take_delta()
        self.reassignment.on_metadata_update(delta, self.stage.context.metadata, OffsetAndEpoch(0, 0))
        self.commit(image_paths.changed_nodes(delta))

    def commit(self, nodes: dict[str, bytes | None]) -> None:
        with self.image.begin() as transaction:
            transaction.put(nodes)
            events = transaction.commit(OffsetAndEpoch(len(self.stage.log), 1))
        for event in events:
            event.token(event)  # type: ignore[operator]


def test_what_the_controller_did_itself_leaves_nothing_to_do() -> None:
    node = Node()
    node.stage.create("orders", (0, 1))
    appended = len(node.stage.log)
    node.publish()
    assert node.events == ["TopicChange"]
    node.stage.machines.creation.on_new_partition_creation(
        "orders", node.stage.partition("orders").topic_id, [(1, 0)], first=1
    )
    node.publish()
    assert node.events == ["TopicChange", "AddPartitions"]
    assert len(node.stage.log) == appended + 1


def test_partitions_that_somebody_else_wrote_get_leaders() -> None:
    node = Node()
    topic_id = Uuid(bytes(15) + b"\x05")
    node.stage.log.append(ApiMessageAndVersion(TopicRecord(name="foreign", topic_id=topic_id), 0))
    node.stage.log.append(
        ApiMessageAndVersion(
            PartitionRecord(
                partition_id=0, topic_id=topic_id, replicas=(2, 1), isr=(), leader_epoch=0, partition_epoch=0
            ),
            0,
        )
    )
    node.stage.fence(0, 1, 2)
    node.stage.take_over(epoch=4)
    partition = node.stage.partition("foreign")
    assert partition.state is PartitionState.NEW
    node.stage.context.set_brokers({1, 2}, set())
    node.publish()
    assert partition.state is PartitionState.ONLINE
    assert node.stage.state("foreign").leader == 2


def test_partitions_of_a_topic_that_went_are_watched_no_more() -> None:
    node = Node()
    node.stage.create("orders", (0, 1))
    node.publish()
    node.stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    node.publish()
    node.events.clear()
    # A child that nobody expects, where the topic's partitions were.
    node.commit({image_paths.partition_path("orders", 9): b""})
    assert "AddPartitions" not in node.events


def test_a_broker_that_was_unregistered_is_dead() -> None:
    node = Node()
    node.stage.create("orders", (0, 1))
    node.publish()
    node.stage.context.metadata.put("brokers", 0, None)
    node.publish()
    assert node.events[-1] == "BrokerChange"
    assert node.stage.state("orders").leader == 1


def test_a_reassignment_whose_replicas_are_in_sync_ends() -> None:
    node = Node()
    (partition,) = node.stage.create("orders", (0, 1))
    node.stage.machines.reassignment.start(partition, [2])
    batch = node.stage.machines.batch
    with batch.collected():
        batch.add_leader_and_isr_request_for_brokers(partition).set_isr((0, 1, 2), min_isr=1)
    assert node.stage.state("orders").replicas == (2, 0, 1)
    node.publish()
    assert (node.stage.state("orders").replicas, node.stage.state("orders").leader) == ((2,), 2)
