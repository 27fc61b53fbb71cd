"""What a scan makes of a segment's bytes, by what is known of the disk: a tail, or rot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import kreplica
from kreplica._core.log_state import LogStanding, read_standing
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile
from kreplica.log.checkpoint import LeaderEpochCheckpointFile
from kreplica.log.damage import NO_DAMAGE
from kreplica.log.file_names import STATE_FILE
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import Listing, LocalLog, LogSegments
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.recovery_scan import Recovery, RecoveryScan
from kreplica.runtime.storage import FileStorage

BATCHES = 6
FIRST = "0" * 20 + ".log"


@dataclass
class Scanned:
    scan: RecoveryScan
    recovery: Recovery
    local: LocalLog


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of six batches of one record each, in two segments, of epochs 0 and 1."""
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for number in range(BATCHES):
            if number == BATCHES // 2:
                log.roll()
            log.append([b"value %d" % number], leader_epoch=number * 2 // BATCHES)
    return tmp_path / "t-0"


def standing_of(directory: Path) -> LogStanding:
    found = read_standing((directory / STATE_FILE).read_bytes())
    assert found is not None
    return found


def opened(directory: Path, standing: LogStanding | None = None, *, read_only: bool = False) -> Scanned:
    """The scan, over the segments that are there; with a standing, of this life of the machine."""
    storage, path = FileStorage(), str(directory)
    names = storage.list_directory(path)
    local = LocalLog(path, LogConfig(), storage, read_only=read_only)
    listing = Listing(names)
    segments = [local.open_segment(base, names=listing) for base in local.base_offsets(listing)]
    local.segments = LogSegments(tuple(segments))
    recovery = Recovery()
    scan = RecoveryScan(
        local,
        recovery,
        epochs=LeaderEpochFileCache.load(LeaderEpochCheckpointFile(storage, path)),
        producers=ProducerStateManager(storage, path, names),
        standing=standing,
        same_boot=standing is not None,
        known=NO_DAMAGE,
        without_index=(),
    )
    return Scanned(scan, recovery, local)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_what_is_whole_is_read_to_its_end(directory: Path) -> None:
    at = opened(directory)
    assert at.scan.run(0, flushed=0) == (BATCHES, 1)
    assert at.scan.damage is None
    assert at.recovery.scanned_bytes == sum(segment.size for segment in at.local.segments)
    assert at.recovery.cut == []


def test_a_scan_may_begin_at_a_later_segment(directory: Path) -> None:
    at = opened(directory)
    assert at.scan.run(1, flushed=0) == (BATCHES, 1)
    assert at.recovery.scanned_bytes == at.local.segments.active.size


@pytest.mark.parametrize("flushed", [0, 3, 4, BATCHES], ids=lambda flushed: f"flushed to {flushed}")
def test_a_bad_batch_is_rot_below_the_flush_point_and_a_tail_above(directory: Path, flushed: int) -> None:
    second = directory / "00000000000000000003.log"
    before = second.read_bytes()
    flip(second, 70)
    at = opened(directory)
    assert at.scan.run(0, flushed) == (3, 0)
    if flushed > 3:
        assert at.scan.damage is not None
        assert (at.scan.damage.first_offset, at.scan.damage.next_offset) == (3, 4)
        assert at.recovery.cut == []
        assert len(second.read_bytes()) == len(before)
    else:
        assert at.scan.damage is None
        assert [(cut.path, cut.position) for cut in at.recovery.cut] == [(str(second), 0)]
        assert at.local.segments.active.size == 0


def test_in_the_same_life_of_the_machine_a_bad_batch_is_rot(directory: Path) -> None:
    standing = standing_of(directory)
    flip(directory / "00000000000000000003.log", 70)
    at = opened(directory, standing)
    at.scan.run(0, flushed=0)
    assert at.scan.damage is not None
    assert at.scan.damage.first_offset == 3


def test_a_readers_files_stay_as_they_are(directory: Path) -> None:
    flip(directory / "00000000000000000003.log", 70)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    at = opened(directory, read_only=True)
    assert at.scan.run(0, flushed=BATCHES) == (3, 0)
    assert at.scan.damage is not None
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_segment_of_another_log_is_refused(directory: Path) -> None:
    second = directory / "00000000000000000003.log"
    second.write_bytes((directory / FIRST).read_bytes())
    (directory / FIRST).unlink()
    at = opened(directory)
    with pytest.raises(InvalidFile, match="belongs to another segment"):
        at.scan.run(0, flushed=0)


def test_a_closed_segments_index_that_lies_is_made_anew(directory: Path) -> None:
    index = directory / f"{0:020d}.timeindex"
    before = index.read_bytes()
    index.write_bytes(bytes(12))
    at = opened(directory)
    at.scan.check_indexes(at.local.segments[0], 3)
    assert at.recovery.rebuilt_indexes == [str(directory / FIRST)]
    assert index.read_bytes() == before
    at.scan.check_indexes(at.local.segments[0], 3)
    assert len(at.recovery.rebuilt_indexes) == 1


def test_rot_in_a_closed_segment_is_known_and_ends_nothing(directory: Path) -> None:
    flip(directory / FIRST, 70)
    (directory / f"{0:020d}.timeindex").write_bytes(bytes(12))
    at = opened(directory)
    at.scan.check_indexes(at.local.segments[0], 3)
    assert at.scan.damage is None
    assert [(damage.first_offset, damage.next_offset) for damage in at.scan.known] == [(0, 1)]
