"""SimStorage: the Storage port in memory, modelling a machine's page cache and its disk.

It keeps two states. Programs see the page cache, where every write, create, rename and delete has immediate
effect. The disk has only what was flushed: a file's bytes page by page after a flush of the file, a name
after `sync_directory` of its parent. `after_power_cut` returns another storage with what a power cut at this
moment might leave; `after_kill` returns one as a killed process leaves it, with everything written. Neither
changes this storage, so the same moment can be cut many times.

If `before` is set, it is called as before(operation, path) before every change and every flush. There a test
or a simulation raises what the disk refuses (StorageFull, StorageIOError), lets virtual time pass for a slow
disk, or stops the run. A refused flush loses its pages for good, as on Linux: they count as clean, and a
second flush reports success without having written them. `full` stops every file from growing.

`trace` lists the changes and flushes, in order. Writes through a mapping are noticed only when a flush or a
crash finds them. Deterministic: all randomness comes from the given Random. Thread rule: one thread, as the
simulator; or several that only use regions.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

from kreplica._core.memory_region import PAGE_SIZE, MemoryFile
from kreplica._core.region import Region
from kreplica.common.errors import (
    InvalidFile,
    KafkaStorageError,
    KreplicaError,
    LogDirLocked,
    StorageIOError,
    exception_for_os,
)
from kreplica.common.ports import Random

TEMPORARY_SUFFIX = ".tmp"
# A disk writes a sector entirely or not at all; a page may be torn between its sectors.
SECTOR_SIZE = 512
UNLIMITED = (1 << 63) - 1
# A simulated node names the same few files again and again.
dirname = lru_cache(4096)(posixpath.dirname)
normpath = lru_cache(4096)(posixpath.normpath)
# The path of a file without a name.
REMOVED = "(removed)"


class Event(NamedTuple):
    """A line of the trace. `start` and `stop`: the bytes of a flush or a write; `target`: of a rename."""

    operation: str
    path: str
    start: int = 0
    stop: int = 0
    target: str = ""


class _Entry(NamedTuple):
    """A change of names that is not on disk yet: `path` becomes a name of `node`, or, for None, is
    removed. A flush of one of the `directories` brings it there."""

    path: str
    node: _Node | None
    source: str
    directories: tuple[str, ...]


class _Directory:
    pass


class _File:
    """A file: its pages and what a refused flush has lost of them. `path`: its present name."""

    def __init__(self, capacity: int, path: str) -> None:
        self.path = path
        self.data = MemoryFile(capacity)
        # The pages that a refused flush has lost: their contents at that time, and what is on disk instead.
        self.lost: dict[int, tuple[bytes, bytes]] = {}

    def lose_dirty_pages(self) -> None:
        data = self.data
        for page in data.dirty_pages():
            self.lost[page] = (_page(data.read(), page), _page(data.durable, page))

    def on_disk(self) -> bytes:
        """Return what a power cut certainly leaves."""
        image = bytearray(self.data.durable)
        for page, (gone, kept) in self.lost.items():
            if _page(image, page) == gone:
                start = page * PAGE_SIZE
                image[start : start + len(gone)] = kept.ljust(len(gone), b"\0")[: len(gone)]
        return bytes(image)


_Node = _Directory | _File


def _page(image: bytes | bytearray, page: int) -> bytes:
    return bytes(image[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])


class SimStorage:
    """Implements `kreplica.common.ports.Storage`. Paths are absolute; '/' exists.

    `boot`: the number of this start of the machine. `process_id`: reported to the program as its own.
    """

    def __init__(self, *, boot: int = 1, process_id: int = 1) -> None:
        self.before: Callable[[str, str], None] | None = None
        self.trace: list[Event] = []
        # A long run turns this off.
        self.is_traced = True
        # The directories of files with a refused operation, other than for lack of space.
        self.refused: set[str] = set()
        # The pages that the preceding power cut has lost, or half written.
        self.lost_pages = 0
        self.torn_pages = 0
        self._boot = boot
        self._process_id = process_id
        self._locked: dict[str, int] = {}  # the number of holders of a shared lock; -1: exclusive
        self._full = False
        # The names as programs see them, those on disk, and the changes between them.
        self._names: dict[str, _Node] = {"/": _Directory()}
        self._durable: dict[str, _Node] = dict(self._names)
        self._pending: list[_Entry] = []

    # ---- regions and files --------------------------------------------------------------------------------

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """Return the file at `path` as a Region; `capacity` is the maximum length in bytes it may grow to."""
        path = normpath(path)
        if create and path not in self._names:
            self._create(path, capacity)
        return self._file(path, "opening").data.open(path, capacity, writable=writable)

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        """Return the whole file. Raises InvalidFile if it is larger than `limit` bytes."""
        data = self._file(path, "reading").data
        if data.size > limit:
            raise InvalidFile(f"{path}: has {data.size} bytes, more than the limit of {limit}")
        return data.read()

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        """Write to path + '.tmp', flush it, rename it over `path`, and flush the directory.

        `flush_name=False`: the caller flushes the directory.
        """
        temporary = path + TEMPORARY_SUFFIX
        try:
            self.write_file(temporary, data)
            self.sync_file(temporary)
            self.rename(temporary, path)
        except KafkaStorageError:
            self._unset(normpath(temporary))
            raise
        if flush_name:
            self.sync_directory(dirname(path))

    def write_file(self, path: str, data: bytes) -> None:
        """Create or replace the file, without a flush."""
        self._write(path, bytes(data), 0, len(data))

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Write at byte `position` of the file, without a flush; create the file if it is missing.

        Regions of the file see writes within their size.
        """
        node = self._names.get(normpath(path))
        if isinstance(node, _File) and position + len(data) <= node.data.size:
            self._note("write", normpath(path), position, position + len(data))
            region = node.data.open(path, node.data.capacity, writable=True)
            region.write(position, data)
            region.close()
            return
        old = self.read_file(path, UNLIMITED) if self.exists(path) else b""
        whole = old[:position].ljust(position, b"\0") + data + old[position + len(data) :]
        self._write(path, whole, position, position + len(data))

    def sync_file(self, path: str) -> None:
        """Flush the file's contents; its name needs `sync_directory`."""
        self._file(path, "flushing").data.flush()

    # ---- names --------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return normpath(path) in self._names

    def is_directory(self, path: str) -> bool:
        return isinstance(self._names.get(normpath(path)), _Directory)

    def size(self, path: str) -> int:
        """Return the file's size in bytes."""
        return self._file(path, "measuring").data.size

    def free_bytes(self, path: str) -> int:  # noqa: ARG002
        """Return the free space: none on a full disk, else practically unlimited."""
        return 0 if self._full else UNLIMITED

    def total_bytes(self, path: str) -> int:  # noqa: ARG002
        """Return the size of the disk, which is practically unlimited."""
        return UNLIMITED

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""
        path = self._directory(path, "listing")
        below = "/" if path == "/" else path + "/"
        names = [name[len(below) :] for name in self._names if name.startswith(below)]
        return sorted(name for name in names if name and "/" not in name)

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents; does nothing if it exists."""
        path = normpath(path)
        if self.is_directory(path):
            return
        self.make_directory(dirname(path))
        self._note("make_directory", path)
        self._set(path, _Directory())

    def rename(self, source: str, target: str) -> None:
        """Rename `source`, a file or a directory, replacing an existing file."""
        source, target = normpath(source), normpath(target)
        node = self._names.get(source)
        if node is None:
            raise _refused(errno.ENOENT, source, "renaming")
        self._note("rename", source, target=target)
        replaced = self._names.get(target)
        if isinstance(replaced, _File):
            replaced.path = REMOVED
        self._pend(target, node, source)
        for name in _rename(self._names, source, target, node):
            moved = self._names[name]
            if isinstance(moved, _File):
                moved.path = name

    def remove(self, path: str) -> None:
        """Remove a file; does nothing if it does not exist."""
        path = normpath(path)
        if path in self._names:
            self._note("remove", path)
            self._unset(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents; does nothing if it does not exist."""
        path = normpath(path)
        for name in sorted((n for n in self._names if n == path or n.startswith(path + "/")), reverse=True):
            self.remove(name)

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable."""
        path = self._directory(path, "flushing")
        self._note("sync_directory", path)
        left = []
        for entry in self._pending:
            if path in entry.directories:
                _apply(self._durable, entry)
            else:
                left.append(entry)
        self._pending = left

    def lock_directory(self, path: str, *, shared: bool = False) -> SimLock:
        """Lock the directory for one writer, or shared. Raises LogDirLocked if it is locked."""
        path = self._directory(path, "locking")
        holders = self._locked.get(path, 0)
        if holders < 0 or (holders and not shared):
            raise LogDirLocked(f"{path}: another writer has locked the directory")
        self._locked[path] = holders + 1 if shared else -1
        return SimLock(self._locked, path)

    def is_locked(self, path: str) -> bool:
        return normpath(path) in self._locked

    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boot:012x}"

    def process_id(self) -> int:
        return self._process_id

    # ---- faults -------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the disk is full: no file can be created or grow."""
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        self._full = full
        for node in self._names.values():
            if isinstance(node, _File):
                node.data.room = node.data.size if full else UNLIMITED

    def after_kill(self) -> SimStorage:
        """Return the storage as the next process finds it after this one was killed: nothing is lost.

        Regions opened here belong to the dead process, and their writes no longer have any effect.
        """
        made = SimStorage(boot=self._boot, process_id=self._process_id + 1)
        made.is_traced = self.is_traced
        copies: dict[int, _Node] = {}

        def copied(node: _Node) -> _Node:
            if id(node) not in copies:
                copies[id(node)] = made._copy_of(node) if isinstance(node, _File) else node
            return copies[id(node)]

        made._names = {path: copied(node) for path, node in self._names.items()}
        made._durable = {path: copied(node) for path, node in self._durable.items()}
        made._pending = [
            entry._replace(node=None if entry.node is None else copied(entry.node)) for entry in self._pending
        ]
        made.full = self._full
        return made

    def after_power_cut(self, random: Random | None = None, *, keeps_names: bool = False) -> SimStorage:
        """Return the storage after a power cut at this moment and a restart of the machine.

        Without `random` everything that was not flushed is lost. With it, each change of a name, each page
        and the size of a file may have reached the disk or not, in any order, and a page may be torn. With
        `keeps_names` all changes of names have reached it, before the contents: this loses files that were
        renamed without a flush.
        """
        made = SimStorage(boot=self._boot + 1, process_id=self._process_id)
        made.is_traced = self.is_traced
        names = dict(self._durable)
        for entry in self._pending:
            if keeps_names or (random is not None and random.randrange(2)):
                _apply(names, entry)
        images: dict[int, bytes] = {}
        for path in sorted(names):
            node = names[path]
            # The contents of a directory whose own name was lost are lost with it.
            if path != "/" and dirname(path) not in made._names:
                continue
            if isinstance(node, _File):
                if id(node) not in images:
                    images[id(node)] = _left_of(node, random)
                    made._note_losses(node, images[id(node)])
                image = images[id(node)]
                node = made._new_file(len(image), path)
                node.data.write(image)
                node.data.flush()
            made._names[path] = node
        made._durable = dict(made._names)
        made.trace.clear()
        made.full = self._full
        return made

    def write_back(self, random: Random) -> None:
        """Let the kernel write some dirty pages to the disk, as it may at any time."""
        for path in sorted(self._names):
            node = self._names[path]
            if isinstance(node, _File):
                asked, node.data.on_flush = node.data.on_flush, None
                for page in node.data.dirty_pages():
                    if page not in node.lost and random.randrange(2):
                        node.data.flush(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
                node.data.on_flush = asked

    # ---- internals ----------------------------------------------------------------------------------------

    def _file(self, path: str, what: str) -> _File:
        node = self._names.get(normpath(path))
        if isinstance(node, _File):
            return node
        raise _refused(errno.ENOENT if node is None else errno.EISDIR, path, what)

    def _directory(self, path: str, what: str) -> str:
        path = normpath(path)
        if isinstance(self._names.get(path), _Directory):
            return path
        raise _refused(errno.ENOTDIR if path in self._names else errno.ENOENT, path, what)

    def _create(self, path: str, capacity: int) -> _File:
        self._directory(dirname(path), "creating")
        if self._full:
            raise _refused(errno.ENOSPC, path, "creating")
        self._note("create", path)
        node = self._new_file(capacity, path)
        self._set(path, node)
        return node

    def _new_file(self, capacity: int, path: str) -> _File:
        node = _File(max(capacity, PAGE_SIZE), path)
        node.data.on_flush = partial(self._flushing, node)
        return node

    def _note_losses(self, node: _File, left: bytes) -> None:
        now, disk = node.data.read(), node.data.durable
        for page in node.data.dirty_pages():
            found = _page(left, page)
            if found == _page(disk, page) != _page(now, page):
                self.lost_pages += 1
            elif found != _page(now, page):
                self.torn_pages += 1

    def _copy_of(self, node: _File) -> _File:
        made = self._new_file(node.data.capacity, node.path)
        made.data.on_flush = None
        made.data.write(node.data.durable)
        made.data.flush()
        made.data.write(node.data.read())
        made.data.on_flush = partial(self._flushing, made)
        made.lost = dict(node.lost)
        return made

    def _write(self, path: str, whole: bytes, start: int, stop: int) -> None:
        path = normpath(path)
        node = self._names.get(path)
        if not isinstance(node, _File):
            node = self._create(path, len(whole))
        self._note("write", path, start, stop)
        if len(whole) > node.data.room:
            raise _refused(errno.ENOSPC, path, "writing")
        node.data.write(whole)

    def _flushing(self, node: _File, start: int, stop: int) -> None:
        try:
            self._note("flush", node.path, start, stop)
        except Exception:
            node.lose_dirty_pages()
            raise

    def _set(self, path: str, node: _Node) -> None:
        self._names[path] = node
        self._pend(path, node)

    def _unset(self, path: str) -> None:
        node = self._names.pop(path, None)
        if isinstance(node, _File):
            node.path = REMOVED
        self._pend(path, None)

    def _pend(self, path: str, node: _Node | None, source: str = "") -> None:
        parent = dirname(path)
        former = dirname(source) if source else parent
        self._pending.append(_Entry(path, node, source, (parent, former)))

    def _note(self, operation: str, path: str, start: int = 0, stop: int = 0, target: str = "") -> None:
        if self.before is not None:
            try:
                self.before(operation, path)
            except StorageIOError:
                self.refused.add(dirname(path))
                raise
        if self.is_traced:
            self.trace.append(Event(operation, path, start, stop, target))


class SimLock:
    """A held lock of a directory; `release` may be called twice."""

    def __init__(self, locked: dict[str, int], path: str) -> None:
        self._locked = locked
        self._path = path
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            others = self._locked.pop(self._path) - 1
            if others > 0:
                self._locked[self._path] = others


def _refused(number: int, path: str, what: str) -> KreplicaError:
    return exception_for_os(OSError(number, os.strerror(number), path), what)


def _rename(names: dict[str, _Node], source: str, target: str, node: _Node) -> list[str]:
    """Rename `node`, and what is below it; return the new names."""
    names.pop(source, None)
    names[target] = node
    moved = [target]
    if isinstance(node, _Directory):
        for name in [name for name in names if name.startswith(source + "/")]:
            moved.append(target + name[len(source) :])
            names[moved[-1]] = names.pop(name)
    return moved


def _apply(names: dict[str, _Node], entry: _Entry) -> None:
    """Apply a change of names to the disk."""
    if entry.node is None:
        names.pop(entry.path, None)
    elif entry.source:
        _rename(names, entry.source, entry.path, entry.node)
    else:
        names[entry.path] = entry.node


def _left_of(node: _File, random: Random | None) -> bytes:
    """Return the bytes of a file that a power cut leaves."""
    disk = node.on_disk()
    if random is None:
        return disk
    now = node.data.read()
    size = (len(disk), len(now), random.randrange(max(len(disk), len(now)) + 1))[random.randrange(3)]
    size = max(size, min(len(disk), len(now)))
    image = bytearray(disk[:size].ljust(size, b"\0"))
    for page in node.data.dirty_pages():
        chance = random.randrange(4)
        for start in range(page * PAGE_SIZE, min((page + 1) * PAGE_SIZE, size, len(now)), SECTOR_SIZE):
            if chance == 0 or (chance == 1 and random.randrange(2)):
                part = now[start : min(start + SECTOR_SIZE, size)]
                image[start : start + len(part)] = part
    return bytes(image)
