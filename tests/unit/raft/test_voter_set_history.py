"""VoterSetHistory and KRaftControlRecordStateMachine: who votes by which part of the log."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidConfig, InvalidRecord
from kreplica.common.types import Uuid
from kreplica.raft.control_record_state_machine import KRaftControlRecordStateMachine
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.raft.voter_set_history import VoterSetHistory
from kreplica.sim.quorum.sim_quorum import SimQuorum, directory_id_of


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


def test_all_sets_from_the_committed_one_on_count_for_who_may_be_elected():
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
