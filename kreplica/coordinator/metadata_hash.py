"""The hash of what a group's assignment depends on: the topics that its members subscribe to.

A group stores it (ConsumerGroupMetadata.MetadataHash), so that a coordinator sees after a change of metadata
whether the group needs a new assignment. Hashes equal those of Kafka 4.3, byte for byte of their input:

    topic   i8 0, id i64 i64, name, number of partitions i32,
            then for each partition: its number i32; for each rack, sorted: length i32, name
    group   for each topic, by name: its hash i64

Numbers are little-endian, and a name is its UTF-16 code units followed by their number as i32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from kreplica._core.xxh3 import xxh3_64
from kreplica.common.types import Uuid


def topic_hash(name: str, topic_id: Uuid, racks: Sequence[Iterable[str]]) -> int:
    """Return the hash of a topic from the racks of its replicas, by partition.

    Replicas without a rack are left out; a rack counts for each replica in it.
    """
    parts = [b"\0", topic_id.raw[7::-1], topic_id.raw[:7:-1], _text(name), struct.pack("<i", len(racks))]
    for partition, each in enumerate(racks):
        parts.append(struct.pack("<i", partition))
        for rack in sorted(each, key=_utf16):
            parts += [struct.pack("<i", len(_utf16(rack)) // 2), _text(rack)]
    return xxh3_64(b"".join(parts))


def group_hash(topic_hashes: Mapping[str, int]) -> int:
    """Return the hash of a group from those of its topics, by name; 0 for no topics.

    Topics that do not exist are left out.
    """
    if not topic_hashes:
        return 0
    ordered = sorted(topic_hashes, key=_utf16)
    return xxh3_64(b"".join(struct.pack("<q", topic_hashes[name]) for name in ordered))


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)


def _utf16(text: str) -> bytes:
    """Return the text's UTF-16 code units, whose order is that of Java's strings."""
    return text.encode("utf-16-be")
