"""What a repair does about each kind of damage, and what it leaves alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica._core.records import batches
from kreplica.common.errors import InvalidFile, LogDirLocked
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import OffsetCheckpointFile
from kreplica.log.damage import Damage, DamageFile, Damages
from kreplica.log.file_names import STATE_FILE
from kreplica.log.quarantine import read_all
from kreplica.log.repair import Finding, repair
from kreplica.log.state_file import read_state
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from tests.support.logs import ManualClock

KAFKA = Path(__file__).resolve().parents[3] / "data" / "kafka-4.3"
STORAGE = FileStorage()


def mend(path: Path, *, apply: bool = True) -> list[Finding]:
    return list(repair(STORAGE, ManualClock(), str(path), apply_changes=apply))


def actions(path: Path, *, apply: bool = True) -> set[tuple[str, str]]:
    found = mend(path, apply=apply)
    assert all(f.done == apply for f in found if f.action != "known"), found
    return {(f.path.rpartition("/")[2], f.action) for f in found}


def open_problems(path: Path) -> list[object]:
    return [problem for problem in verify(STORAGE, str(path)) if not problem.is_known]


def offsets(path: Path) -> list[int | None]:
    with kreplica.Log.open(path, read_only=True) as log:
        return [record.offset for record in log.read()]


def damage(path: Path, position: int, data: bytes) -> None:
    image = bytearray(path.read_bytes())
    image[position : position + len(data)] = data
    path.write_bytes(image)


def frames(path: Path) -> list[tuple[int, int, int, int]]:
    """(position, end, base offset, next offset) of each batch."""
    found, position = [], 0
    for batch in batches(path.read_bytes()):
        found.append((position, position + batch.size, batch.base_offset, batch.next_offset))
        position += batch.size
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    def copied(partition: str) -> Path:
        return shutil.copytree(KAFKA / "clean" / "logs" / partition, tmp_path / partition)

    return copied


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three segments of four batches with three records each, closed in order."""
    path = tmp_path / "orders-0"
    # All records have one timestamp, so that the time index has an entry for the first batch only.
    now_ms = time.time_ns() // 1_000_000
    with kreplica.Log.open(path) as log:
        for segment in range(3):
            if segment:
                log.roll()
            for batch in range(4):
                record = (None, b"%d/%d" % (segment, batch), [], now_ms)
                log.append([record] * 3, leader_epoch=segment)
    return path


def segment(path: Path, base: int) -> Path:
    return path / f"{base:020}.log"


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_nothing_is_to_repair_in_what_kafka_wrote(stop: str) -> None:
    assert mend(KAFKA / stop / "logs", apply=False) == []


def test_rot_becomes_a_known_gap_and_its_bytes_are_kept(log: Path) -> None:
    path = segment(log, 12)
    position, end, base, following = frames(path)[1]
    damage(path, end - 1, b"?")
    rotten = path.read_bytes()[position:end]
    assert actions(log, apply=False) == {(path.name, "quarantine")}
    assert not list(log.glob("*.rot*"))
    assert actions(log) == {(path.name, "quarantine")}
    (kept,) = log.glob("*.rot")
    assert kept.name == f"{path.name}.{position}.rot"
    assert kept.read_bytes() == rotten
    (note,) = read_all(STORAGE, str(log), [file.name for file in log.iterdir()]).values()
    assert (note.first_offset, note.next_offset, note.kept_in) == (base, following, kept.name)
    left = [offset for offset in range(36) if not base <= offset < following]
    assert offsets(log) == left
    (known,) = verify(STORAGE, str(log))
    assert (known.kind, known.is_known, known.offset) == ("Quarantined", True, base)
    assert actions(log) == {(path.name, "known")}
    with kreplica.Log.open(log) as writer:
        assert writer.recovery.clean
        assert [record.offset for record in writer.read(base)] == list(range(following, 36))
        assert writer.append([b"on"]).base_offset == 36


def test_rot_at_the_end_of_a_closed_log_keeps_its_offsets_from_being_used_again(log: Path) -> None:
    path = segment(log, 24)
    position, _, base, _ = frames(path)[-1]
    damage(path, position + 30, b"??")
    assert actions(log) == {(path.name, "quarantine")}
    assert offsets(log) == list(range(base))
    with kreplica.Log.open(log) as writer:
        assert writer.append([b"on"]).base_offset == 36


def test_what_the_log_remembered_of_its_damage_is_over(log: Path) -> None:
    path = segment(log, 12)
    position, end, base, following = frames(path)[1]
    damage(path, end - 1, b"?")
    remembered = DamageFile(STORAGE, str(log))
    remembered.write(Damages([Damage(base, following, str(path), position, end, "BAD_CRC")]))
    assert actions(log) == {(path.name, "quarantine")}
    assert not remembered.read()
    with kreplica.Log.open(log) as writer:
        assert writer.damage is None


def test_a_log_that_may_have_gaps_may_still_have_them_afterwards(log: Path) -> None:
    # Without its state it counts as another program's, whose compaction leaves gaps.
    (log / STATE_FILE).unlink()
    with kreplica.Log.open(log):
        pass
    damage(segment(log, 12), frames(segment(log, 12))[1][1] - 1, b"?")
    before = read_state(STORAGE, str(log))
    mend(log)
    after = read_state(STORAGE, str(log))
    assert before is not None
    assert after is not None
    assert before.has_gaps
    assert after.has_gaps


def test_a_missing_segment_becomes_a_known_gap(log: Path) -> None:
    segment(log, 12).unlink()
    (found,) = [f for f in mend(log) if f.action == "quarantine"]
    assert (found.offset, found.next_offset, found.position == found.end_position) == (12, 24, True)
    assert offsets(log) == [*range(12), *range(24, 36)]
    assert open_problems(log) == []
    assert not list(log.glob("00000000000000000012.*"))
    (log / STATE_FILE).write_bytes((log / STATE_FILE).read_bytes()[:100])  # so that all is read again
    with kreplica.Log.open(log) as writer:
        assert writer.damage is None


@pytest.mark.parametrize(
    ("base", "batch", "at", "data"),
    [
        pytest.param(24, 1, 1, b"\x08", id="an offset behind it jumps"),
        pytest.param(0, 1, 1, b"\x08", id="an offset before it jumps past it"),
        pytest.param(0, 1, 7, b"\x0f", id="an offset before it jumps into it"),
        pytest.param(0, 1, 60, b"\x07", id="a count of records before it is wrong"),
        pytest.param(24, 1, 60, b"\x07", id="a count of records behind it is wrong"),
    ],
)
def test_a_missing_segment_is_noticed_beside_other_damage(
    log: Path, base: int, batch: int, at: int, data: bytes
) -> None:
    path = segment(log, base)
    position, _, first, following = frames(path)[batch]
    damage(path, position + at, data)
    segment(log, 12).unlink()
    missing = [problem for problem in verify(STORAGE, str(log)) if problem.kind == "MissingOffsets"]
    assert [problem.path for problem in missing] == [str(segment(log, 24))]
    mend(log)
    spoilt = range(first, following) if at == 60 else range(0)
    assert offsets(log) == [o for o in (*range(12), *range(24, 36)) if o not in spoilt]
    assert open_problems(log) == []
    with kreplica.Log.open(log) as writer:
        assert writer.damage is None


def test_a_segment_of_a_compacted_log_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with kreplica.Log.open(path, cleanup_policy="compact", segment_bytes=200) as log:
        for number in range(20):
            log.append([(b"%d" % (number % 7), b"value " * 8)])
        log.compact()
    _, second, *_ = sorted(path.glob("*.log"))
    base, kept = int(second.stem), offsets(path)
    second.unlink()
    assert ("MissingOffsets", base) in [(p.kind, p.offset) for p in verify(STORAGE, str(path))]
    mend(path)
    assert open_problems(path) == []
    assert offsets(path) == [offset for offset in kept if offset not in lost_of(path)]
    with kreplica.Log.open(path, cleanup_policy="compact") as writer:
        assert writer.damage is None


def lost_of(path: Path) -> set[int]:
    notes = read_all(STORAGE, str(path), [file.name for file in path.iterdir()]).values()
    return {offset for note in notes for offset in range(note.first_offset, note.next_offset)}


def test_an_offset_that_lost_a_bit_is_set_right(log: Path) -> None:
    path = segment(log, 12)
    before = path.read_bytes()
    damage(path, frames(path)[2][0], b"\x04")
    assert actions(log) == {(path.name, "correct")}
    assert path.read_bytes() == before
    assert open_problems(log) == []


def test_a_leader_epoch_that_lost_a_bit_is_set_right(log: Path) -> None:
    path = segment(log, 12)
    before, checkpoint = path.read_bytes(), (log / "leader-epoch-checkpoint").read_text()
    damage(path, frames(path)[2][0] + 12, b"\x04")
    assert actions(log) == {(path.name, "correct")}
    assert path.read_bytes() == before
    assert (log / "leader-epoch-checkpoint").read_text() == checkpoint


def test_a_torn_end_is_cut_and_kept(log: Path) -> None:
    path = segment(log, 24)
    (log / STATE_FILE).unlink()  # so nothing counts as acknowledged
    position, *_ = frames(path)[-1]
    path.write_bytes(path.read_bytes()[:-3])
    assert actions(log) == {(path.name, "cut")}
    assert offsets(log) == list(range(33))
    (kept,) = log.glob("*.cut")
    assert kept.name == f"{path.name}.{position}.cut"


def test_what_is_whole_behind_a_torn_place_is_not_cut(log: Path) -> None:
    path = segment(log, 24)
    (log / STATE_FILE).unlink()
    damage(path, frames(path)[1][1] - 1, b"?")
    assert actions(log) == {(path.name, "quarantine")}
    assert offsets(log) == [*range(27), *range(30, 36)]


def test_a_batch_in_a_rotten_record_is_not_taken_for_one_of_the_log(tmp_path: Path, log: Path) -> None:
    path = tmp_path / "nested-0"
    inner = segment(log, 0).read_bytes()[frames(segment(log, 0))[2][0] :]
    with kreplica.Log.open(path) as writer:
        for value in (b"first", b"x" * 50 + inner, b"last"):
            writer.append([value])
    damage(segment(path, 0), frames(segment(path, 0))[1][0] + 80, b"?")
    assert actions(path) == {(segment(path, 0).name, "quarantine")}
    assert offsets(path) == [0, 2]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_indexes_are_made_anew(copy: Callable[[str], Path], suffix: str) -> None:
    path = copy("transactions-0")
    before = {file.name: file.read_bytes() for file in path.glob(f"*{suffix}")}
    for file in path.glob(f"*{suffix}"):
        file.write_bytes(b"\x7f" * 48)
    assert {action for _, action in actions(path)} == {"rebuild"}
    assert open_problems(path) == []
    if suffix == ".txnindex":
        assert {f.name: f.read_bytes() for f in path.glob("*.txnindex") if f.stat().st_size} == {
            name: data for name, data in before.items() if data
        }


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "00000000000000000120.snapshot", STATE_FILE])
@pytest.mark.parametrize("content", [b"", b"?", b"0\n1\n"])
def test_what_lies_beside_the_segments_is_made_anew(
    copy: Callable[[str], Path], name: str, content: bytes
) -> None:
    path = copy("segments-0")
    epochs = (path / "leader-epoch-checkpoint").read_bytes()
    (path / name).write_bytes(content)
    expected = set() if (name, content) == ("leader-epoch-checkpoint", b"") else {(name, "rebuild")}
    assert actions(path) == expected
    assert open_problems(path) == []
    if expected:
        assert (path / "leader-epoch-checkpoint").read_bytes() == epochs


def test_a_segment_under_another_name_is_left_alone(copy: Callable[[str], Path]) -> None:
    path = copy("segments-0")
    for suffix in ("log", "index", "timeindex"):
        (path / f"{12:020}.{suffix}").rename(path / f"{18:020}.{suffix}")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    (found,) = [f for f in mend(path) if f.kind == "ForeignSegment"]
    assert found.is_open
    assert before.items() <= {file.name: file.read_bytes() for file in path.iterdir()}.items()


def test_nothing_is_touched_beside_a_writer(log: Path) -> None:
    with kreplica.Log.open(log):
        for apply in (False, True):
            with pytest.raises(LogDirLocked):
                mend(log, apply=apply)


def test_nothing_is_touched_beside_a_node(tmp_path: Path) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    lock = STORAGE.lock_directory(str(logs))
    for path in (logs, logs / "segments-0"):
        for apply in (False, True):
            with pytest.raises(LogDirLocked):
                mend(path, apply=apply)
    lock.release()
    assert mend(logs) == []


def test_what_holds_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile):
        mend(tmp_path)


def broken_rows() -> Iterator[bytes]:
    good = OffsetCheckpointFile.format({TopicPartition("segments", 0): 100, TopicPartition("trimmed", 0): 7})
    yield good.replace(b"trimmed 0 7", b"trimmed 0 x")
    yield good[:-1]
    yield good.replace(b"0\n2\n", b"0\n3\n")


@pytest.mark.parametrize("content", list(broken_rows()))
def test_a_nodes_checkpoint_keeps_the_rows_that_can_be_read(tmp_path: Path, content: bytes) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    name = "recovery-point-offset-checkpoint"
    (logs / name).write_bytes(content)
    assert actions(logs) == {(name, "rebuild")}
    rows = OffsetCheckpointFile(STORAGE, str(logs / name)).read()
    assert rows[TopicPartition("segments", 0)] == 100
    assert open_problems(logs) == []
    assert not (logs / ".kafka_cleanshutdown").exists()


def test_a_checkpoint_beyond_its_log_comes_back(tmp_path: Path) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    file = OffsetCheckpointFile(STORAGE, str(logs / "replication-offset-checkpoint"))
    key = TopicPartition("segments", 0)
    file.write(file.read() | {key: 5000})
    assert actions(logs) == {("replication-offset-checkpoint", "rebuild")}
    assert file.read()[key] == 120


def test_what_is_nowhere_else_cannot_be_repaired(tmp_path: Path) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    (logs / "meta.properties").write_bytes(b"version=1\n")
    (found,) = mend(logs)
    assert (found.action, found.is_open) == ("cannot repair", True)
