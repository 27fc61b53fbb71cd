"""The listeners of the ZooKeeper-era controller, as watches on the metadata image.

There a tool wrote a path and the controller's listener acted on it. Here requests come to the controller, and
what it decides is in its context before it is committed: so a listener mostly finds that nothing is left to
do. What it does find is what others wrote: partitions that never had a leader, a broker that was
unregistered, a reassignment whose last replica is in sync. Each is an event of the active controller, in its
loop; on another node it comes to nothing.

`register_listeners` is called before the image's writer runs, all else in the loop of whoever tells: the
image's writer its watches, the MetadataLoader its deltas. They own nothing of the controller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kreplica.common.types import TopicPartition
from kreplica.controller.state_machines import StateMachines
from kreplica.controller.states import PartitionState
from kreplica.metadata import image_paths
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.metadata_delta import MetadataDelta
from kreplica.metadata.watches import ChildrenChanged, Event

# Runs an event of that name in the active controller, if this node has it.
Run = Callable[[str, Callable[[StateMachines], object]], object]


class Watched(Protocol):
    """The image, as far as it is watched: metadata.image_writer.ImageWriter."""

    def watch_children(self, path: str, listener: Callable[[Event], None]) -> None: ...

    def unwatch(self, path: str, listener: Callable[[Event], None]) -> None: ...


class AddPartitionsListener:
    """Partitions of a topic: those that never had a leader get one."""

    def __init__(self, topic: str, run: Run) -> None:
        self._topic = topic
        self._run = run

    def __call__(self, event: Event) -> None:
        if isinstance(event, ChildrenChanged) and event.created:
            added = [TopicPartition(self._topic, int(number)) for number in event.created]
            self._run("AddPartitions", lambda machines: bring_online(machines, added))


class TopicChangeListener:
    """Topics: each is watched for new partitions from the moment it is there until it goes."""

    def __init__(self, image: Watched, run: Run) -> None:
        self._image = image
        self._run = run
        self._add_partitions: dict[str, AddPartitionsListener] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, ChildrenChanged):
            self.handle_child_change(event.created, event.deleted)

    def handle_child_change(self, new_topics: Iterable[str], deleted_topics: Iterable[str]) -> None:
        """Topics that came, and topics that went."""
        for topic in deleted_topics:
            listener = self._add_partitions.pop(topic, None)
            if listener is not None:
                self._image.unwatch(image_paths.partitions_path(topic), listener)
        new_topics = list(new_topics)
        for topic in new_topics:
            listener = self._add_partitions[topic] = AddPartitionsListener(topic, self._run)
            self._image.watch_children(image_paths.partitions_path(topic), listener)
        if new_topics:
            self._run("TopicChange", lambda machines: bring_topics_online(machines, new_topics))


class BrokerChangeListener:
    """Brokers: one that was unregistered while it was up is taken for dead."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, event: Event) -> None:
        if isinstance(event, ChildrenChanged) and event.deleted:
            gone = frozenset(map(int, event.deleted))
            self._run("BrokerChange", lambda machines: fail_unregistered(machines, gone))


class PartitionReassignmentListener:
    """Partitions that are being reassigned, and their ISRs (the seed's
    ReassignedPartitionsIsrChangeListener): a MetadataPublisher, since a watch on each partition would be a
    hundred thousand.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_metadata_update(
        self, delta: MetadataDelta, _metadata: ClusterMetadata, _applied: OffsetAndEpoch
    ) -> None:
        """Look at those that changed and are still under way."""
        under_way = [
            change.topic_partition
            for change in delta.partitions
            if change.new is not None and change.new.is_reassigning
        ]
        if under_way:
            self._run("PartitionReassignmentIsrChange", lambda machines: complete(machines, under_way))

    def on_leader_change(self, leader: object) -> None:
        """A new controller looks at all that are under way itself."""


def register_listeners(image: Watched, topics: Iterable[str], run: Run) -> PartitionReassignmentListener:
    """Watch the image's topics and brokers; `topics`: those that are there. The listener that is returned is
    to be installed as a publisher of the MetadataLoader.
    """
    topic_change = TopicChangeListener(image, run)
    image.watch_children(image_paths.TOPICS, topic_change)
    image.watch_children(image_paths.BROKERS, BrokerChangeListener(run))
    topic_change.handle_child_change(topics, ())
    return PartitionReassignmentListener(run)


# ---- events of the controller -----------------------------------------------------------------------------


def bring_online(machines: StateMachines, partitions: Iterable[TopicPartition]) -> None:
    """Bring those of the partitions Online that never had a leader."""
    known = machines.context.partitions
    new = [known[each] for each in partitions if each in known and known[each].state is PartitionState.NEW]
    machines.partitions.handle_state_changes(new, PartitionState.ONLINE)


def bring_topics_online(machines: StateMachines, topics: Iterable[str]) -> None:
    """Bring those partitions of the topics Online that never had a leader."""
    bring_online(
        machines,
        [each.topic_partition for topic in topics for each in machines.context.partitions_of(topic)],
    )


def fail_unregistered(machines: StateMachines, broker_ids: frozenset[int]) -> None:
    """Take the brokers for dead, unless they are registered again."""
    context = machines.context
    gone = {
        broker_id
        for broker_id in broker_ids
        if broker_id not in context.metadata.brokers and broker_id in context.live_or_shutting_down_broker_ids
    }
    if gone:
        machines.broker_change.on_broker_failure(gone)


def complete(machines: StateMachines, partitions: Iterable[TopicPartition]) -> None:
    """End those reassignments that can be ended."""
    context = machines.context
    for each in partitions:
        partition = context.partitions.get(each)
        if partition is not None and partition in context.partitions_being_reassigned:
            machines.reassignment.complete_if_possible(partition)
