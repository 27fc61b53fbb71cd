"""UntakenRoles: roles that this broker could not take yet because its disk is full.

A new leader must write its epoch before it leads. If there is no room for that, the broker leaves the
partition as it is and retries later, since the controller assigns a role only once. Thread rule: the
ReplicaManager's role lock guards it, but `is_to_lead` needs no lock; `take_again` is called in the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import Cancellable, Loop
from kreplica.common.types import TopicPartition


class UntakenRoles:
    """`take_again()` is called in `loop`, `backoff_ms` after the first role was added."""

    def __init__(self, loop: Loop, take_again: Callable[[], None], backoff_ms: int) -> None:
        self._loop = loop
        self._take_again = take_again
        self._backoff_ms = backoff_ms
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._alarm: Cancellable | None = None

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._states

    def is_to_lead(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether this broker is to lead the partition as soon as there is room."""
        waiting = self._states.get(topic_partition)
        return waiting is not None and waiting.leader == broker_id

    def outdates(self, state: LeaderAndIsr) -> bool:
        """Whether a later role of the partition waits to be taken."""
        waiting = self._states.get(state.topic_partition)
        return waiting is not None and state.partition_epoch < waiting.partition_epoch

    def add(self, state: LeaderAndIsr) -> None:
        """Add a role that found no room."""
        self._states[state.topic_partition] = state
        if self._alarm is None:
            self._alarm = self._loop.post_later(self._take_again, self._backoff_ms)

    def discard(self, topic_partition: TopicPartition) -> None:
        """Remove the partition's role: it was taken, or the partition has left this broker."""
        self._states.pop(topic_partition, None)

    def take(self) -> list[LeaderAndIsr]:
        """Return the roles to retry now."""
        self._alarm = None
        return list(self._states.values())

    def clear(self) -> None:
        """Cancel all retries."""
        self._states.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
