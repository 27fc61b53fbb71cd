"""The log against a plain list of batches, over any sequence of what a replica does to it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kreplica.log.log_loader import OpenOptions
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock, open_log, values

SETTINGS = {"segment_bytes": 600, "index_interval_bytes": 150, "retention_bytes": 1500, "retention_ms": -1}


class LogModel(RuleBasedStateMachine):
    """A batch of the model is (base offset, epoch, values)."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.clock = ManualClock()
        self.log = open_log(self.root / "t-0", self.clock, options=OpenOptions(), **SETTINGS)
        self.batches: list[tuple[int, int, list[bytes]]] = []
        self.start = self.end = self.mark = self.epoch = self.number = 0

    def teardown(self) -> None:
        self.log.abandon()
        shutil.rmtree(self.root)

    def payload(self, count: int) -> list[bytes]:
        self.number += 1
        return [b"%d.%d" % (self.number, index) + bytes(index * 9) for index in range(count)]

    def appended(self, base: int, epoch: int, payload: list[bytes]) -> None:
        self.batches.append((base, epoch, payload))
        self.end, self.epoch = base + len(payload), epoch

    @rule(count=st.integers(1, 5), newer=st.integers(0, 1), as_values=st.booleans())
    def append_as_leader(self, count: int, newer: int, as_values: bool) -> None:
        payload, epoch = self.payload(count), max(self.log.leader_epoch, 0) + newer
        if as_values:
            info = self.log.append_records(payload, epoch)
        else:
            info = self.log.append_as_leader(build(payload, now_ms=NOW_MS), epoch)
        assert (info.base_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.appended(self.end, epoch, payload)

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=3), gap=st.sampled_from([0, 0, 0, 3]))
    def append_as_follower(self, counts: list[int], gap: int) -> None:
        fetched, epoch = b"", max(self.log.leader_epoch, 0)
        base = self.end + gap
        for count in counts:
            payload = self.payload(count)
            fetched += build(payload, base_offset=base, leader_epoch=epoch, now_ms=NOW_MS)
            self.appended(base, epoch, payload)
            base += count
        info = self.log.append_as_follower(fetched)
        assert info is not None
        assert info.last_offset == self.end - 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(share=st.floats(0, 1))
    def advance_the_high_watermark(self, share: float) -> None:
        self.mark = max(self.mark, self.start + round(share * (self.end - self.start)))
        self.log.maybe_increment_high_watermark(self.mark)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        start = self.start + round(share * (self.mark - self.start))
        assert self.log.maybe_increment_log_start_offset(start) == (start > self.start)
        self.start = start

    @rule()
    def delete_old_segments(self) -> None:
        before = self.log.size
        gone = self.log.delete_old_segments()
        # What goes is bounded by the marks; how much, by the sizes, which the model takes from the log.
        start = self.log.log_start_offset
        assert self.start <= start <= self.mark
        assert (gone > 0) == (self.log.size < before) or gone == 0
        self.start = start

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + round(share * (self.end - self.start))
        assert self.log.truncate_to(offset) == (offset < self.end)
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch[0] + len(batch[2]) <= offset]
            # Where the log ends after a cut in a gap, or in front of all batches, its segments decide.
            self.end = self.log.log_end_offset
            last = self.batches[-1] if self.batches else None
            assert (last[0] + len(last[2]) if last else 0) <= self.end <= offset
            self.start, self.mark = min(self.start, self.end), min(self.mark, self.end)

    @precondition(lambda self: self.end > 0)
    @rule(offset=st.integers(0, 50))
    def begin_anew(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self.batches = []
        self.start = self.end = self.mark = offset

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.log.close() if clean else self.log.abandon()
        options = OpenOptions(high_watermark=self.mark)
        self.log = open_log(self.root / "t-0", self.clock, options=options, **SETTINGS)
        assert self.log.damage is None

    @invariant()
    def stands_where_the_model_stands(self) -> None:
        log = self.log
        facts = (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset)
        assert facts == (self.start, self.mark, self.mark, self.end)
        assert self.start <= self.mark <= self.end

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        expected = [
            (base + index, value)
            for base, _, payload in self.batches
            for index, value in enumerate(payload)
            if base + index >= self.start
        ]
        assert values(self.log) == expected
        committed = [pair for pair in expected if pair[0] < self.mark]
        assert values(self.log, isolation="high_watermark")[: len(committed)] == committed
        for base, epoch, payload in self.batches:
            if base >= self.start:
                assert self.log.epochs.epoch_for_offset(base) == epoch
                assert self.log.epochs.epoch_for_offset(base + len(payload) - 1) == epoch


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_batch_after_all_epochs_were_forgotten_begins_its_epoch_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records([b"x"])
    log.maybe_increment_log_start_offset(1)
    log.truncate_to(1)
    log.append_records([b"y"])
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 1)]
