"""Opening a log after a power cut: what it took, what it brought back, and where the log begins and ends."""

from __future__ import annotations

import random

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches
from kreplica.common.config import LogConfig
from kreplica.common.errors import StorageFull
from kreplica.common.types import AppendOrigin, TopicPartition
from kreplica.log import log_loader
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog
from kreplica.log.verify import verify
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock

DIRECTORY = "/data"


def opened(storage: SimStorage, log_start_offset: int = 0, high_watermark: int = 0) -> UnifiedLog:
    if not storage.exists(DIRECTORY):
        storage.make_directory(DIRECTORY)
        storage.sync_directory("/")
    options = OpenOptions(log_start_offset=log_start_offset, high_watermark=high_watermark)
    return log_loader.load(DIRECTORY, TopicPartition("t", 0), LogConfig(), storage, ManualClock(), options)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_log_that_lost_all_behind_its_start_begins_there(is_killed: bool) -> None:
    """A power cut takes the active segment's records; the log goes on where it began, and nothing below
    seems to be missing when it is opened once more."""
    storage = SimStorage()
    log = opened(storage)
    log.append_records([b"a", b"b", b"c"], 3)
    log.flush_state()
    storage = storage.after_power_cut()
    log = opened(storage, log_start_offset=2)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (2, 2, None)
    log.begin_epoch(1, 2)  # of an unclean election: the lost records' epoch does not keep it out
    log.flush()
    storage = storage.after_kill() if is_killed else storage.after_power_cut()
    log = opened(storage, log_start_offset=2)
    assert log.damage is None
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    log.append_records([b"d"], 1)
    assert [record.value for batch in log.batches(2) for record in batch] == [b"d"]


def test_no_batch_that_came_back_is_committed_by_a_part_of_its_offsets() -> None:
    """Three records are committed where a batch of four was cut off; a power cut undoes it all on disk, but
    not the checkpoint of the high watermark."""
    storage = SimStorage()
    log = opened(storage)
    log.append_records([b"a"], 0)
    log.append_records([b"void", b"void", b"void", b"void"], 0)
    log.flush()
    after_power_cut = storage.after_power_cut()
    for mark, expected in ((0, 0), (1, 1), (3, 1), (5, 5), (9, 5)):
        log = opened(after_power_cut.after_power_cut(), high_watermark=mark)
        assert (log.high_watermark, log.log_end_offset) == (expected, 5)
    log = opened(after_power_cut.after_power_cut(), log_start_offset=3, high_watermark=3)
    assert log.high_watermark == log.log_start_offset == 3


def test_epochs_of_what_a_power_cut_brings_back_are_known_again() -> None:
    """They were forgotten with the records; the log start that was on the disk is older."""
    storage = SimStorage()
    log = opened(storage)
    for epoch in (0, 1, 2):
        log.append_records([b"%d" % epoch], epoch)
        log.roll()
    log.flush()
    log.flush_state()
    log.update_high_watermark(3)
    log.maybe_increment_log_start_offset(2)
    log.epochs.flush()
    log = opened(storage.after_power_cut(), high_watermark=3)
    assert log.log_start_offset == 0
    assert log.epochs.entries == ((0, 0), (1, 1), (2, 2))
    assert log.epochs.end_offset_for(1, log.log_end_offset) == (1, 2)


@pytest.mark.parametrize("log_start", [0, 3, 4])
def test_a_segment_that_retention_removed_is_missed_only_where_it_was_not(log_start: int) -> None:
    """Of two that go, a power cut brings back the first: below the log start nothing is missing."""
    storage = SimStorage()
    log = opened(storage)
    for value in (b"a", b"b", b"c"):
        log.append_records([value, value])
        log.roll()
    log.append_records([b"d"])
    log.update_high_watermark(7)
    log.maybe_increment_log_start_offset(log_start)
    log.flush()
    log.flush_state()
    for name in storage.list_directory(DIRECTORY):
        if name.startswith("00000000000000000002"):
            storage.remove(f"{DIRECTORY}/{name}")
    storage.sync_directory(DIRECTORY)
    log = opened(storage.after_power_cut(), log_start_offset=log_start)
    missing = [(damage.first_offset, damage.stop_offset) for damage in log.damages]
    assert missing == ([] if log_start == 4 else [(2, 4)])


@pytest.mark.parametrize("epoch_since", [None, 2])
def test_what_was_cut_off_does_not_come_back_into_a_later_epoch(epoch_since: int | None) -> None:
    """Without one it may stay: it is above the flush point, and the leader says what is to be cut."""
    storage = SimStorage()
    log = opened(storage)
    log.append_records([b"a"], 1)
    log.append_records([b"cut", b"off"], 1)
    log.flush()
    log.flush_state()
    log.truncate_to(1)
    if epoch_since is not None:
        log.begin_epoch(epoch_since, 1)
    log = opened(storage.after_power_cut())
    end = 3 if epoch_since is None else 1
    assert (log.log_end_offset, log.epochs.entries) == (end, ((1, 0),))
    log.append_records([b"b"], 3)
    assert log.epochs.entries == ((1, 0), (3, end))
    assert [record.value for batch in log.batches(end) for record in batch] == [b"b"]


def test_a_batch_that_comes_back_does_not_reach_into_a_later_epoch() -> None:
    """A follower cut off three records in one batch; its leader had one of them alone, then a new epoch."""
    storage = SimStorage()
    log = opened(storage)
    log.append_records([b"a"], 1)
    log.append_records([b"b", b"c", b"d"], 1)
    log.flush()
    log.flush_state()
    log.truncate_to(1)
    log.append_records([b"b"], 1)
    log.begin_epoch(2, 2)
    log = opened(storage.after_power_cut())
    assert (log.log_end_offset, log.epochs.entries) == (1, ((1, 0),))
    log.append_records([b"b"], 1)
    log.append_records([b"e"], 2)
    assert [(batch.base_offset, batch.leader_epoch) for batch in log.batches(0)] == [(0, 1), (1, 1), (2, 2)]


@pytest.mark.parametrize("cut_epoch", [1, 3])
def test_a_page_that_was_not_written_leaves_no_batch_that_was_cut_off(cut_epoch: int) -> None:
    """The batch that replaces it has the same size, and the pages behind it were written. They differ only
    in the epoch."""
    storage = SimStorage()
    log = opened(storage)
    log.append_records([b"a"], 1)
    first = log.local.segments.active.size
    log.append_records([b"b"], cut_epoch)
    log.flush()
    log.flush_state()
    path = f"{DIRECTORY}/00000000000000000000.log"
    former = storage.read_file(path)
    log.truncate_to(1)
    log.append_records([b"b"], 2)
    second = log.local.segments.active.size
    log.append_records([b"c"], 4)
    assert log.epochs.entries == ((1, 0), (2, 1), (4, 2))
    written = storage.read_file(path)
    storage = storage.after_power_cut()
    storage.write_file(path, written[:first] + former[first:second] + written[second:])
    log = opened(storage)
    assert (log.log_end_offset, log.latest_epoch, log.stopped_at) == (1, 1, None)
    log.append_records([b"b"], 2)
    assert [(each.base_offset, each.leader_epoch) for each in log.batches(0)] == [(0, 1), (1, 2)]


def test_rot_in_what_a_power_cut_brings_back_leaves_no_hole_in_the_epochs() -> None:
    """Recovery stops at it; once it is mended, the epochs behind it are known, too."""
    storage = SimStorage()
    log = opened(storage)
    for epoch in (0, 1, 2):
        log.append_records([b"%d" % epoch], epoch)
        log.append_records([b"rot?"], epoch)
        log.roll()
    log.flush()
    log.flush_state()
    log.update_high_watermark(6)
    log.maybe_increment_log_start_offset(4)
    log.epochs.flush()
    storage = storage.after_power_cut()
    path = f"{DIRECTORY}/00000000000000000000.log"
    whole = storage.read_file(path)
    storage.write_at(path, len(whole) - 2, bytes([whole[-2] ^ 1]))
    log = opened(storage)
    assert log.stopped_at is not None
    log.abandon()
    storage.write_at(path, 0, whole)
    log = opened(storage.after_kill())
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)
    assert log.epochs.entries == ((0, 0), (1, 2), (2, 4))


def test_a_torn_transaction_index_of_a_closed_segment_is_made_anew() -> None:
    storage = SimStorage()
    log = opened(storage)
    for producer_id in (1, 2):
        builder = BatchBuilder()
        builder.transactional = True
        builder.producer_id, builder.producer_epoch, builder.base_sequence = producer_id, 0, 0
        log.append_as_leader(builder.build([b"void"], now_ms=0), 0)
        marker = build_end_transaction_marker(
            EndTransactionMarker(False, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=0
        )
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
    log.roll()
    log.append_records([b"a"])
    log.flush()
    log.flush_state()
    path = f"{DIRECTORY}/00000000000000000000.txnindex"
    whole = storage.read_file(path)
    for snapshot in [name for name in storage.list_directory(DIRECTORY) if name.endswith(".snapshot")]:
        storage.remove(f"{DIRECTORY}/{snapshot}")
    storage.write_file_atomically(path, whole[:-10])
    storage.sync_directory(DIRECTORY)
    log = opened(storage.after_power_cut(), high_watermark=5)
    assert log.log_end_offset == 5
    assert log.local.storage.read_file(path) == whole
    visible = [each for each in log.batches(0, isolation="txn_committed") if not each.is_control]
    assert [record.value for batch in visible for record in batch] == [b"a"]


@pytest.mark.parametrize("leads", [True, False])
def test_no_marker_is_appended_whose_abort_cannot_be_noted(leads: bool) -> None:
    """KAFKA-7866: a disk that is full refuses the index's file; the transaction would stay open for ever."""
    storage = SimStorage()
    log = opened(storage)
    builder = BatchBuilder()
    builder.transactional = True
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 1, 0, 0
    log.append_as_leader(builder.build([b"void"], now_ms=0), 0)
    marker = build_end_transaction_marker(
        EndTransactionMarker(False, 0),
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=0,
        base_offset=1,
        leader_epoch=0,
    )

    def append() -> None:
        if leads:
            log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        else:
            log.append_as_follower(marker, 0)

    storage.full = True
    with pytest.raises(StorageFull):
        append()
    assert log.log_end_offset == 1
    storage.full = False
    append()
    log.update_high_watermark(2)
    assert (log.log_end_offset, log.last_stable_offset) == (2, 2)
    assert [each.is_control for each in log.batches(0, isolation="txn_committed")] == [True]


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_was_made_anew_outlives_a_power_cut_behind_a_clean_close(
    suffix: str, seed: int | None
) -> None:
    """Its segment lies below the flush point, so no later flush comes to it."""
    storage = SimStorage()
    log = opened(storage)
    for number in range(3):
        for _ in range(20):
            log.append_records([bytes(1_000)])
        if number < 2:
            log.roll()
    log.flush()
    log.flush_state()
    storage = storage.after_kill()
    storage.remove(f"{DIRECTORY}/{0:020d}{suffix}")
    storage.sync_directory(DIRECTORY)
    opened(storage).close()
    left = storage.after_power_cut(None if seed is None else random.Random(seed))
    log = opened(left)
    assert log.recovered.clean
    # A snapshot that was not flushed may be torn.
    assert [each for each in verify(left, DIRECTORY) if not each.path.endswith(".snapshot")] == []


@pytest.mark.parametrize("is_last", [True, False])
def test_a_transaction_whose_abort_marker_rotted_is_ended_by_the_index(is_last: bool) -> None:
    """Otherwise it would stay open, and committed records behind it could no longer be read."""
    storage = SimStorage()
    log = opened(storage)
    builder = BatchBuilder()
    builder.transactional = True
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 1, 0, 0
    log.append_as_leader(builder.build([b"void"], now_ms=0), 0)
    marker = build_end_transaction_marker(
        EndTransactionMarker(False, 0), producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    at = log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR).position
    if not is_last:
        log.append_records([b"a"])
    log.roll()
    log.append_records([b"b"])
    log.flush()
    log.flush_state()
    for snapshot in [name for name in storage.list_directory(DIRECTORY) if name.endswith(".snapshot")]:
        storage.remove(f"{DIRECTORY}/{snapshot}")
    path = f"{DIRECTORY}/{0:020d}.log"
    [byte] = storage.read_file(path)[at + 70 : at + 71]
    storage = storage.after_kill()
    storage.write_at(path, at + 70, bytes([byte ^ 1]))
    log = opened(storage)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == (3 if is_last else 4)
    assert not log.producers.has_transactions
    committed = log.read(2, 1 << 20, isolation="txn_committed").records
    assert committed is not None
    assert next(batches(committed)).base_offset == 2
