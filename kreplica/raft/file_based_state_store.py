"""FileBasedStateStore: the file `quorum-state` in the metadata log's directory.

What it holds was promised to other nodes, so each write is on the disk before it returns, and takes the place
of the former one as a whole. One that cannot be read stops the node: it may have voted in an epoch that it
does not remember. Owned by the raft loop.
"""

from __future__ import annotations

from kreplica.common.ports import Storage
from kreplica.common.quorum_state import (
    FILE_NAME,
    QuorumStateData,
    format_quorum_state,
    parse_quorum_state,
)

# Far more than any quorum's election takes.
MAX_BYTES = 1 << 20


class FileBasedStateStore:
    """The QuorumStateStore of a directory, which is there. Both data versions are read and written."""

    __slots__ = ("_storage", "path")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.path = f"{directory}/{FILE_NAME}"

    def read(self) -> QuorumStateData | None:
        """What was last written; None if nothing ever was.

        Raises InvalidFile, UnsupportedVersion, KafkaStorageError; nothing is changed then.
        """
        if not self._storage.exists(self.path):
            return None
        return parse_quorum_state(self._storage.read_file(self.path, MAX_BYTES), self.path)

    def write(self, state: QuorumStateData) -> None:
        """Put it on disk. Raises KafkaStorageError: what is stored may then be the former or the new one."""
        self._storage.write_file_atomically(self.path, format_quorum_state(state))
