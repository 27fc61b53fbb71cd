"""ReplicatedLog: the ports of a quorum's log and of its snapshots.

The client applies the quorum's rules. The log answers questions about its own content, and whether a position
in another member's log matches it. `KafkaMetadataLog` is the log on disk. A snapshot's id is an
OffsetAndEpoch: it covers all records below `offset`, and the last of them has epoch `epoch`.

Thread rule: one loop owns everything here. Any thread may read committed records.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kreplica._core.log_append_info import LogAppendInfo
from kreplica.common.ports import Disk
from kreplica.common.quorum_state import QuorumStateData
from kreplica.log.fetch_data import FetchDataInfo
from kreplica.metadata.image_format import OffsetAndEpoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from kreplica.metadata.records import MetadataRecord
    from kreplica.metadata.serde import ApiMessageAndVersion
    from kreplica.raft.voter_set import VoterSet

BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)
"""The id of the snapshot that a cluster is formatted with. Its records are in no log."""


class ValidOffsetAndEpochKind(enum.Enum):
    """How another log, that ends at an offset with a last record of an epoch, compares to this one."""

    VALID = "valid"  # it is a prefix of this log
    DIVERGING = "diverging"  # the two differ below that offset
    SNAPSHOT = "snapshot"  # this log starts later


class ValidOffsetAndEpoch(NamedTuple):
    """The answer to a fetch: its own position, the end of an epoch to truncate to, or a snapshot's id."""

    kind: ValidOffsetAndEpochKind
    offset_and_epoch: OffsetAndEpoch


class RawSnapshotWriter(Protocol):
    """Writes the bytes of a snapshot. The snapshot is not visible before `freeze`."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    @property
    def size_bytes(self) -> int:
        """Size of the bytes so far, which is the position of the next ones."""
        ...

    @property
    def is_frozen(self) -> bool: ...

    def append(self, position: int, data: Buffer) -> None:
        """Append the bytes at byte `position` of the snapshot.

        Raises PositionOutOfRange if `position` is not `size_bytes`, KafkaStorageError.
        """
        ...

    def freeze(self) -> None:
        """Check the snapshot, flush it, and give it its final name. It never changes after that.

        Raises InvalidSnapshot, and removes the snapshot, if it is cut short or broken. Raises
        KafkaStorageError.
        """
        ...

    def close(self) -> None:
        """Remove the snapshot if it is not frozen."""
        ...


class RawSnapshotReader(Protocol):
    """Reads the bytes of a frozen snapshot."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, max_bytes: int) -> Buffer:
        """Return up to `max_bytes` from `position` on. They may start and end within a batch.

        Raises PositionOutOfRange if `position` is negative or not below `size_bytes`.
        """
        ...

    def close(self) -> None: ...


class SnapshotWriter(Protocol):
    """Writes records as a snapshot, and adds the header and the footer."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    def append(self, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> None:
        """Append records in order. Raises InvalidRecord, RecordListTooLarge, KafkaStorageError."""
        ...

    def freeze(self) -> None:
        """Write the remaining records and the footer, and freeze the snapshot; see RawSnapshotWriter."""
        ...

    def close(self) -> None:
        """Remove the snapshot if it is not frozen."""
        ...


class ReplicatedLog(Protocol):
    """The log that a quorum replicates. End offsets are exclusive."""

    @property
    def is_offline(self) -> bool:
        """Whether the disk has failed, so that nothing can be appended."""
        ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that ends at the log end; 0 if there is neither.

        An epoch that has begun but has no record yet does not count.
        """
        ...

    @property
    def flushed_offset(self) -> int:
        """All records below this offset are on disk."""
        ...

    def append_as_leader(self, batches: Buffer, epoch: int) -> LogAppendInfo:
        """Append the batches at the end, all or none, and assign their offsets and the epoch.

        Raises CorruptMessage and its kinds, MessageTooLarge, FencedLeaderEpoch, KafkaStorageError.
        """
        ...

    def append_as_follower(self, records: Buffer, epoch: int) -> LogAppendInfo | None:
        """Append a leader's batches unchanged. Returns None if there was no batch to append.

        Batches of a later epoch than `epoch` are skipped (KAFKA-18723). Raises CorruptMessage and its kinds,
        OffsetsOutOfOrder, KafkaStorageError.
        """
        ...

    def flush(self) -> None:
        """Write all records to disk. After a KafkaStorageError the log is offline for good."""
        ...

    def flush_aside(self, disk: Disk, flushed: Callable[[Callable[[], None]], object]) -> None:
        """Let `disk` flush the log, then call `flushed(finish)` in the node's loop.

        `finish` records the new flushed offset, or raises as `flush` does.
        """
        ...

    def read(self, start_offset: int, max_bytes: int, *, committed_only: bool) -> FetchDataInfo:
        """Return whole batches as a pinned slice, beginning with the one that contains `start_offset`.

        It is at least one batch if there is one. `committed_only`: stop at the high watermark. Raises
        OffsetOutOfRange.
        """
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """Compare this log with one that ends at `offset` with a last record of `epoch`."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the greatest epoch of this log that is at most `epoch`, and its end offset."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Record that `epoch` begins at the log end (Kafka: initializeLeaderEpoch)."""
        ...

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on.

        Raises FatalTruncation, and removes nothing, if that would go below the high watermark.
        """
        ...

    def truncate_to_end_offset(self, end: OffsetAndEpoch) -> int:
        """Truncate to where this log diverges from one whose epoch `end.epoch` ends at `end.offset`.

        Returns the new end. Raises FatalTruncation.
        """
        ...

    def truncate_to_latest_snapshot(self) -> bool:
        """Replace the log by the latest snapshot if that ends after the log. Returns True if it did.

        The snapshot is committed, so its end is the new high watermark.
        """
        ...

    def update_high_watermark(self, offset: int) -> None:
        """Advance the high watermark to `offset`, or to the log end if that is lower. It never goes back."""
        ...

    def create_new_snapshot(
        self, snapshot_id: OffsetAndEpoch, *, voters: VoterSet | None = None, kraft_version: int = 0
    ) -> SnapshotWriter:
        """Start a snapshot of all records below `snapshot_id.offset`.

        `voters` are written into it if `kraft_version` is above 0. Raises IllegalSnapshotId unless the id is
        the end of a committed batch of that epoch, not below the log start (KAFKA-14618), and is not taken
        yet.
        """
        ...

    def store_snapshot(self, snapshot_id: OffsetAndEpoch) -> RawSnapshotWriter:
        """Start a snapshot whose bytes come from a leader."""
        ...

    def read_snapshot(self, snapshot_id: OffsetAndEpoch) -> RawSnapshotReader | None:
        """Open the frozen snapshot with this id, or return None."""
        ...

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    def clean(self, now_ms: int) -> bool:
        """Delete old snapshots, and the log below the oldest one kept, by retention. Returns True if any
        went.

        The latest snapshot and all records above it are kept (KAFKA-14238).
        """
        ...

    def close(self) -> None:
        """Flush and close the files."""
        ...


class QuorumStateStore(Protocol):
    """Stores the last known election; Kafka's FileBasedStateStore."""

    def read(self) -> QuorumStateData | None:
        """Return the state that was last written; None if nothing was written.

        Raises InvalidFile or UnsupportedVersion if it cannot be read. The node must not start then, since it
        could vote twice in one epoch.
        """
        ...

    def write(self, state: QuorumStateData) -> None:
        """Write the state to disk before returning. Raises KafkaStorageError."""
        ...
