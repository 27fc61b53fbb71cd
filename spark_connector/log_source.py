"""Where records come from: what a read needs of directories and of a running cluster alike.

A source is sent to the machines that read, so it holds names and no open files when it is pickled. Thread
rule: one thread for a source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch as ArrowRecordBatch


logger = logging.getLogger("spark_connector")

# A piece of what is handed to Spark: what its own readers take at a time, and no more memory than this.
PIECE_ROWS = 1 << 15
PIECE_BYTES = 4 << 20


class DataLossError(KreplicaError):
    """Records that were asked for are not there any more, or were never."""


class Bounds(NamedTuple):
    """What there is of a partition for this reader: offsets [start, end).

    `log_end`: all below it is there, though it may not be known to be committed (yet, or again after a
    restart of who wrote it).
    """

    start: int
    end: int
    log_end: int


class LogRange(NamedTuple):
    """What one task reads: offsets [start, stop) of a partition, `place`: where its source finds it.

    `from_time`, `to_time`: only records with from_time <= timestamp < to_time (ms since 1970).
    """

    at: TopicPartition
    start: int
    stop: int
    place: str = ""
    from_time: int | None = None
    to_time: int | None = None


class LogSource(Protocol):
    """See the module. Errors are KreplicaErrors that name the partition."""

    def partitions(self) -> Sequence[TopicPartition]:
        """All that there are now."""

    def bounds(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Of each of these: the first offset, and the end of what a reader of this isolation may see."""

    def place(self, at: TopicPartition) -> str:
        """Where the partition is found by who reads it."""

    def offset_for_timestamp(self, at: TopicPartition, timestamp: int) -> int | None:
        """The first offset with this time (ms since 1970) or a later one; None: there is none."""

    def cuts(self, at: TopicPartition, start: int, stop: int, limit: int) -> list[int]:
        """Offsets between `start` and `stop` at which to part the range in pieces of about `limit`."""

    def read(self, wanted: LogRange, columns: Sequence[str]) -> Iterator[ArrowRecordBatch]:
        """The records, with these columns (of kreplica.log.column_reader.COLUMNS), in order."""

    def close(self) -> None:
        """Let go of what is open."""


def lost(fail: bool, text: str) -> None:
    """Raise DataLossError, or only say so where the option failOnDataLoss is false."""
    if fail:
        raise DataLossError(f"{text}; with failOnDataLoss=false the read goes on with what there is")
    logger.warning("%s; the read goes on with what there is", text)
