"""What consumers of a group tell each other through the coordinator: subscriptions and assignments.

Kafka's messages ConsumerProtocolSubscription and ConsumerProtocolAssignment, version 0, which every client
reads: an int16 for the version, and the message. The range assignor divides each topic's partitions, in their
order, among the members that read it, in theirs: the first ones get one more where it does not come out even.
No state.
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
# No version of these messages has KIP-482's encoding.
NEVER = 1 << 15
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Message)
NullableBytes: TypeAlias = Annotated[bytes | None, NULLABLE_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSubscription(Message):
    """What a member reads."""

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
    """What a member is to read."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    assigned_partitions: Assigned
    user_data: NullableBytes = None


def encode_subscription(topics: Iterable[str]) -> bytes:
    """What a member tells that reads these topics."""
    return _encode(ConsumerProtocolSubscription(topics=tuple(topics)))


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """The topics that a member reads. Raises InvalidRecord."""
    return _decode(data, ConsumerProtocolSubscription).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What a member is told that is to read these partitions."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    assigned = tuple(
        AssignedPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
    )
    return _encode(ConsumerProtocolAssignment(assigned_partitions=assigned))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions that a member is to read, none for no bytes at all. Raises InvalidRecord."""
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
    """By member id what each is to read. `subscriptions`: by member id the topics it reads."""
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
    """Of any version: what later ones have stands behind what the first one has."""
    reader = ByteReader(data)
    version = reader.unpack(_VERSION)[0]
    if version < 0:
        raise InvalidRecord(f"a {kind.__name__} of version {version}")
    return layout_of(kind, 0).read(reader)
