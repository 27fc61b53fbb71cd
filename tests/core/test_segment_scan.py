"""Reading a segment through: where does the good part end, and where does it go on?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.log_segment import LogSegment
from kreplica._core.region import Region
from kreplica._core.segment_scan import examine, position_behind, read_behind, resync, scan
from kreplica._core.status import NAMES
from kreplica.common.errors import KafkaStorageError
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


def test_a_scan_stops_in_front_of_another_epoch_and_of_an_offset():
    first, second = (
        build([b"a"], base_offset=BASE + number, leader_epoch=epoch) for number, epoch in enumerate((3, 5))
    )
    end = BASE + 1
    status, position, next_offset, header = whole(first + second, leader_epoch=3, stop_offset=end)
    assert (status, position, next_offset) == (2, len(first), end)
    assert (header[0], header[2]) == (end, 5)
    # So it does where an epoch should end and the batch is of it still, and where it should not end yet.
    assert whole(first + first, leader_epoch=3, stop_offset=BASE)[0] == 2
    assert whole(first + second, leader_epoch=3, stop_offset=BASE + 9)[:2] == (2, len(first))
    assert whole(first + second, leader_epoch=5, stop_offset=BASE + 9)[0] < 0
    # What is not whole is no batch of any epoch.
    assert name(whole(first + second[:-1] + b"?", leader_epoch=3, stop_offset=end)[0]) == "BAD_CRC"


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


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("gap", [-100, -61, -60, -12, -1, 0])
def test_a_batch_across_two_windows_is_found(mapped, gap):
    # A cold file is searched window by window; the next whole batch may begin in one and end in another.
    window = 8 << 20
    good = build([bytes(300)], base_offset=BASE + 7)
    data = bytes(window + 1 + gap) + good
    made = segment(b"", base_offset=BASE)
    made = LogSegment(region(data, len(data)), made.offset_index, made.time_index, BASE)
    assert resync(made, 0, BASE, aside=not mapped) == (BASE + 7, window + 1 + gap)
    assert resync(made, 0, BASE, stop=window + 1 + gap, aside=not mapped) is None
    large = build([bytes(window + 5)], base_offset=BASE + 7)
    made = LogSegment(
        region(bytes(9) + large + good, 9 + len(large) + len(good)), made.offset_index, made.time_index, BASE
    )
    assert resync(made, 0, BASE, aside=not mapped) == (BASE + 7, 9)


# ---- a closed segment once more ---------------------------------------------------------------------------


def examined(data: bytes, step: int, **named):
    """Through the whole segment in steps of so many bytes; (status, position, next offset)."""
    made = segment(data, base_offset=BASE, index_bytes=1 << 12)
    made = LogSegment(region(data, len(data)), made.offset_index, made.time_index, BASE)
    status, position, expected = 0, 0, BASE
    while status == 0 and position < len(data):
        arguments = {"following": BASE + 1000, **named}
        status, position, expected, last, least = examine(
            made, position, position + step, expected, aside=True, **arguments
        )
        assert status != 0 or (0 <= last < position and BASE <= least <= expected)
    return status if status >= 0 else name(status), position, expected


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=20),
    st.sampled_from([1, 61, 100, 700, 1 << 23]),
    st.data(),
)
def test_any_step_comes_to_the_same_end(sizes, step, data):
    whole = [build([bytes(size)], base_offset=BASE + number) for number, size in enumerate(sizes)]
    assert examined(b"".join(whole), step) == (0, sum(map(len, whole)), BASE + len(whole))
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole[at])
    bit = data.draw(st.integers(8 * 8, 8 * len(bad) - 1).filter(lambda bit: not 12 * 8 <= bit < 16 * 8))
    bad[bit // 8] ^= 1 << bit % 8
    status, position, expected = examined(b"".join([*whole[:at], bytes(bad), *whole[at + 1 :]]), step)
    assert isinstance(status, str)
    assert (position, expected) == (sum(map(len, whole[:at])), BASE + at)


@pytest.mark.parametrize("step", [1, 1 << 23])
def test_offsets_and_epochs_must_be_those_of_the_log(step):
    first, second = (
        build([b"a"], base_offset=BASE, leader_epoch=3),
        build([b"b"], base_offset=BASE + 1, leader_epoch=5),
    )
    both = first + second
    assert examined(both, step) == (0, len(both), BASE + 2)
    assert examined(both, step, leader_epoch=3) == ("EPOCH_MISMATCH", len(first), BASE + 1)
    assert examined(both, step, leader_epoch=3, epoch_end=BASE + 1) == (1, len(first), BASE + 1)
    assert examined(both, step, following=BASE + 2) == (0, len(both), BASE + 2)
    assert examined(both, step, following=BASE + 1) == ("OFFSET_OVERFLOW", len(first), BASE + 1)
    assert examined(first + first, step) == ("OFFSET_REGRESSION", len(first), BASE + 1)


def test_a_batch_larger_than_a_step_is_read_whole():
    large = build([bytes(9 << 20)], base_offset=BASE)
    small = build([b"x"], base_offset=BASE + 1)
    for data in (large + small, small[:0] + large):
        assert examined(data, 1 << 20)[:2] == (0, len(data))
    cut = bytearray(large + small)
    cut[8] ^= 1  # it seems to reach beyond the file
    assert examined(bytes(cut), 1 << 20) == ("BAD_BATCH_LENGTH", 0, BASE)


# ---- behind damage ----------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.data())
def test_reading_behind_a_broken_batch_looks_at_nothing_below(count, data):
    whole = [build([b"v%d" % number], base_offset=BASE + number) for number in range(count)]
    broken = data.draw(st.integers(0, count - 2))
    log = b"".join([*whole[:broken], b"\xff" * len(whole[broken]), *whole[broken + 1 :]])
    made = segment(log, base_offset=BASE)
    start = sum(map(len, whole[: broken + 1]))
    for number in range(broken + 1, count):
        position = sum(map(len, whole[:number]))
        size = len(whole[number])
        assert position_behind(made, start, BASE + number) == (position, size, BASE + number, BASE + number)
        for most in (0, size - 1, size, 2 * size + 1, 1 << 20):
            wanted = max(1, most // size)
            got = read_behind(made, start, BASE + number, most)
            assert bytes(got) == b"".join(whole[number : number + wanted])
        assert read_behind(made, start, BASE + number, size - 1, at_least_one=False) is None
        assert read_behind(made, start, BASE + number, 1 << 20, limit=position) is None
        assert bytes(read_behind(made, start, BASE + number, 1 << 20, limit=position + size)) == whole[number]
    assert position_behind(made, start, BASE + count) is None
    assert read_behind(made, start, BASE + count, 100) is None


def test_a_file_that_is_examined_aside_stays_cold(tmp_path):
    data = b"".join(build([bytes(90_000)], base_offset=BASE + number) for number in range(20))
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(data)
    file = Region(path, len(data), writable=True)
    made = segment(b"", base_offset=BASE)
    made = LogSegment(file, made.offset_index, made.time_index, BASE)
    assert examine(made, 0, len(data), BASE, following=BASE + 20, aside=True)[:3] == (0, len(data), BASE + 20)
    assert not file.is_mapped
    assert not file.holds_descriptor
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(KafkaStorageError):
        examine(made, 0, len(data), BASE, following=BASE + 20, aside=True)
