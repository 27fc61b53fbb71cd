"""RecordsSnapshotWriter: writes records as a snapshot's batches, between Kafka's header and footer.

Offsets in a snapshot are its own and start at 0. The batches have the epoch in its name. If voters can be
added and removed, the first batch also names the voters (KIP-853). Owned by the raft loop.
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
"""How many bytes are collected before they are written."""


class RecordsSnapshotWriter:
    """Writes records into `raw`.

    `last_contained_log_timestamp`: of the last record that the snapshot covers, in ms since 1970. `voters`
    are written if `kraft_version` is at least 1.
    """

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
        """See SnapshotWriter. The records of one call may be split into several batches."""
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
