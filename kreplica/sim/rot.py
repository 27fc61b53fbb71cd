"""Rot: flip a bit of a log's file, and check whether it is flipped. No state; any thread that may read it."""

from __future__ import annotations

from typing import Any

from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import LOG_SUFFIX


def flip_a_bit(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Flip the lowest bit of the last value in the batch with the offset; returns False if it is missing."""
    path, data, batch, end = _batch_at(storage, root, topic_partition, offset)
    if batch is None:
        return False
    # The last byte is the last record's number of headers, which is zero here.
    storage.write_at(path, end - 2, bytes([data[end - 2] ^ 1]))
    return True


def is_rotten(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Return whether the batch with the offset is damaged.

    Also True if it may be, because a power cut has torn earlier data, which the broker detects at its start.
    """
    try:
        _, _, batch, _ = _batch_at(storage, root, topic_partition, offset)
    except CorruptMessage:
        return True
    return batch is not None and not batch.crc_valid


def _batch_at(
    storage: Any, root: str, topic_partition: TopicPartition, offset: int
) -> tuple[str, bytes, Any, int]:
    # Returns the file, its contents, the batch, and the position of the batch's end.
    directory = f"{root}/{topic_partition}"
    if not storage.is_directory(directory):
        return "", b"", None, 0
    names = [name for name in storage.list_directory(directory) if name.endswith(LOG_SUFFIX)]
    held = [name for name in names if int(name.removesuffix(LOG_SUFFIX)) <= offset]
    if not held:
        return "", b"", None, 0
    path, position = f"{directory}/{max(held)}", 0
    data = storage.read_file(path)
    for batch in batches(data, partial=True):
        position += batch.size
        if batch.last_offset >= offset:
            return path, data, batch, position
    return path, data, None, 0
