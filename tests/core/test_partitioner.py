"""Keys go to the partitions that Kafka's clients would choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.partitioner import murmur2, partition_of, partitions_of


# The values that Kafka's own clients give.
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_clients(key, expected):
    assert murmur2(key) == expected


def slow_murmur2(data):
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * multiplier & mask
        k = (k ^ k >> 24) * multiplier & mask
        h = (h * multiplier & mask) ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    return h ^ h >> 15


@given(st.binary(max_size=40))
def test_the_hash_is_murmur2(data):
    assert murmur2(data) & 0xFFFFFFFF == slow_murmur2(data)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=9), st.integers(1, 1000))
def test_each_key_has_its_partition(keys, partitions):
    expected = [partitions if key is None else partition_of(key, partitions) for key in keys]
    assert partitions_of(keys, partitions, partitions) == expected
    assert all(0 <= each < partitions for key, each in zip(keys, expected, strict=True) if key is not None)


@pytest.mark.parametrize("partitions", [0, -1, -(2**31)])
def test_there_must_be_a_partition(partitions):
    with pytest.raises(ValueError, match="partitions"):
        partition_of(b"k", partitions)
    with pytest.raises(ValueError, match="partitions"):
        partitions_of([b"k"], partitions, 0)


def test_a_key_is_bytes():
    with pytest.raises(TypeError):
        partitions_of(["k"], 3, 0)
    with pytest.raises(TypeError):
        partition_of(None, 3)
