"""Frames out of what a socket brings, however it is cut."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidRequest
from kreplica.runtime.frame_reader import MAPPED_BYTES, RECEIVE_BYTES, FrameReader

LEAST, MOST = 4, 3 * MAPPED_BYTES

sizes = st.one_of(
    st.integers(LEAST, 60),
    st.integers(RECEIVE_BYTES - 10, RECEIVE_BYTES + 10),
    st.integers(MAPPED_BYTES - 10, MAPPED_BYTES + 10),
)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def bring(reader: FrameReader, data: bytes, most: int) -> int:
    """Let the socket bring some of `data`; how much."""
    buffer = reader.get_buffer()
    size = min(len(buffer), len(data), most)
    assert size, "no room to receive into"
    buffer[:size] = data[:size]
    reader.buffer_updated(size)
    return size


@given(st.lists(sizes, max_size=12), st.lists(st.integers(1, 70_000), min_size=1, max_size=8))
def test_frames_come_whole_and_in_order_however_they_are_cut(lengths: list[int], pieces: list[int]) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate(lengths)]
    reader = FrameReader(min_bytes=LEAST, max_bytes=MOST)
    left, found = b"".join(map(framed, bodies)), []
    for piece in cycle(pieces):
        if not left:
            break
        left = left[bring(reader, left, piece) :]
        found += list(reader.frames())
    assert [bytes(frame) for frame in found] == bodies
    assert all(frame.readonly for frame in found)
    assert reader.receiving_bytes == 0


def test_a_frame_stays_as_it_is_when_the_next_one_comes() -> None:
    reader = FrameReader(min_bytes=LEAST, max_bytes=MOST)
    found = []
    for body in (b"first", b"second", b"third"):
        bring(reader, framed(body), MOST)
        found += list(reader.frames())
    assert [bytes(frame) for frame in found] == [b"first", b"second", b"third"]


def test_what_was_not_taken_comes_with_the_next_call() -> None:
    reader = FrameReader(min_bytes=LEAST, max_bytes=MOST)
    bring(reader, framed(b"first") + framed(b"second") + framed(b"third"), MOST)
    assert [bytes(next(iter(reader.frames()))) for _ in range(3)] == [b"first", b"second", b"third"]
    assert list(reader.frames()) == []


@pytest.mark.parametrize("before", [b"", framed(b"good")])
@pytest.mark.parametrize("size", [-1, 0, LEAST - 1, MOST + 1, 0x7FFFFFFF])
def test_a_size_out_of_bounds_is_refused(before: bytes, size: int) -> None:
    reader = FrameReader(min_bytes=LEAST, max_bytes=MOST)
    claimed = size.to_bytes(4, "big", signed=True) + bytes(max(0, min(size, 40)))
    bring(reader, before + claimed, MOST)
    with pytest.raises(InvalidRequest, match=f"a frame of {size} bytes"):
        list(reader.frames())
