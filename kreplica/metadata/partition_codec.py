"""The encoding of a partition in the image: fixed numbers first, then what many partitions have in common.

    leader (4), leader epoch (4), partition epoch (4), leader recovery state (1)
    counts: replicas, isr, removing, adding, elr, last known elr (4 each), unknown tagged fields (4)
    the ids of each of the six lists (4 each), the directory of each replica (16 each)
    each unknown tagged field: its tag (4), its size (4), its bytes

Numbers are big-endian. Hundreds of thousands of partitions may share a handful of brokers, so a decoder
parses everything after the fixed numbers only once for partitions with the same bytes there. A
PartitionDecoder belongs to one thread; the encoder is a pure function.
"""

from __future__ import annotations

import struct

from kreplica.common.errors import CorruptImage
from kreplica.common.types import Uuid
from kreplica.metadata.message import TaggedField
from kreplica.metadata.registrations import RECOVERY_STATES, PartitionRegistration

_NUMBERS = struct.Struct(">iiib")
_COUNTS = struct.Struct(">7I")
_TAG = struct.Struct(">II")
_LISTS = 6

# The shareable part: the first six lists of a registration, and its unknown tagged fields.
_Shared = tuple[tuple[tuple[int, ...] | tuple[Uuid, ...], ...], tuple[TaggedField, ...]]


def encode_partition(partition: PartitionRegistration) -> bytes:
    """Encode a partition."""
    (replicas, directories, isr, removing, adding, elr, last_known_elr, *numbers, unknown) = partition
    leader, state, leader_epoch, partition_epoch = numbers
    ids = (*replicas, *isr, *removing, *adding, *elr, *last_known_elr)
    data = b"".join(
        (
            _NUMBERS.pack(leader, leader_epoch, partition_epoch, state),
            struct.pack(
                f">7I{len(ids)}i",
                *(len(replicas), len(isr), len(removing), len(adding), len(elr), len(last_known_elr)),
                len(unknown),
                *ids,
            ),
            *[directory.raw for directory in directories],
        )
    )
    for field in unknown:
        data += _TAG.pack(field.tag, len(field.data)) + field.data
    return data


class PartitionDecoder:
    """Decodes partitions; equal parts of several partitions become one object."""

    def __init__(self) -> None:
        self._shared: dict[bytes, _Shared] = {}

    def decode(self, data: bytes) -> PartitionRegistration:
        """Decode a partition. Raises CorruptImage for invalid bytes."""
        try:
            leader, leader_epoch, partition_epoch, state = _NUMBERS.unpack_from(data)
            tail = data[_NUMBERS.size :]
            shared = self._shared.get(tail)
            if shared is None:
                shared = self._shared[tail] = _decode_shared(tail)
            lists, unknown = shared
            numbers = (leader, RECOVERY_STATES[state], leader_epoch, partition_epoch)
        except (struct.error, KeyError):
            raise CorruptImage(f"{data[:80]!r} is not an encoded partition") from None
        return PartitionRegistration._make((*lists, *numbers, unknown))


def _decode_shared(tail: bytes) -> _Shared:
    *counts, unknown_count = _COUNTS.unpack_from(tail)
    position = _COUNTS.size
    lists: list[tuple[int, ...]] = []
    for count in counts:
        if count * 4 > len(tail) - position:
            raise struct.error
        lists.append(struct.unpack_from(f">{count}i", tail, position))
        position += count * 4
    replicas, *others = lists
    end = position + len(replicas) * Uuid.SIZE
    if end > len(tail):
        raise struct.error
    directories = tuple(Uuid(tail[start : start + Uuid.SIZE]) for start in range(position, end, Uuid.SIZE))
    unknown: list[TaggedField] = []
    for _ in range(unknown_count):
        tag, size = _TAG.unpack_from(tail, end)
        end += _TAG.size + size
        unknown.append(TaggedField(tag, tail[end - size : end]))
    if end != len(tail):
        raise struct.error
    return (replicas, directories, *others), tuple(unknown)
