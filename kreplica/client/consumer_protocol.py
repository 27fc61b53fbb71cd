"""The messages that consumers of a group exchange through the coordinator: subscriptions and assignments.

They are Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment in version 0, which every client
reads: an int16 version, then the message. The range assignor divides each topic's partitions in order among
the topic's readers in order; if the division leaves a remainder, the first readers get one partition more.
Stateless.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias, TypeVar

from kreplica.common.errors import InvalidRecord
from kreplica.common.types import TopicPartition
from kreplica.metadata.message import Message, Structure, layout_of
from kreplica.metadata.records import Ids, String, Strings
from kreplica.metadata.wire_types import NULLABLE_BYTES, Array, ByteReader

PROTOCOL_TYPE = "consumer"
RANGE = "range"
# These messages have no flexible version (KIP-482) at all.
NEVER = 1 << 15
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Message)
NullableBytes: TypeAlias = Annotated[bytes | None, NULLABLE_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSubscription(Message):
    """The topics that a member reads."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topics: Strings
    user_data: NullableBytes = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartitions(Message):
    """Partitions of one topic."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topic: String
    partitions: Ids


Assigned: TypeAlias = Annotated[tuple[AssignedPartitions, ...], Array(Structure(AssignedPartitions))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolAssignment(Message):
    """The partitions assigned to a member."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    assigned_partitions: Assigned
    user_data: NullableBytes = None


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member that reads these topics."""
    return _encode(ConsumerProtocolSubscription(topics=tuple(topics)))


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """Decode a subscription to its topics. Raises InvalidRecord."""
    return _decode(data, ConsumerProtocolSubscription).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of these partitions to a member."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    assigned = tuple(
        AssignedPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
    )
    return _encode(ConsumerProtocolAssignment(assigned_partitions=assigned))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment to its partitions; empty bytes mean no partitions. Raises InvalidRecord."""
    if not data:
        return []
    return [
        TopicPartition(each.topic, number)
        for each in _decode(data, ConsumerProtocolAssignment).assigned_partitions
        for number in each.partitions
    ]


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member. `subscriptions`: the topics of each member id."""
    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    for topic in sorted(partition_counts):
        readers = sorted(member_id for member_id, topics in subscriptions.items() if topic in topics)
        start = 0
        for number, member_id in enumerate(readers):
            share, more = divmod(partition_counts[topic], len(readers))
            stop = start + share + (number < more)
            assigned[member_id] += [TopicPartition(topic, each) for each in range(start, stop)]
            start = stop
    return assigned


def _encode(message: Message) -> bytes:
    out = bytearray(_VERSION.pack(0))
    layout_of(type(message), 0).write(out, message)
    return bytes(out)


def _decode(data: bytes, kind: type[M]) -> M:
    """Decode any version: later versions only append fields to those of the first."""
    reader = ByteReader(data)
    version = reader.unpack(_VERSION)[0]
    if version < 0:
        raise InvalidRecord(f"a {kind.__name__} has the invalid version {version}")
    return layout_of(kind, 0).read(reader)
