"""Real files on a disk that can lose power and refuse operations.

Flushed data is copied beside the files when it is flushed, and restored by a power cut: contents after a
flush of the file, names after a flush of their directory. If `before` is set, it is called as
before(operation, path) before each change and flush, and raises what the disk refuses. Operations have the
names of SimStorage's. Thread rule: as FileStorage, except that nothing else may run during `cut_power`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kreplica._core.region import Region
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer


class BreakableStorage(FileStorage):
    """Implements Storage for the files in `root`; `aside` is an empty directory outside of it."""

    def __init__(self, root: Path, aside: Path) -> None:
        self.before: Callable[[str, str], None] | None = None
        self._root = root
        self._aside = aside
        self._boot = 1
        # The flushed names of each directory, by inode, which stays its own while the directory is held open.
        self._directories: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        self.sync_directory(str(root))

    # ---- flushes ------------------------------------------------------------------------------------------

    def keep(self, path: str) -> None:
        """Keep the file's current contents as flushed, if it still has its name."""
        if not os.path.exists(path):
            return
        number = os.stat(path).st_ino
        held = self._aside / f"{number}.held"
        if not held.exists():
            # While it has a name, no other file gets its inode.
            held.hardlink_to(path)
        shutil.copyfile(path, self._kept(number))

    def sync_file(self, path: str) -> None:
        self._ask("flush", path)
        super().sync_file(path)
        self.keep(path)

    def sync_directory(self, path: str) -> None:
        self._ask("sync_directory", path)
        super().sync_directory(path)
        number = os.stat(path).st_ino
        if number not in self._directories:
            self._held.append(os.open(path, os.O_RDONLY))
        self._directories[number] = {entry.name: entry.inode() for entry in os.scandir(path)}

    # ---- operations that may be refused -------------------------------------------------------------------

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        if create and not self.exists(path):
            self._ask("create", path)
        region = BreakableRegion(path, capacity, writable=writable, create=create)
        region.storage = self
        return region

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        self.write_file(path + ".tmp", data)
        self.sync_file(path + ".tmp")
        self.rename(path + ".tmp", path)
        if flush_name:
            self.sync_directory(os.path.dirname(path))

    def write_file(self, path: str, data: bytes) -> None:
        self._ask("write", path)
        super().write_file(path, data)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        self._ask("write", path)
        super().write_at(path, position, data)

    def make_directory(self, path: str) -> None:
        self._ask("make_directory", path)
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._ask("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._ask("remove", path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._ask("remove", path)
        super().remove_tree(path)

    def _ask(self, operation: str, path: str) -> None:
        if self.before is not None:
            self.before(operation, path)

    # ---- power --------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boot:012x}"

    def cut_power(self, *, keeps_names: bool = False) -> None:
        """Restore what was flushed; with `keeps_names` every name stays. All files must be closed."""
        self._boot += 1
        left = self._aside / "left"
        left.mkdir()
        self._restore(self._root, self._root.stat().st_ino, left, keeps_names)
        self.close()
        shutil.rmtree(self._root)
        left.rename(self._root)
        for path, _, names in os.walk(self._root):
            for name in names:
                self.keep(f"{path}/{name}")
            self.sync_directory(path)

    def _restore(self, now: Path, number: int, target: Path, keeps_names: bool) -> None:
        """Restore the directory with that inode; `now` is its present place, if it has a name."""
        names = self._directories.get(number, {})
        if keeps_names:
            names = {entry.name: entry.inode() for entry in os.scandir(now)}
        for name, inner in names.items():
            if inner in self._directories or (now / name).is_dir():
                (target / name).mkdir()
                self._restore(now / name, inner, target / name, keeps_names)
            elif self._kept(inner).exists():
                shutil.copyfile(self._kept(inner), target / name)
            else:
                (target / name).touch()

    def _kept(self, number: int) -> Path:
        return self._aside / str(number)

    def close(self) -> None:
        """Remove the kept copies."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()
        self._directories.clear()
        for path in self._aside.glob("[0-9]*"):
            path.unlink()


class BreakableRegion(Region):
    """A region that reports flushes to its storage."""

    storage: BreakableStorage

    def flush(self, start: int = 0, stop: int | None = None, along: Region | None = None) -> None:
        if along is not None:
            along.flush()
        self.storage._ask("flush", self.path)
        super().flush(start, stop)
        self.storage.keep(self.path)

    def truncate(self, length: int, tail: Buffer | None = None) -> None:
        before = os.stat(self.path).st_ino
        super().truncate(length, tail)
        if os.stat(self.path).st_ino != before:
            # It continues in a new file, which is flushed before it gets the name.
            self.storage.keep(self.path)
