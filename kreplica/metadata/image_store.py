"""ImageStore: the metadata image, a tree of paths like ZooKeeper's, and the log position applied to it.

    /brokers/ids/1     /brokers/topics/t/partitions/0/state     /config/topics/t     /controller

Each node has bytes and a version for compare-and-set. The changes of one batch of the log form one
ImageTransaction: it sees its own changes, which others do not see before its commit. The commit writes them
together with the offset and epoch of the log, and returns the events of the watches.

The image contains nothing that the log does not. If it is damaged (a CRC, the sum over all nodes), belongs to
another cluster, or is not a past state of the log, CorruptImage is raised, and the caller clears the store
and replays the log.

One thread uses transactions and watches; any thread may read committed nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

from kreplica.common.errors import BadVersion, CorruptImage, InvalidRequest, NodeExists, NoNode, NotEmpty
from kreplica.metadata.image_format import (
    MAX_DEPTH,
    ROOT,
    STANDING_KEY,
    Node,
    OffsetAndEpoch,
    Standing,
    check_path,
    crc_of,
    key_of,
    names_of,
    path_of,
    prefix_below,
    seal,
    seal_standing,
    unseal,
    unseal_standing,
    unsealed_data,
)
from kreplica.metadata.metadata_store import Item, MetadataStore
from kreplica.metadata.watches import Event, Watches

ANY_VERSION = -1
# Nodes to read at once, which takes some milliseconds.
NODES_A_SCAN = 4096


class ImageStore:
    """The tree in a store; `watches` are the subscriptions to its changes.

    Raises CorruptImage if the store holds no image of this cluster.
    """

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        self.watches = Watches()
        self._store = store
        self._standing = _read_standing(store, cluster_id)
        self._transaction: ImageTransaction | None = None

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

    # ---- reading -----------------------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        """Return the node at the path, or None. Raises CorruptImage if it is damaged."""
        key = key_of(path)
        value = self._store.get(key)
        return None if value is None else unseal(key, value)

    def exists(self, path: str) -> bool:
        """Whether a node exists at the path; the root always does."""
        return not check_path(path) or self._store.get(key_of(path)) is not None

    def children(self, path: str) -> list[str]:
        """Return the names directly below the path, sorted by their bytes; [] if the path does not exist."""
        return [path_of(key).rpartition("/")[2] for key, _ in self._below(path, 1)]

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Iterate over all nodes, parents before children. Raises CorruptImage; at the end if one is missing.

        Nothing may be committed during the iteration.
        """
        for items in self._all():
            for key, value in items:
                yield path_of(key), unseal(key, value)

    def contents(self) -> Iterator[tuple[list[str], bytes]]:
        """Iterate over all nodes, faster than `nodes`: the path's names after an empty one, and the bytes."""
        for items in self._all():
            for key, value in items:
                yield names_of(key), unsealed_data(key, value)

    def _all(self) -> Iterator[list[Item]]:
        count = crc_sum = 0
        for depth in range(1, MAX_DEPTH + 1):
            for items in self._parts(bytes([depth])):
                yield items
                count += len(items)
                crc_sum += sum([crc_of(value) for _, value in items])
        if (count, crc_sum % (1 << 64)) != (self._standing.node_count, self._standing.crc_sum):
            raise CorruptImage(f"the image has {count} nodes, but {self._standing.node_count} were written")

    def paths_below(self, path: str) -> Iterator[str]:
        """Iterate over the paths of all nodes below this one, parents before children."""
        for levels in range(1, MAX_DEPTH + 1 - len(check_path(path))):
            empty = True
            for key, _ in self._below(path, levels):
                empty = False
                yield path_of(key)
            if empty:
                return

    def _below(self, path: str, levels: int) -> Iterator[Item]:
        return self._scan(prefix_below(path, levels))

    def _scan(self, prefix: bytes) -> Iterator[Item]:
        for items in self._parts(prefix):
            yield from items

    def _parts(self, prefix: bytes) -> Iterator[list[Item]]:
        after = b""
        while items := self._store.scan(prefix, after, NODES_A_SCAN):
            for key, _ in items:
                if key <= after:  # damaged pages of the tree could make a scan loop forever
                    raise CorruptImage(f"the key {key[:80]!r} comes after {after[:80]!r}")
                after = key
            yield items

    # ---- changing ----------------------------------------------------------------------------------------

    def begin(self) -> ImageTransaction:
        """Start a transaction; only one may be open. As a context manager it drops uncommitted changes."""
        if self._transaction is not None:
            raise InvalidRequest("another transaction of the image is open: commit or close it first")
        self._transaction = ImageTransaction(self)
        return self._transaction

    def _end(self) -> None:
        self._transaction = None

    def _write(
        self,
        before: dict[str, Node | None],
        after: dict[str, Node | None],
        applied: OffsetAndEpoch,
    ) -> list[Event]:
        if applied.offset < self.applied.offset or applied.epoch < self.applied.epoch:
            raise InvalidRequest(f"the image is applied to {self.applied} and cannot go back to {applied}")
        nodes = crcs = 0
        changes: dict[bytes, bytes | None] = {}
        for path, node in after.items():
            former = before[path]
            if node == former:
                continue
            key = key_of(path)
            changes[key] = sealed = None if node is None else seal(key, node)
            if former is not None:
                nodes -= 1
                crcs -= crc_of(seal(key, former))
            if sealed is not None:
                nodes += 1
                crcs += crc_of(sealed)
        standing = self._standing.with_changes(applied, nodes, crcs)
        changes[STANDING_KEY] = seal_standing(standing)
        self._store.write(changes)
        self._standing = standing
        return list(self.watches.events(before, after))


class ImageTransaction:
    """A set of changes that is committed as one.

    A call that raises changes nothing; the transaction goes on.
    """

    def __init__(self, image: ImageStore) -> None:
        self._image = image
        self._before: dict[str, Node | None] = {}  # nodes as read
        self._after: dict[str, Node | None] = {}
        self._names: dict[str, dict[str, bool]] = {}  # by parent: names created (True) or deleted (False)
        self._is_open = True

    def get(self, path: str) -> Node | None:
        """Return the node at the path, including changes of this transaction, or None."""
        if path in self._after:
            return self._after[path]
        if path not in self._before:
            self._before[path] = self._image.get(path)
        return self._before[path]

    def exists(self, path: str) -> bool:
        """Whether a node exists at the path, including changes of this transaction."""
        return path == ROOT or self.get(path) is not None

    def children(self, path: str) -> list[str]:
        """Return the names directly below the path, including changes of this transaction."""
        names = self._image.children(path)
        changed = self._names.get(path)
        if changed:
            kept = [name for name in names if name not in changed]
            names = sorted(kept + [name for name, is_there in changed.items() if is_there])
        return names

    def create(self, path: str, data: bytes = b"", *, make_parents: bool = False) -> None:
        """Create a node with version 0.

        Raises NodeExists, and NoNode if the parent is missing; with `make_parents` missing parents are
        created, empty.
        """
        key_of(path)
        if self.exists(path):
            raise NodeExists(f"there is already a node at {path}")
        parent = _parent_of(path)
        if not self.exists(parent):
            if not make_parents:
                raise NoNode(f"there is no node at {parent}")
            self.create(parent, make_parents=True)
        self._change(path, Node(bytes(data), 0))

    def put(self, nodes: Mapping[str, bytes | None]) -> None:
        """Set the bytes of nodes; create missing ones with their parents; remove a node for None.

        Raises NotEmpty if a node to be removed has children that are not removed.
        """
        removed = [path for path, data in nodes.items() if data is None and self.exists(path)]
        for path in sorted(removed, key=lambda path: -path.count("/")):
            self.delete(path)
        for path, data in nodes.items():
            if data is None:
                continue
            node = self.get(path)
            if node is None:
                self.create(path, data, make_parents=True)
            else:
                # `get` has recorded the previous node, and no name was created or deleted.
                self._check_open()
                self._after[path] = Node(data, node.version + 1)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the node's bytes if it has the expected version; return the new version.

        Raises NoNode, and BadVersion if it has another version.
        """
        node = self._expect(path, version)
        self._change(path, Node(bytes(data), node.version + 1))
        return node.version + 1

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node if it has the expected version. Raises NoNode, BadVersion, NotEmpty."""
        self._expect(path, version)
        if self.children(path):
            raise NotEmpty(f"the node at {path} has children")
        self._change(path, None)

    def delete_tree(self, path: str) -> None:
        """Delete the node and everything below it. Raises NoNode."""
        self._expect(path, ANY_VERSION)
        committed = [below for below in self._image.paths_below(path) if below not in self._after]
        own = [other for other, node in self._after.items() if node and other.startswith(f"{path}/")]
        for each in (*committed, *own, path):
            self._change(each, None)

    def commit(self, applied: OffsetAndEpoch) -> list[Event]:
        """Write all changes and the applied position atomically; return the events of the watches.

        Raises the store's errors; the image is then unchanged, and the call may be retried.
        """
        self._check_open()
        events = self._image._write(self._before, self._after, applied)
        self._close()
        return events

    def __enter__(self) -> ImageTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._image._end()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidRequest("the transaction of the image has ended: begin another one")

    def _expect(self, path: str, version: int) -> Node:
        node = self.get(path)
        if node is None:
            raise NoNode(f"there is no node at {path}")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"the node at {path} has version {node.version}, not {version}")
        return node

    def _change(self, path: str, node: Node | None) -> None:
        self._check_open()
        self.get(path)
        self._after[path] = node
        parent = _parent_of(path)
        self._names.setdefault(parent, {})[path[len(parent) + (parent != ROOT) :]] = node is not None


def _parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


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
