"""A roll that the disk refuses, in any of its steps, and files of such rolls in a log that is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplica
from kreplica._core.log_state import read_standing
from kreplica.common.errors import KafkaStorageError, OutOfDescriptors, StorageFull, StorageIOError
from kreplica.log.file_names import STATE_FILE
from kreplica.sim.storage import SimStorage
from tests.support.crashing import DIRECTORY, open_log

CHANGES = ("create", "write", "flush", "rename", "sync_directory")


def log_of(count: int, **options: object) -> tuple[SimStorage, kreplica.Log]:
    storage = SimStorage()
    log = open_log(storage, **options)
    for number in range(count):
        log.append([b"%d" % number])
    return storage, log


def values(log: kreplica.Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


class RefusesNth:
    """Refuses the change of that number, from 0; removals after it as well if `removals`."""

    def __init__(self, number: int, error: type[KafkaStorageError], *, removals: bool = False) -> None:
        self.left = number
        self.error = error
        self.removals = removals
        self.has_refused = False

    def __call__(self, operation: str, path: str) -> None:
        # A flush of a mapped file that is refused, whatever for, ends the log.
        counts = operation in CHANGES and (operation != "flush" or not path.endswith("index"))
        self.left -= counts
        if self.left == -1 and counts:
            self.has_refused = True
            raise self.error(f"{operation} {path}")
        if self.has_refused and self.removals and operation == "remove":
            raise StorageIOError(f"{operation} {path}")


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
@pytest.mark.parametrize("error", [StorageFull, OutOfDescriptors])
def test_a_roll_is_whole_or_leaves_no_trace(error, durability):
    for number in range(100):
        storage, log = log_of(5, durability=durability)
        names = storage.list_directory(DIRECTORY)
        storage.before = refusal = RefusesNth(number, error)
        try:
            log.roll()
        except error:
            storage.before = None
            assert storage.list_directory(DIRECTORY) == names
        if not refusal.has_refused:
            break
        for more in range(5, 11):
            log.append([b"%d" % more])
        killed = open_log(storage.after_kill())
        assert values(killed) == [b"%d" % each for each in range(11)]
        log.close()
        again = open_log(storage)
        assert (again.recovery.clean, again.damages, values(again)) == (True, [], values(killed))
        again.roll()
        again.append([b"11"])
        assert values(again)[-1] == b"11"
    assert number >= 4, "three files and a snapshot"


def test_a_roll_whose_flush_fails_takes_the_log_offline():
    storage, log = log_of(5, durability="fsync")

    def refuse(operation: str, path: str) -> None:
        if operation == "flush":
            raise StorageIOError(path)

    storage.before = refuse
    with pytest.raises(StorageIOError):
        log.roll()
    storage.before = None
    with pytest.raises(KafkaStorageError, match="offline"):
        log.append([b"x"])
    assert values(open_log(storage.after_power_cut())) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_roll_that_can_not_be_undone_takes_the_log_offline():
    storage, log = log_of(5)
    storage.before = RefusesNth(2, StorageFull, removals=True)
    with pytest.raises(StorageIOError):
        log.roll()
    storage.before = None
    with pytest.raises(KafkaStorageError, match="offline"):
        log.append([b"x"])
    log.close()
    again = open_log(storage)
    assert (values(again), again.damages) == ([b"0", b"1", b"2", b"3", b"4"], [])
    assert again.append([b"5"]).base_offset == 5


# ---- what such a roll once left ----------------------------------------------------------------------------


def name(path: Path, base: int, suffix: str) -> Path:
    return path / f"{base:020d}{suffix}"


def log_with_strays(path: Path, *, strays: list[int], rolls: list[int] = [], closed: bool) -> Path:  # noqa: B006
    """Eleven records; a roll failed at the offsets `strays`, and succeeded at `rolls`."""
    log = kreplica.Log.open(path, durability="fsync")
    for offset in range(11):
        if offset in rolls:
            log.roll()
        log.append([b"%d" % offset])
    if closed:
        log.close()
    else:
        log._log.abandon()
        assert log._lock is not None
        log._lock.release()
    for base in strays:
        for suffix in (".log", ".index", ".timeindex"):
            name(path, base, suffix).touch()
    return path


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize(
    ("strays", "rolls"), [([5], []), ([5, 8], []), ([5], [8]), ([3, 5, 9], [8]), ([5], [3])]
)
def test_empty_files_of_a_roll_that_failed_are_no_end_of_the_log(tmp_path, strays, rolls, states, closed):
    path = log_with_strays(tmp_path / "t-0", strays=strays, rolls=rolls, closed=closed)
    if not states:
        (path / "kreplica.state.deleted").unlink()
    expected = [b"%d" % offset for offset in range(11)]
    with kreplica.Log.open(path, read_only=True) as reader:
        assert values(reader) == expected
    with kreplica.Log.open(path) as log:
        assert (values(log), log.damages, log.recovery.cut) == (expected, [], [])
        assert log.append([b"11"]).base_offset == 11
    bases = [int(each.stem) for each in sorted(path.glob("*.log"))]
    assert bases == [0, *rolls]
    with kreplica.Log.open(path) as log:
        assert log.recovery.clean
        assert values(log) == [*expected, b"11"]


def test_the_files_of_a_segment_that_the_writer_never_began_are_kept_aside(tmp_path):
    other = log_with_strays(tmp_path / "other-0", strays=[], rolls=[5], closed=True)
    path = log_with_strays(tmp_path / "t-0", strays=[], closed=False)
    name(path, 5, ".log").write_bytes(name(other, 5, ".log").read_bytes())
    with kreplica.Log.open(path) as log:
        assert values(log) == [b"%d" % offset for offset in range(11)]
        assert log.damages == []
        [kept] = log.recovery.cut
        assert Path(kept.kept_in).read_bytes() == name(other, 5, ".log").read_bytes()


def test_a_segment_that_lost_its_bytes_is_no_stray(tmp_path):
    path = log_with_strays(tmp_path / "t-0", strays=[], rolls=[5, 8], closed=False)
    name(path, 8, ".log").write_bytes(b"")
    with kreplica.Log.open(path) as log:
        assert log.damage is not None
        assert log.damage.first_offset == 8


# ---- recovery on a disk that is full -----------------------------------------------------------------------


def test_recovery_without_room_for_an_index_takes_no_batch_for_damaged():
    storage = SimStorage()
    log = open_log(storage)
    for number in range(40):
        log.append([b"%d" % number + bytes(1_000)])
    expected = values(log)
    left = storage.after_kill()
    for base in [each.base_offset for each in log._log.local.segments]:
        for suffix in (".index", ".timeindex"):
            left.remove(f"{DIRECTORY}/{base:020d}{suffix}")
    left.full = True
    with pytest.raises(StorageFull):
        open_log(left)
    left.full = False
    left = left.after_kill()
    again = open_log(left)
    assert (values(again), again.damages, again.recovery.cut) == (expected, [], [])


def test_a_log_that_could_not_be_made_is_our_own_when_it_is():
    """Only in a log of another program may a segment begin behind the end of the one before."""
    storage = SimStorage()
    storage.make_directory("/data")

    def refuse(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(STATE_FILE):
            raise StorageFull(path)

    storage.before = refuse
    with pytest.raises(StorageFull):
        open_log(storage)
    storage.before = None
    left = storage.after_kill()
    open_log(left).close()
    found = read_standing(left.read_file(f"{DIRECTORY}/{STATE_FILE}"))
    assert found is not None
    assert not found.has_gaps
