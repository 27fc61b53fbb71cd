"""SettingsFile: the settings that a log was opened with, kept beside it for the next opening.

Only a log that is opened by itself has one (`kreplica.settings.json`): a node's logs get their settings from
the cluster's metadata. The file belongs to the log's one writer, which holds the directory's lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kreplica._core.crc32c import checksum
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.common.json_file import parse_object
from kreplica.common.ports import Storage
from kreplica.log.file_names import SETTINGS_FILE

VERSION = 0


class SettingsFile:
    """`kreplica.settings.json` in a log's directory; see docs/FORMATS.md. It exists only if a setting was
    given."""

    __slots__ = ("_storage", "path")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.path = f"{directory}/{SETTINGS_FILE}"

    def read(self) -> dict[str, str]:
        """The stored settings by Kafka's names; empty if there is no file. Raises InvalidFile,
        KafkaStorageError."""
        if not self._storage.exists(self.path):
            return {}
        return self.parse(self._storage.read_file(self.path), self.path)

    def write(self, settings: Mapping[str, str]) -> None:
        """Replace the stored settings; they are on disk when this returns. Raises KafkaStorageError."""
        self._storage.write_file_atomically(self.path, self.format(settings))

    @staticmethod
    def format(settings: Mapping[str, str]) -> bytes:
        given = dict(sorted(settings.items()))
        fields = {"version": VERSION, "settings": given, "crc32c": _checksum(given)}
        return json.dumps(fields, indent=1).encode() + b"\n"

    @staticmethod
    def parse(data: bytes, path: str) -> dict[str, str]:
        """The settings in a file's bytes. Raises InvalidFile."""
        fields = parse_object(data, path)
        if fields.get("version") != VERSION:
            raise InvalidFile(f"{path}: version {fields.get('version')!r}, and only {VERSION} is known")
        settings = fields.get("settings")
        if not isinstance(settings, dict) or not all(isinstance(text, str) for text in settings.values()):
            raise InvalidFile(f"{path}: settings must be an object of strings")
        if fields.get("crc32c") != _checksum(settings):
            raise InvalidFile(f"{path}: crc32c is {fields.get('crc32c')}, not {_checksum(settings)}")
        try:
            LogConfig.parse(settings)
        except InvalidConfig as error:
            raise InvalidFile(f"{path}: {error}") from None
        return settings


def _checksum(settings: Mapping[str, str]) -> int:
    return checksum("\n".join(f"{name}={settings[name]}" for name in sorted(settings)).encode())
