"""Kafka's error codes as one tree of exceptions.

Every error that kreplica raises is a `KreplicaError`. `code` is Kafka's error code, as sent over the wire;
`retriable` says whether the same call may succeed later. Kafka uses one code for several faults: every broken
batch is CORRUPT_MESSAGE, every disk error KAFKA_STORAGE_ERROR. Subclasses here let a program distinguish
them.
`exception_for` maps a status of the native core to an exception; importing this module, and only this one,
installs it there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from kreplica._core import status as _status


class RecordError(NamedTuple):
    """An invalid record of a batch: its index in the batch, and why it was rejected (KIP-467)."""

    batch_index: int
    message: str


class KreplicaError(Exception):
    """The base class of all errors.

    `code`: Kafka's error code. `retriable`: the same call may succeed later. `where`: the byte position or
    offset that the message refers to, or None. `record_errors`: the records that caused a batch to be
    rejected,
    where they can be named.
    """

    code: int = -1
    retriable: bool = False
    record_errors: Sequence[RecordError] = ()

    def __init__(self, message: str = "", *, where: int | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n")[0])
        self.where = where


class InvalidMetadata(KreplicaError):
    """The caller's metadata is out of date: look the leader up again."""

    retriable = True


class UnknownServerError(KreplicaError):
    """The server failed with an error that has no code of its own."""

    code = -1


class OffsetOutOfRange(KreplicaError):
    """The offset is outside the range that the log holds."""

    code = 1


class CorruptMessage(KreplicaError):
    """A record batch failed its checks: length, magic, CRC, count, deltas, codec."""

    code = 2
    retriable = True


class UnknownTopicOrPartition(InvalidMetadata):
    """This node knows no such topic or partition."""

    code = 3


class LeaderNotAvailable(InvalidMetadata):
    """The partition has no leader at the moment."""

    code = 5


class NotLeaderOrFollower(InvalidMetadata):
    """This broker is not the leader, or not a replica, of the partition."""

    code = 6


class RequestTimedOut(KreplicaError):
    """The request was not answered within its timeout."""

    code = 7
    retriable = True


class BrokerNotAvailable(KreplicaError):
    """The broker is not available."""

    code = 8


class ReplicaNotAvailable(InvalidMetadata):
    """The replica is not available here."""

    code = 9


class MessageTooLarge(KreplicaError):
    """A record or batch is larger than max.message.bytes."""

    code = 10


class StaleControllerEpoch(KreplicaError):
    """The message comes from a controller that has been replaced."""

    code = 11


class OffsetMetadataTooLarge(KreplicaError):
    """The text beside a committed offset is longer than offset.metadata.max.bytes."""

    code = 12


class NetworkException(InvalidMetadata):
    """The node could not be reached, or the connection was lost before it answered."""

    code = 13


class CoordinatorLoadInProgress(KreplicaError):
    """The coordinator is still loading."""

    code = 14
    retriable = True


class CoordinatorNotAvailable(KreplicaError):
    """There is no coordinator at the moment."""

    code = 15
    retriable = True


class NotCoordinator(KreplicaError):
    """This broker is not the coordinator."""

    code = 16
    retriable = True


class InvalidTopic(KreplicaError):
    """The topic's name is not allowed, or the operation is not allowed on it."""

    code = 17


class RecordListTooLarge(KreplicaError):
    """The batch is larger than a segment."""

    code = 18


class NotEnoughReplicas(KreplicaError):
    """The in-sync replicas are fewer than min.insync.replicas; nothing was written."""

    code = 19
    retriable = True


class NotEnoughReplicasAfterAppend(KreplicaError):
    """Written, but the in-sync replicas fell below min.insync.replicas before it was replicated."""

    code = 20
    retriable = True


class InvalidRequiredAcks(KreplicaError):
    """acks must be 0, 1 or all (-1)."""

    code = 21


class IllegalGeneration(KreplicaError):
    """The request names another generation of the group than the current one."""

    code = 22


class InconsistentGroupProtocol(KreplicaError):
    """The member supports no protocol that all others of the group support, or has another protocol type."""

    code = 23


class InvalidGroupId(KreplicaError):
    """The group's id is empty."""

    code = 24


class UnknownMemberId(KreplicaError):
    """The group knows no such member."""

    code = 25


class InvalidSessionTimeout(KreplicaError):
    """The session timeout is outside the bounds that the broker sets."""

    code = 26


class RebalanceInProgress(KreplicaError):
    """The group is rebalancing."""

    code = 27


class InvalidCommitOffsetSize(KreplicaError):
    """The offsets of one commit do not fit into one batch."""

    code = 28


class InvalidTimestamp(KreplicaError):
    """A record's timestamp is out of the accepted range."""

    code = 32


class UnsupportedSaslMechanism(KreplicaError):
    """The SASL mechanism is not supported."""

    code = 33


class IllegalSaslState(KreplicaError):
    """SASL authentication is not enabled on this listener."""

    code = 34


class UnsupportedVersion(KreplicaError):
    """The version of a request, file or record is not supported."""

    code = 35


class TopicAlreadyExists(KreplicaError):
    """A topic of this name exists."""

    code = 36


class InvalidPartitions(KreplicaError):
    """The number of partitions is not allowed."""

    code = 37


class InvalidReplicationFactor(KreplicaError):
    """The replication factor is below 1 or above the number of brokers."""

    code = 38


class InvalidReplicaAssignment(KreplicaError):
    """The replica assignment is not allowed."""

    code = 39


class InvalidConfig(KreplicaError):
    """A configuration value is not allowed, or its name is unknown."""

    code = 40


class NotController(KreplicaError):
    """This node is not the active controller."""

    code = 41
    retriable = True


class InvalidRequest(KreplicaError):
    """The request contradicts itself."""

    code = 42


class UnsupportedForMessageFormat(KreplicaError):
    """The message format on disk does not support this."""

    code = 43


class PolicyViolation(KreplicaError):
    """A policy refuses the request."""

    code = 44


class TransactionalIdAuthorizationFailed(KreplicaError):
    """Transactions cannot be started here: there is no transaction coordinator."""

    code = 53


class SecurityDisabled(KreplicaError):
    """There are no access rules to describe or change: authorization is not supported."""

    code = 54


class OutOfOrderSequenceNumber(KreplicaError):
    """A producer's sequence number skips ahead: a batch before it is missing."""

    code = 45


class DuplicateSequenceNumber(KreplicaError):
    """The producer's batch was appended before, too long ago to name its offset."""

    code = 46


class InvalidProducerEpoch(KreplicaError):
    """The producer's epoch is older than one seen before."""

    code = 47


class OperationNotAttempted(KreplicaError):
    """Not attempted: a similar operation is in progress, or another part of the request failed."""

    code = 55


class InvalidTxnState(KreplicaError):
    """The transaction is in the wrong state for this operation."""

    code = 48


class InvalidProducerIdMapping(KreplicaError):
    """The producer id does not belong to this transactional id."""

    code = 49


class ConcurrentTransactions(KreplicaError):
    """Another transaction of this producer is being completed."""

    code = 51
    retriable = True


class TransactionCoordinatorFenced(KreplicaError):
    """A transaction marker comes from a coordinator that has been replaced."""

    code = 52


class KafkaStorageError(InvalidMetadata):
    """The disk, or the log directory, failed; the log is offline."""

    code = 56


class LogDirNotFound(KreplicaError):
    """There is no such log directory."""

    code = 57


class UnknownProducerId(KreplicaError):
    """The log has no entry, or no longer one, for this producer id."""

    code = 59


class ReassignmentInProgress(KreplicaError):
    """The partition is being reassigned."""

    code = 60


class NonEmptyGroup(KreplicaError):
    """The group has members."""

    code = 68


class GroupIdNotFound(KreplicaError):
    """There is no such group."""

    code = 69


class FetchSessionIdNotFound(KreplicaError):
    """There is no such fetch session."""

    code = 70
    retriable = True


class InvalidFetchSessionEpoch(KreplicaError):
    """The fetch session's epoch is not the expected one."""

    code = 71
    retriable = True


class FencedLeaderEpoch(InvalidMetadata):
    """The leader epoch in the request is older than the current one."""

    code = 74


class UnknownLeaderEpoch(KreplicaError):
    """The leader epoch in the request is newer than the one known here."""

    code = 75
    retriable = True


class StaleBrokerEpoch(KreplicaError):
    """The broker epoch is not the registered one."""

    code = 77


class OffsetNotAvailable(KreplicaError):
    """The offset is not known yet: the new leader has not caught up."""

    code = 78
    retriable = True


class MemberIdRequired(KreplicaError):
    """The member must join again with the member id in this response (KIP-394)."""

    code = 79
    member_id = ""


class PreferredLeaderNotAvailable(InvalidMetadata):
    """The preferred leader is not in sync."""

    code = 80


class GroupMaxSizeReached(KreplicaError):
    """The group has group.max.size members."""

    code = 81


class FencedInstanceId(KreplicaError):
    """Another member has taken the place of this static one (KIP-345)."""

    code = 82


class EligibleLeadersNotAvailable(InvalidMetadata):
    """No eligible replica is alive."""

    code = 83


class ElectionNotNeeded(InvalidMetadata):
    """The partition already has the requested leader."""

    code = 84


class NoReassignmentInProgress(KreplicaError):
    """There is no reassignment to cancel."""

    code = 85


class GroupSubscribedToTopic(KreplicaError):
    """A member of the group is subscribed to the topic."""

    code = 86


class InvalidRecord(KreplicaError):
    """A record breaks a rule of its topic: no key in a compacted one, a control record from a client."""

    code = 87


class NoRecords(InvalidRecord):
    """A batch needs at least one record."""


class ThrottlingQuotaExceeded(KreplicaError):
    """A quota is exceeded."""

    code = 89
    retriable = True


class ProducerFenced(KreplicaError):
    """A newer producer with the same transactional id has taken over."""

    code = 90


class InconsistentVoterSet(KreplicaError):
    """The voter sets of two nodes differ."""

    code = 94


class InvalidUpdateVersion(KreplicaError):
    """The partition epoch or version is not the current one."""

    code = 95


class FeatureUpdateFailed(KreplicaError):
    """The cluster's features could not be changed to the requested levels."""

    code = 96


class SnapshotNotFound(KreplicaError):
    """There is no such snapshot."""

    code = 98


class PositionOutOfRange(KreplicaError):
    """The position lies outside the snapshot."""

    code = 99


class UnknownTopicId(InvalidMetadata):
    """This node knows no such topic id."""

    code = 100


class DuplicateBrokerRegistration(KreplicaError):
    """Another live broker has this id."""

    code = 101


class BrokerIdNotRegistered(KreplicaError):
    """The broker is not registered."""

    code = 102


class InconsistentTopicId(InvalidMetadata):
    """The log and the request have different topic ids."""

    code = 103


class InconsistentClusterId(KreplicaError):
    """The cluster ids differ."""

    code = 104


class TransactionalIdNotFound(KreplicaError):
    """There is no such transaction."""

    code = 105


class IneligibleReplica(KreplicaError):
    """A proposed ISR contains a replica that is not eligible."""

    code = 107


class NewLeaderElected(KreplicaError):
    """The change was not made; another leader was elected instead."""

    code = 108


class UnsupportedEndpointType(KreplicaError):
    """The listener describes brokers only."""

    code = 115


class InvalidVoterKey(KreplicaError):
    """The request is for another voter: its voter id or directory id is not this node's."""

    code = 125


class DuplicateVoter(KreplicaError):
    """The voter is already in the set of voters."""

    code = 126


class VoterNotFound(KreplicaError):
    """The voter is not in the set of voters."""

    code = 127


# ---- finer than Kafka's codes ------------------------------------------------------------------------


class InvalidBatchLength(CorruptMessage):
    """A batch length is below the header size, negative, or past the end of the data."""


class UnsupportedMagic(CorruptMessage):
    """The batch is not of format v2: magic 0 and 1 are not supported, others are unknown."""


class InvalidCrc(CorruptMessage):
    """The checksum does not match the bytes."""


class InvalidRecordCount(CorruptMessage):
    """The record count is negative, too large, or differs from the records in the batch."""


class InvalidRecordLength(CorruptMessage):
    """A record, key, value or header has a length out of bounds."""


class InvalidOffsetDelta(CorruptMessage):
    """Offset deltas are out of order, differ from lastOffsetDelta, or exceed the range of an offset."""


class UnsupportedCodec(CorruptMessage):
    """The batch names a compression codec that does not exist."""


class InvalidCompressedData(CorruptMessage):
    """The compressed records are corrupt or truncated."""


class DecompressionTooLarge(CorruptMessage):
    """The records decompress to more than the limit."""


class TruncatedInput(CorruptMessage):
    """A field extends past the end of the data."""


class OffsetsOutOfOrder(CorruptMessage):
    """A batch starts below the log end offset, or its leader epoch is lower than that of the batch before."""


class NotLeader(NotLeaderOrFollower):
    """This node does not lead the metadata quorum in that epoch."""


class BufferExhausted(KreplicaError):
    """Too many records of the metadata log are waiting to be appended."""

    retriable = True


class IllegalQuorumTransition(UnknownServerError):
    """A member of the quorum cannot change from its state to the requested one."""


class FatalTruncation(KreplicaError):
    """The metadata log would be truncated below its high watermark, which would lose committed records."""


class IllegalSnapshotId(InvalidRequest):
    """A snapshot cannot end there: inside a batch, not committed, of another epoch, or it exists already."""


class UnexpectedEpoch(InvalidRequest):
    """The epoch is later than any in which this node has led the quorum."""


class StateChangeFailed(KreplicaError):
    """The controller cannot bring the partition or replica into the requested state."""


class IllegalStateTransition(StateChangeFailed):
    """The partition or replica cannot change from its state to the requested one; nothing changed."""


class NoReplicaOnline(EligibleLeadersNotAvailable, StateChangeFailed):
    """No replica that is eligible to lead is alive."""


class UnexpectedBaseOffset(InvalidUpdateVersion):
    """The first record would get another offset than expected; `where` is that offset."""


class UnknownMetadataRecord(UnsupportedVersion):
    """The metadata log holds an unknown type of record."""


class NodeUnreachable(NetworkException):
    """There was no connection to the node; the request was not sent."""


class StorageFull(KafkaStorageError):
    """The disk is full, or the quota or file size limit is reached; reads still work."""


class StorageIOError(KafkaStorageError):
    """A file operation failed."""


class MappedPageLost(KafkaStorageError):
    """A page of a mapped file could not be read: the file was truncated, or the disk failed."""


class OutOfDescriptors(KafkaStorageError):
    """The process has reached its limit of open files."""


class LogDirLocked(KafkaStorageError):
    """Another process, or another object in this one, writes to the directory."""

    retriable = False


class DamagedLog(KafkaStorageError):
    """The requested range is damaged on disk. `log.damage` names the range."""


class InvalidFile(KreplicaError):
    """A file is not what its name says, is truncated, or has another version; nothing was changed."""


class CorruptImage(InvalidFile):
    """The metadata image is damaged, of another cluster, or ahead of its log: rebuild it from the log."""


class InvalidSnapshot(InvalidFile):
    """A snapshot of the metadata log is truncated, corrupt, or not what its name says."""


class SnapshotMissing(InvalidFile):
    """The metadata log starts above offset 0, and no snapshot holds the records before it."""


class LogClosed(KreplicaError):
    """The log, region or slice is closed."""


class ClusterClosed(KreplicaError):
    """The cluster was closed, perhaps during the operation: it is unknown whether it was carried out."""


class WatchOverflowed(KreplicaError):
    """A watch has ended, because its reader left more changes waiting than it may keep."""


class ReadOnlyLog(KreplicaError):
    """The log was opened for reading, or is read-only because of damage."""


class LogCleaningAborted(KreplicaError):
    """The log was truncated, deleted from or paused while being cleaned; no segment was replaced."""

    retriable = True


class UseAfterFork(KreplicaError):
    """The object was opened by the parent process: open it again in this one."""


class BufferPinned(KreplicaError):
    """A slice of the bytes to be changed is still in use."""

    retriable = True


class OutOfMaps(KreplicaError):
    """The process has reached its limit of memory mappings."""

    retriable = True


_BY_STATUS: dict[str, type[KreplicaError]] = {
    "SHORT_INPUT": TruncatedInput,
    "BAD_BATCH_LENGTH": InvalidBatchLength,
    "BAD_MAGIC": UnsupportedMagic,
    "BAD_CRC": InvalidCrc,
    "BAD_RECORD_COUNT": InvalidRecordCount,
    "BAD_RECORD_LENGTH": InvalidRecordLength,
    "BAD_HEADER_COUNT": InvalidRecordLength,
    "BAD_OFFSET_DELTA": InvalidOffsetDelta,
    "OFFSET_OVERFLOW": InvalidOffsetDelta,
    "OFFSET_REGRESSION": OffsetsOutOfOrder,
    "EPOCH_REGRESSION": OffsetsOutOfOrder,
    "EPOCH_MISMATCH": OffsetsOutOfOrder,
    "UNKNOWN_CODEC": UnsupportedCodec,
    "BAD_VARINT": InvalidRecordLength,
    "BAD_COMPRESSED_DATA": InvalidCompressedData,
    "DECOMPRESSION_TOO_LARGE": DecompressionTooLarge,
    "TRAILING_BYTES": InvalidRecordLength,
    "BAD_TIMESTAMP": InvalidTimestamp,
    "BAD_CONTROL_RECORD": CorruptMessage,
    "BATCH_TOO_LARGE": MessageTooLarge,
    "BAD_ATTRIBUTES": CorruptMessage,
    "BAD_PRODUCER_FIELDS": InvalidRecord,
    "CONTROL_FROM_CLIENT": InvalidRecord,
    "EMPTY_BATCH": NoRecords,
    "BAD_MESSAGE": InvalidRequest,
    "STORAGE_FULL": StorageFull,
    "IO_FAILED": StorageIOError,
    "PAGE_FAULT": MappedPageLost,
    "OUT_OF_MAPS": OutOfMaps,
    "OUT_OF_DESCRIPTORS": OutOfDescriptors,
    "NO_MEMORY": KafkaStorageError,
    "CLOSED": LogClosed,
    "READ_ONLY": ReadOnlyLog,
    "FORKED": UseAfterFork,
    "OUT_OF_RANGE": OffsetOutOfRange,
    "PINNED": BufferPinned,
    "BAD_INDEX": InvalidFile,
}


def exception_for(status: int, what: str, where: int = -1) -> KreplicaError:
    """Return the exception for a negative status of the core, from doing `what` at `where`."""
    name = _status.NAMES.get(status, str(status))
    kind = _BY_STATUS.get(name, UnknownServerError)
    text = (kind.__doc__ or "").split("\n")[0]
    place = f" at {where}" if where >= 0 else ""
    return kind(f"{what}{place}: {text} ({name})", where=where if where >= 0 else None)


def exception_for_os(error: OSError, what: str) -> KreplicaError:
    """Return the exception for a failed file operation, with the operating system's message."""
    number = error.errno or errno.EIO
    made = exception_for(_status.status_of_errno(number), what)
    named = "" if error.filename is None else f" ({error.filename})"
    return type(made)(f"{what}: {os.strerror(number)}{named}")


def known_error(error: BaseException) -> KreplicaError:
    """Return the error itself if it is of this tree, else an UnknownServerError that names it."""
    return error if isinstance(error, KreplicaError) else UnknownServerError(repr(error))


def _by_code() -> dict[int, type[KreplicaError]]:
    table: dict[int, type[KreplicaError]] = {}
    for kind in list(globals().values()):
        if (
            isinstance(kind, type)
            and issubclass(kind, KreplicaError)
            and "code" in vars(kind)
            and kind is not KreplicaError
        ):
            if kind.code in table:
                raise AssertionError(f"code {kind.code} twice: {kind.__name__}, {table[kind.code].__name__}")
            table[kind.code] = kind
    return table


BY_CODE: dict[int, type[KreplicaError]] = _by_code()

_status.install(exception_for)
