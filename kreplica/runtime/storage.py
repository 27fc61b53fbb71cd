"""Files of the machine, as the Storage port wants them.

Ownership: a FileStorage owns nothing but the directory locks that it handed out; a region that it opened
belongs to the caller. Thread rule: any thread may call any method.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kreplica._core.region import Region
from kreplica.common.errors import InvalidFile, LogDirLocked, exception_for_os

LOCK_FILE = ".lock"
TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """Turn an OSError into the exception of the tree, with the system's words."""
    try:
        yield
    except OSError as error:
        raise exception_for_os(error, what) from error


class FileLock:
    """A directory's lock file, held by this process; `release` lets it go and may be called twice."""

    def __init__(self, storage: FileStorage, key: tuple[int, int], descriptor: int) -> None:
        self._storage = storage
        self._key = key
        self._descriptor = descriptor

    def release(self) -> None:
        self._storage._release(self._key, self)


class FileStorage:
    """Implements `kreplica.common.ports.Storage` over the operating system's files.

    Every method raises KafkaStorageError, or the subclass that fits (StorageFull, OutOfDescriptors,
    StorageIOError), when the system refuses.
    """

    def __init__(self) -> None:
        # Guards _locks: the locks held by this object, by device and inode of the lock file.
        self._mutex = threading.Lock()
        self._locks: dict[tuple[int, int], FileLock] = {}

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """The file at `path` as a Region; `capacity` is the largest length it may grow to, in bytes."""
        return Region(path, capacity, writable=writable, create=create)

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """The whole file; InvalidFile if larger than `limit` bytes."""
        with _typed("reading"), open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise InvalidFile(f"{path}: {size} bytes, more than {limit}")
            data = bytearray()
            # The file may grow while it is read: never more than the limit and one byte is asked for.
            while part := file.read(min(limit + 1 - len(data), max(size, 1 << 16))):
                data += part
            if len(data) > limit:
                raise InvalidFile(f"{path}: more than {limit} bytes")
            return bytes(data)

    def write_file_atomically(self, path: str, data: bytes) -> None:
        """Write to path + '.tmp', flush it, rename it over `path`, and flush the directory."""
        temporary = path + TEMPORARY_SUFFIX
        with _typed("writing"):
            _write_all(temporary, data, flush=True)
            os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def write_file(self, path: str, data: bytes) -> None:
        """Create or replace the file; nothing is flushed."""
        with _typed("writing"):
            _write_all(path, data, flush=False)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file, which is created if missing; nothing is flushed."""
        with _typed("writing"):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                left = memoryview(data)
                while left:
                    written = os.pwrite(descriptor, left, position)
                    position += written
                    left = left[written:]
            finally:
                os.close(descriptor)

    def sync_file(self, path: str) -> None:
        """Flush the file's contents; its name needs `sync_directory`."""
        with _typed("flushing"):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        """The file's size in bytes."""
        with _typed("measuring"):
            return os.stat(path).st_size

    def list_directory(self, path: str) -> list[str]:
        """The names in the directory, sorted."""
        with _typed("listing"):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents; nothing happens if it is there."""
        with _typed("making"):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing a file that is there."""
        with _typed("renaming"):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if it is gone already."""
        with _typed("removing"):
            Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it; nothing happens if it is gone already."""
        with _typed("removing"):
            if os.path.lexists(path):
                shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory last."""
        with _typed("flushing"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock_directory(self, path: str) -> FileLock:
        """Take the directory for one writer (Kafka's file '.lock'); raises LogDirLocked if it is taken."""
        name = os.path.join(path, LOCK_FILE)
        with _typed("locking"):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            return self._lock(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _lock(self, path: str, descriptor: int) -> FileLock:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        with self._mutex:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogDirLocked(f"{path}: another writer has the directory") from None
            lock = self._locks[key] = FileLock(self, key, descriptor)
            return lock

    def _release(self, key: tuple[int, int], lock: FileLock) -> None:
        with self._mutex:
            if self._locks.get(key) is lock:
                del self._locks[key]
                os.close(lock._descriptor)

    def boot_id(self) -> str:
        """What changes when the machine is started anew."""
        if sys.platform == "darwin":
            with _typed("asking for the boot time"):
                done = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True)
            return done.stdout.strip()
        return self.read_file("/proc/sys/kernel/random/boot_id", limit=256).decode("ascii").strip()


def _write_all(path: str, data: bytes, *, flush: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
