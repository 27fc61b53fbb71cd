"""Damage a file's bytes, for tests of what a reader reports."""

from collections.abc import Iterator


def truncations(data: bytes) -> Iterator[bytes]:
    """Yield every proper prefix, including the empty one."""
    return (data[:size] for size in range(len(data)))


def bit_flips(data: bytes) -> Iterator[bytes]:
    """Yield the bytes with one bit flipped, for every bit."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
