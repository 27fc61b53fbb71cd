"""The replication quota: which replicas it holds, and over which time it measures (KIP-73)."""

from __future__ import annotations

import pytest

from kreplica.common.types import TopicPartition
from kreplica.replica.replication_quotas import ReplicationQuotaManager
from tests.support.virtual import VirtualMachine


def test_only_listed_replicas_of_this_broker_are_throttled() -> None:
    quota = ReplicationQuotaManager(VirtualMachine().clock)
    assert not quota.is_active
    quota.set_throttled("some", ["0:1", "1:2", "2:1"], broker_id=1)
    quota.set_throttled("all", ["*"], broker_id=1)
    assert quota.is_active
    assert [quota.is_throttled(TopicPartition("some", n)) for n in range(4)] == [True, False, True, False]
    assert quota.is_throttled(TopicPartition("all", 99))
    assert not quota.is_throttled(TopicPartition("none", 0))
    quota.set_throttled("some", [], broker_id=1)
    quota.set_throttled("all", [], broker_id=1)
    assert not quota.is_active


def test_the_rate_is_that_of_eleven_seconds() -> None:
    machine = VirtualMachine()
    quota = ReplicationQuotaManager(machine.clock, 1_000)
    quota.record(10_000)
    assert quota.rate() == pytest.approx(1_000)
    assert not quota.is_quota_exceeded()
    quota.record(1)
    assert quota.is_quota_exceeded()
    machine.pass_time(5_000)
    quota.record(5_000)
    assert quota.is_quota_exceeded()
    machine.pass_time(6_000)
    # The first window is over eleven seconds old; what came five seconds later counts still.
    assert quota.rate() == pytest.approx(500)
    machine.pass_time(60_000)
    assert quota.rate() == 0.0


def test_without_a_quota_nothing_is_exceeded() -> None:
    quota = ReplicationQuotaManager(VirtualMachine().clock)
    quota.record(1 << 60)
    assert not quota.is_quota_exceeded()
