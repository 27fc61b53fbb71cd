"""ImageWriter: brings what the loader has applied to the image, a moment later and in a loop of its own.

A commit of the store waits for the disk, and the quorum's loop must not: what others wait for is the log, and
the image is only a cache of it. So changes gather, and one transaction writes all of them with the offset and
epoch they go up to; a restart after a crash replays a little more of the log. Then the watches' listeners are
told. An image that turns out to be broken is made anew from what the loader knows; one that the disk refuses
is given up with a message, and the node goes on without: its next start has an older one, or none.

`open`, `watch_*` and `close` are called while the loop does not run the writer; `submit` from any one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from kreplica.common.errors import CorruptImage, KafkaStorageError, StorageFull
from kreplica.common.locks import Lock
from kreplica.common.ports import Loop
from kreplica.metadata import image_paths
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.image_store import ImageStore
from kreplica.metadata.metadata_delta import difference
from kreplica.metadata.metadata_store import MetadataStore
from kreplica.metadata.watches import Event, Watches

LOGGER = logging.getLogger(__name__)

# How long changes gather. Short enough that a watch is told soon, long enough that one commit in many waits
# for the disk together with the quorum's own.
GATHER_MS = 20
# How soon a disk that was full is asked again.
NO_SPACE_RETRY_MS = 1000

Listener = Callable[[Event], None]
Nodes = dict[str, bytes | None]


class ImageDirectory(Protocol):
    """Where the image's store is."""

    def open(self) -> MetadataStore:
        """The store, made if there is none. Raises CorruptImage where it has to be discarded first."""
        ...

    def discard(self) -> None:
        """Remove it; nobody has it open."""
        ...


class ImageWriter:
    """The image of cluster `cluster_id` in `directory`; `loop` runs what writes it."""

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
        # Guarded by _lock: what is not written yet, the whole at that point, and how far that is.
        self._nodes: Nodes = {}
        self._whole = ClusterMetadata()
        self._applied = OffsetAndEpoch(0, 0)
        self._is_due = False

    def open(
        self, log_end_offset: int, epoch_before: Callable[[int], int | None]
    ) -> tuple[ClusterMetadata, OffsetAndEpoch]:
        """What the image knows, and how far the log is in it: nothing, and offset 0, where it was broken,
        another cluster's, or no past of the log (see ImageStore.check_against_log). It was removed then.

        Raises KafkaStorageError.
        """
        try:
            image = self._open()
            image.check_against_log(log_end_offset, epoch_before)
            metadata = image_paths.load(image)
        except CorruptImage as error:
            LOGGER.warning("the metadata image is made anew: %s", error)
            image, metadata = self._open_anew(), ClusterMetadata()
        self._image = image
        self._whole, self._applied = metadata.copy(), image.applied
        return metadata, image.applied

    @property
    def applied(self) -> OffsetAndEpoch:
        """How far the log is in the image on disk."""
        return OffsetAndEpoch(0, 0) if self._image is None else self._image.applied

    # ---- watches ------------------------------------------------------------------------------------------

    def watch_data(self, path: str, listener: Listener) -> None:
        """Tell `listener` of changes of the node, in the writer's loop, once they are in the image."""
        self._watches.watch_data(path, listener)

    def watch_children(self, path: str, listener: Listener) -> None:
        """Tell `listener` of children that come to or go from the path, likewise."""
        self._watches.watch_children(path, listener)

    def unwatch(self, path: str, listener: Listener) -> None:
        """Take away the listener's watches on the path."""
        self._watches.unwatch(path, listener)

    # ---- writing ------------------------------------------------------------------------------------------

    def submit(
        self, nodes: Mapping[str, bytes | None], whole: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Write these nodes soon. `whole`: the cluster with them, which nobody changes any more."""
        with self._lock:
            self._nodes.update(nodes)
            self._whole, self._applied = whole, applied
            is_due, self._is_due = self._is_due, True
        if not is_due:
            self._loop.post_later(self.write, self._gather_ms)

    def write(self) -> None:
        """Write what has gathered, and tell the watches' listeners."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
            whole, applied = self._whole, self._applied
            self._is_due = False
        if self._image is None:
            return
        try:
            events = self._written(self._image, nodes, whole, applied)
        except StorageFull as error:
            self._failed("the metadata image waits for space: %s", error)
            with self._lock:
                self._nodes = {**nodes, **self._nodes}
                is_due, self._is_due = self._is_due, True
            if not is_due:
                self._loop.post_later(self.write, NO_SPACE_RETRY_MS)
            return
        except (KafkaStorageError, CorruptImage) as error:
            self._failed("the metadata image is given up: %s", error)
            self._image = None
            return
        self._tell(events)

    def close(self) -> None:
        """Write what is left, and let the store go. Raises KafkaStorageError; it is let go then, too."""
        try:
            self.write()
        finally:
            self._image = None
            store, self._store = self._store, None
            if store is not None:
                store.close()

    def abandon(self) -> None:
        """Let the store go as the end of the process would: what is left is not written."""
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
            self._failed("the metadata image is made anew: %s", error)
        self._image = self._open_anew()
        # Whoever watches is told of all that is there, and finds out by himself what he missed.
        everything = image_paths.changed_nodes(difference(ClusterMetadata(), whole))
        return _commit(self._image, everything, applied)

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            listener = event.token
            assert callable(listener)
            try:
                listener(event)
            except Exception:
                self.error_count += 1
                LOGGER.exception("a listener failed with the change of %s", event.path)

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
