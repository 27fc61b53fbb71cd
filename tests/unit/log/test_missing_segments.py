"""A segment that lost its end, or is gone: no reader passes over it in silence."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kreplica import Log, arrow
from kreplica.common.errors import DamagedLog
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile, OffsetCheckpointFile
from kreplica.log.column_reader import ColumnReader
from kreplica.log.file_names import STATE_FILE
from kreplica.log.log_loader import OpenOptions
from kreplica.log.repair import repair
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from tests.support.clock import ManualClock
from tests.support.logs import OtherBoot, open_log

COUNT = 60
SETTINGS = {"segment_bytes": 4000}


def filled(path: Path, **settings) -> list[Path]:
    """The logs of the segments of a log with a record at each offset below COUNT."""
    with Log.open(path, **SETTINGS, **settings) as log:
        for number in range(COUNT):
            log.append([(b"key %d" % (number % 7), b"%03d" % number * 100)])
    found = sorted(path.glob("*.log"))
    assert len(found) > 4
    return found


def base(segment: Path) -> int:
    return int(segment.stem)


def lose_end(segments: list[Path]) -> tuple[int, int]:
    """A closed segment ends with its first batch; the offsets that are missing."""
    size = 12 + int.from_bytes(segments[2].read_bytes()[8:12], "big")
    os.truncate(segments[2], size)
    return base(segments[2]) + 1, base(segments[3])


def lose_all(segments: list[Path]) -> tuple[int, int]:
    os.truncate(segments[2], 0)
    return base(segments[2]), base(segments[3])


def lose_file(segments: list[Path]) -> tuple[int, int]:
    for each in segments[2].parent.glob(segments[2].stem + ".*"):
        each.unlink()
    return base(segments[2]), base(segments[3])


def lose_first(segments: list[Path]) -> tuple[int, int]:
    for each in segments[0].parent.glob(segments[0].stem + ".*"):
        each.unlink()
    return 0, base(segments[1])


def by_kafka(path: Path) -> None:
    """Leave the directory as Kafka would: without kreplica's own files."""
    (path / STATE_FILE).unlink()


LOSSES = [lose_end, lose_all, lose_file, lose_first]
PARTITION = TopicPartition("t", 0)


def opened(path: Path, **settings) -> Log:
    return Log.open(path, read_only=True, **settings)


def read(path: Path, **bounds) -> list[int]:
    with opened(path) as log:
        return [record.offset for record in log.read(**bounds)]


def read_batches(path: Path, **bounds) -> list[int]:
    with opened(path) as log:
        return [record.offset for batch in log.batches(**bounds) for record in batch]


def to_arrow(path: Path, **bounds) -> list[int]:
    with opened(path) as log:
        return log.to_arrow(**bounds)["offset"].to_pylist()


def scan(path: Path, **bounds) -> list[int]:
    return arrow.scan(path, isolation="log_end", **bounds).to_arrow()["offset"].to_pylist()


READS = {each.__name__: each for each in (read, read_batches, to_arrow, scan)}


@pytest.mark.parametrize("wrote", ["kreplica", "kafka"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", READS)
def test_what_is_missing_is_an_error(tmp_path, wrote, loss, name):
    path = tmp_path / "t-0"
    segments = filled(path)
    if wrote == "kafka":
        by_kafka(path)
    assert READS[name](path) == list(range(COUNT))
    first, stop = loss(segments)
    with pytest.raises(DamagedLog, match=f"offsets {first} to {stop - 1} ") as caught:
        READS[name](path)
    assert caught.value.where == first
    # What is there can be read.
    assert READS[name](path, start=stop) == list(range(stop, COUNT))
    if first:
        assert READS[name](path, stop=first) == list(range(first))
        with pytest.raises(DamagedLog):
            READS[name](path, start=(first + stop) // 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_missing_may_be_passed_over_knowingly(tmp_path, loss):
    segments = filled(tmp_path / "t-0")
    first, stop = loss(segments)
    with opened(tmp_path / "t-0") as log:
        reader = ColumnReader(log._log, ["offset"], skip_damaged=True)
        assert list(reader)
        assert reader.rows == COUNT - (stop - first)
        assert [(each.first_offset, each.stop_offset) for each in reader.skipped] == [(first, stop)]


@pytest.mark.parametrize("loss", [lose_end, lose_all])
def test_a_writer_and_its_fetches_notice_it_and_go_on(tmp_path, loss):
    first, stop = loss(filled(tmp_path / "t-0"))
    with Log.open(tmp_path / "t-0", **SETTINGS) as log:
        with pytest.raises(DamagedLog):
            list(log.read())
        with pytest.raises(DamagedLog):
            log._log.read(first, 1 << 20)
        assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(first, stop)]
        assert log.append([b"on"]).base_offset == COUNT
        assert [r.offset for r in log.read(stop)] == list(range(stop, COUNT + 1))


def test_a_writer_knows_at_once_of_a_middle_segment_that_is_gone_behind_a_clean_close(tmp_path):
    first, stop = lose_file(filled(tmp_path / "t-0"))
    with Log.open(tmp_path / "t-0", **SETTINGS) as log:
        assert log.recovery.clean
        assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(first, stop)]
        assert log.append([b"on"]).base_offset == COUNT


def test_a_writer_of_a_log_that_kafka_wrote_notices_a_middle_segment_that_is_gone_where_it_reads(tmp_path):
    """Such a log may have gaps between its segments. Only its batches distinguish them from a loss."""
    segments = filled(tmp_path / "t-0")
    by_kafka(tmp_path / "t-0")
    Log.open(tmp_path / "t-0", **SETTINGS).close()
    first, stop = lose_file(segments)
    with Log.open(tmp_path / "t-0", **SETTINGS) as log:
        assert not log.damages
        with pytest.raises(DamagedLog):
            list(log.read())
        assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(first, stop)]
        assert log.append([b"on"]).base_offset == COUNT
    with Log.open(tmp_path / "t-0", **SETTINGS) as log:
        assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(first, stop)]


def test_a_search_by_time_passes_over_no_gap(tmp_path):
    segments = filled(tmp_path / "t-0")
    with opened(tmp_path / "t-0") as log:
        last = list(log.read())[-1].timestamp
    first, _ = lose_all(segments)
    with pytest.raises(DamagedLog, match=f"offsets {first} to"):
        arrow.scan(tmp_path / "t-0", from_time=last, isolation="log_end").to_arrow()


def test_a_first_segment_that_a_checkpoint_knows_of(tmp_path):
    path = tmp_path / "t-0"
    segments = filled(path)
    by_kafka(path)
    (path / "leader-epoch-checkpoint").unlink()
    _, stop = lose_first(segments)
    assert read(path) == list(range(stop, COUNT))  # nothing shows the loss
    OffsetCheckpointFile(FileStorage(), str(tmp_path / "log-start-offset-checkpoint")).write({PARTITION: 3})
    with pytest.raises(DamagedLog, match=f"offsets 3 to {stop - 1} "):
        read(path)


# ---- what compaction explains ------------------------------------------------------------------------------


def compacted_by_kafka(path: Path) -> list[Path]:
    """As Kafka's cleaner leaves it: a segment whose batches are all gone but its first."""
    segments = filled(path)
    by_kafka(path)
    lose_end(segments)
    return segments


def test_a_gap_that_the_configuration_explains(tmp_path):
    compacted_by_kafka(tmp_path / "t-0")
    with opened(tmp_path / "t-0", cleanup_policy="compact") as log:
        assert len(list(log.read())) < COUNT


def test_a_gap_that_the_cleaners_checkpoint_explains(tmp_path):
    path = tmp_path / "t-0"
    compacted_by_kafka(path)
    checkpoint = OffsetCheckpointFile(FileStorage(), str(tmp_path / "cleaner-offset-checkpoint"))
    checkpoint.write({PARTITION: 30})
    for each in READS.values():
        assert len(each(path)) < COUNT


def test_a_gap_that_the_batches_explain(tmp_path):
    path = tmp_path / "t-0"
    segments = compacted_by_kafka(path)
    # In another segment a batch is gone between two others.
    whole = segments[1].read_bytes()
    size = 12 + int.from_bytes(whole[8:12], "big")
    segments[1].write_bytes(whole[:size] + whole[2 * size :])
    for each in READS.values():
        assert len(each(path)) < COUNT - 1


INDEXES = (".index", ".timeindex")


def emptied_by_kafka(path: Path, number: int = 0) -> tuple[list[Path], list[int]]:
    """As Kafka's cleaner leaves a segment without a record to keep: empty, and its indexes as well.

    Returns the segments, and the offsets that are left.
    """
    segments = filled(path)
    by_kafka(path)
    empty(segments[number])
    for suffix in INDEXES:
        empty(segments[number].with_suffix(suffix))
    gone = range(base(segments[number]), base(segments[number + 1]))
    return segments, [offset for offset in range(COUNT) if offset not in gone]


def empty(file: Path) -> None:
    os.truncate(file, 0)


def read_by_a_writer(path: Path) -> list[int]:
    with Log.open(path, **SETTINGS) as log:
        assert not log.damages
        return [record.offset for record in log.read()]


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("name", READS)
def test_a_segment_that_the_cleaner_left_empty(tmp_path, name, number):
    _, left = emptied_by_kafka(tmp_path / "t-0", number)
    assert READS[name](tmp_path / "t-0") == left


@pytest.mark.parametrize("number", [0, 2])
def test_a_segment_that_the_cleaner_left_empty_is_no_problem_to_verify_repair_or_a_writer(tmp_path, number):
    path = tmp_path / "t-0"
    _, left = emptied_by_kafka(path, number)
    assert not list(verify(FileStorage(), str(path)))
    assert not list(repair(FileStorage(), ManualClock(), str(path), apply_changes=False))
    for _ in range(2):
        assert read_by_a_writer(path) == left


def test_an_empty_segment_explains_the_other_gaps_of_its_log(tmp_path):
    path = tmp_path / "t-0"
    segments, left = emptied_by_kafka(path)
    first, stop = lose_end(segments)
    left = [offset for offset in left if not first <= offset < stop]
    for each in READS.values():
        assert each(path) == left


def test_a_log_whose_first_batch_lies_above_its_first_segments_begin_was_compacted(tmp_path):
    path = tmp_path / "t-0"
    segments = filled(path)
    by_kafka(path)
    lose_end(segments)
    whole = segments[0].read_bytes()
    segments[0].write_bytes(whole[12 + int.from_bytes(whole[8:12], "big") :])
    for each in READS.values():
        assert each(path)[0] == 1


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact"}])
def test_an_empty_segment_whose_time_index_has_entries_has_lost_its_records(tmp_path, settings):
    """Also where other parts of the log were compacted."""
    path = tmp_path / "t-0"
    segments, _ = emptied_by_kafka(path)
    first, stop = lose_all(segments)
    for each in READS.values():
        with pytest.raises(DamagedLog, match=f"offsets {first} to {stop - 1} "):
            each(path)
    assert [(each.kind, each.offset) for each in verify(FileStorage(), str(path))][-1:] == [
        ("MissingOffsets", first)
    ]
    for _ in range(2):  # a writer builds the indexes anew, and does not forget
        with Log.open(path, **SETTINGS, **settings) as log:
            with pytest.raises(DamagedLog, match=f"offsets {first} to {stop - 1} "):
                list(log.read())
            assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(first, stop)]


def test_an_empty_segment_without_its_time_index_is_damage_unless_something_else_shows_a_cleaner(tmp_path):
    path = tmp_path / "t-0"
    segments, left = emptied_by_kafka(path)
    segments[0].with_suffix(".timeindex").unlink()
    shutil.copytree(path, tmp_path / "cleaned" / "t-0")
    checkpoint = OffsetCheckpointFile(FileStorage(), str(tmp_path / "cleaned" / "cleaner-offset-checkpoint"))
    checkpoint.write({PARTITION: 30})
    for each in READS.values():
        with pytest.raises(DamagedLog):
            each(path)
        assert each(tmp_path / "cleaned" / "t-0") == left
    assert read_by_a_writer(tmp_path / "cleaned" / "t-0") == left
    with Log.open(path, **SETTINGS) as log, pytest.raises(DamagedLog):
        list(log.read())


@pytest.mark.parametrize("name", READS)
def test_a_loss_behind_a_segment_that_the_cleaner_left_empty(tmp_path, name):
    path = tmp_path / "t-0"
    segments, _ = emptied_by_kafka(path, 1)
    first, stop = lose_all(segments)
    with pytest.raises(DamagedLog, match=f"offsets {first} to {stop - 1} "):
        READS[name](path)


def test_verify_takes_the_cleaners_checkpoint_for_a_sign_as_well(tmp_path):
    path = tmp_path / "t-0"
    compacted_by_kafka(path)
    assert "MissingOffsets" in {each.kind for each in verify(FileStorage(), str(path))}
    checkpoint = OffsetCheckpointFile(FileStorage(), str(tmp_path / "cleaner-offset-checkpoint"))
    checkpoint.write({PARTITION: 30})
    assert "MissingOffsets" not in {each.kind for each in verify(FileStorage(), str(path))}


def test_a_log_that_kreplica_compacted_has_no_gap(tmp_path):
    path = tmp_path / "t-0"
    filled(path, cleanup_policy="compact")
    with Log.open(path, cleanup_policy="compact", **SETTINGS) as log:
        log.compact()
        kept = [r.offset for r in log.read()]
    for each in READS.values():
        assert each(path) == kept
    # So what is missing is missing here, too.
    with_records = [each for each in sorted(path.glob("*.log")) if each.stat().st_size]
    os.truncate(with_records[0], 0)
    with pytest.raises(DamagedLog):
        read(path)


def test_an_adopted_log_is_held_to_the_same(tmp_path):
    path = tmp_path / "t-0"
    segments = filled(path)
    by_kafka(path)
    with Log.open(path, **SETTINGS) as log:
        log.append([b"adopted"])
    lose_all(segments)
    with pytest.raises(DamagedLog):
        read(path)


def test_retention_is_no_loss(tmp_path):
    path = tmp_path / "t-0"
    filled(path)
    with Log.open(path, **SETTINGS) as log:
        log.delete_records(40)
        assert log.delete_old_segments()
    assert read(path) == list(range(40, COUNT))
    shutil.copytree(path, tmp_path / "copied" / "t-0")
    by_kafka(tmp_path / "copied" / "t-0")
    assert scan(tmp_path / "copied" / "t-0")[-1] == COUNT - 1


# ---- a writer whose first segments are gone ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"durability": "fsync"}])
def test_a_writer_without_its_first_segments_knows_what_is_lost(tmp_path, settings):
    path = tmp_path / "t-0"
    _, stop = lose_first(filled(path, **settings))
    for _ in range(2):  # the second opening finds it again
        with Log.open(path, **SETTINGS) as log:
            assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(0, stop)]
            with pytest.raises(DamagedLog, match=f"offsets 0 to {stop - 1} "):
                list(log.read(0))
            assert [record.offset for record in log.read(stop)][-1] == log.append([b"on"]).base_offset - 1
    with pytest.raises(DamagedLog):
        read(path)
    (found,) = verify(FileStorage(), str(path))
    assert (found.kind, found.offset) == ("MissingOffsets", 0)


def test_a_writer_that_was_killed_without_its_first_segments_knows_what_is_lost(tmp_path):
    path = tmp_path / "t-0"
    log = Log.open(path, **SETTINGS)
    for number in range(COUNT):
        log.append([b"%03d" % number * 100])
    shutil.copytree(path, tmp_path / "killed" / "t-0")
    log.close()
    path = tmp_path / "killed" / "t-0"
    _, stop = lose_first(sorted(path.glob("*.log")))
    with Log.open(path, **SETTINGS) as log:
        assert [(each.first_offset, each.stop_offset) for each in log.damages] == [(0, stop)]


def test_the_first_segments_that_only_a_power_cut_can_have_taken_are_not_missed(tmp_path):
    path = tmp_path / "t-0"
    log = open_log(path, segment_bytes=4000)
    for number in range(COUNT):
        log.append_records([b"%03d" % number * 100])
    shutil.copytree(path, tmp_path / "cut" / "t-0")
    log.close()
    _, stop = lose_first(sorted((tmp_path / "cut" / "t-0").glob("*.log")))
    log = open_log(tmp_path / "cut" / "t-0", storage=OtherBoot())
    assert (log.log_start_offset, list(log.damages)) == (stop, [])
    log.close()


def test_records_deleted_from_a_log_without_its_first_segments_are_lost_no_more(tmp_path):
    path = tmp_path / "t-0"
    _, stop = lose_first(filled(path))
    with Log.open(path, **SETTINGS) as log:
        log.delete_records(stop)
        assert log.log_start_offset == stop
        assert next(record.offset for record in log.read()) == stop
    with Log.open(path, **SETTINGS) as log:
        assert not log.damages
    assert not list(verify(FileStorage(), str(path)))


def test_a_log_without_its_first_segments_is_cut_into_them(tmp_path):
    path = tmp_path / "t-0"
    _, stop = lose_first(filled(path))
    with Log.open(path, **SETTINGS) as log:
        log.truncate_to(stop - 1)
        assert (log.log_start_offset, log.log_end_offset, log.damages) == (0, 0, [])
        assert log.append([b"anew"]).base_offset == 0
    assert read(path) == [0]


def test_segments_that_another_program_deleted_are_not_missed(tmp_path):
    path = tmp_path / "t-0"
    _, stop = lose_first(filled(path))
    LeaderEpochCheckpointFile(FileStorage(), str(path)).write((EpochEntry(0, stop),))
    with Log.open(path, **SETTINGS) as log:
        assert (log.log_start_offset, log.damages) == (stop, [])


@pytest.mark.parametrize("settled", [True, False])
def test_an_adopted_log_without_its_first_segments(tmp_path, settled):
    """Kafka deletes segments before it writes the checkpoint, so after a crash the log start is unknown."""
    path = tmp_path / "t-0"
    segments = filled(path)
    by_kafka(path)
    _, stop = lose_first(segments)
    options = OpenOptions(is_settled=settled, is_only_replica=True)
    for _ in range(2):
        log = open_log(path, options=options, segment_bytes=4000)
        lost = [(each.first_offset, each.stop_offset) for each in log.damages]
        assert lost == ([(0, stop)] if settled else [])
        assert log.log_start_offset == (0 if settled else stop)
        log.close()
        options = OpenOptions(is_only_replica=True)
