"""The port through which a read gets records, from directories and from a running cluster.

A source is pickled and sent to the machines that read; it then holds names and no open files. Thread rule:
one thread for a source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


logger = logging.getLogger("kreplica.spark")

# Limits of a batch of rows passed to Spark: as many rows as Spark's own readers use, and bounded memory.
PIECE_ROWS = 1 << 15
PIECE_BYTES = 4 << 20


class DataLossError(KreplicaError):
    """Requested records no longer exist, or never existed."""


class Bounds(NamedTuple):
    """The offsets [start, end) of a partition that this reader may see.

    `log_end`: records below it exist, but may not be known to be committed: not yet, or not since the writer
    restarted.
    """

    start: int
    end: int
    log_end: int


class LogRange(NamedTuple):
    """The work of one task: offsets [start, stop) of a partition; `place` is where its source finds it.

    `from_time`, `to_time`: read only records with from_time <= timestamp < to_time (ms since 1970).
    """

    at: TopicPartition
    start: int
    stop: int
    place: str = ""
    from_time: int | None = None
    to_time: int | None = None


class LogSource(Protocol):
    """A supplier of records and offsets. Errors are KreplicaErrors that name the partition."""

    def partitions(self) -> Sequence[TopicPartition]:
        """Return all partitions that exist now."""

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Return, for each partition, its first offset and the end of what this isolation level may see."""

    def place(self, at: TopicPartition) -> str:
        """Return where a reading task finds the partition."""

    def offsets_for_timestamps(
        self, times: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return, by partition, the first offset with this time (ms since 1970) or a later one, else None."""

    def size(self, at: TopicPartition, start: int, stop: int, /) -> int:
        """Estimate the bytes of the records in [start, stop)."""

    def cuts(self, at: TopicPartition, start: int, stop: int, limit: int, /) -> list[int]:
        """Return offsets between `start` and `stop` that split the range into pieces of about `limit`."""

    def read(self, wanted: LogRange, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
        """Yield the records in order, with these columns (of kreplica.log.column_reader.COLUMNS)."""

    def close(self) -> None:
        """Close what is open."""


def lost(fail: bool, text: str) -> None:
    """Raise DataLossError, or log a warning if the option failOnDataLoss is false."""
    if fail:
        raise DataLossError(f"{text}; with failOnDataLoss=false the read continues with what exists")
    logger.warning("%s; the read continues with what exists", text)
