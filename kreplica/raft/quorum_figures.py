"""The values of the gauges of KafkaRaftMetrics.

They are computed when they are read, by any thread, and may be slightly out of date.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplica.common.types import Uuid
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.follower_state import FollowerState
from kreplica.raft.leader_state import LeaderState
from kreplica.raft.prospective_state import ProspectiveState
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import or_no_node
from kreplica.raft.resigned_state import ResignedState
from kreplica.raft.unattached_state import UnattachedState


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
