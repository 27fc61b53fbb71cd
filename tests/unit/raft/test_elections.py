"""Elections: what a vote costs, and how often voters compete for it."""

from __future__ import annotations

import pytest

from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.network import LinkConditions
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, SimQuorum, directory_id_of
from tests.unit.raft.test_kafka_raft_client import answer_of, others_of, started


def test_a_vote_in_a_new_epoch_is_one_write():
    quorum, leader = started()
    voter, candidate = others_of(quorum, leader)
    trace = quorum.machines[voter].storage.trace
    trace.clear()
    keys = [ReplicaKey(node_id, directory_id_of(node_id)) for node_id in (voter, candidate)]
    asked = make_vote_request(CLUSTER_ID, *keys, 7, OffsetAndEpoch(99, 6), pre_vote=False)
    assert answer_of(quorum, voter, asked).topics[0].partitions[0].vote_granted
    assert quorum.client(voter).quorum.state.voted_key == keys[1]
    assert [event.target for event in trace if event.operation == "rename"] == [quorum.node(voter).store.path]


def test_a_pre_vote_of_a_later_epoch_takes_a_leader_there_and_costs_it_no_vote():
    quorum, leader = started()
    asking = others_of(quorum, leader)[0]
    keys = [ReplicaKey(node_id, directory_id_of(node_id)) for node_id in (leader, asking)]
    asked = make_vote_request(CLUSTER_ID, *keys, 2, OffsetAndEpoch(99, 1), pre_vote=True)
    assert answer_of(quorum, leader, asked).topics[0].partitions[0].vote_granted
    state = quorum.client(leader).quorum.state
    assert (state.epoch, state.leader_id, state.voted_key) == (2, None, None)


@pytest.mark.parametrize("seed", range(1, 21))
def test_voters_that_start_together_elect_their_first_leader_at_once(seed):
    quorum = SimQuorum(seed=seed, conditions=LinkConditions(delay_us=(1_000, 4_000)))
    quorum.start()
    leader = quorum.elect()
    assert quorum.client(leader).leader_and_epoch.epoch == 1


@pytest.mark.parametrize("seed", range(1, 21))
def test_candidates_that_lost_to_each_other_wait_for_different_times(seed):
    quorum = SimQuorum(seed=seed)
    quorum.start()
    elections = [quorum.client(node_id)._elections for node_id in (1, 2, 3)]
    waits = {each._random_backoff_ms(retries=1) for each in elections}
    assert len(waits) == 3
    assert max(waits) <= quorum.setup.config.quorum_election_backoff_max_ms
