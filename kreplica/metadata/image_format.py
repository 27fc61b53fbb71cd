"""The keys and values of the metadata image.

    key      depth (1 byte), the path in UTF-8: the children of a path are the keys of one prefix
    value    CRC-32C (4 bytes) of the key and everything after the CRC, version (8 bytes), the node's bytes

A node's version is the offset of the last record of the log that changed it (ClusterMetadata).

One more key, of depth 0, records how far the log is applied. Its version is that of this format, its bytes
are

    offset (8 bytes), epoch (4), number of nodes (8), sum of the nodes' CRCs modulo 2^64 (8), cluster id

so that a lost node, an image of another cluster, and one that is ahead of its log can be detected. Numbers
are big-endian. Values are immutable, functions pure.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from kreplica._core.crc32c import checksum_behind
from kreplica.common.errors import CorruptImage, InvalidRequest
from kreplica.metadata.metadata_store import MAX_KEY_BYTES

FORMAT_VERSION = 2
# Deeper than any path of the cluster; it limits the search for the nodes below a path.
MAX_DEPTH = 8
ROOT = "/"
STANDING_KEY = b"\0applied"

# Matches the paths that `check_path` allows, except the root; a fast check.
_PATH = re.compile(rf"(?:/[^/\0]+){{1,{MAX_DEPTH}}}")
_CRC = struct.Struct(">I")
_VERSION = struct.Struct(">q")
_HEAD = struct.Struct(">Iq")
_STANDING = struct.Struct(">qiqQ")
_SUM_MASK = (1 << 64) - 1


class OffsetAndEpoch(NamedTuple):
    """How far a log is applied: all records below `offset`; the last one has leader epoch `epoch`."""

    offset: int
    epoch: int


class Node(NamedTuple):
    """The data at a path, and its version."""

    data: bytes
    version: int


class Standing(NamedTuple):
    """An image's cluster id, the log position applied, and a checksum over all nodes."""

    cluster_id: str
    applied: OffsetAndEpoch
    node_count: int = 0
    crc_sum: int = 0

    def with_changes(self, applied: OffsetAndEpoch, nodes: int, crcs: int) -> Standing:
        """Return the standing after applying the log up to `applied`.

        `nodes`: the change in the number of nodes. `crcs`: the sum of their CRCs, minus those of removed
        nodes.
        """
        crc_sum = (self.crc_sum + crcs) & _SUM_MASK
        return Standing(self.cluster_id, applied, self.node_count + nodes, crc_sum)


def check_path(path: str) -> list[str]:
    """Return the names in the path, [] for the root. Raises InvalidRequest for an invalid path.

    A path starts with a slash and does not end with one; its names are not empty and contain no NUL.
    """
    if path == ROOT:
        return []
    names = path.split("/")
    if not path.startswith(ROOT) or not all(names[1:]) or "\0" in path or len(names) - 1 > MAX_DEPTH:
        raise InvalidRequest(f"{path[:80]!r} is not a path of 1 to {MAX_DEPTH} names")
    return names[1:]


def key_of(path: str) -> bytes:
    """Return the key of a node. Raises InvalidRequest if the path is invalid or too long."""
    if _PATH.fullmatch(path) is None:
        check_path(path)
        raise InvalidRequest("nothing can be stored at the root")
    try:
        key = b"%c%b" % (path.count("/"), path.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path[:80]!r} cannot be encoded as UTF-8") from None
    if len(key) > MAX_KEY_BYTES:
        raise InvalidRequest(f"{path[:80]!r} is longer than {MAX_KEY_BYTES - 1} bytes")
    return key


def seal(key: bytes, node: Node) -> bytes:
    """Encode a node as the value of its key."""
    tail = _VERSION.pack(node.version) + node.data
    return _CRC.pack(checksum_behind(key, tail, 0)) + tail


def unseal(key: bytes, value: bytes) -> Node:
    """Decode a key's value. Raises CorruptImage if the bytes are not what was written."""
    return Node(*unsealed(key, value))


def unsealed(key: bytes, value: bytes) -> tuple[bytes, int]:
    """Return the fields of the Node in a key's value, for loading thousands. Raises as `unseal` does."""
    if len(value) >= _HEAD.size:
        crc, version = _HEAD.unpack_from(value)
        if crc == checksum_behind(key, value, _CRC.size):
            return value[_HEAD.size :], version
    raise CorruptImage(f"the value of {key[:80]!r} does not match its CRC")


def names_of(key: bytes) -> list[str]:
    """Return the names in a key's path, after an empty one. Raises CorruptImage if it is not a node's key."""
    try:
        names = key[1:].decode().split("/")
    except UnicodeDecodeError:
        names = []
    # The checks of `key_of` for loading thousands of nodes: only the first name is empty, and none has a NUL.
    is_path = names.count("") == 1 and not names[0] and b"\0" not in key
    if not is_path or len(names) != key[0] + 1 or key[0] > MAX_DEPTH or len(key) > MAX_KEY_BYTES:
        raise CorruptImage(f"{key[:80]!r} is not the key of a node")
    return names


def crc_of(sealed: bytes) -> int:
    """Return the CRC at the start of a value."""
    return int(_CRC.unpack_from(sealed)[0])


def seal_standing(standing: Standing) -> bytes:
    """Encode the value of STANDING_KEY."""
    fixed = _STANDING.pack(*standing.applied, standing.node_count, standing.crc_sum)
    return seal(STANDING_KEY, Node(fixed + standing.cluster_id.encode(), FORMAT_VERSION))


def unseal_standing(value: bytes) -> Standing:
    """Decode the value of STANDING_KEY. Raises CorruptImage if it is damaged, or of another version."""
    data, version = unseal(STANDING_KEY, value)
    if version != FORMAT_VERSION:
        raise CorruptImage(f"the image has version {version}; only {FORMAT_VERSION} is supported")
    if len(data) < _STANDING.size:
        raise CorruptImage("the record of how far the log is applied is truncated")
    offset, epoch, node_count, crc_sum = _STANDING.unpack_from(data)
    try:
        cluster_id = data[_STANDING.size :].decode()
    except UnicodeDecodeError:
        raise CorruptImage("the cluster id is not UTF-8") from None
    return Standing(cluster_id, OffsetAndEpoch(offset, epoch), node_count, crc_sum)
