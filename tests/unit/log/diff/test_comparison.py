"""Two replicas compared: the first divergence, how far they agree, rot, and compaction."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kreplica
from kreplica.common.errors import InvalidFile
from kreplica.common.types import AppendOrigin
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.diff import comparison as comparison_module
from kreplica.log.repair import repair
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.runtime.storage import FileStorage
from tests.conformance.expectation import FIXTURES
from tests.support.batches import build
from tests.support.logs import NOW_MS, ManualClock
from tests.unit.log.diff.replicas import batch, compared, replica

KAFKA = FIXTURES / "clean" / "logs"
PARTITIONS = sorted(path for path in KAFKA.iterdir() if path.is_dir())
LOG = [batch(0, [b"a", b"b"]), batch(2, [b"c"]), batch(3, [b"d", b"e"], 1), batch(5, [b"f"], 1)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


# ---- what agrees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("by_record", [False, True])
def test_a_log_of_kafkas_agrees_with_itself_and_is_left_as_it_is(partition: Path, by_record: bool) -> None:
    before = files(partition)
    found = compared(partition, partition, by_record=by_record)
    assert found.agrees
    assert found.agreed_offset == found.end_offset == found.left.log_end_offset
    assert found.compared_records == 0
    assert files(partition) == before


def test_segments_may_begin_elsewhere(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG)
    right = replica(tmp_path / "r" / "t-0", LOG[:1], LOG[1:3], LOG[3:])
    found = compared(left, right)
    assert found.agrees
    assert (found.first_offset, found.end_offset, found.agreed_offset, found.agreed_epoch) == (0, 6, 6, 1)
    assert found.compared_bytes == sum(map(len, LOG))


def test_only_the_offsets_that_both_have_are_compared(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG[1:], base=2)
    right = replica(tmp_path / "r" / "t-0", LOG[:3])
    found = compared(left, right)
    assert found.agrees
    assert (found.first_offset, found.end_offset) == (2, 5)
    assert (found.left.log_start_offset, found.left.log_end_offset) == (2, 6)
    assert (found.right.log_start_offset, found.right.log_end_offset) == (0, 5)


def test_logs_without_a_common_offset(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG[:1])
    right = replica(tmp_path / "r" / "t-0", LOG[2:], base=3)
    found = compared(left, right)
    assert found.agrees
    assert (found.first_offset, found.end_offset, found.agreed_epoch) == (3, 3, -1)


def test_a_log_start_within_a_batch(tmp_path: Path) -> None:
    for side in ("l", "r"):
        with kreplica.Log.open(tmp_path / side / "t-0") as log:
            log.append([kreplica.Record(value=b"%d" % n, timestamp=n) for n in range(5)])
            log.append([kreplica.Record(value=b"more", timestamp=9)])
            if side == "l":
                log.delete_records(3)
    found = compared(tmp_path / "l" / "t-0", tmp_path / "r" / "t-0")
    assert found.agrees
    assert (found.first_offset, found.end_offset) == (3, 6)


# ---- what does not ----------------------------------------------------------------------------------------


def test_what_each_side_has_at_the_divergence(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG)
    right = replica(tmp_path / "r" / "t-0", LOG[:2], [batch(3, [b"other"], 2), batch(4, [b"x"], 2)])
    found = compared(left, right)
    assert not found.agrees
    assert (found.agreed_offset, found.agreed_epoch) == (3, 0)
    divergence = found.divergence
    assert divergence is not None
    assert (divergence.kind, divergence.offset, divergence.leader_epoch) == ("batch", 3, 2)
    assert divergence.left is not None
    assert divergence.right is not None
    assert (divergence.left.base_offset, divergence.left.last_offset, divergence.left.leader_epoch) == (
        3,
        4,
        1,
    )
    assert divergence.left.position == len(LOG[0] + LOG[1])
    assert divergence.right.path.endswith("/00000000000000000003.log")
    assert (divergence.right.position, divergence.right.records, divergence.right.size) == (
        *(0, 1, len(batch(3, [b"other"], 2))),
    )


def test_a_leader_epoch_lies_outside_of_the_checksum(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG)
    right = replica(tmp_path / "r" / "t-0", [*LOG[:3], batch(5, [b"f"], 2)])
    found = compared(left, right)
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.offset) == ("leader_epoch", 5)


@given(st.data())
def test_the_offset_of_the_divergence_is_exact(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6)
    codecs = st.sampled_from(["none", "none", "gzip", "snappy", "lz4", "zstd"])
    common, offset = [], 0
    for size in data.draw(st.lists(st.integers(1, 4), max_size=6)):
        common.append(batch(offset, [b"c%d" % offset] * size, codec=data.draw(codecs)))
        offset += size
    sides = []
    for mark in (b"left", b"right"):
        end, own = offset, []
        for size in data.draw(sizes):
            own.append(batch(end, [mark] * size, 1, data.draw(codecs)))
            end += size
        log = common + own
        cuts = sorted(data.draw(st.sets(st.integers(1, len(log) - 1), max_size=2))) if len(log) > 1 else []
        sides.append([log[a:b] for a, b in zip([0, *cuts], [*cuts, len(log)], strict=True)])
    with tempfile.TemporaryDirectory() as directory:
        paths = [replica(Path(directory) / str(n) / "t-0", *segments) for n, segments in enumerate(sides)]
        for by_record in (False, True):
            found = compared(*paths, by_record=by_record)
            assert found.divergence is not None
            assert found.divergence.offset == found.agreed_offset == offset
            assert found.compared_bytes == sum(map(len, common))
            assert found.lost == ()


# ---- leader epochs ----------------------------------------------------------------------------------------


def test_histories_of_epochs(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG, epochs=[(0, 0), (1, 3)])
    same = replica(tmp_path / "s" / "t-0", LOG[:3], epochs=[(0, 0), (1, 3)])
    right = replica(
        tmp_path / "r" / "t-0",
        [*LOG[:1], batch(2, [b"x"], 2), batch(3, [b"y"], 2)],
        epochs=[(0, 0), (2, 2)],
    )
    found = compared(left, same)
    assert found.agrees
    assert found.epochs.agreed == EpochEntry(1, 5)
    found = compared(left, right)
    assert found.epochs.differs
    assert found.epochs.agreed == EpochEntry(0, 2)
    assert (found.epochs.left, found.epochs.right) == (EpochEntry(1, 3), EpochEntry(2, 2))
    assert found.agreed_offset == 2


# ---- rot --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [8, 11, 16, 17, 30, 61, 70], ids="byte {}".format)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rot_on_one_side_is_no_divergence(tmp_path: Path, at: int, side: str) -> None:
    sound = replica(tmp_path / "s" / "t-0", LOG)
    rotten = replica(tmp_path / "r" / "t-0", [LOG[0], flipped(LOG[1], at), *LOG[2:]])
    found = compared(rotten, sound) if side == "left" else compared(sound, rotten)
    assert found.divergence is None
    assert not found.agrees
    (lost,) = found.lost
    assert (lost.side, lost.first_offset, lost.next_offset) == (side, 2, 3)
    assert (lost.position, lost.end_position) == (len(LOG[0]), len(LOG[0] + LOG[1]))
    assert found.agreed_offset == 6
    assert found.compared_bytes == sum(map(len, LOG)) - len(LOG[1])


@pytest.mark.parametrize("mask", [1, 4, 128])
def test_a_rotted_offset_is_found_by_its_neighbours(tmp_path: Path, mask: int) -> None:
    sound = replica(tmp_path / "s" / "t-0", LOG)
    rotten = replica(tmp_path / "r" / "t-0", [LOG[0], flipped(LOG[1], 7, mask), *LOG[2:]])
    found = compared(sound, rotten)
    assert found.divergence is None
    assert [(lost.first_offset, lost.next_offset) for lost in found.lost] == [(2, 3)]


def test_a_rotted_leader_epoch_is_found_by_the_epoch_history(tmp_path: Path) -> None:
    epochs = [(0, 0), (1, 3)]
    sound = replica(tmp_path / "s" / "t-0", LOG, epochs=epochs)
    rotten = replica(tmp_path / "r" / "t-0", [LOG[0], flipped(LOG[1], 15), *LOG[2:]], epochs=epochs)
    found = compared(rotten, sound)
    assert found.divergence is None
    assert [(lost.side, lost.first_offset, lost.next_offset) for lost in found.lost] == [("left", 2, 3)]


def test_a_divergence_behind_rot(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", [flipped(LOG[0], 70), *LOG[1:]])
    right = replica(tmp_path / "r" / "t-0", [*LOG[:2], batch(3, [b"x"], 2)])
    for by_record in (False, True):
        found = compared(left, right, by_record=by_record)
        assert [lost.first_offset for lost in found.lost] == [0]
        assert found.divergence is not None
        assert found.divergence.offset == 3


def closed_log(directory: Path) -> Path:
    """Six batches, the same in every log."""
    with kreplica.Log.open(directory) as log:
        for number in range(6):
            log.append([kreplica.Record(value=b"%d" % number * 50, timestamp=number)])
    return directory


def test_a_log_that_recovery_found_damaged(tmp_path: Path) -> None:
    for side in ("l", "r"):
        closed_log(tmp_path / side / "t-0")
    path = tmp_path / "l" / "t-0" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2))
    for by_record in (False, True):
        found = compared(tmp_path / "l" / "t-0", tmp_path / "r" / "t-0", by_record=by_record)
        assert found.divergence is None
        assert [(lost.first_offset, lost.next_offset) for lost in found.lost] == [(3, 4)]
        assert (found.end_offset, found.left.log_end_offset) == (6, 6)


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("size", [0.05, 0.5, 0.9])
def test_a_file_that_is_cut_short(tmp_path: Path, segment: int, size: float) -> None:
    for side in ("l", "r"):
        with kreplica.Log.open(tmp_path / side / "t-0", segment_bytes=50_000) as log:
            for number in range(25):
                log.append([kreplica.Record(value=b"%d" % (number % 10) * 5000, timestamp=number)])
    path = sorted((tmp_path / "l" / "t-0").glob("*.log"))[segment]
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * size)])
    for by_record in (False, True):
        found = compared(tmp_path / "l" / "t-0", tmp_path / "r" / "t-0", by_record=by_record)
        assert found.divergence is None
        # Its writer said where it ends, so what is missing is known.
        batch_size = len(data) // (9 if segment < 2 else 7)
        first = segment * 9 + int(len(data) * size) // batch_size
        assert [(lost.first_offset, lost.next_offset) for lost in found.lost] == [
            (first, min(25, segment * 9 + 9))
        ]


@pytest.mark.parametrize("name", ["epochs-0", "segments-0", "codec-zstd-0"])
def test_the_rotted_end_of_a_log_that_kafka_closed(tmp_path: Path, name: str) -> None:
    for path in KAFKA.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    rotten = tmp_path / name
    rotten.mkdir()
    for path in (KAFKA / name).iterdir():
        (rotten / path.name).write_bytes(path.read_bytes())
    last = max(rotten.glob("*.log"))
    last.write_bytes(flipped(last.read_bytes(), -1))
    found = compared(KAFKA / name, rotten)
    assert found.divergence is None
    assert [(lost.side, lost.next_offset) for lost in found.lost] == [("right", None)]
    assert found.end_offset == found.lost[0].first_offset < found.left.log_end_offset


def test_the_torn_end_of_an_unclosed_log_is_its_end(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG)
    right = replica(tmp_path / "r" / "t-0", [*LOG[:3], LOG[3][:-2]])
    found = compared(left, right)
    assert found.agrees
    assert found.end_offset == found.right.log_end_offset == 5


@pytest.mark.parametrize("by_record", [False, True])
def test_what_lies_in_quarantine_is_lost_and_no_divergence(tmp_path: Path, by_record: bool) -> None:
    sound, mended = (closed_log(tmp_path / side / "t-0") for side in ("l", "r"))
    path = mended / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2 + 70))
    list(repair(FileStorage(), ManualClock(), str(mended), apply_changes=True))
    for pair in ((sound, mended), (mended, sound)):
        found = compared(*pair, by_record=by_record)
        assert found.divergence is None
        (lost,) = found.lost
        assert (lost.first_offset, lost.next_offset) == (3, 4)
        assert lost.side == ("right" if pair[1] == mended else "left")
        assert "quarantine" in lost.reason
        assert found.agreed_offset == 6
    assert compared(mended, mended, by_record=by_record).agrees


# ---- compaction -------------------------------------------------------------------------------------------


def test_batches_that_differ_with_records_that_agree(tmp_path: Path) -> None:
    last = batch(4, [b"e"])
    left = replica(tmp_path / "l" / "t-0", [batch(0, [b"a", b"b", b"c"]), batch(3, [b"d"]), last])
    right = replica(tmp_path / "r" / "t-0", [batch(0, [b"a"]), batch(1, [b"b", b"c", b"d"]), last])
    by_batch = compared(left, right)
    assert by_batch.divergence is not None
    assert by_batch.divergence.offset == 0
    found = compared(left, right, by_record=True)
    assert found.agrees
    assert (found.compared_records, found.only_left, found.only_right) == (4, 0, 0)
    assert found.compared_bytes == len(last)
    assert (found.agreed_offset, found.agreed_epoch) == (5, 0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_compaction_took_on_one_side_only(tmp_path: Path, codec: str) -> None:
    values = [b"%d" % number for number in range(10)]
    left = replica(tmp_path / "l" / "t-0", [batch(n, [values[n]]) for n in range(10)])
    right = replica(tmp_path / "r" / "t-0", [batch(n, [values[n]], codec=codec) for n in (0, 3, 4, 8, 9)])
    by_batch = compared(left, right)
    assert by_batch.divergence is not None
    assert (by_batch.divergence.kind, by_batch.divergence.offset) == (
        ("batch", 0) if codec == "zstd" else ("missing", 1)
    )
    found = compared(left, right, by_record=True)
    assert found.agrees
    assert (found.only_left, found.first_only_left) == (5, 1)
    assert (found.only_right, found.first_only_right) == (0, None)
    assert found.agreed_offset == 10


def test_the_record_that_differs(tmp_path: Path) -> None:
    left = replica(tmp_path / "l" / "t-0", LOG)
    right = replica(tmp_path / "r" / "t-0", [*LOG[:2], batch(3, [b"d", b"E"], 1), LOG[3]])
    found = compared(left, right, by_record=True)
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.offset) == ("record", 4)
    assert found.agreed_offset == 4
    assert found.divergence.left is not None
    assert found.divergence.left.base_offset == 3


def test_rot_within_batches_that_differ(tmp_path: Path) -> None:
    left = replica(
        tmp_path / "l" / "t-0", [batch(0, [b"a"]), flipped(batch(1, [b"b"]), 70), batch(2, [b"c"])]
    )
    right = replica(tmp_path / "r" / "t-0", [batch(0, [b"a", b"b", b"c"])])
    found = compared(left, right, by_record=True)
    assert found.divergence is None
    assert [(lost.first_offset, lost.next_offset) for lost in found.lost] == [(1, 2)]
    assert (found.compared_records, found.only_right) == (2, 0)


# ---- beside a writer --------------------------------------------------------------------------------------


def test_beside_live_writers(tmp_path: Path) -> None:
    directories = [tmp_path / side / "t-0" for side in ("l", "r")]
    with kreplica.Log.open(directories[0]) as left, kreplica.Log.open(directories[1]) as right:
        for number in range(20):
            for log in (left, right):
                log.append([kreplica.Record(value=b"%d" % number, timestamp=number)])
        left.append([b"more"])
        found = compared(*directories)
        assert found.agrees
        assert (found.end_offset, found.left.log_end_offset) == (20, 21)
        right.append([b"other"])
        diverged = compared(*directories).divergence
        assert diverged is not None
        assert diverged.offset == 20


def test_a_cut_meanwhile_begins_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / side / "t-0" for side in ("l", "r")]
    with kreplica.Log.open(directories[0]) as left, kreplica.Log.open(directories[1]) as right:
        for log in (left, right):
            log.append([kreplica.Record(value=b"same", timestamp=1)])
        right.append([kreplica.Record(value=b"before the cut", timestamp=1)])
        left.append([kreplica.Record(value=b"after the cut", timestamp=1)])
        walk, walks = comparison_module._Comparison.run, []

        def run(self: comparison_module._Comparison) -> comparison_module.Comparison:
            found = walk(self)
            if not walks:
                right.truncate_to(1)
                right.append([kreplica.Record(value=b"after the cut", timestamp=1)])
            walks.append(found)
            return found

        monkeypatch.setattr(comparison_module._Comparison, "run", run)
        assert compared(*directories).agrees
    assert [found.agrees for found in walks] == [False, True]


def test_a_directory_without_a_log(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with pytest.raises(InvalidFile):
        compared(tmp_path / "t-0", KAFKA / "segments-0")


# ---- what readers with an isolation level see -------------------------------------------------------------


def write(directory: Path, *steps: bytes | bool) -> Path:
    """Make a log of records outside of transactions, of a producer's open transaction (those that begin with
    "txn"), and of its ends (True commits).
    """
    with kreplica.Log.open(directory) as log:
        sequence = 0
        for step in steps:
            if isinstance(step, bool):
                marker = build_end_transaction_marker(
                    EndTransactionMarker(step, 0), producer_id=7, producer_epoch=0, timestamp_ms=NOW_MS
                )
                log._log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
            elif step.startswith(b"txn"):
                fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
                log.append_batch(build([step], now_ms=NOW_MS, transactional=True, **fields))
                sequence += 1
            else:
                log.append_batch(build([step], now_ms=NOW_MS))
    return directory


def test_readers_of_committed_records_see_no_difference_behind_an_open_transaction(tmp_path: Path) -> None:
    left = write(tmp_path / "l" / "t-0", b"a", b"txn", b"b")
    right = write(tmp_path / "r" / "t-0", b"a", b"txn", b"c", b"d")
    found = compared(left, right)
    assert (found.outcome, found.agreed_offset) == ("differ", 2)
    found = compared(left, right, isolation="txn_committed")
    assert (found.outcome, found.first_offset, found.agreed_offset, found.end_offset) == ("agree", 0, 1, 1)
    nothing = write(tmp_path / "n" / "t-0", b"txn")
    assert compared(left, nothing, isolation="txn_committed").outcome == "nothing in common"


@pytest.mark.parametrize("commit", [False, True])
def test_readers_of_committed_records_do_not_see_what_was_aborted(tmp_path: Path, commit: bool) -> None:
    left = write(tmp_path / "l" / "t-0", b"a", b"txn 1", b"txn 2", commit, b"b")
    right = write(tmp_path / "r" / "t-0", b"a", b"txn 1", b"txn 3", commit, b"b")
    for options in ({"by_record": True}, {"isolation": "txn_committed"}):
        assert compared(left, right, **options).agreed_offset == 2
    found = compared(left, right, by_record=True, isolation="txn_committed")
    assert (found.outcome, found.agreed_offset) == (("differ", 2) if commit else ("agree", 5))
    assert (found.only_left, found.only_right) == (0, 0)


def test_a_transaction_that_one_side_has_committed_is_a_difference(tmp_path: Path) -> None:
    left = write(tmp_path / "l" / "t-0", b"a", b"txn", False, b"b")
    right = write(tmp_path / "r" / "t-0", b"a", b"txn", True, b"b")
    found = compared(left, right, by_record=True, isolation="txn_committed")
    assert (found.outcome, found.agreed_offset) == ("differ", 2)
