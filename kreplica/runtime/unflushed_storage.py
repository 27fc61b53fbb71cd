"""UnflushedStorage: the files of a temporary cluster, which are never flushed to the disk.

A flush returns at once. Written bytes stay in the page cache, which survives the kill of a node. Only a power
cut loses them, and a temporary directory is not opened again after one.
"""

from __future__ import annotations

from kreplica._core.region import Region
from kreplica.runtime.storage import FileStorage


class UnflushedRegion(Region):
    """A region whose `flush` leaves the bytes in the page cache."""

    def flush(self, start: int = 0, stop: int | None = None, along: Region | None = None) -> None:
        """Return at once."""


class UnflushedStorage(FileStorage):
    """Implements `kreplica.common.ports.Storage` without a flush. Thread rule: as FileStorage."""

    def open_region(self, path: str, capacity: int, *, writable: bool, create: bool = False) -> Region:
        """As FileStorage; the region's `flush` returns at once."""
        return UnflushedRegion(path, capacity, writable=writable, create=create)

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:  # noqa: ARG002
        """Write to path + '.tmp' and rename it to `path`."""
        self._replace(path, data, flush=False)

    def sync_file(self, path: str) -> None:
        """Return at once."""

    def sync_directory(self, path: str) -> None:
        """Return at once."""
