"""QuorumState: how a member starts again, its legal transitions, and the file quorum-state."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kreplica.common.errors import (
    IllegalQuorumTransition,
    InconsistentClusterId,
    InconsistentVoterSet,
    InvalidFile,
    StorageIOError,
    UnsupportedVersion,
)
from kreplica.common.quorum_state import QuorumStateData
from kreplica.common.types import Uuid
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.epoch_state import (
    CandidateState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from kreplica.raft.quorum_state import FIRST_ELECTION_PART, FileBasedStateStore, QuorumState
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.scheduler import VirtualClock
from kreplica.sim.storage import SimStorage

OWN = ReplicaKey(1, Uuid(b"directory-------"))
OTHERS = [ReplicaKey(node_id, Uuid(bytes([node_id]) * 16)) for node_id in (2, 3)]


@dataclass
class Store:
    """Keeps what is written, and how often it was."""

    stored: QuorumStateData | None = None
    writes: list[QuorumStateData] = field(default_factory=list)

    def read(self):
        return self.stored

    def write(self, state):
        self.stored = state
        self.writes.append(state)


def made(stored=None, *, key=OWN, voters=(OWN, *OTHERS), kraft_version=1, last_epoch=0):
    clock = VirtualClock()
    voter_set = VoterSet(VoterNode(voter, (), 0, 1) for voter in voters)
    quorum = QuorumState(
        key,
        "cluster",
        Store(stored),
        RaftConfig(),
        voters=lambda: voter_set,
        kraft_version=lambda: kraft_version,
        may_be_elected=lambda: voter_set.contains(key),
        clock=clock,
        random=random.Random(1),
        on_change=lambda *_: None,
        about_to_wait=lambda: None,
    )
    quorum.initialize(last_epoch)
    return quorum


def leading():
    quorum = made()
    quorum.transition_to_prospective()
    quorum.transition_to_candidate()
    quorum.state.votes.record(2, True)
    quorum.transition_to_leader(5, BatchAccumulator(1, 5, clock=VirtualClock()))
    return quorum


# ---- the start ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (None, UnattachedState),
        (QuorumStateData(4), UnattachedState),
        (QuorumStateData(4, leader_id=1, voted_id=1, voted_directory_id=OWN.directory_id), ResignedState),
        (QuorumStateData(4, voted_id=1, voted_directory_id=OWN.directory_id), CandidateState),
        (QuorumStateData(4, voted_id=1, voted_directory_id=Uuid(b"another disk----")), UnattachedState),
        (QuorumStateData(4, voted_id=2, voted_directory_id=OTHERS[0].directory_id), UnattachedState),
        (QuorumStateData(4, leader_id=2), FollowerState),
    ],
)
def test_a_member_comes_back_as_what_it_was(stored, kind):
    quorum = made(stored)
    assert type(quorum.state) is kind
    assert quorum.epoch == (4 if stored else 0)


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_a_member_of_a_new_quorum_writes_nothing_until_it_votes(kraft_version):
    quorum = made(kraft_version=kraft_version)
    assert quorum._store.writes == []
    quorum.note_vote(OTHERS[0])
    assert [each.voted_id for each in quorum._store.writes] == [2]


def test_the_voters_of_a_new_quorum_stand_for_election_in_turn():
    deadlines = [made(key=key).state.deadline_ms for key in (OWN, *OTHERS)]
    step_ms = RaftConfig().quorum_election_timeout_ms // FIRST_ELECTION_PART
    assert [each - deadlines[0] for each in deadlines] == [0, step_ms, 2 * step_ms]
    assert made().state.has_timed_out(made().now_ms())


def test_a_vote_is_remembered():
    quorum = made(QuorumStateData(4, voted_id=2, voted_directory_id=OTHERS[0].directory_id))
    for candidate, granted in zip(OTHERS, (True, False), strict=True):
        asked = {"is_log_up_to_date": True, "is_pre_vote": False}
        assert quorum.state.can_grant_vote(candidate, **asked) is granted


def test_a_log_of_a_later_epoch_than_what_was_stored_decides():
    quorum = made(QuorumStateData(4, leader_id=1), last_epoch=6)
    assert type(quorum.state) is UnattachedState
    assert quorum.epoch == 6


def test_a_leader_that_restarts_does_not_claim_to_lead():
    quorum = made(QuorumStateData(4, leader_id=1))
    assert quorum.leader_id is None
    # And it does so after the next restart, too.
    assert quorum._store.read().leader_id == 1


def test_an_observer_waits_for_a_leader_and_never_for_an_election():
    quorum = made(key=ReplicaKey(9, OWN.directory_id))
    assert not quorum.state.has_timed_out(10**9)
    with pytest.raises(IllegalQuorumTransition):
        quorum.transition_to_prospective()


def test_the_state_of_another_quorum_is_refused_and_left_as_it_is():
    for foreign, error in (
        (QuorumStateData(4, cluster_id="another", data_version=0), InconsistentClusterId),
        (QuorumStateData(4, current_voters=(1, 2), data_version=0), InconsistentVoterSet),
    ):
        store = Store(foreign)
        with pytest.raises(error):
            made_with(store)
        assert store.writes == []


def made_with(store):
    voters = VoterSet(VoterNode(ReplicaKey(voter), (), 0, 0) for voter in (1, 2, 3))
    QuorumState(
        ReplicaKey(1),
        "cluster",
        store,
        RaftConfig(),
        voters=lambda: voters,
        kraft_version=lambda: 0,
        may_be_elected=lambda: True,
        clock=VirtualClock(),
        random=random.Random(1),
        on_change=lambda *_: None,
        about_to_wait=lambda: None,
    ).initialize(0)


# ---- transitions ----------------------------------------------------------------------------------------


def test_an_election_that_is_won_goes_through_its_states_and_is_stored():
    quorum = leading()
    assert isinstance(quorum.state, LeaderState)
    stored = [(each.leader_epoch, each.leader_id, each.voted_id) for each in quorum._store.writes]
    # A pre-vote promises nothing, so it is not written.
    assert stored == [(1, -1, 1), (1, 1, 1)]


def test_a_candidate_does_not_lead_without_a_majority():
    quorum = made()
    quorum.transition_to_prospective()
    quorum.transition_to_candidate()
    with pytest.raises(IllegalQuorumTransition):
        quorum.transition_to_leader(0, BatchAccumulator(1, 0, clock=VirtualClock()))


def test_a_vote_is_given_once():
    quorum = made()
    quorum.note_vote(OTHERS[0])
    assert quorum._store.stored.voted_id == 2
    quorum.note_vote(OTHERS[0])
    with pytest.raises(IllegalQuorumTransition):
        quorum.note_vote(OTHERS[1])


def test_an_epoch_begins_with_its_vote_in_one_write():
    quorum = made()
    quorum.transition_to_unattached(5, OTHERS[0])
    assert [(each.leader_epoch, each.voted_id) for each in quorum._store.writes] == [(5, 2)]
    with pytest.raises(IllegalQuorumTransition):
        quorum.note_vote(OTHERS[1])
    with pytest.raises(IllegalQuorumTransition):
        quorum.transition_to_unattached(5, OTHERS[1])


def test_what_is_illegal_changes_nothing():
    quorum = leading()
    state, stored = quorum.state, quorum._store.stored
    for attempt in (
        lambda: quorum.transition_to_follower(1, 2),
        lambda: quorum.transition_to_follower(0, 2),
        lambda: quorum.transition_to_follower(2, 1),
        lambda: quorum.transition_to_unattached(1),
        lambda: quorum.transition_to_unattached(0),
        lambda: quorum.transition_to_prospective(),
        lambda: quorum.transition_to_candidate(),
        lambda: quorum.note_vote(OTHERS[0]),
    ):
        with pytest.raises(IllegalQuorumTransition):
            attempt()
        assert quorum.state is state
        assert quorum._store.stored is stored


def test_a_follower_knows_one_leader_in_an_epoch():
    quorum = made()
    quorum.transition_to_follower(3, 2)
    with pytest.raises(IllegalQuorumTransition):
        quorum.transition_to_follower(3, 3)
    quorum.transition_to_follower(4, 3)
    assert quorum._store.stored == QuorumStateData(4, leader_id=3)


def test_a_prospective_that_is_refused_follows_its_leader_again():
    quorum = made()
    quorum.transition_to_follower(3, 2)
    quorum.transition_to_prospective()
    assert isinstance(quorum.state, ProspectiveState)
    assert not quorum.state.can_grant_vote(OTHERS[1], is_log_up_to_date=True, is_pre_vote=False)
    assert quorum.state.can_grant_vote(OTHERS[1], is_log_up_to_date=True, is_pre_vote=True)
    quorum.transition_to_follower(3, 2)
    assert isinstance(quorum.state, FollowerState)


def test_a_leader_that_resigns_stays_in_its_epoch():
    quorum = leading()
    quorum.transition_to_resigned([OTHERS[1]])
    assert isinstance(quorum.state, ResignedState)
    assert quorum.epoch == 1
    assert quorum.state.unacknowledged == {2, 3}
    quorum.transition_to_unattached(2)
    assert quorum.epoch == 2


# ---- the leader's counts --------------------------------------------------------------------------------


def test_the_mark_is_what_a_majority_has_above_the_epochs_start():
    state = leading().state
    for node_id, offset in ((2, 5), (3, 4)):
        state.voters[node_id].note_fetch(offset, 9, 0, 0)
    assert not state.update_high_watermark(9)
    assert state.high_watermark is None
    state.voters[3].note_fetch(7, 9, 0, 0)
    assert state.update_high_watermark(9)
    assert state.high_watermark == 7
    # A voter that was wiped begins anew; what is committed stays it.
    state.voters[3].note_fetch(0, 9, 0, 0)
    assert not state.update_high_watermark(9)
    assert state.high_watermark == 7


def test_a_leader_that_does_not_vote_counts_the_others_only():
    state = leading().state
    state.update_voters(VoterSet(VoterNode(key, (), 0, 1) for key in OTHERS))
    state.voters[2].note_fetch(9, 9, 0, 0)
    assert not state.update_high_watermark(9)
    state.voters[3].note_fetch(8, 9, 0, 0)
    assert state.update_high_watermark(9)
    assert state.high_watermark == 8


def test_check_quorum_ends_when_no_majority_is_heard_of():
    state = leading().state
    limit_ms = RaftConfig().check_quorum_timeout_ms
    assert state.has_timed_out(limit_ms)
    state.note_contact(OTHERS[0], limit_ms - 1)
    assert not state.has_timed_out(limit_ms)
    # Another disk of a voter, and the leader itself, are no voters to be heard of.
    state.note_contact(ReplicaKey(2, OWN.directory_id), 2 * limit_ms - 2)
    state.note_contact(OWN, 2 * limit_ms - 2)
    assert state.has_timed_out(2 * limit_ms - 1)


def test_what_is_known_of_an_observer_is_known_of_the_voter_it_becomes():
    state = leading().state
    newcomer = ReplicaKey(4, Uuid(b"4" * 16))
    progress = state.progress_of(newcomer)
    assert list(state.observers) == [newcomer]
    state.update_voters(VoterSet(VoterNode(key, (), 0, 1) for key in (OWN, *OTHERS, newcomer)))
    assert state.voters[4] is progress
    assert state.observers == {}
    state.update_voters(VoterSet(VoterNode(key, (), 0, 1) for key in (OWN, *OTHERS)))
    assert state.observers == {newcomer: progress}


DIRECTORY = "/data/__cluster_metadata-0"
FIRST = QuorumStateData(3, leader_id=1)
SECOND = QuorumStateData(4, voted_id=2, voted_directory_id=Uuid(b"x" * 16))


def machine() -> SimStorage:
    storage = SimStorage()
    storage.make_directory(DIRECTORY)
    storage.sync_directory("/data")
    storage.sync_directory("/")
    return storage


def test_a_new_node_knows_of_no_election() -> None:
    assert FileBasedStateStore(machine(), DIRECTORY).read() is None


@pytest.mark.parametrize(
    "state",
    [FIRST, SECOND, QuorumStateData(7, cluster_id="c", current_voters=(1, 2), data_version=0)],
)
def test_what_was_written_is_read(state: QuorumStateData) -> None:
    storage = machine()
    FileBasedStateStore(storage, DIRECTORY).write(state)
    assert FileBasedStateStore(storage, DIRECTORY).read() == state


def test_a_power_cut_leaves_the_former_or_the_new_one() -> None:
    class Cut(BaseException):
        pass

    steps, finished = 0, False
    while not finished:
        storage = machine()
        store = FileBasedStateStore(storage, DIRECTORY)
        store.write(FIRST)
        left = steps

        def before(_operation: str, _path: str) -> None:
            nonlocal left
            if left == 0:
                raise Cut
            left -= 1

        storage.before = before
        try:
            store.write(SECOND)
            finished = True
        except Cut:
            pass
        storage.before = None
        for seed in range(20):
            after = storage.after_power_cut(random.Random(seed))
            expected = (SECOND,) if finished else (FIRST, SECOND)
            assert FileBasedStateStore(after, DIRECTORY).read() in expected
        steps += 1
    assert steps > 3


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidFile),
        (b'{"leaderId":1', InvalidFile),
        (b"\0" * 90, InvalidFile),
        (b"x" * (2 << 20), InvalidFile),
        (b'{"leaderId":1,"leaderEpoch":3,"votedId":-1,"data_version":2}', UnsupportedVersion),
    ],
)
def test_one_that_cannot_be_read_stays_as_it_is(data: bytes, error: type[Exception]) -> None:
    storage = machine()
    storage.write_file(f"{DIRECTORY}/quorum-state", data)
    changes = len(storage.trace)
    with pytest.raises(error):
        FileBasedStateStore(storage, DIRECTORY).read()
    assert len(storage.trace) == changes


def test_a_refusal_of_the_disk_is_raised() -> None:
    storage = machine()

    def refuse(operation: str, path: str) -> None:
        raise StorageIOError(f"{operation} {path}")

    storage.before = refuse
    with pytest.raises(StorageIOError):
        FileBasedStateStore(storage, DIRECTORY).write(FIRST)
