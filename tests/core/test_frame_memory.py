"""Memory of frames returns to its pool when the last holder releases it, and never before."""

from __future__ import annotations

import pytest

from kreplica._core.frame_memory import KEPT_BYTES, FrameMemory, kept_bytes
from tests.support.memory import resident_bytes

SMALLEST = 1 << 16
LARGEST_KEPT = 4 << 20


def emptied() -> list[FrameMemory]:
    """Takes all that the pool has."""
    taken = []
    while kept_bytes():
        for shift in range(16, 23):
            taken.append(FrameMemory(1 << shift))
    return taken


@pytest.mark.parametrize("size", [1, SMALLEST - 1, SMALLEST, SMALLEST + 1, LARGEST_KEPT, LARGEST_KEPT + 1])
def test_memory_has_its_size(size: int) -> None:
    memory = FrameMemory(size)
    view = memoryview(memory)
    assert len(memory) == memory.size == len(view) == size
    view[0], view[size - 1] = 1, 2
    assert view[size - 1] == 2
    assert not view.readonly


@pytest.mark.parametrize("size", [0, -1])
def test_there_is_no_memory_of_nothing(size: int) -> None:
    with pytest.raises(ValueError, match="size="):
        FrameMemory(size)


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(MemoryError):
        FrameMemory(1 << 60)


def test_memory_is_used_again_once_no_view_is_left() -> None:
    held = emptied()
    view = memoryview(FrameMemory(SMALLEST))
    part = view[10:20].toreadonly()
    view[10:20] = b"0123456789"
    del view
    assert kept_bytes() == 0
    other = memoryview(FrameMemory(SMALLEST))
    other[10:20] = b"x" * 10
    assert part == b"0123456789"
    del part
    assert kept_bytes() == SMALLEST
    again = FrameMemory(SMALLEST - 1)
    assert kept_bytes() == 0
    assert bytes(memoryview(again)[10:20]) == b"0123456789"
    del held


def test_the_pool_keeps_so_much_and_no_more() -> None:
    held = [FrameMemory(LARGEST_KEPT) for _ in range(KEPT_BYTES // LARGEST_KEPT + 3)]
    held.append(FrameMemory(LARGEST_KEPT + 1))
    held.clear()
    assert 0 < kept_bytes() <= KEPT_BYTES
    emptied()


def test_large_memory_goes_back_to_the_system_at_once():
    size, piece = 24 << 20, b"\1" * (64 << 10)
    before = resident_bytes()
    for _ in range(3):
        memory = FrameMemory(size)
        assert resident_bytes() - before < size // 2
        view = memoryview(memory)
        for at in range(0, size, len(piece)):
            view[at : at + len(piece)] = piece
        assert resident_bytes() - before >= size
        del memory, view
        assert resident_bytes() - before < size // 2
