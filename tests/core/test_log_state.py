"""The published standing: a reader sees one whole publication, or nothing if none is there."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.log_state import LogState, read_standing
from kreplica._core.region import Region
from kreplica.common import errors
from kreplica.runtime.storage import FileStorage
from tests.support.damage import bit_flips, truncations
from tests.support.regions import start
from tests.support.segments import contents, region

BOOT = "0f0e0d0c-0b0a-0908-0706-050403020100"
FIELDS = {
    "log_start_offset": 1,
    "high_watermark": 2,
    "last_stable_offset": 3,
    "log_end_offset": 4,
    "active_base_offset": 5,
    "valid_length": 6,
    "flush_offset": 7,
    "leader_epoch": 8,
}


def published(**fields: int):
    file = region(capacity=4096)
    state = LogState(file, BOOT, 77)
    state.update(**fields)
    return state, file


def test_a_reader_sees_what_was_published():
    state, file = published(**FIELDS)
    standing = read_standing(contents(file))
    assert {name: getattr(standing, name) for name in FIELDS} == FIELDS
    assert (standing.boot_id, standing.clean) == (BOOT, False)
    state.update(high_watermark=9)
    assert read_standing(contents(file)) == standing._replace(high_watermark=9)
    state.mark_clean(12)
    closed = read_standing(contents(file))
    assert (closed.clean, closed.segments) == (True, 12)


def test_the_layout_for_readers_in_other_languages():
    state, file = published(**FIELDS)
    for sequence in range(1, 4):
        state.update(high_watermark=100 + sequence)
        raw = contents(file)
        assert (len(raw), raw[:8], raw[16:52]) == (256, b"KRLOG\0\0\1", BOOT.encode())
        assert struct.unpack_from("<qq", raw, 8)[0] == sequence
        assert struct.unpack_from("<q", raw, 56)[0] == 77
        slot = struct.unpack_from("<9q", raw, 64 + (sequence & 1) * 80)
        assert slot == (1, 100 + sequence, 3, 4, 5, 6, 7, 8, 0)


def test_a_former_writers_standing_lasts_until_the_first_update():
    _, file = published(**FIELDS)
    state = LogState(file, BOOT)
    assert read_standing(contents(file)).log_end_offset == 4
    state.update(log_end_offset=50)
    assert read_standing(contents(file)).log_end_offset == 50
    assert read_standing(contents(file)).valid_length == 0


@given(st.lists(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(-1, 1 << 62)), max_size=10))
def test_an_update_changes_the_named_fields_alone(updates):
    state, file = published()
    expected = dict.fromkeys(FIELDS, 0)
    for update in updates:
        state.update(**update)
        expected |= update
        standing = read_standing(contents(file))
        assert {name: getattr(standing, name) for name in FIELDS} == expected


def test_a_state_without_a_file_keeps_its_numbers():
    state = LogState(None, "")
    state.update(log_end_offset=5, high_watermark=3)
    state.mark_clean()
    assert (state.log_end_offset, state.high_watermark, state.region) == (5, 3, None)


def test_bad_images_say_nothing():
    _, file = published(**FIELDS)
    image = contents(file)
    good = read_standing(image)
    for cut in truncations(image):
        assert read_standing(cut) is None
    for flipped in bit_flips(image):
        found = read_standing(flipped)
        # The checksum covers only the slot in use. A damaged boot id counts as another boot, and a wrong
        # number of segments makes recovery look closer.
        assert found is None or found._replace(boot_id=BOOT, segments=0) == good
    assert read_standing(bytes(256)) is None
    assert read_standing(b"\xff" * 256) is None
    # The next slot is the one that a writer that died in the middle has torn.
    torn = bytearray(image)
    torn[144:224] = b"\xee" * 80
    assert read_standing(torn) == good


@given(st.binary(min_size=248, max_size=300))
def test_rubbish_behind_the_magic_says_nothing(rubbish):
    assert read_standing(b"KRLOG\0\0\1" + rubbish) is None


def test_a_state_file_that_cannot_be_written_costs_no_append(tmp_path):
    storage = FileStorage()
    file = storage.open_region(str(tmp_path / "state"), 4096, writable=True, create=True)
    state = LogState(file, BOOT)
    state.update(log_end_offset=1)
    file.close()
    state.update(log_end_offset=2)
    assert state.log_end_offset == 2
    with pytest.raises(errors.LogClosed):
        LogState(file, BOOT).update(log_end_offset=3)


WRITER = """
    import select
    from kreplica._core.log_state import LogState
    state = LogState(Region(sys.argv[1], 4096, writable=True), sys.argv[2])
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for number in range(number + 1, number + 1000):
            state.update(**dict.fromkeys(sys.argv[3:], number))
    print(number)
"""


def test_a_reader_never_sees_a_mix(tmp_path):
    # The writer is another process, so that no lock of the interpreter keeps the two apart.
    path = str(tmp_path / "state")
    with Region(path, 4096, writable=True, create=True) as created:
        LogState(created, BOOT).update(**dict.fromkeys(FIELDS, 0))
    mapped = memoryview(Region(path, 4096).slice(0, 256))
    writer = start(WRITER, path, BOOT, *FIELDS)
    seen: set[int] = set()
    try:
        while len(seen) < 2000:
            standing = read_standing(mapped)
            assert standing is not None
            numbers = {getattr(standing, name) for name in FIELDS}
            assert len(numbers) == 1
            seen |= numbers
            assert writer.poll() is None
    finally:
        out, _ = writer.communicate("stop", timeout=60)
    assert read_standing(mapped).log_end_offset == int(out)
