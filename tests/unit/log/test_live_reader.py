"""A reader beside a writer that cuts, rolls and removes what the reader has open."""

import pytest

from kreplica import Log
from kreplica.common.errors import InvalidFile


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


def test_a_reader_of_a_directory_that_is_not_there_is_told_which_and_that_it_makes_none(tmp_path):
    with pytest.raises(InvalidFile) as caught:
        Log.open(tmp_path / "t-0", read_only=True)
    assert f"{tmp_path}/t-0: there is no such directory" in str(caught.value)
    assert "read_only" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
