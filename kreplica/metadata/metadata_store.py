"""MetadataStore: the port under the metadata image, an ordered map of bytes with atomic multi-key writes.

`LmdbMetadataStore` in runtime/ keeps it in a file, `MemoryMetadataStore` here in memory, for simulations and
tests. No call leaves anything open: a `scan` returns a copy, so readers do not prevent the reuse of old
pages. One thread writes; any thread may read meanwhile and sees the state before a write or after it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Protocol

# The maximum key length of every store, in bytes: LMDB's limit.
MAX_KEY_BYTES = 511
Item = tuple[bytes, bytes]


class MetadataStore(Protocol):
    """Keys of 1 to MAX_KEY_BYTES bytes, sorted, each with a value.

    Every method raises CorruptImage if the store is damaged, and KafkaStorageError if the system fails.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the key's value, or None."""
        ...

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """Return the first `limit` keys after `after` that start with `prefix`, with their values."""
        ...

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set the values of keys, None to remove one, atomically; nothing is changed if it raises.

        A crash of the process loses nothing. A power failure may undo the last write, but never a part of it.
        """
        ...

    def clear(self) -> None:
        """Remove every key."""
        ...

    def close(self) -> None:
        """Release the store's resources; nothing may be called afterwards."""
        ...

    def abandon(self) -> None:
        """Release the store's resources as the end of the process would: write nothing more."""
        ...


class MemoryMetadataStore:
    """A MetadataStore in memory. It belongs to one thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []  # sorted
        self._last: dict[bytes, bytes | None] = {}  # the values replaced by the last write

    def get(self, key: bytes) -> bytes | None:
        """Return the key's value, or None."""
        return self._values.get(key)

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """Return the first `limit` keys after `after` that start with `prefix`, with their values."""
        start = bisect_left(self._keys, max(prefix, after + b"\0" if after else b""))
        found = []
        for key in self._keys[start : start + limit]:
            if not key.startswith(prefix):
                break
            found.append((key, self._values[key]))
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set the values of keys, None to remove one."""
        self._last = {key: self._values.get(key) for key in changes}
        for key, value in changes.items():
            self._put(key, value)

    def lose_last_write(self) -> None:
        """Undo the last write, as a power failure may."""
        for key, value in self._last.items():
            self._put(key, value)
        self._last = {}

    def clear(self) -> None:
        """Remove every key."""
        self.write(dict.fromkeys(self._keys))

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def abandon(self) -> None:
        """Do nothing: no resources are held."""

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value


class MemoryImageDirectory:
    """Keeps a MemoryMetadataStore over closing, as a file does: for simulations and tests."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()

    def open(self) -> MemoryMetadataStore:
        """Return the store, with the contents it had when it was closed."""
        return self.store

    def discard(self) -> None:
        """Replace the store by an empty one."""
        self.store = MemoryMetadataStore()
