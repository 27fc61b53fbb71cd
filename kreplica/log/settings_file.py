"""SettingsFile and GivenSettings: keep a log's settings beside it for the next opening.

Only a log that is opened without a node has the file (`kreplica.settings.json`): a node's logs get their
settings from the cluster's metadata. The log's only writer, which holds the directory's lock, owns the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from kreplica._core.crc32c import checksum
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.common.json_file import parse_object
from kreplica.common.ports import Storage
from kreplica.log.file_names import SETTINGS_FILE
from kreplica.log.log_directory import LogDirectory
from kreplica.log.small_file import SmallFile

VERSION = 0


class SettingsFile(SmallFile[Mapping[str, str]]):
    """The file `kreplica.settings.json` in a log's directory, which exists only if a setting was given.

    It holds the settings by Kafka's names. docs/FORMATS.md describes it.
    """

    NAME = SETTINGS_FILE

    @staticmethod
    def format(content: Mapping[str, str]) -> bytes:
        given = dict(sorted(content.items()))
        fields = {"version": VERSION, "settings": given, "crc32c": _checksum(given)}
        return json.dumps(fields, indent=1).encode() + b"\n"

    @staticmethod
    def parse(data: bytes, path: str) -> dict[str, str]:
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


class GivenSettings:
    """The settings that a log is opened with, to be merged with those stored in its directory."""

    def __init__(
        self, config: LogConfig | Mapping[str, object] | None, settings: Mapping[str, object]
    ) -> None:
        """Combine `config` and `settings`; the latter win. Raises InvalidConfig."""
        self._replaces_all = isinstance(config, LogConfig)
        named = config.overrides() if isinstance(config, LogConfig) else LogConfig.normalized(config or {})
        self._settings = {**named, **LogConfig.normalized(settings)}

    def readable(self, storage: Storage, directory: str) -> LogConfig:
        """Return the configuration to read the log with.

        Reading depends on no stored setting, so an unreadable file is ignored. Raises InvalidConfig,
        KafkaStorageError.
        """
        if _is_in_a_node(storage, directory):
            return LogConfig.parse(self._settings)
        try:
            stored = SettingsFile(storage, directory).read() or {}
        except InvalidFile:
            stored = {}
        return LogConfig.parse(self._over(stored))

    def store(self, storage: Storage, directory: str) -> LogConfig:
        """Return the configuration to write the log with, and store the settings for the next opening.

        Nothing is stored in a node's log directory. Raises InvalidConfig if these and the stored settings
        conflict, InvalidFile if the stored ones cannot be read, KafkaStorageError.
        """
        if _is_in_a_node(storage, directory):
            return LogConfig.parse(self._settings)
        file = SettingsFile(storage, directory)
        stored: Mapping[str, str] | None
        try:
            stored = file.read() or {}
        except InvalidFile:
            # A LogConfig replaces all settings, so unreadable ones do not matter.
            if not self._replaces_all:
                raise
            stored = None
        over = self._over(stored or {})
        config = LogConfig.parse(over)
        if over != stored:
            file.write(over)
        return config

    def _over(self, stored: Mapping[str, str]) -> dict[str, str]:
        return self._settings if self._replaces_all else {**stored, **self._settings}


def _is_in_a_node(storage: Storage, directory: str) -> bool:
    return LogDirectory(storage, os.path.dirname(directory)).is_formatted
