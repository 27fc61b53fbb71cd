"""Quorums of three and five under a virtual clock: elections, replication, and how they end."""

from __future__ import annotations

import pytest

from kreplica.common.errors import (
    BrokerNotAvailable,
    InconsistentClusterId,
    InvalidRequest,
    InvalidVoterKey,
    NotLeader,
    NotLeaderOrFollower,
    UnexpectedBaseOffset,
    UnexpectedEpoch,
)
from kreplica.common.future import resolved
from kreplica.common.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from kreplica.common.types import METADATA_TOPIC
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import FollowerState, LeaderState, ResignedState
from kreplica.raft.raft_messages import (
    FetchPosition,
    Standing,
    make_begin_request,
    make_fetch_request,
    make_fetch_response,
    make_vote_request,
    top_level_error,
)
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.sim_quorum import CLUSTER_ID, SimQuorum, directory_id_of, record_of


def started(voters=3, observers=0, **options):
    quorum = SimQuorum(voters, observers, shuffle=False, **options)
    quorum.checker = QuorumChecker(quorum)
    quorum.start()
    return quorum, quorum.elect()


def others_of(quorum, leader):
    return [i for i in quorum.machines if i != leader]


def all_have(quorum, *values):
    return quorum.run_until(lambda: all(quorum.node(i).values == list(values) for i in quorum.alive))


def answer_of(quorum, node_id, request):
    answer = quorum.client(node_id).handle_inbound(request)
    quorum.pass_time(1)
    assert answer.done()
    return answer.result()


# ---- elections ------------------------------------------------------------------------------------------


def test_a_sole_voter_leads_at_once_and_commits_with_its_own_disk():
    quorum = SimQuorum(1)
    quorum.start()
    assert quorum.elect() == 1
    assert quorum.now_ms() == 0
    quorum.append(1, "a")
    quorum.scheduler.run_due()
    assert quorum.node(1).values == ["a"]


def test_a_sole_voter_that_was_restarted_leads_again_in_a_later_epoch():
    quorum = SimQuorum(1)
    quorum.start()
    quorum.elect()
    quorum.append(1, "a")
    quorum.pass_time(1)
    quorum.kill(1)
    quorum.start()
    quorum.elect()
    quorum.pass_time(1)
    assert quorum.client(1).quorum.epoch > 1
    assert quorum.node(1).values == ["a"]


@pytest.mark.parametrize("voters", [1, 3])
def test_a_watcher_of_commits_is_notified_before_the_records_are_replayed(voters):
    quorum, leader = started(voters)
    quorum.pass_time(100)
    commits = []
    quorum.client(leader).watch_commits(
        lambda offset: commits.append((offset, quorum.node(leader).values[:]))
    )
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    assert commits == [(quorum.client(leader).high_watermark, [])]
    assert quorum.client(leader).log.flushed_offset == commits[0][0]


@pytest.mark.parametrize("voters", [2, 3, 5])
def test_voters_elect_one_of_them_and_commit_what_it_appends(voters):
    quorum, leader = started(voters, observers=1)
    assert quorum.append(leader, "a", "b") == 4
    assert all_have(quorum, "a", "b")
    assert {quorum.client(i).leader_and_epoch.leader_id for i in quorum.alive} == {leader}


def test_configured_voters_write_the_older_quorum_state_and_no_voters_record():
    quorum, leader = started(dynamic=False)
    assert quorum.append(leader, "a") == 1
    assert all_have(quorum, "a")
    assert quorum.node(leader).store.read().data_version == 0
    assert quorum.node(leader).store.read().current_voters == (1, 2, 3)


def test_another_voter_follows_a_leader_that_died_and_loses_nothing():
    quorum, leader = started()
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    quorum.kill(leader)
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))
    quorum.append(quorum.elect(), "b")
    quorum.start(leader)
    assert all_have(quorum, "a", "b")


def test_a_closed_connection_makes_the_next_election_sooner():
    took_ms = {}
    for hint in (False, True):
        quorum, leader = started()
        before_ms = quorum.now_ms()
        quorum.kill(leader, hint=hint)
        assert quorum.run_until(lambda quorum=quorum, leader=leader: quorum.leader not in (None, leader))
        took_ms[hint] = quorum.now_ms() - before_ms
    assert took_ms[True] < took_ms[False]


def test_a_closed_connection_to_a_leader_that_lives_changes_nothing():
    quorum, leader = started()
    quorum.pass_time(100)
    for other in others_of(quorum, leader):
        quorum.client(other).connection_lost(leader)
    quorum.pass_time(1_000)
    assert quorum.client(leader).quorum.epoch == 1
    assert quorum.leader == leader


def test_a_leader_that_leaves_hands_over_before_any_timeout():
    quorum, leader = started()
    before_ms = quorum.now_ms()
    done = quorum.client(leader).shutdown(1_000)
    assert quorum.run_until(done.done)
    assert quorum.now_ms() - before_ms < quorum.setup.config.quorum_election_timeout_ms
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))
    with pytest.raises(BrokerNotAvailable):
        answer_of(quorum, leader, make_begin_request(CLUSTER_ID, ReplicaKey(leader), 1, 9))


@pytest.mark.parametrize(("voters", "reachable"), [(2, 0), (3, 0), (5, 0), (5, 1)])
def test_a_leader_that_leaves_does_not_wait_for_voters_that_are_gone(voters, reachable):
    quorum, leader = started(voters)
    for other in others_of(quorum, leader)[reachable:]:
        quorum.kill(other)
    before_ms = quorum.now_ms()
    done = quorum.client(leader).shutdown(1_000)
    assert quorum.run_until(done.done)
    assert quorum.now_ms() - before_ms < 200


def test_a_leader_that_leaves_notices_voters_that_stop_after_their_answer():
    quorum, leader = started()
    client = quorum.client(leader)
    quorum.network.hold(lambda message: message.name == "Vote")
    done = client.shutdown(10_000)
    assert quorum.run_until(lambda: isinstance(client.quorum.state, ResignedState))
    assert quorum.run_until(lambda: not client.quorum.state.unacknowledged)
    before_ms = quorum.now_ms()
    for other in others_of(quorum, leader):
        quorum.kill(other, hint=True)
    assert quorum.run_until(done.done)
    assert quorum.now_ms() - before_ms < 200


def test_a_leader_that_is_to_leave_knows_that_it_is_cut_off_until_a_voter_is_back():
    quorum, leader = started()
    client, others = quorum.client(leader), others_of(quorum, leader)
    client.prepare_shutdown()
    quorum.kill(others[0], hint=True)
    quorum.pass_time(200)
    assert not client.is_cut_off
    quorum.kill(others[1], hint=True)
    quorum.pass_time(200)
    assert client.is_cut_off
    quorum.start(others[0])
    assert quorum.run_until(lambda: not client.is_cut_off)


@pytest.mark.parametrize(("voters", "reachable"), [(3, 1), (5, 2)])
def test_a_leader_that_leaves_hands_over_while_its_vote_can_decide(voters, reachable):
    quorum, leader = started(voters)
    for other in others_of(quorum, leader)[reachable:]:
        quorum.kill(other)
    done = quorum.client(leader).shutdown(1_000)
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))
    assert quorum.run_until(done.done)


def test_a_leader_that_is_asked_to_resign_does():
    quorum, leader = started()
    quorum.client(leader).resign(7)
    quorum.pass_time(20)
    assert quorum.leader == leader
    quorum.client(leader).resign(1)
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))


# ---- the histories of bugs ------------------------------------------------------------------------------


def test_a_former_leader_comes_back_resigned_and_does_not_vote():
    """KAFKA-10661, KAFKA-17333."""
    quorum, leader = started()
    quorum.kill(leader)
    machine = quorum.machines[leader]
    machine.start()
    quorum.scheduler.run_due()
    client = quorum.client(leader)
    assert isinstance(client.quorum.state, ResignedState)
    assert client.leader_and_epoch == (None, 1)
    assert quorum.node(leader).leader.leader_id is None
    other = others_of(quorum, leader)[0]
    asked = make_vote_request(
        CLUSTER_ID,
        ReplicaKey(leader, directory_id_of(leader)),
        ReplicaKey(other, directory_id_of(other)),
        1,
        OffsetAndEpoch(99, 0),
        pre_vote=False,
    )
    answer = client.handle_inbound(asked)
    quorum.scheduler.run_due()
    assert not answer.result(0).topics[0].partitions[0].vote_granted


def test_a_leader_that_is_cut_off_resigns():
    """KAFKA-15489."""
    quorum, leader = started()
    quorum.isolate(leader)
    quorum.pass_time(2 * quorum.setup.config.check_quorum_timeout_ms)
    assert not isinstance(quorum.client(leader).quorum.state, LeaderState)


def test_a_voter_that_was_cut_off_does_not_disturb_the_others():
    """KIP-996."""
    quorum, leader = started()
    lonely = others_of(quorum, leader)[0]
    quorum.isolate(lonely)
    quorum.pass_time(3_000)
    assert quorum.client(lonely).quorum.epoch == 1
    quorum.network.heal_all()
    quorum.pass_time(1_000)
    assert quorum.leader == leader
    assert quorum.client(leader).quorum.epoch == 1
    assert isinstance(quorum.client(lonely).quorum.state, FollowerState)


def test_a_voter_whose_disk_was_wiped_replicates_anew():
    """KAFKA-12181: its fetches begin at an offset below the one the leader knows."""
    quorum, leader = started(dynamic=False)
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    wiped = others_of(quorum, leader)[0]
    quorum.kill(wiped)
    quorum.machines[wiped].wipe()
    quorum.checker.forget_disk(wiped)
    quorum.start(wiped)
    assert all_have(quorum, "a")
    assert quorum.leader == leader


def test_a_follower_that_is_to_cut_what_is_committed_stops_and_keeps_it():
    """KAFKA-12460."""
    quorum, leader = started()
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    follower = others_of(quorum, leader)[0]
    client = quorum.client(follower)
    fatal = []
    client._on_fatal = fatal.append
    end = client.log.end_offset
    standing = Standing(0, leader, 1)
    forged = make_fetch_response(standing, high_watermark=end, diverging=OffsetAndEpoch(1, 0))
    asked = FetchPosition(1, end, 1, 0)
    client._post(lambda: client._following._fetched(leader, asked, forged))
    quorum.pass_time(1)
    assert "FatalTruncation" in repr(fatal)
    assert client.log.end_offset == end


# ---- replication ----------------------------------------------------------------------------------------


def test_what_was_not_committed_is_cut_where_logs_part():
    quorum, leader = started()
    quorum.isolate(leader)
    quorum.append(leader, "lost")
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))
    quorum.append(quorum.elect(), "kept")
    quorum.network.heal_all()
    assert all_have(quorum, "kept")
    end = quorum.client(quorum.leader).log.end_offset
    assert quorum.run_until(lambda: quorum.client(leader).log.end_offset == end)


def test_a_follower_far_behind_gets_a_snapshot():
    quorum, leader = started()
    late = others_of(quorum, leader)[0]
    quorum.kill(late)
    values = [f"v{number:03}" * 20 for number in range(30)]
    for value in values:
        quorum.append(leader, value)
        quorum.pass_time(10)
        if value in (values[10], values[20]):
            quorum.node(leader).snapshot()
    quorum.pass_time(1_500)
    assert quorum.client(leader).log.start_offset > 0
    quorum.start(late)
    assert all_have(quorum, *values)
    assert quorum.client(late).log.start_offset > 0
    assert quorum.client(late).voters == quorum.client(leader).voters


def test_only_the_leader_appends_and_only_in_its_epoch():
    quorum, leader = started()
    follower = others_of(quorum, leader)[0]
    with pytest.raises(NotLeader):
        quorum.client(follower).schedule_append(1, [record_of("x")])
    with pytest.raises(NotLeader):
        quorum.client(leader).schedule_append(0, [record_of("x")])
    for node_id in (leader, follower):
        with pytest.raises(UnexpectedEpoch):
            quorum.client(node_id).schedule_append(2, [record_of("x")])


def test_a_leader_hears_that_it_leads_after_all_that_came_before():
    quorum, leader = started()
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    quorum.kill(leader)
    second = quorum.run_until(lambda: quorum.leader) and quorum.leader
    assert quorum.run_until(lambda: quorum.node(second).leader.leader_id == second)
    assert quorum.node(second).values == ["a"]


# ---- bad input ------------------------------------------------------------------------------------------


def vote(voter, candidate, *, epoch=5, end=OffsetAndEpoch(99, 1), cluster_id=CLUSTER_ID, pre_vote=False):
    return make_vote_request(cluster_id, voter, candidate, epoch, end, pre_vote=pre_vote)


def test_requests_that_fit_nothing_get_kafkas_errors_and_change_nothing():
    quorum, leader = started(dynamic=False)
    follower, third = others_of(quorum, leader)
    to, sender = ReplicaKey(follower, directory_id_of(follower)), ReplicaKey(third, directory_id_of(third))
    state = quorum.client(follower).quorum.state
    foreign = answer_of(quorum, follower, vote(to, sender, cluster_id="another"))
    assert foreign.error_code.value == InconsistentClusterId.code
    for request, code in (
        (vote(ReplicaKey(7), sender), InvalidVoterKey.code),
        (vote(ReplicaKey(follower, directory_id_of(follower, 1)), sender), InvalidVoterKey.code),
        (vote(to, ReplicaKey(9)), 94),
        (vote(to, ReplicaKey(follower)), InvalidRequest.code),
        (vote(to, sender, end=OffsetAndEpoch(9, 5)), InvalidRequest.code),
        (vote(to, sender, end=OffsetAndEpoch(-1, 1)), InvalidRequest.code),
        (vote(to, sender, epoch=0, end=OffsetAndEpoch(0, 0)), InvalidRequest.code),
        (make_begin_request(CLUSTER_ID, to, third, 1), InvalidRequest.code),
        (make_begin_request(CLUSTER_ID, to, leader, 0), 74),
    ):
        found = answer_of(quorum, follower, request).topics[0].partitions[0]
        assert found.error_code.value == code, request
        assert quorum.client(follower).quorum.state is state


def lie_from(quorum, liar):
    """Let a node answer nonsense from now on; what it was asked."""
    asked = []

    def lie(request):
        asked.append(type(request).__name__)
        return resolved(top_level_error(request, 0 if len(asked) % 2 else InvalidRequest.code))

    quorum.network.register(quorum.machines[liar].life, lie)
    return asked


def test_a_peer_that_answers_nonsense_is_one_that_does_not_answer():
    quorum, leader = started()
    asked = lie_from(quorum, others_of(quorum, leader)[0])
    for _ in range(4):
        quorum.client(quorum.leader).resign(quorum.client(quorum.leader).quorum.epoch)
        quorum.pass_time(500)
        quorum.elect()
    assert {"VoteRequest", "BeginQuorumEpochRequest", "EndQuorumEpochRequest"} <= set(asked)


def test_a_leader_that_answers_nonsense_is_replaced():
    quorum, leader = started()
    asked = lie_from(quorum, leader)
    assert quorum.run_until(lambda: quorum.leader not in (None, leader))
    assert "FetchRequest" in asked


def test_fetches_that_fit_nothing_get_kafkas_errors():
    quorum, leader = started()
    follower = others_of(quorum, leader)[0]
    key = ReplicaKey(follower, directory_id_of(follower))

    def fetched(node_id, replica=key, epoch=1, offset=0):
        position = FetchPosition(epoch, offset, 0, 0)
        request = make_fetch_request(CLUSTER_ID, replica, position, max_wait_ms=0, max_bytes=100)
        return answer_of(quorum, node_id, request).responses[0].partitions[0]

    assert fetched(follower, ReplicaKey(9)).error_code.value == NotLeaderOrFollower.code
    assert fetched(follower, ReplicaKey(9)).current_leader.leader_id == leader
    assert fetched(leader, epoch=0).error_code.value == 74
    assert fetched(leader, epoch=2).error_code.value == 75
    assert fetched(leader, ReplicaKey(leader, directory_id_of(9))).error_code.value == InvalidRequest.code
    assert fetched(leader, offset=-1).error_code.value == InvalidRequest.code
    # Another disk of a voter is an observer, and counts for nothing.
    assert fetched(leader, ReplicaKey(follower, directory_id_of(follower, 1))).error_code.value == 0
    assert directory_id_of(follower, 1) in {
        key.directory_id for key in quorum.client(leader).quorum.state.observers
    }


def test_the_leader_describes_its_quorum():
    quorum, leader = started(observers=1)
    quorum.pass_time(300)
    topic = DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC, partitions=(DescribeQuorumRequestPartitionData(partition_index=0),)
    )
    request = DescribeQuorumRequest(topics=(topic,))
    described = answer_of(quorum, leader, request).topics[0].partitions[0]
    assert described.leader_id == leader
    assert described.high_watermark == quorum.client(leader).high_watermark
    assert [voter.replica_id for voter in described.current_voters] == [1, 2, 3]
    assert {voter.log_end_offset for voter in described.current_voters} == {described.high_watermark}
    assert [observer.replica_id for observer in described.observers] == [4]
    follower = others_of(quorum, leader)[0]
    refused = answer_of(quorum, follower, request).topics[0].partitions[0]
    assert refused.error_code.value == NotLeaderOrFollower.code
    assert refused.leader_id == leader


def test_metrics_describe_the_quorum():
    quorum, leader = started()
    quorum.append(leader, "a")
    assert all_have(quorum, "a")
    values = quorum.node(leader).metrics.values()
    named = {name.split("name=")[1]: value for name, value in values.items()}
    assert named["current-leader"] == named["current-vote"] == leader
    assert named["current-epoch"] == 1
    assert named["high-watermark"] == named["log-end-offset"] == quorum.client(leader).high_watermark
    assert named["number-of-voters"] == 3
    # Four records in the last half minute.
    assert named["append-records-rate"] == pytest.approx(4 / 30)
    assert 0 <= named["poll-idle-ratio-avg"] <= 1
    words = {name.split("name=")[1]: word for name, word in quorum.node(leader).metrics.texts().items()}
    assert words["current-state"] == "leader"
    assert words["current-vote-directory-id"] == str(quorum.client(leader)._context.key.directory_id)
    assert 0 <= named["election-latency-avg"] <= named["election-latency-max"]


def test_records_that_were_made_for_another_offset_are_not_appended() -> None:
    # A broker's epoch is the offset of its registration.
    quorum = SimQuorum(voters=1)
    quorum.start()
    client = quorum.client(quorum.elect())
    epoch, offset = client.leader_and_epoch.epoch, client.next_offset
    with pytest.raises(UnexpectedBaseOffset) as raised:
        client.schedule_append(epoch, [record_of("a")], expected_base_offset=offset - 1)
    assert raised.value.where == offset == client.next_offset
    assert client.schedule_append(epoch, [record_of("a")], expected_base_offset=offset) == offset
    assert client.next_offset == offset + 1
    quorum.pass_time(100)
    assert client.log.end_offset == offset + 1
