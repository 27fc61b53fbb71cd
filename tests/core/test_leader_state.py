"""What a leader concludes from a follower's fetches: when it was last caught up."""

from __future__ import annotations

from kreplica._core.leader_state import NEVER_MS, UNKNOWN_BROKER_EPOCH, FetchClock, Replica
from kreplica.common.types import NO_OFFSET


def fetched(replica: Replica, offset: int, now_ms: int, leader_end: int, broker_epoch: int = 7) -> Replica:
    replica.update_fetch_state(offset, 0, now_ms, leader_end, broker_epoch)
    return replica


def test_a_new_one_has_never_been_heard_of():
    replica = Replica(2)
    assert (replica.log_end_offset, replica.last_caught_up_time_ms) == (NO_OFFSET, NEVER_MS)
    assert not replica.is_caught_up(0, now_ms=0, max_lag_ms=10_000)


def test_it_is_caught_up_as_of_now_with_all_that_the_leader_has():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    assert replica.last_caught_up_time_ms == 500
    assert replica.is_caught_up(10, now_ms=99_999, max_lag_ms=1)
    assert replica.is_caught_up(11, now_ms=501, max_lag_ms=1)
    assert not replica.is_caught_up(11, now_ms=502, max_lag_ms=1)


def test_it_is_caught_up_as_of_its_last_fetch_with_all_that_the_leader_had_then():
    replica = fetched(Replica(2), 0, 100, leader_end=10)
    assert replica.last_caught_up_time_ms == NEVER_MS
    fetched(replica, 10, 200, leader_end=20)
    assert replica.last_caught_up_time_ms == 100
    fetched(replica, 15, 300, leader_end=30)  # not all of the 20 that there were at 200
    assert replica.last_caught_up_time_ms == 100
    fetched(replica, 29, 400, leader_end=40)
    assert replica.last_caught_up_time_ms == 100
    fetched(replica, 40, 500, leader_end=50)
    assert replica.last_caught_up_time_ms == 400


def test_times_and_the_leaders_end_never_go_back():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    fetched(replica, 10, 400, leader_end=8)
    assert (replica.last_caught_up_time_ms, replica.last_fetch_leader_log_end_offset) == (500, 10)


def test_a_leader_that_was_one_before_keeps_what_it_knows():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    replica.diverged = True
    replica.reset_replica_state(600, 12, is_new_leader=False, is_in_sync=True)
    assert (replica.log_end_offset, replica.broker_epoch) == (10, 7)
    assert (replica.last_caught_up_time_ms, replica.last_fetch_time_ms) == (600, 600)
    assert replica.last_fetch_leader_log_end_offset == 12
    assert not replica.fetched_in_epoch
    assert not replica.diverged
    replica.reset_replica_state(700, 12, is_new_leader=False, is_in_sync=False)
    assert (replica.last_caught_up_time_ms, replica.last_fetch_time_ms) == (NEVER_MS, NEVER_MS)


def test_a_new_leader_knows_nothing():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    replica.damaged, replica.fetch_clock = True, FetchClock(500)
    replica.reset_replica_state(600, 12, is_new_leader=True, is_in_sync=True)
    assert (replica.log_end_offset, replica.log_start_offset) == (NO_OFFSET, NO_OFFSET)
    assert replica.broker_epoch == UNKNOWN_BROKER_EPOCH
    assert (replica.last_caught_up_time_ms, replica.last_fetch_time_ms) == (600, NEVER_MS)
    assert replica.fetch_clock is None
    assert not replica.damaged


def test_fetches_that_a_session_does_not_spell_out_count_when_the_leader_moves_on():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    replica.fetch_clock = clock = FetchClock(500)
    clock.last_fetch_time_ms = 90_000
    replica.leader_moved_on()
    assert (replica.last_fetch_time_ms, replica.last_caught_up_time_ms) == (90_000, 90_000)
    assert replica.last_fetch_leader_log_end_offset == 10
    fetched(replica, 10, 90_500, leader_end=20)  # the first that is spelled out again
    assert replica.last_caught_up_time_ms == 90_000


def test_without_a_session_nothing_is_taken_for_fetched():
    replica = fetched(Replica(2), 10, 500, leader_end=10)
    replica.leader_moved_on()
    replica.fetch_clock = FetchClock()
    replica.leader_moved_on()
    assert (replica.last_fetch_time_ms, replica.last_caught_up_time_ms) == (500, 500)
