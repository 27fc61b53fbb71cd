"""Any range of any number of partitions as one Arrow stream (Arrow's C stream interface).

Only requested data is read: the logs' indexes find offsets and times, other partitions are skipped, and other
columns are not extracted from the records. With views, uncompressed values are not copied: they point into
the mapped segments, which stay mapped as long as the values exist. Ownership: each iteration owns the log it
reads, one at a time. Thread rule: an ArrowStream is immutable; each iteration belongs to one thread.

Layout: https://arrow.apache.org/docs/format/CStreamInterface.html
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kreplica.arrow.partition_directories import PartitionDirectories, open_log

from kreplica._core.record import milliseconds
from kreplica.common.isolation import Isolation, isolation_level
from kreplica.common.optional import require_package
from kreplica.common.types import TopicPartition, integer
from kreplica.log.column_reader import COLUMNS, ColumnReader, arrow_batches, require_names
from kreplica.log.damage import Damage
from kreplica.log.partition_columns import ALL_COLUMNS, PartitionColumns, of_records

if TYPE_CHECKING:
    from datetime import datetime

    from pyarrow import RecordBatch as ArrowRecordBatch
    from pyarrow import RecordBatchReader, Schema
    from pyarrow import Table as ArrowTable

# One offset for all partitions, or one for each; a missing partition has no bound.
Offsets = int | Mapping[TopicPartition, int] | None

DEFAULT_COLUMNS = ("topic", "partition", *COLUMNS[:6])


@dataclass(frozen=True, slots=True)
class Predicates:
    """A choice of records: offsets in [start, stop), timestamps (ms since 1970) in [from_time, to_time)."""

    start: Offsets = None
    stop: Offsets = None
    from_time: int | None = None
    to_time: int | None = None


def scan(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    topics: Iterable[str] | None = None,
    partitions: Iterable[int | TopicPartition] | None = None,
    start: Offsets = None,
    stop: Offsets = None,
    from_time: int | datetime | None = None,
    to_time: int | datetime | None = None,
    isolation: Isolation = "high_watermark",
    views: bool = False,
    skip_damaged: bool = False,
) -> ArrowStream:
    """Return a stream of the records in `paths`, partition after partition and by offset in each.

    `paths`: directories of partitions, or directories that contain several. `columns`, in this order: of
    topic, partition, offset, timestamp, timestamp_type, key, value, headers (these by default), leader_epoch
    and producer_id. `start`, `stop`: offsets [start, stop), for all partitions or for each; only offsets that
    a partition has are read. `from_time`, `to_time`: ms since 1970 or a datetime with a time zone, the latter
    exclusive. `isolation`: as of Log.read, by default up to the high watermark. `views`: keys and values
    point into the mapped files. `skip_damaged`: skip damaged data, and list it in `skipped`.

    Raises InvalidFile for a path that contains no partition, TypeError, ValueError for an unknown column,
    isolation, topic or partition or for seconds, ImportError if pyarrow is not installed. The stream raises
    the errors of reading a log.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    directories = PartitionDirectories.find(given)
    return ArrowStream(
        directories,
        _chosen(directories.partitions, topics, partitions),
        columns=DEFAULT_COLUMNS if columns is None else columns,
        predicates=Predicates(
            _checked_offsets("start", start),
            _checked_offsets("stop", stop),
            None if from_time is None else milliseconds(from_time),
            None if to_time is None else milliseconds(to_time),
        ),
        isolation=isolation,
        views=views,
        skip_damaged=skip_damaged,
    )


class ArrowStream:
    """The result of `scan`.

    It can be read any number of times, and each time reads the logs as they are then.
    """

    def __init__(
        self,
        directories: PartitionDirectories,
        partitions: Sequence[TopicPartition],
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        predicates: Predicates | None = None,
        isolation: Isolation = "high_watermark",
        views: bool = False,
        skip_damaged: bool = False,
    ) -> None:
        require_package("pyarrow")
        _check(columns)
        self._directories = directories
        self.partitions = tuple(partitions)
        self._columns = list(columns)
        self._predicates = predicates or Predicates()
        self._isolation = isolation_level(isolation)
        self._views = views
        self._skip_damaged = skip_damaged
        topics = sorted({partition.topic for partition in self.partitions})
        self._of_partition = PartitionColumns(columns, topics, views=views)
        # What the iteration started last has skipped so far.
        self.skipped: list[tuple[TopicPartition, Damage]] = []

    @property
    def schema(self) -> Schema:
        """The pyarrow.Schema of all batches."""
        return self._of_partition.schema

    def batches(self) -> Iterator[ArrowRecordBatch]:
        """Iterate over pyarrow.RecordBatches of at most 65,536 rows.

        Raises DamagedLog with the offset, InvalidFile and KafkaStorageError.
        """
        skipped: list[tuple[TopicPartition, Damage]] = []
        self.skipped = skipped
        for partition in self.partitions:
            yield from self._batches(partition, skipped)

    def reader(self) -> RecordBatchReader:
        """Return the stream as a pyarrow.RecordBatchReader."""
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self.schema, self.batches())

    def to_arrow(self) -> ArrowTable:
        """Return the stream as a pyarrow.Table, all of it in memory except what views point to."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def _batches(
        self, partition: TopicPartition, skipped: list[tuple[TopicPartition, Damage]]
    ) -> Iterator[ArrowRecordBatch]:
        predicates, names = self._predicates, of_records(self._columns)
        with closing(open_log(self._directories.directory(partition))) as log:
            start = max(_offset(predicates.start, partition) or 0, log.log_start_offset)
            if start > log.upper_bound(self._isolation):
                return
            reader = ColumnReader(
                log,
                names,
                start=start,
                stop=_offset(predicates.stop, partition),
                isolation=self._isolation,
                from_time=predicates.from_time,
                to_time=predicates.to_time,
                skip_damaged=self._skip_damaged,
                own=True,
                views=self._views,
            )
            for batch in arrow_batches(reader, names):
                yield self._of_partition.with_partition(batch, partition)
            skipped += [(partition, damage) for damage in reader.skipped]


def _check(columns: Sequence[str]) -> None:
    require_names(columns)
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown:
        raise ValueError(f"unknown column {unknown[0]!r}: use {', '.join(ALL_COLUMNS)}")
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns are empty or repeated: {', '.join(columns)}")


def _chosen(
    known: Sequence[TopicPartition],
    topics: Iterable[str] | None,
    partitions: Iterable[int | TopicPartition] | None,
) -> list[TopicPartition]:
    wanted = list(known)
    if topics is not None:
        names = {topics} if isinstance(topics, str) else set(topics)
        missing = names - {partition.topic for partition in known}
        if missing:
            raise ValueError(f"topic {min(missing)!r} is not in these directories, {_those(known)}")
        wanted = [partition for partition in wanted if partition.topic in names]
    if partitions is None:
        return wanted
    asked = set(partitions)
    missing_partitions = asked - {each for at in wanted for each in (at, at.partition)}
    if missing_partitions:
        text = f"partition {min(map(str, missing_partitions))} is not in these directories"
        raise ValueError(f"{text}, {_those(wanted)}")
    return [at for at in wanted if at in asked or at.partition in asked]


def _those(partitions: Sequence[TopicPartition]) -> str:
    """Return text that names the first partitions that there are."""
    names = ", ".join(str(each) for each in partitions[:5])
    return f"which have {names}{' and others' if len(partitions) > 5 else ''}"


def _checked_offsets(name: str, offsets: Offsets) -> Offsets:
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        return integer(name, offsets)
    checked = {}
    for partition, offset in offsets.items():
        if not isinstance(partition, tuple) or len(partition) != 2:
            raise TypeError(f"{name}: a key must be TopicPartition(topic, partition), not {partition!r:.80}")
        checked[TopicPartition(*partition)] = integer(f"{name} of {partition}", offset)
    return checked


def _offset(offsets: Offsets, partition: TopicPartition) -> int | None:
    return offsets if offsets is None or isinstance(offsets, int) else offsets.get(partition)
