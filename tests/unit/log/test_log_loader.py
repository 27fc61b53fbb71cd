"""Opening a log after its writer died: what the files said too early does not come back later."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import kreplica
from kreplica.common.types import AppendOrigin
from kreplica.log.log_loader import OpenOptions
from kreplica.log.producer_state_manager import snapshot_name
from kreplica.log.verify import verify
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.runtime.storage import FileStorage
from tests.support.batches import build
from tests.support.logs import open_log


def killed(log: kreplica.Log, name: str) -> Path:
    """A copy of the directory, as it is left when the process dies now."""
    return shutil.copytree(log.path, Path(log.path).parent / name)


def test_an_epoch_whose_first_batch_was_never_written(tmp_path: Path) -> None:
    """Epoch 1 is in the checkpoint, its writer dies, and epoch 0 goes on over the offset where it began."""
    with kreplica.Log.open(tmp_path / "first-0") as log:
        log.append([b"a"], leader_epoch=0)
        log.roll()
        log.flush()  # so that only what follows is read when it is opened again
        log.append([b"b"])
        after_kill = killed(log, "second-0")
    (after_kill / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 2\n")
    with kreplica.Log.open(after_kill) as log:
        log.append([b"c"])
        log.append([b"d"])
        after_kill = killed(log, "third-0")
    assert list(verify(FileStorage(), str(after_kill))) == []
    with kreplica.Log.open(after_kill) as log:
        assert log.damage is None
        assert [record.value for record in log.read()] == [b"a", b"b", b"c", b"d"]


def test_an_epoch_that_was_truncated(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "first-0") as log:
        log.append([b"a", b"b"], leader_epoch=0)
        log.append([b"c"], leader_epoch=1)
        log.truncate_to(2)
        log.append([b"d"], leader_epoch=0)
        log.append([b"e"], leader_epoch=0)
        after_kill = killed(log, "second-0")
    assert list(verify(FileStorage(), str(after_kill))) == []
    with kreplica.Log.open(after_kill) as log:
        assert [record.value for record in log.read()] == [b"a", b"b", b"d", b"e"]


def test_a_flush_point_whose_batches_on_both_sides_were_compacted(tmp_path: Path) -> None:
    settings = {"cleanup_policy": "compact", "retention_ms": -1}
    with kreplica.Log.open(tmp_path / "first-0", **settings) as log:
        log.append([(b"key", b"1")])
        log.flush()
        log.append([(b"key", b"2")])
        log.append([(b"key", b"3"), (b"key", b"4")])
        log.compact()
        log.append([(b"other", b"5")])
        after_kill = killed(log, "second-0")
    with kreplica.Log.open(after_kill, **settings) as log:
        assert log.damage is None
        assert [(record.offset, record.value) for record in log.read()] == [(3, b"4"), (4, b"5")]
        log.append([(b"other", b"6")])


INTERVAL_BYTES = 100


def closed_log(path: Path) -> Path:
    """A log of three batches that was closed in order; each of its three indexes has an entry."""
    with kreplica.Log.open(path, index_interval_bytes=INTERVAL_BYTES) as log:
        log.append([bytes(200)])
        log._log.append_as_leader(
            build([b"aborted"], transactional=True, producer_id=7, producer_epoch=0, base_sequence=0), 0
        )
        marker = EndTransactionMarker(commit=False, coordinator_epoch=0)
        log._log.append_as_leader(
            build_end_transaction_marker(marker, producer_id=7, producer_epoch=0, timestamp_ms=1),
            0,
            origin=AppendOrigin.COORDINATOR,
        )
    return path


# What a power cut may leave of an append: only that an index has grown. The log ends at offset 3.
GROWN = [
    ("index", bytes(8)),
    ("index", bytes(803)),
    ("index", struct.pack(">ii", 9, 4000)),
    ("timeindex", bytes(12)),
    ("timeindex", bytes(5)),
    ("timeindex", struct.pack(">qi", 1 << 41, 3)),
    ("txnindex", bytes(34)),
    ("txnindex", bytes(20)),
    ("txnindex", struct.pack(">hqqqq", 0, 7, 3, 4, 3)),
]


@pytest.mark.parametrize(
    ("suffix", "grown"), GROWN, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_an_index_that_has_grown_beyond_its_log_is_made_anew(
    tmp_path: Path, suffix: str, grown: bytes, is_clean: bool
) -> None:
    path = closed_log(tmp_path / "t-0")
    index = path / f"{0:020d}.{suffix}"
    before = index.read_bytes()
    assert before
    index.write_bytes(before + grown)
    if not is_clean:
        (path / "kreplica.state.deleted").unlink()
    with kreplica.Log.open(path, index_interval_bytes=INTERVAL_BYTES) as log:
        assert not log.recovery.clean
        assert log.log_end_offset == 3
        assert [record.offset for record in log.read(isolation="txn_committed")] == [0]
    assert index.read_bytes() == before
    assert list(verify(FileStorage(), str(path))) == []


@pytest.mark.parametrize("size", [12, 24, 65_536])
def test_an_index_of_zeros_beside_a_closed_segment_is_made_anew(tmp_path: Path, size: int) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
        log.roll()
        log.flush()
        log.append([b"b"])
        after_kill = killed(log, "killed-0")
    index = after_kill / f"{0:020d}.timeindex"
    before = index.read_bytes()
    index.write_bytes(bytes(size))
    with kreplica.Log.open(after_kill) as log:
        assert log.recovery.rebuilt_indexes
    assert index.read_bytes() == before


def test_a_log_whose_timestamps_are_zero_is_clean_and_whole(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for _ in range(2):
            log._log.append_as_leader(build([b"a"], now_ms=0), 0)
            log.roll()
        log._log.append_as_leader(build([b"a"], now_ms=0), 0)
    assert list(verify(FileStorage(), str(tmp_path / "t-0"))) == []
    with kreplica.Log.open(tmp_path / "t-0") as log:
        assert log.recovery.clean


def test_what_a_power_cut_takes_below_the_log_start_is_no_damage(tmp_path: Path) -> None:
    """The first segment was never flushed: its only record was deleted before."""
    with kreplica.Log.open(tmp_path / "first-0") as log:
        log.append([b"deleted"])
        log.delete_records(1)
        log.roll()
        after_cut = killed(log, "second-0")
    for path in after_cut.glob(f"{0:020d}.*"):
        path.write_bytes(b"")
    with kreplica.Log.open(after_cut) as log:
        assert log.damage is None
        assert log.log_start_offset == log.log_end_offset == 1
        log.append([b"after"])
    assert list(verify(FileStorage(), str(after_cut))) == []


def test_what_was_cut_and_came_back_behind_a_closed_segment_is_cut_again(tmp_path: Path) -> None:
    """The cut did not reach the disk, the name of the segment that was begun at its offset did."""
    with kreplica.Log.open(tmp_path / "first-0", durability="fsync") as log:
        log.append([b"stays"])
        log.append([b"is cut"])
        whole = (Path(log.path) / f"{0:020d}.log").read_bytes()
        log.truncate_to(1)
        log.roll()
        after_cut = killed(log, "second-0")
    (after_cut / f"{0:020d}.log").write_bytes(whole)
    with kreplica.Log.open(after_cut) as log:
        assert [record.value for record in log.read()] == [b"stays"]
        assert [cut.position for cut in log.recovery.cut] == [whole.index(b"stays") + 6]
        log.append([b"after"])
        assert [record.value for record in log.read()] == [b"stays", b"after"]
    assert list(verify(FileStorage(), str(after_cut))) == []


def test_snapshots_of_earlier_closes_are_removed(tmp_path: Path) -> None:
    for opening in range(5):
        with kreplica.Log.open(tmp_path / "t-0") as log:
            log.append([b"v%d" % opening])
    with kreplica.Log.open(tmp_path / "t-0") as log:
        assert [path.name for path in tmp_path.glob("t-0/*.snapshot")] == [snapshot_name(5)]
        assert [record.value for record in log.read()] == [b"v%d" % offset for offset in range(5)]


def test_a_log_opened_without_options_counts_nothing_as_committed_that_its_checkpoint_does_not(
    tmp_path: Path,
) -> None:
    """Its owner replicates it: other replicas may lack what is in this log."""
    log = open_log(tmp_path / "t-0", options=OpenOptions())
    log.append_as_leader(build([b"a", b"b"]), 0)
    assert (log.log_end_offset, log.high_watermark) == (2, 0)
    log.maybe_increment_high_watermark(1)
    log.append_as_leader(build([b"c"]), 0)
    log.close()
    again = open_log(tmp_path / "t-0", options=OpenOptions())
    assert (again.log_end_offset, again.high_watermark) == (3, 1)
    again.close()


def test_a_log_that_is_the_only_replica_commits_what_it_appends(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a", b"b"])
        assert log.high_watermark == 2
    log = open_log(tmp_path / "t-0", options=OpenOptions(is_only_replica=True))
    log.append_as_leader(build([b"c"]), 0)
    assert (log.log_end_offset, log.high_watermark) == (3, 3)
    log.close()
