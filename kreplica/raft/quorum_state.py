"""QuorumState: which state a member of the quorum is in, and what of it must be on disk.

Every transition goes through here. One that is illegal raises IllegalQuorumTransition and changes nothing.
The election is written before the transition returns, so whatever is answered or sent afterwards may depend
on it: who has promised a vote keeps the promise after a crash. A transition that could not be written
(StorageFull) has not happened. Epochs never go back. Thread rule: the client's loop; `state` may be looked at
from any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kreplica.common.errors import (
    IllegalQuorumTransition,
    InconsistentClusterId,
    InconsistentVoterSet,
)
from kreplica.common.ports import Clock, Random
from kreplica.common.quorum_state import FILE_NAME, LAST_EPOCH, NO_NODE, RECOVER, QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.candidate_state import CandidateState
from kreplica.raft.epoch_state import NEVER_MS, EpochState, same_replica
from kreplica.raft.follower_state import FollowerState
from kreplica.raft.leader_state import LeaderState
from kreplica.raft.prospective_state import ProspectiveState
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.replicated_log import QuorumStateStore
from kreplica.raft.resigned_state import ResignedState
from kreplica.raft.unattached_state import UnattachedState
from kreplica.raft.voter_set import ReplicaKey, VoterSet

LOGGER = logging.getLogger(__name__)
# The first election of all waits for this part of the election timeout at most.
FIRST_ELECTION_PART = 5


class QuorumState:
    """`voters()`: who votes now. `kraft_version()`: 1 where voters come and go; it names the file's version.
    `may_be_elected()`: whether this node is a voter, or may be the only one to know that it is none.

    `on_change(old, new)` is called after each transition, `about_to_wait()` before one is put on disk.
    """

    def __init__(
        self,
        local_key: ReplicaKey,
        cluster_id: str,
        store: QuorumStateStore,
        config: RaftConfig,
        *,
        voters: Callable[[], VoterSet],
        kraft_version: Callable[[], int],
        may_be_elected: Callable[[], bool],
        clock: Clock,
        random: Random,
        on_change: Callable[[EpochState, EpochState], None],
        about_to_wait: Callable[[], None],
    ) -> None:
        self.local_key = local_key
        self._cluster_id = cluster_id
        self._store = store
        self._config = config
        self._voters = voters
        self._kraft_version = kraft_version
        self._may_be_elected = may_be_elected
        self._clock = clock
        self._random = random
        self._on_change = on_change
        self._about_to_wait = about_to_wait
        self._written: QuorumStateData | None = None
        self.state: EpochState = UnattachedState(0)

    # ---- what holds ---------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    @property
    def is_voter(self) -> bool:
        """Whether this node, with this directory, votes."""
        return self._voters().contains(self.local_key)

    @property
    def is_electable(self) -> bool:
        """Whether this node takes part in elections; one that does not is an observer."""
        return self._may_be_elected()

    @property
    def is_sole_voter(self) -> bool:
        return self.is_voter and len(self._voters().voters) == 1

    def others(self) -> list[int]:
        """The ids of the other voters, sorted."""
        return [voter for voter in sorted(self._voters().voters) if voter != self.local_key.node_id]

    def now_ms(self) -> int:
        """The time that deadlines are told in."""
        return self._clock.monotonic_ns() // 1_000_000

    def random_election_timeout_ms(self) -> int:
        timeout_ms = self._config.quorum_election_timeout_ms
        return timeout_ms + self._random.randrange(timeout_ms)

    def _first_election_deadline(self) -> int:
        # Nobody was ever elected as far as this node knows, so no leader is waited for; pre-vote asks the
        # others.
        wait_ms = self._random.randrange(self._config.quorum_election_timeout_ms // FIRST_ELECTION_PART + 1)
        return self.now_ms() + wait_ms if self.is_electable else NEVER_MS

    # ---- the start ----------------------------------------------------------------------------------------

    def initialize(self, last_fetched_epoch: int) -> None:
        """Take up the election that was stored. `last_fetched_epoch`: of the log's last record.

        Raises what the store raises for one that cannot be read; InconsistentClusterId and
        InconsistentVoterSet where it is that of another quorum. Nothing is changed on disk then.
        """
        stored = self._store.read()
        if stored is not None:
            configured = self._voters().voters if self._kraft_version() == 0 else ()
            require_own(stored, self._cluster_id, configured)
            self._written = stored
        data = stored or QuorumStateData(0)
        if data.leader_epoch < last_fetched_epoch:
            # What was stored is older than the log: nothing was promised in the log's epoch as far as known.
            self._enter(UnattachedState(last_fetched_epoch, deadline_ms=self._election_deadline()))
        elif data.leader_id == self.local_key.node_id:
            # It has led this epoch, and may not know how far: it never leads it again, nor lets another.
            self._enter(self._resigned(data.leader_epoch, ()))
        elif data.leader_id != NO_NODE:
            self._enter(self._following(data.leader_epoch, data.leader_id, _voted_key(data)))
        elif self._has_voted_for_itself(data):
            self._enter(self._candidate(data.leader_epoch))
        else:
            deadline_ms = self._election_deadline() if stored else self._first_election_deadline()
            self._enter(
                UnattachedState(data.leader_epoch, voted_key=_voted_key(data), deadline_ms=deadline_ms)
            )

    def _has_voted_for_itself(self, data: QuorumStateData) -> bool:
        # A vote of this id and another directory was given by somebody else, or by a disk that is gone.
        voted = _voted_key(data)
        return voted is not None and self.is_voter and same_replica(voted, self.local_key)

    # ---- transitions --------------------------------------------------------------------------------------

    def transition_to_unattached(self, epoch: int, vote: ReplicaKey | None = None) -> None:
        """Another epoch has begun, and its leader is not known; or the leader of this one never was.

        `vote`: to whom this node gives its vote in the new epoch at once, which is written with it.
        """
        state = self.state
        if epoch < state.epoch or (epoch == state.epoch and not isinstance(state, ProspectiveState)):
            raise self._illegal(f"Unattached in epoch {epoch}")
        if epoch == state.epoch and state.leader_id is not None:
            raise self._illegal("Unattached, though the leader is known")
        if vote is not None:
            if epoch == state.epoch:
                raise self._illegal(f"a voter for {vote.node_id} once more")
            self._enter_with_vote(epoch, vote)
            return
        # A timer that runs already goes on: else whoever inflates epochs could keep all from their elections.
        deadline_ms = self._election_deadline()
        if isinstance(state, UnattachedState):
            deadline_ms = min(deadline_ms, state.deadline_ms) if self.is_electable else deadline_ms
        voted_key = state.voted_key if epoch == state.epoch else None
        self._enter(UnattachedState(epoch, voted_key=voted_key, deadline_ms=deadline_ms))

    def note_vote(self, candidate: ReplicaKey) -> None:
        """Give this node's vote in the epoch to `candidate`."""
        state = self.state
        if not isinstance(state, (UnattachedState, ProspectiveState)) or state.leader_id is not None:
            raise self._illegal(f"a vote for {candidate.node_id}")
        if state.voted_key is not None:
            if not same_replica(state.voted_key, candidate):
                raise self._illegal(f"a second vote, for {candidate.node_id}")
            return
        self._enter_with_vote(state.epoch, candidate)

    def _enter_with_vote(self, epoch: int, candidate: ReplicaKey) -> None:
        # Who has voted gives the candidate the time of an election.
        deadline_ms = self._election_deadline()
        self._enter(UnattachedState(epoch, voted_key=candidate, deadline_ms=deadline_ms))

    def transition_to_prospective(self, retries: int = 0) -> None:
        """Ask the voters whether they would elect this node."""
        state = self.state
        if not self.is_electable or isinstance(state, (LeaderState, ResignedState, ProspectiveState)):
            raise self._illegal("Prospective")
        self._enter(
            ProspectiveState(
                state.epoch,
                local_id=self.local_key.node_id,
                voters=self._voters().voters,
                leader_id=state.leader_id,
                voted_key=state.voted_key,
                deadline_ms=self._election_deadline(),
                retries=retries,
            )
        )

    def transition_to_candidate(self) -> None:
        """Begin the next epoch with a vote for itself."""
        state = self.state
        is_sole = self.is_sole_voter and not isinstance(state, LeaderState)
        if not self.is_electable or not (isinstance(state, ProspectiveState) or is_sole):
            raise self._illegal("Candidate")
        retries = state.retries + 1 if isinstance(state, ProspectiveState) else 1
        self._enter(self._candidate(self.next_epoch(), retries))

    def transition_to_leader(self, epoch_start_offset: int, accumulator: BatchAccumulator) -> LeaderState:
        """The voters have elected this node."""
        state = self.state
        if not isinstance(state, CandidateState) or not state.votes.is_won:
            raise self._illegal("Leader")
        leader = LeaderState(
            state.epoch,
            self.local_key,
            epoch_start_offset=epoch_start_offset,
            voters=self._voters(),
            granting_voters=state.votes.granting,
            accumulator=accumulator,
            now_ms=self.now_ms(),
            check_quorum_timeout_ms=self._config.check_quorum_timeout_ms,
        )
        self._enter(leader)
        return leader

    def transition_to_follower(self, epoch: int, leader_id: int) -> None:
        """Somebody else leads this epoch, or a later one."""
        state = self.state
        is_known = epoch == state.epoch and state.leader_id is not None
        if epoch < state.epoch or leader_id == self.local_key.node_id:
            raise self._illegal(f"Follower of {leader_id} in epoch {epoch}")
        if epoch == state.epoch and isinstance(state, (LeaderState, ResignedState)):
            raise self._illegal(f"Follower of {leader_id} in the epoch that it led itself")
        if is_known and (state.leader_id != leader_id or isinstance(state, FollowerState)):
            raise self._illegal(f"Follower of {leader_id}, though the leader is known")
        voted_key = state.voted_key if epoch == state.epoch else None
        self._enter(self._following(epoch, leader_id, voted_key))

    def transition_to_resigned(self, preferred_successors: Sequence[ReplicaKey]) -> None:
        """Lead no longer."""
        if not isinstance(self.state, LeaderState):
            raise self._illegal("Resigned")
        self._enter(self._resigned(self.state.epoch, preferred_successors))

    # ---- within -------------------------------------------------------------------------------------------

    def next_epoch(self) -> int:
        """The epoch after this one. Raises IllegalQuorumTransition where an int32 holds no later one: it must
        never be written, since no start could read it."""
        if self.state.epoch >= LAST_EPOCH:
            raise self._illegal(f"anything in an epoch after {LAST_EPOCH}: {RECOVER}")
        return self.state.epoch + 1

    def _election_deadline(self) -> int:
        return self.now_ms() + self.random_election_timeout_ms() if self.is_electable else NEVER_MS

    def _candidate(self, epoch: int, retries: int = 1) -> CandidateState:
        return CandidateState(
            epoch,
            local_key=self.local_key,
            voters=self._voters().voters,
            deadline_ms=self.now_ms() + self.random_election_timeout_ms(),
            retries=retries,
        )

    def _following(self, epoch: int, leader_id: int, voted_key: ReplicaKey | None) -> FollowerState:
        deadline_ms = self.now_ms() + self._config.quorum_fetch_timeout_ms
        state = FollowerState(epoch, leader_id, voted_key=voted_key, deadline_ms=deadline_ms)
        state.membership_due_ms = deadline_ms
        return state

    def _resigned(self, epoch: int, preferred_successors: Sequence[ReplicaKey]) -> ResignedState:
        return ResignedState(
            epoch,
            local_id=self.local_key.node_id,
            voters=self._voters().voters,
            voted_key=self.local_key,
            preferred_successors=preferred_successors,
            deadline_ms=self.now_ms() + self.random_election_timeout_ms(),
        )

    def _enter(self, state: EpochState) -> None:
        self._persist(state.election())
        former, self.state = self.state, state
        LOGGER.debug("node %d: %r, before %r", self.local_key.node_id, state, former)
        self._on_change(former, state)

    def _persist(self, election: QuorumStateData) -> None:
        if self._kraft_version() == 0:
            voters = tuple(sorted(self._voters().voters))
            election = replace(election, voted_directory_id=Uuid.ZERO, current_voters=voters, data_version=0)
        if election != self._written:
            self._about_to_wait()
            # Where the write fails, either may be what is stored.
            self._written = None
            self._store.write(election)
            self._written = election

    def _illegal(self, what: str) -> IllegalQuorumTransition:
        return IllegalQuorumTransition(f"node {self.local_key.node_id}, {self.state!r}, cannot become {what}")


def _voted_key(data: QuorumStateData) -> ReplicaKey | None:
    return None if data.voted_id == NO_NODE else ReplicaKey(data.voted_id, data.voted_directory_id)


def require_own(
    stored: QuorumStateData, cluster_id: str, configured: Iterable[int], where: str = FILE_NAME
) -> None:
    """Raise InconsistentClusterId or InconsistentVoterSet where what was stored is that of another quorum.

    `configured`: the voters' ids where the configuration names them, else nothing. `where` is for the text.
    """
    if stored.cluster_id and stored.cluster_id != cluster_id:
        raise InconsistentClusterId(
            f"{where} is of the cluster {stored.cluster_id}, and this node of {cluster_id}"
        )
    wanted = sorted(configured)
    if wanted and stored.current_voters and sorted(stored.current_voters) != wanted:
        raise InconsistentVoterSet(f"{where} names the voters {sorted(stored.current_voters)}, not {wanted}")
