"""NodeChecker: checks all invariants of a cluster of whole nodes after every event.

The quorum's invariants come first, because they establish what is committed. The committed metadata is then
the controller's decision (QuorumWord), which the partitions are compared with, and so are the brokers'
responses to clients (Promises). Only what the event may have touched is checked: its node, and the partitions
that have changed. Thread rule: one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from kreplica._core.records import batches
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import ACKS_ALL, TopicPartition, Uuid
from kreplica.common.wire import topic_id_of
from kreplica.controller.topic_settings import DEFAULTS, ElectionSettings, settings_by
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta, PartitionChange, difference
from kreplica.metadata.records import PartitionChangeRecord
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.raft.raft_messages import is_of_metadata_log
from kreplica.sim import client
from kreplica.sim.invariants.checker import INVARIANTS, InvariantChecker
from kreplica.sim.invariants.cluster_view import ClusterView, Decision, PartitionView
from kreplica.sim.invariants.rules import CandidateCompleteness, Invariant, QuorumSuperset
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.machines import SimBroker
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_cluster import FIRST_CLIENT_ID, NodeCluster
from kreplica.sim.quorum.quorum_log_checker import QUORUM_LOOP, QuorumLogChecker, touches_quorum
from kreplica.sim.scheduler import WORLD, SimEvent

Records = list[tuple[int, int, bytes | None]]


class _Asked(NamedTuple):
    """A batch that a producer wants acknowledged, and the partition's leader epoch on the broker."""

    view: PartitionView
    leader_epoch: int
    values: Sequence[bytes | None]


class Promises:
    """The promises of the brokers among `machines`; `view` checks them."""

    def __init__(self, view: ClusterView, machines: Mapping[int, SimBroker]) -> None:
        self.acknowledged = 0
        self.consumed = 0
        self._view = view
        self._machines = machines
        self._asked: dict[int, _Asked] = {}
        self._acks: list[tuple[_Asked, int]] = []
        self._reads: list[tuple[PartitionView, int, Records]] = []

    def heard(self, what: str, message: Message) -> None:
        """Take note of a message; this is the network's tap."""
        if message.name == "Produce":
            if message.is_request and what == "taken":
                self._produce_asked(message)
            elif not message.is_request and what == "sent":
                self._produce_answered(message)
        elif (
            message.name == "Fetch"
            and not message.is_request
            and what == "sent"
            and message.receiver not in self._machines
        ):
            self._fetch_answered(message)

    def keep(self) -> None:
        """Pass the promises of the last event to the view. Raises InvariantViolated."""
        acks, self._acks = self._acks, []
        for asked, offset in acks:
            view = asked.view
            if self._is_there(view) and asked.leader_epoch >= view.unclean_epoch:
                self.acknowledged += len(asked.values)
                self._view.acknowledged(view.topic_partition, offset, asked.values)
        reads, self._reads = self._reads, []
        for view, epoch, records in reads:
            if self._is_there(view) and epoch >= view.unclean_epoch:
                self.consumed += len(records)
                self._view.consumed(view.topic_partition, records)

    # ---- internals ----------------------------------------------------------------------------------------

    def _is_there(self, view: PartitionView) -> bool:
        return self._view.partitions.get(view.topic_partition) is view

    def _present(self, broker_id: int, at: TopicPartition) -> tuple[PartitionView, int] | None:
        """Return the partition and its leader epoch on the broker, None if the topic is gone."""
        machine, view = self._machines.get(broker_id), self._view.partitions.get(at)
        if view is None or machine is None or machine.program is None:
            return None
        partition = machine.program.replica_manager.partitions.get(at)
        if partition is None or partition.leader_and_isr is None:
            return None
        if partition.leader_and_isr.topic_id != view.topic_id:
            return None
        return view, partition.leader_epoch

    def _produce_asked(self, message: Message) -> None:
        body = message.body
        if body.acks != ACKS_ALL:
            return
        at, values = _values_of(body)
        found = self._present(message.receiver, at)
        if found is not None and values:
            self._asked[message.number] = _Asked(*found, values)

    def _produce_answered(self, message: Message) -> None:
        asked = self._asked.pop(message.number, None)
        if asked is None or message.body is None:
            return
        base_offset = _base_offset_of(message.body)
        if base_offset >= 0:
            self._acks.append((asked, base_offset))

    def _fetch_answered(self, message: Message) -> None:
        machine = self._machines.get(message.sender_id)
        if machine is None or machine.program is None:
            return
        for topic in message.body.responses:
            name = self._view.word.topic_name(topic_id_of(topic.topic_id))
            for data in topic.partitions:
                if name is None or data.error_code or not data.records:
                    continue
                found = self._present(message.sender_id, TopicPartition(name, data.partition_index))
                if found is not None:
                    self._reads.append((*found, _records_of(data.records)))


def _values_of(request: Any) -> tuple[TopicPartition, Sequence[bytes | None]]:
    """Return the partition and the values of a produce request, a client's or a script's."""
    if isinstance(request, client.ProduceRequest):
        return request.topic_partition, request.values
    topic = request.topic_data[0]
    data = topic.partition_data[0]
    at = TopicPartition(str(topic.name), data.index)
    return at, [record.value for batch in batches(data.records or b"") for record in batch]


def _base_offset_of(answer: Any) -> int:
    """Return the offset of the first acknowledged value, -1 if the response acknowledges none."""
    if isinstance(answer, client.Produced):
        return answer.base_offset
    partition = answer.responses[0].partition_responses[0]
    return -1 if partition.error_code else int(partition.base_offset)


def _records_of(data: Any) -> Records:
    return [
        (record.offset, batch.leader_epoch, record.value)
        for batch in batches(data)
        if not batch.is_control
        for record in batch
        if record.offset is not None
    ]


READ_BYTES = 1 << 20
# A node that lags further behind than this number of batches is compared after it has caught up.
KEPT_STATES = 2_000


class CommittedBatch:
    """The effect of a committed batch on the cluster: `delta`, and `metadata` after it.

    `unclean`: the partitions, by topic and number, with an election at which their topic's settings allowed
    an unclean one. The same batch may change these settings before and after it.
    """

    __slots__ = ("delta", "end_offset", "metadata", "unclean")

    def __init__(
        self, end_offset: int, metadata: ClusterMetadata, delta: MetadataDelta, unclean: Set[tuple[Uuid, int]]
    ) -> None:
        self.end_offset = end_offset
        self.metadata = metadata
        self.delta = delta
        self.unclean = unclean


class QuorumWord:
    """Implements `kreplica.sim.invariants.cluster_view.ControllersWord`.

    `now`: the cluster after the decision that was returned last. `unclean_topics`: topics for which an
    unclean election was requested, whatever their settings. `reused_names`: names that more than one topic
    has had; a response about such a topic may concern any of them. `unclean_leader_election_enable`: the
    controllers' default for topics without a setting.
    """

    def __init__(self, *, unclean_leader_election_enable: bool = False) -> None:
        self._defaults = DEFAULTS._replace(unclean_leader_election_enable=unclean_leader_election_enable)
        self.now = ClusterMetadata()
        self.unclean_topics: set[str] = set()
        self.reused_names: set[str] = set()
        self._first_topics: dict[str, Uuid] = {}  # by name
        # For each of the last committed batches, by its end.
        self.states: dict[int, ClusterMetadata] = {0: self.now}
        self.untold: deque[CommittedBatch] = deque()
        self._replayed = ClusterMetadata()
        # The effective settings of topics, by the table of settings used last.
        self._configs: object = None
        self._settings: dict[str, ElectionSettings] = {}
        self._change: PartitionChange | None = None  # the decision being returned
        self._unclean: Set[tuple[Uuid, int]] = frozenset()  # of the batch being returned
        # By topic and partition: a leader epoch, and the replicas that its leader has proposed for the ISR.
        self._proposed: dict[tuple[Uuid, int], tuple[int, set[int]]] = {}

    def committed(self, member: Any, start: int, end: int) -> None:
        """Replay what was just committed, which the member's log holds from `start` to `end`."""
        at = start
        while at < end:
            records = member.log.read(at, READ_BYTES, committed_only=False).records
            assert records is not None, (start, at, end)
            for batch in decoded_batches(records):
                at = batch.last_offset + 1
                if at > end:
                    break
                unclean: set[tuple[Uuid, int]] = set()
                for offset, (message, version) in enumerate(batch.records, batch.base_offset):
                    if isinstance(message, PartitionChangeRecord) and self._is_allowed_unclean(message):
                        unclean.add((message.topic_id, message.partition_id))
                    self._replayed.replay(message, version, offset)
                delta = self._replayed.take_delta()
                metadata = self._replayed.copy()
                self.states[at] = metadata
                self.untold.append(CommittedBatch(at, metadata, delta, unclean))
        while len(self.states) > KEPT_STATES:
            del self.states[next(iter(self.states))]

    def _is_allowed_unclean(self, change: PartitionChangeRecord) -> bool:
        """Return whether the next record elects a leader while the settings replayed so far allow an unclean
        election.

        An unclean election after another one has no recovery state: its partition is already recovering.
        """
        topic = self._replayed.topic_names.get(change.topic_id)
        if topic is None or change.leader < 0:
            return False
        return settings_by(self._replayed.configs, topic, self._defaults).unclean_leader_election_enable

    def heard(self, what: str, message: Message) -> None:
        """Note the replicas that a leader proposes for the ISR, because it counts on them from then on."""
        if what != "sent" or not message.is_request or message.name != "AlterPartition":
            return
        for topic in message.body.topics:
            for asked in topic.partitions:
                key = topic_id_of(topic.topic_id), asked.partition_index
                epoch, proposed = self._proposed.get(key, (-1, set()))
                if asked.leader_epoch >= epoch:
                    new = {each.broker_id for each in asked.new_isr_with_epochs}
                    known = proposed if asked.leader_epoch == epoch else set()
                    self._proposed[key] = asked.leader_epoch, known | new

    def _was_proposed(self, state: LeaderAndIsr, leader_epoch: int) -> bool:
        """Return whether one batch accepted the leader's proposal and elected from it, as at the end of a
        reassignment."""
        key = state.topic_id, state.topic_partition.partition
        epoch, proposed = self._proposed.get(key, (-1, set()))
        return epoch == leader_epoch and state.leader in proposed

    # ---- decisions ----------------------------------------------------------------------------------------

    @property
    def broker_epochs(self) -> Mapping[int, int]:
        return {broker_id: broker.epoch for broker_id, broker in self.now.brokers.items()}

    def decisions(self) -> Iterator[Decision]:
        while self.untold:
            batch = self.untold.popleft()
            self.now, self._unclean = batch.metadata, batch.unclean
            for change in batch.delta.partitions:
                self._change = change
                at, new = change.topic_partition, change.new
                if self._first_topics.setdefault(at.topic, change.topic_id) != change.topic_id:
                    self.reused_names.add(at.topic)
                yield at, None if new is None else new.leader_and_isr(at, change.topic_id)
            if batch.delta.configs:
                # A topic's settings count as decisions, too: min.insync.replicas.
                for at, topic_id, partition in self.now.partitions():
                    yield at, partition.leader_and_isr(at, topic_id)

    def epoch_of(self, _broker_id: int, program: Any, /) -> int:
        lifecycle = program.node.lifecycle
        return -1 if lifecycle is None else int(lifecycle.broker_epoch())

    def topic_name(self, topic_id: Uuid) -> str | None:
        return self.now.topic_names.get(topic_id)

    def min_insync_replicas(self, topic: str) -> int:
        return self.settings_of(topic).min_insync_replicas

    def settings_of(self, topic: str) -> ElectionSettings:
        """Return the topic's effective settings as of `now`."""
        return self.settings_by(self.now, topic)

    def settings_by(self, metadata: ClusterMetadata, topic: str) -> ElectionSettings:
        """Return the topic's effective settings in `metadata`."""
        if metadata.configs is not self._configs:
            # Copies share the table until it changes.
            self._configs, self._settings = metadata.configs, {}
        if topic not in self._settings:
            self._settings[topic] = settings_by(metadata.configs, topic, self._defaults)
        return self._settings[topic]

    def registration(self, at: TopicPartition) -> PartitionRegistration | None:
        """Return the partition's registration as of `now`."""
        return self.now.partition(at)

    def _may_be_unclean(self, state: LeaderAndIsr) -> bool:
        """Return whether the topic allowed an unclean election at that time, or one was requested."""
        at = state.topic_partition
        return at.topic in self.unclean_topics or (state.topic_id, at.partition) in self._unclean

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Return whether the election voids records. Raises InvariantViolated for an illegal election.

        An election outside of ISR and ELR voids records if the topic allows it. If ISR and ELR are empty,
        that of the last leader does (KIP-966), if its disk has lost data.
        """
        assert self._change is not None
        former, leader = self._change.old, state.leader
        assert former is not None
        if leader in former.isr or leader in former.elr:
            return False
        if former.leader < 0 and not (former.leader_epoch or former.isr):
            return False  # the partition's first leader: nothing was committed
        is_recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        if is_recovering and self._may_be_unclean(state):
            return True
        if not is_recovering and self._was_proposed(state, former.leader_epoch):
            return False
        # A broker that registered since it was last eligible may have lost its data, and is not eligible any
        # longer.
        epochs = self.broker_epochs
        eligible = {**view.eligible, **view.members}
        left = [each for each in (*former.isr, *former.elr) if epochs.get(each) == eligible.get(each)]
        if left or leader not in (*former.last_known_elr, former.leader):
            facts = f"{leader} is elected, but {left} were eligible: {former}; {view}"
            raise InvariantViolated("LegalElection", facts)
        return view.replicas[leader].is_harmed


NODE_INVARIANTS: tuple[type[Invariant], ...] = (*INVARIANTS, QuorumSuperset, CandidateCompleteness)


# Events in these loops of a node change neither its partitions nor their logs. The quorum's changes happen in
# its own loop alone; all other loops only post work to it.
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


# What the parts of a checker, and its listeners, listen for.
HEARD = frozenset({"AlterPartition", "Fetch", "Produce", "Vote"})


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
    if request.frame is not None:
        # A follower's; members of the quorum send objects.
        return False
    return is_of_metadata_log(request.body)


class NodeChecker(InvariantChecker):
    """Checks `cluster` after each of its events, from now on."""

    def __init__(self, cluster: NodeCluster, invariants: Sequence[type[Invariant]] = NODE_INVARIANTS) -> None:
        self.cluster = cluster
        unclean = any(each.log.unclean_leader_election_enable for each in cluster.configs.values())
        self.word = QuorumWord(unclean_leader_election_enable=unclean)
        self.quorum = QuorumLogChecker(cluster.brokers)
        self.quorum.on_commit = self.word.committed
        brokers = {node_id: cluster.brokers[node_id] for node_id in cluster.broker_ids}
        self._prepare(ClusterView(brokers, self.word), invariants)
        self.promises = Promises(self.view, cluster.brokers)
        # Returns whether the node's disk refuses operations or lost data, which excuses failures.
        self.is_harmed: Callable[[int], bool] = lambda _: False
        # Called with the node of each event before committed changes count as decided, and with each message
        # whose name is in `heard`.
        self.listeners: list[Callable[[int], object]] = []
        self.message_listeners: list[Callable[[str, Message], object]] = []
        self.heard: Set[str] = HEARD
        # Called after the checks of an event.
        self.event_listeners: list[Callable[[SimEvent | None], object]] = []
        self._published: dict[int, ClusterMetadata] = {}
        # By node and name: the parts of the expected and the published metadata that were equal.
        self._equal: dict[tuple[int, str], tuple[object, object]] = {}
        # By node: the publisher whose errors have a known reason, and the number of these errors.
        self._errors: dict[int, tuple[object, int]] = {}
        self._upheavals = 0
        self._took_request = False
        cluster.network.tap = self._heard
        cluster.scheduler.after_event = self.check
        self.check()

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
        if event is not None and self._changed_nothing(event):
            return
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
        for look in self.event_listeners:
            look(event)

    def add_invariant(self, invariant: Invariant) -> None:
        """Check this invariant of partitions, too."""
        self._invariants.append(invariant)

    def _changed_nothing(self, event: SimEvent) -> bool:
        """Return whether the event is one of a client, or a message that leaves the work to a loop."""
        if event.kind == "message":
            return not self._took_request and not self.word.untold
        return event.node_id >= FIRST_CLIENT_ID

    def _nodes_of(self, event: SimEvent | None) -> Sequence[int]:
        if event is None or event.node_id == WORLD:
            return list(self.cluster.configs)
        return (event.node_id,) if event.node_id in self.cluster.configs else ()

    def _check_partitions(self, broker_ids: Sequence[int] | None) -> None:
        super()._check_partitions(broker_ids)
        # The committed records are known now.
        self.promises.keep()

    def _heard(self, what: str, message: Message) -> None:
        if what == "taken" and message.is_request and not _is_quiet(message):
            self._took_request = True
        if message.name not in self.heard:
            return
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
        if expected is not None and self._differs(node_id, expected, loader.published):
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

    def _differs(self, node_id: int, expected: ClusterMetadata, published: ClusterMetadata) -> bool:
        """Compare two states, without the parts that were equal at the last comparison and are the same
        objects."""
        for name in ClusterMetadata.STATE:
            ours, theirs = getattr(expected, name), getattr(published, name)
            known = self._equal.get((node_id, name))
            if known is not None and known[0] is ours and known[1] is theirs:
                continue
            if ours != theirs:
                return True
            self._equal[node_id, name] = ours, theirs
        return False
