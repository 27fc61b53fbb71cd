"""RaftContext: which requests of the quorum are believed, and which epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kreplica.common.errors import IllegalQuorumTransition, InconsistentVoterSet, InvalidRequest
from kreplica.common.quorum_state import LAST_EPOCH
from kreplica.metadata.control_records import VoterEndpoint
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.quorum_state import FileBasedStateStore
from kreplica.raft.raft_context import MOST_EPOCHS_AHEAD
from kreplica.raft.raft_messages import (
    FetchPosition,
    make_begin_request,
    make_end_request,
    make_fetch_request,
    make_snapshot_request,
)
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, LOG_DIRECTORY, directory_id_of
from tests.unit.raft.test_kafka_raft_client import all_have, answer_of, others_of, started, vote

HERE = {
    node_id: VoterEndpoint(name="CONTROLLER", host=f"node-{node_id}", port=9_093) for node_id in range(1, 4)
}


def test_a_request_without_the_cluster_id_is_refused():
    quorum, leader = started()
    follower, third = others_of(quorum, leader)
    to, sender = ReplicaKey(follower, directory_id_of(follower)), ReplicaKey(third, directory_id_of(third))
    state = quorum.client(follower).quorum.state
    position = FetchPosition(1, 0, 0, 0)
    for node_id, request in (
        (follower, vote(to, sender, cluster_id=None)),
        (follower, make_begin_request(None, to, third, 2)),
        (follower, make_end_request(None, third, 2, [])),
        (leader, make_fetch_request(None, sender, position, max_wait_ms=0, max_bytes=100)),
        (leader, make_snapshot_request(None, sender, 1, OffsetAndEpoch(1, 1), 0, 100)),
    ):
        assert answer_of(quorum, node_id, request).error_code.value == InvalidRequest.code, request
    assert quorum.client(follower).quorum.state is state


@pytest.mark.parametrize("epoch", [1 + MOST_EPOCHS_AHEAD + 1, LAST_EPOCH - 1, LAST_EPOCH])
def test_a_request_from_an_epoch_that_no_election_led_to_is_refused(epoch):
    quorum, leader = started()
    follower, third = others_of(quorum, leader)
    to, sender = ReplicaKey(follower, directory_id_of(follower)), ReplicaKey(third, directory_id_of(third))
    state = quorum.client(follower).quorum.state
    for request in (
        vote(to, sender, epoch=epoch),
        make_begin_request(CLUSTER_ID, to, third, epoch),
        make_end_request(CLUSTER_ID, third, epoch, []),
    ):
        found = answer_of(quorum, follower, request).topics[0].partitions[0]
        assert found.error_code.value == InvalidRequest.code, request
        assert quorum.client(follower).quorum.state is state


def test_a_request_of_the_highest_plausible_epoch_is_taken():
    quorum, leader = started()
    follower, third = others_of(quorum, leader)
    to, sender = ReplicaKey(follower, directory_id_of(follower)), ReplicaKey(third, directory_id_of(third))
    found = answer_of(quorum, follower, vote(to, sender, epoch=MOST_EPOCHS_AHEAD))
    assert found.topics[0].partitions[0].vote_granted


def epoch_code(quorum, node_id, request):
    return answer_of(quorum, node_id, request).topics[0].partitions[0].error_code.value


def test_requests_add_no_more_epochs_than_elections_could_in_that_time():
    quorum, leader = started()
    follower, third = others_of(quorum, leader)
    quorum.isolate(follower)
    to = ReplicaKey(follower, directory_id_of(follower))

    def begin(epochs):
        ahead = quorum.client(follower).quorum.epoch + epochs
        return epoch_code(quorum, follower, make_begin_request(CLUSTER_ID, to, third, ahead))

    assert begin(MOST_EPOCHS_AHEAD - 1) == 0  # the election of the leader took the first one
    assert begin(1) == InvalidRequest.code
    quorum.pass_time(10 * quorum.setup.config.quorum_election_timeout_ms)
    assert begin(10) == 0
    assert begin(2) == InvalidRequest.code


def test_pre_votes_and_votes_of_one_epoch_use_it_up_once():
    quorum, leader = started()
    follower, third = others_of(quorum, leader)
    to, sender = ReplicaKey(follower, directory_id_of(follower)), ReplicaKey(third, directory_id_of(third))
    for pre_vote in (True, True, False):
        request = vote(to, sender, epoch=MOST_EPOCHS_AHEAD, pre_vote=pre_vote)
        assert epoch_code(quorum, follower, request) == 0


def test_a_leader_that_is_neither_a_voter_nor_says_where_it_listens_is_not_followed():
    quorum, leader = started(endpoints=dict(HERE))
    follower = others_of(quorum, leader)[0]
    to, state = ReplicaKey(follower, directory_id_of(follower)), quorum.client(follower).quorum.state
    request = make_begin_request(CLUSTER_ID, to, 99, state.epoch + 1)
    assert epoch_code(quorum, follower, request) == InconsistentVoterSet.code
    assert quorum.client(follower).quorum.state is state


def test_a_leader_that_this_voter_does_not_know_yet_is_followed_where_it_listens():
    # Its record as a voter may be what this voter has not fetched yet.
    quorum, leader = started(endpoints=dict(HERE))
    follower = others_of(quorum, leader)[0]
    to, epoch = ReplicaKey(follower, directory_id_of(follower)), quorum.client(follower).quorum.epoch
    endpoint = VoterEndpoint(name="CONTROLLER", host="node-99", port=9_099)
    assert epoch_code(quorum, follower, make_begin_request(CLUSTER_ID, to, 99, epoch + 1, (endpoint,))) == 0
    assert quorum.client(follower).leader_and_epoch.leader_id == 99
    assert quorum.client(follower).address_of(99) == ("node-99", 9_099)


def store_epoch(quorum, node_id, epoch):
    """Let a voter that does not run have stored an epoch without a leader."""
    store = FileBasedStateStore(quorum.machines[node_id].storage, LOG_DIRECTORY)
    store.write(replace(store.read(), leader_epoch=epoch, leader_id=-1, voted_id=-1))
    return store


@pytest.mark.parametrize("with_all", [True, False])
def test_a_voter_that_is_far_ahead_is_followed_by_the_others(with_all):
    # Where another one is gone, the one that is far ahead is needed for any election.
    quorum, leader = started()
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    far, other = others_of(quorum, leader)
    for node_id in (leader, far, other):
        quorum.kill(node_id)
    store_epoch(quorum, far, 9_000_000)
    for node_id in (far, leader, other) if with_all else (far, leader):
        quorum.start(node_id)
    assert quorum.run_until(
        lambda: quorum.leader is not None and quorum.client(quorum.leader).quorum.epoch > 9_000_000
    )
    quorum.append(quorum.leader, "b")
    assert all_have(quorum, "a", "b")


def test_no_election_follows_the_last_epoch_of_all_which_stays_readable():
    quorum, leader = started(voters=1)
    quorum.pass_time(100)
    quorum.kill(leader)
    store = store_epoch(quorum, leader, LAST_EPOCH)
    quorum.start()
    with pytest.raises(IllegalQuorumTransition, match="format --recover"):
        quorum.pass_time(1_000)
    assert store.read().leader_epoch == LAST_EPOCH
