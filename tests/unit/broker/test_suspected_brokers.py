"""Who is suspected, and until when."""

from __future__ import annotations

from kreplica.broker.suspected_brokers import SuspectedBrokers
from tests.support.clock import ManualClock


def test_a_broker_is_suspected_for_a_while_after_each_closed_connection() -> None:
    clock = ManualClock()
    suspected = SuspectedBrokers(clock, 100)
    assert suspected.current() == set()
    suspected.connection_lost(1)
    clock.now_ms += 60
    suspected.connection_lost(2)
    assert suspected.current() == {1, 2}
    clock.now_ms += 40
    assert suspected.current() == {2}
    suspected.connection_lost(1)
    clock.now_ms += 60
    assert suspected.current() == {1}
