"""RecordsSnapshotReader: reads the records of a snapshot.

The whole snapshot is checked before the first record is returned, so that a broken one is never loaded in
part. The content of each record is checked when it is decoded. Belongs to the thread that it was passed to.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from kreplica.common.errors import InvalidSnapshot, KafkaStorageError, KreplicaError
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.batch_reader import Batch, decoded_batches
from kreplica.raft.replicated_log import RawSnapshotReader
from kreplica.raft.snapshot_check import check_snapshot
from kreplica.raft.voter_set import VoterSet


class RecordsSnapshotReader:
    """Reads records from `raw`, and closes it. Each iteration yields all batches again.

    `last_contained_log_timestamp`: ms since 1970. `voters`: None if the snapshot names none.
    """

    __slots__ = ("_raw", "kraft_version", "last_contained_log_timestamp", "voters")

    last_contained_log_timestamp: int
    kraft_version: int
    voters: VoterSet | None

    def __init__(self, raw: RawSnapshotReader) -> None:
        """Raises InvalidSnapshot if the snapshot is cut short or broken, KafkaStorageError. It closes `raw`
        then.
        """
        self._raw = raw
        try:
            self.last_contained_log_timestamp, self.kraft_version, self.voters = check_snapshot(raw)
        except BaseException:
            raw.close()
            raise

    @property
    def snapshot_id(self) -> OffsetAndEpoch:
        return self._raw.snapshot_id

    @property
    def size_bytes(self) -> int:
        return self._raw.size_bytes

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order. The first and the last hold control records.

        Raises InvalidSnapshot if a record cannot be decoded, KafkaStorageError.
        """
        try:
            yield from decoded_batches(self._raw.read(0, self.size_bytes))
        except (KafkaStorageError, InvalidSnapshot):
            raise
        except KreplicaError as error:
            offset, epoch = self.snapshot_id
            raise InvalidSnapshot(f"snapshot {offset}-{epoch}: {error}", where=error.where) from error

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
