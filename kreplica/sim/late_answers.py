"""LateAnswers: leader changes while a response with the point of divergence of two logs is in flight.

A leader writes records that another replica does not get, follows that replica for a moment, leads again, and
follows once more. Only then the first response arrives; it points below records that are committed by now
(KAFKA-13207). Chance alone hardly ever produces this, so each step waits for its condition, and gives up if
it does not come true. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from random import Random
from typing import Any

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.replica.remote_leader_endpoint import fetch_answers
from kreplica.sim.cluster import SimCluster
from kreplica.sim.network import Message, SimNetwork

# How often, and for how long at most, a step checks its condition: shorter than a follower waits.
LOOK_MS = 2
WAITS_MS = 120

Waiting = Generator[None, None, bool]


class LateAnswers:
    """The late answers of `cluster`. `elect(partition, broker_id)` elects a running replica that is in
    sync."""

    def __init__(
        self,
        cluster: SimCluster,
        counts: Counter[str],
        random: Random,
        elect: Callable[[TopicPartition, int], None],
    ) -> None:
        self._cluster = cluster
        self._counts = counts
        self._random = random
        self._elect = elect
        self._story: Generator[None, None, None] | None = None

    def strike(self, _: int) -> None:
        """Start the sequence on one partition, unless it is running on another."""
        state = self._random.choice(list(self._cluster.controller.partitions.values()))
        others = [each for each in state.isr if each != state.leader]
        if self._story is None and state.leader in state.isr and others:
            self._story = self._late(state, self._random.choice(others))
            self._go_on()

    def heal(self) -> None:
        """Deliver what is held."""
        if self._story is not None:
            self._story.close()
            self._story = None

    # ---- internals ----------------------------------------------------------------------------------------

    def _late(self, state: LeaderAndIsr, other: int) -> Generator[None, None, None]:
        at, leader = state.topic_partition, state.leader
        network = self._cluster.network
        deaf = _Held(network, lambda message: _is_answer(message, leader, other))
        late = _Held(network, lambda message: _is_answer(message, other, leader) and _parts(message, state))
        try:
            if not (yield from self._wait(lambda: self._end(leader, at) > self._end(other, at) >= 0)):
                return
            written = self._end(leader, at)
            self._elect(at, other)
            if not (yield from self._wait(lambda: bool(late.messages))):
                return
            self._elect(at, leader)
            deaf.release()
            if not (yield from self._wait(lambda: self._mark(leader, at) >= written)):
                return
            self._elect(at, self._random.choice([each for each in state.isr if each != leader]))
            if (yield from self._wait(lambda: self._follows(leader, at))):
                self._counts["late divergences"] += 1
        finally:
            deaf.release()
            late.release()

    def _wait(self, is_so: Callable[[], bool]) -> Waiting:
        for _ in range(WAITS_MS // LOOK_MS):
            if is_so():
                return True
            yield
        return False

    def _go_on(self) -> None:
        if self._story is None:
            return
        try:
            next(self._story)
        except StopIteration:
            self._story = None
            return
        # This event changes nothing.
        self._cluster.scheduler.add(
            "timer", "who has heard what", self._go_on, delay_ns=LOOK_MS * NANOSECONDS_PER_MS
        )

    def _partition(self, broker_id: int, at: TopicPartition) -> Any:
        program = self._cluster.brokers[broker_id].program
        partition = None if program is None else program.replica_manager.partitions.get(at)
        return None if partition is None or partition.log is None or partition.log.closed else partition

    def _end(self, broker_id: int, at: TopicPartition) -> int:
        partition = self._partition(broker_id, at)
        return -1 if partition is None else int(partition.log.log_end_offset)

    def _mark(self, broker_id: int, at: TopicPartition) -> int:
        partition = self._partition(broker_id, at)
        return -1 if partition is None or not partition.is_leader else int(partition.log.high_watermark)

    def _follows(self, broker_id: int, at: TopicPartition) -> bool:
        partition = self._partition(broker_id, at)
        return partition is not None and not partition.is_leader


class _Held:
    """Holds the messages for which `which` is true, until they are released."""

    def __init__(self, network: SimNetwork, which: Callable[[Message], bool]) -> None:
        self.messages: list[Message] = []
        self._network = network
        self._which = which
        self._end: Callable[[], None] | None = network.hold(self._holds)

    def _holds(self, message: Message) -> bool:
        is_held = self._which(message)
        if is_held:
            self.messages.append(message)
        return is_held

    def release(self) -> None:
        """Stop holding messages, and deliver the held ones."""
        if self._end is not None:
            self._end()
            self._end = None
        for message in self.messages:
            self._network.release(message)
        self.messages.clear()


def _is_answer(message: Message, sender: int, receiver: int) -> bool:
    ends = message.sender_id, message.receiver
    return not message.is_request and message.name == "Fetch" and ends == (sender, receiver)


def _parts(message: Message, state: LeaderAndIsr) -> bool:
    """Return whether the response says that logs of the partition diverge."""
    return any(
        (topic_id, number) == (state.topic_id, state.topic_partition.partition)
        and answer.diverging_epoch.end_offset >= 0
        for topic_id, number, answer in fetch_answers(message.body)
    )
