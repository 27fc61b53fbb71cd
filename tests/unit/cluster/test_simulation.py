"""kreplica.Simulation: a cluster under a virtual clock works as a real one, and fails on request."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import kreplica
from kreplica.cluster import promises
from kreplica.cluster.promises import BrokenPromise
from kreplica.common.errors import (
    ClusterClosed,
    InvalidConfig,
    InvalidRequest,
    InvalidRequiredAcks,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kreplica.common.types import TopicPartition
from kreplica.sim.invariants.violation import InvariantViolated
from tests.mutants.mutants import switched_on


@pytest.fixture
def sim():
    with kreplica.Simulation(seed=7) as sim:
        sim.create_topic("t", 2, 3, {"min.insync.replicas": 2})
        yield sim


def values(sim, partition=0, **options):
    return [record.value for record in sim.read("t", partition, **options)]


def test_appended_records_are_read_after_a_change_of_leader(sim):
    assert sim.append("t", [b"a", b"b"], partition=0).result().base_offset == 0
    killed = sim.partition("t").leader
    sim.kill(killed)
    assert sim.append("t", [b"c"], partition=0).result(timeout=20).base_offset == 2
    assert sim.partition("t").leader != killed
    sim.start(killed)
    assert values(sim) == [b"a", b"b", b"c"]
    assert values(sim, start=1, stop=2) == [b"b"]
    sim.check()


def test_records_without_a_partition_go_where_their_keys_belong(sim):
    made = sim.append("t", [(b"k1", b"v1"), (b"k2", b"v2"), (b"k1", b"v3")]).result()
    again = sim.append("t", [(b"k1", b"v4")]).result()
    found = {p: values(sim, p) for p in (0, 1)}
    assert made.record_count == 3
    assert found[again.partition][-1] == b"v4"
    assert b"v1" in found[again.partition]
    with pytest.raises(UnknownTopicOrPartition):
        sim.append("u", [(b"k", b"v")])


def test_topics_come_change_and_go(sim):
    with pytest.raises(TopicAlreadyExists):
        sim.create_topic("t")
    sim.create_partitions("t", 3)
    sim.alter_config("t", {"retention.ms": 1_000})
    sim.reassign("t", 0, [3, 1])
    assert sim.partition("t").replicas == (3, 1)
    sim.elect("t")
    assert sim.partition("t").leader == 3
    sim.delete_topic("t")
    assert sim.topics() == []
    with pytest.raises(UnknownTopicOrPartition):
        sim.partition("t")


def test_a_power_cut_of_all_loses_what_was_not_flushed_and_no_metadata(sim):
    sim.append("t", [b"a"], partition=0).result()
    for node_id in sim.nodes:
        sim.power_cut(node_id)
    with pytest.raises(InvalidRequest, match="no node"):
        sim.topics()
    for node_id in sim.nodes:
        sim.start(node_id, wait=False)
    assert sim.run_until(lambda: sim.controller is not None)
    assert sim.topics() == ["t"]


def test_a_node_that_is_cut_off_or_paused_is_out_of_sync_until_it_is_back(sim):
    leader = sim.partition("t").leader
    other = next(n for n in sim.nodes if n != leader)
    for each in sim.nodes:
        if each != other:
            sim.cut(other, each)
    assert sim.run_until(lambda: other not in sim.partition("t").isr)
    assert sim.append("t", [b"a"], partition=0).result().base_offset == 0
    sim.heal()
    assert sim.run_until(lambda: other in sim.partition("t").isr)
    sim.pause(other)
    assert sim.run_until(lambda: other not in sim.partition("t").isr)
    sim.resume(other)
    sim.check()
    assert sim.run_until(lambda: set(sim.partition("t").isr) == {1, 2, 3})


def test_what_is_appended_with_too_few_in_sync_times_out_in_virtual_time(sim):
    leader = sim.partition("t").leader
    for each in sim.nodes:
        if each != leader:
            sim.cut(each, leader)
    before = sim.now_ms
    appended = sim.append("t", [b"a"], partition=0, timeout=5)
    with pytest.raises(TimeoutError):
        appended.result(timeout=0.01)
    assert before < sim.now_ms <= before + 10
    for each in sim.nodes:
        if each != leader:
            sim.pause(each)
    with pytest.raises(RequestTimedOut):
        appended.result()
    assert sim.now_ms >= before + 5_000
    sim.check()


def test_a_bad_network_costs_time_only(sim):
    sim.set_network(delay_ms=(0, 20), loss=0.05, duplication=0.1, in_order=False)
    for number in range(5):
        assert sim.append("t", [b"%d" % number], partition=0).result().base_offset == number
    assert values(sim) == [b"0", b"1", b"2", b"3", b"4"]
    sim.check()
    for wrong in ({"loss": 2}, {"delay_ms": (2, 1)}, {"duplication": -1}):
        with pytest.raises(InvalidRequest):
            sim.set_network(**wrong)


def test_a_broken_disk_ends_a_node_and_is_no_broken_promise(sim):
    sim.set_disk(3, "broken")
    sim.append("t", [b"a"], partition=0).result()
    sim.run_for(1_000)
    sim.check()
    if sim.describe()["nodes"][3]["is_alive"]:
        sim.kill(3)
    sim.set_disk(3, "well")
    sim.start(3)
    sim.check()
    assert values(sim) == [b"a"]
    with pytest.raises(InvalidRequest):
        sim.set_disk(3, "tired")


def test_nodes_stop_in_order_and_dates_jump(sim):
    sim.stop(1)
    assert sim.append("t", [b"a"], partition=0).result().base_offset == 0
    sim.jump_date(2, -3_600_000)
    sim.start(1)
    sim.check()
    assert "nodes [1, 2, 3] of [1, 2, 3]" in repr(sim)


def test_controllers_may_be_nodes_of_their_own():
    with kreplica.Simulation(seed=3, brokers=1, controllers=3) as sim:
        assert sim.nodes == [1, 1001, 1002, 1003]
        sim.create_topic("t")
        first = sim.controller
        sim.kill(first)
        assert sim.run_until(lambda: sim.controller not in (None, first))
        sim.append("t", [b"a"], partition=0, acks=1).result()
        assert values(sim) == [b"a"]
        sim.check()


def test_a_check_reports_replicas_that_differ(sim, monkeypatch):
    sim.append("t", [b"a"], partition=0).result()
    log = sim.node(2).broker.log_manager.get_log(TopicPartition("t", 0))
    true = promises._records
    monkeypatch.setattr(promises, "_records", lambda *at: [] if at[0] is log else true(*at))
    with pytest.raises(BrokenPromise, match="differ within"):
        sim.check(timeout=1)


@pytest.mark.parametrize("what", ["kill", "stop", "pause", "resume", "power_cut", "node"])
def test_what_does_not_run_is_refused(sim, what):
    sim.kill(1)
    with pytest.raises(InvalidRequest, match="is not running"):
        getattr(sim, what)(1)
    with pytest.raises(InvalidRequest, match="there is no node 9"):
        getattr(sim, what)(9)


def test_what_makes_no_sense_is_refused(sim):
    with pytest.raises(InvalidRequest, match="is running already"):
        sim.start(1)
    with pytest.raises(InvalidRequiredAcks):
        sim.append("t", [b"a"], partition=0, acks=2)
    with pytest.raises(UnknownTopicOrPartition):
        sim.read("t", 5)


def test_invariants_are_checked_after_every_event(sim):
    leader = sim.partition("t").leader
    for each in sim.nodes:
        if each != leader:
            sim.cut(each, leader)
    with switched_on("commit_without_followers"):
        appended = sim.append("t", [b"a"], partition=0, acks=1)
        with pytest.raises(InvariantViolated, match="WeakIsr"):
            appended.result()


def test_a_random_run_of_a_seed():
    one, again = (kreplica.Simulation.run(4, events=500) for _ in range(2))
    assert one.violation is None
    assert one.event_hash == again.event_hash
    assert one.counts["acked"]
    assert kreplica.Simulation.run(4, minutes=0.01).virtual_ms >= 600
    with switched_on("show_the_uncommitted"):
        failed = kreplica.Simulation.run(4, events=1_500)
    assert failed.violation is not None
    assert "violated: " in failed.story[-1]


PROGRAM = """
import kreplica
sim = kreplica.Simulation(seed=11)
sim.create_topic("t")
sim.append("t", [b"a"], partition=0).result()
sim.power_cut(sim.partition("t").leader, torn=True)
sim.append("t", [b"b"], partition=0).result()
print(sim.event_hash, sim.events)
"""


def test_the_same_seed_and_calls_give_the_same_events_in_another_process():
    hashes = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_a_group_goes_on_where_it_stopped_after_its_coordinator_died(sim):
    def taken(**options):
        return [record.value for record in sim.consume("t", "g", **options)]

    sim.append("t", [b"a", b"b"], partition=0).result()
    assert taken() == [b"a", b"b"]
    sim.kill(sim.partition("__consumer_offsets").leader)
    sim.append("t", [b"c"], partition=1).result()
    assert taken(timeout=2.0) == [b"c"]
    with pytest.raises(InvalidConfig):
        sim.consume("t", "g", config={"no.such": 1})


@pytest.mark.parametrize("acks", [1, "all"])
def test_nodes_that_are_configured_to_elect_uncleanly_may(acks):
    with kreplica.Simulation(7, controllers=1, config={"unclean.leader.election.enable": True}) as sim:
        sim.create_topic("t", 1, 3)
        sim.append("t", [b"a"], partition=0).result(timeout=20)
        view = sim.partition("t")
        leader, *others = view.replicas
        for other in others:
            sim.kill(other)
        assert sim.run_until(lambda: view.isr == (leader,))
        sim.append("t", [b"lost", b"too"], partition=0, acks=acks).result(timeout=20)
        sim.kill(leader)
        assert sim.run_until(lambda: view.leader is None)
        for other in others:
            sim.start(other)
        assert sim.run_until(lambda: view.leader in others)
        assert values(sim) == [b"a"]
        sim.check()
        # What is acknowledged from then on is a promise again.
        sim.append("t", [b"may be refused: the sequence has begun anew"], partition=0).exception(timeout=20)
        sim.append("t", [b"b"], partition=0).result(timeout=20)
        sim._promises._acknowledged[TopicPartition("t", 0)] += 5
        with pytest.raises(BrokenPromise, match="acknowledged up to"):
            sim.check(timeout=1)


def test_a_share_group_goes_on_when_a_broker_dies():
    with kreplica.Simulation(seed=5) as sim:
        sim.create_topic("orders", 2)
        for number in range(10):
            sim.append("orders", [b"%d" % number], partition=number % 2).result()
        with sim.share("orders", group="workers") as messages:
            for message in messages:
                if message.value == b"4":
                    message.accept().result()
                    break
        sim.kill(sim.partition("orders", 0).leader)
        left = {message.value for message in sim.share("orders", group="workers", timeout=3.0)}
        assert b"4" not in left
        assert left >= {b"%d" % number for number in range(5, 10)}
        assert list(sim.share("orders", group="workers")) == []


def test_rejected_messages_are_in_a_topic_although_a_broker_dies():
    letters = "errors.deadletterqueue"
    config = {f"{letters}.auto.create.topics.enable": "true", "num.partitions": "2"}
    with kreplica.Simulation(seed=7, config=config) as sim:
        sim.create_topic("orders", 1)
        group = {f"{letters}.topic.name": "dlq.orders", f"{letters}.copy.record.enable": "true"}
        sim.alter_config("workers", group, kind="group")
        values = [b"%d" % number for number in range(10)]
        for value in values:
            sim.append("orders", [value]).result()
        killed = []
        for message in sim.share("orders", group="workers", timeout=2.0):
            try:
                message.reject().result()
            except kreplica.KreplicaError:
                # It was acquired from the leader that died, and is delivered again.
                assert killed
            if message.value == b"5" and not killed:
                killed.append(sim.partition("orders", 0).leader)
                sim.kill(killed[0])
        assert sim.run_until(lambda: dead_letters(sim) == set(enumerate(values)), 20_000)


def dead_letters(sim):
    """Return (offset of the record, its value) of each dead letter."""
    found = [record for number in range(2) for record in sim.read("dlq.orders", number)]
    return {(int(dict(each.headers)["__dlq.errors.offset"]), each.value) for each in found}


def test_a_seed_and_a_time_are_numbers(sim):
    with pytest.raises(TypeError, match="seed must be an integer, not 'x'"):
        kreplica.Simulation(seed="x")
    with pytest.raises(TypeError, match="duration_ms must be an integer, not '5s'"):
        sim.run_for("5s")
    with pytest.raises(ValueError, match="duration_ms must be at least 0"):
        sim.run_for(-1)


def test_what_is_not_there_is_named(sim):
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'u'"):
        sim.append("u", [b"a"], partition=0)
    with pytest.raises(UnknownTopicOrPartition, match="there is no partition t-7: the last one is 1"):
        sim.read("t", 7)


def test_a_closed_simulation_refuses_every_call():
    sim = kreplica.Simulation(seed=1, brokers=1)
    sim.create_topic("orders")
    sim.close()
    sim.close()
    calls = (
        lambda: sim.run_for(1),
        lambda: sim.run_until(lambda: True),
        lambda: sim.create_topic("late"),
        lambda: sim.append("orders", [b"late"]),
        lambda: list(sim.read("orders", 0)),
        lambda: sim.partition("orders"),
        lambda: sim.start(1),
        lambda: sim.kill(1),
        lambda: sim.set_disk(1, "full"),
        lambda: sim.set_network(loss=0.1),
        lambda: sim.cut(1, 1),
        lambda: sim.check(),
    )
    for call in calls:
        with pytest.raises(ClusterClosed, match="the simulation of seed 1 is closed"):
            call()
    assert not sim.is_running(1)
    assert sim.now_ms > 0
    assert "nodes []" in repr(sim)
