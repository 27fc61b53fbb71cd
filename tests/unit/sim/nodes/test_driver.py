"""What a run of whole nodes holds the final state of its partitions to."""

from __future__ import annotations

import pytest

from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.history import History, Polled, Sent, check
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.replica_view import Cell
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.driver import NodeDriver, promised

AT = TopicPartition("t", 0)


def test_what_an_unclean_election_has_left_must_be_there_at_the_end():
    view = PartitionView(AT, Uuid(bytes(16)))
    view.acked = {4: b"b"}
    view.consumed = {3: Cell(0, 0, b"a"), 4: Cell(0, 0, b"b"), 5: Cell(0, 0, None)}
    send = promised(view)
    assert send.values == [Sent(AT, "a", 3), Sent(AT, "b", 4)]
    whole = [Polled(AT, 3, "a"), Polled(AT, 4, "b"), Polled(AT, 5, "c")]
    assert check(History([send], {AT: whole})) == []
    lost = {each.name for each in check(History([send], {AT: [whole[0], whole[2]]}))}
    assert lost == {"lost-write", "unseen", "poll-skip"}
    other = {each.name for each in check(History([send], {AT: [whole[0], Polled(AT, 4, "x")]}))}
    assert other == {"inconsistent-offsets", "unseen"}
    # Deleted records are not missed.
    assert check(History([send], {AT: whole[1:]}), log_starts={AT: 4}) == []


def test_all_is_not_well_while_readers_of_a_leader_meet_rot_that_the_others_have_deleted():
    driver = NodeDriver(1)
    cluster = driver.cluster
    cluster.boot()
    cluster.result(cluster.client.admin.create_topic("t", assignment={0: [1, 2]}))
    cluster.result(cluster.client.producer.send(AT, [b"a"], acks=1))
    logs = {each: cluster.node(each).broker.log_manager.get_log(AT) for each in (1, 2)}
    assert cluster.run_until(lambda: all(log.high_watermark == 1 for log in logs.values()))
    driver.faults.rot(1)
    logs[2].maybe_increment_log_start_offset(1)
    driver.heal()
    assert logs[1].log_start_offset == 1
    driver.check_history()


def test_of_a_name_that_two_topics_have_had_what_leaders_of_the_second_said_must_be_there():
    driver = NodeDriver(1)
    cluster, load = driver.cluster, driver.load
    cluster.boot()
    for values in (["a", "b"], ["c"]):
        # As where a request to create a topic is made again after the topic's deletion.
        cluster.result(cluster.client.admin.create_topic("t", assignment={0: [1, 2]}))
        load._send(-1, values)
        assert cluster.run_until(lambda: not load.pending)
        if values == ["a", "b"]:
            cluster.result(cluster.client.admin.delete_topic("t"))
    assert [each.offset for send in load.sends for each in send.values] == [0, 1, 0]
    driver.check_history()
    driver.checker.view.partitions[AT].acked[0] = b"a"
    with pytest.raises(InvariantViolated, match="inconsistent-offsets"):
        driver.check_history()
