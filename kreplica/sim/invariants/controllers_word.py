"""ControllersWord: what the cluster's controller has decided, as the invariants ask for it.

A scripted controller says its word itself; that of a quorum is what its metadata log has committed. Thread
rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.controller import ScriptedController

if TYPE_CHECKING:
    from kreplica.sim.invariants.partition_view import PartitionView

# A partition, and how it stands by the controller now; None where there is none any more.
Decision = tuple[TopicPartition, LeaderAndIsr | None]


class ControllersWord(Protocol):
    @property
    def broker_epochs(self) -> Mapping[int, int]:
        """The epoch in which each broker is registered."""
        ...

    def decisions(self) -> Iterator[Decision]:
        """What was decided since the last call, in order."""
        ...

    def epoch_of(self, broker_id: int, program: Any, /) -> int:
        """The epoch in which the broker that runs takes itself for registered; -1: in none yet."""
        ...

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name of the topic with that id; None where there is none."""
        ...

    def min_insync_replicas(self, topic: str) -> int:
        """How many must be in sync now for an append with acks=all."""
        ...

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """Whether `state`, which follows on `view.former`, elects a leader of whom nobody can know that it
        has all that is committed."""
        ...


class ScriptedWord:
    """The word of a ScriptedController."""

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
        """A broker is registered when it starts."""
        return self._controller.broker_epochs.get(broker_id, -1)

    def topic_name(self, topic_id: Uuid) -> str | None:
        return self._controller.topic_name(topic_id)

    def min_insync_replicas(self, topic: str) -> int:
        return self._controller.topics[topic].config.min_insync_replicas

    def makes_void(self, view: PartitionView, state: LeaderAndIsr) -> bool:
        """An unclean election does; so does that of the last one in sync, whose disk lost something. Where
        another one in sync is whole, nothing is excused."""
        former = view.former
        assert former is not None
        recovering = LeaderRecoveryState.RECOVERING
        if (
            state.leader not in former.isr
            or recovering is state.leader_recovery_state is not former.leader_recovery_state
        ):
            return True
        return all(view.replicas[each].is_harmed for each in former.isr)
