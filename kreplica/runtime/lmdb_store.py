"""The metadata image in a file: the MetadataStore port over LMDB.

A directory holds LMDB's `data.mdb` and `lock.mdb`, and, while nobody has it open, `data.crc`: size and
CRC-32C of the data file as the last close left it. A data file that does not fit, or was not closed, is
walked page by page before LMDB may map it, since LMDB trusts what it maps and would take the process down
with it.

`metasync=False`: a commit flushes the data and not yet the page that names it, so a power cut may undo the
last one, which the log replays. Every read transaction ends within its call; the map grows while none is
open. The file has the size of the map, so that a full disk is met when it grows, and not by half a commit.

What rots in the file while it is mapped is an error too: LMDB checks what it follows, and the image has a CRC
on each value. One thing is not: a file that somebody else makes shorter under the map ends the process
(SIGBUS in LMDB's own code, where no guard can stand); the next start then makes the image anew.

The directory belongs to one LmdbMetadataStore of one process: whoever opens it holds the lock of the log
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
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.unflushed_storage import UnflushedStorage

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
SUM_FILE = "data.crc"
SMALLEST_MAP_BYTES = 1 << 20
LARGEST_MAP_BYTES = 64 << 30
_PART_BYTES = 1 << 20
FEW = 16  # of the keys of a scan

_BROKEN = (
    *(lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.InvalidError),
    *(lmdb.VersionMismatchError, lmdb.IncompatibleError, lmdb.PageFullError, lmdb.CursorFullError),
)


class LmdbMetadataStore:
    """Implements `kreplica.metadata.metadata_store.MetadataStore`; a directory that is missing is made.

    Raises CorruptImage if what is there cannot be opened safely: `discard` it then. A commit that the disk
    failed is never tried again: from then on every call raises what it raised. `is_flushed=False`: a commit
    stays in the page cache, for a directory that is removed before a power cut could matter.
    """

    def __init__(
        self, directory: str, *, smallest_map_bytes: int = SMALLEST_MAP_BYTES, is_flushed: bool = True
    ) -> None:
        self._directory = directory
        self._is_flushed = is_flushed
        self._files = FileStorage() if is_flushed else UnflushedStorage()
        self._reading = Lock()  # held by each read, and while the map grows
        self._failure: KreplicaError | None = None  # of a commit; the store is of no use any more
        self._files.make_directory(directory)
        _check_file(directory, self._files)
        self._map_bytes = max(smallest_map_bytes, _size(os.path.join(directory, DATA_FILE)))
        self._env: lmdb.Environment | None = None
        with _typed(directory):
            # What readers of a process that is gone left in it is of no use.
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
        """How large the file may become before the map has to grow."""
        return self._map_bytes

    def get(self, key: bytes) -> bytes | None:
        """The key's value; None where there is none."""
        with self._reading:
            env = self._opened()
            try:
                with env.begin() as transaction:
                    return transaction.get(key)
            except lmdb.Error as error:
                raise _typed_error(error, self._directory) from error

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """The first `limit` keys that start with `prefix` and come behind `after`, with their values."""
        found: list[Item] = []
        start = max(prefix, after + b"\0" if after else b"")
        with self._reading:
            env = self._opened()
            with _typed(self._directory), env.begin() as transaction, transaction.cursor() as cursor:
                there = cursor.set_range(start) if start else cursor.first()
                items = cursor.iternext()
                # A few first, since most nodes have few children; then all at once, since some have many.
                for size in (FEW, limit):
                    if there and len(found) < limit:
                        found += islice(items, min(size, limit - len(found)))
                        there = found[-1][0].startswith(prefix)
        # Keys come in order: behind the last one with the prefix no other has it.
        while found and not found[-1][0].startswith(prefix):
            found.pop()
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Give keys their values, None to remove them: all or nothing.

        Raises StorageFull, after which the call may be made again; any other failure is the store's last.
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
        """Close the file and note its sum, so that the next start need not walk it."""
        with self._reading:
            env, self._env = self._env, None
        if env is None:
            return
        if self._failure is not None:  # what the disk did not take is not tried again, nor vouched for
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
        """Close the file as it is; without its sum the next start walks it."""
        with self._reading:
            env, self._env = self._env, None
        if env is not None:
            env.close()

    def _commit(self, change: Callable[[lmdb.Environment, lmdb.Transaction[bytes]], None]) -> None:
        """One write transaction; made again in a larger map where the first was too small."""
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
            raise LogClosed(f"{self._directory}: the image is closed")
        return self._env

    def _grow(self, env: lmdb.Environment) -> None:
        wanted = self._map_bytes * 2
        if wanted > LARGEST_MAP_BYTES:
            raise StorageFull(f"{self._directory}: the image may have {LARGEST_MAP_BYTES} bytes at most")
        self._allocate(wanted)
        with self._reading, _typed(self._directory):
            env.set_mapsize(wanted)
            self._map_bytes = wanted

    def _allocate(self, size: int) -> None:
        """Take the space for the whole map: LMDB tells of a disk that fills by half a commit as of a broken
        one.
        """
        if hasattr(os, "posix_fallocate"):
            with _typed(self._directory), open(os.path.join(self._directory, DATA_FILE), "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, size)


class LmdbImageDirectory:
    """Implements `kreplica.metadata.image_writer.ImageDirectory`: the image is in `directory`.

    `is_flushed`: as of LmdbMetadataStore.
    """

    def __init__(self, directory: str, *, is_flushed: bool = True) -> None:
        self._directory = directory
        self._is_flushed = is_flushed

    def open(self) -> LmdbMetadataStore:
        """The store in the directory, made if there is none. Raises CorruptImage, KafkaStorageError."""
        return LmdbMetadataStore(self._directory, is_flushed=self._is_flushed)

    def discard(self) -> None:
        """Remove what is in the directory; nobody has it open."""
        discard(self._directory)


def discard(directory: str) -> None:
    """Remove the image from its directory, which nobody has open."""
    storage = FileStorage()
    for name in (SUM_FILE, DATA_FILE, LOCK_FILE):
        storage.remove(os.path.join(directory, name))
    if storage.is_directory(directory):
        storage.sync_directory(directory)


def _check_file(directory: str, storage: FileStorage) -> None:
    """Raises CorruptImage unless the data file, if there is one, is safe to map; takes its sum away."""
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
    """LMDB's and the system's errors as ours; MapFullError goes through, since a larger map helps."""
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
