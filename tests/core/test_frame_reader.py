"""Frames out of what a socket brings, however it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.frame_reader import RECEIVE_BYTES, FrameReader, ReceiveBuffer
from kreplica.common.errors import InvalidRequest

LEAST, MOST = 4, 3 * RECEIVE_BYTES

sizes = st.one_of(
    st.integers(LEAST, 60),
    st.integers(RECEIVE_BYTES - 10, RECEIVE_BYTES + 10),
    st.integers(MOST - 10, MOST),
)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def new_reader(received: ReceiveBuffer | None = None) -> FrameReader:
    return FrameReader(received or ReceiveBuffer(), min_bytes=LEAST, max_bytes=MOST)


def frames(reader: FrameReader) -> Iterator[bytes]:
    """Return the complete frames; each is read-only."""
    while (frame := reader.next()) is not None:
        assert memoryview(frame).readonly
        yield bytes(frame)


def bring(reader: FrameReader, data: bytes, most: int) -> int:
    """Let the socket bring some of `data`; how much."""
    buffer = memoryview(reader.get_buffer())
    size = min(len(buffer), len(data), most)
    assert size, "no room to receive into"
    buffer[:size] = data[:size]
    reader.buffer_updated(size)
    return size


@given(
    st.lists(st.tuples(st.integers(0, 3), sizes, st.integers(1, 70_000)), max_size=20),
)
def test_connections_that_share_a_buffer_do_not_mix_their_frames(
    turns: list[tuple[int, int, int]],
) -> None:
    received = ReceiveBuffer()
    readers = [new_reader(received) for _ in range(4)]
    left, expected, found = [b""] * 4, [[] for _ in readers], [[] for _ in readers]
    for number, (at, size, piece) in enumerate(turns):
        body = bytes([number + 1]) * size
        left[at] += framed(body)
        expected[at].append(body)
        left[at] = left[at][bring(readers[at], left[at], piece) :]
        found[at] += frames(readers[at])
    for at, reader in enumerate(readers):
        while left[at]:
            left[at] = left[at][bring(reader, left[at], MOST) :]
            found[at] += frames(reader)
    assert found == expected


@given(st.lists(sizes, max_size=12), st.lists(st.integers(1, 70_000), min_size=1, max_size=8))
def test_frames_come_whole_and_in_order_however_they_are_cut(lengths: list[int], pieces: list[int]) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate(lengths)]
    reader = new_reader()
    left, found = b"".join(map(framed, bodies)), []
    # One large piece in each round keeps the number of rounds small.
    for piece in cycle([*pieces, MOST]):
        if not left:
            break
        left = left[bring(reader, left, piece) :]
        found += frames(reader)
    assert found == bodies
    assert reader.receiving_bytes == 0


def test_a_frame_stays_as_it_is_when_the_next_one_comes() -> None:
    reader = new_reader()
    found = []
    for body in (b"first", b"second", b"third"):
        bring(reader, framed(body), MOST)
        found.append(reader.next())
        assert reader.next() is None
    assert found == [b"first", b"second", b"third"]


def test_what_is_kept_comes_with_the_next_call_although_another_connection_receives() -> None:
    received = ReceiveBuffer()
    reader = new_reader(received)
    bring(reader, framed(b"first") + framed(b"second") + framed(b"third"), MOST)
    assert reader.next() == b"first"
    reader.keep()
    bring(new_reader(received), framed(b"another connection's"), MOST)
    assert [reader.next() for _ in range(3)] == [b"second", b"third", None]


@pytest.mark.parametrize("before", [b"", framed(b"good")])
@pytest.mark.parametrize("size", [-1, 0, LEAST - 1, MOST + 1, 0x7FFFFFFF])
def test_a_size_out_of_bounds_is_refused(before: bytes, size: int) -> None:
    reader = new_reader()
    claimed = size.to_bytes(4, "big", signed=True) + bytes(max(0, min(size, 40)))
    bring(reader, before + claimed, MOST)
    with pytest.raises(InvalidRequest, match=f"a frame of {size} bytes"):
        list(frames(reader))
