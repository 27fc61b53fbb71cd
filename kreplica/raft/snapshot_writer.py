"""RecordsSnapshotWriter: records as a snapshot's batches, with Kafka's header in front and footer behind.

Offsets in a snapshot are its own and begin at 0; the batches are of the epoch in its name. Where voters come
and go by records, the first batch also says who votes (KIP-853). Owned by the raft loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kreplica.common.errors import RecordListTooLarge
from kreplica.common.ports import Clock
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.replicated_log import RawSnapshotWriter
from kreplica.raft.voter_set import VoterSet

WRITE_SIZE_BYTES = 1 << 20
"""So much is gathered before it is written."""


class RecordsSnapshotWriter:
    """A SnapshotWriter over the bytes' own. `last_contained_log_timestamp`: ms since 1970, of the last record
    that the snapshot stands for. `voters` are written from `kraft_version` 1 on."""

    __slots__ = ("_accumulator", "_raw")

    def __init__(
        self,
        raw: RawSnapshotWriter,
        clock: Clock,
        *,
        last_contained_log_timestamp: int,
        voters: VoterSet | None = None,
        kraft_version: int = 0,
    ) -> None:
        self._raw = raw
        self._accumulator = BatchAccumulator(raw.snapshot_id.epoch, 0, clock=clock)
        first: list[ControlMessage] = [
            SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_log_timestamp)
        ]
        if kraft_version > 0:
            first.append(KRaftVersionRecord(k_raft_version=kraft_version))
            if voters is not None:
                first.append(voters.to_voters_record())
        self._accumulator.append_control_messages(first)

    @property
    def snapshot_id(self) -> OffsetAndEpoch:
        return self._raw.snapshot_id

    @property
    def is_frozen(self) -> bool:
        return self._raw.is_frozen

    def append(self, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> None:
        """See SnapshotWriter. Records of one call may come to stand in several batches."""
        if not records:
            return
        try:
            self._accumulator.append(self.snapshot_id.epoch, records)
        except RecordListTooLarge:
            if len(records) == 1:
                raise
            half = len(records) // 2
            self.append(records[:half])
            self.append(records[half:])
        if self._accumulator.buffered_bytes >= WRITE_SIZE_BYTES:
            self._write()

    def freeze(self) -> None:
        """See SnapshotWriter."""
        self._accumulator.append_control_messages([SnapshotFooterRecord()])
        self._write()
        self._raw.freeze()

    def close(self) -> None:
        """See SnapshotWriter."""
        self._accumulator.close()
        self._raw.close()

    def _write(self) -> None:
        for batch in self._accumulator.drain():
            self._raw.append(self._raw.size_bytes, batch.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
