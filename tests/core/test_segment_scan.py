"""Reading a segment through: where does the good part end, and where does it go on?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.log_segment import LogSegment
from kreplica._core.segment_scan import resync, scan
from kreplica._core.status import NAMES
from tests.support.batches import build, with_field
from tests.support.segments import contents, filled, region, segment

BASE = 100
PLAIN = [build([b"a", b"b"], base_offset=BASE), build([b"c"], base_offset=BASE + 2, now_ms=9)]
LOG = b"".join(PLAIN)


def name(status: int) -> str:
    return NAMES[status]


def whole(data: bytes, **start):
    made = segment(data, base_offset=BASE)
    arguments = {"position": 0, "limit": len(data), "next_offset": BASE, "leader_epoch": -1, **start}
    return scan(made, **arguments)


def test_a_good_segment_is_read_to_its_end():
    assert whole(LOG) == (0, len(LOG), BASE + 3, ())
    assert whole(b"") == (0, 0, BASE, ())
    assert whole(LOG, position=len(PLAIN[0]), next_offset=BASE + 2) == (0, len(LOG), BASE + 3, ())
    assert whole(LOG, limit=len(PLAIN[0])) == (0, len(PLAIN[0]), BASE + 2, ())


def test_what_a_log_has_to_look_at_stops_the_scan_behind_it():
    producer = {"producer_id": 11, "producer_epoch": 1, "base_sequence": 5}
    batch = build([b"a", b"b"], base_offset=BASE, leader_epoch=4, now_ms=7, **producer)
    status, position, next_offset, header = whole(batch + LOG)
    assert (status, position, next_offset) == (1, len(batch), BASE + 2)
    assert header == (BASE, BASE + 1, 4, 7, 11, 1, 5, 0, 2, len(batch))
    # The same epoch is no news, another one is, and so is a producer without one.
    plain = build([b"a"], base_offset=BASE, leader_epoch=4)
    assert whole(plain, leader_epoch=4)[0] == 0
    assert whole(plain, leader_epoch=3)[0] == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (LOG[:-1], "BAD_BATCH_LENGTH"),
        (LOG + b"\1", "SHORT_INPUT"),
        (LOG + bytes(61), "BAD_BATCH_LENGTH"),
        (LOG[:-1] + b"\7", "BAD_CRC"),
        (PLAIN[0] + with_field(PLAIN[1], 16, ">b", 1), "BAD_MAGIC"),
        (PLAIN[0] + PLAIN[0], "OFFSET_REGRESSION"),
        (PLAIN[0] + build([b"c"], base_offset=BASE + 0x80000000), "OFFSET_OVERFLOW"),
        (PLAIN[0] + with_field(PLAIN[1], 57, ">i", 9), "BAD_RECORD_COUNT"),
    ],
)
def test_a_bad_batch_stops_it_where_it_begins(bad, reason):
    status, position, next_offset, header = whole(bad)
    assert name(status) == reason
    good = 2 if bad.startswith(LOG) else 1
    assert (position, next_offset, header) == (sum(map(len, PLAIN[:good])), BASE + good + 1, ())


def test_an_epoch_that_goes_back_stops_it():
    data = build([b"a"], base_offset=BASE, leader_epoch=3) + build(
        [b"b"], base_offset=BASE + 1, leader_epoch=2
    )
    status, position, next_offset, header = whole(data)
    assert (status, header[2]) == (1, 3)
    assert (
        name(whole(data, position=position, next_offset=next_offset, leader_epoch=3)[0]) == "EPOCH_REGRESSION"
    )


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 50)), min_size=1, max_size=20),
    st.sampled_from([0, 1000, 4096]),
)
def test_a_rebuild_makes_the_indexes_that_the_appends_made(shapes, interval):
    appended, _ = filled(shapes, BASE, index_interval_bytes=interval)
    lies = {"index": b"lies", "time_index": b"lies"}
    rebuilt = segment(contents(appended.region), base_offset=BASE, index_interval_bytes=interval, **lies)
    rebuilt.forget()
    status, position, next_offset = 1, 0, BASE
    while status == 1:
        # The first batch is of another epoch than none, so that the scan stops behind it.
        status, position, next_offset, _ = scan(rebuilt, position, rebuilt.size, next_offset, 0, rebuild=True)
    assert (status, position) == (0, appended.size)
    for one, other in zip(rebuilt.regions(), appended.regions(), strict=True):
        assert contents(one) == contents(other)
    for field in ("first_timestamp", "max_timestamp", "offset_of_max_timestamp"):
        assert getattr(rebuilt, field) == getattr(appended, field)


def test_batches_larger_than_the_window():
    large = build([bytes(9 << 20)], base_offset=BASE)
    data = large + build([b"x"], base_offset=BASE + 1) + build([bytes(9 << 20)], base_offset=BASE + 2)
    made = segment(data, base_offset=BASE, index_bytes=1 << 12)
    assert made.region.length == 1 << 20  # a region is no longer than its capacity
    made = LogSegment(region(data, len(data)), made.offset_index, made.time_index, BASE)
    assert scan(made, 0, len(data), BASE, -1) == (0, len(data), BASE + 3, ())
    assert name(scan(made, 0, len(data) - 1, BASE, -1)[0]) == "BAD_BATCH_LENGTH"
    cut = bytearray(data)
    cut[20] ^= 1
    made = LogSegment(region(bytes(cut), len(cut)), made.offset_index, made.time_index, BASE)
    assert name(scan(made, 0, len(data), BASE, -1)[0]) == "BAD_CRC"
    assert resync(made, 0, BASE) == (BASE + 1, len(large))


# ---- behind a bad batch -----------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.integers(0, 3))
def test_the_next_whole_batch_is_found(rubbish, before):
    good = build([b"good"], base_offset=BASE + 7)
    data = PLAIN[0] + b"\1" + rubbish + good
    at = len(data) - len(good)
    assert resync(segment(data, base_offset=BASE), len(PLAIN[0]), BASE + 2 + before) == (BASE + 7, at)


def test_what_is_no_next_batch():
    bad_crc = LOG[:-1] + b"\7"
    assert resync(segment(bad_crc, base_offset=BASE), 0, BASE + 2) is None
    assert resync(segment(LOG, base_offset=BASE), 0, BASE + 3) is None  # offsets that were given already
    assert resync(segment(LOG, base_offset=BASE), len(LOG), BASE) is None
    assert resync(segment(b"", base_offset=BASE), 0, BASE) is None


@given(st.binary(max_size=300))
def test_any_bytes_come_to_an_end(data):
    made = segment(data, base_offset=BASE)
    status, position, _, _ = scan(made, 0, len(data), BASE, -1)
    assert status <= 0
    assert 0 <= position <= len(data)
    assert resync(made, 0, BASE) is None
