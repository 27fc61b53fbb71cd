"""The tree of paths: maps the state in ClusterMetadata to paths, to bytes of the image, and to plain values.

    /brokers/ids/<id>                           RegisterBrokerRecord
    /brokers/topics/<name>                      topic id; the TopicRecord, if it has fields of later versions
    /brokers/topics/<name>/partitions/<number>  see encode_partition
    /config/<type>/<name>                       JSON: resource type and name, settings
    /features/<name>                            level (2), name
    /quotas/<entity>                            JSON: entity, quotas
    /controllers/<id>   /acls/<id>              the record that defines it
    /scram/<mechanism>/<user>   /tokens/<id>    the record that defines it
    /producer_ids   /zk_migration_state         the record that defines it
    /controller                                 leader (4) and epoch (4) of the quorum

A node's version is the offset of the last record of the log that changed it, so it is the same on every node
of the cluster. Only /controller comes from the quorum's elections; its version is the epoch.

A record is stored as in the log (`serde`). Names with arbitrary characters are escaped. A name too long for a
key is replaced by its SHA-256; the node contains the full name. A PartitionDecoder belongs to one thread;
functions are pure.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kreplica.common.errors import CorruptImage, KreplicaError
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.message import TaggedField, fields_of
from kreplica.common.rare_collections import rare_collections
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import Change, ClusterMetadata, MetadataDelta, Step
from kreplica.metadata.image_format import Node
from kreplica.metadata.records import Endpoint, MetadataRecord
from kreplica.metadata.registrations import (
    RECOVERY_STATES,
    BrokerRegistration,
    PartitionRegistration,
    TopicRegistration,
)
from kreplica.metadata.serde import decode, encode, in_lowest_version

BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"

# The names in a partition's path, with the empty one before its first slash.
_PARTITION_DEPTH = 6
# Longer names, escaped, would not fit into a key with the rest of the path.
_LONGEST_NAME = 255
_UNSAFE = re.compile(rb"[^A-Za-z0-9._~-]")
_LEVEL = struct.Struct(">h")
_LEADER = struct.Struct(">ii")
_NUMBERS = struct.Struct(">iiib")
_COUNTS = struct.Struct(">7I")
_TAG = struct.Struct(">II")


def topic_path(name: str) -> str:
    """Return the path of a topic."""
    return f"{TOPICS}/{name}"


def partition_path(name: str, number: int) -> str:
    """Return the path of a partition."""
    return f"{TOPICS}/{name}/partitions/{number}"


def partition_at(path: str) -> TopicPartition | None:
    """Return the partition at a path; None if it is the path of something else."""
    names = path.split("/")
    if len(names) != _PARTITION_DEPTH or names[1:3] != ["brokers", "topics"]:
        return None
    return TopicPartition(names[3], int(names[5]))


def broker_path(broker_id: int) -> str:
    """Return the path of a broker."""
    return f"{BROKERS}/{broker_id}"


def config_path(resource_type: int, name: str) -> str:
    """Return the path of a resource's settings."""
    return f"/config/{resource_type}/{escaped(name)}"


def escaped(name: str) -> str:
    """Encode any text as one name of a path, uniquely."""
    if not name:
        return "%"
    data = name.encode()
    safe = _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], data).decode()
    if len(safe) <= _LONGEST_NAME:
        return safe
    import hashlib  # loads OpenSSL

    return f"%{hashlib.sha256(data).hexdigest()}%"


def controller_node(leader_id: int, epoch: int) -> Node:
    """Return the node at CONTROLLER."""
    return Node(_LEADER.pack(leader_id, epoch), epoch)


def changed_nodes(delta: MetadataDelta, metadata: ClusterMetadata) -> dict[str, Node | None]:
    """Return the nodes that the delta changes, by path; None for deleted nodes. `metadata`: the state after
    it.
    """
    nodes: dict[str, Node | None] = {}
    for topic in delta.topics_deleted:
        nodes[topic_path(topic.name)] = None
        nodes.update((partition_path(topic.name, number), None) for number in topic.partitions)
    for topic in delta.topics_created:
        nodes[topic_path(topic.name)] = Node(_topic_data(topic), topic.version)
    for (name, number), _, _, partition in delta.partitions:
        if partition is not None:
            nodes[partition_path(name, number)] = Node(encode_partition(partition), partition.version)
        else:
            # If a topic of this name was deleted and created again, the new one counts.
            nodes.setdefault(partition_path(name, number), None)
    for table, changes in _tables(delta).items():
        for key, change in changes.items():
            nodes[_PLACES[table].path(key)] = _table_node(metadata, table, key, change.new)
    for (table, key), value in delta.reverted.items():
        nodes[_PLACES[table].path(key)] = _table_node(metadata, table, key, value)
    return nodes


def _tables(delta: MetadataDelta) -> dict[str, Mapping[Any, Change[Any]]]:
    return {
        "brokers": delta.brokers,
        "configs": delta.configs,
        "features": delta.features,
        **delta.others,
    }


def _table_node(metadata: ClusterMetadata, table: str, key: Any, value: Any) -> Node | None:
    return None if value is None else Node(_PLACES[table].encode(key, value), metadata.version(table, key))


# ---- changes as plain values ------------------------------------------------------------------------------


class TreeChange(NamedTuple):
    """One change of a node of the tree.

    `version`: the offset in the metadata log of the record that made the change; for /controller the epoch of
    the quorum. Both are the same on every node of the cluster. `old`, `new`: the node's value as plain data
    (dictionaries, lists, text, numbers), None if it does not exist. A partition's value contains its
    partition epoch. `timestamp_ms`: when the record was appended, in ms since 1970; -1 if unknown.
    """

    path: str
    version: int
    old: Any
    new: Any
    timestamp_ms: int = -1


def path_of_step(step: Step) -> str:
    """Return the path of the node that the step changes."""
    if step.table == "partitions":
        return partition_path(*step.key)
    return topic_path(step.key) if step.table == "topics" else _PLACES[step.table].path(step.key)


def shown(step: Step, path: str, timestamp_ms: int) -> TreeChange:
    """Return the step as a change with plain values."""
    show = _PLACES[step.table].show if step.table in _PLACES else _SHOWN[step.table]
    old, new = (None if value is None else show(value) for value in (step.old, step.new))
    return TreeChange(path, step.version, old, new, timestamp_ms)


def steps_of(delta: MetadataDelta, metadata: ClusterMetadata, end_offset: int) -> list[Step]:
    """Return the differences between two states as steps, by version.

    `metadata`: the state after them, at `end_offset`. It is unknown which record below that deleted an
    object, so deletions have the highest version possible.
    """
    gone = end_offset - 1
    steps = [Step("partitions", at, gone, old, None) for at, _, old, new in delta.partitions if new is None]
    steps += [Step("topics", topic.name, gone, topic, None) for topic in delta.topics_deleted]
    steps += [Step("topics", topic.name, topic.version, None, topic) for topic in delta.topics_created]
    for at, _, old, new in delta.partitions:
        if new is not None:
            steps.append(Step("partitions", at, new.version, old, new))
    for table, changes in _tables(delta).items():
        for key, (old, new) in changes.items():
            steps.append(Step(table, key, gone if new is None else metadata.version(table, key), old, new))
    return sorted(steps, key=lambda step: step.version)


def shown_partition(partition: PartitionRegistration) -> dict[str, Any]:
    """Return the partition as plain values."""
    return {
        "leader": None if partition.leader == NO_LEADER else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "elr": list(partition.elr),
        "adding_replicas": list(partition.adding_replicas),
        "removing_replicas": list(partition.removing_replicas),
    }


def _shown_topic(topic: TopicRegistration) -> dict[str, Any]:
    return {"topic_id": str(topic.topic_id)}


def _shown_broker(broker: BrokerRegistration) -> dict[str, Any]:
    return {
        "epoch": broker.epoch,
        "fenced": broker.fenced,
        "in_controlled_shutdown": broker.in_controlled_shutdown,
        "rack": broker.rack,
        "endpoints": [_plain(endpoint) for endpoint in broker.endpoints],
    }


def _plain(value: Any) -> Any:
    """Return a field of a record, or a record, as plain values. Bytes, which hold secrets, are left out."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, (MetadataRecord, Endpoint, kinds.SupportedFeature)):
        fields = {field.name: getattr(value, field.name) for field in fields_of(type(value))}
        return {name: _plain(each) for name, each in fields.items() if not isinstance(each, bytes)}
    return str(value) if isinstance(value, Uuid) else value


_SHOWN: dict[str, Callable[[Any], Any]] = {"partitions": shown_partition, "topics": _shown_topic}


# ---- loading ----------------------------------------------------------------------------------------------


@rare_collections()
def load(contents: Iterable[tuple[list[str], tuple[bytes, int]]]) -> ClusterMetadata:
    """Load the cluster's state from the nodes of an image, as ImageStore.contents yields them.

    Raises CorruptImage if the image is damaged or has invalid contents.
    """
    metadata, decode_partition = ClusterMetadata(), PartitionDecoder().decode
    topics, topic_names = metadata.topics, metadata.topic_names
    partitions: dict[str, dict[int, PartitionRegistration]] = {}
    for names, (data, version) in contents:
        try:
            if names[1] != "brokers":
                _load_other(metadata, names, data, version)
            elif len(names) == _PARTITION_DEPTH:
                partitions[names[3]][int(names[5])] = decode_partition(data, version)
            elif len(names) == 4 and names[2] == "topics":
                name = names[3]
                own = partitions[name] = {}
                topics[name] = topic = _topic(name, data, own, version)
                topic_names[topic.topic_id] = name
            elif len(names) == 4:
                _load_table(metadata, "brokers", data, version)
        except CorruptImage:
            raise
        except (KreplicaError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
            raise CorruptImage(f"{'/'.join(names)} has invalid contents: {error}") from error
    if len(topic_names) != len(topics):
        raise CorruptImage("two topics have the same id")
    metadata.forget_changes()
    return metadata


def _topic_data(topic: TopicRegistration) -> bytes:
    return topic.topic_id.raw + (encode(*topic.to_record()) if topic.unknown_tagged_fields else b"")


def _topic(
    name: str, data: bytes, partitions: Mapping[int, PartitionRegistration], version: int
) -> TopicRegistration:
    topic_id, tail = Uuid(data[: Uuid.SIZE]), data[Uuid.SIZE :]
    unknown = decode(tail).message.unknown_tagged_fields if tail else ()
    return TopicRegistration(name, topic_id, partitions, unknown, version)


def _load_other(metadata: ClusterMetadata, names: list[str], data: bytes, version: int) -> None:
    table, depth = _TABLES.get(names[1], ("", 0))
    if table and len(names) == depth:
        _load_table(metadata, table, data, version)


def _load_table(metadata: ClusterMetadata, table: str, data: bytes, version: int) -> None:
    key, value = _PLACES[table].decode(data)
    metadata.put(table, key, value, version)


class _Place(NamedTuple):
    """The path of a table's entries, the codec of their bytes, which contain key and value, and a function
    that makes a plain value of an entry.
    """

    path: Callable[[Any], str]
    encode: Callable[[Any, Any], bytes]
    decode: Callable[[bytes], tuple[Any, Any]]
    show: Callable[[Any], Any] = _plain


def _encode_record(key: object, record: MetadataRecord) -> bytes:
    del key
    return encode(*in_lowest_version(record))


def _decoder(key_of: Callable[[Any], Any]) -> Callable[[bytes], tuple[Any, Any]]:
    def decode_record(data: bytes) -> tuple[Any, Any]:
        record = decode(data).message
        return key_of(record), record

    return decode_record


def _record_place(path: Callable[[Any], str], key_of: Callable[[Any], Any]) -> _Place:
    return _Place(path, _encode_record, _decoder(key_of))


def _encode_broker(key: int, broker: BrokerRegistration) -> bytes:
    del key
    return encode(*broker.to_record())


def _decode_broker(data: bytes) -> tuple[int, BrokerRegistration]:
    record = decode(data).message
    if not isinstance(record, kinds.RegisterBrokerRecord):
        raise CorruptImage(f"{type(record).__name__} is not a broker registration")
    return record.broker_id, BrokerRegistration.of(record)


def _encode_config(key: tuple[int, str], settings: dict[str, str]) -> bytes:
    return json.dumps([*key, settings]).encode()


def _decode_config(data: bytes) -> tuple[tuple[int, str], dict[str, str]]:
    resource_type, name, settings = json.loads(data)
    return (resource_type, name), settings


def _encode_feature(name: str, level: int) -> bytes:
    return _LEVEL.pack(level) + name.encode()


def _decode_feature(data: bytes) -> tuple[str, int]:
    return data[_LEVEL.size :].decode(), _LEVEL.unpack_from(data)[0]


def _quota_path(key: tuple[tuple[str, str | None], ...]) -> str:
    return f"/quotas/{escaped(json.dumps(key))}"


def _encode_quota(key: object, quotas: dict[str, float]) -> bytes:
    return json.dumps([key, quotas]).encode()


def _decode_quota(data: bytes) -> tuple[tuple[tuple[str, str | None], ...], dict[str, float]]:
    key, quotas = json.loads(data)
    return tuple((kind, name) for kind, name in key), quotas


def _single_name(record: MetadataRecord) -> str:
    return {kinds.ProducerIdsRecord: "producer_ids", kinds.ZkMigrationStateRecord: "zk_migration_state"}[
        type(record)
    ]


_PLACES: dict[str, _Place] = {
    "brokers": _Place(broker_path, _encode_broker, _decode_broker, _shown_broker),
    "configs": _Place(lambda key: config_path(*key), _encode_config, _decode_config, dict),
    "features": _Place(lambda name: f"/features/{escaped(name)}", _encode_feature, _decode_feature),
    "quotas": _Place(_quota_path, _encode_quota, _decode_quota, dict),
    "controllers": _record_place(lambda node_id: f"/controllers/{node_id}", lambda r: r.controller_id),
    "acls": _record_place(lambda acl_id: f"/acls/{acl_id}", lambda record: record.id),
    "scram_credentials": _record_place(
        lambda key: f"/scram/{key[1]}/{escaped(key[0])}", lambda record: (record.name, record.mechanism)
    ),
    "delegation_tokens": _record_place(
        lambda token_id: f"/tokens/{escaped(token_id)}", lambda record: record.token_id
    ),
    "singles": _record_place(lambda name: f"/{name}", _single_name),
}

# First name of a path -> (table, number of parts in the path of an entry).
_TABLES = {
    "config": ("configs", 4),
    "features": ("features", 3),
    "quotas": ("quotas", 3),
    "controllers": ("controllers", 3),
    "acls": ("acls", 3),
    "scram": ("scram_credentials", 4),
    "tokens": ("delegation_tokens", 3),
    **dict.fromkeys(ClusterMetadata.SINGLES, ("singles", 2)),
}


# ---- partitions -------------------------------------------------------------------------------------------

# The shareable part: the first six lists of a registration, and its unknown tagged fields.
_Shared = tuple[tuple[tuple[int, ...] | tuple[Uuid, ...], ...], tuple[TaggedField, ...]]


def encode_partition(partition: PartitionRegistration) -> bytes:
    """Encode a partition, without its version: fixed numbers first, then what many partitions have in common.

        leader (4), leader epoch (4), partition epoch (4), leader recovery state (1)
        counts: replicas, isr, removing, adding, elr, last known elr (4 each), unknown tagged fields (4)
        the ids of each of the six lists (4 each), the directory of each replica (16 each)
        each unknown tagged field: its tag (4), its size (4), its bytes

    Numbers are big-endian.
    """
    (replicas, directories, isr, removing, adding, elr, last_known_elr, *numbers, unknown, _) = partition
    leader, state, leader_epoch, partition_epoch = numbers
    ids = (*replicas, *isr, *removing, *adding, *elr, *last_known_elr)
    data = b"".join(
        (
            _NUMBERS.pack(leader, leader_epoch, partition_epoch, state),
            struct.pack(
                f">7I{len(ids)}i",
                *(len(replicas), len(isr), len(removing), len(adding), len(elr), len(last_known_elr)),
                len(unknown),
                *ids,
            ),
            *[directory.raw for directory in directories],
        )
    )
    for field in unknown:
        data += _TAG.pack(field.tag, len(field.data)) + field.data
    return data


class PartitionDecoder:
    """Decodes partitions; equal parts of several partitions become one object.

    Hundreds of thousands of partitions may share a handful of brokers, so everything after the fixed numbers
    is parsed only once for partitions with the same bytes there.
    """

    def __init__(self) -> None:
        self._shared: dict[bytes, _Shared] = {}

    def decode(self, data: bytes, version: int) -> PartitionRegistration:
        """Decode a partition. Raises CorruptImage for invalid bytes."""
        try:
            leader, leader_epoch, partition_epoch, state = _NUMBERS.unpack_from(data)
            tail = data[_NUMBERS.size :]
            shared = self._shared.get(tail)
            if shared is None:
                shared = self._shared[tail] = _decode_shared(tail)
            lists, unknown = shared
            numbers = (leader, RECOVERY_STATES[state], leader_epoch, partition_epoch)
        except (struct.error, KeyError):
            raise CorruptImage(f"{data[:80]!r} is not an encoded partition") from None
        return PartitionRegistration._make((*lists, *numbers, unknown, version))


def _decode_shared(tail: bytes) -> _Shared:
    *counts, unknown_count = _COUNTS.unpack_from(tail)
    position = _COUNTS.size
    lists: list[tuple[int, ...]] = []
    for count in counts:
        if count * 4 > len(tail) - position:
            raise struct.error
        lists.append(struct.unpack_from(f">{count}i", tail, position))
        position += count * 4
    replicas, *others = lists
    end = position + len(replicas) * Uuid.SIZE
    if end > len(tail):
        raise struct.error
    directories = tuple(Uuid(tail[start : start + Uuid.SIZE]) for start in range(position, end, Uuid.SIZE))
    unknown: list[TaggedField] = []
    for _ in range(unknown_count):
        tag, size = _TAG.unpack_from(tail, end)
        end += _TAG.size + size
        unknown.append(TaggedField(tag, tail[end - size : end]))
    if end != len(tail):
        raise struct.error
    return (replicas, directories, *others), tuple(unknown)
