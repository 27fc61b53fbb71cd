"""Members of a quorum whose disk has no room: they promise nothing that is not on it, and go on later."""

from __future__ import annotations

import pytest

from kreplica.common.errors import KafkaStorageError, NotLeader, StorageFull
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.full_disk import MOST_DOUBLINGS, FullDisk
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, SimQuorum, directory_id_of

LARGE = "x" * 500


def started(voters=3):
    quorum = SimQuorum(voters, shuffle=False)
    quorum.checker = QuorumChecker(quorum)
    quorum.start()
    return quorum, quorum.elect()


def others_of(quorum, leader):
    return [node_id for node_id in quorum.machines if node_id != leader]


def fill(quorum, *node_ids, full=True):
    for node_id in node_ids:
        quorum.machines[node_id].storage.full = full


def append_until_refused(quorum, leader):
    """What was committed before the leader had no room, and gave its epoch up."""
    committed = []
    for number in range(100):
        value = f"{number}{LARGE}"
        try:
            quorum.append(leader, value)
        except NotLeader:
            return committed
        quorum.pass_time(20)
        if value in quorum.node(leader).values:
            committed.append(value)
    raise AssertionError("there was room for all")


def test_a_leader_without_room_leaves_the_quorum_to_a_voter_with_some():
    quorum, leader = started()
    fill(quorum, leader)
    committed = append_until_refused(quorum, leader)
    others = others_of(quorum, leader)
    assert quorum.run_until(lambda: quorum.leader_among(others))
    quorum.append(quorum.leader_among(others), "after")
    assert quorum.run_until(lambda: all(quorum.node(each).values[-1:] == ["after"] for each in others))
    fill(quorum, leader, full=False)
    assert quorum.run_until(lambda: quorum.node(leader).values[-1:] == ["after"])
    for node_id in quorum.machines:
        assert [value for value in quorum.node(node_id).values if value in committed] == committed


@pytest.mark.parametrize("voters", [1, 3])
def test_voters_without_room_go_on_when_there_is_some(voters):
    quorum, leader = started(voters)
    fill(quorum, *quorum.machines)
    committed = append_until_refused(quorum, leader)
    quorum.pass_time(20_000)
    assert quorum.leader is None
    fill(quorum, *quorum.machines, full=False)
    assert quorum.run_until(lambda: quorum.leader is not None)
    quorum.append(quorum.leader, "after")
    for node_id in quorum.machines:
        assert quorum.run_until(lambda node_id=node_id: quorum.node(node_id).values[-1:] == ["after"])
        assert quorum.node(node_id).values[: len(committed)] == committed


def test_a_vote_that_has_no_room_is_not_given():
    quorum, leader = started()
    voter, candidate = others_of(quorum, leader)
    fill(quorum, voter)
    node = quorum.node(voter)
    stored, state = node.store.read(), node.client.quorum.state
    asked = make_vote_request(
        CLUSTER_ID,
        ReplicaKey(voter, directory_id_of(voter)),
        ReplicaKey(candidate, directory_id_of(candidate)),
        state.epoch + 5,
        OffsetAndEpoch(99, state.epoch),
        pre_vote=False,
    )
    answer = node.client.handle_inbound(asked)
    quorum.scheduler.run_due()
    assert answer.result(0).error_code.value == KafkaStorageError.code
    assert (node.store.read(), node.client.quorum.state) == (stored, state)
    fill(quorum, voter, full=False)
    answer = node.client.handle_inbound(asked)
    quorum.scheduler.run_due()
    assert answer.result(0).topics[0].partitions[0].vote_granted
    assert node.store.read().voted_id == candidate


class Log:
    is_offline = False


def test_a_log_that_is_offline_is_a_failure_whatever_the_disk_calls_it():
    log, error = Log(), StorageFull("no space left on device")
    full_disk = FullDisk(1, log, RaftConfig(), lambda: 0)
    full_disk.refused(error)
    log.is_offline = True
    with pytest.raises(StorageFull):
        full_disk.refused(error)


def test_giving_up_repeatedly_doubles_the_wait_up_to_a_limit():
    full_disk = FullDisk(1, Log(), RaftConfig(quorum_election_timeout_ms=10), lambda: 0)
    waits = [full_disk.gave_up_an_epoch() for _ in range(MOST_DOUBLINGS + 3)]
    assert waits[:3] == [10, 20, 40]
    assert waits[-1] == waits[-2] == 10 << MOST_DOUBLINGS
    full_disk.took_an_append()
    assert full_disk.gave_up_an_epoch() == 10
