"""ControllersWord: the controller's decisions, in the form the invariants need.

A scripted controller reports its decisions itself. Those of a quorum are what its metadata log has committed.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.controller import ScriptedController

if TYPE_CHECKING:
    from kreplica.sim.invariants.partition_view import PartitionView

# A partition, and its current state by the controller; None if it no longer exists.
Decision = tuple[TopicPartition, LeaderAndIsr | None]


class ControllersWord(Protocol):
    @property
    def broker_epochs(self) -> Mapping[int, int]:
        """The epoch in which each broker is registered."""
        ...

    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions since the last call, in order."""
        ...

    def epoch_of(self, broker_id: int, program: Any, /) -> int:
        """Return the epoch in which the running broker believes to be registered, -1 for none yet."""
        ...

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with that id, None if there is no such topic."""
        ...

    def min_insync_replicas(self, topic: str) -> int:
        """Return the current min.insync.replicas of the topic."""
        ...

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Return whether `state`, which follows `view.former`, elects a leader that may lack committed
        records."""
        ...


class ScriptedWord:
    """The decisions of a ScriptedController."""

    def __init__(self, controller: ScriptedController) -> None:
        self._controller = controller
        self._told: dict[TopicPartition, LeaderAndIsr] = {}

    @property
    def broker_epochs(self) -> Mapping[int, int]:
        return self._controller.broker_epochs

    def decisions(self) -> Iterator[Decision]:
        for topic_partition, state in self._controller.partitions.items():
            if self._told.get(topic_partition) is not state:
                self._told[topic_partition] = state
                yield topic_partition, state

    def epoch_of(self, broker_id: int, _program: Any, /) -> int:
        """Return the epoch; a broker is registered when it starts."""
        return self._controller.broker_epochs.get(broker_id, -1)

    def topic_name(self, topic_id: Uuid) -> str | None:
        return self._controller.topic_name(topic_id)

    def min_insync_replicas(self, topic: str) -> int:
        return self._controller.topics[topic].config.min_insync_replicas

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Return whether the election was unclean, or elected from an ISR whose members have all lost data.

        If another member of the ISR is whole, nothing is excused.
        """
        former = view.former
        assert former is not None
        recovering = LeaderRecoveryState.RECOVERING
        if (
            state.leader not in former.isr
            or recovering is state.leader_recovery_state is not former.leader_recovery_state
        ):
            return True
        return all(view.replicas[each].is_harmed for each in former.isr)
