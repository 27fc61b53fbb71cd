"""A reader beside a writer that cuts, rolls and removes what the reader has open."""

import threading
from contextlib import contextmanager

import pytest

from kreplica import Log
from kreplica._core.region import descriptor_budget, map_budget
from kreplica.common.errors import DamagedLog, InvalidFile, OffsetOutOfRange
from kreplica.log.live_reader import LiveReader
from kreplica.log.splice import splice
from tests.support.batches import build


def written(records):
    return [(record.offset, record.value) for record in records]


def appended(path, prefix, count, **settings):
    log = Log.open(path, **settings)
    for number in range(count):
        log.append([b"%s%03d" % (prefix, number) + bytes(400)])
    return log


@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 4000}], ids=["one segment", "several"])
@pytest.mark.parametrize("pinned", [False, True], ids=["no pin", "the writer holds a pin"])
def test_a_reader_sees_what_stands_after_a_cut(tmp_path, settings, pinned):
    with appended(tmp_path / "t-0", b"a", 30, **settings) as writer:
        with Log.open(tmp_path / "t-0", read_only=True) as reader:
            assert written(reader.read()) == written(writer.read())
            held = writer.read()
            if pinned:
                next(held)
            writer.truncate_to(13)
            for number in range(40):
                writer.append([b"b%03d" % number + bytes(300)])
            assert written(reader.read()) == written(writer.read())
            assert written(reader.read(13, 14)) == [(13, b"b000" + bytes(300))]


def test_a_reader_sees_a_cut_that_a_writer_made_and_closed(tmp_path):
    appended(tmp_path / "t-0", b"a", 30).close()
    with Log.open(tmp_path / "t-0", read_only=True) as reader:
        assert len(written(reader.read())) == 30
        with Log.open(tmp_path / "t-0") as writer:
            writer.truncate_to(5)
            writer.append([b"after"])
        with Log.open(tmp_path / "t-0") as writer:
            writer.append([b"and on"])
        assert written(reader.read(5)) == [(5, b"after"), (6, b"and on")]


def test_a_thread_that_has_read_an_older_state_does_not_undo_a_newer_one(tmp_path, monkeypatch):
    """Two threads use one reader: its log ended lower again, and seemed to be cut short."""
    with appended(tmp_path / "t-0", b"a", 3) as writer, Log.open(tmp_path / "t-0", read_only=True) as reader:
        read_standing, others = LiveReader._read_standing, []

        def read_late(live):
            standing = read_standing(live)
            if not others:
                writer.append([b"newer"])
                others.append(threading.Thread(target=lambda: reader.log_end_offset))
                others[0].start()
                others[0].join(timeout=0.2)  # where it need not wait, it is done by then
            return standing

        monkeypatch.setattr(LiveReader, "_read_standing", read_late)
        writer.append([b"older"])
        assert reader.log_end_offset >= 4
        others[0].join()
        assert reader._log.log_end_offset == 5


class StateWithAReader:
    """A log's state; `look` is called while the state of the writer is taken over."""

    def __init__(self, state, look):
        self._state, self._look = state, look

    def __getattr__(self, name):
        return getattr(self._state, name)

    def take_over(self, standing):
        self._look()
        self._state.take_over(standing)


def test_a_lower_stable_offset_is_published_before_the_segments_that_it_bounds(tmp_path):
    with appended(tmp_path / "t-0", b"a", 3) as writer, Log.open(tmp_path / "t-0", read_only=True) as reader:
        assert len(written(reader.read())) == 3
        writer.truncate_to(1)
        writer.append_batch(
            build([b"open"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        )
        log, seen = reader._log, []

        def look():
            seen.extend(batch.base_offset for batch in log.batches(0, isolation="txn_committed"))

        log.state = StateWithAReader(log.state, look)
        assert reader.last_stable_offset == 1
        assert seen == [0]


def test_what_a_reader_handed_out_stays_while_the_writer_cuts(tmp_path):
    with Log.open(tmp_path / "t-0") as writer:
        for value in (b"first", b"AAAAA", b"CCC"):
            writer.append([value])
        with Log.open(tmp_path / "t-0", read_only=True) as reader:
            records, batches = list(reader.read()), list(reader.batches())
            table = reader.to_arrow(columns=["value"], views=True)
            writer.truncate_to(1)
            writer.append([b"BBBBB"])
            assert [record.value for record in reader.read()] == [b"first", b"BBBBB"]
            running = reader.read()
            first = next(running)
            writer.truncate_to(0)
            writer.append([b"other"])
            assert [first.value, *(record.value for record in running)] == [b"first", b"BBBBB"]
            assert [record.value for record in reader.read()] == [b"other"]
        # Closing takes nothing back either.
        writer.truncate_to(0)
        assert [record.value for record in records] == [b"first", b"AAAAA", b"CCC"]
        assert [record.value for batch in batches for record in batch] == [b"first", b"AAAAA", b"CCC"]
        assert table["value"].to_pylist() == [b"first", b"AAAAA", b"CCC"]


@contextmanager
def neither_maps_nor_descriptors():
    """For what is opened meanwhile."""
    budgets = map_budget(0), descriptor_budget(0)
    try:
        yield
    finally:
        map_budget(budgets[0])
        descriptor_budget(budgets[1])


@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 4000}], ids=["one segment", "several"])
def test_an_iterator_without_a_mapping_names_what_a_cut_took(tmp_path, settings, cut):
    count = 3000
    with appended(tmp_path / "t-0", b"a", count, **settings) as writer, neither_maps_nor_descriptors():
        with Log.open(tmp_path / "t-0", read_only=True, **settings) as reader:
            running = reader.read()
            seen = [next(running).offset]
            writer.truncate_to(cut)
            if cut:
                writer.append([b"another"] * 50)
            with pytest.raises(OffsetOutOfRange, match="truncated during the read") as caught:
                seen.extend(record.offset for record in running)
            assert seen == list(range(len(seen)))
            assert caught.value.where == len(seen)
            assert len(written(reader.read())) == (53 if cut else 0)


def test_an_iterator_ends_well_while_retention_takes_its_segments(tmp_path):
    with appended(tmp_path / "t-0", b"a", 30, segment_bytes=4000) as writer:
        with Log.open(tmp_path / "t-0", read_only=True) as reader:
            running = reader.read()
            first = next(running)
            writer.delete_records(25)
            assert writer.delete_old_segments() > 0
            assert [first.offset, *(record.offset for record in running)] == list(range(30))
            assert reader.log_start_offset == 25
            assert [record.offset for record in reader.read()] == list(range(25, 30))


def test_a_reader_of_a_missing_directory_names_it_and_creates_none(tmp_path):
    with pytest.raises(InvalidFile) as caught:
        Log.open(tmp_path / "t-0", read_only=True)
    assert f"{tmp_path}/t-0: there is no such directory" in str(caught.value)
    assert "read_only" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("found", ["by the opening", "by a read"])
def test_a_reader_forgets_damage_that_its_writer_has_healed(tmp_path, found):
    path = tmp_path / "t-0"
    with Log.open(path, durability="fsync") as writer:
        for value in (b"a", b"b", b"c"):
            writer.append([value])
        writer.roll()
        size = writer._log.local.segments[0].size // 3
        file = path / f"{0:020}.log"
        sound = file.read_bytes()
        reader = Log.open(path, read_only=True)
        with open(file, "r+b") as rotting:
            rotting.seek(size + 17)
            rotting.write(bytes([sound[size + 17] ^ 1]))
        for each in (writer, reader):
            with pytest.raises(DamagedLog):
                list(each.read())
        if found == "by the opening":
            reader.close()
            reader = Log.open(path, read_only=True)
        assert [damage.first_offset for damage in reader.damages] == [1]
        [damage] = writer.damages
        splice(writer._log, damage, sound[size : 2 * size])
        assert [record.value for record in reader.read()] == [b"a", b"b", b"c"]
        assert reader.damages == []
        reader.close()
