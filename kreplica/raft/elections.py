"""Elections: how a member of the quorum votes, stands for election and learns of a new leader.

A voter that hears from no leader first asks whether it would be elected (Prospective, KIP-996). It then
begins an epoch and asks for votes (Candidate). If it loses, it waits for a random time, so that two
candidates do not collide again. A leader that resigns notifies all voters. Thread rule: the client's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.errors import FencedLeaderEpoch, InvalidRequest, KreplicaError
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import (
    NEVER_MS,
    CandidateState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.raft_messages import (
    key_of,
    make_begin_response,
    make_end_request,
    make_end_response,
    make_vote_request,
    make_vote_response,
    standing_in,
)
from kreplica.raft.voter_set import ReplicaKey

BACKOFF_BASE_MS = 100
MOST_DOUBLINGS = 21


class Elections:
    """The elections in which one member takes part.

    `become_leader()`: called when this candidate has won. `find_leader()`: asks any voter for the leader, and
    returns in how many ms to call again.
    """

    def __init__(
        self, context: RaftContext, become_leader: Callable[[], None], find_leader: Callable[[], int]
    ) -> None:
        self._context = context
        self._quorum = context.quorum
        self._become_leader = become_leader
        self._find_leader = find_leader

    # ---- steps --------------------------------------------------------------------------------------------

    def poll_unattached(self, state: UnattachedState, now_ms: int) -> int:
        """Wait for a leader until the election timeout. Returns in how many ms to call again."""
        if not self._quorum.is_electable:
            return self._find_leader()
        if self._context.shutdown_until_ms is not None:
            return NEVER_MS
        if self._quorum.is_sole_voter:
            self._begin_candidacy()
            return 0
        if state.has_timed_out(now_ms):
            self._quorum.transition_to_prospective()
            return 0
        return state.remaining_ms(now_ms)

    def poll_prospective(self, state: ProspectiveState, now_ms: int) -> int:
        """Ask for pre-votes until a majority has granted or refused them. Returns in how many ms to call
        again.
        """
        if state.votes.is_lost or state.has_timed_out(now_ms):
            self._end_pre_vote(state)
            return 0
        if state.votes.is_won:
            self._begin_candidacy()
            return 0
        return min(self._request_votes(state.votes.unrecorded, pre_vote=True), state.remaining_ms(now_ms))

    def _end_pre_vote(self, state: ProspectiveState) -> None:
        if state.leader_id is not None:
            self._quorum.transition_to_follower(state.epoch, state.leader_id)
        else:
            self._quorum.transition_to_unattached(state.epoch)

    def _begin_candidacy(self) -> None:
        # The end of the log that the vote request claims must survive a crash. A voter that has granted its
        # vote grants it again to the same candidate, even if the candidate's log has become shorter
        # meanwhile.
        log = self._context.log
        if log.flushed_offset < log.end_offset:
            log.flush()
        self._quorum.transition_to_candidate()

    def poll_candidate(self, state: CandidateState, now_ms: int) -> int:
        """Ask for votes; back off if the election is lost. Returns in how many ms to call again."""
        if state.votes.is_won:
            self._become_leader()
            return 0
        if state.backoff_until_ms is not None:
            if now_ms >= state.backoff_until_ms:
                self._quorum.transition_to_prospective(state.retries)
                return 0
            return state.backoff_until_ms - now_ms
        if state.votes.is_lost or state.has_timed_out(now_ms):
            state.backoff_until_ms = now_ms + self._random_backoff_ms(state.retries)
            return 0
        return min(self._request_votes(state.votes.unrecorded, pre_vote=False), state.remaining_ms(now_ms))

    def _random_backoff_ms(self, retries: int) -> int:
        # Any time up to the limit: of a few fixed times, candidates that lost together often draw the same.
        limit_ms = self._context.config.quorum_election_backoff_max_ms
        limit_ms = min(BACKOFF_BASE_MS << min(MOST_DOUBLINGS, retries), limit_ms)
        return self._context.random.randrange(limit_ms + 1)

    def poll_resigned(self, state: ResignedState, now_ms: int) -> int:
        """Notify the voters of the resignation; join the next election later. Returns in how many ms to call
        again.
        """
        wait_ms = self._context.requests.maybe_send_to_all(
            sorted(state.unacknowledged),
            lambda _: make_end_request(
                self._context.cluster_id,
                self._context.key.node_id,
                state.epoch,
                state.preferred_successors,
            ),
            partial(self._end_answered, state),
        )
        if self._context.shutdown_until_ms is not None:
            return wait_ms
        if self._quorum.is_sole_voter or state.has_timed_out(now_ms):
            # A node can neither follow nor vote in an epoch that it has led.
            self._quorum.transition_to_unattached(self._quorum.next_epoch())
            return 0
        return min(wait_ms, state.remaining_ms(now_ms))

    # ---- requests for votes -------------------------------------------------------------------------------

    def _request_votes(self, voters: list[int], *, pre_vote: bool) -> int:
        epoch, log_end = self._quorum.epoch, self._context.log_end()

        def build(node_id: int) -> Any:
            context = self._context
            voter = context.voter_key(node_id)
            return make_vote_request(
                context.cluster_id, voter, context.key, epoch, log_end, pre_vote=pre_vote
            )

        return self._context.requests.maybe_send_to_all(
            voters, build, partial(self._vote_answered, epoch, pre_vote)
        )

    def _vote_answered(self, epoch: int, pre_vote: bool, voter: int, response: Any) -> None:
        answer = self._context.part_for_us(voter, response)
        if answer is None:
            return
        standing = standing_in(answer)
        if not self._context.take_standing(voter, standing) or standing.error_code:
            self._context.requests.back_off(voter)
            return
        state = self._quorum.state
        wanted = ProspectiveState if pre_vote else CandidateState
        if isinstance(state, wanted) and state.epoch == epoch:
            state.votes.record(voter, bool(answer.vote_granted))

    def _end_answered(self, state: ResignedState, voter: int, response: Any) -> None:
        answer = self._context.part_for_us(voter, response)
        if answer is None:
            return
        standing = standing_in(answer)
        self._context.take_standing(voter, standing)
        if standing.error_code:
            self._context.requests.back_off(voter)
        else:
            state.unacknowledged.discard(voter)

    # ---- requests -----------------------------------------------------------------------------------------

    def handle_vote(self, request: Any, asked: Any) -> Any:
        """Handle Vote (52): grant one vote per epoch, to a log at least as long as ours.

        A pre-vote that is granted binds neither side.
        """
        candidate = key_of(asked.replica_id, asked.replica_directory_id)
        is_pre_vote = bool(asked.pre_vote)
        try:
            self._check_vote(request, asked, candidate)
        except KreplicaError as error:
            return make_vote_response(self._context.standing(error), granted=False)
        self._context.requests.note_contact(candidate.node_id)
        epoch = int(asked.replica_epoch)
        is_up_to_date = self._context.is_up_to_date(
            OffsetAndEpoch(int(asked.last_offset), int(asked.last_offset_epoch))
        )
        if epoch > self._quorum.epoch:
            # A pre-vote counts as well: its sender is in that epoch and can follow no leader of an earlier
            # one (KIP-996). In a new epoch this node has not voted yet. The epoch and the vote are written to
            # disk together.
            has_vote = is_up_to_date and not is_pre_vote
            self._quorum.transition_to_unattached(epoch, candidate if has_vote else None)
            return make_vote_response(self._context.standing(), granted=is_up_to_date)
        granted = self._quorum.state.can_grant_vote(
            candidate, is_log_up_to_date=is_up_to_date, is_pre_vote=is_pre_vote
        )
        if granted and not is_pre_vote:
            self._quorum.note_vote(candidate)
        return make_vote_response(self._context.standing(), granted=granted)

    def _check_vote(self, request: Any, asked: Any, candidate: ReplicaKey) -> None:
        context = self._context
        last_epoch, epoch = asked.last_offset_epoch, asked.replica_epoch
        is_late = last_epoch > epoch if asked.pre_vote else last_epoch >= epoch
        if asked.last_offset < 0 or last_epoch < 0 or is_late:
            raise InvalidRequest(
                f"invalid vote request in epoch {epoch} for a log that ends at offset {asked.last_offset} in"
                f" epoch {last_epoch}"
            )
        context.require_own_key(key_of(request.voter_id, asked.voter_directory_id))
        context.require_voters(candidate.node_id)
        self._require_epoch(epoch)

    def _require_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch if a request's epoch is over, and InvalidRequest if it is far ahead."""
        context, known = self._context, self._quorum.epoch
        context.require_plausible(epoch)
        if epoch < known:
            raise FencedLeaderEpoch(f"epoch {epoch} is over; this node is in epoch {known}")
        context.epochs.spend(epoch - known, context.now_ms())

    def handle_begin(self, request: Any, notice: Any) -> Any:
        """Handle BeginQuorumEpoch (53): a node has become the leader of an epoch."""
        context = self._context
        try:
            context.require_own_key(key_of(request.voter_id, notice.voter_directory_id))
            epoch, leader_id = int(notice.leader_epoch), int(notice.leader_id)
            context.require_voters(leader_id)
            context.require_reachable(leader_id, request.leader_endpoints)
            self._require_epoch(epoch)
            self._follow(epoch, leader_id)
            context.learn_leader(leader_id, request.leader_endpoints)
        except KreplicaError as error:
            return make_begin_response(context.standing(error))
        return make_begin_response(context.standing())

    def _follow(self, epoch: int, leader_id: int) -> None:
        state = self._quorum.state
        if epoch > state.epoch:
            self._quorum.transition_to_follower(epoch, leader_id)
            return
        if isinstance(state, (LeaderState, ResignedState)) or state.leader_id not in (None, leader_id):
            raise InvalidRequest(
                f"node {leader_id} claims to lead epoch {epoch}, but this node knows another leader: {state}"
            )
        if not isinstance(state, FollowerState):
            self._quorum.transition_to_follower(epoch, leader_id)

    def handle_end(self, _: Any, notice: Any) -> Any:
        """Handle EndQuorumEpoch (54): the leader has resigned. Its first preferred successor starts an
        election.
        """
        context, epoch, leader_id = self._context, int(notice.leader_epoch), int(notice.leader_id)
        try:
            context.require_voters(leader_id)
            self._require_epoch(epoch)
            state = self._quorum.state
            if epoch > state.epoch:
                # The leader of this new epoch has already resigned, so there is no leader to follow.
                self._quorum.transition_to_unattached(epoch)
            elif isinstance(state, (LeaderState, ResignedState)) or state.leader_id not in (None, leader_id):
                raise InvalidRequest(
                    f"node {leader_id} says that it led epoch {epoch}, but this node knows another leader:"
                    f" {state}"
                )
            state = self._quorum.state
            if isinstance(state, FollowerState) and self._quorum.is_electable:
                state.leader_has_left = True
                state.expire_by(context.now_ms() + self._succession_ms(notice.preferred_candidates))
        except KreplicaError as error:
            return make_end_response(context.standing(error))
        return make_end_response(context.standing())

    def _succession_ms(self, preferred: Any) -> int:
        """Return how long this voter waits before an election: longer the later it is in the list."""
        most_ms = self._context.config.quorum_election_backoff_max_ms
        ids = [int(each.candidate_id) for each in preferred]
        own = self._context.key.node_id
        if not ids:
            # A leader that was restarted names no successors. A random wait keeps the voters apart.
            return self._context.random.randrange(most_ms + 1)
        if own not in ids:
            return most_ms
        position = ids.index(own)
        return 0 if position == 0 else min(BACKOFF_BASE_MS << min(position - 1, MOST_DOUBLINGS), most_ms)
