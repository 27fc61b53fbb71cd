"""VoterChanges: adds, removes and updates voters of the quorum, one change at a time (KIP-853).

A change is a VotersRecord. It takes effect when it is in the leader's log, and the new voters commit it. The
leader starts a change only once its high watermark is known in this epoch, when the previous change is
committed. Two overlapping changes could leave two majorities without a common voter. Thread rule: the
client's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    DuplicateVoter,
    FencedLeaderEpoch,
    InconsistentClusterId,
    InvalidRequest,
    KreplicaError,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnsupportedVersion,
    VoterNotFound,
)
from kreplica.common.future import Future, resolved
from kreplica.common.messages.quorum import (
    AddRaftVoterResponse,
    CurrentLeader,
    RemoveRaftVoterResponse,
    UpdateRaftVoterResponse,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import NO_THROTTLE
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.raft.epoch_state import NEVER_MS, LeaderState
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import key_of, or_no_node
from kreplica.raft.voter_set import KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet

Answer = Callable[[KreplicaError | None], Any]


class _Change:
    """A change in progress.

    `answer(error)` answers the request, once. `on_over()` is called when the change is committed or has
    failed.
    """

    def __init__(
        self, answer: Callable[[KreplicaError | None], object], on_over: Callable[[], object]
    ) -> None:
        self._answer = answer
        self._on_over = on_over
        self._is_answered = False

    def acknowledge(self, error: KreplicaError | None = None) -> None:
        """Answer the request now. The change itself may still be in progress."""
        if not self._is_answered:
            self._is_answered = True
            self._answer(error)

    def settle(self, error: BaseException | None) -> None:
        """End the change, and answer the request if that is not done yet. The next change may start."""
        self._on_over()
        assert error is None or isinstance(error, KreplicaError)
        self.acknowledge(error)


class _Newcomer:
    """A future voter that first has to catch up with the log.

    `waits_for_commit`: answer the request when the change is committed, not as soon as it is in the leader's
    log (KIP-1186).
    """

    def __init__(self, node: VoterNode, deadline_ms: int, change: _Change, *, waits_for_commit: bool) -> None:
        self.node = node
        self.deadline_ms = deadline_ms
        self.change = change
        self.waits_for_commit = waits_for_commit


class VoterChanges:
    """The leader's handling of AddRaftVoter (80), RemoveRaftVoter (81) and UpdateRaftVoter (82)."""

    def __init__(self, context: RaftContext) -> None:
        self._context = context
        self._newcomer: _Newcomer | None = None
        self._is_under_way = False

    # ---- requests -----------------------------------------------------------------------------------------

    def handle_add(self, request: Any) -> Future[Any]:
        """Add a voter. It follows as an observer first and must catch up within the request's timeout.

        If the request does not wait for the commit, the voter must have caught up already: it has sent the
        request itself and cannot fetch meanwhile.
        """

        def begin(state: LeaderState, change: _Change) -> None:
            key = key_of(request.voter_id, request.voter_directory_id)
            if key.node_id < 0 or key.directory_id == Uuid.ZERO:
                raise InvalidRequest(f"a voter needs an id and a directory id, got {key}")
            if key.node_id in state.voters:
                raise DuplicateVoter(f"node {key.node_id} is already a voter")
            if not self._context.membership.is_controller(key.node_id):
                raise InvalidRequest(
                    f"node {key.node_id} has not registered as a controller: give it the role controller in"
                    " process.roles, or retry when it has started"
                )
            node = VoterNode(key, self._endpoints(request.listeners), *KRAFT_VERSIONS)
            wait_ms = 0
            if request.ack_when_committed:
                wait_ms = max(int(request.timeout.total_seconds() * 1000), 0)
            wait_ms = min(wait_ms, self._context.config.quorum_request_timeout_ms)
            self._newcomer = _Newcomer(
                node,
                self._context.now_ms() + wait_ms,
                change,
                waits_for_commit=request.ack_when_committed,
            )

        return self._change(request.cluster_id, begin, partial(_plain_answer, AddRaftVoterResponse))

    def handle_remove(self, request: Any) -> Future[Any]:
        """Remove a voter. If it is the leader, it goes on without counting itself until the change is
        committed.
        """

        def begin(state: LeaderState, change: _Change) -> None:
            key = key_of(request.voter_id, request.voter_directory_id)
            voters = self._context.control.voters
            if key not in voters.voter_keys:
                raise VoterNotFound(f"{key} is not in {voters!r}")
            left = voters.remove_voter(key)
            if left is None:
                raise InvalidRequest(f"{key} is the last voter and cannot be removed")
            self._append(state, left, change)

        return self._change(request.cluster_id, begin, partial(_plain_answer, RemoveRaftVoterResponse))

    def handle_update(self, request: Any) -> Future[Any]:
        """Change the listeners of a voter or the protocol levels that it supports."""

        def begin(state: LeaderState, change: _Change) -> None:
            epoch = int(request.current_leader_epoch)
            if epoch < state.epoch:
                raise FencedLeaderEpoch(f"epoch {epoch} is over; this node is in {state.epoch}")
            if epoch > state.epoch:
                raise UnknownLeaderEpoch(f"epoch {epoch} is not known; this node is in epoch {state.epoch}")
            voters, feature = self._context.control.voters, request.k_raft_version_feature
            key = key_of(request.voter_id, request.voter_directory_id)
            node = VoterNode(
                key,
                self._endpoints(request.listeners),
                int(feature.min_supported_version),
                int(feature.max_supported_version),
            )
            if not node.supports(self._context.control.kraft_version):
                raise InvalidRequest(
                    f"{key} does not support the current protocol level, kraft.version"
                    f" {self._context.control.kraft_version}"
                )
            changed = voters.update_voter(node)
            if changed is None:
                raise VoterNotFound(f"{key} is not in {voters!r}")
            if changed == voters:
                change.settle(None)
            else:
                self._append(state, changed, change)
                # The commit may need this voter's own fetches, so answer now.
                change.acknowledge()

        return self._change(request.cluster_id, begin, self._update_answer)

    def _endpoints(self, listeners: Any) -> tuple[VoterEndpoint, ...]:
        """Return the listeners of a voter. Raises InvalidRequest if the other voters could not reach it
        there.
        """
        names = [each.name for each in listeners]
        if len(set(names)) != len(names):
            raise InvalidRequest(f"the listener names {names} are not unique")
        own = self._context.membership.endpoints
        if own and own[0].name not in names:
            raise InvalidRequest(
                f"the listeners {names} do not include {own[0].name}, by which the voters of this quorum are"
                " reached"
            )
        return tuple(VoterEndpoint(name=each.name, host=each.host, port=int(each.port)) for each in listeners)

    def _change(
        self,
        cluster_id: str | None,
        begin: Callable[[LeaderState, _Change], None],
        answer: Answer,
    ) -> Future[Any]:
        future: Future[Any] = Future()

        def over() -> None:
            self._is_under_way, self._newcomer = False, None

        try:
            state = self._ready_leader(cluster_id)
        except KreplicaError as error:
            return resolved(answer(error))
        self._is_under_way = True
        change = _Change(lambda error: future.set_result(answer(error)), over)
        try:
            begin(state, change)
        except KreplicaError as error:
            change.settle(error)
        return future

    def _ready_leader(self, cluster_id: str | None) -> LeaderState:
        """Return the leader's state if a change may start now. Raises the error to answer if not."""
        context, state = self._context, self._context.quorum.state
        if cluster_id is not None and cluster_id != context.cluster_id:
            raise InconsistentClusterId(
                f"the request is for cluster {cluster_id}, but this node is in {context.cluster_id}"
            )
        if not isinstance(state, LeaderState):
            raise NotLeaderOrFollower(f"node {context.key.node_id} is not the leader")
        if context.control.kraft_version < 1:
            raise UnsupportedVersion(
                "the voters of this quorum are fixed by its configuration (kraft.version 0)"
            )
        mark = state.high_watermark
        if self._is_under_way or mark is None or context.control.voters_offset >= mark:
            # Kafka answers this code too. See KAFKA-16530 for a change before the high watermark is known.
            raise RequestTimedOut(
                "another change is in progress, or the leader does not know the high watermark yet: retry"
                " later"
            )
        return state

    # ---- the step -----------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> int:
        """Let a voter in once it has caught up. Returns in how many ms to call again."""
        newcomer, state = self._newcomer, self._context.quorum.state
        if newcomer is None or not isinstance(state, LeaderState):
            return NEVER_MS
        if self._has_caught_up(state, newcomer.node.voter_key, now_ms):
            self._newcomer = None
            voters = self._context.control.voters.add_voter(newcomer.node)
            if voters is None:
                newcomer.change.settle(DuplicateVoter())
            else:
                self._append(state, voters, newcomer.change)
                if not newcomer.waits_for_commit:
                    newcomer.change.acknowledge()
            return 0
        if now_ms >= newcomer.deadline_ms:
            newcomer.change.settle(
                RequestTimedOut(f"{newcomer.node.voter_key} has not caught up with the log in time")
            )
            return NEVER_MS
        return newcomer.deadline_ms - now_ms

    def _has_caught_up(self, state: LeaderState, key: ReplicaKey, now_ms: int) -> bool:
        progress = state.observers.get(key)
        if progress is None or progress.caught_up_ms < 0:
            return False
        return now_ms - progress.caught_up_ms <= self._context.config.quorum_fetch_timeout_ms

    def leadership_lost(self, error: KreplicaError) -> None:
        """Fail the change in progress: this node is no longer the leader."""
        newcomer, self._newcomer = self._newcomer, None
        if newcomer is not None:
            newcomer.change.settle(error)

    def _append(self, state: LeaderState, voters: VoterSet, change: _Change) -> None:
        offset = state.accumulator.append_control_messages([voters.to_voters_record()])
        wait_ms = self._context.config.quorum_request_timeout_ms
        committed = self._context.appends.await_threshold(offset, wait_ms)
        committed.add_done_callback(lambda done: change.settle(done.exception()))

    # ---- answers ------------------------------------------------------------------------------------------

    def _update_answer(self, error: KreplicaError | None) -> UpdateRaftVoterResponse:
        quorum = self._context.quorum
        return UpdateRaftVoterResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode(0 if error is None else error.code),
            current_leader=CurrentLeader(
                leader_id=or_no_node(quorum.leader_id), leader_epoch=quorum.epoch, host="", port=0
            ),
        )


def _plain_answer(kind: Any, error: KreplicaError | None) -> Any:
    return kind(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(0 if error is None else error.code),
        error_message=None if error is None else str(error),
    )
