"""Elections: what a vote costs."""

from __future__ import annotations

from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, directory_id_of
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
