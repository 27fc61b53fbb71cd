"""The metadata image on disk: ImageStore, a tree of paths with versions, and ImageWriter, which keeps it up
to date.

    /brokers/ids/1     /brokers/topics/t/partitions/0     /config/2/t     /controller

Only paths with data are stored. One write changes any number of nodes together with the offset and epoch of
the log that they reach. The image contains nothing that the log does not. If it is damaged (a CRC, the sum
over all nodes), belongs to another cluster, or is not a past state of the log, it is rebuilt.

Changes are written with a short delay and in a loop of their own. A commit of the store waits for the disk,
and the quorum's loop must not wait: durability comes from the log. After a crash a little more of the log is
replayed. If the disk fails, the image is given up with a message and the node continues without it; its next
start finds an older image, or none.

An ImageStore belongs to one thread. `ImageWriter.open` and `close` must not be called while the loop runs the
writer; `submit` is called by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kreplica.common.errors import CorruptImage, KafkaStorageError, StorageFull
from kreplica.common.locks import Lock
from kreplica.common.ports import Loop
from kreplica.metadata import image_paths
from kreplica.metadata.cluster_metadata import ClusterMetadata, difference
from kreplica.metadata.image_format import (
    MAX_DEPTH,
    STANDING_KEY,
    Node,
    OffsetAndEpoch,
    Standing,
    crc_of,
    key_of,
    names_of,
    seal,
    seal_standing,
    unseal,
    unseal_standing,
    unsealed,
)
from kreplica.metadata.metadata_store import Item, MetadataStore

LOGGER = logging.getLogger(__name__)

# Nodes to read at once, which takes some milliseconds.
NODES_A_SCAN = 4096
# How long changes are collected: long enough that few of the commits wait for the disk at the same time as
# the quorum's own writes.
GATHER_MS = 20
# Delay before retrying on a full disk.
NO_SPACE_RETRY_MS = 1000

Nodes = dict[str, Node | None]


class ImageStore:
    """The tree in a store. Raises CorruptImage if the store holds no image of this cluster."""

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        self._store = store
        self._standing = _read_standing(store, cluster_id)

    @property
    def applied(self) -> OffsetAndEpoch:
        """How far the log is applied to the image; offset 0 if it is empty."""
        return self._standing.applied

    def check_against_log(self, end_offset: int, epoch_before: Callable[[int], int | None]) -> None:
        """Raises CorruptImage unless the image is a past state of the log from which replay can continue.

        `end_offset` is the log end offset; `epoch_before(offset)` returns the leader epoch of the last record
        below an offset, from the log or a snapshot that ends there, or None if unknown.
        """
        offset, epoch = self.applied
        if offset > end_offset:
            raise CorruptImage(f"the image is applied to offset {offset}, but the log ends at {end_offset}")
        if offset and (known := epoch_before(offset)) != epoch:
            found = "does not reach there" if known is None else f"has epoch {known} there"
            raise CorruptImage(
                f"the image is applied to offset {offset} in epoch {epoch}, but the log {found}"
            )

    def contents(self) -> Iterator[tuple[list[str], tuple[bytes, int]]]:
        """Iterate over all nodes, those of shorter paths first: the path's names after an empty one, and the
        fields of its Node.

        Raises CorruptImage; at the end if a node is missing. Nothing may be written during the iteration.
        """
        count = crc_sum = 0
        for depth in range(1, MAX_DEPTH + 1):
            for items in self._parts(bytes([depth])):
                for key, value in items:
                    yield names_of(key), unsealed(key, value)
                count += len(items)
                crc_sum += sum([crc_of(value) for _, value in items])
        if (count, crc_sum % (1 << 64)) != (self._standing.node_count, self._standing.crc_sum):
            raise CorruptImage(f"the image has {count} nodes, but {self._standing.node_count} were written")

    def _parts(self, prefix: bytes) -> Iterator[list[Item]]:
        after = b""
        while items := self._store.scan(prefix, after, NODES_A_SCAN):
            for key, _ in items:
                if key <= after:  # damaged pages of the tree could make a scan loop forever
                    raise CorruptImage(f"the key {key[:80]!r} comes after {after[:80]!r}")
                after = key
            yield items

    def write(self, nodes: Mapping[str, Node | None], applied: OffsetAndEpoch) -> None:
        """Set nodes by their paths, None to remove one, and the applied position, all or nothing.

        Raises InvalidRequest for an invalid path, and the store's errors; the image is then unchanged.
        """
        assert applied.offset >= self.applied.offset, f"{applied} is before {self.applied}"
        assert applied.epoch >= self.applied.epoch, f"{applied} is before {self.applied}"
        count = crcs = 0
        changes: dict[bytes, bytes | None] = {}
        for path, node in nodes.items():
            key = key_of(path)
            former = self._store.get(key)
            sealed = None if node is None else seal(key, node)
            if sealed == former:
                continue
            changes[key] = sealed
            if former is not None:
                unseal(key, former)
                count -= 1
                crcs -= crc_of(former)
            if sealed is not None:
                count += 1
                crcs += crc_of(sealed)
        standing = self._standing.with_changes(applied, count, crcs)
        changes[STANDING_KEY] = seal_standing(standing)
        self._store.write(changes)
        self._standing = standing


def _read_standing(store: MetadataStore, cluster_id: str) -> Standing:
    value = store.get(STANDING_KEY)
    if value is None:
        if store.scan(b"", b"", 1):
            raise CorruptImage("the image does not record how far its log is applied")
        return Standing(cluster_id, OffsetAndEpoch(0, 0))
    standing = unseal_standing(value)
    if standing.cluster_id != cluster_id:
        raise CorruptImage(f"the image belongs to cluster {standing.cluster_id!r}, not {cluster_id!r}")
    return standing


class ImageDirectory(Protocol):
    """The place of the image's store."""

    def open(self) -> MetadataStore:
        """Open the store, creating it if missing. Raises CorruptImage if it must be discarded first."""
        ...

    def discard(self) -> None:
        """Remove the store, which must be closed."""
        ...


class ImageWriter:
    """Writes the image of cluster `cluster_id` in `directory`, in `loop`."""

    def __init__(
        self, directory: ImageDirectory, cluster_id: str, loop: Loop, *, gather_ms: int = GATHER_MS
    ) -> None:
        self.error_count = 0
        self._directory = directory
        self._cluster_id = cluster_id
        self._loop = loop
        self._gather_ms = gather_ms
        self._store: MetadataStore | None = None
        self._image: ImageStore | None = None
        self._lock = Lock()
        # Guarded by _lock: nodes not written yet, the whole state with them, and the position it has reached.
        self._nodes: Nodes = {}
        self._whole = ClusterMetadata()
        self._applied = OffsetAndEpoch(0, 0)
        self._is_due = False

    def open(
        self, log_end_offset: int, epoch_before: Callable[[int], int | None]
    ) -> tuple[ClusterMetadata, OffsetAndEpoch]:
        """Load the image; return its state and the log position applied to it.

        If it is damaged, belongs to another cluster, or is not a past state of the log (see
        ImageStore.check_against_log), it is removed, and an empty state at offset 0 returned. Raises
        KafkaStorageError.
        """
        try:
            image = self._open()
            image.check_against_log(log_end_offset, epoch_before)
            metadata = image_paths.load(image.contents())
        except CorruptImage as error:
            LOGGER.warning("the metadata image is rebuilt from the log: %s", error)
            image, metadata = self._open_anew(), ClusterMetadata()
        self._image = image
        self._whole, self._applied = metadata.copy(), image.applied
        return metadata, image.applied

    @property
    def applied(self) -> OffsetAndEpoch:
        """How far the log is applied to the image on disk."""
        return OffsetAndEpoch(0, 0) if self._image is None else self._image.applied

    # ---- writing ------------------------------------------------------------------------------------------

    def submit(
        self, nodes: Mapping[str, Node | None], whole: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Write these nodes soon. `whole`: the cluster's state with them, which is no longer changed."""
        with self._lock:
            self._nodes.update(nodes)
            self._whole, self._applied = whole, applied
            is_due, self._is_due = self._is_due, True
        if not is_due:
            self._loop.post_later(self.write, self._gather_ms)

    def write(self) -> None:
        """Write the collected changes."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
            whole, applied = self._whole, self._applied
            self._is_due = False
        if self._image is None:
            return
        try:
            self._written(self._image, nodes, whole, applied)
        except StorageFull as error:
            self._failed("the metadata image cannot be written until the disk has space: %s", error)
            with self._lock:
                self._nodes = {**nodes, **self._nodes}
                is_due, self._is_due = self._is_due, True
            if not is_due:
                self._loop.post_later(self.write, NO_SPACE_RETRY_MS)
            return
        except (KafkaStorageError, CorruptImage) as error:
            self._failed("the metadata image is no longer written: %s", error)
            self._image = None

    def close(self) -> None:
        """Write remaining changes and close the store.

        Raises KafkaStorageError; the store is closed even so.
        """
        try:
            self.write()
        finally:
            self._image = None
            store, self._store = self._store, None
            if store is not None:
                store.close()

    def abandon(self) -> None:
        """Close the store as the end of the process would: remaining changes are not written."""
        self._image = None
        store, self._store = self._store, None
        if store is not None:
            store.abandon()

    def _written(
        self, image: ImageStore, nodes: Nodes, whole: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        try:
            image.write(nodes, applied)
            return
        except CorruptImage as error:
            self._failed("the metadata image is rebuilt: %s", error)
        self._image = self._open_anew()
        everything = image_paths.changed_nodes(difference(ClusterMetadata(), whole), whole)
        self._image.write(everything, applied)

    def _failed(self, what: str, error: Exception) -> None:
        self.error_count += 1
        LOGGER.error(what, error)

    def _open(self) -> ImageStore:
        self._store = self._directory.open()
        return ImageStore(self._store, self._cluster_id)

    def _open_anew(self) -> ImageStore:
        store, self._store = self._store, None
        if store is not None:
            store.close()
        self._directory.discard()
        return self._open()
