"""Faults of a running cluster beside those of its nodes: delayed messages, and rot in a replica's files.

Thread rule: any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from kreplica.broker.node import Node
from kreplica.common.errors import InvalidRequest, OffsetOutOfRange
from kreplica.common.ports import Loop
from kreplica.common.types import TopicPartition

# Whether the disk is full, by the state that `set_disk` takes.
DISKS = {"well": False, "full": True}
LONGEST_DELAY_MS = 60_000


class Delay:
    """A gate of LocalNetwork that delivers each message `delay_ms` later; their order stays."""

    def __init__(self, loop: Loop, delay_ms: float) -> None:
        require_delay(delay_ms)
        self._loop = loop
        self._delay_ms = round(delay_ms)

    def __call__(self, *_: object, deliver: Callable[[], None], **__: object) -> bool:
        self._loop.post_later(deliver, self._delay_ms)
        return True


def require_delay(delay_ms: float) -> None:
    """Raises TypeError, ValueError."""
    require_number(delay_ms, "delay_ms")
    if not 0 <= delay_ms <= LONGEST_DELAY_MS:
        raise ValueError(f"delay_ms={delay_ms} must be from 0 to {LONGEST_DELAY_MS}")


def require_number(value: object, name: str) -> None:
    """Raises TypeError."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")


def require_link(one: int, other: int, nodes: Collection[int]) -> None:
    """Raises InvalidRequest if one of the nodes does not exist, or both are the same."""
    for node_id in (one, other):
        if node_id not in nodes:
            raise InvalidRequest(f"there is no node {node_id!r}: the nodes are {list(nodes)}")
    if one == other:
        raise InvalidRequest(f"node {one} has no link to itself: name two nodes")


def rot_replica(node: Node, at: TopicPartition, offset: int) -> None:
    """Flip a bit of the batch with the record at `offset`, in the files of the node's replica.

    Raises InvalidRequest if the node has no replica of the partition, OffsetOutOfRange.
    """
    require_number(offset, "offset")
    partition = None if node.broker is None else node.broker.replica_manager.partitions.get(at)
    if partition is None or partition.log is None:
        raise InvalidRequest(f"node {node.config.node_id} has no replica of {at}")
    log = partition.log
    if not log.log_start_offset <= offset < log.log_end_offset:
        raise OffsetOutOfRange(
            f"{at}: offset {offset} is not in [{log.log_start_offset}, {log.log_end_offset})", where=offset
        )
    segments = log.local.segments
    segment = segments[segments.index_for(offset)]
    found = segment.position_of(offset)
    if found is None:
        raise OffsetOutOfRange(f"{at}: no batch of this segment has offset {offset}", where=offset)
    last = found[0] + found[1] - 1
    descriptor = os.open(segment.region.path, os.O_RDWR)
    try:
        os.pwrite(descriptor, bytes([os.pread(descriptor, 1, last)[0] ^ 1]), last)
    finally:
        os.close(descriptor)
