"""What the random driver does to leaders: brokers that hear late of them, and restarts before an answer."""

from __future__ import annotations

import random

import pytest

from kreplica.common.types import TopicPartition
from kreplica.sim.brokers.driver import BrokerDriver, draw_workload

AT = TopicPartition("t", 0)


@pytest.fixture
def driver():
    driver = BrokerDriver(1)
    driver.will.is_calm = False
    driver.cluster.scheduler.run_for(300)
    return driver


def epochs_heard(driver, broker_id):
    """The leader epochs that the broker is notified of, in order."""
    partition = driver.cluster.program(broker_id).replica_manager.partitions.get(AT)
    heard = [partition.leader_epoch]
    for _ in range(300):
        driver.cluster.scheduler.run_for(1)
        if partition.leader_epoch != heard[-1]:
            heard.append(partition.leader_epoch)
    return heard


@pytest.mark.parametrize(("in_order", "heard"), [(True, [0, 1, 2]), (False, [0, 2])])
def test_a_broker_hears_late_of_each_decision_or_of_the_last_one(driver, in_order, heard):
    will, controller = driver.will, driver.cluster.controller
    will.deafen(3)
    for leader in (2, 1):
        state = controller.partitions[AT]
        will.elect(state, leader, state.isr)
    assert epochs_heard(driver, 3) == [0]
    assert driver.cluster.program(1).replica_manager.partitions.get(AT).leader_epoch == 2
    will.hear(3, in_order=in_order)
    assert epochs_heard(driver, 3) == heard


def test_decisions_for_an_earlier_life_are_not_delivered_again(driver):
    will = driver.will
    will.deafen(3)
    state = driver.cluster.controller.partitions[AT]
    will.elect(state, 2, state.isr)
    driver.cluster.kill(3)
    driver.cluster.start(3)
    will.hear(3, in_order=True)
    driver.cluster.scheduler.run_for(300)
    assert driver.cluster.program(3).replica_manager.partitions.get(AT) is None


def test_seeds_differ_in_what_goes_wrong_and_something_always_does():
    drawn = [draw_workload(random.Random(seed)).faults for seed in range(50)]
    assert all(faults["cut"] for faults in drawn)
    for name in drawn[0]:
        weights = {faults[name] for faults in drawn}
        assert len(weights) > 2
        assert max(weights) > 0
