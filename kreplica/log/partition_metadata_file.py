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
from kreplica.log.small_file import SmallFile

if TYPE_CHECKING:
    pass

FILE_NAME = "partition.metadata"
VERSION = 0

_CONTENT = re.compile(rb"version: ([0-9]{1,9})\ntopic_id: ([A-Za-z0-9_-]{22})\n?")


class PartitionMetadataFile(SmallFile[Uuid]):
    """The file in one partition's directory."""

    NAME = FILE_NAME

    @staticmethod
    def format(content: Uuid) -> bytes:
        return f"version: {VERSION}\ntopic_id: {content}".encode("ascii")

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
