"""Observer: counts what happens in a random run, from messages and the controller's decisions.

It only observes. The counts show whether runs exercise what they are meant to. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kreplica.common.errors import OffsetOutOfRange
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.messages.controllers import AlterPartitionResponse
from kreplica.common.messages.data import FetchResponse
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.cluster import SimCluster
from kreplica.sim.network import Message

# All runs together must show each of these, or they prove nothing.
EXPECTED = (
    *("acked", "acked by a retry", "refused for too few in sync", "read", "transactions committed"),
    *("transactions aborted", "aborted records left out", "records deleted", "leader changes"),
    *("leader epochs without a change", "unclean elections", "elections of a harmed replica"),
    *("ISR shrinks", "ISR expansions", "AlterPartition rejections", "frozen high watermarks"),
    *("truncations", "divergences", "out of range resets", "stale answers", "late decisions", "kills"),
    *("power cuts", "outages of all", "torn pages", "lost pages", "pauses", "one-way cuts", "two-way cuts"),
    *("slow links", "date jumps", "slow disks", "full disks", "starts without room", "broken disks"),
    *("offline directories", "rotten bits", "rotten ranges made whole", "recoveries stopped by rot"),
    *("passing disk errors", "flushes that failed", "quick restarts", "slow answers", "elections in turns"),
    *("late words", "late divergences", "slow controllers", "handovers", "config changes"),
    *("retention rounds", "messages lost", "messages delayed", "messages duplicated", "messages cut"),
)
# Longer than a message takes without faults.
DELAYED_NS = 15_000_000


class Observer:
    """Counts in `counts`, with names from EXPECTED."""

    def __init__(self, cluster: SimCluster, counts: Counter[str]) -> None:
        self.counts = counts
        self._cluster = cluster
        # The send time of each message in flight, and for a follower's fetch the leader epochs at that time.
        self._sent_ns: dict[tuple[int, bool], int] = {}
        self._asked: dict[int, dict[TopicPartition, int]] = {}
        self._isr: dict[TopicPartition, tuple[int, ...]] = {}
        cluster.network.tap = self._see

    def isr_changed(self, state: LeaderAndIsr) -> None:
        """Count a leader's accepted proposal."""
        before = set(self._isr.get(state.topic_partition, state.replicas))
        self.counts["ISR shrinks"] += len(before - set(state.isr))
        self.counts["ISR expansions"] += len(set(state.isr) - before)
        self._isr[state.topic_partition] = state.isr

    def decided(self, state: LeaderAndIsr) -> None:
        """Take in an ISR that the controller has set itself, without a proposal."""
        self._isr[state.topic_partition] = state.isr

    def _see(self, what: str, message: Message) -> None:
        key = message.number, message.is_request
        if what == "sent":
            self._sent_ns[key] = self._cluster.time.now_ns
            if message.is_request and message.name == "Fetch":
                self._asked[message.number] = self._epochs_of(message.sender_id)
            return
        sent_ns = self._sent_ns.pop(key, None)
        if sent_ns is not None and self._cluster.time.now_ns - sent_ns > DELAYED_NS:
            self.counts["messages delayed"] += 1
        body = message.body
        if isinstance(body, AlterPartitionResponse):
            answers = [partition for topic in body.topics for partition in topic.partitions]
            self.counts["AlterPartition rejections"] += sum(bool(answer.error_code) for answer in answers)
        elif isinstance(body, FetchResponse) and message.receiver in self._cluster.brokers:
            self._see_answer(message, body)

    def _see_answer(self, message: Message, body: FetchResponse) -> None:
        asked = self._asked.pop(message.number, {})
        now = self._epochs_of(message.receiver)
        for topic in body.responses:
            assert topic.topic_id is not None
            name = self._cluster.controller.topic_name(Uuid(topic.topic_id.bytes))
            for partition in topic.partitions:
                at = TopicPartition(name or "", partition.partition_index)
                if asked.get(at) != now.get(at):
                    self.counts["stale answers"] += 1
                elif partition.diverging_epoch.end_offset >= 0:
                    self.counts["divergences"] += 1
                elif partition.error_code == OffsetOutOfRange.code:
                    self.counts["out of range resets"] += 1

    def _epochs_of(self, broker_id: int) -> dict[TopicPartition, int]:
        broker = self._cluster.brokers.get(broker_id)
        program: Any = None if broker is None else broker.program
        if program is None:
            return {}
        partitions = program.replica_manager.partitions
        return {partition.topic_partition: partition.leader_epoch for partition in partitions}
