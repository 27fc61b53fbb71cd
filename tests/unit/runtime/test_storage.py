"""The file storage: what lasts, what is refused and how, and the lock on a directory."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kreplica import Cluster
from kreplica.common import errors
from kreplica.common.ports import Storage
from kreplica.runtime.lmdb_store import LmdbMetadataStore
from kreplica.runtime.storage import FileStorage, UnflushedStorage
from tests.support.regions import run


@pytest.fixture
def storage() -> Storage:
    return FileStorage()


def test_region(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with storage.open_region(path, 1 << 20, writable=True, create=True) as region:
        region.write(0, b"abc")
        region.publish(3)
    assert storage.read_file(path) == b"abc"
    with storage.open_region(path, 1 << 20, writable=False) as region:
        assert region.read(0, 3) == b"abc"
    with pytest.raises(errors.StorageIOError, match="No such file"):
        storage.open_region(str(tmp_path / "missing"), 1, writable=True)


def test_files(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    assert not storage.exists(path)
    storage.write_file(path, b"a longer one")
    storage.write_file(path, b"short")
    assert (storage.exists(path), storage.size(path), storage.read_file(path)) == (True, 5, b"short")
    storage.rename(path, path + "2")
    assert storage.list_directory(str(tmp_path)) == ["file2"]
    storage.remove(path)
    storage.remove(path + "2")
    assert storage.list_directory(str(tmp_path)) == []


def test_free_and_total_bytes(storage: Storage, tmp_path: Path) -> None:
    assert storage.total_bytes(str(tmp_path)) >= storage.free_bytes(str(tmp_path)) > 0
    for ask in (storage.free_bytes, storage.total_bytes):
        with pytest.raises(errors.KafkaStorageError):
            ask(str(tmp_path / "absent"))


def test_write_at(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    storage.write_at(path, 0, b"abcdef")
    storage.write_at(path, 6, b"gh")
    storage.write_at(path, 2, b"X")
    storage.sync_file(path)
    assert storage.read_file(path) == b"abXdefgh"


def test_a_write_that_fails_halfway_leaves_the_file_no_longer(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    storage.write_at(path, 0, b"abcdef")
    write = os.pwrite

    def half(descriptor: int, data: memoryview, position: int) -> int:
        if len(data) == 1:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data[: len(data) // 2], position)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(errors.StorageFull):
        storage.write_at(path, 6, b"ghijklmn")
    assert storage.read_file(path) == b"abcdef"


def test_a_file_that_cannot_be_looked_at_is_not_missing(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    assert storage.exists(str(path))
    assert not storage.exists(str(path / "below"))
    assert not storage.is_directory(str(tmp_path / "absent"))

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EIO, "the disk says no")

    with monkeypatch.context() as patches:
        patches.setattr(os, "stat", fail)
        with pytest.raises(errors.StorageIOError):
            storage.exists(str(path))
        with pytest.raises(errors.StorageIOError):
            storage.is_directory(str(tmp_path))


def test_directories(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b")
    storage.make_directory(path)
    storage.make_directory(path)
    storage.write_file(path + "/file", b"")
    storage.sync_directory(path)
    storage.remove_tree(str(tmp_path / "a"))
    storage.remove_tree(str(tmp_path / "a"))
    assert not storage.exists(path)


def test_write_file_atomically(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    for data in (b"first", b"", b"x" * 300_000):
        storage.write_file_atomically(path, data)
        assert storage.read_file(path) == data
        assert storage.list_directory(str(tmp_path)) == ["checkpoint"]


def test_write_file_atomically_flushes_before_and_after_the_rename(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace to see the system calls")
    done = run(
        """
        from kreplica.runtime.storage import FileStorage
        FileStorage().write_file_atomically(sys.argv[1], b"data")
        """,
        tmp_path / "checkpoint",
        prefix=(strace, "-f", "-qq", "-y", "-e", "trace=pwrite64,fsync,rename,renameat,renameat2"),
    )
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    calls = [line.split("(")[0].split()[-1] for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert calls == ["pwrite64", "fsync", "rename", "fsync"], done.stderr


def test_failed_atomic_write_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    done = run(
        """
        from kreplica.runtime.storage import FileStorage
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        try:
            FileStorage().write_file_atomically(sys.argv[1], b"more than ten bytes")
        except errors.StorageFull as error:
            print(error)
        """,
        path,
    )
    assert "writing: File too large" in done.stdout, done.stderr
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["checkpoint"])


def test_read_file_is_bounded(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 11)
    assert storage.read_file(str(path), limit=11) == b"x" * 11
    with pytest.raises(errors.InvalidFile):
        storage.read_file(str(path), limit=10)
    # These claim a size of 0 and have more.
    with pytest.raises(errors.InvalidFile):
        storage.read_file("/proc/self/status" if sys.platform == "linux" else str(path), limit=10)


def test_only_regular_files_are_read(storage: Storage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(errors.InvalidFile):
            storage.read_file(str(path))


def test_errors_are_typed(storage: Storage, tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "such")
    (tmp_path / "file").touch()
    for refused in (
        lambda: storage.read_file(missing),
        lambda: storage.write_file(missing, b""),
        lambda: storage.write_file_atomically(missing, b""),
        lambda: storage.write_at(missing, 0, b""),
        lambda: storage.sync_file(missing),
        lambda: storage.size(missing),
        lambda: storage.list_directory(missing),
        lambda: storage.rename(missing, missing),
        lambda: storage.sync_directory(missing),
        lambda: storage.lock_directory(missing),
        lambda: storage.make_directory(str(tmp_path / "file" / "below")),
        lambda: storage.remove(str(tmp_path)),
        lambda: storage.remove_tree(str(tmp_path / "file")),
    ):
        with pytest.raises(errors.StorageIOError):
            refused()


def test_checkpoints_are_written_with_no_descriptor_left(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The next descriptor takes the lowest free number. With that number as the limit, none can be opened.
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(path, os.O_CREAT)
        for data in (b"first", b"second"):
            storage.write_file_atomically(path, data)
            assert storage.read_file(path) == data
        with pytest.raises(errors.OutOfDescriptors):
            storage.lock_directory(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---- the lock ----------------------------------------------------------------------------------------


def test_lock_excludes_others_in_this_process(storage: Storage, tmp_path: Path) -> None:
    lock = storage.lock_directory(str(tmp_path))
    assert os.listdir(tmp_path) == [".lock"]
    for other in (storage, FileStorage()):
        with pytest.raises(errors.LogDirLocked):
            other.lock_directory(str(tmp_path))
    lock.release()
    second = storage.lock_directory(str(tmp_path))
    lock.release()
    with pytest.raises(errors.LogDirLocked):
        storage.lock_directory(str(tmp_path))
    second.release()


def test_a_shared_lock_excludes_only_the_one_writer(storage: Storage, tmp_path: Path) -> None:
    path = str(tmp_path)
    first, second = storage.lock_directory(path, shared=True), storage.lock_directory(path, shared=True)
    assert storage.is_locked(path)
    for one, still_shared in ((first, True), (second, False)):
        with pytest.raises(errors.LogDirLocked):
            storage.lock_directory(path)
        one.release()
        assert storage.is_locked(path) == still_shared
    alone = storage.lock_directory(path)
    with pytest.raises(errors.LogDirLocked):
        storage.lock_directory(path, shared=True)
    alone.release()


TAKE = """
    from kreplica.runtime.storage import FileStorage
    try:
        FileStorage().lock_directory(sys.argv[1])
        print("taken")
    except errors.LogDirLocked:
        print("refused")
    """


def test_lock_excludes_other_processes(storage: Storage, tmp_path: Path) -> None:
    lock = storage.lock_directory(str(tmp_path))
    assert run(TAKE, tmp_path).stdout == "refused\n"
    lock.release()
    assert run(TAKE, tmp_path).stdout == "taken\n"


def test_lock_and_kafkas_exclude_each_other(storage: Storage, tmp_path: Path) -> None:
    """Java's FileChannel.tryLock takes a POSIX lock, which Python calls lockf."""
    script = """
        import fcntl
        file = open(sys.argv[1] + "/.lock", "w")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("taken", flush=True)
            sys.stdin.read()
        except OSError:
            print("refused")
        """
    lock = storage.lock_directory(str(tmp_path))
    assert run(script, tmp_path).stdout == "refused\n"
    lock.release()
    source = "import sys\n" + "\n".join(line[8:] for line in script.splitlines())
    with subprocess.Popen(
        [sys.executable, "-c", source, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(errors.LogDirLocked):
            storage.lock_directory(str(tmp_path))
        other.stdin.close()
    storage.lock_directory(str(tmp_path)).release()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_release_in_a_forked_child_leaves_the_parents_lock(storage: Storage, tmp_path: Path) -> None:
    lock = storage.lock_directory(str(tmp_path))
    child = os.fork()
    if not child:
        lock.release()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(errors.LogDirLocked):
        storage.lock_directory(str(tmp_path))
    lock.release()


def test_boot_id_stays(storage: Storage) -> None:
    assert len(storage.boot_id()) >= 8
    assert storage.boot_id() == storage.boot_id()


# What reaches the disk by names and maps, too.
FLUSHES = "trace=fsync,fdatasync,sync_file_range,msync,sync,syncfs"
CLUSTER = """
import sys
from kreplica import Cluster
with Cluster(brokers=3, directory=sys.argv[1] or None) as cluster:
    cluster.create_topic("orders", partitions=2)
    cluster.append("orders", [b"x"], partition=0, acks="all").result(timeout=60)
    cluster.kill(1)
    cluster.start(1)
    assert [record.value for record in cluster.read("orders", 0)] == [b"x"]
"""


def flushes(*arguments: str) -> int:
    """How many flushes a program makes in which a cluster lives in the directory that it is given."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace to see system calls")
    command = [strace, "-f", "-qq", "-e", FLUSHES, sys.executable, "-c", CLUSTER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return done.stderr.count("sync")


def test_a_temporary_cluster_flushes_nothing_to_the_disk() -> None:
    assert flushes("") == 0


def test_a_cluster_in_a_directory_of_its_own_flushes_its_metadata(tmp_path: Path) -> None:
    assert flushes(str(tmp_path)) > 0


def test_a_node_of_a_temporary_cluster_that_was_killed_finds_what_it_wrote() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic("orders", partitions=1)
        cluster.append("orders", [b"x", b"y"], partition=0).result(timeout=60)
        cluster.kill(1)
        cluster.start(1)
        assert [record.value for record in cluster.read("orders", 0)] == [b"x", b"y"]


def test_files_are_as_in_other_storages(tmp_path: Path) -> None:
    storage, path = UnflushedStorage(), str(tmp_path / "file")
    storage.write_file_atomically(path, b"one")
    storage.write_file_atomically(path, b"two")
    assert storage.read_file(path) == b"two"
    assert storage.list_directory(str(tmp_path)) == ["file"]
    region = storage.open_region(str(tmp_path / "region"), 1 << 20, writable=True, create=True)
    region.write(0, b"abc")
    region.publish(3)
    region.flush()
    region.close()
    assert storage.read_file(str(tmp_path / "region"))[:3] == b"abc"


def test_an_image_that_is_not_flushed_is_opened_again(tmp_path: Path) -> None:
    store = LmdbMetadataStore(str(tmp_path), is_flushed=False)
    store.write({b"key": b"value"})
    store.close()
    again = LmdbMetadataStore(str(tmp_path), is_flushed=False)
    assert again.get(b"key") == b"value"
    again.close()
