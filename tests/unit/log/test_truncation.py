"""Cutting a log: at every offset, and with the process killed in the middle of it."""

from contextlib import suppress

import pytest

from kreplica import Log
from kreplica.common.errors import OffsetOutOfRange, StorageFull, StorageIOError
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.unified_log import UnifiedLog
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from kreplica.sim.storage import SimStorage
from tests.support.batches import build
from tests.support.logs import open_log


def _filled(path):
    log = Log.open(path, segment_bytes=4_000)
    for number in range(60):
        log.append([b"%03d" % number * 100] * 2)
    return log


def _offsets(log):
    return [record.offset for record in log.read()]


NOON_MS = 1_790_000_000_000
OFFSETS = [0, 1, 7, 11, 12, 13, 118, 119]


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_cut_leaves_what_is_below_it_and_the_log_goes_on(tmp_path, offset):
    with _filled(tmp_path / "t-0") as log:
        log.flush()
        assert log.truncate_to(offset)
        assert log.log_end_offset == log.high_watermark == offset
        assert log.append([b"after"]).base_offset == offset
        log.flush()
        assert log.flush_offset == offset + 1
    with Log.open(tmp_path / "t-0") as log:
        assert _offsets(log) == list(range(offset + 1))
        assert [r.value for r in log.read(stop=offset)] == [b"%03d" % (n // 2) * 100 for n in range(offset)]


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_replica_cuts_whole_batches(tmp_path, offset):
    with _filled(tmp_path / "t-0") as log:
        assert log._log.truncate_to(offset)
        assert log.log_end_offset == offset - offset % 2


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_cut_inside_of_a_batch_keeps_the_records_below(tmp_path, codec):
    values = [b"value %d" % number for number in range(100)]
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    with Log.open(tmp_path / "t-0") as log:
        log.append([(None, b"before", None, NOON_MS)])
        records = [(b"k", v, [("h", b"1")], NOON_MS + n) for n, v in enumerate(values)]
        batch = build(records, codec=codec, **producer)
        log.append_batch(batch)
        log.append([b"behind"])
        assert log.truncate_to(51)
        records = list(log.read(1))
        assert [(r.offset, r.value, r.timestamp) for r in records] == [
            (n + 1, values[n], NOON_MS + n) for n in range(50)
        ]
        head = next(log.batches(1))
        assert (head.codec, head.record_count, head.max_timestamp) == (codec, 50, NOON_MS + 49)
        # Its producer goes on behind what is left.
        again = build([b"next"], now_ms=NOON_MS, producer_id=7, producer_epoch=0, base_sequence=50)
        assert log.append_batch(again).base_offset == 51
        assert log.offset_for_timestamp(NOON_MS + 49).offset == 50
    assert list(verify(FileStorage(), str(tmp_path / "t-0"))) == []


def test_a_cut_inside_of_a_batch_brings_back_nothing_that_was_deleted(tmp_path):
    with Log.open(tmp_path / "t-0") as log:
        log.append([b"%d" % number for number in range(100)])
        log.delete_records(20)
        log.truncate_to(50)
        assert (log.log_start_offset, log.log_end_offset) == (20, 50)
        log.truncate_to(10)
        assert (log.log_start_offset, log.log_end_offset) == (10, 10)
        assert list(log.read()) == []


def test_a_batch_that_cannot_be_read_is_not_cut(tmp_path):
    with Log.open(tmp_path / "t-0") as log:
        log.append([b"first"])
        log.append([b"%d" % number for number in range(100)])
        log.append([b"last"])
        with open(tmp_path / "t-0" / f"{0:020d}.log", "r+b") as file:
            file.seek(log._log.active.position_of(1)[0] + 300)
            file.write(b"rot")
        # What rotted cannot be taken apart, and goes as a whole.
        assert log.truncate_to(50)
        assert (_offsets(log), log.log_end_offset) == ([0], 1)


def test_no_log_ends_below_offset_0(tmp_path):
    with _filled(tmp_path / "t-0") as log:
        with pytest.raises(OffsetOutOfRange):
            log.truncate_to(-1)
        with pytest.raises(OffsetOutOfRange):
            log._log.truncate_fully_and_start_at(-1)
        assert log.log_end_offset == 120


class _Killed(BaseException):
    """Stands for SIGKILL: what was stored stays, and nothing more is done."""


def _kill_at(monkeypatch, owner, name, call):
    original = getattr(owner, name)
    calls = []

    def step(*arguments):
        calls.append(1)
        if len(calls) > call:
            raise _Killed
        return original(*arguments)

    monkeypatch.setattr(owner, name, step)


STEPS = [
    (FileStorage, "rename", 0),
    (FileStorage, "rename", 7),
    (UnifiedLog, "_update_after_cut", 0),
]
CUTS = {
    "in the last segment": lambda log: log.truncate_to(119),
    "between batches, over several": lambda log: log.truncate_to(30),
    "over several": lambda log: log.truncate_to(31),
    "wholly, to a lower offset": lambda log: log._log.truncate_fully_and_start_at(7),
    "wholly, to a higher offset": lambda log: log._log.truncate_fully_and_start_at(1_000),
}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("owner", "name", "call"), STEPS)
def test_a_kill_in_the_middle_of_a_cut_is_no_damage(tmp_path, monkeypatch, owner, name, call, cut, flushed):
    log = _filled(tmp_path / "t-0")
    if flushed:
        log.flush()
    with monkeypatch.context() as patches:
        _kill_at(patches, owner, name, call)
        with suppress(_Killed):
            CUTS[cut](log)
        log._log.abandon()
        log._lock.release()
    with Log.open(tmp_path / "t-0") as again:
        assert again.damage is None
        found = _offsets(again)
        if cut == "over several":
            assert len(found) >= 31
        assert found == list(range(found[0], found[0] + len(found))) if found else True
        again.append([b"on it goes"])


@pytest.mark.parametrize("step", ["_forget_epochs", "_cut"])
def test_a_kill_in_the_middle_of_a_cut_leaves_the_epochs_of_the_batches(tmp_path, monkeypatch, step):
    """They are forgotten on disk before the log is cut: no batch is damaged by that."""
    log = Log.open(tmp_path / "t-0", segment_bytes=4_000)
    for number in range(60):
        log.append([bytes(300)], leader_epoch=number // 20)
    log.flush()
    with monkeypatch.context() as patches:
        _kill_at(patches, UnifiedLog, step, 0)
        with suppress(_Killed):
            log.truncate_to(10)
        log._log.abandon()
        log._lock.release()
    with Log.open(tmp_path / "t-0") as again:
        assert again.damage is None
        assert again.log_end_offset == (60 if step == "_forget_epochs" else 20)
        first = {batch.leader_epoch: batch.base_offset for batch in reversed(list(again.batches()))}
        assert sorted(first.items()) == [tuple(entry) for entry in again._log.epochs.entries]
        again.append([b"on it goes"])


# ---- a full disk -------------------------------------------------------------------------------------------


def _in_memory():
    storage = SimStorage()
    log = open_log("/t-0", storage=storage, segment_bytes=1_000, segment_index_bytes=4_096)
    for number in range(30):
        log.append_records([b"%03d" % number * 30], leader_epoch=number // 10)
    return storage, log


@pytest.mark.parametrize("offset", [0, 12, 15, 500])
def test_a_full_disk_leaves_the_log_that_was_to_begin_anew_as_it_is(offset):
    storage, log = _in_memory()
    before = log.snapshot()
    storage.full = True
    with pytest.raises(StorageFull):
        log.truncate_fully_and_start_at(offset)
    assert log.snapshot() == before
    assert [batch.base_offset for batch in log.batches(0)] == list(range(30))
    assert log.epochs.latest_epoch == 2
    storage.full = False
    log.truncate_fully_and_start_at(offset)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.latest_epoch) == (offset, offset, None)
    log.append_records([b"after"], leader_epoch=3)
    assert [batch.base_offset for batch in log.batches(offset)] == [offset]


def test_a_full_disk_leaves_the_epochs_of_a_log_that_was_to_be_cut():
    storage, log = _in_memory()
    storage.full = True
    with pytest.raises(StorageFull):
        log.truncate_to(15)
    assert log.log_end_offset == 30
    assert log.epochs.latest_epoch == 2
    storage.full = False
    assert log.truncate_to(15)
    assert (log.log_end_offset, log.epochs.latest_epoch) == (15, 1)


def test_a_cut_that_the_disk_ends_halfway_takes_the_log_offline():
    storage, log = _in_memory()

    def refuse(operation, path):
        if operation == "rename" and path.endswith(".log"):
            raise StorageIOError(f"{operation} of {path}")

    storage.before = refuse
    with pytest.raises(StorageIOError):
        log.truncate_to(5)
    assert log.is_offline


def test_offsets_without_a_batch_behind_a_later_epoch_are_nothing_that_came_back(tmp_path):
    log = open_log(tmp_path / "t-0")
    log.append_records([b"%d" % number for number in range(3)])
    log.roll(1 << 31)  # as a follower does whose leader left out so much
    log.cut_what_came_back([EpochEntry(1, 5)])
    assert log.log_end_offset == 1 << 31
    log.close()
