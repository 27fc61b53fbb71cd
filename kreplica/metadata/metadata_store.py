"""The port under the metadata image: an ordered map of bytes that changes many keys at once, or none.

`LmdbMetadataStore` in runtime/ keeps it in a file, `MemoryMetadataStore` here in memory, for simulations and
tests. No call leaves anything open behind it: what a `scan` returns is a copy, so no reader keeps old pages
from being used again. One thread writes; any thread may read meanwhile and sees what was there before a
write, or after it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Protocol

# The longest key that every store takes, in bytes: LMDB's own limit.
MAX_KEY_BYTES = 511
Item = tuple[bytes, bytes]


class MetadataStore(Protocol):
    """Keys of 1 to MAX_KEY_BYTES bytes, in the order of their bytes, and a value for each.

    Every method raises CorruptImage where what it meets is no store any more, and KafkaStorageError where the
    system refuses.
    """

    def get(self, key: bytes) -> bytes | None:
        """The key's value; None where there is none."""
        ...

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """The first `limit` keys that start with `prefix` and come behind `after`, with their values."""
        ...

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Give keys their values, None to remove them: all of it or, when it raises, nothing.

        It lasts when the machine goes on. A power cut may take the last write away, never a part of one.
        """
        ...

    def clear(self) -> None:
        """Remove every key."""
        ...

    def close(self) -> None:
        """Let go of what the store holds; nothing may be called after it."""
        ...

    def abandon(self) -> None:
        """Likewise, as the end of the process would do it: nothing is written any more."""
        ...


class MemoryMetadataStore:
    """A MetadataStore that is gone with the process. It belongs to one thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []  # sorted
        self._last: dict[bytes, bytes | None] = {}  # what the last write replaced

    def get(self, key: bytes) -> bytes | None:
        """The key's value; None where there is none."""
        return self._values.get(key)

    def scan(self, prefix: bytes, after: bytes, limit: int) -> list[Item]:
        """The first `limit` keys that start with `prefix` and come behind `after`, with their values."""
        start = bisect_left(self._keys, max(prefix, after + b"\0" if after else b""))
        found = []
        for key in self._keys[start : start + limit]:
            if not key.startswith(prefix):
                break
            found.append((key, self._values[key]))
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Give keys their values, None to remove them."""
        self._last = {key: self._values.get(key) for key in changes}
        for key, value in changes.items():
            self._put(key, value)

    def lose_last_write(self) -> None:
        """What a power cut may do: the last write did not happen."""
        for key, value in self._last.items():
            self._put(key, value)
        self._last = {}

    def clear(self) -> None:
        """Remove every key."""
        self.write(dict.fromkeys(self._keys))

    def close(self) -> None:
        """Nothing is held."""

    def abandon(self) -> None:
        """Nothing is held."""

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value


class MemoryImageDirectory:
    """A MemoryMetadataStore that stays when it is closed, as a file does: for simulations and tests."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()

    def open(self) -> MemoryMetadataStore:
        """The store, with what was in it when it was closed."""
        return self.store

    def discard(self) -> None:
        """Another store, with nothing in it."""
        self.store = MemoryMetadataStore()
