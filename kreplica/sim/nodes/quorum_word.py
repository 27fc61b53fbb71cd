"""QuorumWord: the controller's decisions as the committed log of a metadata quorum.

Each committed batch is replayed once, as soon as any node considers it committed, into a ClusterMetadata of
its own. The states after the last batches are kept, so that a node's metadata can be compared with the state
it should have. Thread rule: one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of
from kreplica.controller.topic_settings import DEFAULTS, ElectionSettings, settings_by
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.metadata_delta import MetadataDelta, PartitionChange
from kreplica.metadata.records import PartitionChangeRecord
from kreplica.metadata.registrations import PartitionRegistration
from kreplica.raft.batch_reader import decoded_batches
from kreplica.sim.invariants.controllers_word import Decision
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message

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
    """Implements `kreplica.sim.invariants.controllers_word.ControllersWord`.

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
