"""NodeChecker: checks all invariants of a cluster of whole nodes after every event.

The quorum's invariants come first, because they establish what is committed. The committed metadata is then
the controller's decision, which the partitions are compared with. Only what the event may have touched is
checked: its node, and the partitions that have changed. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of
from kreplica.metadata.cluster_metadata import ClusterMetadata, difference
from kreplica.metadata.metadata_delta import MetadataDelta
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.sim.invariants.checker import INVARIANTS
from kreplica.sim.invariants.cluster_view import ClusterView
from kreplica.sim.invariants.eligible import CandidateCompleteness, QuorumSuperset
from kreplica.sim.invariants.invariant import Invariant
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.promises import Promises
from kreplica.sim.nodes.quorum_word import QuorumWord
from kreplica.sim.quorum.quorum_log_checker import QuorumLogChecker
from kreplica.sim.scheduler import WORLD, SimEvent

NODE_INVARIANTS: tuple[type[Invariant], ...] = (*INVARIANTS, QuorumSuperset, CandidateCompleteness)


# Events in these loops of a node change neither its partitions nor their logs. The quorum's changes happen in
# its own loop alone; all other loops only post work to it.
QUORUM_LOOP = "raft"
QUIET_LOOPS = frozenset(
    {QUORUM_LOOP, "controller", "image", "lifecycle", "assignments", "producer-ids", "shutdown"}
)
# Handlers answer these requests from memory, or leave the work to a loop.
QUIET_MESSAGES = frozenset(
    {
        *(
            "Vote",
            "BeginQuorumEpoch",
            "EndQuorumEpoch",
            "FetchSnapshot",
            "BrokerHeartbeat",
            "BrokerRegistration",
        ),
        *("AddRaftVoter", "RemoveRaftVoter", "AlterPartition", "AllocateProducerIds", "InitProducerId"),
        *("CreateTopics", "DeleteTopics", "CreatePartitions", "AlterPartitionReassignments", "ElectLeaders"),
        *("IncrementalAlterConfigs", "Metadata"),
    }
)


def touches_quorum(event: SimEvent) -> bool:
    """Return whether the event may have changed a member of the quorum."""
    if event.kind in ("turn", "timer"):
        return event.summary == QUORUM_LOOP
    return event.kind not in ("message", "connection", "client")


def touches_partitions(event: SimEvent, took_request: bool) -> bool:
    """Return whether the event may have changed a partition on a broker.

    `took_request`: whether the broker took a request in the event that may change one. The event's summary
    need not name that request, because requests of a link keep their order.
    """
    if event.kind in ("turn", "timer"):
        return event.summary not in QUIET_LOOPS and not event.summary.startswith("timeout of")
    if event.kind == "message":
        # The receiver of a response leaves the work to a loop.
        return took_request
    return event.kind not in ("connection", "client")


def _is_quiet(request: Message) -> bool:
    """Return whether handling the request changes no partition."""
    if request.name != "Fetch":
        return request.name in QUIET_MESSAGES
    topics = request.body.topics
    return len(topics) == 1 and topic_id_of(topics[0].topic_id) == Uuid.METADATA_TOPIC


class NodeChecker:
    """Checks `cluster` after each of its events, from now on."""

    def __init__(self, cluster: NodeCluster, invariants: Sequence[type[Invariant]] = NODE_INVARIANTS) -> None:
        self.cluster = cluster
        unclean = any(each.log.unclean_leader_election_enable for each in cluster.configs.values())
        self.word = QuorumWord(unclean_leader_election_enable=unclean)
        self.quorum = QuorumLogChecker(cluster.brokers)
        self.quorum.on_commit = self.word.committed
        brokers = {node_id: cluster.brokers[node_id] for node_id in cluster.broker_ids}
        self.view = ClusterView(brokers, self.word)
        self.promises = Promises(self.view, cluster.brokers)
        self.checks = 0
        # Returns whether the node's disk refuses operations or lost data, which excuses failures.
        self.is_harmed: Callable[[int], bool] = lambda _: False
        # Called with the node of each event before committed changes count as decided, and with each message.
        self.listeners: list[Callable[[int], object]] = []
        self.message_listeners: list[Callable[[str, Message], object]] = []
        self._invariants = [invariant() for invariant in invariants]
        self._published: dict[int, ClusterMetadata] = {}
        # By node: the publisher whose errors have a known reason, and the number of these errors.
        self._errors: dict[int, tuple[object, int]] = {}
        self._failure: Exception | None = None
        self._upheavals = 0
        self._took_request = False
        cluster.network.tap = self._heard
        cluster.scheduler.after_event = self.check
        self.check()

    def watched(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap the callback of a future; the next check raises what the callback raises."""

        def call(answer: Any) -> None:
            try:
                callback(answer)
            except Exception as error:
                self._failure = self._failure or error

        return call

    def check(self, event: SimEvent | None = None) -> None:
        """Check what the event has touched (None: everything).

        Raises InvariantViolated; the scheduler adds the seed and the event's number as a note.
        """
        if self._failure is not None:
            raise self._failure
        if self.cluster.upheavals != self._upheavals:
            # This may be outside of any event.
            self._upheavals = self.cluster.upheavals
            event = None
        node_ids = self._nodes_of(event)
        if not node_ids:
            # An event of a client only.
            return
        if event is None or touches_quorum(event):
            self.quorum.check(node_ids)
            for listener in self.listeners:
                for node_id in node_ids:
                    listener(node_id)
            for batch in self.word.untold:
                self._check_decided(batch.metadata, batch.delta)
            for node_id in node_ids:
                self._check_known(node_id)
        took_request, self._took_request = self._took_request, False
        if event is None or touches_partitions(event, took_request):
            self._check_partitions([node_id for node_id in node_ids if node_id in self.view.brokers])
        elif self.word.untold:
            self._check_partitions(())

    def _nodes_of(self, event: SimEvent | None) -> Sequence[int]:
        if event is None or event.node_id == WORLD:
            return list(self.cluster.configs)
        return (event.node_id,) if event.node_id in self.cluster.configs else ()

    def _check_partitions(self, broker_ids: Sequence[int]) -> None:
        touched = self.view.look(broker_ids)
        for partition in touched:
            for invariant in self._invariants:
                invariant.check(partition)
                self.checks += 1
        self.view.done(touched)
        # The committed records are known now.
        self.promises.keep()

    def _heard(self, what: str, message: Message) -> None:
        if what == "taken" and message.is_request and not _is_quiet(message):
            self._took_request = True
        # The network cannot fail a run, so a violation is raised after the event.
        try:
            self.quorum.heard(what, message)
            self.promises.heard(what, message)
            self.word.heard(what, message)
            for listener in self.message_listeners:
                listener(what, message)
        except Exception as error:
            self._failure = self._failure or error

    # ---- 9, 12: the decisions, and what nodes know of them ------------------------------------------------

    def _check_decided(self, metadata: ClusterMetadata, delta: MetadataDelta) -> None:
        """12. Members of ISR and ELR are replicas, and none is in both. No fenced broker is in the ISR. If
        the ISR has min.insync.replicas members, the ELR is empty."""
        for change in delta.partitions:
            if change.new is not None:
                self._check_registration(change.topic_partition, change.new, metadata)
        if delta.configs:
            for at, _, partition in metadata.partitions():
                self._check_registration(at, partition, metadata)

    def _check_registration(
        self, at: TopicPartition, new: PartitionRegistration, metadata: ClusterMetadata
    ) -> None:
        isr, elr, replicas = set(new.isr), set(new.elr), set(new.replicas)
        if new.leader != NO_LEADER and new.leader not in isr:
            raise InvariantViolated("LeaderInIsr", f"{at}: {new}")
        if not isr | elr <= replicas or isr & elr:
            raise InvariantViolated("LegalIsr", f"{at}: {new}")
        fenced = {each for each in isr if (known := metadata.brokers.get(each)) is None or known.fenced}
        if fenced:
            raise InvariantViolated("LegalIsr", f"{at}: fenced brokers {fenced} are in sync: {new}")
        settings = self.word.settings_by(metadata, at.topic)
        needed = min(settings.min_insync_replicas, len(replicas))
        if elr and len(isr) >= needed:
            raise InvariantViolated("LegalIsr", f"{at}: eligible besides {needed} in sync: {new}")

    def _check_known(self, node_id: int) -> None:
        """9. A node's metadata equals what the log has committed up to the offset it has applied."""
        node = self.cluster.node(node_id)
        if node is None or node.loader.published is self._published.get(node_id):
            return
        loader = node.loader
        self._published[node_id] = loader.published
        offset = loader.applied.offset
        if offset > self.quorum.committed_end:
            raise InvariantViolated(
                "MetadataLogMatching", f"node {node_id} has applied up to {offset}, more than is committed"
            )
        expected = self.word.states.get(offset)
        if expected is not None and expected != loader.published:
            found = difference(expected, loader.published)
            raise InvariantViolated(
                "MetadataLogMatching", f"node {node_id} at {offset} differs from what is committed: {found}"
            )
        if node.publisher is not None:
            known, errors = self._errors.get(node_id, (None, 0))
            self._errors[node_id] = node.publisher, node.publisher.error_count
            is_more = node.publisher.error_count > (errors if known is node.publisher else 0)
            if is_more and not self.is_harmed(node_id):
                facts = f"node {node_id} did not carry out a change of the metadata"
                raise InvariantViolated("Publisher", facts)
