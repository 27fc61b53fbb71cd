"""Brokers whose disks are full, fail, or have rotted: what keeps working, and what recovers without help."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kreplica.common.errors import KreplicaError, StorageFull, StorageIOError
from kreplica.common.types import ACKS_ALL, ACKS_LEADER, TopicPartition
from kreplica.log.log_directory import LogDirectory
from kreplica.log.unified_log import UnifiedLog
from kreplica.sim.faults import flip_a_bit
from kreplica.sim.machines import DIRECTORY
from kreplica.sim.storage import SimStorage
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": 1000, "segment.index.bytes": 4096, "max.message.bytes": 900}


def filled(records: int = 20, **more: object) -> Replicas:
    at = Replicas(settings={**SETTINGS, **more})
    append(at, records)
    return at


def append(at: Replicas, records: int, leader: int = 1) -> None:
    for number in range(records):
        value = b"%03d" % number * 50
        at.manager(leader).append(T0, batch(value), required_acks=ACKS_LEADER).result(0)
    at.pass_time(50)


def set_full(at: Replicas, broker: int, full: bool) -> None:
    at.cluster.brokers[broker].storage.full = full


def well(at: Replicas, leader: int = 1) -> bool:
    """Whether all replicas are in sync, and the same."""
    values = at.values(leader)
    in_sync = set(at.partition(leader).isr) == set(at.ids)
    return in_sync and all(at.values(each) == values for each in at.ids)


# ---- no room -----------------------------------------------------------------------------------------------


def test_a_follower_goes_on_when_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    at = filled()
    set_full(at, 2, True)
    append(at, 20)
    assert at.partition(2).log_end_offset < 40
    at.pass_time(60_000)
    assert set(at.partition(1).isr) == {1, 3}
    # The operator gets a warning now and then.
    warnings = [each for each in caplog.messages if "is full" in each]
    assert 1 <= len(warnings) <= 3
    assert all(each.startswith(DIRECTORY) and "t-0" in each for each in warnings)
    set_full(at, 2, False)
    at.pass_time(5_000)
    assert well(at)


def test_a_follower_without_room_holds_up_no_writer() -> None:
    at = filled()
    set_full(at, 2, True)
    written = [at.manager(1).append(T0, batch(b"v" * 150), required_acks=ACKS_ALL) for _ in range(20)]
    at.pass_time(2_000)
    assert all(each.done() for each in written)
    assert set(at.partition(1).isr) == {1, 3}
    # Without room it stays out of the ISR, and no append waits for it.
    at.pass_time(10_000)
    append(at, 5)
    assert set(at.partition(1).isr) == {1, 3}
    set_full(at, 2, False)
    at.pass_time(5_000)
    assert well(at)


def test_a_follower_without_room_reports_it_to_each_leader() -> None:
    at = filled()
    set_full(at, 2, True)
    append(at, 20)
    at.pass_time(2_000)
    assert set(at.partition(1).isr) == {1, 3}
    at.elect(3, [1, 2, 3], unclean=True)
    at.pass_time(3_000)
    assert set(at.partition(3).isr) == {1, 3}
    set_full(at, 2, False)
    at.pass_time(5_000)
    assert well(at, leader=3)


def test_a_leader_without_room_says_so(caplog: pytest.LogCaptureFixture) -> None:
    at = filled()
    set_full(at, 1, True)
    for _ in range(3):
        with pytest.raises(StorageFull):
            append(at, 20)
    assert len([each for each in caplog.messages if "is full" in each]) == 1


def hand_over(at: Replicas) -> list[int]:
    """Let the controller grant requests for a handover from now on; return the leaders that it elects."""
    led: list[int] = []

    def elect(broker_id: int, topic_partition: TopicPartition) -> None:
        state = at.controller.partitions[topic_partition]
        after = [*range(broker_id + 1, len(at.ids) + 1), *range(1, broker_id)]
        others = [each for each in after if each in state.isr]
        if state.leader == broker_id and others:
            led.append(others[0])
            with suppress(KreplicaError):
                at.elect(others[0])

    at.controller.on_handover = elect
    return led


def write(at: Replicas, seconds: int) -> None:
    """Write to the current leader, as a producer that retries would."""
    for number in range(4 * seconds):
        leader = at.controller.partitions[T0].leader
        answer = at.manager(leader).append(T0, batch(b"%03d" % number * 50), required_acks=ACKS_LEADER)
        at.pass_time(250)
        assert answer.done()


def test_a_leader_without_room_asks_for_another_one() -> None:
    at = filled()
    led = hand_over(at)
    set_full(at, 1, True)
    write(at, 5)
    assert led == [2]
    assert at.partition(2).log_end_offset > 20
    # It reports unasked that it has no room, and no append waits for it.
    assert set(at.partition(2).isr) == {2, 3}
    set_full(at, 1, False)
    write(at, 5)
    assert well(at, leader=2)
    assert led == [2]


def test_a_former_leader_is_in_sync_again_when_its_disk_has_room_without_new_writes() -> None:
    at = filled()
    hand_over(at)
    set_full(at, 1, True)
    write(at, 5)
    assert set(at.partition(2).isr) == {2, 3}
    at.pass_time(1_000)
    assert set(at.partition(2).isr) == {2, 3}
    set_full(at, 1, False)
    at.pass_time(3_000)
    assert well(at, leader=2)


def test_a_leader_that_has_room_again_at_once_goes_on_leading() -> None:
    at = filled()
    led = hand_over(at)
    set_full(at, 1, True)
    with pytest.raises(StorageFull):
        append(at, 20)
    set_full(at, 1, False)
    append(at, 1)
    at.pass_time(10_000)
    assert led == []
    assert well(at)


@pytest.mark.parametrize("free", [1, 2, 3])
def test_a_partition_is_not_handed_on_and_on_among_those_without_room(free: int) -> None:
    at = filled()
    led = hand_over(at)
    for broker in at.ids:
        set_full(at, broker, True)
    write(at, 60)
    # One of them has room then, and comes to lead after a while.
    assert len(led) <= 16
    set_full(at, free, False)
    write(at, 60)
    assert at.controller.partitions[T0].leader == free
    assert at.values(free)[-1] == b"239" * 50
    assert len(led) <= 22


def test_a_broker_without_room_to_lead_asks_for_another_one() -> None:
    at = filled()
    led = hand_over(at)
    set_full(at, 2, True)
    state = at.controller.elect(T0, 2)
    assert isinstance(at.broker(2).become_leader_or_follower([state], at.controller.epoch)[T0], StorageFull)
    at.notify(state, to=[1, 3])
    at.pass_time(5_000)
    assert led == [3]
    assert T0 not in at.manager(2).untaken
    append(at, 3, leader=3)
    set_full(at, 2, False)
    at.pass_time(35_000)
    assert well(at, leader=3)


def test_a_leader_that_has_no_room_to_note_its_epoch_leads_when_it_has() -> None:
    at = filled()
    set_full(at, 2, True)
    state = at.controller.elect(T0, 2)
    results = at.broker(2).become_leader_or_follower([state], at.controller.epoch)
    assert isinstance(results[T0], StorageFull)
    assert T0 in at.manager(2).untaken
    at.notify(state, to=[1, 3])
    at.pass_time(5_000)
    assert not at.partition(2).is_leader
    set_full(at, 2, False)
    at.pass_time(5_000)
    assert T0 not in at.manager(2).untaken
    append(at, 3, leader=2)
    assert well(at, leader=2)


@pytest.mark.parametrize("how", ["is stopped", "hears of a later leader", "shuts down"])
def test_a_role_that_waits_for_room_is_not_taken_when_it_is_over(how: str) -> None:
    at = filled()
    set_full(at, 2, True)
    at.broker(2).become_leader_or_follower([at.controller.elect(T0, 2)], at.controller.epoch)
    if how == "is stopped":
        at.manager(2).stop_replicas({T0: False})
    elif how == "hears of a later leader":
        at.notify(at.controller.elect(T0, 3), to=[2])
    else:
        at.manager(2).shutdown()
    set_full(at, 2, False)
    at.pass_time(5_000)
    assert T0 not in at.manager(2).untaken
    known = at.manager(2).partitions.get(T0)
    assert known is None or not known.is_leader


def test_a_log_that_there_is_no_room_for_holds_up_no_other_role() -> None:
    at = filled()
    set_full(at, 2, True)
    other = TopicPartition("t", 1)
    states = [at.controller.create(other, at.ids), at.controller.decide(T0, isr=(1, 2, 3))]
    results = at.broker(2).become_leader_or_follower(states, at.controller.epoch)
    assert isinstance(results[other], StorageFull)
    assert results[T0] is None
    assert other not in at.manager(2).untaken
    set_full(at, 2, False)
    assert at.broker(2).become_leader_or_follower(states, at.controller.epoch) == {other: None, T0: None}


def test_a_checkpoint_that_finds_no_room_is_written_the_next_time() -> None:
    at = filled()
    manager = at.broker(2).log_manager
    set_full(at, 2, True)
    at.manager(2).checkpoint_high_watermarks()
    assert manager.offline_directories == {}
    set_full(at, 2, False)
    at.manager(2).checkpoint_high_watermarks()
    marks = LogDirectory(at.cluster.brokers[2].storage, DIRECTORY).read_checkpoints()[2]
    assert marks[T0] == at.partition(2).high_watermark == 20


# ---- a disk that fails -------------------------------------------------------------------------------------


def test_a_directory_that_fails_at_a_checkpoint_takes_its_partitions_along() -> None:
    at = filled()

    def refuse(operation: str, path: str) -> None:
        raise StorageIOError(f"{operation} of {path}")

    at.cluster.set_disk_fault(1, refuse)
    at.manager(1).checkpoint_high_watermarks()
    at.settle()
    assert at.manager(1).partitions.is_offline(T0)
    with pytest.raises(KreplicaError):
        at.manager(1).append(T0, batch(b"x"), required_acks=ACKS_LEADER).result(0)


# ---- a broker that is no longer a replica ------------------------------------------------------------------


def test_a_replica_that_is_left_out_fetches_no_more() -> None:
    at = filled()
    state = at.controller.decide(T0, replicas=(1, 2), isr=(1, 2))
    at.notify(state)
    assert at.manager(3).partitions.get(T0) is None
    assert all(fetcher.state_of(T0) is None for fetcher in at.manager(3).fetchers)
    assert at.broker(3).log_manager.get_log(T0) is not None
    append(at, 3)
    assert at.values(2) == at.values(1)


def test_an_old_word_leaves_no_replica_out() -> None:
    at = filled()
    old = at.controller.decide(T0, replicas=(1, 2), isr=(1, 2))
    at.notify(at.controller.decide(T0, replicas=(1, 2, 3), isr=(1, 2, 3)))
    at.notify(old, to=[3])
    append(at, 3)
    assert well(at)


def test_a_log_that_a_life_without_room_began_to_make_outlives_a_power_cut() -> None:
    """Its directory was made, and not yet flushed when there was no room for its first file."""
    at = Replicas(settings={**SETTINGS, "durability": "fsync_quorum"})
    for broker in at.ids:
        storage = SimStorage()
        storage.make_directory(DIRECTORY)
        storage.sync_directory("/")
        at.cluster.kill(broker)
        at.cluster.brokers[broker].storage = storage
        at.cluster.start(broker)
        set_full(at, broker, True)
    with suppress(KreplicaError):
        at.notify(at.controller.elect(T0, 1))
    assert at.cluster.brokers[1].storage.exists(f"{DIRECTORY}/{T0}")
    for broker in at.ids:
        at.cluster.kill(broker)
        set_full(at, broker, False)
        at.cluster.start(broker)
    at.notify(at.controller.elect(T0, 1))
    append(at, 3)
    values = at.values(1)
    assert len(values) == 3
    for broker in at.ids:
        at.cluster.power_cut(broker)
        at.cluster.start(broker)
    at.notify(at.controller.elect(T0, 1))
    assert at.values(1) == values


# ---- recovery that stopped at rot --------------------------------------------------------------------------


def stop_at_rot(at: Replicas, broker: int, offset: int) -> UnifiedLog:
    """Let a bit rot while the broker is down."""
    at.cluster.kill(broker)
    assert flip_a_bit(at.cluster.brokers[broker].storage, DIRECTORY, T0, offset)
    at.cluster.start(broker)
    log = at.broker(broker).log_manager.get_log(T0)
    assert log is not None
    assert log.stopped_at is not None
    return log


def test_a_log_that_stopped_alone_in_the_isr_is_healed_by_those_out_of_it() -> None:
    at = filled(8, **{"segment.bytes": 65_536})
    at.pass_time(1_000)
    stop_at_rot(at, 1, 3)
    state = at.controller.elect(T0, 1, isr=[1])
    for broker in at.ids:
        with suppress(KreplicaError):
            at.notify(state, to=[broker])
    at.pass_time(5_000)
    assert at.partition(1).is_leader
    append(at, 3)
    at.pass_time(1_000)
    assert well(at)


@pytest.mark.parametrize("log_start", [4, 8])
def test_a_log_that_stopped_below_its_start_goes_on(log_start: int) -> None:
    """No replica has, or needs, the deleted records."""
    at = filled(12, **{"segment.bytes": 65_536})
    at.pass_time(1_000)
    at.manager(1).delete_records({T0: log_start})
    at.pass_time(1_000)
    stop_at_rot(at, 2, 3)
    at.notify(at.controller.decide(T0))
    at.pass_time(5_000)
    assert at.partition(2).local_log.stopped_at is None
    assert well(at)


def test_a_follower_whose_lost_range_the_leader_has_deleted_begins_again() -> None:
    at = filled(12, **{"segment.bytes": 65_536})
    at.pass_time(1_000)
    at.cluster.kill(2)
    at.notify(at.controller.decide(T0, isr=(1, 3)))
    at.manager(1).delete_records({T0: 9})
    at.pass_time(1_000)
    assert flip_a_bit(at.cluster.brokers[2].storage, DIRECTORY, T0, 3)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.pass_time(5_000)
    assert well(at)


def test_a_range_across_the_log_start_in_which_a_leader_epoch_begins_is_healed() -> None:
    """Where recovery stopped, that epoch is not known yet, so the replicas that are asked must not compare
    it."""
    at = filled(4, **{"segment.bytes": 65_536})
    at.elect(1)
    at.manager(1).append(T0, batch(b"a", b"b", b"c"), required_acks=ACKS_LEADER).result(0)
    append(at, 4)
    at.pass_time(1_000)
    at.manager(1).delete_records({T0: 5})
    stop_at_rot(at, 1, 5)  # before the others hear of the deletion
    log = at.broker(1).log_manager.get_log(T0)
    assert log.stopped_at.first_offset == 4
    log.epochs.truncate_from_end(4)  # as it is where recovery reads the epochs anew
    state = at.controller.elect(T0, 1, isr=[1])
    for broker in at.ids:
        with suppress(KreplicaError):
            at.notify(state, to=[broker])
    at.pass_time(5_000)
    assert at.partition(1).is_leader
    assert well(at)


def test_a_batch_that_the_others_hold_from_the_middle_on_is_healed() -> None:
    """The others have applied a deletion that their new leader missed; they still hold the whole batch."""
    at = filled(4, **{"segment.bytes": 65_536})
    at.manager(1).append(T0, batch(b"a", b"b", b"c"), required_acks=ACKS_LEADER).result(0)
    append(at, 4)
    at.pass_time(1_000)
    for broker in (2, 3):
        assert at.partition(broker).local_log.maybe_increment_log_start_offset(5)
    assert flip_a_bit(at.cluster.brokers[1].storage, DIRECTORY, T0, 4)
    log = at.partition(1).local_log
    assert log.search_damage(log.local.segments[0], 4)
    at.pass_time(1_000)
    assert not log.damages
    assert [record.value for each in log.batches(4, 7) for record in each] == [b"a", b"b", b"c"]


def test_a_follower_that_asks_for_deleted_records_gets_out_of_range_though_they_rotted() -> None:
    """Otherwise it would ask for ever: deleted records are never healed."""
    at = filled(12, **{"segment.bytes": 65_536})
    at.pass_time(1_000)
    assert flip_a_bit(at.cluster.brokers[1].storage, DIRECTORY, T0, 0)
    log = at.partition(1).local_log
    assert log.search_damage(log.local.segments[0], 0)
    at.pass_time(1_000)
    rotten = at.partition(1).local_log.local.segments[0]
    assert flip_a_bit(at.cluster.brokers[1].storage, DIRECTORY, T0, 0)
    at.manager(1).delete_records({T0: 6})
    assert at.partition(1).local_log.search_damage(rotten, 0)
    at.cluster.kill(2)
    at.cluster.brokers[2].storage = SimStorage()
    at.cluster.brokers[2].storage.make_directory(DIRECTORY)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.pass_time(5_000)
    assert at.partition(2).log_start_offset == 6
    assert well(at)


def test_a_range_that_was_found_while_the_disk_was_full_is_healed_when_there_is_room() -> None:
    """It lies in the segment that is appended to, which could not be closed then."""
    at = filled(12, **{"segment.bytes": 65_536})
    at.pass_time(1_000)
    log = at.partition(1).local_log
    assert flip_a_bit(at.cluster.brokers[1].storage, DIRECTORY, T0, 3)
    set_full(at, 1, True)
    with pytest.raises(StorageFull):
        log.search_damage(log.local.segments[0], 3)
    at.pass_time(2_000)
    assert len(log.local.segments) == 1
    assert [each.first_offset for each in log.damages] == [3]
    set_full(at, 1, False)
    at.pass_time(2_000)
    assert not log.damages
    assert well(at)
