"""Walks over a segment: where they stop, what they say of the batch there, and where the log goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_walk import AT_END, SOUND, SegmentWalk, resync
from kreplica._core.log_segment import LogSegment
from kreplica._core.region import Region
from kreplica._core.status import NAMES
from kreplica.common.errors import KafkaStorageError
from tests.support.batches import build, with_field
from tests.support.segments import contents, filled, region, segment

BASE = 100
PLAIN = [build([b"a", b"b"], base_offset=BASE), build([b"c"], base_offset=BASE + 2, now_ms=9)]
LOG = b"".join(PLAIN)


def name(status: int) -> str:
    return NAMES[status]


def walk(made: LogSegment, **more) -> SegmentWalk:
    return SegmentWalk(made.region, BASE, **{"next_offset": BASE, **more})


def skipped(made: SegmentWalk, stop: int = 1 << 62) -> tuple[int, int, int]:
    return made.skip(stop), made.position, made.next_offset


def whole(data: bytes, **more) -> tuple[int, int, int]:
    return skipped(walk(segment(data, base_offset=BASE), **more))


def test_a_good_segment_is_read_to_its_end():
    assert whole(LOG) == (AT_END, len(LOG), BASE + 3)
    assert whole(b"") == (AT_END, 0, BASE)
    assert whole(LOG, position=len(PLAIN[0]), next_offset=BASE + 2) == (AT_END, len(LOG), BASE + 3)
    assert whole(LOG, limit=len(PLAIN[0])) == (AT_END, len(PLAIN[0]), BASE + 2)
    stepped = walk(segment(LOG, base_offset=BASE))
    assert skipped(stepped, 1) == (AT_END, len(PLAIN[0]), BASE + 2)
    assert skipped(stepped) == (AT_END, len(LOG), BASE + 3)


def test_a_walk_stops_in_front_of_what_needs_a_look():
    producer = {"producer_id": 11, "producer_epoch": 1, "base_sequence": 5}
    batch = build([b"a", b"b"], base_offset=BASE, leader_epoch=4, now_ms=7, **producer)
    assert whole(batch) == (AT_END, len(batch), BASE + 2)
    made = walk(segment(batch + PLAIN[1], base_offset=BASE), looks_at_producers=True, epochs_ascend=False)
    assert skipped(made) == (SOUND, 0, BASE)
    found = made.batch()
    assert (found.base_offset, found.last_offset, found.leader_epoch, found.max_timestamp) == (
        BASE,
        BASE + 1,
        4,
        7,
    )
    assert (found.producer_id, found.producer_epoch, found.base_sequence, found.size) == (
        11,
        1,
        5,
        len(batch),
    )
    made.accept()
    assert (made.position, made.next_offset, made.leader_epoch) == (len(batch), BASE + 2, 4)
    assert (made.last_position, made.last_due) == (0, BASE)
    with pytest.raises(ValueError, match="not found sound"):
        made.accept()
    assert skipped(made)[0] == AT_END
    # The same epoch needs no look, another one does.
    plain = build([b"a"], base_offset=BASE, leader_epoch=4)
    assert whole(plain, leader_epoch=4, looks_at_epochs=True)[0] == AT_END
    assert whole(plain, leader_epoch=3, looks_at_epochs=True)[0] == SOUND
    assert whole(plain, leader_epoch=3)[0] == AT_END


def test_a_look_judges_one_batch():
    made = walk(segment(LOG[:-1] + b"?", base_offset=BASE))
    assert (made.look(), made.position, made.is_framed) == (SOUND, 0, True)
    made.accept()
    assert (name(made.look()), made.position, made.is_framed) == ("BAD_CRC", len(PLAIN[0]), True)
    assert made.batch().base_offset == BASE + 2
    made.go(len(PLAIN[0]) + 1, BASE)
    assert (made.look() < 0, made.is_framed, made.last_position) == (True, False, -1)
    with pytest.raises(ValueError, match="no batch"):
        made.batch()
    made.go(len(LOG), BASE)
    assert (made.look(), made.is_framed) == (AT_END, False)


def test_the_size_in_a_header_is_read_whatever_it_is():
    made = walk(segment(LOG, base_offset=BASE))
    assert (made.size_there(), made.base_offset_there()) == (len(PLAIN[0]), BASE)
    made.go(len(LOG) - 5, BASE)
    assert made.size_there() == 6
    assert walk(segment(with_field(LOG, 8, ">i", -40), base_offset=BASE)).size_there() == -28


@pytest.mark.parametrize(
    ("second", "third", "is_last_wrong"), [(2, 1, False), (7, 2, True), (7, 9, False), (7, 1, False)]
)
def test_of_two_batches_the_earlier_has_a_wrong_offset_if_the_later_fits_without_it(
    second, third, is_last_wrong
):
    data = b"".join(build([b"a"] * 2, base_offset=BASE + offset) for offset in (0, second, third))
    made = walk(segment(data, base_offset=BASE))
    assert not made.last_is_wrong(BASE)  # it has passed none yet
    made.skip()
    assert made.last_is_wrong(BASE + third) == is_last_wrong


def test_a_batch_judged_alone_may_have_any_place():
    data = PLAIN[1] + PLAIN[0] + build([b"c"], base_offset=BASE + 0x80000000)
    assert name(whole(data)[0]) == "OFFSET_REGRESSION"
    assert whole(data, judges_alone=True)[:2] == (AT_END, len(data))


def test_a_walk_stops_in_front_of_another_epoch_and_of_an_offset():
    first, second = (
        build([b"a"], base_offset=BASE + number, leader_epoch=epoch) for number, epoch in enumerate((3, 5))
    )
    end, looks = BASE + 1, {"looks_at_epochs": True}
    assert whole(first + second, leader_epoch=3, stop_offset=end, **looks) == (SOUND, len(first), end)
    # So it does where an epoch should end and the batch is of it still, and where it should not end yet.
    assert whole(first + first, leader_epoch=3, stop_offset=BASE, **looks)[0] == SOUND
    assert whole(first + second, leader_epoch=3, stop_offset=BASE + 9, **looks)[:2] == (SOUND, len(first))
    assert name(whole(first + second, leader_epoch=5, **looks)[0]) == "EPOCH_REGRESSION"
    # What is not whole is no batch of any epoch.
    assert name(whole(first + second[:-1] + b"?", leader_epoch=3, stop_offset=end, **looks)[0]) == "BAD_CRC"


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
    status, position, next_offset = whole(bad)
    assert name(status) == reason
    good = 2 if bad.startswith(LOG) else 1
    assert (position, next_offset) == (sum(map(len, PLAIN[:good])), BASE + good + 1)


def test_an_epoch_that_goes_back_stops_it():
    data = build([b"a"], base_offset=BASE, leader_epoch=3) + build(
        [b"b"], base_offset=BASE + 1, leader_epoch=2
    )
    made = walk(segment(data, base_offset=BASE))
    assert (name(made.skip()), made.leader_epoch) == ("EPOCH_REGRESSION", 3)
    assert whole(data, epochs_ascend=False)[0] == AT_END


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3000), st.integers(0, 50)), min_size=1, max_size=20),
    st.sampled_from([0, 1000, 4096]),
)
def test_a_rebuild_makes_the_indexes_that_the_appends_made(shapes, interval):
    appended, _ = filled(shapes, BASE, index_interval_bytes=interval)
    lies = {"index": b"lies", "time_index": b"lies"}
    rebuilt = segment(contents(appended.region), base_offset=BASE, index_interval_bytes=interval, **lies)
    rebuilt.forget()
    feeding = walk(rebuilt, feeds=rebuilt, looks_at_epochs=True)
    while feeding.skip() == SOUND:
        feeding.accept()  # the first batch is of another epoch than none
    assert (feeding.verdict, feeding.position) == (AT_END, appended.size)
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
    assert skipped(walk(made)) == (AT_END, len(data), BASE + 3)
    assert walk(made).look() == SOUND
    assert name(walk(made, limit=len(data) - 1).skip()) == "BAD_BATCH_LENGTH"
    cut = bytearray(data)
    cut[20] ^= 1
    made = LogSegment(region(bytes(cut), len(cut)), made.offset_index, made.time_index, BASE)
    assert name(walk(made).skip()) == "BAD_CRC"
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
    status, position, _ = skipped(walk(made))
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
    """Walk through the whole segment in steps of this size; return (status, position, next offset)."""
    made = segment(data, base_offset=BASE, index_bytes=1 << 12)
    made = LogSegment(region(data, len(data)), made.offset_index, made.time_index, BASE)
    found = walk(made, aside=True, epochs_ascend=False, **{"following": BASE + 1000, **named})
    while found.skip(found.position + step) == AT_END and found.position < len(data):
        assert 0 <= found.last_position < found.position
        assert BASE <= found.last_due <= found.next_offset
    return found.verdict if found.verdict >= 0 else name(found.verdict), found.position, found.next_offset


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
    assert examined(both, step, leader_epoch=3, looks_at_epochs=True) == (SOUND, len(first), BASE + 1)
    assert examined(both, step, leader_epoch=5, looks_at_epochs=True) == (SOUND, 0, BASE)
    assert examined(both, step, stop_offset=BASE + 1) == (SOUND, len(first), BASE + 1)
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
        found = made.position_of(BASE + number, behind=start)
        assert found == (position, size, BASE + number, BASE + number)
        for most in (0, size - 1, size, 2 * size + 1, 1 << 20):
            wanted = max(1, most // size)
            got = made.read(BASE + number, most, behind=start)
            assert bytes(got) == b"".join(whole[number : number + wanted])
        assert made.read(BASE + number, size - 1, at_least_one=False, behind=start) is None
        assert made.read(BASE + number, 1 << 20, limit=position, behind=start) is None
        got = made.read(BASE + number, 1 << 20, limit=position + size, behind=start)
        assert bytes(got) == whole[number]
    assert made.position_of(BASE + count, behind=start) is None
    assert made.read(BASE + count, 100, behind=start) is None


def test_a_file_that_is_examined_aside_stays_cold(tmp_path):
    data = b"".join(build([bytes(90_000)], base_offset=BASE + number) for number in range(20))
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(data)
    file = Region(path, len(data), writable=True)
    made = segment(b"", base_offset=BASE)
    made = LogSegment(file, made.offset_index, made.time_index, BASE)
    assert skipped(walk(made, following=BASE + 20, aside=True)) == (AT_END, len(data), BASE + 20)
    assert not file.is_mapped
    assert not file.holds_descriptor
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(KafkaStorageError):
        walk(made, following=BASE + 20, aside=True).skip()
