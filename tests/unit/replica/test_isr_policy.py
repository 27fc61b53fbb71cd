"""Lag by time, as Kafka measures it since 0.9, and by messages, as it did before."""

from __future__ import annotations

import pytest

from kreplica._core.leader_state import Replica
from kreplica.replica.isr_policy import LagByMessages, LagByTime
from tests.support.partitions import Replicas


@pytest.fixture
def follower() -> Replica:
    replica = Replica(2)
    replica.update_fetch_state(100, 0, 1_000, 100, 7)
    return replica


def test_by_time_a_burst_is_no_lag(follower):
    policy = LagByTime(10_000)
    assert policy.is_caught_up(follower, 1_000_000, now_ms=11_000)
    assert not policy.is_caught_up(follower, 101, now_ms=11_001)


def test_by_messages_a_follower_that_lags_by_the_limit_is_out(follower):
    policy = LagByMessages(4, 10_000)
    assert policy.is_caught_up(follower, 103, now_ms=1_000)
    assert not policy.is_caught_up(follower, 104, now_ms=1_000)


def test_by_messages_a_follower_that_stops_fetching_is_out_by_time(follower):
    policy = LagByMessages(4, 10_000)
    assert policy.is_caught_up(follower, 101, now_ms=11_000)
    assert not policy.is_caught_up(follower, 101, now_ms=11_001)
    assert policy.is_caught_up(follower, 100, now_ms=99_000)


def test_by_messages_a_follower_that_has_not_fetched_yet_has_the_lag_time():
    replica = Replica(2)
    replica.reset_replica_state(1_000, 50, is_new_leader=True, is_in_sync=True)
    policy = LagByMessages(4, 10_000)
    assert policy.is_caught_up(replica, 50, now_ms=11_000)
    assert not policy.is_caught_up(replica, 50, now_ms=11_001)


@pytest.mark.parametrize(("policy", "out"), [(LagByMessages(4, 500), (2, 3)), (LagByTime(500), ())])
def test_a_burst_of_four_throws_followers_out_by_messages_only(policy, out):
    replicas = Replicas(policy=policy)
    replicas.lead(1)
    replicas.append(b"1")
    replicas.catch_up(2, 3)
    for _ in range(3):
        replicas.append(b"a", b"b", b"c", b"d")
        proposed = replicas.leader.maybe_shrink_isr(replicas.clock.now_ms).isr_change
        wanted = replicas.leader.isr if proposed is None else proposed.leader_and_isr.isr
        assert set(replicas.ids) - set(wanted) == set(out)
        if proposed is not None:
            replicas.accept(proposed)
        for _ in out:
            replicas.accept(replicas.catch_up(2, 3).isr_change)
        replicas.catch_up(2, 3)
        assert set(replicas.leader.isr) == {1, 2, 3}
    kinds = [change.kind for change in replicas.leader.isr_history]
    assert kinds == (["shrink", "shrink", "expand", "expand"] * 3 if out else [])
