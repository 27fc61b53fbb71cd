"""FileStorage: the machine's files, as the Storage port; and its variants for nodes that share a process.

Ownership: a storage owns nothing; its regions and locks belong to the caller. Thread rule: any thread may
call any method.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from io import FileIO
from pathlib import Path
from typing import Any
from weakref import WeakSet

from kreplica._core.region import Region
from kreplica.common.errors import (
    InvalidFile,
    KafkaStorageError,
    LogDirLocked,
    StorageFull,
    exception_for_os,
)
from kreplica.common.locks import process_lock
from kreplica.common.ports import Storage

LOCK_FILE = ".lock"
TEMPORARY_SUFFIX = ".tmp"


class FileStorage:
    """Implements `kreplica.common.ports.Storage` over the operating system's files.

    Every method raises KafkaStorageError, or a subclass (StorageFull, OutOfDescriptors, StorageIOError), if
    the operation fails.
    """

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """Open the file at `path` as a Region that may grow to `capacity` bytes."""
        return Region(path, capacity, writable=writable, create=create)

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """Return the file's contents.

        Raises InvalidFile if it is larger than `limit` bytes or not a regular file.
        """
        with _typed("reading"), _opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidFile(f"{path} is not a regular file")
            if status.st_size > limit:
                raise InvalidFile(f"{path}: {status.st_size} bytes exceed the limit of {limit}")
            data = bytearray()
            # The file may grow meanwhile: read at most the limit plus one byte.
            while part := os.read(descriptor, min(limit + 1 - len(data), max(status.st_size, 1 << 16))):
                data += part
            if len(data) > limit:
                raise InvalidFile(f"{path}: exceeds the limit of {limit} bytes")
            return bytes(data)

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        """Write to path + '.tmp', flush it, rename it to `path`, and flush the directory.

        `flush_name=False`: the caller flushes the directory. After an error `path` is unchanged, unless only
        the flush of the directory failed: then it is either the old or the new file.
        """
        self._replace(path, data, flush=True)
        if flush_name:
            self.sync_directory(os.path.dirname(path) or ".")

    def _replace(self, path: str, data: bytes, *, flush: bool) -> None:
        temporary = path + TEMPORARY_SUFFIX
        with _typed("writing"):
            try:
                _write(temporary, data, flush=flush)
                os.replace(temporary, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise

    def write_file(self, path: str, data: bytes) -> None:
        """Create or replace the file, without flushing it."""
        with _typed("writing"):
            _write(path, data, flush=False)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file without flushing; create the file if it is missing.

        After an error the file is not longer than before.
        """
        with _typed("writing"), _opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, position, data)
            except OSError:
                if os.fstat(descriptor).st_size > size:
                    os.ftruncate(descriptor, size)
                raise

    def sync_file(self, path: str) -> None:
        """Flush the file's contents; its name needs `sync_directory`."""
        with _typed("flushing"), _opened(path, os.O_RDWR) as descriptor:
            _flush(descriptor)

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this name exists."""
        return _status(path, follow=False) is not None

    def size(self, path: str) -> int:
        """Return the file's size in bytes."""
        with _typed("measuring"):
            return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        """Return the free bytes of the file system for this user; a quota may allow less."""
        with _typed("looking at"):
            found = os.statvfs(path)
            return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system."""
        with _typed("looking at"):
            found = os.statvfs(path)
            return found.f_blocks * found.f_frsize

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        with _typed("listing"):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents; do nothing if it exists."""
        with _typed("making"):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing an existing file."""
        with _typed("renaming"):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        with _typed("removing"):
            Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its contents; do nothing if it does not exist."""
        with _typed("removing"):
            if self.exists(path):
                import shutil  # imports every codec of archives

                shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        """Flush the names in the directory to disk."""
        with _typed("flushing"), _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)

    def lock_directory(self, path: str, *, shared: bool = False) -> FileLock:
        """Lock the directory for one writer (Kafka's file '.lock'). Raises LogDirLocked if it is locked.

        Excludes writers in this process, in others, and a Kafka broker. `shared`: hold the lock together with
        other shared holders.
        """
        with _typed("locking"):
            # A FileIO, not a bare descriptor: if an asynchronous exception strikes, it is closed all the
            # same, which unlocks the directory.
            file = FileIO(os.path.join(path, LOCK_FILE), "r+", opener=_open_or_make)
            try:
                _lock(file.fileno(), fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
            except OSError as error:
                holder = _holder(file.fileno())
                file.close()
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise LogDirLocked(f"{path} is locked by another writer, in {holder}") from None
                raise
            if not shared:
                _note_holder(file.fileno())
        return FileLock(file)

    def is_directory(self, path: str) -> bool:
        found = _status(path, follow=True)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_locked(self, path: str) -> bool:
        """Whether the directory is locked; does not take the lock (Linux only)."""
        name = os.path.join(path, LOCK_FILE)
        if sys.platform != "linux" or not self.exists(name):
            return False
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        with _typed("looking at the lock of"), _opened(name, os.O_RDWR) as descriptor:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
        return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)

    def process_id(self) -> int:
        return os.getpid()

    def boot_id(self) -> str:
        """Return an id that changes at each boot."""
        return _boot_id()


class FileLock:
    """A lock on a directory.

    `release` may be called twice; in a forked child it leaves the parent's lock in place.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._process = os.getpid()

    def release(self) -> None:
        if self._file.closed:
            return
        # Parent and child share the lock: closing the file keeps it for the other, unlocking would end it.
        if os.getpid() == self._process:
            with suppress(OSError):
                _lock(self._file.fileno(), fcntl.F_UNLCK)
        self._file.close()


def _open_or_make(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _note_holder(descriptor: int) -> None:
    """Write this process's id into a lock file, for other processes' error messages."""
    # Ignore a full or broken disk: only an error message depends on this.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _holder(descriptor: int) -> str:
    """Describe the process that holds a lock file. A shared holder, or Kafka, writes no id into it."""
    with suppress(OSError):
        noted = os.pread(descriptor, 20, 0).strip()
        if noted.isdigit() and int(noted) == os.getpid():
            return f"this process ({os.getpid()})"
        if noted.isdigit() and os.path.exists(f"/proc/{int(noted)}"):
            return f"process {int(noted)}"
    return "another process"


@functools.cache
def _boot_id() -> str:
    # Constant for the life of the process; each log that is opened asks for it.
    if sys.platform == "darwin":
        import subprocess

        with _typed("asking for the boot time"):
            asked = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False
            )
        return asked.stdout.strip()
    return FileStorage().read_file("/proc/sys/kernel/random/boot_id", limit=256).decode("ascii").strip()


def _lock(descriptor: int, kind: int) -> None:
    """Lock or unlock an open file; opening the same file again conflicts even within one process."""
    if sys.platform == "linux":
        # On Linux, flock() and Java's locks ignore each other; an OFD lock conflicts with Java's.
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    else:
        kinds = {fcntl.F_UNLCK: fcntl.LOCK_UN, fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}
        fcntl.flock(descriptor, kinds[kind] | fcntl.LOCK_NB)


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """Turn an OSError into a KreplicaError with the system's message."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            # Not from the system, but raised by a signal handler, usually TimeoutError.
            raise
        raise exception_for_os(error, what) from error


def _status(path: str, *, follow: bool) -> os.stat_result | None:
    """Return the file's status, or None if it does not exist.

    A disk error raises: treating the file as missing would lose it.
    """
    with _typed("looking at"):
        try:
            return os.stat(path, follow_symlinks=follow)
        except (FileNotFoundError, NotADirectoryError):
            return None


class _SpareDescriptor:
    """A descriptor kept in reserve for the process.

    With it a process at its limit of open files can still write its checkpoints, flush its directories and
    read a small file.
    """

    def __init__(self) -> None:
        self._lock = process_lock()  # guards _descriptor
        self._descriptor: int | None = None

    def open(self, path: str, flags: int) -> int:
        """Open `path`, if necessary by giving up the spare descriptor; call `keep` afterwards."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._give():
                raise
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError:
            self.keep()
            raise

    def _give(self) -> bool:
        with self._lock:
            if self._descriptor is None:
                return False
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
            return True

    def keep(self) -> None:
        """Reserve a descriptor again, if one is available."""
        with self._lock, suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


_spare = _SpareDescriptor()
_spare.keep()


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = _spare.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        _spare.keep()


def _write(path: str, data: bytes, *, flush: bool) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        _write_all(descriptor, 0, data)
        if flush:
            _flush(descriptor)


def _write_all(descriptor: int, position: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, position)
        position += written
        left = left[written:]


def _flush(descriptor: int) -> None:
    if sys.platform == "darwin":
        # On macOS fsync() leaves the bytes in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


# Calls that stay allowed after a revocation, because they touch no file.
HARMLESS = frozenset({"boot_id", "process_id"})


# What needs space on the disk, besides the growth of a region.
TAKES_SPACE = frozenset({"write_file_atomically", "write_file", "write_at", "make_directory"})


class RevocableStorage:
    """Implements `kreplica.common.ports.Storage` by delegating to another one, until `revoke`.

    A node of this process is killed by revoking its storage first: from then on every call fails, from any
    thread. Open regions are released by the node's logs, which are no longer used. `set_full` is a fault for
    tests.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reason: str | None = None
        self._is_full = False
        self._regions: WeakSet[Region] = WeakSet()

    def revoke(self, reason: str) -> None:
        """Refuse every call from now on, with a KafkaStorageError that names the reason."""
        self._reason = reason

    def set_full(self, is_full: bool) -> None:
        """Make the disk full, so that nothing can be created and no file grows, or well again.

        A region may still use the space that it has allocated ahead; its log's `idle` gives that back.
        """
        self._is_full = is_full
        for region in list(self._regions):
            region.is_disk_full = is_full

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """Open the file as a region that this storage can hold back from growing."""
        if self._reason is not None:
            raise KafkaStorageError(f"open_region: {self._reason}")
        if create and self._is_full and not self._storage.exists(path):
            raise StorageFull(f"{path}: the disk is full")
        region = self._storage.open_region(path, capacity, writable=writable, create=create)
        region.is_disk_full = self._is_full
        self._regions.add(region)
        return region

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if name in HARMLESS:
            return method

        @wraps(method)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self._reason is not None:
                raise KafkaStorageError(f"{name}: {self._reason}")
            if self._is_full and name in TAKES_SPACE:
                raise StorageFull(f"{arguments[0]}: the disk is full")
            return method(*arguments, **named)

        # The next access finds the wrapper directly.
        setattr(self, name, guarded)
        return guarded


class UnflushedRegion(Region):
    """A region whose `flush` leaves the bytes in the page cache."""

    def flush(self, start: int = 0, stop: int | None = None, along: Region | None = None) -> None:
        """Return at once."""


class UnflushedStorage(FileStorage):
    """The files of a temporary cluster, which are never flushed to the disk.

    A flush returns at once. Written bytes stay in the page cache, which survives the kill of a node. Only a
    power cut loses them, and a temporary directory is not opened again after one.
    """

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """Open the file as a Region whose `flush` returns at once."""
        return UnflushedRegion(path, capacity, writable=writable, create=create)

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:  # noqa: ARG002
        """Write to path + '.tmp' and rename it to `path`."""
        self._replace(path, data, flush=False)

    def sync_file(self, path: str) -> None:
        """Return at once."""

    def sync_directory(self, path: str) -> None:
        """Return at once."""
