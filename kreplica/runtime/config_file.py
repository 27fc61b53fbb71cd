"""Reads a node's configuration from a file: TOML, or a Kafka server.properties.

Both formats give properties under Kafka's names. In TOML the names are quoted ("log.dirs" = "/data") or
nested ([log] dirs = "/data"). Stateless; any thread.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.log.meta_properties import parse_properties
from kreplica.runtime.storage import FileStorage

MAX_FILE_BYTES = 1 << 20


def read_config_file(path: str) -> dict[str, object]:
    """Return the properties in the file, in the format that its suffix names: .toml or .properties.

    Raises InvalidFile if it cannot be parsed, InvalidConfig for a repeated property or another suffix,
    KafkaStorageError.
    """
    if not path.endswith((".toml", ".properties")):
        raise InvalidConfig(f"{path}: a configuration file must be a .toml or .properties file")
    data = FileStorage().read_file(path, MAX_FILE_BYTES)
    if path.endswith(".properties"):
        # Kafka accepts a last line without a line break.
        return dict(parse_properties(data + b"\n", path))
    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidFile(f"{path}: {error}") from None
    properties: dict[str, object] = {}
    for name, value in _flat(found, ""):
        if name in properties:
            raise InvalidConfig(f"{path}: {name} is repeated")
        properties[name] = value
    return properties


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
