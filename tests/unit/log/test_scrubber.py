"""Scrubbing: rot in a closed segment is found and named while the log runs, and everything else goes on."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kreplica.common.config import LogConfig, LogManagerConfig
from kreplica.common.errors import CorruptMessage, DamagedLog
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.damage import Damage
from kreplica.log.file_names import DAMAGE_FILE
from kreplica.log.log_loader import OpenOptions
from kreplica.log.scrubber import Scrubber
from kreplica.log.unified_log import UnifiedLog
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock

DIRECTORY = "/data/orders-0"
PARTITION = TopicPartition("orders", 0)
# Batches of one to three records, in three leader epochs, over three closed segments and an active one.
BATCHES = [1, 3, 2, 1, 1, 2, 3, 1, 2, 2, 1, 3]
EPOCHS = [0, 0, 0, 2, 2, 2, 2, 5, 5, 5, 5, 5]
ROLLS = (4, 8, 11)


class Bench:
    """A log over a simulated disk, its scrubber, and where each of its batches lies."""

    def __init__(self, storage: SimStorage | None = None, **config: object) -> None:
        self.clock = ManualClock()
        self.storage = storage or SimStorage()
        if storage is None:
            self.storage.make_directory(DIRECTORY)
            self.storage.sync_directory("/")
            self.storage.sync_directory("/data")
        self.config = LogConfig.parse(config)
        self.failures: list[Exception] = []
        self.reported: list[Damage] = []
        self.places: list[
            tuple[str, int, int, int, int]
        ] = []  # path, position, size, first offset, next offset
        self.truth: dict[int, bytes | None] = {}
        self.log = self.open()
        self.scrubber = self.made_scrubber()

    def open(self, storage: SimStorage | None = None, *, read_only: bool = False) -> UnifiedLog:
        files = storage or self.storage
        log = log_loader.load(
            DIRECTORY, PARTITION, self.config, files, self.clock, OpenOptions(read_only=read_only)
        )
        log.on_damage = lambda _, damage: self.reported.append(damage)
        return log

    def made_scrubber(self, **settings_: object) -> Scrubber:
        config = LogManagerConfig.parse(settings_)
        return Scrubber(lambda: [self.log], self.clock, lambda _, error: self.failures.append(error), config)

    def append(self, count: int, epoch: int = 5) -> None:
        log = self.log
        values = [b"%d:%d" % (log.log_end_offset, number) for number in range(count)]
        info = log.append_records(values, epoch)
        size = log.active.size - info.position
        self.places.append(
            (log.active.region.path, info.position, size, info.base_offset, info.last_offset + 1)
        )
        self.truth.update(enumerate(values, info.base_offset))

    def fill(self) -> Bench:
        for number, (count, epoch) in enumerate(zip(BATCHES, EPOCHS, strict=True)):
            if number in ROLLS:
                self.log.roll()
            self.append(count, epoch)
        return self

    def flip(self, batch: int, bit: int) -> tuple[int, int]:
        """Flip a bit of a batch under the log's eyes; the offsets [first, next) that are lost by it."""
        path, position, _, first, following = self.places[batch]
        (segment,) = (each for each in self.log.local.segments if each.region.path == path)
        byte = segment.region.slice(position + bit // 8, 1)
        ctypes.c_uint8.from_address(byte.address).value ^= 1 << bit % 8
        return first, following

    def scrub(self) -> int:
        """One round; the number of steps it took."""
        rounds, steps = self.scrubber.status.rounds, 0
        while self.scrubber.status.rounds == rounds:
            self.clock.advance(self.scrubber.do_work())
            steps += 1
        return steps

    def check_all_but(self, lost: list[tuple[int, int]], log: UnifiedLog | None = None) -> None:
        """Every record outside of the ranges is read, by reads that begin anywhere; within, none."""
        log = log or self.log
        gone = {offset for first, following in lost for offset in range(first, following)}
        for start in range(log.log_start_offset, log.log_end_offset):
            if start in gone:
                for read in (lambda at: log.read(at, 1000), lambda at: next(log.batches(at))):
                    with pytest.raises(DamagedLog) as raised:
                        read(start)
                    assert raised.value.where == start
                continue
            stop = min((first for first, _ in lost if first > start), default=log.log_end_offset)
            expected = [(offset, self.truth[offset]) for offset in range(start, stop)]
            found = [(r.offset, r.value) for batch in log.batches(start, stop) for r in batch]
            assert [each for each in found if each[0] >= start] == expected
            if stop < log.log_end_offset:
                with pytest.raises(DamagedLog):
                    list(log.batches(start))
            fetched = log.read(start, 1 << 20, isolation="log_end").records
            assert fetched is not None
            assert len(fetched) > 0


def ranges(log: UnifiedLog) -> list[tuple[int, int | None]]:
    return [(damage.first_offset, damage.next_offset) for damage in log.damages]


def test_a_sound_log_is_read_once_in_a_round() -> None:
    bench = Bench().fill()
    closed = list(bench.log.local.segments)[:-1]
    bench.scrub()
    assert bench.scrubber.status[:4] == (1, len(closed), sum(s.size for s in closed), 0)
    assert ranges(bench.log) == []
    assert bench.reported == []
    assert not bench.storage.exists(f"{DIRECTORY}/{DAMAGE_FILE}")


BITS_OF_A_BATCH = 8 * 61 + 8 * 8
closed_batches = st.integers(0, ROLLS[-1] - 1)


@settings(deadline=None)
@given(closed_batches, st.integers(0, BITS_OF_A_BATCH - 1))
def test_any_flipped_bit_is_found_and_names_its_batch(batch: int, bit: int) -> None:
    bench = Bench().fill()
    lost = bench.flip(batch, bit)
    bench.scrub()
    path, position, size, *_ = bench.places[batch]
    (damage,) = bench.reported
    assert (damage.first_offset, damage.next_offset) == lost
    assert (damage.path, damage.position, damage.end_position) == (path, position, position + size)
    assert list(bench.log.damages) == [damage]
    bench.check_all_but([lost])
    # Appends go on, and a second round says nothing new.
    bench.append(2)
    bench.log.roll()
    bench.append(1)
    bench.scrub()
    assert bench.reported == [damage]
    assert bench.failures == []
    bench.check_all_but([lost])


@settings(deadline=None, max_examples=20)
@given(
    st.lists(closed_batches, min_size=1, max_size=4, unique=True),
    st.integers(16 * 8, BITS_OF_A_BATCH - 1),
    st.sampled_from(["clean", "killed", "power cut", "reader"]),
)
def test_what_was_found_is_known_after_a_restart(batches: list[int], bit: int, ending: str) -> None:
    bench = Bench().fill()
    for batch in batches:
        bench.flip(batch, bit)
    bench.scrub()
    found = ranges(bench.log)
    assert sum(following - first for first, following in found if following) == sum(
        BATCHES[b] for b in batches
    )
    bench.append(3)
    if ending == "clean":
        bench.log.close()
    storage = bench.storage.after_power_cut() if ending == "power cut" else bench.storage.after_kill()
    log = bench.open(storage, read_only=ending == "reader")
    assert ranges(log) == found
    lost = [(first, following) for first, following in found if following is not None]
    if ending == "power cut":
        assert log.log_end_offset >= sum(BATCHES)  # what was appended afterwards was never flushed
    bench.check_all_but(lost, log)
    if ending != "reader":
        assert log.is_writable
        assert log.append_records([b"on"], 5).base_offset == log.log_end_offset - 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, len(BATCHES) - 1), st.integers(16 * 8, BITS_OF_A_BATCH - 1))
def test_a_read_that_meets_rot_reports_it_as_a_scrub_does(batch: int, bit: int) -> None:
    # Also in the active segment, which is closed then.
    bench = Bench().fill()
    lost = bench.flip(batch, bit)
    with pytest.raises(CorruptMessage):
        list(bench.log.batches(0))
    assert ranges(bench.log) == [lost]
    assert [damage.first_offset for damage in bench.reported] == [lost[0]]
    bench.append(2)
    bench.check_all_but([lost])
    bench.scrub()
    assert ranges(bench.log) == [lost]
    log = bench.open(bench.storage.after_kill())
    assert log.is_writable
    bench.check_all_but([lost], log)


@settings(deadline=None, max_examples=30)
@given(closed_batches, st.integers(0, BITS_OF_A_BATCH - 1), st.integers(0, sum(BATCHES)))
@example(0, 90, 4)  # a length that leads to a length of zero inside of the next batch
def test_a_truncation_takes_the_damage_along_or_leaves_it_behind(batch: int, bit: int, offset: int) -> None:
    bench = Bench().fill()
    first, following = bench.flip(batch, bit)
    bench.scrub()
    assert ranges(bench.log) == [(first, following)]
    bench.log.truncate_to(offset)
    end = bench.log.log_end_offset
    starts = [place[3] for place in bench.places]
    assert end == (max(s for s in starts if s <= offset) if offset < sum(BATCHES) else offset)
    lost = [(first, following)] if first < end else []
    assert ranges(bench.log) == lost
    for gone in [each for each in bench.truth if each >= end]:
        del bench.truth[gone]
    bench.append(1)
    bench.append(2)
    bench.check_all_but(lost)
    log = bench.open(bench.storage.after_kill())
    assert ranges(log) == lost
    assert log.is_writable
    bench.check_all_but(lost, log)


@pytest.mark.parametrize("offset", range(sum(BATCHES)))
def test_a_truncation_works_around_undetected_rot(offset: int) -> None:
    bench = Bench().fill()
    bench.flip(5, 8 * 16)
    bench.log.truncate_to(offset)
    starts = [place[3] for place in bench.places]
    assert bench.log.log_end_offset == max(s for s in starts if s <= offset)
    bench.append(1)
    (batch,) = bench.log.batches(bench.places[-1][3])
    assert [record.value for record in batch] == [bench.truth[bench.places[-1][3]]]


def test_retention_takes_the_damage_along() -> None:
    bench = Bench().fill()
    bench.flip(1, 8 * 20)
    bench.flip(5, 8 * 20)
    bench.scrub()
    assert len(bench.log.damages) == 2
    bench.log.update_high_watermark(bench.log.log_end_offset)
    bench.log.maybe_increment_log_start_offset(bench.places[ROLLS[0]][3])
    bench.log.delete_old_segments()
    assert ranges(bench.log) == [(bench.places[5][3], bench.places[5][4])]
    bench.log.truncate_fully_and_start_at(100)
    assert ranges(bench.log) == []
    assert not bench.storage.exists(f"{DIRECTORY}/{DAMAGE_FILE}")


def test_what_was_mended_meanwhile_is_forgotten() -> None:
    bench = Bench().fill()
    bench.flip(3, 8 * 30)
    bench.scrub()
    assert len(bench.log.damages) == 1
    bench.flip(3, 8 * 30)
    bench.log.close()
    log = bench.open()
    assert ranges(log) == []
    bench.check_all_but([], log)


def test_a_broken_damage_file_costs_no_log() -> None:
    bench = Bench().fill()
    bench.flip(3, 8 * 30)
    bench.scrub()
    bench.log.close()
    bench.storage.write_file(f"{DIRECTORY}/{DAMAGE_FILE}", b"{")
    bench.log = bench.open()
    assert bench.log.recovered.unreadable
    assert bench.log.is_writable
    bench.scrub()
    assert len(bench.log.damages) == 1


def test_a_read_by_time_passes_over_what_rotted() -> None:
    bench = Bench().fill()
    bench.clock.advance(1000)
    bench.log.roll()
    late = bench.clock.now_ms
    for _ in range(3):
        bench.append(1)
    bench.log.roll()
    bench.append(1)
    bench.flip(len(BATCHES), 8 * 30)
    bench.scrub()
    found = bench.log.offset_for_timestamp(late)
    assert found is not None
    assert found[:2] == (late, bench.places[len(BATCHES) + 1][3])


@pytest.mark.parametrize("ending", ["clean", "killed", "reader"])
@pytest.mark.parametrize("suffixes", [[".log"], [".log", ".index", ".timeindex", ".snapshot"]])
@pytest.mark.parametrize("segment", [1, 2])
def test_a_file_that_is_gone_is_noticed(segment: int, suffixes: list[str], ending: str) -> None:
    bench = Bench().fill()
    bases = [each.base_offset for each in bench.log.local.segments]
    if ending == "killed":
        bench.log.flush()
    else:
        bench.log.close()
    storage = bench.storage.after_kill()
    for suffix in suffixes:
        storage.remove(f"{DIRECTORY}/{bases[segment]:020}{suffix}")
    lost = (bases[segment], bases[segment + 1])
    log = bench.open(storage, read_only=ending == "reader")
    assert ranges(log) == [lost]
    bench.check_all_but([lost], log)
    if ending == "reader":
        return
    log.append_records([b"on"], 5)
    bench.truth[log.log_end_offset - 1] = b"on"
    log.close()
    again = bench.open(storage.after_kill())
    assert ranges(again) == [lost]
    bench.check_all_but([lost], again)


def test_a_scrub_notices_a_missing_segment() -> None:
    bench = Bench().fill()
    bases = [each.base_offset for each in bench.log.local.segments]
    bench.log.local.remove([bench.log.local.segments[1]])
    bench.scrub()
    assert ranges(bench.log) == [(bases[1], bases[2])]
    bench.scrub()
    assert len(bench.reported) == 1


# ---- pace --------------------------------------------------------------------------------------------------


def test_a_round_is_paced_and_begins_once_in_its_interval() -> None:
    bench = Bench(segment_bytes=1 << 20)
    for _ in range(40):
        bench.log.append_records([bytes(400_000)])
    closed = sum(segment.size for segment in list(bench.log.local.segments)[:-1])
    bench.scrubber = bench.made_scrubber(
        **{"log.scrub.max.bytes.per.second": 1 << 20, "log.scrub.interval.ms": 3_600_000}
    )
    began = bench.clock.now_ms
    steps = 0
    while bench.scrubber.status.rounds == 0:
        before = bench.scrubber.status.bytes
        rest_ms = bench.scrubber.do_work()
        steps += 1
        read = bench.scrubber.status.bytes - before
        assert read <= 8 << 20
        assert rest_ms >= read * 1000 // (1 << 20)
        bench.clock.advance(rest_ms)
    assert bench.scrubber.status.bytes == closed
    assert steps > 10
    assert bench.clock.now_ms - began == 3_600_000
    # Early calls do nothing.
    bench.scrubber.do_work()
    assert bench.scrubber.status.at == PARTITION


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 30), st.sampled_from(["roll", "append", "truncate", "delete", "close"]))
def test_the_log_may_change_between_two_steps(steps: int, change: str) -> None:
    bench = Bench(segment_bytes=1000)
    for _ in range(60):
        bench.append(1)
    for _ in range(steps):
        bench.scrubber.do_work()
    match change:
        case "roll":
            bench.log.roll()
        case "append":
            bench.append(3)
        case "truncate":
            bench.log.truncate_to(31)
        case "delete":
            bench.log.update_high_watermark(60)
            bench.log.maybe_increment_log_start_offset(40)
            bench.log.delete_old_segments()
        case "close":
            bench.log.close()
    bench.scrub()
    assert bench.failures == []
    assert bench.reported == []


def test_a_log_that_cannot_be_read_is_named_and_left_out() -> None:
    bench = Bench().fill()
    bench.storage.write_file(bench.places[0][0], b"short")
    bench.scrub()
    assert len(bench.failures) == 1
    assert bench.reported == []
    bench.scrub()
    assert len(bench.failures) == 2
