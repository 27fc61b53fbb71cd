import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core import varint
from kreplica.common import errors

CODINGS = {
    "varint": (varint.encode_varint, varint.decode_varint, -(2**31), 2**31 - 1, 5),
    "varlong": (varint.encode_varlong, varint.decode_varlong, -(2**63), 2**63 - 1, 10),
    "unsigned_varint": (varint.encode_unsigned_varint, varint.decode_unsigned_varint, 0, 2**32 - 1, 5),
    "unsigned_varlong": (varint.encode_unsigned_varlong, varint.decode_unsigned_varlong, 0, 2**64 - 1, 10),
}


def slow_encode(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


@pytest.mark.parametrize("name", CODINGS)
@given(data=st.data())
def test_coding_equals_the_slow_model_and_comes_back(name, data):
    encode, decode, low, high, longest = CODINGS[name]
    small = st.integers(max(low, -200), 200)
    value = data.draw(st.integers(low, high) | small | st.sampled_from([low, high]))
    coded = encode(value)
    assert coded == slow_encode(value if low == 0 else zigzag(value))
    assert decode(coded + b"\xff") == (value, len(coded))
    assert len(coded) <= longest
    if value < 2**63:
        assert varint.sizes(value)[name] == len(coded)


@pytest.mark.parametrize("name", CODINGS)
def test_every_truncation_is_short_input(name):
    encode, decode, low, high, _ = CODINGS[name]
    for value in (low, high, 1 << 20):
        coded = encode(value)
        for size in range(len(coded) if len(coded) > 1 else 0):
            with pytest.raises(errors.TruncatedInput):
                decode(coded[:size])
    with pytest.raises(errors.TruncatedInput):
        decode(b"")


@pytest.mark.parametrize("name", CODINGS)
def test_too_many_bytes_or_bits_are_refused(name):
    _, decode, _, _, longest = CODINGS[name]
    overflow = 0x10 if longest == 5 else 0x02
    for coded in (b"\x80" * longest + b"\x00", b"\x80" * 20, b"\xff" * (longest - 1) + bytes([overflow])):
        with pytest.raises(errors.InvalidRecordLength):
            decode(coded)


def test_a_longer_form_than_needed_is_read():
    assert varint.decode_varint(b"\x82\x80\x00") == (1, 3)
