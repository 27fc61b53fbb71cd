"""`.kafka_cleanshutdown`: marks a log directory as cleanly shut down, so its logs need no recovery.

    {"version":0,"brokerEpoch":10}

It is written last at a clean stop, and removed at the next start before the first log is loaded. If it
survived a crash during loading, the next start would trust logs that were never checked (KAFKA-10471). With
its broker epoch the controller distinguishes a clean restart from an unclean one (KIP-966); -1 if unknown.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kreplica.common.errors import InvalidFile
from kreplica.common.json_file import integer, parse_object
from kreplica.common.types import INT64_MAX

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

FILE_NAME = ".kafka_cleanshutdown"
VERSION = 0
UNKNOWN_BROKER_EPOCH = -1


class CleanShutdownFile:
    """The marker of one log directory. Thread rule: one thread, at start and stop."""

    __slots__ = ("_storage", "directory")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.directory = directory

    @property
    def path(self) -> str:
        return f"{self.directory}/{FILE_NAME}"

    def write(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Mark the directory. Everything in it must be flushed before."""
        self._storage.write_file_atomically(self.path, self.format(broker_epoch))

    def exists(self) -> bool:
        return self._storage.exists(self.path)

    def take(self) -> int | None:
        """Remove the marker durably; return its broker epoch, or None without a valid marker.

        An unreadable marker counts as missing: that costs a recovery, but trusting it could cost data.
        """
        if not self.exists():
            return None
        try:
            broker_epoch = self.parse(self._storage.read_file(self.path), self.path)
        except InvalidFile:
            broker_epoch = None
        self._storage.remove(self.path)
        self._storage.sync_directory(self.directory)
        return broker_epoch

    @staticmethod
    def format(broker_epoch: int) -> bytes:
        return json.dumps({"version": VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()

    @staticmethod
    def parse(data: bytes, path: str) -> int:
        """Return the broker epoch; -1 for an empty file, which Kafka wrote before 3.7. Raises InvalidFile."""
        if not data:
            return UNKNOWN_BROKER_EPOCH
        fields = parse_object(data, path)
        if integer(fields, "version", 0, INT64_MAX, path) != VERSION:
            raise InvalidFile(f"{path}: version {fields['version']}, not {VERSION}")
        return integer(fields, "brokerEpoch", UNKNOWN_BROKER_EPOCH, INT64_MAX, path)
