"""The metadata log by the rules of the quorum: where it stands, what it is asked, what it refuses."""

from __future__ import annotations

import pytest

from kreplica.common.errors import (
    CorruptMessage,
    FatalTruncation,
    FencedLeaderEpoch,
    IllegalSnapshotId,
    KafkaStorageError,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    StorageIOError,
)
from kreplica.metadata.control_records import LeaderChangeMessage
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.batch_accumulator import build_control_batch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog, ValidOffsetAndEpoch, ValidOffsetAndEpochKind
from kreplica.raft.snapshots import BOOTSTRAP_SNAPSHOT_ID, RecordsSnapshotWriter, parse_snapshot_name
from kreplica.sim.storage import SimStorage
from tests.support.logs import NOW_MS, ManualClock
from tests.support.metadata_logs import (
    DIRECTORY,
    append,
    batch,
    commit,
    content,
    machine,
    open_metadata_log,
    snapshot,
    snapshot_content,
)


def names(storage: SimStorage) -> list[str]:
    return storage.list_directory(DIRECTORY)


# ---- append, flush, read -----------------------------------------------------------------------------------


def test_it_is_the_log_that_a_quorum_asks_for() -> None:
    log: KafkaMetadataLog = open_metadata_log()
    assert (log.start_offset, log.end_offset, log.high_watermark, log.flushed_offset) == (0, 0, 0, 0)
    assert log.last_fetched_epoch == 0
    assert log.latest_snapshot_id is None
    assert log.earliest_snapshot_id is None


def test_a_leader_appends_and_flushes() -> None:
    log = open_metadata_log()
    log.begin_epoch(3)
    assert log.last_fetched_epoch == 0
    change = LeaderChangeMessage(leader_id=1, voters=(), granting_voters=())
    log.append_as_leader(build_control_batch([change], base_offset=0, epoch=3, timestamp_ms=1), 3)
    info = log.append_as_leader(batch(1, 2) + batch(3, 1), 3)
    assert (info.last_offset, log.end_offset, log.flushed_offset) == (3, 4, 0)
    assert log.last_fetched_epoch == 3
    log.flush()
    assert log.flushed_offset == 4
    assert log.high_watermark == 0
    assert log.read(0, 1000, committed_only=True).records is None
    log.update_high_watermark(3)
    assert log.read(0, 1000, committed_only=True).high_watermark == 3
    log.update_high_watermark(2)
    assert log.high_watermark == 3
    log.update_high_watermark(9)
    assert log.high_watermark == 4
    assert content(log) == [1, 2, 3]


def test_one_bad_batch_among_several_leaves_no_trace() -> None:
    log = open_metadata_log()
    broken = bytearray(batch(1))
    broken[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append_as_leader(batch(0) + bytes(broken), 1)
    assert log.end_offset == 0


def test_a_leader_of_an_epoch_that_is_over_appends_nothing() -> None:
    log = open_metadata_log()
    append(log, epoch=3)
    with pytest.raises(FencedLeaderEpoch):
        append(log, epoch=2)
    with pytest.raises(FencedLeaderEpoch):
        log.begin_epoch(2)
    assert log.end_offset == 1


def test_a_follower_takes_no_batch_of_a_later_epoch() -> None:
    # KAFKA-18723
    log = open_metadata_log()
    info = log.append_as_follower(batch(0, 2, epoch=2) + batch(2, 1, epoch=3), 2)
    assert info is not None
    assert log.end_offset == 2
    assert log.append_as_follower(batch(2, 1, epoch=3), 2) is None
    assert log.end_offset == 2


@pytest.mark.parametrize("bases", [(1,), (0, 3), (0, 0)])
def test_a_follower_takes_no_gap_and_nothing_twice(bases: tuple[int, ...]) -> None:
    log = open_metadata_log()
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(b"".join(batch(base) for base in bases), 1)
    assert log.end_offset == 0


def test_a_last_batch_cut_short_is_left_out() -> None:
    log = open_metadata_log()
    fetched = batch(0, 2) + batch(2, 3)
    assert log.append_as_follower(fetched[:-1], 1) is not None
    assert log.end_offset == 2
    assert log.append_as_follower(batch(2, 3)[:40], 1) is None
    assert log.append_as_follower(memoryview(fetched)[len(batch(0, 2)) :], 1) is not None
    assert content(log) == [0, 1, 2, 3, 4]


def test_reading_outside_is_refused() -> None:
    log = open_metadata_log()
    append(log)
    with pytest.raises(OffsetOutOfRange):
        log.read(2, 100, committed_only=False)


def test_a_flush_that_fails_is_for_good() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log)

    def refuse(operation: str, path: str) -> None:
        if operation == "flush":
            raise StorageIOError(path)

    storage.before = refuse
    with pytest.raises(StorageIOError):
        log.flush()
    storage.before = None
    with pytest.raises(KafkaStorageError):
        log.flush()
    with pytest.raises(KafkaStorageError):
        append(log)
    assert log.flushed_offset == 0


def test_a_flush_is_one_of_the_active_segment() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log)
    log.flush()
    del storage.trace[:]
    append(log)
    log.flush()
    assert [event.path for event in storage.trace if event.operation == "flush"] == [
        f"{DIRECTORY}/{0:020d}.log"
    ]


def test_where_it_was_flushed_to_is_noted_once_a_second() -> None:
    storage, clock = machine(), ManualClock()
    log = open_metadata_log(storage, clock)
    del storage.trace[:]
    for _ in range(30):
        append(log)
        log.flush()
        clock.now_ms += 100
    notes = [event for event in storage.trace if event.operation == "flush" and "state" in event.path]
    assert len(notes) == 2


# ---- epochs, divergence ------------------------------------------------------------------------------------


def log_with_epochs() -> KafkaMetadataLog:
    """Offsets 0 to 9 of epoch 1, 10 to 14 of epoch 3, 15 to 19 of epoch 4."""
    log = open_metadata_log()
    append(log, 10, epoch=1)
    append(log, 5, epoch=3)
    append(log, 5, epoch=4)
    return log


VALID, DIVERGING, SNAPSHOT = ValidOffsetAndEpochKind


@pytest.mark.parametrize(
    ("offset", "epoch", "kind", "answer"),
    [
        (0, 0, VALID, (0, 0)),
        (0, 3, VALID, (0, 0)),
        (10, 1, VALID, (10, 1)),
        (4, 1, VALID, (4, 1)),
        (11, 1, DIVERGING, (10, 1)),
        (11, 2, DIVERGING, (10, 1)),
        (15, 3, VALID, (15, 3)),
        (16, 3, DIVERGING, (15, 3)),
        (20, 4, VALID, (20, 4)),
        (21, 4, DIVERGING, (20, 4)),
        (21, 5, DIVERGING, (20, 4)),
        (5, 9, DIVERGING, (20, 4)),
        (5, 0, DIVERGING, (0, 0)),
    ],
)
def test_a_fetch_is_answered_by_its_offset_and_epoch(
    offset: int, epoch: int, kind: ValidOffsetAndEpochKind, answer: tuple[int, int]
) -> None:
    log = log_with_epochs()
    assert log.validate_offset_and_epoch(offset, epoch) == ValidOffsetAndEpoch(kind, OffsetAndEpoch(*answer))


@pytest.mark.parametrize(
    ("offset", "epoch", "kind", "answer"),
    [
        (0, 0, SNAPSHOT, (15, 3)),
        (9, 1, SNAPSHOT, (15, 3)),
        (10, 1, VALID, (10, 1)),
        (10, 3, SNAPSHOT, (15, 3)),
        (12, 3, VALID, (12, 3)),
        (12, 0, SNAPSHOT, (15, 3)),
        (12, 1, DIVERGING, (10, 1)),
        (16, 3, DIVERGING, (15, 3)),
        (20, 4, VALID, (20, 4)),
        (30, 7, DIVERGING, (20, 4)),
    ],
)
def test_a_fetch_below_the_log_is_sent_to_the_snapshot(
    offset: int, epoch: int, kind: ValidOffsetAndEpochKind, answer: tuple[int, int]
) -> None:
    log = log_with_epochs()
    commit(log)
    snapshot(log, 10, 1)
    snapshot(log, 15, 3)
    log.log.maybe_increment_log_start_offset(10)
    assert log.validate_offset_and_epoch(offset, epoch) == ValidOffsetAndEpoch(kind, OffsetAndEpoch(*answer))


def test_an_empty_log_is_sent_to_the_snapshot_though_the_log_goes_back_so_far() -> None:
    log = log_with_epochs()
    commit(log)
    latest = snapshot(log, 15, 3)
    assert log.validate_offset_and_epoch(0, 0) == ValidOffsetAndEpoch(SNAPSHOT, latest)


def test_the_snapshot_that_a_cluster_is_formatted_with_is_not_sent() -> None:
    log = log_with_epochs()
    with RecordsSnapshotWriter(
        log.store_snapshot(BOOTSTRAP_SNAPSHOT_ID), ManualClock(), last_contained_log_timestamp=0
    ) as writer:
        writer.freeze()
    assert log.latest_snapshot_id == BOOTSTRAP_SNAPSHOT_ID
    assert log.validate_offset_and_epoch(0, 0).kind is VALID
    assert log.validate_offset_and_epoch(11, 1).kind is DIVERGING
    assert not log.truncate_to_latest_snapshot()


def test_the_end_of_each_epoch() -> None:
    log = log_with_epochs()
    ends = [log.end_offset_for_epoch(epoch) for epoch in range(6)]
    assert ends == [(0, 0), (10, 1), (10, 1), (15, 3), (20, 4), (20, 4)]


@pytest.mark.parametrize(
    ("end", "left"), [((12, 3), 12), ((15, 3), 15), ((99, 3), 15), ((12, 2), 10), ((5, 9), 20), ((3, 0), 3)]
)
def test_a_diverging_answer_cuts_to_where_the_logs_part(end: tuple[int, int], left: int) -> None:
    log = open_metadata_log()
    for epoch, count in ((1, 10), (3, 5), (4, 5)):
        for _ in range(count):
            append(log, epoch=epoch)
    assert log.truncate_to_end_offset(OffsetAndEpoch(*end)) == left
    assert log.end_offset == left
    assert content(log) == list(range(left))


# ---- truncation --------------------------------------------------------------------------------------------


def test_what_is_committed_is_never_cut() -> None:
    log = open_metadata_log()
    for _ in range(5):
        append(log)
    log.flush()
    log.update_high_watermark(3)
    with pytest.raises(FatalTruncation) as caught:
        log.truncate_to(2)
    assert caught.value.where == 2
    assert log.end_offset == 5
    with pytest.raises(FatalTruncation):
        log.truncate_to_end_offset(OffsetAndEpoch(1, 1))
    log.truncate_to(3)
    assert (log.end_offset, log.flushed_offset) == (3, 3)


def test_a_batch_that_is_committed_in_part_is_not_cut() -> None:
    log = open_metadata_log()
    append(log, 2)
    append(log, 5)
    log.flush()
    log.update_high_watermark(4)
    with pytest.raises(FatalTruncation):
        log.truncate_to(5)
    assert log.end_offset == 7
    log.truncate_to(7)
    assert log.end_offset == 7


def test_an_epoch_without_a_record_goes_with_a_cut() -> None:
    log = open_metadata_log()
    append(log, epoch=1)
    log.begin_epoch(4)
    log.truncate_to(1)
    assert log.end_offset_for_epoch(4) == (1, 1)
    assert append(log, epoch=2) == 2


def test_a_snapshot_beyond_the_log_begins_it_anew() -> None:
    storage = machine()
    leader, log = open_metadata_log(), open_metadata_log(storage)
    for _ in range(9):
        append(leader, epoch=2)
    commit(leader)
    append(log, 3, epoch=1)
    assert not log.truncate_to_latest_snapshot()
    taken = snapshot(leader, 9, 2)
    source, target = leader.read_snapshot(taken), log.store_snapshot(taken)
    assert source is not None
    while target.size_bytes < source.size_bytes:
        target.append(target.size_bytes, source.read(target.size_bytes, 50))
    assert log.latest_snapshot_id is None
    target.freeze()
    assert log.truncate_to_latest_snapshot()
    assert (log.start_offset, log.end_offset, log.high_watermark, log.flushed_offset) == (9, 9, 9, 9)
    assert log.last_fetched_epoch == 2
    assert not log.truncate_to_latest_snapshot()
    assert snapshot_content(log, taken) == list(range(9))
    assert log.append_as_follower(batch(9, 2, epoch=2), 2) is not None
    assert log.last_fetched_epoch == 2
    log.flush()
    log.close()
    again = open_metadata_log(storage)
    assert (again.start_offset, again.end_offset, again.last_fetched_epoch) == (9, 11, 2)
    assert content(again) == [9, 10]


def test_a_snapshot_that_contradicts_what_is_committed_is_fatal() -> None:
    log = open_metadata_log()
    append(log, 9, epoch=1)
    commit(log)
    with RecordsSnapshotWriter(
        log.store_snapshot(OffsetAndEpoch(5, 2)), ManualClock(), last_contained_log_timestamp=0
    ) as writer:
        writer.freeze()
    with pytest.raises(FatalTruncation):
        log.truncate_to_latest_snapshot()
    assert log.end_offset == 9


# ---- snapshots ---------------------------------------------------------------------------------------------


def test_a_snapshot_is_there_once_it_is_frozen() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log, 4, epoch=2, now_ms=NOW_MS + 5)
    commit(log)
    snapshot_id = OffsetAndEpoch(4, 2)
    writer = log.create_new_snapshot(snapshot_id)
    assert log.read_snapshot(snapshot_id) is None
    assert not any(parse_snapshot_name(name) for name in names(storage))
    writer.append([])
    writer.freeze()
    assert writer.is_frozen
    assert names(storage).count("00000000000000000004-0000000002.checkpoint") == 1
    assert log.latest_snapshot_id == log.earliest_snapshot_id == snapshot_id


@pytest.mark.parametrize(
    "snapshot_id",
    [(3, 1), (5, 1), (4, 2), (4, 0), (6, 1), (0, 1), (0, 0), (-1, 1), (7, 2), (9, 2), (2, 1)],
)
def test_a_snapshot_ends_at_a_committed_batch_of_its_epoch(snapshot_id: tuple[int, int]) -> None:
    # KAFKA-14618: an id off by one, or inside a batch.
    log = open_metadata_log()
    append(log, 4, epoch=1)
    append(log, 2, epoch=2)
    log.flush()
    log.update_high_watermark(6)
    append(log, 1, epoch=2)
    log.log.maybe_increment_log_start_offset(2)
    with pytest.raises(IllegalSnapshotId):
        log.create_new_snapshot(OffsetAndEpoch(*snapshot_id))
    assert log.latest_snapshot_id is None
    snapshot(log, 4, 1)
    snapshot(log, 6, 2)
    with pytest.raises(IllegalSnapshotId):
        snapshot(log, 6, 2)


@pytest.mark.parametrize("snapshot_id", [(-1, 0), (1, -1), (1 << 63, 0), (1, 1 << 31)])
def test_no_snapshot_is_stored_under_an_id_that_none_can_have(snapshot_id: tuple[int, int]) -> None:
    storage = machine()
    log = open_metadata_log(storage)
    before = names(storage)
    with pytest.raises(IllegalSnapshotId):
        log.store_snapshot(OffsetAndEpoch(*snapshot_id))
    assert names(storage) == before


def test_what_is_not_frozen_leaves_nothing() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log)
    commit(log)
    before = names(storage)
    log.create_new_snapshot(OffsetAndEpoch(1, 1)).close()
    log.store_snapshot(OffsetAndEpoch(9, 1)).close()
    assert names(storage) == before
