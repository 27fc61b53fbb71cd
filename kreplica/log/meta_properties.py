"""`meta.properties`: identifies the node that owns a log directory. Formatting a directory writes it.

    #
    # kreplica
    node.id=3
    directory.id=k-y5uEouS4C-yxncP1dpSQ
    version=1
    cluster.id=dpbFJ6ZBRoSUiuWQ5q1v1w

The syntax is that of Java's properties: comments, `=` or `:` or blanks after the name, backslashes before
special characters and line ends (not Unicode escapes, which Kafka does not write). Kafka writes the date in
the second line. KRaft uses version 1; directories of the ZooKeeper era (version 0, broker.id) are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InconsistentClusterId, InvalidFile, InvalidRequest
from kreplica.common.types import INT32_MAX, Uuid
from kreplica.log.small_file import SmallFile

if TYPE_CHECKING:
    pass

FILE_NAME = "meta.properties"
VERSION = 1

# Kafka reserves the first hundred ids: unassigned, lost, migrating.
RESERVED_DIRECTORY_IDS = 100

_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"} | {c: "\\" + c for c in "\\=:#!"}

# A name ends before the first '=', ':' or blank that has no backslash before it.
_PROPERTY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The content of the file. `directory_id` is None in directories that Kafka created before 3.7."""

    cluster_id: str
    node_id: int
    directory_id: Uuid | None = None

    def require_owner(self, path: str, cluster_id: str, node_id: int) -> None:
        """Raise InconsistentClusterId or InvalidFile if the directory at `path` is not this node's."""
        if self.cluster_id != cluster_id:
            raise InconsistentClusterId(
                f"{path} belongs to cluster {self.cluster_id}, not to {cluster_id}; use another directory"
            )
        if self.node_id != node_id:
            raise InvalidFile(
                f"{path} belongs to node {self.node_id}, not to {node_id}; use another directory"
            )


class MetaPropertiesFile(SmallFile[MetaProperties]):
    """The file of one log directory, which has none until it is formatted."""

    NAME = FILE_NAME

    @staticmethod
    def format(content: MetaProperties) -> bytes:
        directory_id = {} if content.directory_id is None else {"directory.id": str(content.directory_id)}
        values = {
            "node.id": str(content.node_id),
            **directory_id,
            "version": str(VERSION),
            "cluster.id": content.cluster_id,
        }
        lines = ["#", "# kreplica", *(f"{name}={_escaped(value)}" for name, value in values.items())]
        return "\n".join([*lines, ""]).encode("utf-8")

    @staticmethod
    def parse(data: bytes, path: str) -> MetaProperties:
        """Parse the file's bytes. Unknown names are ignored, as in Kafka. Raises InvalidFile."""
        values = parse_properties(data, path)
        for name in ("version", "cluster.id", "node.id"):
            if not values.get(name):
                raise InvalidFile(f"{path}: {name} is missing")
        if values["version"] != str(VERSION):
            raise InvalidFile(f"{path}: version {values['version'][:20]!r}, not {VERSION}")
        node_id = values["node.id"]
        if not re.fullmatch("[0-9]{1,10}", node_id) or int(node_id) > INT32_MAX:
            raise InvalidFile(f"{path}: node.id {node_id[:20]!r} is not a number from 0 to {INT32_MAX}")
        directory_id = _directory_id(values["directory.id"], path) if "directory.id" in values else None
        return MetaProperties(values["cluster.id"], int(node_id), directory_id)


def parse_properties(data: bytes, path: str) -> dict[str, str]:
    """Parse a file in Java's properties syntax; return its names and values in order.

    Raises InvalidFile for bytes that are not UTF-8, an unfinished last line, a duplicate name, and a bad
    escape.
    """
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path}: byte {error.start} is not UTF-8 text") from None
    if not text.endswith("\n"):
        raise InvalidFile(f"{path}: is cut short: it does not end with a newline")
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        found = _PROPERTY.fullmatch(line)
        assert found is not None, "the expression takes any line"
        name, value = _unescaped(found[1], path), _unescaped(found[2], path)
        if name in values:
            raise InvalidFile(f"{path}: {name[:80]} comes twice")
        values[name] = value
    return values


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments; a line that ends with a backslash is joined with the next."""
    lines: list[str] = []
    continued = False
    for natural in text.split("\n"):
        line = natural.lstrip(" \t\f")
        if continued:
            lines[-1] += line
        elif not line or line[0] in "#!":
            continue
        else:
            lines.append(line)
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        if continued:
            lines[-1] = lines[-1][:-1]
    return lines


def _escaped(value: str) -> str:
    text = "".join(_ESCAPES.get(character, character) for character in value)
    return "\\" + text if text.startswith(" ") else text


def _unescaped(text: str, path: str) -> str:
    if "u" in _ESCAPE.findall(text):
        raise InvalidFile(f"{path}: the escape \\u is not supported; write the character itself")
    return _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), text)


def _directory_id(text: str, path: str) -> Uuid:
    try:
        directory_id = Uuid.parse(text)
    except InvalidRequest as error:
        raise InvalidFile(f"{path}: directory.id: {error}") from None
    if int.from_bytes(directory_id.raw, "big") < RESERVED_DIRECTORY_IDS:
        raise InvalidFile(f"{path}: directory.id {text} is one of the ids that Kafka reserves")
    return directory_id
