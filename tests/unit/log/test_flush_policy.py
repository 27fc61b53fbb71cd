"""When a log flushes without a call of flush: flush.messages, flush.ms, and durability."""

import pytest

from kreplica import Log


class ManualClock:
    def __init__(self):
        self.now_ms = 1_000_000

    def time_ms(self):
        return self.now_ms

    def monotonic_ns(self):
        return self.now_ms * 1_000_000


@pytest.fixture
def clock():
    return ManualClock()


def test_page_cache_flushes_nothing_unasked(tmp_path, clock):
    with Log.open(tmp_path / "t-0", clock=clock) as log:
        for _ in range(50):
            clock.now_ms += 1_000
            log.append([b"v"])
        assert log.flush_offset == 0


def test_flush_messages_bounds_what_is_not_on_disk(tmp_path, clock):
    with Log.open(tmp_path / "t-0", clock=clock, flush_messages=10) as log:
        for _ in range(35):
            log.append([b"v"])
            assert log.log_end_offset - log.flush_offset < 10
        assert log.flush_offset == 30


def test_flush_ms_bounds_how_long_it_is_not_on_disk(tmp_path, clock):
    with Log.open(tmp_path / "t-0", clock=clock, flush_ms=100) as log:
        log.append([b"v"])
        assert log.flush_offset == 0
        clock.now_ms += 100
        log.append([b"v"])
        assert log.flush_offset == 2
        log.append([b"v"])
        assert log.flush_offset == 2


def test_fsync_acknowledges_only_what_is_on_disk(tmp_path, clock):
    with Log.open(tmp_path / "t-0", clock=clock, durability="fsync") as log:
        for _ in range(5):
            info = log.append([b"v"])
            assert log.flush_offset == info.last_offset + 1
