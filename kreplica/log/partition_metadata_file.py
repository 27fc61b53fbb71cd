"""`partition.metadata`: the id of the topic that a partition's directory belongs to.

    version: 0
    topic_id: LTI8RhnvRxuKOoQOOm5XwA

The last line has no newline in Kafka's files. A topic that was deleted and created again keeps its name and
gets another id. The id shows which of the two a directory belongs to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kreplica.common.errors import InvalidFile, InvalidRequest
from kreplica.common.types import Uuid

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

FILE_NAME = "partition.metadata"
VERSION = 0

_CONTENT = re.compile(rb"version: ([0-9]{1,9})\ntopic_id: ([A-Za-z0-9_-]{22})\n?")


class PartitionMetadataFile:
    """The file in one partition's directory. It holds no state; the log's owner reads and writes the file."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.directory = directory

    @property
    def path(self) -> str:
        return f"{self.directory}/{FILE_NAME}"

    def read(self) -> Uuid | None:
        """Return the topic id, or None without a file. Raises InvalidFile."""
        return self.parse(self._storage.read_file(self.path), self.path) if self.exists() else None

    def write(self, topic_id: Uuid, *, flush_name: bool = True) -> None:
        """Write the file durably. With `flush_name=False`, the caller flushes the directory."""
        self._storage.write_file_atomically(self.path, self.format(topic_id), flush_name=flush_name)

    def exists(self) -> bool:
        return self._storage.exists(self.path)

    @staticmethod
    def format(topic_id: Uuid) -> bytes:
        return f"version: {VERSION}\ntopic_id: {topic_id}".encode("ascii")

    @staticmethod
    def parse(data: bytes, path: str) -> Uuid:
        """Parse the topic id. Raises InvalidFile for another version, the zero id, or other content."""
        content = _CONTENT.fullmatch(data)
        if content is None:
            raise InvalidFile(f"{path}: is not the two lines 'version: {VERSION}' and 'topic_id: ...'")
        if int(content[1]) != VERSION:
            raise InvalidFile(f"{path}: version {int(content[1])}, not {VERSION}")
        try:
            topic_id = Uuid.parse(content[2].decode("ascii"))
        except InvalidRequest as error:
            raise InvalidFile(f"{path}: topic_id: {error}") from None
        if topic_id == Uuid.ZERO:
            raise InvalidFile(f"{path}: topic_id is the zero id, which no topic has")
        return topic_id
