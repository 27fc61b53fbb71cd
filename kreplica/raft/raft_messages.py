"""Builds and reads the quorum's messages: messages, in Kafka's newest versions.

All are about the single partition of the metadata log. A request about another partition, or several, raises
InvalidRequest. Owns no state; any thread may call.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidRequest
from kreplica.common.message import maker
from kreplica.common.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from kreplica.common.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartitionData,
    BeginQuorumEpochRequestTopicData,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartitionData,
    EndQuorumEpochRequestTopicData,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotRequestPartitionSnapshot,
    FetchSnapshotRequestTopicSnapshot,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseTopicSnapshot,
    Listener,
    QuorumEpochResponsePartitionData,
    QuorumEpochResponseTopicData,
    ReplicaInfo,
    VoteRequest,
    VoteRequestPartitionData,
    VoteRequestTopicData,
    VoteResponse,
    VoteResponsePartitionData,
    VoteResponseTopicData,
)
from kreplica.common.messages.quorum import LeaderIdAndEpoch as SnapshotLeader
from kreplica.common.messages.quorum import SnapshotId as FetchedSnapshotId
from kreplica.common.types import METADATA_TOPIC, Uuid
from kreplica.common.wire import NO_THROTTLE, topic_id_of, uuid_of
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.voter_set import ReplicaKey

METADATA_TOPIC_ID = uuid_of(Uuid.METADATA_TOPIC)
METADATA_TOPIC_NUMBER = METADATA_TOPIC_ID.int
METADATA_PARTITION = 0
NO_NODE = -1
NO_ERROR = ErrorCode.none
READ_UNCOMMITTED = 0

_fetch_answer = maker(PartitionData)
_fetch_question = maker(FetchPartition)
NOT_DIVERGING, NO_SNAPSHOT = FetchResponseEpochEndOffset(), SnapshotId()


class Standing(NamedTuple):
    """What every answer contains: an error code, and the epoch and leader that its sender knows."""

    error_code: int
    leader_id: int | None
    leader_epoch: int


def _error_code(standing: Standing) -> ErrorCode:
    return ErrorCode(standing.error_code) if standing.error_code else NO_ERROR


def or_none(node_id: int) -> int | None:
    """Return the node id in a message; None if it stands for no node."""
    return None if node_id < 0 else int(node_id)


def or_no_node(node_id: int | None) -> int:
    """Return the node id as a message contains it; -1 for None."""
    return NO_NODE if node_id is None else node_id


def key_of(node_id: int, directory_id: Any) -> ReplicaKey:
    """Return the replica that a message names."""
    return ReplicaKey(int(node_id), topic_id_of(directory_id))


def _directory_id(key: ReplicaKey) -> uuid.UUID | None:
    return None if key.directory_id == Uuid.ZERO else uuid_of(key.directory_id)


def only_partition(message: Any) -> Any:
    """Return the part of a request or answer that is about the metadata log's partition.

    Raises InvalidRequest if the message is about another partition, or several.
    """
    topics = message.responses if isinstance(message, FetchResponse) else message.topics
    if len(topics) == 1 and _is_metadata(topics[0]) and len(topics[0].partitions) == 1:
        partition = topics[0].partitions[0]
        if _index_of(partition) == METADATA_PARTITION:
            return partition
    raise InvalidRequest(
        f"{type(message).__name__}: must be about {METADATA_TOPIC}-{METADATA_PARTITION} alone"
    )


def _is_metadata(topic: Any) -> bool:
    # Check for Fetch first: there is one for each commit and each voter.
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is not None:
        return topic_id is METADATA_TOPIC_ID or bool(topic_id == METADATA_TOPIC_ID)
    name = getattr(topic, "topic_name", None)
    return bool((getattr(topic, "name", None) if name is None else name) == METADATA_TOPIC)


def _index_of(partition: Any) -> int:
    for name in ("partition_index", "partition", "index"):
        found = getattr(partition, name, None)
        if found is not None:
            return int(found)
    return NO_NODE


# ---- Vote --------------------------------------------------------------------------------------------------


def make_vote_request(
    cluster_id: str,
    voter: ReplicaKey,
    candidate: ReplicaKey,
    epoch: int,
    log_end: OffsetAndEpoch,
    *,
    pre_vote: bool,
) -> VoteRequest:
    """Make a request for the vote of `voter`, or for its pre-vote (KIP-996)."""
    partition = VoteRequestPartitionData(
        partition_index=METADATA_PARTITION,
        replica_epoch=epoch,
        replica_id=candidate.node_id,
        replica_directory_id=_directory_id(candidate),
        voter_directory_id=_directory_id(voter),
        last_offset_epoch=log_end.epoch,
        last_offset=log_end.offset,
        pre_vote=pre_vote,
    )
    topic = VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return VoteRequest(cluster_id=cluster_id, voter_id=voter.node_id, topics=(topic,))


def make_vote_response(standing: Standing, *, granted: bool) -> VoteResponse:
    partition = VoteResponsePartitionData(
        partition_index=METADATA_PARTITION,
        error_code=_error_code(standing),
        leader_id=or_no_node(standing.leader_id),
        leader_epoch=standing.leader_epoch,
        vote_granted=granted,
    )
    topic = VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return VoteResponse(error_code=NO_ERROR, topics=(topic,))


# ---- BeginQuorumEpoch, EndQuorumEpoch ----------------------------------------------------------------------


def make_begin_request(
    cluster_id: str,
    voter: ReplicaKey,
    leader_id: int,
    epoch: int,
    endpoints: Iterable[VoterEndpoint] = (),
) -> BeginQuorumEpochRequest:
    """Make a message that announces the leader of the epoch and its `endpoints` to `voter`."""
    partition = BeginQuorumEpochRequestPartitionData(
        partition_index=METADATA_PARTITION,
        voter_directory_id=_directory_id(voter),
        leader_id=leader_id,
        leader_epoch=epoch,
    )
    topic = BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=voter.node_id,
        topics=(topic,),
        leader_endpoints=tuple(
            Listener(name=each.name, host=each.host, port=each.port) for each in endpoints
        ),
    )


def make_begin_response(standing: Standing) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error_code=NO_ERROR, topics=_epoch_topics(standing))


def _epoch_topics(standing: Standing) -> tuple[QuorumEpochResponseTopicData, ...]:
    partition = QuorumEpochResponsePartitionData(
        partition_index=METADATA_PARTITION,
        error_code=_error_code(standing),
        leader_id=or_no_node(standing.leader_id),
        leader_epoch=standing.leader_epoch,
    )
    return (QuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),)


def make_end_request(
    cluster_id: str, leader_id: int, epoch: int, successors: Iterable[ReplicaKey]
) -> EndQuorumEpochRequest:
    """Make a message that the leader of the epoch has resigned. `successors`: preferred new leaders, best
    first.
    """
    partition = EndQuorumEpochRequestPartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_candidates=tuple(
            ReplicaInfo(candidate_id=key.node_id, candidate_directory_id=_directory_id(key))
            for key in successors
        ),
    )
    topic = EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=(topic,), leader_endpoints=())


def make_end_response(standing: Standing) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error_code=NO_ERROR, topics=_epoch_topics(standing))


# ---- Fetch -------------------------------------------------------------------------------------------------


class FetchPosition(NamedTuple):
    """The end of a replica's log and the replica's current epoch."""

    current_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


def make_fetch_request(
    cluster_id: str, replica: ReplicaKey, position: FetchPosition, *, max_wait_ms: int, max_bytes: int
) -> FetchRequest:
    """Make a fetch at the end of the replica's log. All records below are on the replica's disk."""
    partition = _fetch_question(
        partition=METADATA_PARTITION,
        current_leader_epoch=position.current_epoch,
        fetch_offset=position.fetch_offset,
        last_fetched_epoch=position.last_fetched_epoch,
        log_start_offset=position.log_start_offset,
        partition_max_bytes=max_bytes,
        replica_directory_id=_directory_id(replica),
    )
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=ReplicaState(replica_id=replica.node_id),
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=READ_UNCOMMITTED,
        topics=(FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def make_fetch_response(
    standing: Standing,
    *,
    high_watermark: int = -1,
    log_start_offset: int = -1,
    diverging: OffsetAndEpoch | None = None,
    snapshot_id: OffsetAndEpoch | None = None,
    records: Any = b"",
    leader_address: tuple[str, int] | None = None,
) -> FetchResponse:
    """Make the answer to a fetch.

    `high_watermark` is -1 if it is not known in this epoch. `records`: whole batches. `leader_address`: where
    the leader listens, for a replica that may not know it.
    """
    endpoints: tuple[NodeEndpoint, ...] = ()
    if leader_address is not None and standing.leader_id is not None:
        host, port = leader_address
        endpoints = (NodeEndpoint(node_id=standing.leader_id, host=host, port=port),)
    partition = _fetch_answer(
        partition_index=METADATA_PARTITION,
        error_code=_error_code(standing),
        high_watermark=high_watermark,
        last_stable_offset=high_watermark,
        log_start_offset=log_start_offset,
        diverging_epoch=(
            NOT_DIVERGING
            if diverging is None
            else FetchResponseEpochEndOffset(epoch=diverging.epoch, end_offset=diverging.offset)
        ),
        current_leader=LeaderIdAndEpoch(
            leader_id=or_no_node(standing.leader_id), leader_epoch=standing.leader_epoch
        ),
        snapshot_id=(
            NO_SNAPSHOT
            if snapshot_id is None
            else SnapshotId(epoch=snapshot_id.epoch, end_offset=snapshot_id.offset)
        ),
        aborted_transactions=None,
        preferred_read_replica=NO_NODE,
        records=records,
    )
    topic = FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=(partition,))
    return FetchResponse(
        throttle_time=NO_THROTTLE, error_code=NO_ERROR, responses=(topic,), node_endpoints=endpoints
    )


def is_of_metadata_log(request: FetchRequest) -> bool:
    """Return whether a fetch is about the metadata log only."""
    topics = request.topics
    if len(topics) != 1:
        return False
    topic_id = topics[0].topic_id
    # Compare the number: comparing ids is a call.
    return topic_id is not None and topic_id.int == METADATA_TOPIC_NUMBER


def offset_and_epoch_in(part: Any) -> OffsetAndEpoch | None:
    """Return a diverging epoch's end or a snapshot id from an answer; None if it has none."""
    if part.end_offset < 0 or part.epoch < 0:
        return None
    return OffsetAndEpoch(int(part.end_offset), int(part.epoch))


# ---- FetchSnapshot -----------------------------------------------------------------------------------------


def make_snapshot_request(
    cluster_id: str,
    replica: ReplicaKey,
    epoch: int,
    snapshot_id: OffsetAndEpoch,
    position: int,
    max_bytes: int,
) -> FetchSnapshotRequest:
    """Make a request to the leader of `epoch` for the bytes of a snapshot from `position` on."""
    partition = FetchSnapshotRequestPartitionSnapshot(
        partition=METADATA_PARTITION,
        current_leader_epoch=epoch,
        snapshot_id=FetchedSnapshotId(end_offset=snapshot_id.offset, epoch=snapshot_id.epoch),
        position=position,
        replica_directory_id=_directory_id(replica),
    )
    topic = FetchSnapshotRequestTopicSnapshot(name=METADATA_TOPIC, partitions=(partition,))
    return FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=replica.node_id, max_bytes=max_bytes, topics=(topic,)
    )


def make_snapshot_response(
    standing: Standing,
    snapshot_id: OffsetAndEpoch,
    *,
    size: int = 0,
    position: int = 0,
    data: Any = b"",
) -> FetchSnapshotResponse:
    """Make the answer to a FetchSnapshot. `size`: of the whole snapshot, in bytes."""
    partition = FetchSnapshotResponsePartitionSnapshot(
        index=METADATA_PARTITION,
        error_code=_error_code(standing),
        snapshot_id=FetchedSnapshotId(end_offset=snapshot_id.offset, epoch=snapshot_id.epoch),
        current_leader=SnapshotLeader(
            leader_id=or_no_node(standing.leader_id), leader_epoch=standing.leader_epoch
        ),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topic = FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=(partition,))
    return FetchSnapshotResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, topics=(topic,))


def standing_in(answer: Any) -> Standing:
    """Return the error, epoch and leader in the partition's part of an answer."""
    leader = getattr(answer, "current_leader", answer)
    return Standing(int(answer.error_code), or_none(leader.leader_id), int(leader.leader_epoch))


def top_level_error(request: Any, code: int) -> Any:
    """Make the answer to a request of the quorum that is rejected as a whole."""
    error_code = ErrorCode(code)
    if isinstance(request, VoteRequest):
        return VoteResponse(error_code=error_code, topics=())
    if isinstance(request, BeginQuorumEpochRequest):
        return BeginQuorumEpochResponse(error_code=error_code, topics=())
    if isinstance(request, EndQuorumEpochRequest):
        return EndQuorumEpochResponse(error_code=error_code, topics=())
    if isinstance(request, FetchRequest):
        return FetchResponse(throttle_time=NO_THROTTLE, error_code=error_code, responses=())
    return FetchSnapshotResponse(throttle_time=NO_THROTTLE, error_code=error_code, topics=())
