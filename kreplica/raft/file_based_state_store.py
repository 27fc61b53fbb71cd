"""FileBasedStateStore: reads and writes the file `quorum-state` in the metadata log's directory.

The file holds promises made to other nodes. Each write replaces the file atomically and is on disk when it
returns. A file that cannot be read stops the node, since the node may have voted in an epoch that it cannot
remember. Owned by the raft loop.
"""

from __future__ import annotations

from kreplica.common.ports import Storage
from kreplica.common.quorum_state import (
    FILE_NAME,
    QuorumStateData,
    format_quorum_state,
    parse_quorum_state,
)

# Far more than the state of any election takes.
MAX_BYTES = 1 << 20


class FileBasedStateStore:
    """The QuorumStateStore of an existing directory. Reads and writes both versions of the data."""

    __slots__ = ("_storage", "path")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.path = f"{directory}/{FILE_NAME}"

    def read(self) -> QuorumStateData | None:
        """Return the state that was last written; None if nothing was written.

        Raises InvalidFile, UnsupportedVersion, KafkaStorageError, and then changes nothing.
        """
        if not self._storage.exists(self.path):
            return None
        return parse_quorum_state(self._storage.read_file(self.path, MAX_BYTES), self.path)

    def write(self, state: QuorumStateData) -> None:
        """Write the state to disk. After a KafkaStorageError, either the old or the new state is stored."""
        self._storage.write_file_atomically(self.path, format_quorum_state(state))
