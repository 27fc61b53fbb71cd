"""Voters that come, go and move (KIP-853), under a virtual clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    FencedLeaderEpoch,
    InconsistentClusterId,
    InvalidRequest,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnsupportedVersion,
    VoterNotFound,
)
from kreplica.common.messages.quorum import (
    AddRaftVoterRequest,
    KRaftVersionFeature,
    Listener,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from kreplica.common.wire import uuid_of
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.raft.epoch_state import CandidateState, ProspectiveState
from kreplica.raft.voter_set import ReplicaKey, VoterSet
from kreplica.sim.network import LinkConditions
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, SimQuorum, directory_id_of
from tests.unit.raft.test_kafka_raft_client import all_have, answer_of, others_of, started

HERE = {
    node_id: VoterEndpoint(name="CONTROLLER", host=f"node-{node_id}", port=9_093) for node_id in range(1, 6)
}


def add_voter(node_id, timeout_ms=500, listeners=()):
    return AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout=timedelta(milliseconds=timeout_ms),
        voter_id=node_id,
        voter_directory_id=uuid_of(directory_id_of(node_id)),
        listeners=listeners,
    )


def remove_voter(node_id):
    return RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=uuid_of(directory_id_of(node_id))
    )


def update_voter(node_id, *, epoch, disk=0, port=9_092, highest=1, listeners=1, cluster_id=CLUSTER_ID):
    listener = Listener(name="CONTROLLER", host="elsewhere", port=port)
    return UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=node_id,
        voter_directory_id=uuid_of(directory_id_of(node_id, disk)),
        listeners=(listener,) * listeners,
        k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=highest),
    )


def test_a_broker_does_not_become_a_voter():
    quorum, leader = started(observers=1, brokers={4})
    answer = quorum.send(leader, add_voter(4))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request
    assert "node 4 has not registered as a controller" in answer.result().error_message
    assert sorted(quorum.client(leader).voters.voters) == [1, 2, 3]


def test_a_voter_without_the_role_never_leads():
    """One that lost the role when it was configured anew; the quorum waits for a voter that can lead."""
    quorum, _ = started(brokers={1, 2})
    assert quorum.leader == 3
    quorum.kill(3)
    quorum.pass_time(3_000)
    assert quorum.leader is None
    quorum.start(3)
    assert quorum.elect() == 3


def test_a_voter_has_to_listen_where_the_others_do():
    quorum, leader = started(observers=1, endpoints=HERE)
    answer = quorum.send(leader, add_voter(4))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request
    assert "do not include CONTROLLER" in answer.result().error_message
    epoch = quorum.client(leader).quorum.epoch
    answer = quorum.send(leader, update_voter(1, epoch=epoch, listeners=0))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request


def test_the_refusal_of_listeners_with_one_name_shows_the_names():
    quorum, leader = started(observers=1)
    listener = Listener(name="CONTROLLER", host="node-4", port=9_093)
    answer = quorum.send(leader, add_voter(4, listeners=(listener, listener)))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request
    assert "['CONTROLLER', 'CONTROLLER'] are not unique" in answer.result().error_message


def test_an_observer_becomes_a_voter():
    quorum, leader = started(observers=1)
    quorum.pass_time(300)
    answer = quorum.send(leader, add_voter(4))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0
    assert quorum.run_until(lambda: quorum.client(4).quorum.is_voter)
    assert sorted(quorum.client(leader).voters.voters) == [1, 2, 3, 4]
    again = quorum.send(leader, add_voter(4))
    assert quorum.run_until(again.done)
    assert again.result().error_code.name == "duplicate_voter"


def test_a_node_that_does_not_catch_up_does_not_become_a_voter():
    quorum, leader = started()
    answer = quorum.send(leader, add_voter(9, 100))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == RequestTimedOut.code
    assert sorted(quorum.client(leader).voters.voters) == [1, 2, 3]


def test_a_voter_that_is_removed_while_it_is_cut_off_in_a_later_epoch_comes_back():
    """Seed 61001336 of whole nodes. Its pre-votes take the others to its epoch (KIP-996)."""
    quorum, leader = started()
    others = others_of(quorum, leader)
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    quorum.isolate(leader)
    states = {each: quorum.client(each).quorum for each in others}
    assert quorum.run_until(lambda: any(isinstance(each.state, CandidateState) for each in states.values()))
    [ahead] = [node_id for node_id, each in states.items() if isinstance(each.state, CandidateState)]
    quorum.network.heal_all()
    quorum.isolate(ahead)
    [stays] = states.keys() - {ahead}
    quorum.kill(stays)
    quorum.start(stays)
    answer = quorum.send(leader, remove_voter(ahead))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0
    assert quorum.run_until(lambda: isinstance(states[ahead].state, ProspectiveState))
    assert states[ahead].epoch > quorum.client(leader).quorum.epoch
    quorum.network.heal_all()
    assert quorum.run_until(lambda: ahead not in quorum.client(ahead).voters.voters)
    assert quorum.client(ahead).leader_and_epoch.leader_id in others_of(quorum, ahead)


def test_a_leader_that_removes_itself_leads_until_that_is_committed_and_counts_the_others_only():
    quorum, leader = started()
    left = others_of(quorum, leader)
    answer = quorum.send(leader, remove_voter(leader))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0
    assert quorum.run_until(lambda: quorum.leader in left)
    assert sorted(quorum.client(quorum.leader).voters.voters) == left
    quorum.append(quorum.elect(), "a")
    assert all_have(quorum, "a")


def test_a_voter_that_moves_keeps_its_vote_and_everybody_learns_where_it_is():
    quorum, leader = started()
    moved = others_of(quorum, leader)[0]
    answer = quorum.send(leader, update_voter(moved, epoch=1, port=9_093))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0
    current = answer.result().current_leader
    assert (current.leader_id, current.leader_epoch) == (leader, 1)

    def is_known_to(node_id):
        endpoints = quorum.client(node_id).voters.voters[moved].endpoints
        known = [(each.name, each.host, each.port) for each in endpoints]
        return known == [("CONTROLLER", "elsewhere", 9_093)]

    assert quorum.run_until(lambda: all(map(is_known_to, quorum.alive)))
    assert sorted(quorum.client(leader).voters.voters) == [1, 2, 3]
    end = quorum.client(leader).log.end_offset
    again = quorum.send(leader, update_voter(moved, epoch=1, port=9_093))
    assert quorum.run_until(again.done)
    assert again.result().error_code.value == 0
    assert quorum.client(leader).log.end_offset == end, "nothing changed, so nothing is written"
    quorum.append(quorum.elect(), "a")
    assert all_have(quorum, "a")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epoch": 0}, FencedLeaderEpoch),
        ({"epoch": 2}, UnknownLeaderEpoch),
        ({"disk": 1}, VoterNotFound),
        ({"node_id": 9}, VoterNotFound),
        ({"highest": 0}, InvalidRequest),
        ({"listeners": 2}, InvalidRequest),
        ({"cluster_id": "another"}, InconsistentClusterId),
    ],
)
def test_an_update_of_a_voter_that_does_not_fit_changes_nothing(changes, error):
    quorum, leader = started()
    voters, end = quorum.client(leader).voters, quorum.client(leader).log.end_offset
    asked = {"node_id": others_of(quorum, leader)[0], "epoch": 1} | changes
    answer = quorum.send(leader, update_voter(asked.pop("node_id"), **asked))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == error.code
    assert quorum.client(leader).voters == voters
    assert quorum.client(leader).log.end_offset == end
    # It is not taken for a change that is under way.
    answer = quorum.send(leader, update_voter(leader, epoch=1))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == 0


def test_only_the_leader_updates_voters():
    quorum, leader = started()
    follower = others_of(quorum, leader)[0]
    answer = quorum.send(follower, update_voter(follower, epoch=1))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == NotLeaderOrFollower.code
    assert answer.result().current_leader.leader_id == leader


def test_voters_that_were_configured_stay():
    quorum, leader = started(dynamic=False)
    answer = quorum.send(leader, remove_voter(1))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == UnsupportedVersion.code


def test_no_voter_is_added_before_the_leader_knows_what_is_committed():
    """KAFKA-16530."""
    quorum = SimQuorum(3, 1, shuffle=False)
    quorum.start()
    assert quorum.run_until(lambda: quorum.leader)
    leader = quorum.leader
    assert quorum.client(leader).high_watermark is None
    assert answer_of(quorum, leader, add_voter(4)).error_code.value == RequestTimedOut.code


# ---- what members ask for themselves ----------------------------------------------------------------------


def voters_of(quorum):
    return sorted(quorum.client(quorum.leader).voters.voters) if quorum.leader else []


def test_an_observer_with_auto_join_becomes_a_voter_once():
    quorum, leader = started(observers=2, auto_join={4}, endpoints=HERE)
    assert quorum.run_until(lambda: voters_of(quorum) == [1, 2, 3, 4])
    assert quorum.client(leader).voters.voters[4].endpoints == (HERE[4],)
    # It counts: with it a majority is three, and the one that did not ask stays an observer.
    quorum.kill(others_of(quorum, leader)[0])
    client = quorum.client(leader)
    assert quorum.run_until(lambda: client.voters_offset < client.high_watermark)
    quorum.pass_time(2_000)
    at = quorum.client(quorum.leader).voters_offset
    quorum.pass_time(2_000)
    assert voters_of(quorum) == [1, 2, 3, 4]
    assert quorum.client(quorum.leader).voters_offset == at


def test_the_only_voter_and_one_that_joins_need_each_other_at_once():
    """The second voter's fetch commits that it is one, and its own request must not stand in its way."""
    quorum, _ = started(voters=1, observers=1, auto_join={2})
    timeout_ms = quorum.setup.config.quorum_fetch_timeout_ms
    assert quorum.run_until(lambda: voters_of(quorum) == [1, 2], limit_ms=2 * timeout_ms)
    assert quorum.run_until(
        lambda: quorum.client(1).voters_offset < quorum.client(1).high_watermark, limit_ms=timeout_ms // 2
    )


def test_a_broker_does_not_join():
    quorum, _ = started(observers=1, brokers={4}, auto_join={4})
    quorum.pass_time(2_000)
    assert voters_of(quorum) == [1, 2, 3]


def test_one_whose_disk_was_lost_lets_its_former_vote_go_and_joins_again():
    quorum, leader = started(auto_join={1, 2, 3})
    lost = others_of(quorum, leader)[0]
    quorum.kill(lost)
    quorum.checker.forget_disk(lost)
    quorum.wipe(lost, quorum.client(leader).voters)
    quorum.start(lost)
    key = ReplicaKey(lost, quorum.setup.directory_ids[lost])
    assert quorum.run_until(lambda: quorum.leader and quorum.client(quorum.leader).voters.contains(key))
    assert voters_of(quorum) == [1, 2, 3]


def test_voters_that_are_configured_are_not_joined():
    quorum, _ = started(observers=1, dynamic=False, auto_join={4})
    quorum.pass_time(2_000)
    assert voters_of(quorum) == [1, 2, 3]


def test_a_voter_that_listens_elsewhere_after_its_start_announces_it():
    quorum, leader = started(endpoints=dict(HERE))
    moved = others_of(quorum, leader)[0]

    def ports():
        return [each.port for each in quorum.client(quorum.leader).voters.voters[moved].endpoints]

    assert quorum.run_until(lambda: quorum.leader and ports() == [9_093])
    quorum.kill(moved)
    quorum.setup.move(moved, 19_093)
    quorum.start(moved)
    assert quorum.run_until(lambda: quorum.leader and ports() == [19_093])
    assert voters_of(quorum) == [1, 2, 3]


def test_voters_that_announce_their_listeners_at_once_take_turns_without_a_warning(caplog):
    """The leader takes one change at a time, and answers the others with a time-out, as Kafka does."""
    with caplog.at_level("INFO"):
        quorum, _ = started(voters=5, endpoints=HERE)
        # A commit takes so long that the next voter asks before it.
        quorum.network.set_conditions(LinkConditions(delay_us=(15_000, 15_000)))
        elected_ms = quorum.now_ms()
        assert quorum.run_until(lambda: all(voter.endpoints for voter in voters_known(quorum)))
    assert quorum.now_ms() - elected_ms < 4 * quorum.setup.config.quorum_fetch_timeout_ms
    assert "UpdateRaftVoter" not in caplog.text


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_leader_that_listens_elsewhere_after_its_start_announces_it(nodes):
    quorum, leader = started(voters=nodes, endpoints=dict(HERE))
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    for node_id in list(quorum.alive):
        quorum.kill(node_id)
    for node_id in range(1, nodes + 1):
        quorum.setup.move(node_id, 19_093)
        quorum.start(node_id)

    def ports():
        return {each.port for voter in voters_known(quorum) for each in voter.endpoints}

    assert quorum.run_until(lambda: quorum.leader and ports() == {19_093})
    assert voters_of(quorum) == list(range(1, nodes + 1))


def voters_known(quorum):
    return quorum.client(quorum.leader).voters.voters.values()


def test_a_node_that_knows_no_voters_finds_them_by_bootstrap_servers_and_joins():
    quorum, leader = started(
        observers=2,
        auto_join={4},
        bootstrap=(1, 2, 3),
        known_voters={4: VoterSet.unknown(), 5: VoterSet.unknown()},
        endpoints=HERE,
    )
    assert quorum.run_until(lambda: voters_of(quorum) == [1, 2, 3, 4])
    quorum.append(quorum.leader, "a")
    assert all_have(quorum, "a")
    assert quorum.client(5).voters == quorum.client(leader).voters


def test_bootstrap_servers_serve_where_the_log_never_names_the_voters():
    quorum, leader = started(
        observers=1, dynamic=False, bootstrap=(1, 2, 3), known_voters={4: VoterSet.unknown()}
    )
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    quorum.kill(leader)
    assert quorum.run_until(
        lambda: quorum.leader not in (None, leader) and quorum.mark_is_known(quorum.leader)
    )
    quorum.append(quorum.leader, "b")
    assert all_have(quorum, "a", "b")
    assert len(quorum.client(4).voters) == 0
