"""The control records of the metadata log: who leads, who votes, where a snapshot begins and ends.

Unlike the others they have no frame: the record's key names the kind (`kreplica.record.control`), and the
value is the message, whose first field is its version. Schemas and names are Kafka's; where it splits a word,
so do these.

The messages are immutable; any thread may share them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from kreplica.common.errors import InvalidRecord, UnsupportedVersion
from kreplica.common.types import Uuid as KafkaUuid
from kreplica.metadata.message import Message, Since, Structure, layout_of
from kreplica.metadata.records import Int16, Int32, Int64, String, Uint16, Uuid
from kreplica.metadata.wire_types import Array, ByteReader
from kreplica.record.control import ControlRecordType, parse_control_key

if TYPE_CHECKING:
    from typing_extensions import Buffer

_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMessage(Message):
    """The value of a control record; `version` is that of its schema."""

    TYPE: ClassVar[ControlRecordType]
    HIGHEST_VERSION: ClassVar[int] = 0

    version: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumVoter(Message):
    """A voter as a new leader names it."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, Since(1)] = KafkaUuid.ZERO


QuorumVoters: TypeAlias = Annotated[tuple[QuorumVoter, ...], Array(Structure(QuorumVoter))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChangeMessage(ControlMessage):
    """The first record of a leader's epoch: it, all voters, and those who voted for it."""

    TYPE = ControlRecordType.LEADER_CHANGE
    HIGHEST_VERSION = 1

    leader_id: Int32
    voters: QuorumVoters
    granting_voters: QuorumVoters


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeaderRecord(ControlMessage):
    """The first record of a snapshot, with the time of the last record in it, in ms since 1970."""

    TYPE = ControlRecordType.SNAPSHOT_HEADER

    last_contained_log_timestamp: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooterRecord(ControlMessage):
    """The last record of a snapshot: without it the snapshot was cut short."""

    TYPE = ControlRecordType.SNAPSHOT_FOOTER


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersionRecord(ControlMessage):
    """The level of the quorum's protocol: 0, or 1 where voters come and go (KIP-853)."""

    TYPE = ControlRecordType.KRAFT_VERSION

    k_raft_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEndpoint(Message):
    """Where a voter listens."""

    name: String
    host: String
    port: Uint16


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersionFeature(Message):
    """The range of the quorum's protocol that a voter supports."""

    min_supported_version: Int16
    max_supported_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter(Message):
    """A voter, its directory, and how to reach it."""

    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: Annotated[tuple[VoterEndpoint, ...], Array(Structure(VoterEndpoint))]
    k_raft_version_feature: Annotated[KRaftVersionFeature, Structure(KRaftVersionFeature)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersRecord(ControlMessage):
    """Who votes from here on."""

    TYPE = ControlRecordType.KRAFT_VOTERS

    voters: Annotated[tuple[Voter, ...], Array(Structure(Voter))]


CONTROL_MESSAGES: dict[int, type[ControlMessage]] = {
    kind.TYPE: kind
    for kind in (
        *(LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord),
        *(KRaftVersionRecord, VotersRecord),
    )
}
"""Each kind by the type in its record's key."""


def encode_control(message: ControlMessage) -> bytes:
    """The record's value; its key is `control_key(message.TYPE)`. Raises as `serde.encode` does."""
    out = bytearray()
    layout_of(type(message), _checked(type(message), message.version)).write(out, message)
    return bytes(out)


def decode_control(key: Buffer | None, value: Buffer | None) -> ControlMessage | None:
    """The message of a control record; None for one that is not the quorum's, or of a later Kafka.

    Raises InvalidRecord, UnsupportedVersion, and CorruptMessage where the key has no type.
    """
    kind = CONTROL_MESSAGES.get(parse_control_key(key))
    if kind is None:
        return None
    data = bytes(value or b"")
    reader = ByteReader(data)
    version = _checked(kind, reader.unpack(_VERSION)[0])
    reader.position = 0
    message = layout_of(kind, version).read(reader)
    if reader.left:
        raise InvalidRecord(f"{kind.__name__}: {reader.left} bytes behind it", where=reader.position)
    return message


def control_to_json(message: ControlMessage) -> dict[str, object]:
    """The message as Kafka's DumpLogSegments shows it."""
    return layout_of(type(message), _checked(type(message), message.version)).to_json(message)


def _checked(kind: type[ControlMessage], version: int) -> int:
    if not 0 <= version <= kind.HIGHEST_VERSION:
        raise UnsupportedVersion(
            f"{kind.__name__} of version {version}; 0 to {kind.HIGHEST_VERSION} are known"
        )
    return version
