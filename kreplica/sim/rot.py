"""Rot: a bit of a log's file that flips, and whether it has. No state; any thread that may read the file."""

from __future__ import annotations

from typing import Any

from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import LOG_SUFFIX


def flip_a_bit(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Flip the lowest bit of the last value in the batch that holds the offset; False where there is none."""
    path, data, batch, end = _batch_at(storage, root, topic_partition, offset)
    if batch is None:
        return False
    # The last byte counts the last record's headers, of which these have none.
    storage.write_at(path, end - 2, bytes([data[end - 2] ^ 1]))
    return True


def is_rotten(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Whether the batch that holds the offset is there, and is not what it was; or may be, where a power cut
    has torn what lies before it, of which its broker will see when it starts."""
    try:
        _, _, batch, _ = _batch_at(storage, root, topic_partition, offset)
    except CorruptMessage:
        return True
    return batch is not None and not batch.crc_valid


def _batch_at(
    storage: Any, root: str, topic_partition: TopicPartition, offset: int
) -> tuple[str, bytes, Any, int]:
    # The file, what is in it, the batch, and where that ends.
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
