"""The messages of consumers to each other through a classic group: Kafka's ConsumerProtocol.

A subscription is the metadata of a member, an assignment is what the leader assigns to it. Each is an int16
version and a message; later versions only append fields to those of earlier ones. Stateless; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, ClassVar, TypeVar

from kreplica.common.errors import InvalidRecord
from kreplica.common.message import NEVER, Int32, Record, Since, decode, encode
from kreplica.common.types import TopicPartition

PROTOCOL_TYPE = "consumer"
LATEST_VERSION = 3
_VERSION = struct.Struct(">h")

M = TypeVar("M", bound=Record)


class AssignedPartitions(Record):
    """Partitions of one topic."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topic: str
    partitions: tuple[Int32, ...]


class ConsumerProtocolSubscription(Record):
    """The topics that a member reads.

    `owned_partitions`: those that it keeps while it joins again, none for one that gives all up before.
    """

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: Annotated[tuple[AssignedPartitions, ...], Since(1)] = ()
    generation_id: Annotated[Int32, Since(2)] = -1
    rack_id: Annotated[str | None, Since(3)] = None


class _Topics(Record):
    """The start of a subscription."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    topics: tuple[str, ...]


class ConsumerProtocolAssignment(Record):
    """The partitions assigned to a member."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    assigned_partitions: tuple[AssignedPartitions, ...]
    user_data: bytes | None = None


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member that reads these topics."""
    return _encode(ConsumerProtocolSubscription(topics=tuple(topics)))


def encode_cooperative_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition], generation_id: int
) -> bytes:
    """Encode the subscription of a member that keeps what it had in the generation (KIP-429, KIP-792)."""
    subscription = ConsumerProtocolSubscription(
        topics=tuple(topics), owned_partitions=_by_topic(owned), generation_id=generation_id
    )
    return _encode(subscription, 2)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription of any version. Raises InvalidRecord."""
    return _decode(data, ConsumerProtocolSubscription)


def subscribed_topics(data: bytes) -> tuple[str, ...]:
    """Return the topics of a subscription, whatever follows them. Raises InvalidRecord."""
    _version_of(data, ConsumerProtocolSubscription)
    return decode(_Topics, 0, data, _VERSION.size, may_have_more=True).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of these partitions to a member."""
    return _encode(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)))


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Decode an assignment; empty bytes mean no partitions. Raises InvalidRecord."""
    if not data:
        return ConsumerProtocolAssignment(assigned_partitions=())
    return _decode(data, ConsumerProtocolAssignment)


def partitions_in(topics: Iterable[AssignedPartitions]) -> list[TopicPartition]:
    """Return the partitions one by one."""
    return [TopicPartition(each.topic, number) for each in topics for number in each.partitions]


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[AssignedPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return tuple(
        AssignedPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
    )


def _encode(message: Record, version: int = 0) -> bytes:
    # Every client reads version 0.
    return encode(message, version, _VERSION.pack(version))


def _decode(data: bytes, kind: type[M]) -> M:
    version = min(_version_of(data, kind), LATEST_VERSION)
    return decode(kind, version, data, _VERSION.size, may_have_more=True)


def _version_of(data: bytes, kind: type[Record]) -> int:
    version: int = _VERSION.unpack_from(data)[0] if len(data) >= _VERSION.size else -1
    if version < 0:
        raise InvalidRecord(f"a {kind.__name__} has the invalid version {version}")
    return version
