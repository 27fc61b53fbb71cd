"""QuorumState: the current state of a member of the quorum, and the part of it that must be on disk.

Every transition goes through here. An illegal one raises IllegalQuorumTransition and changes nothing. The
election is written to disk before the transition returns, so that later answers and messages may rely on it:
a promised vote survives a crash. If the write fails (StorageFull), the transition has not happened. Epochs
never go back. Thread rule: the client's loop; any thread may read `state`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from kreplica.common.dataclass import replace
from kreplica.common.errors import IllegalQuorumTransition, InconsistentClusterId, InconsistentVoterSet
from kreplica.common.ports import Clock, Random, Storage, monotonic_ms
from kreplica.common.quorum_state import (
    FILE_NAME,
    LAST_EPOCH,
    NO_NODE,
    RECOVER,
    QuorumStateData,
    format_quorum_state,
    parse_quorum_state,
)
from kreplica.common.types import Uuid
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.epoch_state import (
    NEVER_MS,
    CandidateState,
    EpochState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
    same_replica,
)
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import ReplicaKey, VoterSet

LOGGER = logging.getLogger(__name__)
# In a first election each voter waits for the one before it: the election timeout divided by this.
FIRST_ELECTION_PART = 5
# Far more than the state of any election takes.
MAX_BYTES = 1 << 20


class FileBasedStateStore:
    """The file `quorum-state` in the metadata log's directory, which must exist; both versions of its data.

    It holds promises made to other nodes. A file that cannot be read stops the node, since the node may have
    voted in an epoch that it cannot remember.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.path = f"{directory}/{FILE_NAME}"

    def read(self) -> QuorumStateData | None:
        """Return the state that was last written; None if nothing was written.

        Raises InvalidFile, UnsupportedVersion, KafkaStorageError, and then changes nothing.
        """
        if not self._storage.exists(self.path):
            return None
        return parse_quorum_state(self._storage.read_file(self.path, MAX_BYTES), self.path)

    def write(self, state: QuorumStateData) -> None:
        """Write the state to disk. After a KafkaStorageError, either the old or the new state is stored."""
        self._storage.write_file_atomically(self.path, format_quorum_state(state))


class QuorumState:
    """The state of one member, and its transitions.

    `voters()`: the current voters. `kraft_version()`: 1 if voters can be added and removed; it also
    selects the file's version. `may_be_elected()`: whether this node is a voter, or was removed by a record
    that only it may have.

    `on_change(old, new)` is called after each transition, `about_to_wait()` before a write to disk.
    """

    def __init__(
        self,
        local_key: ReplicaKey,
        cluster_id: str,
        store: FileBasedStateStore,
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

    # ---- properties ---------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    @property
    def is_voter(self) -> bool:
        """Whether this node, with this directory, is a voter."""
        return self._voters().contains(self.local_key)

    @property
    def is_electable(self) -> bool:
        """Whether this node takes part in elections. If not, it is an observer."""
        return self._may_be_elected()

    @property
    def is_sole_voter(self) -> bool:
        return self.is_voter and len(self._voters().voters) == 1

    def others(self) -> list[int]:
        """Return the ids of the other voters, sorted."""
        return [voter for voter in sorted(self._voters().voters) if voter != self.local_key.node_id]

    def now_ms(self) -> int:
        """Return the time on the clock of all deadlines, in ms."""
        return monotonic_ms(self._clock)

    def random_election_timeout_ms(self) -> int:
        timeout_ms = self._config.quorum_election_timeout_ms
        return timeout_ms + self._random.randrange(timeout_ms)

    def _first_election_deadline(self) -> int:
        # As far as this node knows there never was a leader, so it does not wait for one. Pre-votes find out.
        # The voters of a new quorum often start together: in turn they do not compete for each other's votes.
        if not self.is_electable:
            return NEVER_MS
        before = sum(voter < self.local_key.node_id for voter in self._voters().voters)
        return self.now_ms() + before * self._config.quorum_election_timeout_ms // FIRST_ELECTION_PART

    # ---- start --------------------------------------------------------------------------------------------

    def initialize(self, last_fetched_epoch: int) -> None:
        """Restore the stored election. `last_fetched_epoch`: the epoch of the log's last record.

        Raises the store's errors if it cannot be read, InconsistentClusterId or InconsistentVoterSet if it
        belongs to a different quorum. Nothing on disk is changed then.
        """
        stored = self._store.read()
        if stored is not None:
            configured = self._voters().voters if self._kraft_version() == 0 else ()
            require_own(stored, self._cluster_id, configured)
        data = stored or QuorumStateData(0)
        # No file says the same as one without epoch, leader and vote.
        self._written = stored or self._formatted(data)
        if data.leader_epoch < last_fetched_epoch:
            # The stored epoch is older than the log's. As far as is known, this node promised nothing in the
            # log's epoch.
            self._enter(UnattachedState(last_fetched_epoch, deadline_ms=self._election_deadline()))
        elif data.leader_id == self.local_key.node_id:
            # This node has led the epoch and may not know how far it got. It neither leads it again nor votes
            # in it.
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
        # A vote of this id with another directory was given by a different node or by a lost disk.
        voted = _voted_key(data)
        return voted is not None and self.is_voter and same_replica(voted, self.local_key)

    # ---- transitions --------------------------------------------------------------------------------------

    def transition_to_unattached(self, epoch: int, vote: ReplicaKey | None = None) -> None:
        """Enter a new epoch whose leader is unknown, or return from Prospective to an epoch without a leader.

        `vote`: the replica that this node votes for in the new epoch. It is written together with the epoch.
        """
        state = self.state
        if epoch < state.epoch or (epoch == state.epoch and not isinstance(state, ProspectiveState)):
            raise self._illegal(f"Unattached in epoch {epoch}")
        if epoch == state.epoch and state.leader_id is not None:
            raise self._illegal("Unattached: the leader of this epoch is known")
        if vote is not None:
            if epoch == state.epoch:
                raise self._illegal(f"a voter for {vote.node_id} again")
            self._enter_with_vote(epoch, vote)
            return
        # Keep a timer that is running. Otherwise a node that keeps raising epochs could block all elections.
        deadline_ms = self._election_deadline()
        if isinstance(state, UnattachedState):
            deadline_ms = min(deadline_ms, state.deadline_ms) if self.is_electable else deadline_ms
        voted_key = state.voted_key if epoch == state.epoch else None
        self._enter(UnattachedState(epoch, voted_key=voted_key, deadline_ms=deadline_ms))

    def note_vote(self, candidate: ReplicaKey) -> None:
        """Record this node's vote for `candidate` in the current epoch, on disk."""
        state = self.state
        if not isinstance(state, (UnattachedState, ProspectiveState)) or state.leader_id is not None:
            raise self._illegal(f"a voter for {candidate.node_id}")
        if state.voted_key is not None:
            if not same_replica(state.voted_key, candidate):
                raise self._illegal(f"a voter for {candidate.node_id} as well")
            return
        self._enter_with_vote(state.epoch, candidate)

    def _enter_with_vote(self, epoch: int, candidate: ReplicaKey) -> None:
        # A node that has voted waits for one election timeout before it starts an election itself.
        deadline_ms = self._election_deadline()
        self._enter(UnattachedState(epoch, voted_key=candidate, deadline_ms=deadline_ms))

    def transition_to_prospective(self, retries: int = 0) -> None:
        """Start to ask the voters for pre-votes."""
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
        """Begin the next epoch and vote for this node itself."""
        state = self.state
        is_sole = self.is_sole_voter and not isinstance(state, LeaderState)
        if not self.is_electable or not (isinstance(state, ProspectiveState) or is_sole):
            raise self._illegal("Candidate")
        retries = state.retries + 1 if isinstance(state, ProspectiveState) else 1
        self._enter(self._candidate(self.next_epoch(), retries))

    def transition_to_leader(self, epoch_start_offset: int, accumulator: BatchAccumulator) -> LeaderState:
        """Become the leader of the epoch that this node has won."""
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
        """Follow the leader of this epoch or of a later one."""
        state = self.state
        is_known = epoch == state.epoch and state.leader_id is not None
        if epoch < state.epoch or leader_id == self.local_key.node_id:
            raise self._illegal(f"Follower of {leader_id} in epoch {epoch}")
        if epoch == state.epoch and isinstance(state, (LeaderState, ResignedState)):
            raise self._illegal(f"Follower of {leader_id} in an epoch that it led itself")
        if is_known and (state.leader_id != leader_id or isinstance(state, FollowerState)):
            raise self._illegal(f"Follower of {leader_id}: another leader of this epoch is known")
        voted_key = state.voted_key if epoch == state.epoch else None
        self._enter(self._following(epoch, leader_id, voted_key))

    def transition_to_resigned(self, preferred_successors: Sequence[ReplicaKey]) -> None:
        """Give up the leadership."""
        if not isinstance(self.state, LeaderState):
            raise self._illegal("Resigned")
        self._enter(self._resigned(self.state.epoch, preferred_successors))

    # ---- helpers ------------------------------------------------------------------------------------------

    def next_epoch(self) -> int:
        """Return the next epoch.

        Raises IllegalQuorumTransition if it would not fit an int32. Such an epoch must never be written,
        since no start could read it.
        """
        if self.state.epoch >= LAST_EPOCH:
            raise self._illegal(f"a member of an epoch above {LAST_EPOCH}. {RECOVER}")
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
        former = self.state
        assert state.epoch >= former.epoch, (former, state)
        if state.epoch == former.epoch:
            # An epoch has one leader, and this node votes once in it.
            assert former.leader_id is None or state.leader_id in (None, former.leader_id), (former, state)
            assert former.voted_key is None or state.voted_key == former.voted_key, (former, state)
        self._persist(state.election())
        self.state = state
        LOGGER.debug("node %d: %r, before %r", self.local_key.node_id, state, former)
        self._on_change(former, state)

    def _persist(self, election: QuorumStateData) -> None:
        election = self._formatted(election)
        if election != self._written:
            self._about_to_wait()
            # If the write fails, either election may be on disk.
            self._written = None
            self._store.write(election)
            self._written = election

    def _formatted(self, election: QuorumStateData) -> QuorumStateData:
        """Return the election as the file's current version holds it."""
        if self._kraft_version() > 0:
            return election
        voters = tuple(sorted(self._voters().voters))
        return replace(election, voted_directory_id=Uuid.ZERO, current_voters=voters, data_version=0)

    def _illegal(self, what: str) -> IllegalQuorumTransition:
        return IllegalQuorumTransition(f"node {self.local_key.node_id}, {self.state!r}, cannot become {what}")


def _voted_key(data: QuorumStateData) -> ReplicaKey | None:
    return None if data.voted_id == NO_NODE else ReplicaKey(data.voted_id, data.voted_directory_id)


def require_own(
    stored: QuorumStateData, cluster_id: str, configured: Iterable[int], where: str = FILE_NAME
) -> None:
    """Raise InconsistentClusterId or InconsistentVoterSet if a stored election belongs to a different quorum.

    `configured`: the voters' ids if the configuration names them, else empty. `where`: used in the message.
    """
    if stored.cluster_id and stored.cluster_id != cluster_id:
        raise InconsistentClusterId(
            f"{where} belongs to cluster {stored.cluster_id}, but this node to cluster {cluster_id}:"
            " check the node's log directories"
        )
    wanted = sorted(configured)
    if wanted and stored.current_voters and sorted(stored.current_voters) != wanted:
        raise InconsistentVoterSet(f"{where} names the voters {sorted(stored.current_voters)}, not {wanted}")
