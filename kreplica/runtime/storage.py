"""Files of the machine, as the Storage port wants them.

Ownership: a FileStorage owns nothing; a region or a lock that it hands out belongs to the caller. Thread
rule: any thread may call any method.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from kreplica._core.region import Region
from kreplica.common.errors import InvalidFile, LogDirLocked, exception_for_os
from kreplica.common.locks import Lock

LOCK_FILE = ".lock"
TEMPORARY_SUFFIX = ".tmp"


class FileStorage:
    """Implements `kreplica.common.ports.Storage` over the operating system's files.

    Every method raises KafkaStorageError, or the subclass that fits (StorageFull, OutOfDescriptors,
    StorageIOError), when the system refuses.
    """

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """The file at `path` as a Region; `capacity` is the largest length it may grow to, in bytes."""
        return Region(path, capacity, writable=writable, create=create)

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """The whole file; InvalidFile if it is larger than `limit` bytes, or is no file."""
        with _typed("reading"), _opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidFile(f"{path} is no regular file")
            if status.st_size > limit:
                raise InvalidFile(f"{path}: {status.st_size} bytes, more than {limit}")
            data = bytearray()
            # The file may grow while it is read: never more than the limit and one byte is asked for.
            while part := os.read(descriptor, min(limit + 1 - len(data), max(status.st_size, 1 << 16))):
                data += part
            if len(data) > limit:
                raise InvalidFile(f"{path}: more than {limit} bytes")
            return bytes(data)

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        """Write to path + '.tmp', flush it, rename it over `path`, and flush the directory unless the caller
        does that.

        After a failure `path` is what it was, or, should the flush of the directory have failed, either.
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
        """Create or replace the file; nothing is flushed."""
        with _typed("writing"):
            _write(path, data, flush=False)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file, which is created if missing; nothing is flushed.

        After an error the file is no longer than it was.
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
        """Whether there is a file or a directory of this name."""
        return _status(path, follow=False) is not None

    def size(self, path: str) -> int:
        """The file's size in bytes."""
        with _typed("measuring"):
            return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        """What the file system of this file or directory has left for this user; a quota may allow less."""
        with _typed("looking at"):
            found = os.statvfs(path)
            return found.f_bavail * found.f_frsize

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
            if self.exists(path):
                shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory last."""
        with _typed("flushing"), _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)

    def lock_directory(self, path: str, *, shared: bool = False) -> FileLock:
        """Take the directory for one writer (Kafka's file '.lock'); raises LogDirLocked if it is taken.

        Excludes writers in this process, in others, and a Kafka broker. `shared`: together with others who
        take it so.
        """
        with _typed("locking"):
            # An object and no bare descriptor: where an exception from outside comes in between, it is closed
            # all the same, and the directory is free.
            file = FileIO(os.path.join(path, LOCK_FILE), "r+", opener=_open_or_make)
            try:
                _lock(file.fileno(), fcntl.F_RDLCK if shared else fcntl.F_WRLCK)
            except OSError as error:
                holder = _holder(file.fileno())
                file.close()
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise LogDirLocked(f"{path}: another writer has the directory, in {holder}") from None
                raise
            if not shared:
                _note_holder(file.fileno())
        return FileLock(file)

    def is_directory(self, path: str) -> bool:
        found = _status(path, follow=True)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the directory's lock; asks without taking it (Linux only)."""
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
        """What changes when the machine is started anew."""
        return _boot_id()


class FileLock:
    """A directory's lock file, held. `release` lets it go and may be called twice; in a forked child it does
    nothing to the parent's lock."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._process = os.getpid()

    def release(self) -> None:
        if self._file.closed:
            return
        # Parent and child have the lock in common: closing leaves it to the other, unlocking ends it.
        if os.getpid() == self._process:
            with suppress(OSError):
                _lock(self._file.fileno(), fcntl.F_UNLCK)
        self._file.close()


def _open_or_make(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _note_holder(descriptor: int) -> None:
    """Write this process's id into a lock file, for the message that another process gets."""
    # Only a message depends on it, so a full or broken disk is left to what matters to find.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _holder(descriptor: int) -> str:
    """Words for the process that holds a lock file. A holder that shares it, or Kafka, notes no id there."""
    with suppress(OSError):
        noted = os.pread(descriptor, 20, 0).strip()
        if noted.isdigit() and int(noted) == os.getpid():
            return f"this process ({os.getpid()})"
        if noted.isdigit() and os.path.exists(f"/proc/{int(noted)}"):
            return f"process {int(noted)}"
    return "another process"


@functools.cache
def _boot_id() -> str:
    # It stays for as long as this process can live, and each log that is opened asks for it.
    if sys.platform == "darwin":
        with _typed("asking for the boot time"):
            asked = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False
            )
        return asked.stdout.strip()
    return FileStorage().read_file("/proc/sys/kernel/random/boot_id", limit=256).decode("ascii").strip()


def _lock(descriptor: int, kind: int) -> None:
    """Lock or unlock an open file; the same file opened once more is refused, in this process too."""
    if sys.platform == "linux":
        # Here flock() and the lock that Java takes do not see each other; an OFD lock and that one do.
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    else:
        kinds = {fcntl.F_UNLCK: fcntl.LOCK_UN, fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}
        fcntl.flock(descriptor, kinds[kind] | fcntl.LOCK_NB)


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """Turn an OSError into the exception of the tree, with the system's words."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            # Not the system's: a signal's handler has raised it, TimeoutError as a rule.
            raise
        raise exception_for_os(error, what) from error


def _status(path: str, *, follow: bool) -> os.stat_result | None:
    """What the system says of the file; None where there is none. A disk that cannot tell is an error: to
    take the file for missing would lose it."""
    with _typed("looking at"):
        try:
            return os.stat(path, follow_symlinks=follow)
        except (FileNotFoundError, NotADirectoryError):
            return None


class _SpareDescriptor:
    """One descriptor kept aside, for the process: with it one that may open no more files can still write its
    checkpoints, flush its directories and read a small file."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _descriptor
        self._descriptor: int | None = None

    def open(self, path: str, flags: int) -> int:
        """Open `path`, with the spare one's number if there is no other; `close` takes it back."""
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
        """Have a descriptor aside again, if there is one to be had."""
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
        # There fsync() leaves the bytes in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
