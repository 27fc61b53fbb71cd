"""Voters that come, go and move (KIP-853), under a virtual clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.add_raft_voter.v0.request import AddRaftVoterRequest
from kio.schema.errors import ErrorCode
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest
from kio.schema.update_raft_voter.v0 import request as update

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
from kreplica.common.wire import uuid_of
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.quorum_node import CLUSTER_ID
from kreplica.sim.quorum.sim_quorum import SimQuorum, directory_id_of


def started(voters=3, observers=0, **options):
    quorum = SimQuorum(voters, observers, shuffle=False, **options)
    quorum.checker = QuorumChecker(quorum)
    quorum.start()
    return quorum, quorum.elect()


def answer_of(quorum, node_id, request):
    answer = quorum.client(node_id).handle_inbound(request)
    quorum.pass_time(1)
    assert answer.done()
    return answer.result()


def others_of(quorum, leader):
    return [i for i in quorum.machines if i != leader]


def all_have(quorum, *values):
    return quorum.run_until(lambda: all(quorum.node(i).values == list(values) for i in quorum.alive))


def add_voter(node_id, timeout_ms=500):
    return AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout=timedelta(milliseconds=timeout_ms),
        voter_id=node_id,
        voter_directory_id=uuid_of(directory_id_of(node_id)),
        listeners=(),
    )


def remove_voter(node_id):
    return RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=uuid_of(directory_id_of(node_id))
    )


def update_voter(node_id, *, epoch, disk=0, port=9_092, highest=1, listeners=1, cluster_id=CLUSTER_ID):
    listener = update.Listener(name="CONTROLLER", host="elsewhere", port=port)
    return update.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=epoch,
        voter_id=node_id,
        voter_directory_id=uuid_of(directory_id_of(node_id, disk)),
        listeners=(listener,) * listeners,
        k_raft_version_feature=update.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=highest
        ),
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
    quorum, leader = started(observers=1, listener="CONTROLLER")
    answer = quorum.send(leader, add_voter(4))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request
    assert "do not include CONTROLLER" in answer.result().error_message
    epoch = quorum.client(leader).quorum.epoch
    answer = quorum.send(leader, update_voter(1, epoch=epoch, listeners=0))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code == ErrorCode.invalid_request


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


def test_who_does_not_catch_up_does_not_become_a_voter():
    quorum, leader = started()
    answer = quorum.send(leader, add_voter(9, 100))
    assert quorum.run_until(answer.done)
    assert answer.result().error_code.value == RequestTimedOut.code
    assert sorted(quorum.client(leader).voters.voters) == [1, 2, 3]


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
        found = quorum.client(node_id).voters.endpoint(moved, "CONTROLLER")
        return found is not None and (found.host, found.port) == ("elsewhere", 9_093)

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
