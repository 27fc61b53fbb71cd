"""Messages of the metadata quorum: elections, snapshots, voters."""

from __future__ import annotations

from typing import Annotated

from kreplica.common.message import (
    Duration32,
    Error,
    Id,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Since,
    Tag,
    Uint16,
)


class VoteRequestPartitionData(Message):
    partition_index: Int32
    replica_epoch: Int32
    replica_id: Int32
    replica_directory_id: Id
    voter_directory_id: Id
    last_offset_epoch: Int32
    last_offset: Int64
    pre_vote: bool


class VoteRequestTopicData(Message):
    topic_name: str
    partitions: tuple[VoteRequestPartitionData, ...]


class VoteRequest(Message, api_key=52, versions=(2, 2), flexible=2):
    cluster_id: str | None = None
    voter_id: Int32 = -1
    topics: tuple[VoteRequestTopicData, ...]


class VoteResponsePartitionData(Message):
    partition_index: Int32
    error_code: Error
    leader_id: Int32
    leader_epoch: Int32
    vote_granted: bool


class VoteResponseTopicData(Message):
    topic_name: str
    partitions: tuple[VoteResponsePartitionData, ...]


class NodeEndpoint(Message):
    node_id: Int32
    host: str
    port: Uint16


class VoteResponse(Message, api_key=52, versions=(2, 2), flexible=2):
    error_code: Error
    topics: tuple[VoteResponseTopicData, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0)] = ()


class BeginQuorumEpochRequestPartitionData(Message):
    partition_index: Int32
    voter_directory_id: Id
    leader_id: Int32
    leader_epoch: Int32


class BeginQuorumEpochRequestTopicData(Message):
    topic_name: str
    partitions: tuple[BeginQuorumEpochRequestPartitionData, ...]


class Listener(Message):
    name: str
    host: str
    port: Uint16


class BeginQuorumEpochRequest(Message, api_key=53, versions=(1, 1), flexible=1):
    cluster_id: str | None = None
    voter_id: Int32 = -1
    topics: tuple[BeginQuorumEpochRequestTopicData, ...]
    leader_endpoints: tuple[Listener, ...]


class QuorumEpochResponsePartitionData(Message):
    """What BeginQuorumEpoch and EndQuorumEpoch answer alike."""

    partition_index: Int32
    error_code: Error
    leader_id: Int32
    leader_epoch: Int32


class QuorumEpochResponseTopicData(Message):
    topic_name: str
    partitions: tuple[QuorumEpochResponsePartitionData, ...]


class BeginQuorumEpochResponse(Message, api_key=53, versions=(1, 1), flexible=1):
    error_code: Error
    topics: tuple[QuorumEpochResponseTopicData, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0)] = ()


class ReplicaInfo(Message):
    candidate_id: Int32
    candidate_directory_id: Id


class EndQuorumEpochRequestPartitionData(Message):
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    preferred_candidates: tuple[ReplicaInfo, ...]


class EndQuorumEpochRequestTopicData(Message):
    topic_name: str
    partitions: tuple[EndQuorumEpochRequestPartitionData, ...]


class EndQuorumEpochRequest(Message, api_key=54, versions=(1, 1), flexible=1):
    cluster_id: str | None = None
    topics: tuple[EndQuorumEpochRequestTopicData, ...]
    leader_endpoints: tuple[Listener, ...]


class EndQuorumEpochResponse(Message, api_key=54, versions=(1, 1), flexible=1):
    error_code: Error
    topics: tuple[QuorumEpochResponseTopicData, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0)] = ()


class DescribeQuorumRequestPartitionData(Message):
    partition_index: Int32


class DescribeQuorumRequestTopicData(Message):
    topic_name: str
    partitions: tuple[DescribeQuorumRequestPartitionData, ...]


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible=0):
    topics: tuple[DescribeQuorumRequestTopicData, ...]


class ReplicaState(Message):
    replica_id: Int32
    replica_directory_id: Annotated[Id, Since(2)] = None
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, Since(1)] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1)] = -1


class DescribeQuorumResponsePartitionData(Message):
    partition_index: Int32
    error_code: Error
    error_message: Annotated[str | None, Since(2)] = None
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]


class DescribeQuorumResponseTopicData(Message):
    topic_name: str
    partitions: tuple[DescribeQuorumResponsePartitionData, ...]


class Node(Message):
    node_id: Int32
    listeners: tuple[Listener, ...]


class DescribeQuorumResponse(Message, api_key=55, versions=(0, 2), flexible=0):
    error_code: Error
    error_message: Annotated[str | None, Since(2)] = None
    topics: tuple[DescribeQuorumResponseTopicData, ...]
    nodes: Annotated[tuple[Node, ...], Since(2)] = ()


class SnapshotId(Message):
    end_offset: Int64
    epoch: Int32


class FetchSnapshotRequestPartitionSnapshot(Message):
    partition: Int32
    current_leader_epoch: Int32
    snapshot_id: SnapshotId
    position: Int64
    replica_directory_id: Annotated[Id, Tag(0)] = None


class FetchSnapshotRequestTopicSnapshot(Message):
    name: str
    partitions: tuple[FetchSnapshotRequestPartitionSnapshot, ...]


class FetchSnapshotRequest(Message, api_key=59, versions=(1, 1), flexible=1):
    cluster_id: Annotated[str | None, Tag(0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 2147483647
    topics: tuple[FetchSnapshotRequestTopicSnapshot, ...]


class LeaderIdAndEpoch(Message):
    leader_id: Int32
    leader_epoch: Int32


class FetchSnapshotResponsePartitionSnapshot(Message):
    index: Int32
    error_code: Error
    snapshot_id: SnapshotId
    current_leader: Annotated[LeaderIdAndEpoch, Tag(0)] = LeaderIdAndEpoch(leader_id=0, leader_epoch=0)
    size: Int64
    position: Int64
    unaligned_records: Records


class FetchSnapshotResponseTopicSnapshot(Message):
    name: str
    partitions: tuple[FetchSnapshotResponsePartitionSnapshot, ...]


class FetchSnapshotResponse(Message, api_key=59, versions=(1, 1), flexible=1):
    throttle_time: Duration32
    error_code: Error
    topics: tuple[FetchSnapshotResponseTopicSnapshot, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0)] = ()


class AddRaftVoterRequest(Message, api_key=80, versions=(0, 1), flexible=0):
    cluster_id: str | None
    timeout: Duration32
    voter_id: Int32
    voter_directory_id: Id
    listeners: tuple[Listener, ...]
    ack_when_committed: Annotated[bool, Since(1)] = True


class AddRaftVoterResponse(Message, api_key=80, versions=(0, 1), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None


class RemoveRaftVoterRequest(Message, api_key=81, versions=(0, 0), flexible=0):
    cluster_id: str | None
    voter_id: Int32
    voter_directory_id: Id


class RemoveRaftVoterResponse(Message, api_key=81, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None


class KRaftVersionFeature(Message):
    min_supported_version: Int16
    max_supported_version: Int16


class UpdateRaftVoterRequest(Message, api_key=82, versions=(0, 0), flexible=0):
    cluster_id: str | None
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: Id
    listeners: tuple[Listener, ...]
    k_raft_version_feature: KRaftVersionFeature


class CurrentLeader(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: str
    port: Int32


class UpdateRaftVoterResponse(Message, api_key=82, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    current_leader: Annotated[CurrentLeader, Tag(0)] = CurrentLeader(host="", port=0)
