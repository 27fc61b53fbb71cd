"""Watches on the metadata image: subscriptions to changes of nodes.

As in ZooKeeper, a watch is on a node's data or on its children; unlike there, it stays until it is removed.
There are no callbacks: a commit returns the events, each with the token of its watch. A batch is one change:
a node that it both creates and deletes causes no event.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kreplica.metadata.image_format import ROOT, Node


@dataclass(frozen=True, slots=True)
class DataChanged:
    """A node was created or changed, or deleted (then `node` is None)."""

    token: Hashable
    path: str
    node: Node | None


@dataclass(frozen=True, slots=True)
class ChildrenChanged:
    """Children of a node were created or deleted; their names, sorted."""

    token: Hashable
    path: str
    created: tuple[str, ...]
    deleted: tuple[str, ...]


Event = DataChanged | ChildrenChanged


class Watches:
    """The watches by path. It belongs to the thread that commits."""

    def __init__(self) -> None:
        # In the order they were set, so that events always come in the same order.
        self._data: dict[str, dict[Hashable, None]] = {}
        self._children: dict[str, dict[Hashable, None]] = {}

    def watch_data(self, path: str, token: Hashable) -> None:
        """Watch the data of the node at `path`, which need not exist."""
        self._data.setdefault(path, {})[token] = None

    def watch_children(self, path: str, token: Hashable) -> None:
        """Watch the children of `path`, which need not exist."""
        self._children.setdefault(path, {})[token] = None

    def unwatch(self, path: str, token: Hashable) -> None:
        """Remove this token's watches on `path`, if there are any."""
        for watches in (self._data, self._children):
            tokens = watches.get(path, {})
            tokens.pop(token, None)
            if not tokens:
                watches.pop(path, None)

    def events(self, before: Mapping[str, Node | None], after: Mapping[str, Node | None]) -> Iterator[Event]:
        """Iterate over the events, given the touched nodes before and after.

        Events of data come first, in the order of their paths, then events of children.
        """
        changed = sorted(path for path in after if before[path] != after[path])
        for path in changed:
            for token in self._data.get(path, ()):
                yield DataChanged(token, path, after[path])
        created = _by_parent(path for path in changed if before[path] is None)
        deleted = _by_parent(path for path in changed if after[path] is None)
        for parent in sorted(created.keys() | deleted.keys()):
            for token in self._children.get(parent, ()):
                yield ChildrenChanged(
                    token, parent, tuple(created.get(parent, ())), tuple(deleted.get(parent, ()))
                )


def _by_parent(paths: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        names.setdefault(parent or ROOT, []).append(name)
    return names
