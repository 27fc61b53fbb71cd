"""Maps the state in ClusterMetadata to paths and bytes of the image.

    /brokers/ids/<id>                           RegisterBrokerRecord
    /brokers/topics/<name>                      topic id; the TopicRecord, if it has fields of later versions
    /brokers/topics/<name>/partitions           empty
    /brokers/topics/<name>/partitions/<number>  see partition_codec
    /config/<type>/<name>                       JSON: resource type and name, settings
    /features/<name>                            level (2), name
    /quotas/<entity>                            JSON: entity, quotas
    /controllers/<id>   /acls/<id>              the record that defines it
    /scram/<mechanism>/<user>   /tokens/<id>    the record that defines it
    /producer_ids   /zk_migration_state         the record that defines it
    /controller                                 leader (4; -1: none) and epoch (4) of the quorum, as last
    known

A record is stored as in the log (`serde`). Names with arbitrary characters are escaped. A name too long for a
key is replaced by its SHA-256; the node contains the full name. Functions are pure.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kreplica.common.errors import CorruptImage, KreplicaError
from kreplica.common.rare_collections import rare_collections
from kreplica.common.types import Uuid
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_store import ImageStore
from kreplica.metadata.metadata_delta import Change, MetadataDelta
from kreplica.metadata.partition_codec import PartitionDecoder, encode_partition
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicRegistration
from kreplica.metadata.serde import decode, encode, in_lowest_version

BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"

# Longer names, escaped, would not fit into a key with the rest of the path.
_LONGEST_NAME = 255
_UNSAFE = re.compile(rb"[^A-Za-z0-9._~-]")
_LEVEL = struct.Struct(">h")
_LEADER = struct.Struct(">ii")


def topic_path(name: str) -> str:
    """Return the path of a topic."""
    return f"{TOPICS}/{name}"


def partitions_path(name: str) -> str:
    """Return the parent path of a topic's partitions."""
    return f"{TOPICS}/{name}/partitions"


def partition_path(name: str, number: int) -> str:
    """Return the path of a partition."""
    return f"{TOPICS}/{name}/partitions/{number}"


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
    return safe if len(safe) <= _LONGEST_NAME else f"%{hashlib.sha256(data).hexdigest()}%"


def leader_data(leader_id: int | None, epoch: int) -> bytes:
    """Encode the value at CONTROLLER."""
    return _LEADER.pack(-1 if leader_id is None else leader_id, epoch)


def changed_nodes(delta: MetadataDelta) -> dict[str, bytes | None]:
    """Return the nodes that the delta changes, by path; None for deleted nodes."""
    nodes: dict[str, bytes | None] = {}
    for topic in delta.topics_deleted:
        nodes[topic_path(topic.name)] = nodes[partitions_path(topic.name)] = None
        nodes.update((partition_path(topic.name, number), None) for number in topic.partitions)
    for topic in delta.topics_created:
        nodes[topic_path(topic.name)] = _topic_data(topic)
        nodes[partitions_path(topic.name)] = b""
    for (name, number), _, _, partition in delta.partitions:
        if partition is not None:
            nodes[partition_path(name, number)] = encode_partition(partition)
        else:
            # If a topic of this name was deleted and created again, the new one counts.
            nodes.setdefault(partition_path(name, number), None)
    tables: dict[str, Mapping[Any, Change[Any]]] = {
        "brokers": delta.brokers,
        "configs": delta.configs,
        "features": delta.features,
        **delta.others,
    }
    for table, changes in tables.items():
        place = _PLACES[table]
        for key, change in changes.items():
            nodes[place.path(key)] = None if change.new is None else place.encode(key, change.new)
    return nodes


@rare_collections()
def load(image: ImageStore) -> ClusterMetadata:
    """Load the cluster's state from the image.

    Raises CorruptImage if the image is damaged or has invalid contents.
    """
    metadata, decode_partition = ClusterMetadata(), PartitionDecoder().decode
    topics, topic_names = metadata.topics, metadata.topic_names
    partitions: dict[str, dict[int, PartitionRegistration]] = {}
    for names, data in image.contents():
        try:
            if names[1] != "brokers":
                _load_other(metadata, names, data)
            elif len(names) == 6:  # /brokers/topics/<name>/partitions/<number>
                partitions[names[3]][int(names[5])] = decode_partition(data)
            elif len(names) == 4 and names[2] == "topics":
                name = names[3]
                own = partitions[name] = {}
                topics[name] = topic = _topic(name, data, own)
                topic_names[topic.topic_id] = name
            elif len(names) == 4:
                _load_table(metadata, "brokers", data)
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


def _topic(name: str, data: bytes, partitions: Mapping[int, PartitionRegistration]) -> TopicRegistration:
    topic_id, tail = Uuid(data[: Uuid.SIZE]), data[Uuid.SIZE :]
    unknown = decode(tail).message.unknown_tagged_fields if tail else ()
    return TopicRegistration(name, topic_id, partitions, unknown)


def _load_other(metadata: ClusterMetadata, names: list[str], data: bytes) -> None:
    table, depth = _TABLES.get(names[1], ("", 0))
    if table and len(names) == depth:
        _load_table(metadata, table, data)


def _load_table(metadata: ClusterMetadata, table: str, data: bytes) -> None:
    key, value = _PLACES[table].decode(data)
    metadata.put(table, key, value)


class _Place(NamedTuple):
    """The path of a table's entries, and the codec of their bytes, which contain key and value."""

    path: Callable[[Any], str]
    encode: Callable[[Any, Any], bytes]
    decode: Callable[[bytes], tuple[Any, Any]]


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
    "brokers": _Place(broker_path, _encode_broker, _decode_broker),
    "configs": _Place(lambda key: config_path(*key), _encode_config, _decode_config),
    "features": _Place(lambda name: f"/features/{escaped(name)}", _encode_feature, _decode_feature),
    "quotas": _Place(_quota_path, _encode_quota, _decode_quota),
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
