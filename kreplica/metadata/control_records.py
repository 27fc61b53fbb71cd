"""The control records of the metadata log: leader changes, voters, and the ends of snapshots.

Unlike other records they have no frame: the record's key names the type (`kreplica.record.control`), and the
value is the message, whose first field is its version. Schemas and names are Kafka's, including its split
words.

The messages are immutable; any thread may share them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, ClassVar

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.message import Int16, Int32, Int64, Record, Since, Uint16, Uuid, decode, encode, to_json
from kreplica.common.types import Uuid as KafkaUuid
from kreplica.record.control import ControlRecordType, parse_control_key

if TYPE_CHECKING:
    from typing_extensions import Buffer

_VERSION = struct.Struct(">h")


class ControlMessage(Record):
    """The value of a control record; `version` is its schema version."""

    TYPE: ClassVar[ControlRecordType]
    HIGHEST_VERSION: ClassVar[int] = 0

    version: Int16 = 0


class QuorumVoter(Record):
    """A voter as listed by a new leader."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, Since(1)] = KafkaUuid.ZERO


class LeaderChangeMessage(ControlMessage):
    """The first record of a leader's epoch: the leader, all voters, and those that granted their vote."""

    TYPE = ControlRecordType.LEADER_CHANGE
    HIGHEST_VERSION = 1

    leader_id: Int32
    voters: tuple[QuorumVoter, ...]
    granting_voters: tuple[QuorumVoter, ...]


class SnapshotHeaderRecord(ControlMessage):
    """The first record of a snapshot, with the timestamp of its last record in ms since 1970."""

    TYPE = ControlRecordType.SNAPSHOT_HEADER

    last_contained_log_timestamp: Int64


class SnapshotFooterRecord(ControlMessage):
    """The last record of a snapshot; a snapshot without it is truncated."""

    TYPE = ControlRecordType.SNAPSHOT_FOOTER


class KRaftVersionRecord(ControlMessage):
    """The version of the quorum's protocol: 0, or 1 with dynamic voters (KIP-853)."""

    TYPE = ControlRecordType.KRAFT_VERSION

    k_raft_version: Int16


class VoterEndpoint(Record):
    """An address on which a voter listens."""

    name: str
    host: str
    port: Uint16


class KRaftVersionFeature(Record):
    """The range of protocol versions that a voter supports."""

    min_supported_version: Int16
    max_supported_version: Int16


class Voter(Record):
    """A voter, its directory, and its endpoints."""

    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: tuple[VoterEndpoint, ...]
    k_raft_version_feature: KRaftVersionFeature


class VotersRecord(ControlMessage):
    """The set of voters from this record on."""

    TYPE = ControlRecordType.KRAFT_VOTERS

    voters: tuple[Voter, ...]


CONTROL_MESSAGES: dict[int, type[ControlMessage]] = {
    kind.TYPE: kind
    for kind in (
        *(LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord),
        *(KRaftVersionRecord, VotersRecord),
    )
}
"""Message class by the type in the record's key."""


def encode_control(message: ControlMessage) -> bytes:
    """Encode a record's value; its key is `control_key(message.TYPE)`. Raises what `serde.encode` does."""
    return encode(message, _checked(type(message), message.version))


def decode_control(key: Buffer | None, value: Buffer | None) -> ControlMessage | None:
    """Decode a control record; None if it is not the quorum's, or comes from a later Kafka.

    Raises InvalidRecord, UnsupportedVersion, and CorruptMessage if the key has no type.
    """
    kind = CONTROL_MESSAGES.get(parse_control_key(key))
    if kind is None:
        return None
    data = bytes(value or b"")
    if len(data) < _VERSION.size:
        raise InvalidRecord(f"{kind.__name__}: {len(data)} bytes hold no version", where=0)
    version = _checked(kind, _VERSION.unpack_from(data)[0])
    return decode(kind, version, data)


def control_to_json(message: ControlMessage) -> dict[str, object]:
    """Return the message as Kafka's DumpLogSegments shows it."""
    return to_json(message, _checked(type(message), message.version))


def _checked(kind: type[ControlMessage], version: int) -> int:
    if not 0 <= version <= kind.HIGHEST_VERSION:
        raise UnsupportedVersion(
            f"{kind.__name__} version {version} is not supported; supported are 0 to {kind.HIGHEST_VERSION}"
        )
    return version
