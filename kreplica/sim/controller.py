"""ScriptedController: a stand-in for the controller that a script or a random driver operates.

It keeps the decisions and the epochs of registered brokers, and elects a leader only when it is asked to. It
checks AlterPartition and chooses leaders with the functions of the active controller (kreplica.controller).
If so configured, it refuses requests or holds them until a decision. Thread rule: any thread may call; `lock`
guards everything, and futures are resolved outside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.errors import KreplicaError, UnknownTopicId, UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import RLock
from kreplica.common.messages.controllers import AlterPartitionRequest, AlterPartitionResponse
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as Asked
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as PartitionData
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.isr_change import (
    NO_BROKER_EPOCH,
    accepted,
    check_eligible,
    check_isr_change,
    refused,
    response_to,
    stale_broker_epoch,
)
from kreplica.controller.leader_selectors import (
    HandoverLeaderSelector,
    LeaderSelection,
    OfflinePartitionLeaderSelector,
)
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import UNASSIGNED_DIRECTORY, PartitionRegistration

# Far from the ids that brokers have in scripts.
CONTROLLER_ID = 1000


class AlterPartitionWaiting(NamedTuple):
    """A held AlterPartition request, which waits for a decision."""

    request: AlterPartitionRequest
    future: Future[AlterPartitionResponse]


class Topic(NamedTuple):
    """A topic of the cluster: its id, and its logs' configuration."""

    topic_id: Uuid
    config: LogConfig


class ScriptedController:
    """The scripted controller, which is also the brokers' metadata cache
    (replica.metadata_cache.MetadataCache).

    `on_change(leader_and_isr)` is called for each ISR that a broker's request has changed, and
    `on_handover(broker_id, topic_partition)` when a leader asks to be replaced.
    """

    def __init__(self, on_change: Callable[[LeaderAndIsr], None] = lambda _: None) -> None:
        self.on_change = on_change
        self.on_handover: Callable[[int, TopicPartition], object] = lambda *_: None
        self.lock = RLock()
        # Guarded by lock; a caller that reads and then decides in one step holds it:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[TopicPartition, LeaderAndIsr] = {}
        self.broker_epochs: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.racks: dict[int, str] = {}
        self.holds = False
        self.waiting: list[AlterPartitionWaiting] = []
        self.handovers: list[tuple[int, TopicPartition]] = []  # (leader, partition), as they were asked for
        self.epoch = 1
        self._last_broker_epoch = 0

    # ---- brokers ------------------------------------------------------------------------------------------

    def register(self, broker_id: int) -> int:
        """Register a broker that has started; return its new epoch."""
        with self.lock:
            self._last_broker_epoch += 1
            self.broker_epochs[broker_id] = self._last_broker_epoch
            self.fenced.discard(broker_id)
            return self._last_broker_epoch

    def is_broker_fenced(self, broker_id: int) -> bool:
        """Return whether the broker must not lead; False for an unknown one."""
        return broker_id in self.fenced

    def rack(self, broker_id: int) -> str | None:
        return None if broker_id in self.fenced else self.racks.get(broker_id)

    def address(self, broker_id: int) -> tuple[str, int] | None:
        """Return a name and no port; simulated brokers listen on no address."""
        return f"broker-{broker_id}", 0

    def is_broker_shutting_down(self, broker_id: int) -> bool:  # noqa: ARG002
        """Return False: a scripted broker stops without asking the controller."""
        return False

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of the broker's registration, None for a fenced or unknown one."""
        return None if broker_id in self.fenced else self.broker_epochs.get(broker_id)

    def restore(self, epoch: int, broker_epochs: Mapping[int, int]) -> None:
        """Continue in controller epoch `epoch` after an earlier controller; all its brokers are down."""
        with self.lock:
            self.epoch = epoch
            self.broker_epochs = dict(broker_epochs)
            self.fenced = set(broker_epochs)
            self._last_broker_epoch = max(broker_epochs.values(), default=0)

    # ---- topics -------------------------------------------------------------------------------------------

    def add_topic(self, topic: str, config: LogConfig) -> Topic:
        """Add a topic without partitions; its id is the number of topics so far."""
        with self.lock:
            added = Topic(Uuid((len(self.topics) + 1).to_bytes(Uuid.SIZE, "big")), config)
            self.topics[topic] = added
            return added

    def configs(self) -> dict[str, LogConfig]:
        """Return the configuration of each topic's logs."""
        with self.lock:
            return {name: topic.config for name, topic in self.topics.items()}

    def contains(self, topic_partition: TopicPartition) -> bool:
        """Return whether the cluster has such a partition."""
        return topic_partition in self.partitions

    def leader(self, topic_partition: TopicPartition) -> int | None:
        """Return the partition's leader, None if it has no leader or does not exist."""
        state = self.partitions.get(topic_partition)
        return None if state is None or state.leader == NO_LEADER else state.leader

    def topic_name(self, topic_id: Uuid) -> str | None:
        with self.lock:
            return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def topic_id(self, topic: str) -> Uuid | None:
        known = self.topics.get(topic)
        return None if known is None else known.topic_id

    # ---- decisions ----------------------------------------------------------------------------------------

    def create(self, topic_partition: TopicPartition, replicas: Sequence[int]) -> LeaderAndIsr:
        """Create a partition of a topic, led by its first replica, with all replicas in sync."""
        state = LeaderAndIsr(
            topic_partition=topic_partition,
            topic_id=self.topics[topic_partition.topic].topic_id,
            leader=replicas[0],
            leader_epoch=0,
            isr=tuple(replicas),
            partition_epoch=0,
            replicas=tuple(replicas),
            is_new=True,
        )
        with self.lock:
            self.partitions[topic_partition] = state
        return state

    def decide(self, topic_partition: TopicPartition, **changes: Any) -> LeaderAndIsr:
        """Change fields of the partition's state; the partition epoch grows unless it is given."""
        with self.lock:
            state = self.partitions[topic_partition]
            changes.setdefault("partition_epoch", state.partition_epoch + 1)
            state = dataclasses.replace(state, is_new=False, **changes)
            self.partitions[topic_partition] = state
            return state

    def elect(
        self,
        topic_partition: TopicPartition,
        leader: int,
        isr: Sequence[int] | None = None,
        *,
        unclean: bool = False,
    ) -> LeaderAndIsr:
        """Elect `leader` in the next leader epoch, with the current ISR or the given one."""
        with self.lock:
            state = self.partitions[topic_partition]
            recovery = LeaderRecoveryState.RECOVERING if unclean else state.leader_recovery_state
            return self.decide(
                topic_partition,
                leader=leader,
                leader_epoch=state.leader_epoch + 1,
                isr=state.isr if isr is None else tuple(isr),
                leader_recovery_state=recovery,
            )

    def select_leader(
        self, state: LeaderAndIsr, live: Collection[int], *, unclean: bool = False
    ) -> LeaderSelection:
        """Choose a leader for a partition without one, as the active controller does; change nothing.

        `live`: the brokers that may lead. `unclean`: whether unclean election is enabled. Raises
        NoReplicaOnline.
        """
        context = self._context(live)
        return OfflinePartitionLeaderSelector(context, always_unclean=unclean).select_leader(
            _context_of(state)
        )

    def select_successor(self, state: LeaderAndIsr, live: Collection[int]) -> LeaderSelection:
        """Choose a leader instead of one that cannot go on. Raises StateChangeFailed."""
        return HandoverLeaderSelector(self._context(live)).select_leader(_context_of(state))

    def _context(self, live: Collection[int]) -> ControllerContext:
        context = ControllerContext(ClusterMetadata(), self.epoch)
        context.live_broker_ids = set(live)
        return context

    def handover_wanted(self, broker_id: int, topic_partition: TopicPartition) -> None:
        """Record that the broker cannot lead the partition, so another leader has to be elected."""
        with self.lock:
            if (broker_id, topic_partition) not in self.handovers:
                self.handovers.append((broker_id, topic_partition))
        self.on_handover(broker_id, topic_partition)

    # ---- AlterPartition -----------------------------------------------------------------------------------

    def handle(self, request: Any) -> Future[Any]:
        """Answer a broker's request; this is the handler of the controller's node."""
        if not isinstance(request, AlterPartitionRequest):
            return failed(UnsupportedVersion(f"the controller takes no {type(request).__name__}"))
        waiting = AlterPartitionWaiting(request, Future())
        with self.lock:
            self.waiting.append(waiting)
            holds = self.holds
        if not holds:
            self.answer()
        return waiting.future

    def answer(self, error: KreplicaError | None = None) -> int:
        """Decide all held requests: by the rules, or refuse their partitions with `error`."""
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for request, future in waiting:
            future.set_result(self._answer_to(request, error))
        return len(waiting)

    def about_to_join(self) -> list[int]:
        """Return the brokers that the held requests would add to an ISR."""
        joining: set[int] = set()
        with self.lock:
            for request, _ in self.waiting:
                for state, asked in self._allowed(request):
                    joining |= {each.broker_id for each in asked.new_isr_with_epochs} - set(state.isr)
        return sorted(joining)

    def _allowed(self, request: AlterPartitionRequest) -> Iterator[tuple[LeaderAndIsr, Asked]]:
        for topic in request.topics:
            for asked in topic.partitions:
                try:
                    yield self._checked(request.broker_id, topic.topic_id, asked), asked
                except KreplicaError:
                    continue

    def _answer_to(
        self, request: AlterPartitionRequest, error: KreplicaError | None
    ) -> AlterPartitionResponse:
        changed: list[LeaderAndIsr] = []

        def answer(place: int, asked: Asked) -> PartitionData:
            number = asked.partition_index
            try:
                state = self._checked(request.broker_id, request.topics[place].topic_id, asked, error)
            except KreplicaError as refusal:
                return refused(number, refusal)
            state = self.decide(
                state.topic_partition,
                isr=tuple(broker.broker_id for broker in asked.new_isr_with_epochs),
                leader_recovery_state=LeaderRecoveryState(asked.leader_recovery_state),
            )
            changed.append(state)
            return accepted(number, state)

        with self.lock:
            epoch = self.broker_epochs.get(request.broker_id)
            if epoch is None or request.broker_epoch not in (NO_BROKER_EPOCH, epoch):
                return stale_broker_epoch()
            response = response_to(request, answer)
        for state in changed:
            self.on_change(state)
        return response

    def _checked(
        self, broker_id: int, topic_id: Any, asked: Asked, error: KreplicaError | None = None
    ) -> LeaderAndIsr:
        """Return the partition's state if the change is allowed. Raises `error`, or why it is not."""
        for state in self.partitions.values():
            number = state.topic_partition.partition
            if state.topic_id.raw == topic_id.bytes and number == asked.partition_index:
                break
        else:
            raise UnknownTopicId(f"unknown topic id {topic_id}")
        if error is not None:
            raise error
        check_isr_change(broker_id, state.topic_partition, state, asked)
        live = self.broker_epochs.keys() - self.fenced
        check_eligible(asked, self.broker_epochs.get, live=live, leaving=())
        return state


def _context_of(state: LeaderAndIsr) -> PartitionContext:
    registration = PartitionRegistration(
        replicas=state.replicas,
        directories=(UNASSIGNED_DIRECTORY,) * len(state.replicas),
        isr=state.isr,
        removing_replicas=state.removing_replicas,
        adding_replicas=state.adding_replicas,
        elr=state.elr,
        last_known_elr=(),
        leader=state.leader,
        leader_recovery_state=state.leader_recovery_state,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
    )
    return PartitionContext(state.topic_partition, state.topic_id, registration)
