"""Voters: single changes, overlapping majorities, any record, and the set in force at an offset."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidConfig, InvalidRecord, KreplicaError
from kreplica.common.types import Uuid
from kreplica.metadata.control_records import (
    KRaftVersionFeature,
    Voter,
    VoterEndpoint,
    VotersRecord,
    decode_control,
    encode_control,
)
from kreplica.raft.control_record_state_machine import KRaftControlRecordStateMachine
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet, VoterSetHistory
from kreplica.record.control import control_key
from kreplica.sim.quorum.sim_quorum import SimQuorum, directory_id_of

DIRECTORIES = [Uuid(bytes([n]) * 16) for n in range(1, 4)]


def node(node_id: int, directory: Uuid = DIRECTORIES[0], port: int = 9093) -> VoterNode:
    endpoint = VoterEndpoint(name="CONTROLLER", host="localhost", port=port)
    return VoterNode(ReplicaKey(node_id, directory), (endpoint,), 0, 1)


def voter_set(*node_ids: int) -> VoterSet:
    return VoterSet(node(node_id) for node_id in node_ids)


keys = st.builds(ReplicaKey, st.integers(0, 6), st.sampled_from(DIRECTORIES))
sets = st.lists(keys, min_size=1, max_size=6, unique_by=lambda key: key.node_id).map(
    lambda found: VoterSet(VoterNode(key) for key in found)
)


def test_a_set_is_parsed_from_its_configuration() -> None:
    voters = VoterSet.parse("3@c:9093, 1@[::1]:9094,2@b.example:1")
    assert list(voters.voters) == [1, 2, 3]
    (endpoint,) = voters.voters[1].endpoints
    assert endpoint == VoterEndpoint(name="CONTROLLER", host="::1", port=9094)
    assert voters.majority == 2


@pytest.mark.parametrize(
    "text",
    ["", "1", "1@", "1@host", "1@:1", "@h:1", "1@h:65536", "-1@h:1", "1@h:x", "99999999999@h:1", "1@h:1,",
     "1@h:1,1@g:2", "2147483648@h:1", "١@h:1"],
)  # fmt: skip
def test_what_is_no_set_of_voters_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        VoterSet.parse(text)


def test_a_voter_is_a_node_and_its_directory() -> None:
    voters = voter_set(1, 2)
    assert voters.contains(ReplicaKey(1, DIRECTORIES[0]))
    assert not voters.contains(ReplicaKey(1, DIRECTORIES[1]))
    assert not voters.contains(ReplicaKey(1))
    assert not voters.contains(ReplicaKey(3, DIRECTORIES[0]))
    assert VoterSet.parse("1@h:1").contains(ReplicaKey(1, DIRECTORIES[1]))


def test_one_voter_comes_or_goes() -> None:
    voters = voter_set(1, 2)
    assert voters.add_voter(node(3)) == voter_set(1, 2, 3)
    assert voters.add_voter(node(2, DIRECTORIES[1])) is None
    assert voters.remove_voter(ReplicaKey(2, DIRECTORIES[0])) == voter_set(1)
    assert voters.remove_voter(ReplicaKey(2, DIRECTORIES[1])) is None
    assert voters.remove_voter(ReplicaKey(3, DIRECTORIES[0])) is None
    assert voter_set(1).remove_voter(ReplicaKey(1, DIRECTORIES[0])) is None
    moved = voters.update_voter(node(2, port=1))
    assert moved is not None
    assert moved.voters[2].endpoints[0].port == 1
    assert voters.update_voter(node(2, DIRECTORIES[1])) is None
    assert voters.update_voter(node(3)) is None
    assert voters == voter_set(2, 1)


def test_a_configured_voter_gets_its_directory_by_an_update() -> None:
    updated = VoterSet.parse("1@h:1,2@h:2").update_voter(node(2, DIRECTORIES[2]))
    assert updated is not None
    assert updated.voters[2].voter_key == ReplicaKey(2, DIRECTORIES[2])
    assert not updated.contains(ReplicaKey(2, DIRECTORIES[0]))


@given(sets, sets)
def test_majorities_overlap_if_every_pair_of_them_meets(one: VoterSet, other: VoterSet) -> None:
    pairs = product(
        combinations(one.voter_keys, one.majority), combinations(other.voter_keys, other.majority)
    )
    assert one.has_overlapping_majority(other) == all(set(ours) & set(theirs) for ours, theirs in pairs)


def test_two_at_once_do_not_overlap() -> None:
    assert not voter_set(1).has_overlapping_majority(voter_set(1, 2, 3))
    assert voter_set(1).has_overlapping_majority(voter_set(1, 2))


@given(sets)
def test_a_record_brings_the_set_back(voters: VoterSet) -> None:
    record = voters.to_voters_record()
    read = decode_control(control_key(record.TYPE), encode_control(record))
    assert isinstance(read, VotersRecord)
    assert VoterSet.from_voters_record(read) == voters


def voter(voter_id: int, lowest: int = 0, highest: int = 1, names: tuple[str, ...] = ("A",)) -> Voter:
    return Voter(
        voter_id=voter_id,
        voter_directory_id=DIRECTORIES[0],
        endpoints=tuple(VoterEndpoint(name=name, host="h", port=1) for name in names),
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=lowest, max_supported_version=highest
        ),
    )


@pytest.mark.parametrize(
    "voters",
    [
        (),
        (voter(1), voter(1)),
        (voter(-1),),
        (voter(1, 2, 1),),
        (voter(1, -1, 1),),
        (voter(1, names=("A", "A")),),
    ],
)
def test_a_record_that_no_quorum_can_have_is_refused(voters: tuple[Voter, ...]) -> None:
    with pytest.raises(InvalidRecord):
        VoterSet.from_voters_record(VotersRecord(voters=voters))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_a_typed_error(noise: bytes) -> None:
    try:
        read = decode_control(control_key(VotersRecord.TYPE), noise)
        assert isinstance(read, VotersRecord)
        VoterSet.from_voters_record(read)
    except KreplicaError:
        pass


def voters(*node_ids):
    return VoterSet(VoterNode(ReplicaKey(i, Uuid(bytes([i]) * 16)), (), 0, 1) for i in node_ids)


def test_the_last_set_holds_and_a_cut_brings_the_former_one_back():
    history = VoterSetHistory(voters(1, 2, 3))
    history.add_at(5, voters(1, 2, 3))
    history.add_at(9, voters(1, 2, 3, 4))
    assert history.last == (9, voters(1, 2, 3, 4))
    assert history.at(8).voters == voters(1, 2, 3)
    assert history.at(4).offset == -1
    history.truncate_new_entries(9)
    assert history.last == (5, voters(1, 2, 3))
    history.truncate_new_entries(0)
    assert history.last == (-1, voters(1, 2, 3))


def test_two_voters_at_once_are_refused():
    history = VoterSetHistory(None)
    history.add_at(1, voters(1, 2, 3))
    with pytest.raises(InvalidRecord):
        history.add_at(2, voters(1, 2, 3, 4, 5))
    with pytest.raises(InvalidRecord):
        history.add_at(1, voters(1, 2, 3))
    assert history.last.offset == 1


def test_all_sets_from_the_committed_one_on_count_for_eligibility():
    history = VoterSetHistory(voters(1, 2))
    history.add_at(3, voters(2))
    history.add_at(7, voters(2, 4))
    assert history.since(2) == [voters(1, 2), voters(2), voters(2, 4)]
    assert history.since(3) == [voters(2), voters(2, 4)]
    assert history.since(99) == [voters(2, 4)]


def test_a_snapshot_takes_the_place_of_what_was_before():
    history = VoterSetHistory(voters(1, 2))
    history.add_at(3, voters(2))
    history.begin_anew(7, voters(2, 4))
    assert history.last == (7, voters(2, 4))
    assert history.at(6) == (-1, voters(1, 2))
    # The one that a cluster is formatted with ends at 0, and no cut of the log goes below it.
    history.begin_anew(-1, voters(5))
    history.truncate_new_entries(0)
    assert history.last == (-1, voters(5))


def test_the_log_is_read_once_and_a_restart_reads_the_snapshot_too():
    quorum = SimQuorum(2, shuffle=False)
    quorum.start()
    leader = quorum.elect()
    node = quorum.node(leader)
    machine = KRaftControlRecordStateMachine(node.log, None)
    with pytest.raises(InvalidConfig):
        machine.voters  # noqa: B018
    machine.initialize()
    assert machine.voters_offset == 0
    assert machine.kraft_version == 1
    assert [machine.kraft_version_at(end) for end in (0, 3)] == [0, 1]
    assert machine.voters == quorum.setup.voters
    assert machine.voters_at(0) is None
    quorum.append(leader, "a")
    quorum.pass_time(100)
    node.snapshot()
    again = KRaftControlRecordStateMachine(node.log, None)
    again.initialize()
    assert again.voters == quorum.setup.voters
    assert again.voters_offset == node.applied.offset - 1
    assert again.kraft_version == 1


def test_configured_voters_come_and_go_only_where_their_directories_are_known():
    log = None
    known = VoterSet([VoterNode(ReplicaKey(1, directory_id_of(1)), (), 0, 1)])
    for configured, version in (
        (known, 1),
        (None, 0),
        (VoterSet([VoterNode(ReplicaKey(1), (), 0, 1)]), 0),
        (VoterSet([VoterNode(ReplicaKey(1, directory_id_of(1)), (), 0, 0)]), 0),
    ):
        assert KRaftControlRecordStateMachine(log, configured).kraft_version == version
