"""Verification: nothing wrong is found in what Kafka wrote, and every kind of damage is."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kreplica
from kreplica._core.record_batch import stamp_crc, stamp_offsets
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import KafkaStorageError
from kreplica.log.file_names import STATE_FILE
from kreplica.log.verify import Problem, total_bytes, verify
from kreplica.runtime.storage import FileStorage
from tests.support.damage import bit_flips, truncations

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3"
STORAGE = FileStorage()


def problems(path: Path) -> list[Problem]:
    return list(verify(STORAGE, str(path)))


def kinds(path: Path) -> set[str]:
    return {problem.kind for problem in problems(path)}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A partition that Kafka wrote, to be damaged."""

    def copied(partition: str) -> Path:
        return shutil.copytree(KAFKA / "clean" / "logs" / partition, tmp_path / partition)

    return copied


def segment(partition: Path, number: int = 0) -> Path:
    return sorted(partition.glob("*.log"))[number]


def walk(path: Path) -> Iterator[tuple[int, RecordBatch]]:
    position = 0
    for batch in batches(path.read_bytes()):
        yield position, batch
        position += batch.size


def frames(path: Path) -> list[tuple[int, bytes]]:
    """(position, bytes) of each batch."""
    return [(position, bytes(memoryview(batch))) for position, batch in walk(path)]


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def put(path: Path, position: int, data: bytes) -> None:
    rewrite(path, lambda old: old.__setitem__(slice(position, position + len(data)), data))


# ---- what Kafka wrote ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_nothing_is_wrong_with_what_kafka_wrote(stop: str) -> None:
    assert problems(KAFKA / stop / "logs") == []


def test_one_partition_and_one_segment_may_be_asked_for() -> None:
    partition = KAFKA / "clean" / "logs" / "transactions-0"
    assert problems(partition) == []
    for path in partition.glob("*.log"):
        assert problems(path) == []


@pytest.mark.parametrize("below", ["", "segments-0", "segments-0/00000000000000000012.log"])
def test_progress_adds_up_to_the_total(below: str) -> None:
    path = str(KAFKA / "clean" / "logs" / below)
    walked: list[int] = []
    assert list(verify(STORAGE, path, progress=walked.append)) == []
    assert sum(walked) == total_bytes(STORAGE, path) > 0


def test_what_cannot_be_read_at_all_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "00000000000000000000.log"):
        with pytest.raises(KafkaStorageError):
            problems(path)


# ---- batches -------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_reported_with_offset_and_byte(copy: Callable[[str], Path]) -> None:
    path = segment(copy("segments-0"), 3)
    position, frame = frames(path)[2]
    put(path, position + len(frame) - 1, bytes([frame[-1] ^ 1]))
    (found,) = problems(path.parent)
    base_offset = int.from_bytes(frame[:8], "big")
    assert (found.path, found.kind) == (str(path), "InvalidCrc")
    assert (found.offset, found.position) == (base_offset, position)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        (8, struct.pack(">i", 10), "BrokenBatch"),
        (8, struct.pack(">i", -1), "BrokenBatch"),
        (8, struct.pack(">i", 1 << 30), "BrokenBatch"),
        (16, b"\1", "UnsupportedMagic"),
        (17, b"\0\0\0\0", "InvalidCrc"),
    ],
)
def test_a_broken_frame(copy: Callable[[str], Path], field: int, value: bytes, kind: str) -> None:
    path = segment(copy("segments-0"), 3)
    position, _ = frames(path)[1]
    put(path, position + field, value)
    found = problems(path.parent)[0]
    assert (found.path, found.kind, found.position) == (str(path), kind, position)


def test_records_unlike_their_header(copy: Callable[[str], Path]) -> None:
    path = segment(copy("codec-none-0"))
    position, frame = frames(path)[-1]
    changed = bytearray(frame)
    struct.pack_into(">i", changed, 57, struct.unpack_from(">i", frame, 57)[0] + 1)
    stamp_crc(changed)
    put(path, position, bytes(changed))
    (found,) = problems(path.parent)
    assert (found.kind, found.position) == ("InvalidOffsetDelta", position)


def test_a_batch_twice(copy: Callable[[str], Path]) -> None:
    path = segment(copy("segments-0"), -1)
    (position, frame), end = frames(path)[-1], path.stat().st_size
    rewrite(path, lambda data: data.extend(frame))
    (found,) = problems(path)
    assert (found.kind, found.position) == ("OffsetRegression", end)
    assert found.offset == int.from_bytes(frame[:8], "big")
    assert end == position + len(frame)


def test_an_offset_too_far_above_the_name_of_the_file(copy: Callable[[str], Path]) -> None:
    path = segment(copy("segments-0"), -1)
    position, frame = frames(path)[-1]
    changed = bytearray(frame)
    stamp_offsets(changed, 1 << 40, 0)
    put(path, position, bytes(changed))
    assert "OffsetOverflow" in kinds(path)


def test_a_leader_epoch_that_goes_back(copy: Callable[[str], Path]) -> None:
    path = segment(copy("epochs-0"))
    position, frame = frames(path)[-1]
    changed = bytearray(frame)
    stamp_offsets(changed, int.from_bytes(frame[:8], "big"), 0)
    put(path, position, bytes(changed))
    found = [(problem.kind, problem.position) for problem in problems(path.parent)]
    assert found == [("EpochRegression", position), ("EpochMismatch", position)]


def test_a_torn_tail_and_a_hole_in_the_middle(copy: Callable[[str], Path]) -> None:
    partition = copy("segments-0")
    for number, kind in ((-1, "TornTail"), (2, "BrokenBatch")):
        path = segment(partition, number)
        position, frame = frames(path)[-1]
        whole = path.read_bytes()
        path.write_bytes(whole[: position + len(frame) - 7])
        found = [problem for problem in problems(partition) if problem.path == str(path)]
        assert [(problem.kind, problem.position) for problem in found] == [(kind, position)]
        path.write_bytes(whole)


@pytest.mark.parametrize("zeros", [1, 60, 61, 5000])
def test_zeros_are_space_behind_the_last_segment_only(copy: Callable[[str], Path], zeros: int) -> None:
    partition = copy("segments-0")
    last, closed = segment(partition, -1), segment(partition, 2)
    rewrite(last, lambda data: data.extend(bytes(zeros)))
    assert problems(partition) == []
    end = closed.stat().st_size
    rewrite(closed, lambda data: data.extend(bytes(zeros)))
    (found,) = problems(partition)
    assert (found.path, found.kind, found.position) == (str(closed), "ZeroedRange", end)


def test_every_byte_of_a_small_segment_counts(tmp_path: Path) -> None:
    """Offsets and epochs, which no CRC covers, are held by what comes behind and by the checkpoint."""
    partition = shutil.copytree(KAFKA / "clean" / "logs" / "epochs-0", tmp_path / "epochs-0")
    path = segment(partition)
    last = frames(path)[1][0]
    data = path.read_bytes()[: frames(path)[2][0]]
    for beside in (*partition.glob("*index"), *partition.glob("*.snapshot")):
        beside.unlink()
    path.write_bytes(data)
    quiet = Counter(problem.kind for problem in problems(partition))
    unseen = []
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        if Counter(problem.kind for problem in problems(partition)) == quiet:
            unseen.append(at)
    # A greater base offset of the last batch looks like a gap that compaction left.
    assert set(unseen) <= set(range(last + 4, last + 8))


# ---- names and segments --------------------------------------------------------------------------------


def test_a_file_name_above_its_first_offset(copy: Callable[[str], Path]) -> None:
    partition = copy("codec-none-0")
    path = segment(partition)
    renamed = path.rename(partition / "00000000000000000007.log")
    found = problems(partition)
    assert (str(renamed), "OffsetRegression", 0) in {(p.path, p.kind, p.position) for p in found}
    assert {p.kind for p in found if p.path.endswith("index")} == {"IndexWithoutSegment", "MissingIndex"}


def test_a_missing_segment(copy: Callable[[str], Path]) -> None:
    partition = copy("segments-0")
    for path in partition.glob("00000000000000000036.*"):
        path.unlink()
    (found,) = problems(partition)
    assert (found.kind, found.offset) == ("MissingOffsets", 36)
    assert found.path.endswith("00000000000000000048.log")


# ---- indexes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_bit_of_an_index_counts(copy: Callable[[str], Path], suffix: str) -> None:
    partition = copy("segments-0")
    path = segment(partition, 4).with_suffix(suffix)
    same_batch = []
    for bit, flipped in enumerate(bit_flips(path.read_bytes())):
        path.write_bytes(flipped)
        found = problems(partition)
        assert {problem.path for problem in found} <= {str(path)}
        if not found:
            same_batch.append((bit // 8 // 12, bit % 96))
    # The offset of a time index entry may be that of any record of the batch: 3 to 5, 6 to 8, 9 to 11.
    assert same_batch == ([] if suffix == ".index" else [(0, 88), (2, 88), (2, 89)])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_cut_or_missing(copy: Callable[[str], Path], suffix: str) -> None:
    partition = copy("segments-0")
    path = segment(partition, 4).with_suffix(suffix)
    data = path.read_bytes()
    entry = 8 if suffix == ".index" else 12
    for cut in truncations(data):
        path.write_bytes(cut)
        expected = {"IndexCut"} if len(cut) % entry else set()
        assert kinds(partition) == expected
    path.unlink()
    (found,) = problems(partition)
    assert (found.path, found.kind) == (str(path), "MissingIndex")


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_zeros_behind_an_index_are_padding_of_the_last_segment(
    copy: Callable[[str], Path], suffix: str
) -> None:
    partition = copy("segments-0")
    last, closed = (segment(partition, n).with_suffix(suffix) for n in (-1, 4))
    rewrite(last, lambda data: data.extend(bytes(240)))
    assert problems(partition) == []
    end = closed.stat().st_size
    rewrite(closed, lambda data: data.extend(bytes(240)))
    (found,) = problems(partition)
    assert (found.path, found.kind, found.position) == (str(closed), "IndexPadding", end)


def test_index_entries_out_of_order(copy: Callable[[str], Path]) -> None:
    partition = copy("segments-0")
    path = segment(partition, 4).with_suffix(".index")
    first, second = path.read_bytes()[:8], path.read_bytes()[8:16]
    put(path, 0, second + first)
    assert {(problem.kind, problem.position) for problem in problems(partition)} >= {("IndexOrder", 8)}


# ---- transactions and epochs ---------------------------------------------------------------------------


def test_a_transaction_index_gone(copy: Callable[[str], Path]) -> None:
    partition = copy("transactions-0")
    path = partition / "00000000000000000027.txnindex"
    path.unlink()
    found = problems(partition)
    assert {(problem.path, problem.kind) for problem in found} == {(str(path), "TransactionMissing")}
    assert [problem.offset for problem in found] == [35, 43, 53]


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        (0, b"\0\1", "InvalidFile"),
        (2, struct.pack(">q", 99), "TransactionMismatch"),
        (10, struct.pack(">q", 31), "TransactionMismatch"),
        (18, struct.pack(">q", 37), "TransactionMismatch"),
        (26, struct.pack(">q", 37), "InvalidFile"),
    ],
)
def test_a_lying_transaction_index(copy: Callable[[str], Path], field: int, value: bytes, kind: str) -> None:
    partition = copy("transactions-0")
    path = partition / "00000000000000000027.txnindex"
    put(path, field, value)
    found = problems(partition)
    assert (str(path), kind, 0) in {(problem.path, problem.kind, problem.position) for problem in found}


def test_an_aborted_transaction_that_was_committed(copy: Callable[[str], Path]) -> None:
    partition = copy("transactions-0")
    path = segment(partition, 1)
    marker = {batch.base_offset: at for at, batch in walk(path) if batch.is_control}[35]
    frame = bytearray(path.read_bytes()[marker : marker + 78])
    assert frame[68:70] == b"\0\0"  # the type in the key of its record
    frame[68:70] = b"\0\1"
    stamp_crc(frame)
    put(path, marker, bytes(frame))
    (found,) = problems(partition)
    assert (found.kind, found.offset) == ("TransactionMismatch", 35)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("0\n1\n0 0\n", "EpochMismatch"),
        ("0\n2\n0 0\n9 4711\n", "OffsetBeyondLog"),
        ("0\n2\n0 0\n", "InvalidFile"),
        ("", None),
    ],
)
def test_the_epoch_checkpoint(copy: Callable[[str], Path], content: str, kind: str | None) -> None:
    partition = copy("epochs-0")
    (partition / "leader-epoch-checkpoint").write_text(content)
    found = kinds(partition)
    assert kind in found if kind else not found


@pytest.mark.parametrize("name", ["00000000000000000027.snapshot", "00000000000000000119.snapshot"])
def test_every_byte_of_a_snapshot_counts(copy: Callable[[str], Path], name: str) -> None:
    partition = copy("transactions-0")
    path = partition / name
    data = path.read_bytes()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        (found,) = problems(partition)
        assert (found.path, found.kind) == (str(path), "InvalidFile")


def test_a_snapshot_that_knows_the_future(copy: Callable[[str], Path]) -> None:
    partition = copy("transactions-0")
    last = partition / "00000000000000000119.snapshot"
    last.rename(partition / "00000000000000000120.snapshot")
    assert kinds(partition) == {"OffsetBeyondLog"}
    (partition / "00000000000000000120.snapshot").rename(partition / "00000000000000000081.snapshot")
    assert kinds(partition) == {"SnapshotMismatch"}


# ---- what kreplica writes ------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Iterator[kreplica.Log]:
    """An open log of several segments."""
    with kreplica.Log.open(tmp_path / "orders-0", segment_bytes=1 << 14, index_interval_bytes=512) as log:
        for n in range(300):
            log.append([(b"key %d" % n, b"v" * (n % 200)), b"second"], leader_epoch=n // 100)
        yield log


def test_a_log_that_is_written_to_and_one_that_was_closed(written: kreplica.Log) -> None:
    assert problems(Path(written.path)) == []
    written.append([b"v"], leader_epoch=3)
    assert problems(Path(written.path)) == []
    written.close()
    assert problems(Path(written.path)) == []
    assert len(list(Path(written.path).glob("*.log"))) > 2


def killed(log: kreplica.Log, tmp_path: Path) -> Path:
    """The directory as it is left when the process dies now."""
    return shutil.copytree(log.path, tmp_path / "killed-0")


def test_a_log_whose_writer_was_killed(written: kreplica.Log, tmp_path: Path) -> None:
    partition = killed(written, tmp_path)
    assert problems(partition) == []
    path = segment(partition, -1)
    end = frames_end(path)
    # Half an append: it is not published to readers.
    put(path, end + 61, b"half of what was to come")
    assert problems(partition) == []
    put(path, end - 1, b"!")
    assert kinds(partition) == {"InvalidCrc"}


def frames_end(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0")) + 1  # a record ends with its number of headers, 0


def test_published_batches_gone(written: kreplica.Log, tmp_path: Path) -> None:
    partition = killed(written, tmp_path)
    path = segment(partition, -1)
    end = frames_end(path)
    put(path, end - 100, bytes(100))
    assert kinds(partition) & {"BrokenBatch", "TornTail", "InvalidCrc"}
    path.write_bytes(b"")
    (found,) = problems(partition)
    assert (found.path, found.kind) == (str(partition / STATE_FILE), "OffsetBeyondLog")


def test_zeros_behind_a_log_that_was_closed(written: kreplica.Log) -> None:
    written.close()
    path = segment(Path(written.path), -1)
    rewrite(path, lambda data: data.extend(bytes(100)))
    assert kinds(path.parent) == {"ZeroedRange"}


def test_a_state_file_that_says_nothing(written: kreplica.Log) -> None:
    written.close()
    path = Path(written.path) / STATE_FILE
    path.write_bytes(path.read_bytes()[:100])
    (found,) = problems(path.parent)
    assert (found.path, found.kind) == (str(path), "InvalidFile")


# ---- small files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "segments-0/partition.metadata",
        "__cluster_metadata-0/quorum-state",
    ],
)
def test_a_small_file_cut_short(tmp_path: Path, name: str) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    path = logs / name
    path.write_bytes(path.read_bytes()[:-3])
    (found,) = problems(logs)
    assert found.path == str(path)


@pytest.mark.parametrize("name", ["recovery-point", "replication", "log-start"])
def test_a_checkpoint_beyond_its_log(tmp_path: Path, name: str) -> None:
    logs = shutil.copytree(KAFKA / "clean" / "logs", tmp_path / "logs")
    path = logs / f"{name}-offset-checkpoint"
    path.write_text("0\n2\nsegments 0 121\nunknown 3 99\n")
    (found,) = problems(logs)
    assert (found.path, found.kind, found.offset) == (str(path), "OffsetBeyondLog", 121)
