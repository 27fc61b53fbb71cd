"""Flushes shared by many appends: each append ends, and truncated records never count as flushed."""

from threading import Thread

import pytest

from kreplica import Log
from kreplica.common.errors import NotLeaderOrFollower, ReadOnlyLog, StorageIOError
from kreplica.log.group_commit import GroupCommit

PATIENCE_SECONDS = 20


def test_a_flush_covers_what_was_asked_for():
    commit = GroupCommit(lambda: 7)
    assert commit.wait(7)


def test_a_log_that_was_cut_meanwhile_ends_the_wait():
    ends = [3]
    commit = GroupCommit(lambda: ends[0])
    assert not commit.wait(7)
    assert commit.wait(3)


def test_a_cut_during_a_flush_lowers_what_it_counts_for():
    def flush():
        commit.truncated(4)
        return 10

    commit = GroupCommit(flush)
    assert not commit.wait(10)
    assert commit.wait(4)


def test_the_first_failure_is_everybodys():
    flushes = []

    def flush():
        flushes.append(1)
        raise StorageIOError("gone")

    commit = GroupCommit(flush)
    for _ in range(3):
        with pytest.raises(StorageIOError, match="gone"):
            commit.wait(1)
    assert len(flushes) == 1


def test_an_exception_that_is_not_the_disks_ends_the_turn_and_nothing_else():
    ends = iter((KeyboardInterrupt, TimeoutError, 7))

    def flush():
        end = next(ends)
        if isinstance(end, int):
            return end
        raise end

    commit = GroupCommit(flush)
    for kind in (KeyboardInterrupt, TimeoutError):
        with pytest.raises(kind):
            commit.wait(7)
    assert commit.wait(7)


@pytest.mark.parametrize("settings", [{"segment_bytes": 4000}, {"compression_type": "lz4"}])
def test_many_threads_append_with_fsync_over_rolls_and_codecs(tmp_path, settings):
    """The careful path of an append must not hold the log's lock while it waits for the disk."""
    log = Log.open(tmp_path / "t-0", durability="fsync", **settings)
    offsets = []

    def append():
        offsets.extend(log.append([b"v" * 300]).last_offset for _ in range(25))

    threads = [Thread(target=append, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(offsets) == list(range(100))
    assert log.flush_offset == 100
    log.close()


def test_an_append_that_is_cut_before_its_flush_says_so(tmp_path):
    log = Log.open(tmp_path / "t-0", durability="fsync")
    log.append([b"kept"])
    inner = log._log

    class Cutting:
        def __getattr__(self, name):
            return getattr(local, name)

        def flush(self, from_offset, along):
            inner.local = local
            log.truncate_to(1)
            local.flush(from_offset, along=along)

    local = inner.local
    inner.local = Cutting()
    with pytest.raises(NotLeaderOrFollower):
        log.append([b"cut"])
    assert [record.value for record in log.read()] == [b"kept"]
    log.close()


def test_a_reader_has_nothing_to_flush_and_stays_readable(tmp_path):
    with Log.open(tmp_path / "t-0") as log:
        log.append([b"v"])
        reader = Log.open(tmp_path / "t-0", read_only=True)
        with pytest.raises(ReadOnlyLog):
            reader.flush()
        assert [record.value for record in reader.read()] == [b"v"]
        reader.close()
