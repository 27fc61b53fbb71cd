"""The records of __consumer_offsets, in Kafka 4.3's published schemas.

A key is an int16 type and a message. A value is an int16 schema version and a message. A record without a
value deletes what its key names. RECORD_KINDS lists the types; their names and fields are Kafka's. The bytes
come from disk: malformed ones raise InvalidRecord, unknown versions UnsupportedVersion. Records are
immutable; threads may share them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

from kreplica.common.errors import UnsupportedVersion
from kreplica.common.message import NEVER, Int8, Int16, Int32, Int64, Record, Since, Tag, Uint16, Uuid
from kreplica.common.types import Uuid as KafkaUuid
from kreplica.coordinator.record_serde import PREFIX_SIZE, decoder, encode, prefix_of, shown

# Of the values with several versions: all Kafka versions read this one; version 4, which 4.3 writes, adds the
# topic id.
WRITTEN_VERSION = 3


# ---- offsets and classic groups ----------------------------------------------------------------------------


class OffsetCommitKey(Record):
    """The key of the offset that a group has committed for a partition."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: str
    topic: str
    partition: Int32


class OffsetCommitValue(Record):
    """A committed offset; times in ms since 1970. `expire_timestamp` is only set by clients before 0.9."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1, last=1)] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0)] = KafkaUuid.ZERO


class GroupMetadataKey(Record):
    """The key of a group."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group: str


class MemberMetadata(Record):
    """A member of a group in one generation; timeouts in ms."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    member_id: str
    group_instance_id: Annotated[str | None, Since(3)] = None
    client_id: str
    client_host: str
    rebalance_timeout: Annotated[Int32, Since(1)] = -1
    session_timeout: Int32
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(Record):
    """A group in one generation, with its members' assignments."""

    FLEXIBLE_SINCE: ClassVar[int] = 4

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: tuple[MemberMetadata, ...]


# ---- keys of modern groups ---------------------------------------------------------------------------------


class _GroupKey(Record):
    """A key that has the group's id alone."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group_id: str


class _MemberKey(Record):
    """A key of a member."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group_id: str
    member_id: str


# ---- consumer groups (KIP-848) -----------------------------------------------------------------------------


class ConsumerGroupMetadataKey(_GroupKey):
    """The key of a consumer group's epoch."""


class ConsumerGroupMetadataValue(Record):
    """The epoch of a group, and the hash of the topics that it was computed from."""

    epoch: Int32
    metadata_hash: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupPartitionMetadataKey(_GroupKey):
    """The key of the topics of a group, which Kafka wrote before 4.1."""


class PartitionMetadata(Record):
    """The racks of a partition's replicas."""

    partition: Int32
    racks: tuple[str, ...]


class TopicMetadata(Record):
    """A topic that a group subscribed to."""

    topic_id: Uuid
    topic_name: str
    num_partitions: Int32
    partition_metadata: tuple[PartitionMetadata, ...]


class ConsumerGroupPartitionMetadataValue(Record):
    """The topics of a group, which Kafka wrote before 4.1."""

    topics: tuple[TopicMetadata, ...]


class ConsumerGroupMemberMetadataKey(_MemberKey):
    """The key of what a member has declared."""


class ClassicProtocol(Record):
    """A protocol of a member of the classic protocol, with its subscription."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(Record):
    """What a member of the classic protocol has in addition."""

    session_timeout_ms: Int32
    supported_protocols: tuple[ClassicProtocol, ...]


# Kafka's schema has this default instead of null, so null is written.
_NO_CLASSIC_MEMBER = ClassicMemberMetadata(session_timeout_ms=0, supported_protocols=())


class ConsumerGroupMemberMetadataValue(Record):
    """What a member has declared. `classic_member_metadata`: None if it uses the consumer protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tag(0, absent=_NO_CLASSIC_MEMBER)] = None


class ConsumerGroupTargetAssignmentMetadataKey(_GroupKey):
    """The key of the epoch of a group's target assignment."""


class TargetAssignmentMetadataValue(Record):
    """The epoch of a target assignment, and when it was computed in ms since 1970; of any kind of group."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupTargetAssignmentMemberKey(_MemberKey):
    """The key of a member's target assignment."""


class TopicPartitions(Record):
    """Partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


class TargetAssignmentMemberValue(Record):
    """The target assignment of a member of a consumer group or share group."""

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(_MemberKey):
    """The key of what a member owns."""


class AssignedTopicPartitions(Record):
    """Partitions of a topic that a member owns. `assignment_epochs`: for each, since when (KIP-1251)."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]
    assignment_epochs: Annotated[tuple[Int32, ...] | None, Tag(0)] = ()


class ConsumerGroupCurrentMemberAssignmentValue(Record):
    """What a member owns. `state`: 0 stable, 1 unrevoked partitions, 2 unreleased partitions."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: tuple[AssignedTopicPartitions, ...]
    partitions_pending_revocation: tuple[AssignedTopicPartitions, ...]


class ConsumerGroupRegularExpressionKey(Record):
    """The key of a regular expression that members subscribe with."""

    FLEXIBLE_SINCE: ClassVar[int] = NEVER

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(Record):
    """The topics that match. `version`: the offset of the metadata; `timestamp` in ms since 1970."""

    topics: tuple[str, ...]
    version: Int64
    timestamp: Int64


# ---- share groups (KIP-932) --------------------------------------------------------------------------------


class ShareGroupMemberMetadataKey(_MemberKey):
    """The key of what a member of a share group has declared."""


class ShareGroupMemberMetadataValue(Record):
    """What a member of a share group has declared."""

    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


class ShareGroupMetadataKey(_GroupKey):
    """The key of a share group's epoch."""


class ShareGroupMetadataValue(Record):
    """The epoch of a share group, and the hash of the topics that it was computed from."""

    epoch: Int32
    metadata_hash: Int64


class ShareGroupTargetAssignmentMetadataKey(_GroupKey):
    """The key of the epoch of a share group's target assignment."""


class ShareGroupTargetAssignmentMemberKey(_MemberKey):
    """The key of the target assignment of a share group's member."""


class ShareGroupCurrentMemberAssignmentKey(_MemberKey):
    """The key of what a member of a share group fetches from."""


class ShareGroupCurrentMemberAssignmentValue(Record):
    """What a member of a share group fetches from."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: tuple[TopicPartitions, ...]


class ShareGroupStatePartitionMetadataKey(_GroupKey):
    """The key of the partitions whose share state is kept for a group."""


class NamedTopic(Record):
    """A topic by id and name."""

    topic_id: Uuid
    topic_name: str


class NamedTopicPartitions(Record):
    """Partitions of a topic by id and name."""

    topic_id: Uuid
    topic_name: str
    partitions: tuple[Int32, ...]


class ShareGroupStatePartitionMetadataValue(Record):
    """The partitions whose share state the share coordinator gets, keeps, and is to delete for a group."""

    initializing_topics: tuple[NamedTopicPartitions, ...]
    initialized_topics: tuple[NamedTopicPartitions, ...]
    deleting_topics: tuple[NamedTopic, ...]


# ---- streams groups (KIP-1071) -----------------------------------------------------------------------------


class KeyValue(Record):
    """A setting, or a tag of a client."""

    key: str
    value: str


class StreamsGroupMetadataKey(_GroupKey):
    """The key of a streams group's epoch."""


class StreamsGroupMetadataValue(Record):
    """The epoch of a streams group, and what it was computed from."""

    epoch: Int32
    metadata_hash: Int64
    validated_topology_epoch: Annotated[Int32, Tag(0)] = -1
    last_assignment_configs: Annotated[tuple[KeyValue, ...] | None, Tag(1)] = ()


class StreamsGroupMemberMetadataKey(_MemberKey):
    """The key of what a member of a streams group has declared."""


class Endpoint(Record):
    """Where a process answers interactive queries."""

    host: str
    port: Uint16


class StreamsGroupMemberMetadataValue(Record):
    """What a member of a streams group has declared."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...]


class StreamsGroupTargetAssignmentMetadataKey(_GroupKey):
    """The key of the epoch of a streams group's target assignment."""


class StreamsGroupTargetAssignmentMemberKey(_MemberKey):
    """The key of the target assignment of a streams group's member."""


class TaskIds(Record):
    """Tasks of a subtopology."""

    subtopology_id: str
    partitions: tuple[Int32, ...]


class StreamsGroupTargetAssignmentMemberValue(Record):
    """The target assignment of a streams group's member."""

    active_tasks: tuple[TaskIds, ...]
    standby_tasks: tuple[TaskIds, ...]
    warmup_tasks: tuple[TaskIds, ...]


class StreamsGroupCurrentMemberAssignmentKey(_MemberKey):
    """The key of the tasks of a streams group's member."""


class AssignedTaskIds(Record):
    """Tasks of a subtopology that a member has. `assignment_epochs`: for each, since when."""

    subtopology_id: str
    partitions: tuple[Int32, ...]
    assignment_epochs: Annotated[tuple[Int32, ...] | None, Tag(0)] = ()


class StreamsGroupCurrentMemberAssignmentValue(Record):
    """The tasks of a streams group's member. `state`: 1 stable, 2 unrevoked tasks, 3 unreleased tasks."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    active_tasks: tuple[AssignedTaskIds, ...]
    standby_tasks: tuple[AssignedTaskIds, ...]
    warmup_tasks: tuple[AssignedTaskIds, ...]
    active_tasks_pending_revocation: tuple[AssignedTaskIds, ...]
    standby_tasks_pending_revocation: tuple[AssignedTaskIds, ...]
    warmup_tasks_pending_revocation: tuple[AssignedTaskIds, ...]


class StreamsGroupTopologyKey(_GroupKey):
    """The key of a streams group's topology."""


class TopicInfo(Record):
    """An internal topic of a topology. Its counts are 0 where the broker decides them."""

    name: str
    partitions: Int32
    replication_factor: Int16
    topic_configs: tuple[KeyValue, ...]


class CopartitionGroup(Record):
    """Source topics with the same number of partitions, by their indexes in the subtopology's lists."""

    source_topics: tuple[Int16, ...]
    source_topic_regex: tuple[Int16, ...]
    repartition_source_topics: tuple[Int16, ...]


class Subtopology(Record):
    """A part of a topology whose tasks run together."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    state_changelog_topics: tuple[TopicInfo, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[TopicInfo, ...]
    copartition_groups: tuple[CopartitionGroup, ...]


class StreamsGroupTopologyValue(Record):
    """A streams group's topology."""

    epoch: Int32
    subtopologies: tuple[Subtopology, ...]


# ---- all types ---------------------------------------------------------------------------------------------


class RecordKind(NamedTuple):
    """A type of records: its name, the classes of key and value, and the value's highest version."""

    name: str
    key: type[Record]
    value: type[Record]
    highest_version: int = 0


RECORD_KINDS: Mapping[int, RecordKind] = {
    0: RecordKind("LegacyOffsetCommit", OffsetCommitKey, OffsetCommitValue, 4),
    1: RecordKind("OffsetCommit", OffsetCommitKey, OffsetCommitValue, 4),
    2: RecordKind("GroupMetadata", GroupMetadataKey, GroupMetadataValue, 4),
    3: RecordKind("ConsumerGroupMetadata", ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: RecordKind(
        "ConsumerGroupPartitionMetadata",
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupPartitionMetadataValue,
    ),
    5: RecordKind(
        "ConsumerGroupMemberMetadata", ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue
    ),
    6: RecordKind(
        "ConsumerGroupTargetAssignmentMetadata",
        ConsumerGroupTargetAssignmentMetadataKey,
        TargetAssignmentMetadataValue,
    ),
    7: RecordKind(
        "ConsumerGroupTargetAssignmentMember",
        ConsumerGroupTargetAssignmentMemberKey,
        TargetAssignmentMemberValue,
    ),
    8: RecordKind(
        "ConsumerGroupCurrentMemberAssignment",
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
    ),
    10: RecordKind("ShareGroupMemberMetadata", ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    11: RecordKind("ShareGroupMetadata", ShareGroupMetadataKey, ShareGroupMetadataValue),
    12: RecordKind(
        "ShareGroupTargetAssignmentMetadata",
        ShareGroupTargetAssignmentMetadataKey,
        TargetAssignmentMetadataValue,
    ),
    13: RecordKind(
        "ShareGroupTargetAssignmentMember", ShareGroupTargetAssignmentMemberKey, TargetAssignmentMemberValue
    ),
    14: RecordKind(
        "ShareGroupCurrentMemberAssignment",
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupCurrentMemberAssignmentValue,
    ),
    15: RecordKind(
        "ShareGroupStatePartitionMetadata",
        ShareGroupStatePartitionMetadataKey,
        ShareGroupStatePartitionMetadataValue,
    ),
    16: RecordKind(
        "ConsumerGroupRegularExpression",
        ConsumerGroupRegularExpressionKey,
        ConsumerGroupRegularExpressionValue,
    ),
    17: RecordKind("StreamsGroupMetadata", StreamsGroupMetadataKey, StreamsGroupMetadataValue),
    19: RecordKind(
        "StreamsGroupMemberMetadata", StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue
    ),
    20: RecordKind(
        "StreamsGroupTargetAssignmentMetadata",
        StreamsGroupTargetAssignmentMetadataKey,
        TargetAssignmentMetadataValue,
    ),
    21: RecordKind(
        "StreamsGroupTargetAssignmentMember",
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMemberValue,
    ),
    22: RecordKind(
        "StreamsGroupCurrentMemberAssignment",
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupCurrentMemberAssignmentValue,
    ),
    23: RecordKind("StreamsGroupTopology", StreamsGroupTopologyKey, StreamsGroupTopologyValue),
}
# The type with which a key is written, and its kind.
_TYPES: Mapping[type[Record], int] = {kind.key: number for number, kind in RECORD_KINDS.items()}
# The decoders of keys by their first bytes, and of values by the key's class and their first bytes. A loading
# coordinator decodes many records of one type. Each is made when it is first needed.
_KEY_DECODERS: dict[bytes, Callable[[bytes], Record]] = {}
_VALUE_DECODERS: dict[tuple[type[Record], bytes], Callable[[bytes], Record]] = {}
_OFFSET_COMMIT = frozenset(number.to_bytes(PREFIX_SIZE, "big") for number in (0, 1))
# With which the key of a committed offset ends.
_PARTITION = struct.Struct(">i")


def encode_key(key: Record) -> bytes:
    """Encode a key. Raises InvalidRecord for a name that is too long."""
    return encode(_TYPES[type(key)], 0, key)


def encode_value(value: Record, version: int | None = None) -> bytes:
    """Encode a value: in WRITTEN_VERSION or, if there is only one version, in that.

    Raises InvalidRecord, and UnsupportedVersion for a field that the version lacks.
    """
    if version is None:
        version = WRITTEN_VERSION if isinstance(value, (OffsetCommitValue, GroupMetadataValue)) else 0
    return encode(version, version, value)


def decode_key(data: bytes) -> Record | None:
    """Decode a key; None for an unknown type of record."""
    prefix = data[:PREFIX_SIZE]
    decode = _KEY_DECODERS.get(prefix)
    if decode is None:
        kind = RECORD_KINDS.get(prefix_of(data))
        if kind is None:
            return None
        decode = _KEY_DECODERS[prefix] = decoder(kind.key, 0)
    return decode(data)


def committed_partition(key_data: bytes) -> tuple[str, str, int] | None:
    """Return the group, topic and partition of a committed offset's key; None for the key of another record.

    Consecutive records are mostly of one group and topic, so their names are decoded once.
    """
    if key_data[:PREFIX_SIZE] not in _OFFSET_COMMIT:
        return None
    group, topic = _group_and_topic(key_data[: -_PARTITION.size])
    return group, topic, _PARTITION.unpack(key_data[-_PARTITION.size :])[0]


@lru_cache(maxsize=64)
def _group_and_topic(data: bytes) -> tuple[str, str]:
    key = decode_key(data + bytes(_PARTITION.size))
    assert isinstance(key, OffsetCommitKey)
    return key.group, key.topic


def decode_value(key: Record, data: bytes) -> Record:
    """Decode the value of a record with that key."""
    return _decode_value(type(key), data)


def decode_offset(data: bytes) -> OffsetCommitValue:
    """Decode the value of a committed offset."""
    value = _decode_value(OffsetCommitKey, data)
    assert isinstance(value, OffsetCommitValue)
    return value


def _decode_value(key: type[Record], data: bytes) -> Record:
    prefix = data[:PREFIX_SIZE]
    decode = _VALUE_DECODERS.get((key, prefix))
    if decode is None:
        decode = _VALUE_DECODERS[key, prefix] = _value_decoder(key, prefix_of(data))
    return decode(data)


def _value_decoder(key: type[Record], version: int) -> Callable[[bytes], Record]:
    kind = RECORD_KINDS[_TYPES[key]]
    if not 0 <= version <= kind.highest_version:
        raise UnsupportedVersion(f"version {version} of the value of {key.__name__} is unknown")
    return decoder(kind.value, version)


def to_json(key_data: bytes, data: bytes | None) -> dict[str, object] | None:
    """Return a record's type, value version, key and value, in the form of Kafka's tools.

    Version and value are None for a tombstone. Returns None for an unknown type. Raises what `decode_key` and
    `decode_value` raise.
    """
    key = decode_key(key_data)
    if key is None:
        return None
    name = RECORD_KINDS[_TYPES[type(key)]].name
    if data is None:
        return shown(name, key, None, None)
    return shown(name, key, decode_value(key, data), prefix_of(data))
