"""Promises: the brokers' responses to clients, taken from the network when they are sent, for the invariants.

An acknowledgement of acks=all counts from the moment the broker sends it, whether it arrives or not; so does
a record sent to a consumer. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kreplica._core.records import batches
from kreplica.common.types import TopicPartition
from kreplica.common.wire import topic_id_of
from kreplica.sim import client
from kreplica.sim.invariants.cluster_view import ClusterView
from kreplica.sim.invariants.partition_view import PartitionView
from kreplica.sim.network import Message
from kreplica.sim.node import SimBroker

ACKS_ALL = -1
Records = list[tuple[int, int, bytes | None]]


class _Asked(NamedTuple):
    """A batch that a producer wants acknowledged, and the partition's leader epoch on the broker."""

    view: PartitionView
    leader_epoch: int
    values: Sequence[bytes | None]


class Promises:
    """The promises of the brokers among `machines`; `view` checks them."""

    def __init__(self, view: ClusterView, machines: Mapping[int, SimBroker]) -> None:
        self.acknowledged = 0
        self.consumed = 0
        self._view = view
        self._machines = machines
        self._asked: dict[int, _Asked] = {}
        self._acks: list[tuple[_Asked, int]] = []
        self._reads: list[tuple[PartitionView, int, Records]] = []

    def heard(self, what: str, message: Message) -> None:
        """Take note of a message; this is the network's tap."""
        if message.name == "Produce":
            if message.is_request and what == "taken":
                self._produce_asked(message)
            elif not message.is_request and what == "sent":
                self._produce_answered(message)
        elif (
            message.name == "Fetch"
            and not message.is_request
            and what == "sent"
            and message.receiver not in self._machines
        ):
            self._fetch_answered(message)

    def keep(self) -> None:
        """Pass the promises of the last event to the view. Raises InvariantViolated."""
        acks, self._acks = self._acks, []
        for asked, offset in acks:
            view = asked.view
            if self._is_there(view) and asked.leader_epoch >= view.unclean_epoch:
                self.acknowledged += len(asked.values)
                self._view.acknowledged(view.topic_partition, offset, asked.values)
        reads, self._reads = self._reads, []
        for view, epoch, records in reads:
            if self._is_there(view) and epoch >= view.unclean_epoch:
                self.consumed += len(records)
                self._view.consumed(view.topic_partition, records)

    # ---- internals ----------------------------------------------------------------------------------------

    def _is_there(self, view: PartitionView) -> bool:
        return self._view.partitions.get(view.topic_partition) is view

    def _present(self, broker_id: int, at: TopicPartition) -> tuple[PartitionView, int] | None:
        """Return the partition and its leader epoch on the broker, None if the topic is gone."""
        machine, view = self._machines.get(broker_id), self._view.partitions.get(at)
        if view is None or machine is None or machine.program is None:
            return None
        partition = machine.program.replica_manager.partitions.get(at)
        if partition is None or partition.leader_and_isr is None:
            return None
        if partition.leader_and_isr.topic_id != view.topic_id:
            return None
        return view, partition.leader_epoch

    def _produce_asked(self, message: Message) -> None:
        body = message.body
        if body.acks != ACKS_ALL:
            return
        at, values = _values_of(body)
        found = self._present(message.receiver, at)
        if found is not None and values:
            self._asked[message.number] = _Asked(*found, values)

    def _produce_answered(self, message: Message) -> None:
        asked = self._asked.pop(message.number, None)
        if asked is None or message.body is None:
            return
        base_offset = _base_offset_of(message.body)
        if base_offset >= 0:
            self._acks.append((asked, base_offset))

    def _fetch_answered(self, message: Message) -> None:
        machine = self._machines.get(message.sender_id)
        if machine is None or machine.program is None:
            return
        for topic in message.body.responses:
            name = self._view.word.topic_name(topic_id_of(topic.topic_id))
            for data in topic.partitions:
                if name is None or data.error_code or not data.records:
                    continue
                found = self._present(message.sender_id, TopicPartition(name, data.partition_index))
                if found is not None:
                    self._reads.append((*found, _records_of(data.records)))


def _values_of(request: Any) -> tuple[TopicPartition, Sequence[bytes | None]]:
    """Return the partition and the values of a produce request, a client's or a script's."""
    if isinstance(request, client.ProduceRequest):
        return request.topic_partition, request.values
    topic = request.topic_data[0]
    data = topic.partition_data[0]
    at = TopicPartition(str(topic.name), data.index)
    return at, [record.value for batch in batches(data.records or b"") for record in batch]


def _base_offset_of(answer: Any) -> int:
    """Return the offset of the first acknowledged value, -1 if the response acknowledges none."""
    if isinstance(answer, client.Produced):
        return answer.base_offset
    partition = answer.responses[0].partition_responses[0]
    return -1 if partition.error_code else int(partition.base_offset)


def _records_of(data: Any) -> Records:
    return [
        (record.offset, batch.leader_epoch, record.value)
        for batch in batches(data)
        if not batch.is_control
        for record in batch
        if record.offset is not None
    ]
