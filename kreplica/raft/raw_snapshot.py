"""The files of snapshots: written in pieces, read by position.

A snapshot is written under a temporary name. When it is complete it is checked, flushed, renamed, and the
directory is flushed, in this order. So a file under a snapshot's name is always a whole snapshot. It never
changes, and a reader keeps it even after the file is removed. Owned by the raft loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplica._core.region import Region, Slice
from kreplica.common.errors import InvalidRequest, PositionOutOfRange
from kreplica.common.ports import Storage
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.snapshot_check import check_snapshot
from kreplica.raft.snapshot_files import partial_name, snapshot_name

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FileRawSnapshotWriter:
    """Writes a snapshot into `directory`. `number` distinguishes writers of this process.

    `on_frozen` is called with the id when the snapshot has its final name.
    """

    __slots__ = ("_directory", "_on_frozen", "_path", "_storage", "is_closed", "is_frozen", "size_bytes",
                 "snapshot_id")  # fmt: skip

    def __init__(
        self,
        storage: Storage,
        directory: str,
        snapshot_id: OffsetAndEpoch,
        number: int,
        on_frozen: Callable[[OffsetAndEpoch], None],
    ) -> None:
        self.snapshot_id = snapshot_id
        self.size_bytes = 0
        self.is_frozen = False
        self.is_closed = False
        self._storage = storage
        self._directory = directory
        self._path = f"{directory}/{partial_name(snapshot_id, number)}"
        self._on_frozen = on_frozen
        storage.write_file(self._path, b"")

    def append(self, position: int, data: Buffer) -> None:
        """See RawSnapshotWriter."""
        self._require_open()
        if position != self.size_bytes:
            raise PositionOutOfRange(
                f"snapshot {self._path}: got bytes at position {position}, expected {self.size_bytes}",
                where=self.size_bytes,
            )
        content = bytes(data)
        self._storage.write_at(self._path, position, content)
        self.size_bytes += len(content)

    def freeze(self) -> None:
        """See RawSnapshotWriter."""
        self._require_open()
        try:
            with FileRawSnapshotReader(self._storage, self._path, self.snapshot_id) as written:
                check_snapshot(written)
            self._storage.sync_file(self._path)
            self._storage.rename(self._path, f"{self._directory}/{snapshot_name(self.snapshot_id)}")
        except BaseException:
            self.close()
            raise
        # From here on the file has its final name, even if the flush of the directory fails.
        self.is_frozen = self.is_closed = True
        self._storage.sync_directory(self._directory)
        self._on_frozen(self.snapshot_id)

    def close(self) -> None:
        """See RawSnapshotWriter."""
        if not self.is_closed:
            self.is_closed = True
            self._storage.remove(self._path)

    def _require_open(self) -> None:
        if self.is_closed:
            raise InvalidRequest(f"the writer of snapshot {self._path} is closed")


class FileRawSnapshotReader:
    """Reads the existing file at `path`. The bytes that it returns are pinned."""

    __slots__ = ("_region", "path", "size_bytes", "snapshot_id")

    def __init__(self, storage: Storage, path: str, snapshot_id: OffsetAndEpoch) -> None:
        self.path = path
        self.snapshot_id = snapshot_id
        self.size_bytes = storage.size(path)
        self._region: Region = storage.open_region(path, max(1, self.size_bytes), writable=False)

    def read(self, position: int, max_bytes: int) -> Slice:
        """See RawSnapshotReader."""
        if not 0 <= position < self.size_bytes:
            raise PositionOutOfRange(
                f"{self.path}: position {position} is outside of its {self.size_bytes} bytes", where=position
            )
        return self._region.slice(position, max(0, min(max_bytes, self.size_bytes - position)))

    def close(self) -> None:
        """Close the file. Bytes that were read stay valid."""
        self._region.close()

    def __enter__(self) -> FileRawSnapshotReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
