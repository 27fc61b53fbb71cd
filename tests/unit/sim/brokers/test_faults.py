"""Random runs of one fault: an answer that comes after leaders have changed, or a flush that fails."""

from __future__ import annotations

import random
from dataclasses import replace

from kreplica.sim.brokers.driver import FAULTS, BrokerDriver, draw_workload


def run(seed, fault, **settings):
    workload = draw_workload(random.Random(seed))
    topics = tuple(
        replace(topic, config=topic.config.replace({"durability": "fsync"})) for topic in workload.topics
    )
    only = {name: int(name == fault) for name in FAULTS}
    driver = BrokerDriver(seed, replace(workload, topics=topics, faults=only, straggling=0.0, **settings))
    driver.run(3_000)
    return driver


def test_an_answer_that_says_where_logs_part_comes_when_others_lead():
    driver = run(4, "late divergence")
    assert driver.counts["late divergences"] > 2
    assert driver.counts["divergences"] >= driver.counts["late divergences"]
    assert driver.cluster.network.held == []


def test_a_machine_whose_disk_failed_at_a_flush_gets_another_one():
    driver = run(1, "failing flush")
    assert driver.counts["flushes that failed"] > 2
    assert driver.counts["power cuts"] > 2
    assert not any(broker.disk_fault for broker in driver.cluster.brokers.values())
