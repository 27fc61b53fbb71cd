"""A coordinator of transactions dies behind each record that it stores, in turn, while others take over.

Nothing else fails. The invariants hold after each event; what clients and readers got is right in the end.
"""

from __future__ import annotations

import pytest

from kreplica.sim.nodes.driver import NodeDriver, NodeWorkload

# A transaction has three to eight records.
RECORDS = 9
OPERATION_MS = 10
# The time within which the next record is stored.
RECORD_MS = 5_000
WORKLOAD = NodeWorkload(
    brokers=3,
    controllers=0,
    standbys=0,
    settings={
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.segment.bytes": 1 << 20,
        "offsets.topic.num.partitions": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    },
    operation_every_ms=OPERATION_MS,
    fault_every_ms=1 << 30,
    transactions=True,
)


@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "without power"])
def test_a_coordinator_that_dies_behind_a_record_breaks_no_transaction(power_cut: bool) -> None:
    driver = NodeDriver(4 + power_cut, WORKLOAD)
    driver.begin()
    scheduler, death = driver.cluster.scheduler, driver.faults.death
    assert death is not None
    for number in range(1, RECORDS + 1):
        driver.faults.begin()
        driver.is_in_round = True
        driver.start_operations()
        death.arm(number, power_cut=power_cut)
        assert scheduler.run_until(lambda: not death.is_armed, RECORD_MS), number
        driver.is_in_round = False
        driver.heal()
    driver.finish()
    assert driver.counts["coordinators that died behind a record"] == RECORDS
    assert driver.counts["transactions committed"] > RECORDS // 2
