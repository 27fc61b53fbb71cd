"""What a member of the quorum reports: the answer to DescribeQuorum (55), and the values of its metrics.

The metrics' values are computed when they are read, by any thread, and may be slightly out of date. Owns no
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError, NotLeaderOrFollower
from kreplica.common.messages.quorum import DescribeQuorumResponse, Listener, Node, ReplicaState
from kreplica.common.messages.quorum import DescribeQuorumResponsePartitionData as PartitionData
from kreplica.common.messages.quorum import DescribeQuorumResponseTopicData as TopicData
from kreplica.common.types import METADATA_TOPIC, Uuid
from kreplica.common.wire import uuid_of
from kreplica.raft.epoch_state import (
    EpochState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ReplicaProgress,
    ResignedState,
    UnattachedState,
)
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import METADATA_PARTITION, only_partition, or_no_node


def describe_quorum(context: RaftContext, request: Any) -> DescribeQuorumResponse:
    """Return the answer to a DescribeQuorum request."""
    try:
        only_partition(request)
    except KreplicaError as error:
        return DescribeQuorumResponse(
            error_code=ErrorCode(error.code), error_message=str(error), topics=(), nodes=()
        )
    state = context.quorum.state
    if not isinstance(state, LeaderState):
        return _response(context, NotLeaderOrFollower(f"node {context.key.node_id} is not the leader"))
    return _response(
        context,
        None,
        high_watermark=-1 if state.high_watermark is None else state.high_watermark,
        current_voters=tuple(
            _own(context, voter) if node_id == context.key.node_id else _replica(voter)
            for node_id, voter in sorted(state.voters.items())
        ),
        observers=tuple(_replica(observer) for _, observer in sorted(state.observers.items())),
    )


def _response(
    context: RaftContext,
    error: KreplicaError | None,
    *,
    high_watermark: int = -1,
    current_voters: tuple[ReplicaState, ...] = (),
    observers: tuple[ReplicaState, ...] = (),
) -> DescribeQuorumResponse:
    partition = PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=ErrorCode(0 if error is None else error.code),
        error_message=None if error is None else str(error),
        leader_id=or_no_node(context.quorum.leader_id),
        leader_epoch=context.quorum.epoch,
        high_watermark=high_watermark,
        current_voters=current_voters,
        observers=observers,
    )
    voters = context.control.voters
    nodes = tuple(
        Node(
            node_id=voter.voter_key.node_id,
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port) for each in voter.endpoints
            ),
        )
        for voter in voters
    )
    topic = TopicData(topic_name=METADATA_TOPIC, partitions=(partition,))
    return DescribeQuorumResponse(error_code=ErrorCode(0), error_message=None, topics=(topic,), nodes=nodes)


def _own(context: RaftContext, voter: ReplicaProgress) -> ReplicaState:
    now_ms = context.clock.time_ms()
    return ReplicaState(
        replica_id=voter.key.node_id,
        replica_directory_id=uuid_of(context.key.directory_id),
        log_end_offset=context.log.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _replica(progress: ReplicaProgress) -> ReplicaState:
    return ReplicaState(
        replica_id=progress.key.node_id,
        replica_directory_id=uuid_of(progress.key.directory_id),
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=progress.fetch_date_ms,
        last_caught_up_timestamp=progress.caught_up_date_ms,
    )


def gauges(
    member: Callable[[], RaftContext], high_watermark: Callable[[], int | None]
) -> dict[str, Callable[[], float]]:
    """Return the functions for the numeric gauges of `member()`, by Kafka's names."""

    def leading(count: Callable[[RaftContext, LeaderState], float]) -> Callable[[], float]:
        def gauge() -> float:
            state = member().quorum.state
            return count(member(), state) if isinstance(state, LeaderState) else -1

        return gauge

    def current_vote() -> float:
        voted = member().quorum.state.voted_key
        return -1 if voted is None else voted.node_id

    return {
        "current-leader": lambda: or_no_node(member().quorum.leader_id),
        "current-vote": current_vote,
        "current-epoch": lambda: member().quorum.epoch,
        "high-watermark": lambda: high_watermark() or -1,
        "log-end-offset": lambda: member().log.end_offset,
        "log-end-epoch": lambda: member().log.last_fetched_epoch,
        "number-unknown-voter-connections": lambda: len(
            member().requests.unreachable(member().quorum.others())
        ),
        "number-of-voters": lambda: len(member().control.voters),
        "number-of-observers": leading(lambda _, state: len(state.observers)),
        "uncommitted-voter-change": leading(
            lambda context, state: context.control.voters_offset >= (state.high_watermark or 0)
        ),
    }


def texts(member: Callable[[], RaftContext]) -> dict[str, Callable[[], str]]:
    """Return the functions for the text gauges of `member()`, by Kafka's names."""

    def current_vote_directory_id() -> str:
        voted = member().quorum.state.voted_key
        return str(Uuid.ZERO if voted is None else voted.directory_id)

    return {
        "current-state": lambda: _state_name(
            member().quorum.state, is_voter=member().control.voters.contains(member().key)
        ),
        "current-vote-directory-id": current_vote_directory_id,
    }


def _state_name(state: EpochState, *, is_voter: bool) -> str:
    """Return Kafka's name of the state: a follower without a vote is an observer, a resigned leader
    unattached.
    """
    if isinstance(state, FollowerState) and not is_voter:
        return "observer"
    if isinstance(state, ResignedState):
        return UnattachedState.NAME
    if isinstance(state, (ProspectiveState, UnattachedState)) and state.voted_key is not None:
        return f"{state.NAME}-voted"
    return state.NAME
