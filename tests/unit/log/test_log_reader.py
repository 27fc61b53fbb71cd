"""Reading around damage, under retention, and beside writers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kreplica._core.records import batches
from kreplica.common import errors
from kreplica.log.unified_log import UnifiedLog
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock, open_log, values


def rotten(path: Path, flip_at: int, segment_bytes: int = 1 << 20) -> UnifiedLog:
    """A log of ten batches of a record each whose fifth has a flipped bit, `flip_at` bytes into it."""
    log = open_log(path, segment_bytes=segment_bytes)
    positions = [log.append_records([b"v%d" % number]).position for number in range(10)]
    base_offset = log.local.segments[log.local.segments.index_for(4)].base_offset
    log.abandon()
    file = path / f"{base_offset:020}.log"
    data = bytearray(file.read_bytes())
    data[positions[4] + flip_at] ^= 4
    file.write_bytes(data)
    return open_log(path, segment_bytes=segment_bytes)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 150, 220])
@pytest.mark.parametrize("flip_at", [8, 11, 16, 20, 30, 65])
def test_a_damaged_log_reads_up_to_the_damage_and_again_behind_it(tmp_path, flip_at, segment_bytes):
    log = rotten(tmp_path / "t-0", flip_at, segment_bytes)
    assert log.damage is not None
    assert (log.damage.first_offset, log.damage.next_offset) == (4, 5)
    good = [(number, b"v%d" % number) for number in range(10)]
    for start in range(10):
        if start == 4:
            with pytest.raises(errors.DamagedLog):
                values(log, start)
            with pytest.raises(errors.DamagedLog):
                log.read(start, 1000, isolation="log_end")
            continue
        assert values(log, start) == (good[start:4] if start < 4 else good[start:])
        piece = log.read(start, 1, isolation="log_end").records
        assert piece is not None
        assert len(piece) == 70
        stopped = [batch.base_offset for batch in log.batches(start, start + 2)]
        assert stopped == ([3] if start == 3 else [number for number in (start, start + 1) if number < 10])
    with pytest.raises(errors.ReadOnlyLog):
        log.append_records([b"x"])


@pytest.mark.parametrize("flip_at", [20, 65])
def test_a_batch_is_read_whose_follower_has_rotted_while_the_log_ran(tmp_path, flip_at):
    log = open_log(tmp_path / "t-0")
    positions = [log.append_records([b"v%d" % number]).position for number in range(3)]
    file = tmp_path / "t-0" / f"{0:020}.log"
    with open(file, "r+b") as rotting:
        rotting.seek(positions[1] + flip_at)
        byte = rotting.read(1)[0]
        rotting.seek(positions[1] + flip_at)
        rotting.write(bytes([byte ^ 4]))
    found = log.batches(0)
    assert [record.value for record in next(found)] == [b"v0"]
    with pytest.raises(errors.CorruptMessage):
        next(found)
    assert log.damage is not None
    assert log.damage.first_offset == 1
    log.close()


def test_many_append_while_others_read_and_segments_go(tmp_path):
    clock = ManualClock()
    log = open_log(tmp_path / "t-0", clock, segment_bytes=4000, retention_bytes=20_000)
    writers, each = 4, 300
    failures: list[BaseException] = []
    done = threading.Event()

    def guarded(work) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=run)

    def write(writer: int) -> None:
        for number in range(each):
            value = b"%d:%d" % (writer, number)
            if number % 2:
                log.append_records([value, bytes(40)])
            else:
                log.append_as_leader(build([value, bytes(40)], now_ms=NOW_MS), 0)

    def read() -> None:
        while not done.is_set():
            snapshot = log.snapshot()
            assert snapshot.log_start_offset <= snapshot.high_watermark <= snapshot.log_end_offset
            expected = None
            try:
                for batch in log.batches(snapshot.log_start_offset, snapshot.log_end_offset):
                    assert expected in (None, batch.base_offset)
                    expected = batch.next_offset
                    assert [record.value for record in batch][1] == bytes(40)
            except errors.OffsetOutOfRange:
                continue  # retention was there first
            assert expected == snapshot.log_end_offset or snapshot.log_end_offset == 0 or expected is None

    def retain() -> None:
        while not done.is_set():
            log.delete_old_segments()

    appending = [guarded(lambda writer=writer: write(writer)) for writer in range(writers)]
    others = [guarded(read), guarded(read), guarded(retain)]
    for thread in [*appending, *others]:
        thread.start()
    for thread in appending:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert failures == []
    assert log.log_end_offset == 2 * writers * each
    left = [value for _, value in values(log) if value != bytes(40)]
    assert len(left) == (log.log_end_offset - log.log_start_offset) // 2
    for writer in range(writers):
        own = [int(value.split(b":")[1]) for value in left if value and value.startswith(b"%d:" % writer)]
        assert own == sorted(set(own))
    log.close()
    assert len(values(open_log(tmp_path / "t-0"))) == 2 * len(left)


@pytest.mark.parametrize("ways", ["records", "batch"])
def test_appends_that_wait_for_the_disk_do_not_hold_the_log(tmp_path, ways):
    # LogAppendTime and a codec take the careful way, which once waited for the disk with the lock held.
    log = open_log(tmp_path / "t-0", durability="fsync", message_timestamp_type="LogAppendTime")
    batch = build([b"x"], now_ms=5)

    def write() -> None:
        for _ in range(10):
            log.append_records([b"x"]) if ways == "records" else log.append_as_leader(batch, 0)

    threads = [threading.Thread(target=write, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert log.flush_offset == log.log_end_offset == 40


def test_where_there_is_no_room_for_a_batch_nothing_behind_it_is_read_either(tmp_path):
    log = open_log(tmp_path / "t-0", segment_bytes=2000)
    log.append_records([b"first"])
    log.append_records([b"x" * 1900])
    log.append_records([b"small"])
    log.append_records([b"y" * 1900])
    log.append_records([b"last"])
    assert len(log.local.segments) >= 3
    for start in range(4):
        found = log.read(start, 300, isolation="log_end", at_least_one=False).records
        offsets = [] if found is None else [batch.base_offset for batch in batches(found)]
        assert offsets == ([] if start in (1, 3) else [start])
