"""Segments in the place of others: all of them or none, whatever moment the machine stops at."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

import kreplica
from kreplica._core.log_segment import LogSegment
from kreplica._core.log_state import LogState
from kreplica._core.records import batches
from kreplica._core.region import descriptor_budget, map_budget
from kreplica.common.errors import KafkaStorageError, LogCleaningAborted, StorageFull
from kreplica.log.repair import repair
from kreplica.log.verify import verify
from kreplica.sim.storage import SimStorage
from tests.support.clock import ManualClock
from tests.support.crashing import Stopped

DIRECTORY = "/data/orders-0"
OFFSETS = range(60)
# Of the first three segments two records stay: the last ones of the first and the third.
SETTINGS = {
    "segment_bytes": 3000,
    "retention_ms": -1,
    "max_message_bytes": 4096,
    "segment_index_bytes": 4096,
}


def _open(storage, *, read_only=False):
    return kreplica.Log.open(DIRECTORY, storage=storage, clock=ManualClock(), read_only=read_only, **SETTINGS)


def _filled(storage):
    storage.make_directory("/data")
    storage.sync_directory("/")
    log = _open(storage)
    for offset in OFFSETS:
        log.append([b"%03d" % offset * 100])
    log.flush()
    return log


def _sources(log):
    return list(log._log.local.segments)[1:4]


def _survivors(sources):
    keep = {sources[0].next_offset() - 1, sources[-1].next_offset() - 1}
    gone = {o for o in range(sources[0].base_offset, sources[-1].next_offset()) if o not in keep}
    return [offset for offset in OFFSETS if offset not in gone]


def _cleaned(log, sources, offsets, *, base=None) -> LogSegment:
    """A segment that is no part of the log yet, with the sources' batches that hold these offsets."""
    first = sources[0].base_offset if base is None else base
    made = log._log.local.open_cleaned(first, sum(s.size for s in sources))
    state = LogState(None, "")
    state.update(log_end_offset=made.base_offset)
    for source in sources:
        for batch in batches(source.region.slice(0, source.size)):
            if batch.base_offset in offsets and batch.base_offset >= made.base_offset:
                made.append(memoryview(batch), state, leader_epoch=0, as_leader=False)
    return made


def _replace(log):
    sources = _sources(log)
    cuts = log._log.state.cuts
    offsets = _survivors(sources)
    log._log.replace_segments([_cleaned(log, sources, offsets)], sources, cuts)
    return offsets


def _offsets(log):
    return [record.offset for record in log.read()]


def _names(storage):
    return [n for n in storage.list_directory(DIRECTORY) if n.endswith((".cleaned", ".swap"))]


def _filled_files(path):
    log = kreplica.Log.open(path, **SETTINGS)
    for offset in OFFSETS:
        log.append([b"%03d" % offset * 100])
    return log


def test_readers_see_the_old_segments_or_the_new_ones(tmp_path):
    log = _filled_files(tmp_path / "t-0")
    other = kreplica.Log.open(tmp_path / "t-0", read_only=True)
    begun, begun_elsewhere = log.read(), other.read()
    first = [next(begun).offset, next(begun_elsewhere).offset]
    survivors = _replace(log)
    assert first == [0, 0]
    assert [record.offset for record in begun] == list(OFFSETS)[1:]
    assert [record.offset for record in begun_elsewhere] == list(OFFSETS)[1:]
    assert _offsets(log) == _offsets(other) == survivors
    log.append([b"on"])
    assert _offsets(log) == _offsets(other) == [*survivors, 60]
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.suffix in (".cleaned", ".swap")]
    other.close()
    log.close()
    with kreplica.Log.open(tmp_path / "t-0") as again:
        assert _offsets(again) == [*survivors, 60]


def test_readers_of_the_old_segments_go_on_when_the_log_idles(tmp_path):
    log = _filled_files(tmp_path / "t-0")
    log._log.idle()
    begun = log.batches()
    assert next(begun).base_offset == 0
    log._log.idle()
    survivors = _replace(log)
    log._log.idle()
    assert [batch.base_offset for batch in begun] == list(OFFSETS)[1:]
    assert _offsets(log) == survivors
    log.close()


def _stops():
    """The number of changes and flushes that a replacement makes."""
    storage = SimStorage()
    log = _filled(storage)
    before = len(storage.trace)
    _replace(log)
    return len(storage.trace) - before


def _stopped_at(step):
    storage = SimStorage()
    log = _filled(storage)
    left = [step]

    def before(_operation, _path):
        if left[0] == 0:
            raise Stopped
        left[0] -= 1

    storage.before = before
    with suppress(Stopped):
        _replace(log)
    storage.before = None
    return storage, _survivors(_sources(_filled(SimStorage())))


@pytest.mark.parametrize("step", range(_stops()))
def test_a_stop_at_any_step_leaves_the_old_or_the_new(step):
    storage, survivors = _stopped_at(step)
    allowed = [list(OFFSETS), survivors]
    states = [storage.after_kill(), storage.after_power_cut()]
    for state in states + [storage.after_power_cut(random.Random(seed)) for seed in range(8)]:
        names = state.list_directory(DIRECTORY)
        reader = _open(state, read_only=True)
        seen = _offsets(reader)
        assert seen in allowed
        assert state.list_directory(DIRECTORY) == names, "a reader changes nothing"
        log = _open(state)
        assert log.damage is None
        assert _offsets(log) == seen
        assert _names(state) == []
        log.append([b"on it goes"])
        log.close()
        again = _open(state)
        assert _offsets(again) == [*seen, 60]


@pytest.mark.parametrize("step", range(_stops()))
def test_what_a_stop_leaves_is_no_problem_to_verify_and_repair_finishes_it(step):
    storage, _ = _stopped_at(step)
    state = storage.after_kill()
    seen = _offsets(_open(state, read_only=True))
    assert list(verify(state, DIRECTORY)) == []
    assert list(repair(state, ManualClock(), DIRECTORY)) == []
    _spoil_first_segment(state)
    (found,) = verify(state, DIRECTORY)
    assert found.offset == 1
    planned = list(repair(state, ManualClock(), DIRECTORY))
    assert [(each.kind, each.offset, each.next_offset) for each in planned] == [("Rot", 1, 2)]
    assert all(each.done for each in repair(state, ManualClock(), DIRECTORY, apply_changes=True))
    assert _names(state) == []
    left = [offset for offset in seen if offset != 1]
    assert _offsets(_open(state, read_only=True)) == left
    assert _offsets(_open(state)) == left


def _spoil_first_segment(state):
    """Flip a bit in the value of the record at offset 1."""
    path = f"{DIRECTORY}/{0:020d}.log"
    whole = bytearray(state.read_file(path))
    whole[2 * (12 + int.from_bytes(whole[8:12], "big")) - 50] ^= 1
    state.write_file_atomically(path, bytes(whole))


@pytest.mark.parametrize("seed", range(16))
def test_what_the_next_round_begins_does_not_undo_a_replacement_that_was_done(seed):
    storage = SimStorage()
    log = _filled(storage)
    _replace(log)
    offsets, first = _offsets(log), log._log.local.segments[0].base_offset
    log._log.local.open_cleaned(first, 1000).close()
    again = _open(storage.after_power_cut(random.Random(seed)))
    assert again.damage is None
    assert _offsets(again) == offsets


@pytest.mark.parametrize("step", range(0, _stops(), 2))
def test_a_stop_while_a_replacement_is_finished_changes_nothing(step):
    before, survivors = _stopped_at(step)
    for inner in range(40):
        storage = before.after_power_cut()
        left = [inner]

        def stop(_operation, _path, left=left):
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

        storage.before = stop
        stopped = False
        try:
            _open(storage)
        except Stopped:
            stopped = True
        storage.before = None
        for state in (storage.after_kill(), storage.after_power_cut(random.Random(inner))):
            assert _offsets(_open(state)) in (list(OFFSETS), survivors)
        if not stopped:
            break
    else:
        pytest.fail("opening never came to its end")


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate_to(log._log.local.segments[2].base_offset + 1),
        lambda log: log._log.truncate_fully_and_start_at(1000),
        lambda log: (log.delete_records(50), log.delete_old_segments()),
        lambda log: log._log.fail(KafkaStorageError("the disk is gone")),
        lambda log: log.close(),
    ],
    ids=["cut", "cut wholly", "retention", "offline", "closed"],
)
def test_a_log_that_changed_meanwhile_is_left_alone(change):
    storage = SimStorage()
    log = _filled(storage)
    sources = _sources(log)
    cuts = log._log.state.cuts
    made = _cleaned(log, sources, _survivors(sources))
    change(log)
    names = [n for n in storage.list_directory(DIRECTORY) if not n.endswith((".cleaned", ".swap"))]
    with pytest.raises(LogCleaningAborted):
        log._log.replace_segments([made], sources, cuts)
    if not log._log.is_offline:
        assert storage.list_directory(DIRECTORY) == names


def test_what_is_in_the_way_of_the_first_rename_leaves_the_log_as_it_was():
    storage = SimStorage()
    log = _filled(storage)
    names = storage.list_directory(DIRECTORY)

    def refuse(operation, path):
        if operation == "rename" and path.endswith(".index.cleaned"):
            raise StorageFull("no room for a name")

    storage.before = refuse
    with pytest.raises(StorageFull):
        _replace(log)
    storage.before = None
    assert storage.list_directory(DIRECTORY) == names
    assert _offsets(log) == list(OFFSETS)
    log.append([b"on"])


def test_what_fails_later_takes_the_log_offline_and_the_next_opening_finishes_it():
    storage = SimStorage()
    log = _filled(storage)
    survivors = _survivors(_sources(log))

    def refuse(operation, path):
        if operation == "rename" and path.endswith(".log.swap"):
            raise KafkaStorageError("the disk is gone")

    storage.before = refuse
    with pytest.raises(KafkaStorageError):
        _replace(log)
    storage.before = None
    with pytest.raises(KafkaStorageError):
        log.append([b"on"])
    assert _offsets(_open(storage.after_kill())) == survivors


def test_several_segments_may_take_the_place_of_several():
    for step in range(200):
        storage = SimStorage()
        log = _filled(storage)
        sources = _sources(log)
        offsets = _survivors(sources)
        split = sources[1].base_offset
        new = [
            _cleaned(log, sources[:1], offsets),
            _cleaned(log, sources[1:], offsets, base=split),
        ]
        left = [step]

        def stop(_operation, _path, left=left):
            if left[0] == 0:
                raise Stopped
            left[0] -= 1

        storage.before = stop
        try:
            log._log.replace_segments(new, sources, log._log.state.cuts)
        except Stopped:
            storage.before = None
            for state in (storage.after_kill(), storage.after_power_cut(random.Random(step))):
                seen = _offsets(_open(state, read_only=True))
                assert seen in (list(OFFSETS), offsets)
                assert _offsets(_open(state)) == seen
            continue
        assert [s.base_offset for s in log._log.local.segments][1:3] == [sources[0].base_offset, split]
        assert _offsets(log) == offsets
        return
    pytest.fail("the replacement never came to its end")


# ---- what Kafka's cleaner leaves ------------------------------------------------------------------------


def _kafka_left(names_after):
    """A log whose first segment was cleaned by Kafka, with its files under these endings."""
    storage = SimStorage()
    log = _filled(storage)
    sources = _sources(log)
    made = _cleaned(log, sources, _survivors(sources)[:-1])
    made.seal()
    survivors = _survivors(sources)
    log.close()
    storage.remove(f"{DIRECTORY}/kreplica.state.deleted")
    for suffix, ending in names_after.items():
        path = f"{DIRECTORY}/{made.base_offset:020d}{suffix}"
        if ending != ".cleaned":
            storage.rename(path + ".cleaned", path + ending)
    return storage, made.base_offset, survivors


def test_kafkas_cleaned_files_are_dropped_with_the_swaps_that_need_them():
    endings = {".log": ".swap", ".index": ".cleaned", ".timeindex": ".cleaned"}
    storage, _, _ = _kafka_left(endings)
    assert _offsets(_open(storage, read_only=True)) == list(OFFSETS)
    assert _offsets(_open(storage)) == list(OFFSETS)
    assert _names(storage) == []


def test_kafkas_swap_takes_the_place_of_the_segments_in_its_range():
    endings = dict.fromkeys((".log", ".index", ".timeindex"), ".swap")
    storage, base, survivors = _kafka_left(endings)
    assert not list(verify(storage, DIRECTORY))
    reader = _open(storage, read_only=True)
    assert [o for o in _offsets(reader) if o <= base + 30] == [o for o in survivors if o <= base + 30]
    log = _open(storage)
    assert log.damage is None
    assert _offsets(log) == _offsets(reader)
    assert _names(storage) == []


def test_an_index_that_kafka_had_not_renamed_yet_gets_its_place():
    endings = {".log": "", ".index": ".swap", ".timeindex": ".swap"}
    storage, base, survivors = _kafka_left(endings)
    log = _open(storage)
    assert _names(storage) == []
    assert _offsets(log)[: survivors.index(base) if base in survivors else 5] == survivors[:5]


def test_verify_finds_an_index_that_kafka_had_not_renamed_yet():
    storage, base, _ = _kafka_left({".log": "", ".index": ".swap", ".timeindex": ".swap"})
    replaced = [segment.base_offset for segment in _sources(_filled(SimStorage()))]
    for name in storage.list_directory(DIRECTORY):
        # What was replaced is gone, and its index with it.
        old = name.endswith("index") if name.startswith(f"{base:020d}") else name[:20].isdigit()
        if old and int(name[:20]) in replaced:
            storage.remove(f"{DIRECTORY}/{name}")
    storage.remove(f"{DIRECTORY}/kreplica.state")
    assert not list(verify(storage, DIRECTORY))


# ---- gaps -------------------------------------------------------------------------------------------------


def _with_a_hole(storage):
    """Without its second segment, as a compacted log of Kafka's may be."""
    log = _filled(storage)
    hole = log._log.local.segments[1]
    following = log._log.local.segments[2].base_offset
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        storage.remove(f"{DIRECTORY}/{hole.base_offset:020d}{suffix}")
    return [o for o in OFFSETS if not hole.base_offset <= o < following]


def _open_compacted(storage):
    return kreplica.Log.open(
        DIRECTORY, storage=storage, clock=ManualClock(), cleanup_policy="compact", **SETTINGS
    )


@pytest.mark.parametrize("cut", [False, True])
def test_gaps_of_a_log_that_another_program_wrote_are_no_damage_ever_after(cut):
    storage = SimStorage()
    offsets = _with_a_hole(storage)
    storage.remove(f"{DIRECTORY}/kreplica.state.deleted")
    assert _offsets(_open_compacted(storage)) == offsets
    for _ in range(2):
        storage = storage.after_power_cut(random.Random(3)) if cut else storage.after_kill()
        log = _open_compacted(storage)
        assert (log.damage, log.recovery.cut) == (None, [])
        assert _offsets(log) == offsets
        log.append([(b"key", b"on")])
        log.flush()
        offsets = [*offsets, log.log_end_offset - 1]


def test_a_hole_in_a_log_of_ours_is_damage_also_when_it_is_compacted():
    storage = SimStorage()
    log = _filled(storage)
    hole = log._log.local.segments[1]
    storage = storage.after_kill()
    storage.remove(f"{DIRECTORY}/{hole.base_offset:020d}.log")
    found = kreplica.Log.open(
        DIRECTORY, storage=storage, clock=ManualClock(), cleanup_policy="compact", **SETTINGS
    )
    assert found.log_start_offset == 0
    assert found.damage is not None
    assert found.damage.first_offset == hole.base_offset
    found.append([(b"key", b"on")])  # nothing about its end is in doubt
    storage = SimStorage()
    log = _filled_without_flush(storage)
    hole = log._log.local.segments[1]
    storage = storage.after_kill()
    storage.remove(f"{DIRECTORY}/{hole.base_offset:020d}.log")
    found = kreplica.Log.open(
        DIRECTORY, storage=storage, clock=ManualClock(), cleanup_policy="compact", **SETTINGS
    )
    assert found.damage is not None
    assert found.damage.first_offset == hole.base_offset


def _filled_without_flush(storage):
    storage.make_directory("/data")
    log = _open(storage)
    for offset in OFFSETS:
        log.append([b"%03d" % offset * 100])
    return log


# ---- beyond all budgets -----------------------------------------------------------------------------------


def test_a_reader_without_mappings_and_descriptors_goes_on_in_the_old_files(tmp_path):
    with kreplica.Log.open(tmp_path / "orders-0", **SETTINGS) as log:
        for offset in OFFSETS:
            log.append([b"%03d" % offset * 100])
        running = log.read()
        seen = [next(running).offset]
        sources = _sources(log)
        cleaned = _cleaned(log, sources, _survivors(sources))
        cleaned.seal()
        for segment in sources:
            segment.idle()
        budgets = map_budget(0), descriptor_budget(0)
        try:
            log._log.replace_segments([cleaned], sources, log._log.state.cuts)
            assert not any(segment.region.is_mapped for segment in sources)
            seen += [record.offset for record in running]
        finally:
            map_budget(budgets[0])
            descriptor_budget(budgets[1])
        assert seen == list(OFFSETS)
