"""The cleaner's offset map: its table and hash, and passes over batches beside a dict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_walk import Stop
from kreplica._core.offset_map import OffsetMap
from kreplica._core.records import RecordBatch
from kreplica.common import errors
from tests.support.cleaning import CONTROL, TRANSACTIONAL, Batch, Item, Map, encode, source

HASH_KEY = bytes(range(16))
MASK = (1 << 64) - 1


def siphash128(data: bytes, key: bytes, rounds: int, final_rounds: int) -> tuple[int, int]:
    """SipHash with 128 bits of output, as its paper and reference vectors have it."""

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & MASK

    def mix(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D ^ 0xEE]
    v += [low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    mix(final_rounds)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(final_rounds)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_slow_hash_is_siphash():
    first, second = siphash128(b"", HASH_KEY, 2, 4)
    assert first.to_bytes(8, "little") + second.to_bytes(8, "little") == bytes.fromhex(
        "a3817f04ba25a8e66df67214c7550293"
    )


@given(st.binary(max_size=40), st.binary(min_size=16, max_size=16))
def test_a_keys_fingerprint_is_96_bits_of_siphash_1_3(data, hash_key):
    first, second = siphash128(data, hash_key, 1, 3)
    assert OffsetMap(1024, hash_key).fingerprint(data) == first << 32 | second & 0xFFFFFFFF


@pytest.mark.parametrize("length", [255, 256, 1000, 100_000])
def test_a_long_keys_fingerprint(length):
    data = bytes(number % 251 for number in range(length))
    first, second = siphash128(data, HASH_KEY, 1, 3)
    assert OffsetMap(1024, HASH_KEY).fingerprint(data) == first << 32 | second & 0xFFFFFFFF


# ---- the table ---------------------------------------------------------------------------------------------


@given(
    st.integers(2, 60),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 1000)), max_size=200),
)
def test_puts_and_gets_beside_a_dict(slots, puts):
    made, known = OffsetMap(16 * slots + 15, HASH_KEY), {}
    assert made.capacity == max(slots * 9 // 10, 1)
    assert made.memory_bytes == 16 * slots
    for number, offset in puts:
        key = b"%d" % number
        has_room = key in known or len(known) < made.capacity
        assert made.put(key, offset) is has_room
        if has_room:
            known[key] = max(offset, known.get(key, -1))
        assert (len(made), made.latest_offset) == (len(known), max(known.values()))
    for number in range(81):
        assert made.get(b"%d" % number) == known.get(b"%d" % number, -1)


def keys_that_begin_at(slot: int, slots: int, count: int) -> list[bytes]:
    found = []
    number = 0
    while len(found) < count:
        key = b"%d" % number
        if siphash128(key, HASH_KEY, 1, 3)[0] * slots >> 64 == slot:
            found.append(key)
        number += 1
    return found


@pytest.mark.parametrize("slot", [0, 5, 9])
def test_keys_whose_search_begins_at_one_slot(slot):
    # Of the ten slots the last one's keys go on at the first.
    keys = keys_that_begin_at(slot, 10, 12)
    made = OffsetMap(160, HASH_KEY)
    assert [made.put(key, offset) for offset, key in enumerate(keys)] == [True] * 9 + [False] * 3
    assert [made.get(key) for key in keys] == [*range(9), -1, -1, -1]
    others = keys_that_begin_at((slot + 1) % 10, 10, 3)
    assert [made.get(key) for key in others] == [-1, -1, -1]


def test_keys_of_neighbouring_slots_in_any_order():
    keys = [key for slot in (9, 0, 8, 1) for key in keys_that_begin_at(slot, 10, 2)]
    for turn in range(len(keys)):
        made = OffsetMap(160, HASH_KEY)
        order = keys[turn:] + keys[:turn]
        for offset, key in enumerate(order):
            assert made.put(key, offset)
        assert [made.get(key) for key in order] == list(range(8))


def test_a_large_map_cleared_knows_nothing_and_takes_as_much_again():
    made = OffsetMap(8 << 20, HASH_KEY)
    for first in (0, 5_000_000_000):
        made.clear(first)
        assert (len(made), made.latest_offset, made.get(b"0")) == (0, first - 1, -1)
        for number in range(20_000):
            assert made.put(b"%d" % number, first + number)
        assert [made.get(b"%d" % number) - first for number in range(0, 20_000, 777)] == list(
            range(0, 20_000, 777)
        )


@given(
    st.integers(2, 60),
    st.lists(st.tuples(st.integers(0, 40), st.sets(st.integers(0, 45))), min_size=1, max_size=5),
)
def test_a_short_range_needs_few_slots_and_leaves_nothing_to_the_next_one(slots, passes):
    made = OffsetMap(16 * slots, HASH_KEY)
    whole = made.capacity
    for span, keys in passes:
        made.clear(100, 100 + span)
        assert made.capacity == min(whole, max(span, 1))
        assert made.memory_bytes == 16 * slots
        known = {}
        for offset, number in enumerate(sorted(keys), 100):
            assert made.put(b"%d" % number, offset) is (len(known) < made.capacity)
            if len(known) < made.capacity:
                known[number] = offset
        assert {n: made.get(b"%d" % n) for n in range(46)} == {n: known.get(n, -1) for n in range(46)}


def test_how_far_an_offset_may_lie_above_the_first_one():
    made = OffsetMap(1024, HASH_KEY)
    made.clear(7)
    assert not made.put(b"k", 6)
    assert not made.put(b"k", 7 + 2**32 - 1)
    assert made.get(b"k") == -1
    assert made.put(b"k", 7 + 2**32 - 2)
    assert (made.get(b"k"), made.latest_offset) == (7 + 2**32 - 2, 7 + 2**32 - 2)


def test_an_empty_key_is_a_key():
    made = OffsetMap(1024, HASH_KEY)
    assert made.put(b"", 3)
    assert made.get(b"") == 3


@pytest.mark.parametrize(("memory", "hash_key"), [(31, HASH_KEY), (-1, HASH_KEY), (1024, b"short")])
def test_a_map_that_cannot_be(memory, hash_key):
    with pytest.raises(ValueError, match="memory_bytes="):
        OffsetMap(memory, hash_key)


def test_more_memory_than_there_is():
    with pytest.raises(MemoryError):
        OffsetMap(1 << 60, HASH_KEY)


# ---- a pass ------------------------------------------------------------------------------------------------


@st.composite
def logs(draw, base_offset: int = 0) -> list[Batch]:
    """Batches of keyed and keyless records, with gaps in offsets, empty ones, and codecs."""
    log, offset = [], base_offset
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
        items, delta = [], 0
        for _ in range(draw(st.sampled_from([0, 1, 2, 5, 40]))):
            delta += draw(st.sampled_from([0, 0, 1, 3]))
            key = draw(st.sampled_from([None, b"", b"a", b"b", b"cc", b"dddd", b"e" * 9, b"f" * 20]))
            items.append(Item(delta, key, draw(st.sampled_from([None, b"", b"v" * 30]))))
            delta += 1
        last = max(delta - 1, 0) + draw(st.sampled_from([0, 0, 2]))
        log.append(Batch(offset, tuple(items), last, attributes=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))))
        offset += last + 1
    return log


def walk(made: OffsetMap, log, max_bytes: int, base_offset: int = 0) -> Stop:
    segment = source(log, base_offset)
    position, stop = 0, Stop.MORE
    while stop is Stop.MORE:
        before = position
        stop, position, batch = made.put_batches(segment, position, segment.size, max_bytes)
        assert batch is None
        assert position > before or stop is not Stop.MORE
    return stop


@given(logs(), st.integers(0, 60), st.integers(2, 12), st.sampled_from([1, 100, 1 << 20]))
def test_a_pass_beside_a_dict(log, first_offset, slots, max_bytes):
    made = OffsetMap(16 * slots, HASH_KEY)
    made.clear(first_offset)
    stop = walk(made, log, max_bytes)
    known = Map(log, first_offset, made.capacity)
    assert (stop is Stop.MAP_FULL) == known.is_full
    assert made.latest_offset == known.latest_offset
    assert len(made) == len(known.offsets)
    for key in (b"", b"a", b"b", b"cc", b"dddd", b"e" * 9, b"f" * 20):
        assert made.get(key) == known.offsets.get(key, -1)


def test_what_a_pass_counts():
    log = [Batch(0, (Item(0, b"a", b"1"), Item(1, None, b"2")), 1), Batch(2, (Item(0, b"b", b"3"),), 0)]
    made = OffsetMap(1024, HASH_KEY)
    made.clear(0)
    assert walk(made, log, 1) is Stop.DONE
    assert (made.batches_read, made.records_read) == (2, 3)
    assert made.bytes_read == sum(len(encode(batch)) for batch in log)
    made.clear(0)
    assert (made.batches_read, made.records_read, made.bytes_read) == (0, 0, 0)


def test_a_batch_of_thousands():
    items = tuple(Item(number, b"key-%d" % (number % 3000), b"v" * 90) for number in range(10_000))
    made = OffsetMap(1 << 20, HASH_KEY)
    assert walk(made, [Batch(0, items, 9_999)], 1) is Stop.DONE
    assert [made.get(b"key-%d" % number) for number in range(1000)] == list(range(9000, 10_000))
    assert made.get(b"key-1000") == 7000


def test_an_offset_out_of_reach_ends_the_pass_before_it():
    log = [Batch(0, (Item(0, b"a", b"1"),), 0), Batch(2**31 - 1, (Item(0, b"b", b"2"),), 0)]
    made = OffsetMap(1024, HASH_KEY)
    made.clear(-(2**31) - 10)
    assert walk(made, log, 1 << 20) is Stop.MAP_FULL
    assert (made.get(b"a"), made.get(b"b"), made.latest_offset) == (0, -1, 2**31 - 2)


@pytest.mark.parametrize("attributes", [TRANSACTIONAL, CONTROL, TRANSACTIONAL | CONTROL, TRANSACTIONAL | 4])
def test_transactions_and_markers_are_decided_upon(attributes):
    plain = Batch(0, (Item(0, b"a", b"1"),), 0)
    special = Batch(1, (Item(0, b"a", b"2"), Item(1, b"b", b"2")), 1, attributes, producer_id=5)
    log = [plain, special, Batch(3, (Item(0, b"c", b"3"),), 0)]
    segment = source(log)
    for put in (True, False):
        made = OffsetMap(1024, HASH_KEY)
        stop, position, batch = made.put_batches(segment, 0, segment.size, 1 << 20)
        assert (stop, position) == (Stop.DECISION, len(encode(plain)))
        assert (batch.base_offset, batch.producer_id, made.latest_offset) == (1, 5, 0)
        if put:
            assert made.put_batch(batch)
        else:
            made.skip_batch(batch)
        assert made.latest_offset == 2
        position += batch.size
        assert made.put_batches(segment, position, segment.size, 1) == (Stop.DONE, segment.size, None)
        assert (made.get(b"a"), made.get(b"b"), made.get(b"c")) == ((1, 2, 3) if put else (0, -1, 3))
        assert made.records_read == 4


def test_a_decided_batch_that_has_no_room():
    made = OffsetMap(64, HASH_KEY)
    items = tuple(Item(number, b"%d" % number, b"") for number in range(5))
    batch = RecordBatch(encode(Batch(0, items, 4, TRANSACTIONAL, producer_id=1)))
    assert not made.put_batch(batch)
    assert (len(made), made.latest_offset) == (3, 2)


def test_batches_below_the_first_dirty_offset_are_passed_over():
    log = [
        Batch(0, (Item(0, b"a", b"1"),), 0, TRANSACTIONAL, producer_id=1),
        Batch(1, (Item(0, b"b", b"2"),), 0),
    ]
    made = OffsetMap(1024, HASH_KEY)
    made.clear(1)
    assert walk(made, log, 1 << 20) is Stop.DONE
    assert (len(made), made.get(b"b")) == (1, 1)


def test_a_batch_that_decompresses_to_too_much():
    segment = source([Batch(0, (Item(0, b"a", bytes(100_000)),), 0, attributes=4)])
    made = OffsetMap(1024, HASH_KEY)
    with pytest.raises(errors.DecompressionTooLarge):
        made.put_batches(segment, 0, segment.size, 1, max_decompressed=50_000)
    assert made.put_batches(segment, 0, segment.size, 1, max_decompressed=200_000)[0] is Stop.DONE


@pytest.mark.parametrize(("position", "limit"), [(-1, 10), (11, 10), (0, 1 << 40)])
def test_a_range_that_the_segment_does_not_have(position, limit):
    segment = source([Batch(0, (Item(0, b"a", b"1"),), 0)])
    with pytest.raises(errors.OffsetOutOfRange):
        OffsetMap(1024, HASH_KEY).put_batches(segment, position, limit, 1)
