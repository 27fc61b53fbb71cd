"""Ways to damage a file's bytes, for tests that ask what a reader then says."""

from collections.abc import Iterator


def truncations(data: bytes) -> Iterator[bytes]:
    """Every proper prefix, the empty one too."""
    return (data[:size] for size in range(len(data)))


def bit_flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one bit flipped, for every bit."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
