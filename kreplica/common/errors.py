"""Kafka's error codes as one tree of exceptions.

Every error that kreplica raises is a `KreplicaError`. `code` is Kafka's error code, as sent over the wire;
`retriable` says whether the same call may succeed later. Kafka uses one code for several faults: every broken
batch is CORRUPT_MESSAGE, every disk error KAFKA_STORAGE_ERROR. Subclasses here let a program distinguish
them. `exception_for` maps a status of the native core to an exception; importing this module, and only this
one, installs it there.
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


# By Kafka's error code.
BY_CODE: dict[int, type[KreplicaError]] = {}


class KreplicaError(Exception):
    """The base class of all errors.

    `code`: Kafka's error code. `retriable`: the same call may succeed later. A class that does not state them
    has those of its base. `where`: the byte position or offset that the message refers to, or None.
    `record_errors`: the records that caused a batch to be rejected, where they can be named.
    """

    code: int = -1
    retriable: bool = False
    record_errors: Sequence[RecordError] = ()

    def __init_subclass__(cls, *, code: int | None = None, retriable: bool | None = None) -> None:
        if retriable is not None:
            cls.retriable = retriable
        if code is not None:
            assert code not in BY_CODE, f"code {code} is that of {BY_CODE[code].__name__}"
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, message: str = "", *, where: int | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n")[0])
        self.where = where


class InvalidMetadata(KreplicaError, retriable=True):
    """The caller's metadata is out of date: look the leader up again."""


class UnknownServerError(KreplicaError, code=-1):
    """The server failed with an error that has no code of its own."""


class OffsetOutOfRange(KreplicaError, code=1):
    """The offset is outside the range that the log holds."""


class CorruptMessage(KreplicaError, code=2, retriable=True):
    """A record batch failed its checks: length, magic, CRC, count, deltas, codec."""


class UnknownTopicOrPartition(InvalidMetadata, code=3):
    """This node knows no such topic or partition."""


class LeaderNotAvailable(InvalidMetadata, code=5):
    """The partition has no leader at the moment."""


class NotLeaderOrFollower(InvalidMetadata, code=6):
    """This broker is not the leader, or not a replica, of the partition."""


class RequestTimedOut(KreplicaError, code=7, retriable=True):
    """The request was not answered within its timeout."""


class BrokerNotAvailable(KreplicaError, code=8):
    """The broker is not available."""


class ReplicaNotAvailable(InvalidMetadata, code=9):
    """The replica is not available here."""


class MessageTooLarge(KreplicaError, code=10):
    """A record or batch is too large."""


class StaleControllerEpoch(KreplicaError, code=11):
    """The message comes from a controller that has been replaced."""


class OffsetMetadataTooLarge(KreplicaError, code=12):
    """The metadata of a committed offset is longer than offset.metadata.max.bytes."""


class NetworkException(InvalidMetadata, code=13):
    """The node could not be reached, or the connection was lost before it answered."""


class CoordinatorLoadInProgress(KreplicaError, code=14, retriable=True):
    """The coordinator is still loading."""


class CoordinatorNotAvailable(KreplicaError, code=15, retriable=True):
    """There is no coordinator at the moment."""


class NotCoordinator(KreplicaError, code=16, retriable=True):
    """This broker is not the coordinator."""


class InvalidTopic(KreplicaError, code=17):
    """The topic's name is not allowed, or the operation is not allowed on it."""


class RecordListTooLarge(KreplicaError, code=18):
    """The batch is larger than a segment."""


class NotEnoughReplicas(KreplicaError, code=19, retriable=True):
    """The in-sync replicas are fewer than min.insync.replicas; nothing was written."""


class NotEnoughReplicasAfterAppend(KreplicaError, code=20, retriable=True):
    """Written, but the in-sync replicas fell below min.insync.replicas before it was replicated."""


class InvalidRequiredAcks(KreplicaError, code=21):
    """acks must be 0, 1 or all (-1)."""


class IllegalGeneration(KreplicaError, code=22):
    """The request names another generation of the group than the current one."""


class InconsistentGroupProtocol(KreplicaError, code=23):
    """The member supports no protocol that all others of the group support, or has another protocol type."""


class InvalidGroupId(KreplicaError, code=24):
    """The group's id is empty."""


class UnknownMemberId(KreplicaError, code=25):
    """The group knows no such member."""


class InvalidSessionTimeout(KreplicaError, code=26):
    """The session timeout is outside the bounds that the broker sets."""


class RebalanceInProgress(KreplicaError, code=27):
    """The group is rebalancing."""


class InvalidCommitOffsetSize(KreplicaError, code=28):
    """The offsets of one commit do not fit into one batch."""


class TopicAuthorizationFailed(KreplicaError, code=29):
    """The client may not do this with the topic."""


class GroupAuthorizationFailed(KreplicaError, code=30):
    """The client may not do this with the group."""


class ClusterAuthorizationFailed(KreplicaError, code=31):
    """The client may not do this with the cluster."""


class InvalidTimestamp(KreplicaError, code=32):
    """A record's timestamp is out of the accepted range."""


class UnsupportedSaslMechanism(KreplicaError, code=33):
    """The SASL mechanism is not supported."""


class IllegalSaslState(KreplicaError, code=34):
    """SASL authentication is not enabled on this listener."""


class UnsupportedVersion(KreplicaError, code=35):
    """The version of a request, file or record is not supported."""


class TopicAlreadyExists(KreplicaError, code=36):
    """A topic of this name exists."""


class InvalidPartitions(KreplicaError, code=37):
    """The number of partitions is not allowed."""


class InvalidReplicationFactor(KreplicaError, code=38):
    """The replication factor is below 1 or above the number of brokers."""


class InvalidReplicaAssignment(KreplicaError, code=39):
    """The replica assignment is not allowed."""


class InvalidConfig(KreplicaError, code=40):
    """A configuration value is not allowed, or its name is unknown."""


class NotController(KreplicaError, code=41, retriable=True):
    """This node is not the active controller."""


class InvalidRequest(KreplicaError, code=42):
    """A request or another message of the protocol is invalid."""


class UnsupportedForMessageFormat(KreplicaError, code=43):
    """The message format on disk does not support this."""


class PolicyViolation(KreplicaError, code=44):
    """A policy refuses the request."""


class OutOfOrderSequenceNumber(KreplicaError, code=45):
    """A producer's sequence number skips ahead: a batch before it is missing."""


class DuplicateSequenceNumber(KreplicaError, code=46):
    """The producer's batch was appended before, too long ago to name its offset."""


class InvalidProducerEpoch(KreplicaError, code=47):
    """The producer's epoch is older than one seen before."""


class InvalidTxnState(KreplicaError, code=48):
    """The transaction is in the wrong state for this operation."""


class InvalidProducerIdMapping(KreplicaError, code=49):
    """The producer id does not belong to this transactional id."""


class InvalidTransactionTimeout(KreplicaError, code=50):
    """The transaction timeout is not positive, or above transaction.max.timeout.ms."""


class ConcurrentTransactions(KreplicaError, code=51, retriable=True):
    """Another transaction of this producer is being completed."""


class TransactionCoordinatorFenced(KreplicaError, code=52):
    """A transaction marker comes from a coordinator that has been replaced."""


class TransactionalIdAuthorizationFailed(KreplicaError, code=53):
    """The client may not use the transactional id."""


class SecurityDisabled(KreplicaError, code=54):
    """The cluster has no access rules: authorizer.class.name is not set."""


class OperationNotAttempted(KreplicaError, code=55):
    """Not attempted: a similar operation is in progress, or another part of the request failed."""


class KafkaStorageError(InvalidMetadata, code=56):
    """The disk, or the log directory, failed; the log is offline."""


class LogDirNotFound(KreplicaError, code=57):
    """There is no such log directory."""


class SaslAuthenticationFailed(KreplicaError, code=58):
    """The client could not be authenticated: the user, the password or the token is wrong."""


class UnknownProducerId(KreplicaError, code=59):
    """The log holds no state of this producer id."""


class ReassignmentInProgress(KreplicaError, code=60):
    """The partition is being reassigned."""


class DelegationTokenAuthDisabled(KreplicaError, code=61):
    """The cluster has no delegation tokens: its nodes have no delegation.token.secret.key."""


class DelegationTokenNotFound(KreplicaError, code=62):
    """There is no delegation token with this password."""


class DelegationTokenOwnerMismatch(KreplicaError, code=63):
    """The delegation token belongs to others, who may change it."""


class DelegationTokenRequestNotAllowed(KreplicaError, code=64):
    """A client that is anonymous, or has logged in by a delegation token, cannot use delegation tokens."""


class DelegationTokenAuthorizationFailed(KreplicaError, code=65):
    """The client has no right to make delegation tokens for that user."""


class DelegationTokenExpired(KreplicaError, code=66):
    """The delegation token has expired."""


class InvalidPrincipalType(KreplicaError, code=67):
    """The type of a principal is not User."""


class NonEmptyGroup(KreplicaError, code=68):
    """The group has members."""


class GroupIdNotFound(KreplicaError, code=69):
    """There is no such group."""


class FetchSessionIdNotFound(KreplicaError, code=70, retriable=True):
    """There is no such fetch session."""


class InvalidFetchSessionEpoch(KreplicaError, code=71, retriable=True):
    """The fetch session's epoch is not the expected one."""


class FencedLeaderEpoch(InvalidMetadata, code=74):
    """The leader epoch in the request is older than the current one."""


class UnknownLeaderEpoch(KreplicaError, code=75, retriable=True):
    """The leader epoch in the request is newer than the one known here."""


class StaleBrokerEpoch(KreplicaError, code=77):
    """The broker epoch is not the registered one."""


class OffsetNotAvailable(KreplicaError, code=78, retriable=True):
    """The offset is not known yet: the new leader has not caught up."""


class MemberIdRequired(KreplicaError, code=79):
    """The member must join again with the member id in this response (KIP-394)."""

    member_id = ""


class PreferredLeaderNotAvailable(InvalidMetadata, code=80):
    """The preferred leader is not in sync."""


class GroupMaxSizeReached(KreplicaError, code=81):
    """The group has group.max.size members."""


class FencedInstanceId(KreplicaError, code=82):
    """Another member has taken the place of this static one (KIP-345)."""


class EligibleLeadersNotAvailable(InvalidMetadata, code=83):
    """No eligible replica is alive."""


class ElectionNotNeeded(InvalidMetadata, code=84):
    """The partition already has the requested leader."""


class NoReassignmentInProgress(KreplicaError, code=85):
    """There is no reassignment to cancel."""


class GroupSubscribedToTopic(KreplicaError, code=86):
    """A member of the group is subscribed to the topic."""


class InvalidRecord(KreplicaError, code=87):
    """A record breaks a rule of its topic: no key in a compacted one, a control record from a client."""


class NoRecords(InvalidRecord):
    """A batch needs at least one record."""


class ThrottlingQuotaExceeded(KreplicaError, code=89, retriable=True):
    """A quota is exceeded."""


class UnstableOffsetCommit(KreplicaError, code=88, retriable=True):
    """An open transaction has an offset for the partition."""


class ProducerFenced(KreplicaError, code=90):
    """A newer producer with the same transactional id has taken over."""


class ResourceNotFound(KreplicaError, code=91):
    """There is no such resource."""


class DuplicateResource(KreplicaError, code=92):
    """The request names a resource twice."""


class UnacceptableCredential(KreplicaError, code=93):
    """The credential does not have the required form."""


class InconsistentVoterSet(KreplicaError, code=94):
    """The voter sets of two nodes differ."""


class InvalidUpdateVersion(KreplicaError, code=95):
    """The partition epoch or version is not the current one."""


class FeatureUpdateFailed(KreplicaError, code=96):
    """The cluster's features could not be changed to the requested levels."""


class PrincipalDeserializationFailure(KreplicaError, code=97):
    """The principal of a forwarded request cannot be read."""


class SnapshotNotFound(KreplicaError, code=98):
    """There is no such snapshot."""


class PositionOutOfRange(KreplicaError, code=99):
    """The position lies outside the snapshot."""


class UnknownTopicId(InvalidMetadata, code=100):
    """This node knows no such topic id."""


class DuplicateBrokerRegistration(KreplicaError, code=101):
    """Another live broker has this id."""


class BrokerIdNotRegistered(KreplicaError, code=102):
    """The broker is not registered."""


class InconsistentTopicId(InvalidMetadata, code=103):
    """The log and the request have different topic ids."""


class InconsistentClusterId(KreplicaError, code=104):
    """The cluster ids differ."""


class TransactionalIdNotFound(KreplicaError, code=105):
    """There is no such transaction."""


class IneligibleReplica(KreplicaError, code=107):
    """A proposed ISR contains a replica that is not eligible."""


class NewLeaderElected(KreplicaError, code=108):
    """The change was not made; another leader was elected instead."""


class FencedMemberEpoch(KreplicaError, code=110):
    """The member has another epoch than the coordinator knows: it has lost its partitions and must rejoin."""


class UnreleasedInstanceId(KreplicaError, code=111):
    """Another member of the group still has this instance id."""


class UnsupportedAssignor(KreplicaError, code=112):
    """The coordinator does not have this assignor."""


class StaleMemberEpoch(KreplicaError, code=113):
    """The member's epoch has changed: the request is to be repeated with the new one."""


class UnsupportedEndpointType(KreplicaError, code=115):
    """This listener describes brokers only, not controllers."""


class TransactionAbortable(KreplicaError, code=120):
    """The transaction failed, and can be aborted and tried again."""


class InvalidRecordState(KreplicaError, code=121):
    """The record is not acquired by this member, or its state is changing: the acknowledgement is refused."""


class ShareSessionNotFound(KreplicaError, code=122, retriable=True):
    """The broker has no share session of this member."""


class InvalidShareSessionEpoch(KreplicaError, code=123, retriable=True):
    """The request has another epoch than its share session expects."""


class FencedStateEpoch(KreplicaError, code=124):
    """The share partition was initialized again: the state epoch of the request is outdated."""


class InvalidVoterKey(KreplicaError, code=125):
    """The request is for another voter: its voter id or directory id is not this node's."""


class DuplicateVoter(KreplicaError, code=126):
    """The voter is already in the set of voters."""


class InvalidRegularExpression(KreplicaError, code=128):
    """The regular expression cannot be read."""


class VoterNotFound(KreplicaError, code=127):
    """The voter is not in the set of voters."""


class StreamsInvalidTopology(KreplicaError, code=130):
    """The topology of a Kafka Streams program contradicts itself."""


class StreamsInvalidTopologyEpoch(KreplicaError, code=131):
    """The epoch of the topology is no valid one."""


class StreamsTopologyFenced(KreplicaError, code=132):
    """The group has a newer topology than this member."""


class ShareSessionLimitReached(KreplicaError, code=133, retriable=True):
    """The broker has as many share sessions as it may keep."""


# ---- finer than Kafka's codes ------------------------------------------------------------------------


class NoRecordAtOffset(OffsetOutOfRange):
    """The offset is inside the log, and no record has it: it was compacted away, or is a marker's."""


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


class BufferExhausted(KreplicaError, retriable=True):
    """Too many records of the metadata log are waiting to be appended."""


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


class LogDirLocked(KafkaStorageError, retriable=False):
    """Another process, or another object in this one, writes to the directory."""


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


class TransactionTimedOut(InvalidTxnState):
    """The transaction was open for longer than its timeout, and its coordinator has aborted it."""


class WouldDeadlock(KreplicaError):
    """A callback of a future waits for what its own thread has to do: wait after it, or in another thread."""


class WatchOverflowed(KreplicaError):
    """A watch has ended, because its reader left more changes waiting than it may keep."""


class ReadOnlyLog(KreplicaError):
    """The log was opened for reading, or is read-only because of damage."""


class LogCleaningAborted(KreplicaError, retriable=True):
    """The log was truncated, deleted from or paused while being cleaned; no segment was replaced."""


class UseAfterFork(KreplicaError):
    """The object was opened by the parent process: open it again in this one."""


class BufferPinned(KreplicaError, retriable=True):
    """A slice of the bytes to be changed is still in use."""


class OutOfMaps(KreplicaError, retriable=True):
    """The process has reached its limit of memory mappings."""


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
    name = error.filename
    named = what if name is None or str(name) in what else f"{what} {name}"
    return type(made)(f"{named}: {os.strerror(number)}")


def timed_out(what: str, last: BaseException | None) -> RequestTimedOut:
    """Return the error of an operation that ran out of time; `last`: the error of its last try, if any."""
    error = RequestTimedOut(what if last is None else f"{what}; the last error was {last!r}")
    error.__cause__ = last
    return error


def known_error(error: BaseException) -> KreplicaError:
    """Return the error itself if it is of this tree, else an UnknownServerError that names it."""
    return error if isinstance(error, KreplicaError) else UnknownServerError(repr(error))


_status.install(exception_for)
