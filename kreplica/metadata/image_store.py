"""The metadata image: the cluster as a tree of paths, as ZooKeeper had it, and how far the log is in it.

    /brokers/ids/1     /brokers/topics/t/partitions/0/state     /config/topics/t     /controller

Each node has bytes and a version, which compare-and-set asks for. What a batch of the log changes is one
ImageTransaction: it sees its own changes, nobody else does, and its commit writes them together with the
offset and epoch that the log is applied to. The commit returns what the watches have to tell.

The image is nothing that the log does not know. So whenever it is broken (a CRC, the sum over all nodes),
another cluster's, or not a past of the log, the answer is CorruptImage, and whoever gets it clears the store
and applies the log anew.

One thread has transactions, and the watches; any thread may read what is committed.
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
# How many nodes are read at once: some milliseconds.
NODES_A_SCAN = 4096


class ImageStore:
    """The tree in a store; `watches` says who is told of changes.

    Raises CorruptImage if the store holds no image of this cluster.
    """

    def __init__(self, store: MetadataStore, cluster_id: str) -> None:
        self.watches = Watches()
        self._store = store
        self._standing = _read_standing(store, cluster_id)
        self._transaction: ImageTransaction | None = None

    @property
    def applied(self) -> OffsetAndEpoch:
        """How far the log is in the image; offset 0 of an empty one."""
        return self._standing.applied

    def check_against_log(self, end_offset: int, epoch_before: Callable[[int], int | None]) -> None:
        """Raises CorruptImage unless the image is a past of the log, from where the log can go on.

        `end_offset` is the log's end; `epoch_before(offset)` the leader epoch of the last record below an
        offset, as the log or a snapshot that ends there knows it, or None where neither does.
        """
        offset, epoch = self.applied
        if offset > end_offset:
            raise CorruptImage(f"the image is applied to offset {offset}, the log ends at {end_offset}")
        if offset and (known := epoch_before(offset)) != epoch:
            found = "does not reach there" if known is None else f"is of epoch {known} there"
            raise CorruptImage(f"the image is applied to offset {offset} of epoch {epoch}, the log {found}")

    # ---- reading -----------------------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        """What stands at the path; None if nothing does. Raises CorruptImage if it is broken."""
        key = key_of(path)
        value = self._store.get(key)
        return None if value is None else unseal(key, value)

    def exists(self, path: str) -> bool:
        """Whether something stands at the path; the root always does."""
        return not check_path(path) or self._store.get(key_of(path)) is not None

    def children(self, path: str) -> list[str]:
        """The names right below the path, in the order of their bytes; [] where nothing is."""
        return [path_of(key).rpartition("/")[2] for key, _ in self._below(path, 1)]

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """All nodes, parents before their children. Raises CorruptImage, at the end where one is missing.

        Nothing may be committed meanwhile.
        """
        for items in self._all():
            for key, value in items:
                yield path_of(key), unseal(key, value)

    def contents(self) -> Iterator[tuple[list[str], bytes]]:
        """As `nodes`, of each the names in its path, behind an empty one, and its bytes: for whoever reads
        hundreds of thousands."""
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
            raise CorruptImage(f"{count} nodes are not the {self._standing.node_count} that were written")

    def paths_below(self, path: str) -> Iterator[str]:
        """The paths of all nodes below this one, parents before their children."""
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
                if key <= after:  # rot between the pages of a tree can lead a search in a circle
                    raise CorruptImage(f"the key {key[:80]!r} comes after {after[:80]!r}")
                after = key
            yield items

    # ---- changing ----------------------------------------------------------------------------------------

    def begin(self) -> ImageTransaction:
        """A transaction; there may be one at a time. Leaving it as a context manager drops what is not
        committed.
        """
        if self._transaction is not None:
            raise InvalidRequest("another transaction of the image is open")
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
            raise InvalidRequest(f"the image is applied to {self.applied}, and never goes back to {applied}")
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
    """Changes of the image that become one. A call that raises has changed nothing, and others may follow."""

    def __init__(self, image: ImageStore) -> None:
        self._image = image
        self._before: dict[str, Node | None] = {}  # what was read
        self._after: dict[str, Node | None] = {}
        self._names: dict[str, dict[str, bool]] = {}  # by parent: what came (True) or went
        self._is_open = True

    def get(self, path: str) -> Node | None:
        """What stands at the path, with the changes of this transaction."""
        if path in self._after:
            return self._after[path]
        if path not in self._before:
            self._before[path] = self._image.get(path)
        return self._before[path]

    def exists(self, path: str) -> bool:
        """Whether something stands at the path, with the changes of this transaction."""
        return path == ROOT or self.get(path) is not None

    def children(self, path: str) -> list[str]:
        """The names right below the path, with the changes of this transaction."""
        names = self._image.children(path)
        changed = self._names.get(path)
        if changed:
            kept = [name for name in names if name not in changed]
            names = sorted(kept + [name for name, is_there in changed.items() if is_there])
        return names

    def create(self, path: str, data: bytes = b"", *, make_parents: bool = False) -> None:
        """Make a node of version 0.

        Raises NodeExists, or NoNode where the parent is missing, unless `make_parents`: then it is made,
        empty.
        """
        key_of(path)
        if self.exists(path):
            raise NodeExists(f"there is a node at {path}")
        parent = _parent_of(path)
        if not self.exists(parent):
            if not make_parents:
                raise NoNode(f"there is no node at {parent}")
            self.create(parent, make_parents=True)
        self._change(path, Node(bytes(data), 0))

    def put(self, nodes: Mapping[str, bytes | None]) -> None:
        """Give nodes these bytes, made with their parents where they are not there; None: remove it, if it
        is there.

        Raises NotEmpty where one that is to be removed has children that stay.
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
                # `get` has noted what was before, and no name came or went.
                self._check_open()
                self._after[path] = Node(data, node.version + 1)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Give the node other bytes if it is of that version; returns its new one.

        Raises NoNode, and BadVersion if it is of another version.
        """
        node = self._expect(path, version)
        self._change(path, Node(bytes(data), node.version + 1))
        return node.version + 1

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove the node if it is of that version. Raises NoNode, BadVersion, and NotEmpty if it has
        children.
        """
        self._expect(path, version)
        if self.children(path):
            raise NotEmpty(f"the node at {path} has children")
        self._change(path, None)

    def delete_tree(self, path: str) -> None:
        """Remove the node and all below it. Raises NoNode."""
        self._expect(path, ANY_VERSION)
        committed = [below for below in self._image.paths_below(path) if below not in self._after]
        own = [other for other, node in self._after.items() if node and other.startswith(f"{path}/")]
        for each in (*committed, *own, path):
            self._change(each, None)

    def commit(self, applied: OffsetAndEpoch) -> list[Event]:
        """Write all changes, and that the log is applied to there; returns what the watches have to tell.

        Raises what the store does; then the image is as it was, and the call may be made again.
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
            raise InvalidRequest("the transaction of the image is over")

    def _expect(self, path: str, version: int) -> Node:
        node = self.get(path)
        if node is None:
            raise NoNode(f"there is no node at {path}")
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(f"the node at {path} is of version {node.version}, not {version}")
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
            raise CorruptImage("an image that does not say how far its log is applied")
        return Standing(cluster_id, OffsetAndEpoch(0, 0))
    standing = unseal_standing(value)
    if standing.cluster_id != cluster_id:
        raise CorruptImage(f"the image of cluster {standing.cluster_id!r}, not of {cluster_id!r}")
    return standing
