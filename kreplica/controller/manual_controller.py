"""ManualController: a controller whose decisions are made by its owner.

It keeps the decisions and the epochs of registered brokers, and elects a leader only when it is asked to. It
answers AlterPartition by the rules of the active controller (isr_change). Thread rule: any thread may call;
`lock` guards everything, and futures are resolved outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kreplica.common.config import LogConfig
from kreplica.common.dataclass import replace
from kreplica.common.errors import KreplicaError, UnknownTopicId, UnsupportedVersion
from kreplica.common.future import Future, failed, resolved
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import RLock
from kreplica.common.messages.controllers import AlterPartitionRequest, AlterPartitionResponse
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as Asked
from kreplica.common.messages.controllers import AlterPartitionResponsePartitionData as PartitionData
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.isr_change import (
    NO_BROKER_EPOCH,
    accepted,
    check_eligible,
    check_isr_change,
    refused,
    response_to,
    stale_broker_epoch,
)

# Far from the ids that brokers have in scripts.
CONTROLLER_ID = 1000


class Topic(NamedTuple):
    """A topic of the cluster: its id, and its logs' configuration."""

    topic_id: Uuid
    config: LogConfig


class ManualController:
    """The decisions about topics, partitions and brokers.

    `on_change(leader_and_isr)` is called for each ISR that a broker's request has changed.
    """

    def __init__(self, on_change: Callable[[LeaderAndIsr], None] = lambda _: None) -> None:
        self.on_change = on_change
        self.lock = RLock()
        # Guarded by lock; a caller that reads and then decides in one step holds it:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[TopicPartition, LeaderAndIsr] = {}
        self.broker_epochs: dict[int, int] = {}
        self.fenced: set[int] = set()
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

    def decide(
        self,
        topic_partition: TopicPartition,
        *,
        isr: Sequence[int] | None = None,
        replicas: Sequence[int] | None = None,
        leader_recovery_state: LeaderRecoveryState | None = None,
    ) -> LeaderAndIsr:
        """Change the given fields of the partition in the same leader epoch; its partition epoch grows."""
        with self.lock:
            state = self.partitions[topic_partition]
            return self._decided(
                state,
                isr=state.isr if isr is None else tuple(isr),
                replicas=state.replicas if replicas is None else tuple(replicas),
                leader_recovery_state=(
                    state.leader_recovery_state if leader_recovery_state is None else leader_recovery_state
                ),
            )

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
            return self._decided(
                state,
                leader=leader,
                leader_epoch=state.leader_epoch + 1,
                isr=state.isr if isr is None else tuple(isr),
                leader_recovery_state=recovery,
            )

    def _decided(self, state: LeaderAndIsr, **changes: Any) -> LeaderAndIsr:
        state = replace(state, is_new=False, partition_epoch=state.partition_epoch + 1, **changes)
        self.partitions[state.topic_partition] = state
        return state

    # ---- AlterPartition -----------------------------------------------------------------------------------

    def handle(self, request: Any) -> Future[Any]:
        """Answer a broker's AlterPartition; the future fails with UnsupportedVersion for another request."""
        if not isinstance(request, AlterPartitionRequest):
            return failed(UnsupportedVersion(f"the controller takes no {type(request).__name__}"))
        return resolved(self.answer_to(request))

    def answer_to(
        self, request: AlterPartitionRequest, error: KreplicaError | None = None
    ) -> AlterPartitionResponse:
        """Decide the request by the rules, or refuse its partitions with `error`."""
        changed: list[LeaderAndIsr] = []

        def answer(place: int, asked: Asked) -> PartitionData:
            number = asked.partition_index
            try:
                state = self.checked(request.broker_id, request.topics[place].topic_id, asked, error)
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

    def checked(
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
