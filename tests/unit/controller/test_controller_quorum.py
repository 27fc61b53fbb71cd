"""Controllers over a real quorum: fail-over, dead and slow brokers, brokers that leave in order."""

from __future__ import annotations

import random

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.types import Uuid
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import BeginTransactionRecord, TopicRecord
from kreplica.metadata.serde import in_lowest_version
from kreplica.sim.network import LinkConditions
from tests.support.controller_quorum import CONTROLLER_CONFIG, ControllerQuorum
from tests.support.one_controller import topic_creation

# What a cluster promises: a killed broker's partitions have new leaders so soon, and all brokers know it.
PROMISED_MS = 300


@pytest.fixture
def quorum() -> ControllerQuorum:
    quorum = ControllerQuorum()
    quorum.create_topic("t", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    return quorum


def fences(quorum: ControllerQuorum) -> list[int]:
    return [broker.broker_id for broker in quorum.metadata().brokers.values() if broker.fenced]


# ---- dead brokers ----------------------------------------------------------------------------------------


def test_a_killed_brokers_partitions_have_new_leaders_soon(quorum: ControllerQuorum) -> None:
    quorum.kill(1)
    took_ms = quorum.until(quorum.leader_known_to([2, 3], "t", 2))
    assert CONTROLLER_CONFIG.broker_session_hint_ms <= took_ms <= PROMISED_MS // 2
    assert quorum.partition("t").isr == (2, 3)


def test_so_have_those_of_one_that_lost_its_power(quorum: ControllerQuorum) -> None:
    # No connection is seen to close: the broker's session has to expire.
    quorum.lose_power(1)
    took_ms = quorum.until(quorum.leader_known_to([2, 3], "t", 2))
    assert CONTROLLER_CONFIG.broker_session_timeout_ms - 30 <= took_ms <= PROMISED_MS


def test_a_stopped_follower_leaves_the_isr_as_soon(quorum: ControllerQuorum) -> None:
    quorum.machines[3].pause()
    assert quorum.until(lambda: quorum.partition("t").isr == (1, 2)) <= PROMISED_MS


def test_two_that_die_together_are_fenced_together(quorum: ControllerQuorum) -> None:
    # KAFKA-13173.
    quorum.kill(1)
    quorum.kill(2)
    assert quorum.until(quorum.leader_known_to([3], "t", 3)) <= PROMISED_MS
    assert quorum.partition("t").leader_epoch == 1, "no other broker led in between"


def test_the_last_one_that_comes_back_leads_again(quorum: ControllerQuorum) -> None:
    for broker_id in (1, 2, 3):
        quorum.kill(broker_id)
    assert quorum.run_until(lambda: quorum.partition("t").leader == NO_LEADER)
    assert quorum.partition("t").last_known_elr or quorum.partition("t").elr
    quorum.start(1, 2, 3)
    assert quorum.run_until(lambda: quorum.partition("t").leader != NO_LEADER)


def test_a_broker_that_starts_again_has_another_epoch(quorum: ControllerQuorum) -> None:
    before = quorum.lifecycle(1).broker_epoch()
    quorum.kill(1)
    quorum.start(1)
    quorum.until(lambda: quorum.is_unfenced(1))
    assert quorum.lifecycle(1).broker_epoch() > before


# ---- dead controllers ------------------------------------------------------------------------------------


def test_another_controller_takes_over(quorum: ControllerQuorum) -> None:
    first = quorum.active
    assert first is not None
    quorum.kill(first)
    assert quorum.until(lambda: quorum.active not in (None, first)) <= PROMISED_MS
    quorum.create_topic("u", [1, 2, 3])
    quorum.pass_time(1_000)
    assert fences(quorum) == [], "no broker's session ended meanwhile"


def test_a_node_that_was_both_has_successors_in_time() -> None:
    quorum = ControllerQuorum(combined=True)
    active = quorum.active
    assert active is not None
    others = [each for each in quorum.broker_ids if each != active]
    quorum.create_topic("t", [active, *others])
    quorum.kill(active)
    took_ms = quorum.until(
        lambda: quorum.active is not None and quorum.leader_known_to(others, "t", others[0])()
    )
    assert took_ms <= PROMISED_MS


def test_a_controller_cut_from_the_others_can_do_nothing(quorum: ControllerQuorum) -> None:
    # KAFKA-15489.
    old = quorum.active
    assert old is not None
    for other in quorum.machines:
        if other != old:
            quorum.network.cut(old, other)
    request = quorum.send(topic_creation("lost", [1]), to=old)
    assert quorum.run_until(lambda: quorum.active not in (None, old))
    assert quorum.run_until(request.done)
    (answer,) = request.result(timeout=0).topics
    assert answer.error_code is ErrorCode.not_controller
    quorum.network.heal_all()
    quorum.pass_time(1_000)
    assert all("lost" not in quorum.metadata(each).topics for each in quorum.alive)


def test_an_inactive_controller_names_the_active_one(quorum: ControllerQuorum) -> None:
    other = next(each for each in quorum.controller_ids if each != quorum.active)
    (answer,) = quorum.ask(topic_creation("u", [1]), to=other).topics
    assert answer.error_code is ErrorCode.not_controller
    assert f"node {quorum.active}" in answer.error_message


def test_what_was_answered_is_known_to_the_next_controller(quorum: ControllerQuorum) -> None:
    quorum.create_topic("u", [2, 3])
    active = quorum.active
    assert active is not None
    quorum.kill(active)
    quorum.until(lambda: quorum.active not in (None, active))
    assert "u" in quorum.metadata().topics


def test_a_transaction_of_the_log_that_was_left_open_counts_for_nothing(quorum: ControllerQuorum) -> None:
    # KIP-868.
    first = quorum.active
    assert first is not None
    client = quorum.node(first).client
    begun = [BeginTransactionRecord(name="n"), TopicRecord(name="half", topic_id=Uuid(b"h" * 16))]
    last = client.schedule_append(client.leader_and_epoch.epoch, [in_lowest_version(each) for each in begun])
    others = [each for each in quorum.controller_ids if each != first]
    assert quorum.run_until(lambda: all(quorum.node(i).client.high_watermark > last for i in others))
    quorum.kill(first)
    quorum.until(lambda: quorum.active not in (None, first))
    quorum.create_topic("u", [1, 2, 3])
    quorum.start(first)
    quorum.until(lambda: all("u" in quorum.metadata(each).topics for each in quorum.machines))
    assert all("half" not in quorum.metadata(each).topics for each in quorum.machines)
    assert not any(quorum.node(each).loader.metadata.in_transaction for each in quorum.machines)


# ---- slow ones -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stall_ms", [50, 150, 400, 2_000])
def test_a_stalled_controller_fences_no_broker(quorum: ControllerQuorum, stall_ms: int) -> None:
    # After a long one there is another controller, and it begins with whole sessions.
    active = quorum.active
    assert active is not None
    quorum.machines[active].pause()
    quorum.pass_time(stall_ms)
    quorum.machines[active].resume()
    quorum.pass_time(1_000)
    assert fences(quorum) == []
    assert quorum.partition("t").leader_epoch == 0


def test_a_connection_that_breaks_and_is_made_anew_costs_nothing(quorum: ControllerQuorum) -> None:
    for node_id in (1, *quorum.controller_ids):
        quorum.network.disconnect(node_id)
        quorum.pass_time(500)
    assert fences(quorum) == []
    assert quorum.partition("t").leader_epoch == 0


def test_a_broker_that_flaps_stops_flapping(quorum: ControllerQuorum) -> None:
    # It stands still for 300 ms in every 600, which is more than a session.
    for _ in range(20):
        quorum.machines[1].pause()
        quorum.pass_time(300)
        quorum.machines[1].resume()
        quorum.pass_time(300)
    active = quorum.active
    assert active is not None
    controller = quorum.node(active).controller
    assert controller is not None
    assert controller._expired.count <= 2


def test_slow_links_do_not_fence(quorum: ControllerQuorum) -> None:
    quorum.network.set_conditions(LinkConditions(delay_us=(1_000, 20_000)))
    quorum.pass_time(3_000)
    assert fences(quorum) == []
    assert quorum.partition("t").leader_epoch == 0


# ---- leaving in order ------------------------------------------------------------------------------------


def test_a_broker_leaves_in_order(quorum: ControllerQuorum) -> None:
    done = quorum.lifecycle(1).begin_controlled_shutdown()
    took_ms = quorum.until(done.done)
    assert took_ms < CONTROLLER_CONFIG.broker_session_timeout_ms
    # The others knew of the new leader before it was let go.
    assert quorum.leader_known_to([2, 3], "t", 2)()
    assert quorum.metadata().brokers[1].fenced
    quorum.kill(1)
    quorum.pass_time(500)
    assert quorum.partition("t").leader_epoch == 1


def test_it_may_leave_while_the_controller_changes(quorum: ControllerQuorum) -> None:
    active = quorum.active
    assert active is not None
    done = quorum.lifecycle(1).begin_controlled_shutdown()
    quorum.pass_time(1)
    quorum.kill(active)
    assert quorum.until(done.done) <= 2 * PROMISED_MS
    assert quorum.partition("t").leader == 2


# ---- snapshots -------------------------------------------------------------------------------------------


def test_a_node_that_was_long_away_is_brought_up_by_a_snapshot() -> None:
    quorum = ControllerQuorum(snapshot_bytes=2_000)
    quorum.create_topic("t", [1, 2])
    quorum.kill(3)
    for number in range(30):
        quorum.create_topic(f"u{number}", [1, 2])
    active = quorum.active
    assert active is not None
    assert quorum.node(active).snapshots.written > 1
    assert quorum.node(active).snapshots.failed == 0
    quorum.start(3)
    quorum.until(lambda: quorum.is_unfenced(3))
    assert len(quorum.metadata(3).topics) == 31


# ---- at random -------------------------------------------------------------------------------------------


def check(metadata: ClusterMetadata) -> None:
    """Invariants 3 and 12 of every committed state."""
    for topic_partition, _, partition in metadata.partitions():
        broken = f"{topic_partition}: {partition}"
        unfenced = {each.broker_id for each in metadata.brokers.values() if not each.fenced}
        assert set(partition.isr) <= unfenced, broken
        assert set(partition.isr) | set(partition.elr) <= set(partition.replicas), broken
        assert not set(partition.isr) & set(partition.elr), broken
        assert partition.leader == NO_LEADER or partition.leader in partition.isr, broken


@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_the_cluster_stays_one(seed: int) -> None:
    chance = random.Random(seed)
    quorum = ControllerQuorum(
        combined=chance.random() < 0.5,
        seed=seed,
        shuffle=True,
        snapshot_bytes=chance.choice((3_000, 1 << 20)),
    )
    names = [f"t{number}" for number in range(4)]
    for name in names:
        quorum.create_topic(name, chance.sample(quorum.broker_ids, 3), min_insync_replicas="2")
    epochs: dict[int, int] = {}
    for _ in range(25):
        strike(quorum, chance)
        quorum.pass_time(chance.randrange(10, 400))
        for node_id in quorum.alive:
            check(quorum.metadata(node_id))
        for node_id in quorum.controller_ids:
            if quorum.machines[node_id].is_alive:
                leader = quorum.node(node_id).client.leader_and_epoch
                if leader.leader_id is not None:
                    assert epochs.setdefault(leader.epoch, leader.leader_id) == leader.leader_id
    heal(quorum)
    assert quorum.run_until(lambda: is_well(quorum)), "not well in time"
    first, *others = (quorum.metadata(each) for each in quorum.alive)
    assert all(other == first for other in others)
    for name in names:
        assert quorum.partition(name).leader != NO_LEADER


def strike(quorum: ControllerQuorum, chance: random.Random) -> None:
    node_id = chance.choice(list(quorum.machines))
    machine = quorum.machines[node_id]
    if not machine.is_alive:
        quorum.start(node_id)
        return
    fault = chance.randrange(6)
    if fault == 0:
        quorum.kill(node_id)
    elif fault == 1:
        quorum.lose_power(node_id)
    elif fault == 2:
        machine.pause()
    elif fault == 3:
        machine.resume()
    elif fault == 4:
        quorum.network.cut(node_id, chance.choice(list(quorum.machines)), both_ways=chance.random() < 0.5)
    else:
        quorum.network.heal_all()


def heal(quorum: ControllerQuorum) -> None:
    quorum.network.heal_all()
    for node_id, machine in quorum.machines.items():
        if not machine.is_alive:
            quorum.start(node_id)
        elif machine.is_paused:
            machine.resume()


def is_well(quorum: ControllerQuorum) -> bool:
    return (
        quorum.active is not None
        and all(quorum.is_unfenced(each) for each in quorum.broker_ids)
        and not fences(quorum)
        and len({quorum.node(each).loader.applied for each in quorum.alive}) == 1
    )
