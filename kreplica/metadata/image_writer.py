"""ImageWriter: writes applied changes to the image, with a short delay and in its own loop.

A commit of the store waits for the disk, and the quorum's loop must not wait: durability comes from the log,
and the image is only a cache of it. So changes are collected, and one transaction writes them with the offset
and epoch they reach; after a crash a little more of the log is replayed. Then the watches' listeners are
notified. A damaged image is rebuilt from the loader's state. If the disk fails, the image is given up with a
message and the node continues without it; its next start finds an older image, or none.

`open`, `watch_*` and `close` must not be called while the loop runs the writer; `submit` is called by one
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from kreplica.common.errors import CorruptImage, KafkaStorageError, StorageFull
from kreplica.common.locks import Lock
from kreplica.common.ports import Loop
from kreplica.metadata import image_paths
from kreplica.metadata.cluster_metadata import ClusterMetadata, difference
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_store import ImageStore
from kreplica.metadata.metadata_store import MetadataStore
from kreplica.metadata.watches import Event, Watches

LOGGER = logging.getLogger(__name__)

# How long changes are collected: short enough to notify watches soon, long enough that few of the commits
# wait for the disk at the same time as the quorum's own writes.
GATHER_MS = 20
# Delay before retrying on a full disk.
NO_SPACE_RETRY_MS = 1000

Listener = Callable[[Event], None]
Nodes = dict[str, bytes | None]


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
        self._watches = Watches()
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
            metadata = image_paths.load(image)
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

    # ---- watches ------------------------------------------------------------------------------------------

    def watch_data(self, path: str, listener: Listener) -> None:
        """Notify `listener` of changes of the node, in the writer's loop, once they are in the image."""
        self._watches.watch_data(path, listener)

    def watch_children(self, path: str, listener: Listener) -> None:
        """Notify `listener` of children created or deleted below the path, likewise."""
        self._watches.watch_children(path, listener)

    def unwatch(self, path: str, listener: Listener) -> None:
        """Remove the listener's watches on the path."""
        self._watches.unwatch(path, listener)

    # ---- writing ------------------------------------------------------------------------------------------

    def submit(
        self, nodes: Mapping[str, bytes | None], whole: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Write these nodes soon. `whole`: the cluster's state with them, which is no longer changed."""
        with self._lock:
            self._nodes.update(nodes)
            self._whole, self._applied = whole, applied
            is_due, self._is_due = self._is_due, True
        if not is_due:
            self._loop.post_later(self.write, self._gather_ms)

    def write(self) -> None:
        """Write the collected changes, and notify the watches' listeners."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
            whole, applied = self._whole, self._applied
            self._is_due = False
        if self._image is None:
            return
        try:
            events = self._written(self._image, nodes, whole, applied)
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
            return
        self._notify(events)

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
    ) -> list[Event]:
        try:
            return _commit(image, nodes, applied)
        except CorruptImage as error:
            self._failed("the metadata image is rebuilt: %s", error)
        self._image = self._open_anew()
        # Watches are notified of everything that exists; their owners can compare it with what they know.
        everything = image_paths.changed_nodes(difference(ClusterMetadata(), whole))
        return _commit(self._image, everything, applied)

    def _notify(self, events: list[Event]) -> None:
        for event in events:
            listener = event.token
            assert callable(listener)
            try:
                listener(event)
            except Exception:
                self.error_count += 1
                LOGGER.exception("a listener failed on the change of %s", event.path)

    def _failed(self, what: str, error: Exception) -> None:
        self.error_count += 1
        LOGGER.error(what, error)

    def _open(self) -> ImageStore:
        self._store = self._directory.open()
        image = ImageStore(self._store, self._cluster_id)
        image.watches = self._watches
        return image

    def _open_anew(self) -> ImageStore:
        store, self._store = self._store, None
        if store is not None:
            store.close()
        self._directory.discard()
        return self._open()


def _commit(image: ImageStore, nodes: Nodes, applied: OffsetAndEpoch) -> list[Event]:
    with image.begin() as transaction:
        transaction.put(nodes)
        return transaction.commit(applied)
