"""ScriptedController: a stand-in for the controller that a script or a random driver operates.

It decides what it is asked to, and chooses leaders with the functions of the active controller
(kreplica.controller). If so configured, it refuses requests or holds them until a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.messages.controllers import AlterPartitionRequest, AlterPartitionResponse
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as Asked
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.controller_context import ControllerContext, PartitionContext
from kreplica.controller.leader_selectors import (
    HandoverLeaderSelector,
    LeaderSelection,
    OfflinePartitionLeaderSelector,
)
from kreplica.controller.manual_controller import ManualController, Topic
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.registrations import UNASSIGNED_DIRECTORY, PartitionRegistration


class AlterPartitionWaiting(NamedTuple):
    """A held AlterPartition request, which waits for a decision."""

    request: AlterPartitionRequest
    future: Future[AlterPartitionResponse]


class ScriptedController(ManualController):
    """The scripted controller, which is also the brokers' metadata cache
    (replica.metadata_cache.MetadataCache).

    `on_handover(broker_id, topic_partition)` is called when a leader asks to be replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_handover: Callable[[int, TopicPartition], object] = lambda *_: None
        # Guarded by lock:
        self.racks: dict[int, str] = {}
        self.holds = False
        self.waiting: list[AlterPartitionWaiting] = []
        self.handovers: list[tuple[int, TopicPartition]] = []  # (leader, partition), as they were asked for

    # ---- brokers ------------------------------------------------------------------------------------------

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
        """Answer a broker's request, or hold it; this is the handler of the controller's node."""
        with self.lock:
            if self.holds and isinstance(request, AlterPartitionRequest):
                held = AlterPartitionWaiting(request, Future())
                self.waiting.append(held)
                return held.future
        return super().handle(request)

    def answer(self, error: KreplicaError | None = None) -> int:
        """Decide all held requests: by the rules, or refuse their partitions with `error`."""
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for request, future in waiting:
            future.set_result(self.answer_to(request, error))
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
                    yield self.checked(request.broker_id, topic.topic_id, asked), asked
                except KreplicaError:
                    continue


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
