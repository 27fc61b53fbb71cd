"""LmdbMetadataStore: the metadata image in an LMDB file, as the MetadataStore port.

A directory holds LMDB's `data.mdb` and `lock.mdb` and, while closed, `data.crc`: size and CRC-32C of the data
file at the last close. A data file that does not match, or was not closed, is verified page by page before it
is mapped, because LMDB trusts what it maps and a corrupt file would crash the process.

`metasync=False`: a commit flushes the data but not yet the page that refers to it. A power failure may undo
the last commit, which is then replayed from the log. Every read transaction ends within its call; the map
grows while none is open. The file has the size of the map, so that a full disk is noticed when the map grows
and not in the middle of a commit.

Damage to the file while it is mapped raises an error too: LMDB checks the pages it follows, and the image has
a CRC for each value. The exception is a file that another program truncates under the map: it ends the
process (SIGBUS in LMDB's own code, which cannot be guarded), and the next start rebuilds the image.

The directory belongs to one LmdbMetadataStore of one process, whose opener holds the lock of the log
directory around it. One thread writes, any thread may read.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice

import lmdb
import lmdb.verify

from kreplica._core.crc32c import checksum
from kreplica.common.errors import (
    CorruptImage,
    KafkaStorageError,
    KreplicaError,
    LogClosed,
    StorageFull,
    exception_for_os,
)
from kreplica.common.locks import Lock
from kreplica.metadata.metadata_store import Item
from kreplica.runtime.storage import FileStorage, UnflushedStorage

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
SUM_FILE = "data.crc"
SMALLEST_MAP_BYTES = 1 << 20
LARGEST_MAP_BYTES = 64 << 30
_PART_BYTES = 1 << 20
FEW = 16  # keys of a scan's first step

_BROKEN = (
    *(lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.InvalidError),
    *(lmdb.VersionMismatchError, lmdb.IncompatibleError, lmdb.PageFullError, lmdb.CursorFullError),
)


class LmdbMetadataStore:
    """Implements `kreplica.metadata.metadata_store.MetadataStore`; creates a missing directory.

    Raises CorruptImage if the files cannot be opened safely: `discard` them then. A commit that failed on
    disk is never retried: every later call raises the same error.
    `is_flushed=False`: commits stay in the page cache, for a directory that is removed before a power failure
    could matter.
    """

    def __init__(
        self, directory: str, *, smallest_map_bytes: int = SMALLEST_MAP_BYTES, is_flushed: bool = True
    ) -> None:
        self._directory = directory
        self._is_flushed = is_flushed
        self._files = FileStorage() if is_flushed else UnflushedStorage()
        self._reading = Lock()  # held by each read, and while the map grows
        self._failure: KreplicaError | None = None  # of a commit; makes the store unusable
        self._files.make_directory(directory)
        _check_file(directory, self._files)
        self._map_bytes = max(smallest_map_bytes, _size(os.path.join(directory, DATA_FILE)))
        self._env: lmdb.Environment | None = None
        with _typed(directory):
            # The reader table left by a dead process is useless.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, LOCK_FILE))
            self._env = lmdb.open(directory, map_size=self._map_bytes, metasync=False, sync=is_flushed)
        try:
            self._allocate(self._map_bytes)
        except Exception:
            self._env.close()
            raise

    @property
    def map_bytes(self) -> int:
        """The size that the file may reach before the map has to grow."""
        return self._map_bytes

    def get(self, key: bytes) -> bytes | None:
        """Return the key's value, or None."""
        with self._reading:
            env = self._opened()
            try:
                with env.begin() as transaction:
                    return transaction.get(key)
            except lmdb.Error as error:
                raise _typed_error(error, self._directory) from error

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """Return the first `limit` keys after `after` that start with `prefix`, with their values."""
        found: list[Item] = []
        start = max(prefix, after + b"\0" if after else b"")
        with self._reading:
            env = self._opened()
            with _typed(self._directory), env.begin() as transaction, transaction.cursor() as cursor:
                there = cursor.set_range(start) if start else cursor.first()
                items = cursor.iternext()
                # Fetch a few first, because most nodes have few children, then all the rest at once.
                for size in (FEW, limit):
                    if there and len(found) < limit:
                        found += islice(items, min(size, limit - len(found)))
                        there = found[-1][0].startswith(prefix)
        # Keys are sorted: after the last key with the prefix no other has it.
        while found and not found[-1][0].startswith(prefix):
            found.pop()
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set the values of keys, None to remove one, atomically.

        Raises StorageFull, after which the call may be retried; after any other error the store is unusable.
        """

        def put(env: lmdb.Environment, transaction: lmdb.Transaction[bytes]) -> None:
            del env
            for key in sorted(changes):
                value = changes[key]
                if value is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, value)

        self._commit(put)

    def clear(self) -> None:
        """Remove every key."""

        def drop(env: lmdb.Environment, transaction: lmdb.Transaction[bytes]) -> None:
            transaction.drop(env.open_db(None, txn=transaction), delete=False)

        self._commit(drop)

    def close(self) -> None:
        """Close the file and write its checksum, so that the next start need not verify it."""
        with self._reading:
            env, self._env = self._env, None
        if env is None:
            return
        if self._failure is not None:  # neither retry what failed on disk, nor vouch for the file
            env.close()
            return
        with _typed(self._directory):
            try:
                if self._is_flushed:
                    env.sync(True)
            finally:
                env.close()
        _write_sum(self._directory, self._files)

    def abandon(self) -> None:
        """Close the file without a checksum; the next start verifies it."""
        with self._reading:
            env, self._env = self._env, None
        if env is not None:
            env.close()

    def _commit(self, change: Callable[[lmdb.Environment, lmdb.Transaction[bytes]], None]) -> None:
        """Run one write transaction; retry it in a larger map if the map is full."""
        while True:
            env = self._opened()
            try:
                with _typed(self._directory), env.begin(write=True) as transaction:
                    change(env, transaction)
                return
            except lmdb.MapFullError:
                self._grow(env)
            except StorageFull:
                raise
            except (KafkaStorageError, CorruptImage) as error:
                self._failure = error
                raise

    def _opened(self) -> lmdb.Environment:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        if self._env is None:
            raise LogClosed(f"{self._directory}: the metadata image is closed")
        return self._env

    def _grow(self, env: lmdb.Environment) -> None:
        wanted = self._map_bytes * 2
        if wanted > LARGEST_MAP_BYTES:
            raise StorageFull(
                f"{self._directory}: the metadata image has its maximum of {LARGEST_MAP_BYTES} bytes"
            )
        self._allocate(wanted)
        with self._reading, _typed(self._directory):
            env.set_mapsize(wanted)
            self._map_bytes = wanted

    def _allocate(self, size: int) -> None:
        """Allocate the space for the whole map; LMDB would report a disk that fills in a commit as broken."""
        if hasattr(os, "posix_fallocate"):
            with _typed(self._directory), open(os.path.join(self._directory, DATA_FILE), "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, size)


class LmdbImageDirectory:
    """Implements `kreplica.metadata.image_writer.ImageDirectory`: the image is in `directory`.

    `is_flushed`: as in LmdbMetadataStore.
    """

    def __init__(self, directory: str, *, is_flushed: bool = True) -> None:
        self._directory = directory
        self._is_flushed = is_flushed

    def open(self) -> LmdbMetadataStore:
        """Open the store in the directory; create it if missing. Raises CorruptImage, KafkaStorageError."""
        return LmdbMetadataStore(self._directory, is_flushed=self._is_flushed)

    def discard(self) -> None:
        """Remove the image's files; the store must be closed."""
        discard(self._directory)


def discard(directory: str) -> None:
    """Remove the image's files from a directory in which no store is open."""
    storage = FileStorage()
    for name in (SUM_FILE, DATA_FILE, LOCK_FILE):
        storage.remove(os.path.join(directory, name))
    if storage.is_directory(directory):
        storage.sync_directory(directory)


def _check_file(directory: str, storage: FileStorage) -> None:
    """Raises CorruptImage if the data file is not safe to map; removes its checksum file."""
    path, sum_path = os.path.join(directory, DATA_FILE), os.path.join(directory, SUM_FILE)
    if not storage.exists(path):
        return
    with _typed(directory):
        if storage.exists(sum_path):
            fits = storage.read_file(sum_path) == _sum_of(path)
            storage.remove(sum_path)
            storage.sync_directory(directory)
            if fits:
                return
        try:
            problems: list[str] = lmdb.verify.verify(path)  # type: ignore[no-untyped-call]
        except lmdb.verify.VerifyError as error:
            problems = [str(error)]
    if problems:
        raise CorruptImage(f"{path}: {problems[0]}")


def _write_sum(directory: str, storage: FileStorage) -> None:
    data = _sum_of(os.path.join(directory, DATA_FILE))
    storage.write_file_atomically(os.path.join(directory, SUM_FILE), data)


def _sum_of(path: str) -> bytes:
    crc = size = 0
    with open(path, "rb") as file:
        while part := file.read(_PART_BYTES):
            crc = checksum(part, crc)
            size += len(part)
    return json.dumps({"version": 1, "bytes": size, "crc32c": crc}).encode()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _typed(directory: str) -> Iterator[None]:
    """Translate LMDB's and the system's errors. MapFullError passes, because a larger map solves it."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except (lmdb.Error, OSError) as error:
        raise _typed_error(error, directory) from error


def _typed_error(error: lmdb.Error | OSError, directory: str) -> KreplicaError:
    if isinstance(error, _BROKEN):
        return CorruptImage(f"{directory}: {error}")
    if isinstance(error, lmdb.Error):
        error = OSError(max(getattr(error, "code", 0), 0) or errno.EIO, str(error), directory)
    return exception_for_os(error, "the metadata image")
