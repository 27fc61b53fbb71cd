"""The metadata log's directory: what retention keeps, the checks at a start and of `kreplica verify`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kreplica.common.errors import (
    DamagedLog,
    InconsistentTopicId,
    InvalidFile,
    InvalidSnapshot,
    SnapshotMissing,
)
from kreplica.common.types import INT64_MAX, Uuid
from kreplica.log.partition_metadata_file import PartitionMetadataFile
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.metadata_log_directory import verify_snapshots
from kreplica.raft.snapshots import RecordsSnapshotWriter, partial_name, snapshot_name
from kreplica.sim.storage import SimStorage
from tests.support.logs import NOW_MS, ManualClock
from tests.support.metadata_logs import (
    DIRECTORY,
    append,
    commit,
    content,
    machine,
    open_metadata_log,
    snapshot,
    snapshot_content,
)

SMALL_SEGMENTS = {"log_segment_bytes": 1024}


def names(storage: SimStorage) -> list[str]:
    return storage.list_directory(DIRECTORY)


# ---- cleaning ----------------------------------------------------------------------------------------------


def log_with_snapshots(storage: SimStorage, **settings: int) -> KafkaMetadataLog:
    """100 records, a second each, and a snapshot of each twenty."""
    log = open_metadata_log(storage, **SMALL_SEGMENTS, **settings)
    for number in range(1, 101):
        append(log, now_ms=NOW_MS + 1000 * number)
        if number % 20 == 0:
            commit(log)
            snapshot(log, number)
    return log


def test_old_snapshots_go_and_the_log_below_the_next() -> None:
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=50_000, max_retention_bytes=-1)
    assert not log.clean(NOW_MS + 20_000 + 50_000)
    assert log.clean(NOW_MS + 20_001 + 50_000)
    assert (log.start_offset, log.earliest_snapshot_id) == (40, (40, 1))
    assert f"{0:020d}.log" not in names(storage)
    assert content(log)[-1] == 99
    assert log.clean(NOW_MS + 1_000_000)
    assert (log.start_offset, log.earliest_snapshot_id, log.latest_snapshot_id) == (100, (100, 1), (100, 1))
    assert not log.clean(NOW_MS + 9_000_000_000)
    assert snapshot_content(log, OffsetAndEpoch(100, 1)) == list(range(100))
    log.close()
    again = open_metadata_log(storage)
    assert (again.start_offset, again.end_offset, again.latest_snapshot_id) == (100, 100, (100, 1))


def test_retention_by_size_leaves_the_latest_snapshot() -> None:
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=-1, max_retention_bytes=0)
    assert log.clean(NOW_MS)
    assert (log.start_offset, log.earliest_snapshot_id) == (100, (100, 1))
    assert not log.clean(NOW_MS)


def test_an_old_snapshot_that_rotted_does_not_block_cleaning() -> None:
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=INT64_MAX, max_retention_bytes=-1)
    storage.write_file(f"{DIRECTORY}/{snapshot_name(OffsetAndEpoch(20, 1))}", b"rot")
    assert log.clean(NOW_MS)
    assert log.earliest_snapshot_id == (40, 1)


def test_a_snapshot_that_is_read_stays_while_it_is() -> None:
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=0)
    reader = log.read_snapshot(OffsetAndEpoch(20, 1))
    assert reader is not None
    whole = bytes(reader.read(0, reader.size_bytes))
    assert log.clean(NOW_MS + 10_000_000)
    assert bytes(reader.read(0, reader.size_bytes)) == whole
    assert log.read_snapshot(OffsetAndEpoch(20, 1)) is None


# ---- opening -----------------------------------------------------------------------------------------------


def test_all_comes_back_after_a_close() -> None:
    storage = machine()
    log = log_with_epochs_on(storage)
    snapshot(log, 15, 3)
    log.close()
    again = open_metadata_log(storage)
    assert (again.start_offset, again.end_offset, again.high_watermark) == (0, 20, 20)
    assert again.latest_snapshot_id == (15, 3)
    assert again.flushed_offset == 20
    assert again.end_offset_for_epoch(3) == (15, 3)
    assert content(again) == list(range(20))


def log_with_epochs_on(storage: SimStorage) -> KafkaMetadataLog:
    log = open_metadata_log(storage)
    for epoch, count in ((1, 10), (3, 5), (4, 5)):
        append(log, count, epoch=epoch)
    commit(log)
    return log


def refused(storage: SimStorage, error: type[Exception]) -> str:
    """What opening says, which must not have changed anything."""
    changes = len(storage.trace)
    with pytest.raises(error) as caught:
        open_metadata_log(storage)
    assert len(storage.trace) == changes
    return str(caught.value)


def test_a_log_that_begins_above_nothing_is_refused() -> None:
    # KAFKA-14238
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=0, max_retention_bytes=-1)
    log.clean(NOW_MS + 10_000_000)
    log.close()
    storage.remove(f"{DIRECTORY}/{snapshot_name(OffsetAndEpoch(100, 1))}")
    assert "starts at offset 100" in refused(storage, SnapshotMissing)
    storage.remove(f"{DIRECTORY}/kreplica.state.deleted")
    assert "there are no snapshots" in refused(storage, SnapshotMissing)


@pytest.mark.parametrize("cut", [1, 60, 200])
def test_a_latest_snapshot_cut_short_is_refused(cut: int) -> None:
    storage = machine()
    log = log_with_epochs_on(storage)
    snapshot(log, 15, 3)
    log.close()
    path = f"{DIRECTORY}/{snapshot_name(OffsetAndEpoch(15, 3))}"
    storage.write_file(path, storage.read_file(path)[:-cut])
    assert "15-3" in refused(storage, InvalidSnapshot)


def test_another_topics_directory_is_refused() -> None:
    storage = machine()
    storage.make_directory(DIRECTORY)
    PartitionMetadataFile(storage, DIRECTORY).write(Uuid(b"x" * 16))
    refused(storage, InconsistentTopicId)


def test_rot_is_refused() -> None:
    storage = machine()
    log = log_with_epochs_on(storage)
    log.abandon()
    path = f"{DIRECTORY}/{0:020d}.log"
    data = bytearray(storage.read_file(path))
    data[70] ^= 1
    storage.write_file(path, bytes(data))
    with pytest.raises(DamagedLog, match="kreplica repair"):
        open_metadata_log(storage)
    with pytest.raises(DamagedLog):
        open_metadata_log(storage)


def test_what_a_crash_left_of_snapshots_goes() -> None:
    storage = machine()
    log = log_with_snapshots(storage, max_retention_ms=0)
    log.clean(NOW_MS + 10_000_000)
    writer = log.store_snapshot(OffsetAndEpoch(200, 1))
    writer.append(0, b"some")
    log.abandon()
    left = ("00000000000000000100-0000000001-7.checkpoint.part", snapshot_name(OffsetAndEpoch(40, 1)),
            "00000000000000000020-0000000001.checkpoint.deleted")  # fmt: skip
    for name in left:
        storage.write_file(f"{DIRECTORY}/{name}", b"some")
    again = open_metadata_log(storage)
    assert [
        name for name in names(storage) if "checkpoint" in name and name != "leader-epoch-checkpoint"
    ] == [snapshot_name(OffsetAndEpoch(100, 1))]
    assert again.earliest_snapshot_id == (100, 1)


def test_a_fetched_snapshot_counts_although_the_log_was_not_cut_yet() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log, 3, epoch=1)
    with RecordsSnapshotWriter(
        log.store_snapshot(OffsetAndEpoch(8, 2)), ManualClock(), last_contained_log_timestamp=0
    ) as writer:
        writer.freeze()
    log.abandon()
    again = open_metadata_log(storage)
    assert (again.start_offset, again.end_offset, again.last_fetched_epoch) == (8, 8, 2)


# ---- leader epochs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [None, b"", b"0\n0\n", b"0\n1\n1 0\n", b"0\n1\n3 10\n"])
@pytest.mark.parametrize("start", [0, 10])
def test_leader_epochs_are_known_by_the_batches_where_their_file_is_lost(
    left: bytes | None, start: int
) -> None:
    storage = machine()
    log = open_metadata_log(storage, max_retention_bytes=0, **SMALL_SEGMENTS)
    append(log, 10, epoch=1)
    append(log, 5, epoch=3)
    commit(log)
    snapshot(log, 10, epoch=1)
    snapshot(log, 15, epoch=3)
    append(log, 5, epoch=4)
    log.log.maybe_increment_log_start_offset(start)
    stood = log.log.epochs.entries, log.end_offset, log.last_fetched_epoch
    log.close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    if left is None:
        storage.remove(path)
    else:
        storage.write_file(path, left)
    again = open_metadata_log(storage)
    assert (again.log.epochs.entries, again.end_offset, again.last_fetched_epoch) == stood
    again.abandon()
    # They are on the disk again, too.
    assert open_metadata_log(storage.after_power_cut()).log.epochs.entries == stood[0]


def test_leader_epochs_that_cannot_be_read_are_refused_by_name() -> None:
    storage = machine()
    log = open_metadata_log(storage)
    append(log)
    log.close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    storage.write_file(path, b"rubbish")
    before = {name: storage.read_file(f"{DIRECTORY}/{name}") for name in names(storage)}
    with pytest.raises(InvalidFile, match=path):
        open_metadata_log(storage)
    assert {name: storage.read_file(f"{DIRECTORY}/{name}") for name in names(storage)} == before


ID = OffsetAndEpoch(10, 1)
NAME = snapshot_name(ID)


@pytest.fixture
def storage() -> SimStorage:
    """A log that begins at 10, and a snapshot of all before."""
    storage = machine()
    log = open_metadata_log(storage, max_retention_bytes=0, log_segment_bytes=1024)
    append(log, 5)
    commit(log)
    snapshot(log, 5)
    append(log, 5)
    commit(log)
    snapshot(log, 10)
    append(log, 5)
    commit(log)
    assert log.clean(0)
    log.close()
    return storage


def kinds(storage: SimStorage, path: str = DIRECTORY) -> list[tuple[str, str]]:
    return [(problem.path, problem.kind) for problem in verify_snapshots(storage, path)]


def test_sound_snapshots_and_what_a_crash_left(storage: SimStorage) -> None:
    storage.write_file(f"{DIRECTORY}/{partial_name(OffsetAndEpoch(12, 1), 3)}", b"half")
    assert kinds(storage) == kinds(storage, "/data") == []


def flip_a_bit(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]


@pytest.mark.parametrize(
    "damage", [flip_a_bit, lambda data: data[:-40], lambda data: data[:0], lambda data: data * 2]
)
def test_a_broken_snapshot_is_named(storage: SimStorage, damage: Callable[[bytes], bytes]) -> None:
    path = f"{DIRECTORY}/{NAME}"
    storage.write_file(path, damage(storage.read_file(path)))
    assert kinds(storage, "/data") == [(path, "InvalidSnapshot")]


@pytest.mark.parametrize("name", ["10-1.checkpoint", snapshot_name(OffsetAndEpoch(10, 2))])
def test_a_snapshot_under_a_wrong_name_is_reported(storage: SimStorage, name: str) -> None:
    storage.write_file(f"{DIRECTORY}/{name}", storage.read_file(f"{DIRECTORY}/{NAME}"))
    assert kinds(storage) == [(f"{DIRECTORY}/{name}", "InvalidSnapshot")]


def test_a_log_without_its_snapshot_is_reported(storage: SimStorage) -> None:
    storage.remove(f"{DIRECTORY}/{NAME}")
    assert kinds(storage, "/data") == [(DIRECTORY, "SnapshotMissing")]


def test_without_a_metadata_log_nothing_is_reported() -> None:
    storage = machine()
    storage.make_directory("/data/topic-0")
    assert kinds(storage, "/data") == kinds(storage, "/data/topic-0") == []
