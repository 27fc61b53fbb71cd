"""Damaged ranges of a broker's log, filled from the other replicas: three brokers, rot in their files."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.log_segment import LogSegment
from kreplica.common.errors import (
    CorruptMessage,
    DamagedLog,
    KafkaStorageError,
    KreplicaError,
    StorageFull,
    StorageIOError,
)
from kreplica.common.types import ACKS_LEADER, TopicPartition
from kreplica.log import splice as splice_module
from kreplica.log.file_names import DAMAGE_FILE, STATE_FILE
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica.partition_state import IsrChangeReason
from kreplica.sim.machines import DIRECTORY
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": 1000, "segment.index.bytes": 4096, "max.message.bytes": 900}
RECORDS = 30
# Where a record's value begins, and its batch's base offset, in the batch.
VALUE, BASE_OFFSET = 70, 7


def filled(records: int = RECORDS, **more: object) -> Replicas:
    """Three replicas with batches of one record each, about four to a segment."""
    at = Replicas(settings={**SETTINGS, **more})
    append(at, records)
    return at


def append(at: Replicas, records: int, leader: int = 1) -> None:
    for _ in range(records):
        end = at.partition(leader).log_end_offset
        future = at.manager(leader).append(T0, batch(b"%03d" % end * 50), required_acks=ACKS_LEADER)
        assert future.result(0).base_offset == end
    for _ in range(3):
        at.settle()


def rot(at: Replicas, broker: int, offset: int, byte: int = VALUE) -> None:
    """Flip a bit of the batch that holds the offset, behind the broker's back."""
    flip(*place(at, broker, offset), byte)


def place(at: Replicas, broker: int, offset: int) -> tuple[LogSegment, int]:
    """The segment that holds the offset, and where its batch stands."""
    log = at.partition(broker).local_log
    segment = log.local.segments[log.local.segments.index_for(offset)]
    found = segment.position_of(offset)
    assert found is not None
    return segment, found[0]


def flip(segment: LogSegment, position: int, byte: int) -> None:
    cell = segment.region.slice(position + byte, 1)
    ctypes.c_uint8.from_address(cell.address).value ^= 1


def stumble(at: Replicas, broker: int, offset: int) -> None:
    """A reader comes to the offset and gets an error that it may try again after, and no bytes."""
    with pytest.raises(KreplicaError) as caught:
        read(at.partition(broker).local_log, offset)
    assert caught.value.retriable


def read(log: UnifiedLog, offset: int) -> list[bytes | None]:
    return [record.value for each in log.batches(offset, offset + 1) for record in each]


def image(at: Replicas, broker: int) -> bytes:
    """All bytes of a broker's log."""
    log = at.partition(broker).local_log
    return b"".join(segment.region.read(0, segment.size) for segment in log.local.segments)


def gauge(at: Replicas, broker: int) -> float:
    values = at.manager(broker).metrics.values()
    return next(value for name, value in values.items() if "name=DamagedPartitionsCount" in name)


def history(at: Replicas) -> list[tuple[str, int, IsrChangeReason]]:
    leader = next(at.partition(each) for each in at.ids if at.partition(each).is_leader)
    return [(change.kind, change.broker_id, change.reason) for change in leader.isr_history]


LEFT_AND_CAME_BACK = [
    ("shrink", 2, IsrChangeReason.DAMAGED),
    ("expand", 2, IsrChangeReason.CAUGHT_UP),
]


# ---- a range of one replica --------------------------------------------------------------------------------


def test_a_follower_leaves_the_isr_takes_the_range_from_its_leader_and_comes_back() -> None:
    at = filled()
    whole = image(at, 2)
    rot(at, 2, 9)
    stumble(at, 2, 9)
    assert gauge(at, 2) == 1
    at.pass_time(2_000)
    assert image(at, 2) == whole == image(at, 1)
    assert history(at) == LEFT_AND_CAME_BACK
    assert set(at.partition(1).isr) == {1, 2, 3}
    assert gauge(at, 2) == 0
    assert read(at.partition(2).local_log, 9) == [b"009" * 50]
    append(at, 3)
    assert at.values(2) == at.values(1)


@pytest.mark.parametrize(("damaged", "peer"), [(2, 1), (1, 2)])
def test_a_repair_is_logged_with_the_offsets_and_the_broker_that_had_them(
    damaged: int, peer: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kreplica.replica.damage_repair")
    at = filled()
    rot(at, damaged, 9)
    stumble(at, damaged, 9)
    at.pass_time(2_000)
    [text] = caplog.messages
    assert text.startswith(f"broker {damaged}: t-0: repaired the damaged offsets 9 to 9 (")
    assert text.endswith(f" with the data of broker {peer}")


@pytest.mark.parametrize("new_epoch", [False, True])
def test_a_late_report_of_a_range_keeps_no_replica_out_of_the_isr(new_epoch: bool) -> None:
    """A message may come twice, the second time after the one that says that the log is whole."""
    at = filled()
    rot(at, 2, 9)
    stumble(at, 2, 9)
    at.pass_time(2_000)
    assert history(at) == LEFT_AND_CAME_BACK
    if new_epoch:
        at.elect(1)
        at.pass_time(100)
    leader = at.partition(1)
    late = leader.note_lost_range(2, 9, leader.leader_epoch, at.controller.broker_epochs[2])
    at.manager(1).act_on(leader, late)
    at.settle()
    at.notify(at.controller.partitions[T0])
    assert set(leader.isr) == {1, 3}
    at.pass_time(2_000)
    at.notify(at.controller.partitions[T0])
    assert set(leader.isr) == {1, 2, 3}


def test_a_leader_takes_the_range_from_a_follower_and_goes_on_leading() -> None:
    at = filled()
    whole = image(at, 1)
    rot(at, 1, 9)
    stumble(at, 1, 9)
    with pytest.raises(DamagedLog):
        at.partition(1).fetch_records(9, 1000, isolation="high_watermark", replica_id=-1)
    assert at.partition(1).fetch_records(13, 100, isolation="high_watermark", replica_id=-1).records
    at.pass_time(2_000)
    assert image(at, 1) == whole
    assert history(at) == []
    assert at.partition(1).is_leader


@pytest.mark.parametrize("broker", [1, 2])
def test_what_the_scrubber_finds_is_repaired(broker: int) -> None:
    at = filled()
    whole = image(at, broker)
    for offset in (0, 5, 6, 17):
        rot(at, broker, offset)
    at.pass_time(120_000)
    assert image(at, broker) == whole
    assert gauge(at, broker) == 0
    assert set(at.partition(1).isr) == {1, 2, 3}


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("byte", [BASE_OFFSET, 11, 15, 16, 30, VALUE])
def test_wherever_in_a_batch_it_rotted(broker: int, byte: int) -> None:
    at = filled()
    whole = image(at, broker)
    rot(at, broker, 9, byte)
    log = at.partition(broker).local_log
    assert log.search_damage(log.local.segments[log.local.segments.index_for(8)], 8) or log.search_damage(
        log.local.segments[log.local.segments.index_for(8)], 11
    )
    at.pass_time(3_000)
    assert image(at, broker) == whole


def test_the_end_of_the_log_is_repaired_too() -> None:
    at = filled()
    whole = image(at, 2)
    rot(at, 2, RECORDS - 1)
    stumble(at, 2, RECORDS - 1)
    at.pass_time(2_000)
    assert image(at, 2) == whole
    append(at, 2)
    assert at.values(2) == at.values(1)


# ---- several replicas --------------------------------------------------------------------------------------


def test_leader_and_follower_fill_each_other_s_ranges() -> None:
    at = filled()
    whole = image(at, 1)
    for broker, offset in ((1, 3), (2, 9), (3, 20)):
        rot(at, broker, offset)
    for broker, offset in ((1, 3), (2, 9), (3, 20)):
        stumble(at, broker, offset)
    at.pass_time(10_000)
    assert [image(at, broker) for broker in at.ids] == [whole] * 3
    assert set(at.partition(1).isr) == {1, 2, 3}


def test_a_range_that_two_lack_comes_from_the_third() -> None:
    at = filled()
    whole = image(at, 1)
    rot(at, 1, 9)
    rot(at, 2, 9)
    stumble(at, 2, 9)
    stumble(at, 1, 9)
    at.pass_time(10_000)
    assert [image(at, broker) for broker in at.ids] == [whole] * 3


def test_what_all_have_lost_stays_damaged_and_is_never_served() -> None:
    at = filled()
    for broker in at.ids:
        rot(at, broker, 9)
    for broker in at.ids:
        stumble(at, broker, 9)
    at.pass_time(20_000)
    assert [gauge(at, broker) for broker in at.ids] == [1, 1, 1]
    for broker in at.ids:
        with pytest.raises(DamagedLog):
            read(at.partition(broker).local_log, 9)
        assert read(at.partition(broker).local_log, 10) == [b"010" * 50]
    assert at.partition(1).isr == (1,)
    assert at.partition(1).why_not_in_isr(2).keeps_out == "a range of its log is damaged"
    # They go on replicating all the same.
    append(at, 2)
    assert [at.partition(broker).log_end_offset for broker in at.ids] == [RECORDS + 2] * 3


def test_a_range_that_no_replica_can_fill_does_not_delay_another() -> None:
    at = filled()
    for broker in at.ids:
        rot(at, broker, 9)
        stumble(at, broker, 9)
    for offset in (2, 20):
        rot(at, 2, offset)
        stumble(at, 2, offset)
    at.pass_time(5_000)
    assert [damage.first_offset for damage in at.partition(2).local_log.damages] == [9]


# ---- replicas that may not help ----------------------------------------------------------------------------


def test_a_replica_of_another_leader_epoch_is_not_believed() -> None:
    at = filled()
    at.cluster.cut(2, 3)
    # Broker 2 does not hear of the new epoch: the others refuse it until it does.
    at.notify(at.controller.elect(T0, 3), to=(1, 3))
    rot(at, 2, 9)
    stumble(at, 2, 9)
    at.pass_time(5_000)
    assert gauge(at, 2) == 1
    at.cluster.heal_all()
    at.notify(at.controller.decide(T0))
    at.pass_time(5_000)
    assert gauge(at, 2) == 0
    assert image(at, 2) == image(at, 3)


def test_other_records_at_the_same_offsets_are_refused() -> None:
    at = filled(8)
    # Brokers 1 and 3 have other records at the same offsets, of the same leader epoch.
    log = at.partition(2).local_log
    log.truncate_to(0)
    for offset in range(8):
        log.append_records([b"%03d" % (offset + 500) * 50], 0)
    rot(at, 2, 2)
    stumble(at, 2, 2)
    at.pass_time(5_000)
    assert [damage.first_offset for damage in log.damages] == [2]
    assert read(log, 1) == [b"501" * 50]


# ---- what stops a repair -----------------------------------------------------------------------------------


def failing(at: Replicas, broker: int, when: Callable[[str, str], bool], error: Exception) -> None:
    def fault(operation: str, path: str) -> None:
        if when(operation, path):
            raise error

    at.cluster.set_disk_fault(broker, fault)


def test_a_leader_that_cannot_write_the_range_wants_an_in_sync_follower_to_lead() -> None:
    at = filled()
    asked = []
    at.manager(1).peers.on_wants_handover = lambda partition, _: asked.append(partition.topic_partition)
    failing(at, 1, lambda _, path: ".cleaned" in path, StorageFull("no room"))
    rot(at, 1, 9)
    stumble(at, 1, 9)
    at.pass_time(500)
    assert set(asked) == {T0}
    assert gauge(at, 1) == 1
    at.elect(2)
    at.cluster.set_disk_fault(1, None)
    at.pass_time(5_000)
    assert gauge(at, 1) == 0
    assert image(at, 1) == image(at, 2)


def test_a_leader_with_rot_that_no_follower_has_fetched_wants_an_in_sync_follower_to_lead() -> None:
    """No follower can fetch past the rot. Without another leader the ISR would shrink, for ever, to the one
    broker that cannot read its records."""
    at = filled()
    asked = []
    at.manager(1).peers.on_wants_handover = lambda partition, _: asked.append(partition.topic_partition)
    end = at.cluster.hold(lambda message: message.is_request and message.receiver == 1)
    at.pass_time(1_000)
    append(at, 3)
    assert [at.partition(each).log_end_offset for each in at.ids] == [RECORDS + 3, RECORDS, RECORDS]
    rot(at, 1, RECORDS + 1)
    end()
    for message in at.cluster.held():
        at.cluster.release(message)
    at.pass_time(3_000)
    assert set(asked) == {T0}
    assert set(at.partition(1).isr) == {1, 2, 3}
    at.elect(2)
    append(at, 1, leader=2)
    at.pass_time(3_000)
    assert [gauge(at, each) for each in at.ids] == [0, 0, 0]
    assert image(at, 1) == image(at, 2) == image(at, 3)
    assert at.partition(1).log_end_offset == RECORDS + 2
    assert set(at.partition(2).isr) == {1, 2, 3}


def test_a_disk_that_fails_when_a_range_is_to_be_noted_takes_the_directory_offline() -> None:
    """The reader got an error, and the log went on on a disk that had refused a write."""
    at = filled()
    log = at.partition(1).local_log
    failing(at, 1, lambda _, path: DAMAGE_FILE in path, StorageIOError("the disk fails"))
    rot(at, 1, 9)
    with pytest.raises(StorageIOError):
        read(log, 9)
    assert log.is_offline
    at.settle()
    with pytest.raises(KafkaStorageError):
        at.partition(1)


class Died(Exception):
    """The broker's machine stops here."""


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(12))
def test_a_crash_in_the_middle_of_a_splice_leaves_a_log_that_is_repaired(step: int, power: bool) -> None:
    at = filled()
    at.partition(2).local_log.flush()
    whole = image(at, 2)
    rot(at, 2, 9)
    left = [step]

    def fault(operation: str, path: str) -> None:
        if ".cleaned" in path or ".swap" in path or left[0] < step:
            left[0] -= 1
        if left[0] < 0:
            raise Died(operation, path)

    stumble(at, 2, 9)
    at.cluster.set_disk_fault(2, fault)
    with suppress(Died):
        at.pass_time(1_000)
    at.cluster.set_disk_fault(2, None)
    (at.cluster.power_cut if power else at.cluster.kill)(2)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.pass_time(10_000)
    assert image(at, 2) == whole
    assert set(at.partition(1).isr) == {1, 2, 3}


# ---- what recovery finds -----------------------------------------------------------------------------------


def rot_file(at: Replicas, broker: int, offset: int, log: UnifiedLog, cut: bool = False) -> None:
    """Damage the file of a broker that is down; `cut`: all from the offset's batch on in its segment."""
    segment = log.local.segments[log.local.segments.index_for(offset)]
    found = segment.position_of(offset)
    assert found is not None
    storage, path = at.cluster.brokers[broker].storage, segment.region.path
    data = storage.read_file(path)
    if cut:
        storage.write_at(path, found[0], b"\xff" * (segment.size - found[0]))
    else:
        storage.write_at(path, found[0] + VALUE, bytes([data[found[0] + VALUE] ^ 1]))
    storage.sync_file(path)


@pytest.mark.parametrize("offsets", [(2,), (28,), (2, 9, 10, 28)])
@pytest.mark.parametrize("cut", [False, True])
def test_a_follower_whose_recovery_stops_at_rot_is_made_whole(offsets: tuple[int, ...], cut: bool) -> None:
    at = filled()
    log = at.partition(2).local_log
    whole = image(at, 2)
    at.cluster.kill(2)
    for offset in offsets:
        rot_file(at, 2, offset, log, cut)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    assert at.partition(2).is_damaged
    append(at, 5)
    at.pass_time(20_000)
    assert gauge(at, 2) == 0
    assert image(at, 2).startswith(whole[:100])
    assert image(at, 2) == image(at, 1)
    assert set(at.partition(1).isr) == {1, 2, 3}


@pytest.mark.parametrize("notes_epochs", [True, False])
def test_a_follower_whose_log_is_lost_takes_batches_of_a_later_epoch(
    notes_epochs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Recovery took them for damage, and the repair put the same bytes there again, without end."""
    caplog.set_level(logging.INFO, logger="kreplica.replica.damage_repair")
    if not notes_epochs:
        # Recovery stops there again: the log is cut, and follows its leader from there on.
        monkeypatch.setattr(splice_module, "_note_epochs", lambda *_: None)
    at = filled(3)
    log = at.partition(2).local_log
    at.cluster.kill(2)
    at.elect(3, isr=(1, 3))
    append(at, 2, leader=3)
    rot_file(at, 2, 0, log, cut=True)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.pass_time(20_000)
    assert image(at, 2) == image(at, 3)
    assert [entry.epoch for entry in at.partition(2).local_log.epochs.entries] == [0, 1]
    assert set(at.partition(3).isr) == {1, 2, 3}
    cut = [text for text in caplog.messages if "truncated the log to offset" in text]
    assert len(cut) == (0 if notes_epochs else 1)


def test_a_log_at_whose_rot_recovery_stopped_is_not_cut_before_its_leader_has_answered() -> None:
    """Until another replica answers, this one may be the only one with the records behind the range."""
    at = filled()
    log = at.partition(2).local_log
    whole = image(at, 2)
    at.cluster.kill(2)
    rot_file(at, 2, 9, log)
    at.cluster.kill(1)
    at.cluster.kill(3)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0, isr=(1,)), to=[2])
    at.pass_time(5_000)
    assert at.partition(2).local_log.stopped_at.first_offset == 9
    # One that answers, and does not lead, says nothing of what is committed either.
    at.cluster.start(1)
    at.pass_time(5_000)
    assert at.partition(2).local_log.stopped_at.first_offset == 9
    at.notify(at.controller.decide(T0), to=[1, 2])
    at.pass_time(5_000)
    assert image(at, 2) == whole


def test_a_full_disk_puts_off_the_repair_of_a_log_at_whose_rot_recovery_stopped() -> None:
    at = filled()
    log = at.partition(2).local_log
    whole = image(at, 2)
    at.cluster.kill(2)
    rot_file(at, 2, 9, log)
    at.cluster.start(2)
    failing(at, 2, lambda _, path: path.endswith(".log.tmp"), StorageFull("no room"))
    at.notify(at.controller.decide(T0))
    at.pass_time(5_000)
    assert at.partition(2).local_log.stopped_at.first_offset == 9
    assert read(at.partition(2).local_log, 8) == [b"008" * 50]
    at.cluster.set_disk_fault(2, None)
    at.pass_time(5_000)
    assert image(at, 2) == whole
    assert set(at.partition(1).isr) == {1, 2, 3}


def test_a_log_that_is_opened_again_for_a_repair_keeps_its_high_watermark() -> None:
    """The checkpoint may have an older one, or no entry for the log."""
    at = filled()
    log = at.partition(2).local_log
    at.cluster.kill(2)
    rot_file(at, 2, 9, log)
    at.cluster.start(2)
    manager = at.manager(2).log_manager
    stopped = manager.get_log(T0)
    assert (stopped.stopped_at.first_offset, stopped.high_watermark) == (9, 9)
    storage = at.cluster.brokers[2].storage
    storage.write_file(f"{DIRECTORY}/replication-offset-checkpoint", b"0\n0\n")
    storage.remove(f"{log.local.directory}/{STATE_FILE}")
    again = manager.reopen_log(T0, lambda: None)
    assert again is not stopped
    assert again.high_watermark == 9


def test_an_elected_leader_refuses_a_log_whose_recovery_stopped_at_rot() -> None:
    at = filled()
    log = at.partition(2).local_log
    whole = image(at, 2)
    at.cluster.kill(2)
    rot_file(at, 2, 9, log)
    at.cluster.start(2)
    asked = []
    at.manager(2).peers.on_wants_handover = lambda partition, _: asked.append(partition.topic_partition)
    refused = at.broker(2).become_leader_or_follower([at.controller.elect(T0, 2)], at.controller.epoch)
    assert isinstance(refused[T0], DamagedLog)
    at.settle()
    assert asked == [T0]
    assert not at.partition(2).is_leader
    at.elect(1)
    at.pass_time(5_000)
    assert image(at, 2) == whole
    assert asked == [T0]
    at.elect(2)
    assert at.partition(2).is_leader


# ---- what is read ------------------------------------------------------------------------------------------


def fetched(at: Replicas, offset: int, replica_id: int) -> bytes:
    isolation = "high_watermark" if replica_id < 0 else "log_end"
    read = at.partition(1).fetch_records(offset, 500, isolation=isolation, replica_id=replica_id)
    assert read.records is not None
    return bytes(read.records)


@pytest.mark.parametrize("replica_id", [-1, 2])
def test_a_fetch_below_the_high_watermark_gives_no_rotten_bytes(replica_id: int) -> None:
    at = filled()
    before, behind = fetched(at, 8, replica_id), fetched(at, 10, replica_id)
    rot(at, 1, 9)
    with pytest.raises(CorruptMessage) as caught:
        fetched(at, 8, replica_id)
    assert caught.value.retriable
    assert before.startswith(fetched(at, 8, replica_id))
    with pytest.raises(DamagedLog):
        fetched(at, 9, replica_id)
    assert fetched(at, 10, replica_id) == behind


# ---- at random ---------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, RECORDS - 1),
            st.sets(st.sampled_from([1, 2, 3]), min_size=1, max_size=2),
            st.integers(16, 200),
        ),
        max_size=8,
        unique_by=lambda flip: flip[0],
    ),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, RECORDS - 1)), max_size=12),
)
def test_with_one_good_copy_of_each_range_all_logs_are_whole_again(flips, reads) -> None:
    at = filled()
    whole = image(at, 1)
    for broker in at.ids:
        places = [place(at, broker, offset) for offset, brokers, _ in flips if broker in brokers]
        bytes_ = [byte for _, brokers, byte in flips if broker in brokers]
        for found, byte in zip(places, bytes_, strict=True):
            flip(*found, byte)
    for broker, offset in reads:
        try:
            values = read(at.partition(broker).local_log, offset)
        except (CorruptMessage, DamagedLog):
            pass
        else:
            assert values == [b"%03d" % offset * 50]
        at.settle()
    # Each finds the rest of its own, and the active segment's, too.
    for broker in at.ids:
        log = at.partition(broker).local_log
        for offset in sorted(offset for offset, brokers, _ in flips if broker in brokers):
            log.search_damage(log.local.segments[log.local.segments.index_for(offset)], offset)
    at.pass_time(60_000)
    assert [image(at, broker) == whole for broker in at.ids] == [True] * 3
    assert set(at.partition(1).isr) == {1, 2, 3}
