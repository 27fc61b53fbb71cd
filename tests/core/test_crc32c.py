import random

import pytest

from kreplica._core import crc32c


def slow_crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture(params=crc32c.implementations())
def implementation(request):
    before = crc32c.selected()
    crc32c.select(request.param)
    yield request.param
    crc32c.select(before)


RANDOM = random.Random(32).randbytes(40_000)

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
KNOWN = {
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}


def test_the_fastest_is_chosen_and_the_table_is_everywhere():
    assert crc32c.selected() == crc32c.implementations()[0]
    assert crc32c.implementations()[-1] == "table"


@pytest.mark.parametrize(("data", "expected"), KNOWN.items())
def test_known_vectors(implementation, data, expected):
    assert crc32c.selected() == implementation
    assert crc32c.checksum(data) == expected


@pytest.mark.usefixtures("implementation")
def test_every_short_length_at_every_alignment():
    expected = [slow_crc32c(RANDOM[start : start + 300]) for start in range(64)]
    model = [0]
    for byte in RANDOM[:300]:
        model.append(slow_crc32c(bytes([byte]), model[-1]))
    for size in range(301):
        assert crc32c.checksum(RANDOM[:size]) == model[size]
    for start in range(64):
        assert crc32c.checksum(memoryview(RANDOM)[start : start + 300]) == expected[start]


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("size", [511, 767, 768, 769, 1024, 4095, 6143, 6144, 6145, 20_000, 39_993])
def test_long_inputs(size):
    data = memoryview(RANDOM)[7 : 7 + size]
    assert crc32c.checksum(data) == slow_crc32c(bytes(data))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("cut", [0, 1, 63, 64, 255, 256, 257, 1000, 9_999, 10_000])
def test_extending_and_combining_equal_the_whole(cut):
    data = RANDOM[:10_000]
    whole = crc32c.checksum(data)
    first, second = data[:cut], data[cut:]
    assert crc32c.checksum(second, crc32c.checksum(first)) == whole
    assert crc32c.combine(crc32c.checksum(first), crc32c.checksum(second), len(second)) == whole


def test_combining_over_a_huge_size():
    # x^(2^31 - 1) is 1 modulo the polynomial, so appending that many zeros multiplies by 1.
    assert crc32c.combine(0x12345678, 0, 2**31 - 1) == 0x12345678
    assert crc32c.combine(0x12345678, 0, 2**62) == crc32c.combine(0x12345678, 0, 2**62 % (2**31 - 1))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("size", [0, 1, 8, 63, 64, 65, 255, 256, 257, 320, 1024, 4096, 4097, 39_000])
def test_copying_copies_and_checksums(size):
    target = bytearray(b"\xaa" * (size + 2))
    data = memoryview(RANDOM)[3 : 3 + size]
    crc = crc32c.copy(memoryview(target)[1:], data)
    assert crc == crc32c.checksum(data)
    assert target == b"\xaa" + bytes(data) + b"\xaa"
    assert crc32c.copy(memoryview(target)[1:], data, 0xDEADBEEF) == crc32c.checksum(data, 0xDEADBEEF)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        crc32c.copy(bytearray(3), b"1234")
    with pytest.raises(ValueError, match="unknown CRC-32C implementation"):
        crc32c.select("abacus")
    with pytest.raises(ValueError, match="negative"):
        crc32c.combine(0, 0, -1)


@pytest.mark.usefixtures("implementation")
def test_the_checksum_of_two_pieces():
    for size in (0, 1, 7, 300):
        before, data = RANDOM[:size], RANDOM[size : 3 * size + 5]
        for position in (0, 4, len(data)):
            expected = crc32c.checksum(before + data[position:])
            assert crc32c.checksum_behind(before, data, position) == expected
        for position in (-1, len(data) + 1):
            with pytest.raises(ValueError, match="position"):
                crc32c.checksum_behind(before, data, position)
