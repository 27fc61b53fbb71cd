"""A replica whose disk was full, and what it reports of that while no client writes."""

from __future__ import annotations

from kreplica.common.errors import StorageFull
from kreplica.common.types import NO_OFFSET
from kreplica.log.damage import Damage
from kreplica.replica.full_disks import HOPE_MS
from kreplica.sim.machines import DIRECTORY
from tests.support.replicas import Replicas, batch


def refused(at: Replicas, broker_id: int) -> None:
    """Report a full disk late: there is room again by now."""
    manager = at.manager(broker_id)
    manager.full_disks.refused(DIRECTORY, at.partitions[0], StorageFull("no room"))
    at.settle()


def test_a_follower_that_has_room_again_when_it_hears_of_none_is_soon_in_sync() -> None:
    at = Replicas()
    at.manager(1).append(at.partitions[0], batch(b"a"))
    at.pass_time(100)
    refused(at, 2)
    at.pass_time(10)
    assert at.partition(1).isr == (1, 3)
    backoff_ms = at.manager(2).config.replica_fetch_backoff_ms
    at.pass_time(5 * backoff_ms)
    assert 5 * backoff_ms < HOPE_MS
    assert sorted(at.partition(1).isr) == [1, 2, 3]


def test_refusals_in_a_row_are_believed_longer_each_time() -> None:
    at = Replicas()
    at.manager(1).append(at.partitions[0], batch(b"a"))
    at.pass_time(100)
    backoff_ms = at.manager(2).config.replica_fetch_backoff_ms
    for _ in range(4):
        refused(at, 2)
    at.pass_time(5 * backoff_ms)
    assert at.partition(1).isr == (1, 3)
    at.pass_time(8 * backoff_ms)
    assert sorted(at.partition(1).isr) == [1, 2, 3]
    # What goes through ends the row.
    at.manager(1).append(at.partitions[0], batch(b"b"))
    at.pass_time(100)
    refused(at, 2)
    at.pass_time(5 * backoff_ms)
    assert sorted(at.partition(1).isr) == [1, 2, 3]


def test_a_leader_that_took_the_follower_for_damaged_hears_in_its_next_epoch_that_it_is_not() -> None:
    """It knew nothing of the follower yet, which had room again at an end below the high watermark."""
    at = Replicas()
    at.manager(1).append(at.partitions[0], batch(b"a"))
    at.pass_time(100)
    at.manager(2).fetchers.remove_fetcher_for_partitions(at.partitions)
    at.manager(1).append(at.partitions[0], batch(b"b"))
    at.pass_time(2 * at.manager(1).config.replica_lag_time_max_ms)
    assert at.partition(1).isr == (1, 3)
    at.elect(3)
    at.manager(2).fetchers.remove_fetcher_for_partitions(at.partitions)
    refused(at, 2)
    at.pass_time(5 * at.manager(2).config.replica_fetch_backoff_ms)
    leader = at.partition(3)
    known = leader.replica(2)
    assert known is not None
    assert (known.damaged, leader.high_watermark, known.log_end_offset) == (True, 2, NO_OFFSET)
    at.elect(3)  # it keeps what it knows
    at.pass_time(5 * at.manager(2).config.replica_fetch_backoff_ms)
    assert sorted(leader.isr) == [1, 2, 3]


def test_a_leader_that_goes_on_hears_once_more_that_there_is_room() -> None:
    """That there was none came to it twice, the second time last."""
    at = Replicas()
    at.manager(1).append(at.partitions[0], batch(b"a"))
    at.pass_time(100)
    refused(at, 2)
    at.pass_time(5 * at.manager(2).config.replica_fetch_backoff_ms)
    leader = at.partition(1)
    known = leader.replica(2)
    assert known is not None
    assert (known.damaged, sorted(leader.isr)) == (False, [1, 2, 3])
    leader.note_lost_range(2, 0, leader.leader_epoch, known.broker_epoch)
    at.elect(1)
    at.pass_time(5 * at.manager(2).config.replica_fetch_backoff_ms)
    assert (known.damaged, sorted(leader.isr)) == (False, [1, 2, 3])


def test_damage_below_the_log_start_does_not_keep_a_follower_from_saying_that_it_has_room() -> None:
    """The damaged segment is not deleted yet, and the follower stayed out of the ISR for good."""
    at = Replicas()
    for value in (b"a", b"b"):
        at.manager(1).append(at.partitions[0], batch(value))
    at.pass_time(100)
    at.partition(1).delete_records_on_leader(1)
    at.manager(1).append(at.partitions[0], batch(b"c"))
    at.pass_time(100)
    partition = at.partition(2)
    log = partition.local_log
    assert log.log_start_offset == 1
    path = log.local.segments[0].region.path
    below = Damage(0, 1, path, position=0, end_position=69, reason="rot")
    log.damages = log.damages.with_added(below)
    assert not partition.is_damaged
    refused(at, 2)
    at.pass_time(10)
    assert at.partition(1).isr == (1, 3)
    at.pass_time(5 * at.manager(2).config.replica_fetch_backoff_ms)
    assert sorted(at.partition(1).isr) == [1, 2, 3]
