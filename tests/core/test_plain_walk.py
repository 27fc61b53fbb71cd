"""Walks over plain batches: where they stop, and what they say of the index entries on the way."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.batch_walk import PlainWalk, ascending_entries
from kreplica._core.record_batch import stamp_offsets
from kreplica._core.region import Region

COUNT = 3  # records a batch


def batch(number: int, epoch: int = 0) -> bytearray:
    made = bytearray(BatchBuilder().build([b"value"] * COUNT, now_ms=1000 + number))
    stamp_offsets(made, number * COUNT, epoch)
    return made


def check(
    path: Path,
    image: bytes,
    *,
    offsets: bytes = b"",
    times: bytes = b"",
    stop_offset: int = 1 << 62,
    leader_epoch: int = 0,
) -> tuple[int, ...]:
    path.write_bytes(image)
    with Region(path, max(1, len(image))) as region:
        walk = PlainWalk(region, offsets=offsets, times=times)
        walk.leader_epoch, walk.stop_offset = leader_epoch, stop_offset
        walk.skip()
        return walk.position, walk.next_offset, walk.offset_at, walk.open_at, walk.time_at, walk.greatest


def test_a_sound_run_is_passed_over(tmp_path: Path) -> None:
    batches = [batch(number) for number in range(5)]
    size = len(batches[0])
    offsets = b"".join(struct.pack(">ii", n * COUNT + 2, n * size) for n in (1, 3))
    times = b"".join(struct.pack(">qi", 1000 + n, n * COUNT + 2) for n in (1, 3))
    found = check(tmp_path / "0.log", b"".join(batches), offsets=offsets, times=times)
    assert found == (5 * size, 5 * COUNT, 2, -1, 2, 1004)


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 12, 16, 17, 22, 26, 60, 61, 70])
def test_it_stops_in_front_of_a_batch_with_any_change(tmp_path: Path, byte: int) -> None:
    batches = [batch(number) for number in range(3)]
    batches[1][byte] ^= 1
    found = check(tmp_path / "0.log", b"".join(batches))
    assert found == (len(batches[0]), COUNT, 0, -1, 0, 1000)


@pytest.mark.parametrize(
    ("offsets", "times"),
    [
        ([(2, 5)], []),  # inside of a batch
        ([(3, 0), (5, 90)], []),  # no batch has that offset before the next entry
        ([], [(1000, 1), (1001, 2)]),  # two timestamps of one batch
        ([], [(999, 2)]),
        ([], [(1001, 2)]),
    ],
)
def test_it_stops_where_an_index_lies(
    tmp_path: Path, offsets: list[tuple[int, int]], times: list[tuple[int, int]]
) -> None:
    size = len(batch(0))
    packed = b"".join(struct.pack(">ii", key, size if at == 90 else at) for key, at in offsets)
    position, *_ = check(
        tmp_path / "0.log",
        b"".join(batch(number) for number in range(3)),
        offsets=packed,
        times=b"".join(struct.pack(">qi", *entry) for entry in times),
    )
    assert position == (0 if times else size)


def test_it_stops_at_another_epoch(tmp_path: Path) -> None:
    image = b"".join([batch(0), batch(1), batch(2, epoch=1)])
    size = len(batch(0))
    assert check(tmp_path / "0.log", image)[0] == 2 * size
    assert check(tmp_path / "0.log", image, stop_offset=COUNT)[0] == size
    assert check(tmp_path / "0.log", image, leader_epoch=1)[0] == 0


def test_a_batch_larger_than_a_window(tmp_path: Path) -> None:
    large = bytearray(BatchBuilder().build([b"x" * (9 << 20)], now_ms=1))
    image = bytes(batch(0)) + bytes(batch(1)[:0])
    stamp_offsets(large, COUNT, 0)
    assert check(tmp_path / "0.log", image + bytes(large))[0] == len(image) + len(large)
    assert check(tmp_path / "0.log", image + bytes(large[:-1]))[0] == len(image)


@pytest.mark.parametrize("wrong", [{"offset_at": 1}, {"offset_at": -1}, {"open_at": 0}, {"time_at": 1}])
def test_entries_that_are_not_there(tmp_path: Path, wrong: dict[str, int]) -> None:
    (tmp_path / "0.log").write_bytes(batch(0))
    with Region(tmp_path / "0.log", 100) as region, pytest.raises(ValueError, match="entry"):
        PlainWalk(region).go_to_entries(
            **{"offset_at": 0, "open_at": -1, "time_at": 0, "greatest": -1, **wrong}
        )


@given(st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30))), st.booleans(), st.binary(max_size=7))
def test_entries_that_follow_each_other(entries: list[tuple[int, int]], times: bool, rest: bytes) -> None:
    data = b"".join(struct.pack(">qi" if times else ">ii", *entry) for entry in entries)
    expected = next(
        (
            n
            for n in range(1, len(entries))
            if not (entries[n][0] > entries[n - 1][0] and entries[n][1] > entries[n - 1][1])
        ),
        len(entries),
    )
    assert ascending_entries(data + rest, times) == expected
