"""UntakenRoles: what the controller has decided and this broker could not do yet, since its disk is full.

A new leader has to note its epoch before it leads. Where there is no room for that, the broker does nothing
for the partition, and tries again after a while: the controller says a thing once. Thread rule: the
ReplicaManager's lock of roles guards it, but `is_to_lead` may be asked without; `take_again` is called in the
loop.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import Cancellable, Loop
from kreplica.common.types import TopicPartition


class UntakenRoles:
    """`take_again()` is called in `loop`, `backoff_ms` after the first of them was added."""

    def __init__(self, loop: Loop, take_again: Callable[[], None], backoff_ms: int) -> None:
        self._loop = loop
        self._take_again = take_again
        self._backoff_ms = backoff_ms
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._alarm: Cancellable | None = None

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._states

    def is_to_lead(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether this broker is to lead the partition as soon as there is room for that."""
        waiting = self._states.get(topic_partition)
        return waiting is not None and waiting.leader == broker_id

    def outdates(self, state: LeaderAndIsr) -> bool:
        """Whether a later decision about the partition waits to be taken."""
        waiting = self._states.get(state.topic_partition)
        return waiting is not None and state.partition_epoch < waiting.partition_epoch

    def add(self, state: LeaderAndIsr) -> None:
        """There was no room to take this role."""
        self._states[state.topic_partition] = state
        if self._alarm is None:
            self._alarm = self._loop.post_later(self._take_again, self._backoff_ms)

    def discard(self, topic_partition: TopicPartition) -> None:
        """The partition has its role, or is none of this broker's any more."""
        self._states.pop(topic_partition, None)

    def take(self) -> list[LeaderAndIsr]:
        """Those to be tried again now."""
        self._alarm = None
        return list(self._states.values())

    def clear(self) -> None:
        """Try none any more."""
        self._states.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
