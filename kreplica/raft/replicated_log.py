"""ReplicatedLog: the log that a quorum replicates, as its members see it, and the ports of its snapshots.

The quorum's rules are the client's; a log answers where it stands, what it has, and whether what somebody
else says of his own log fits. `KafkaMetadataLog` is the one on disk. A snapshot is named by an
OffsetAndEpoch: it holds all below `offset`, whose last record is of epoch `epoch`.

Thread rule: everything here belongs to one loop, but for reads of what is committed, which are free.
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
"""The snapshot with which a cluster is formatted: it holds records that no log has."""


class ValidOffsetAndEpochKind(enum.Enum):
    """How a log that ends at an offset, with a last record of an epoch, relates to this one."""

    VALID = "valid"  # a prefix of this log
    DIVERGING = "diverging"  # the two part below that offset
    SNAPSHOT = "snapshot"  # this log does not go back so far


class ValidOffsetAndEpoch(NamedTuple):
    """What to answer to a fetch: the position itself, the end of the epoch to cut to, or a snapshot's id."""

    kind: ValidOffsetAndEpochKind
    offset_and_epoch: OffsetAndEpoch


class RawSnapshotWriter(Protocol):
    """The bytes of a snapshot as they come; until `freeze` nobody sees it."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    @property
    def size_bytes(self) -> int:
        """What was appended by now: the position that is wanted next."""
        ...

    @property
    def is_frozen(self) -> bool: ...

    def append(self, position: int, data: Buffer) -> None:
        """Add the bytes that begin at byte `position` of the snapshot.

        Raises PositionOutOfRange where that is not `size_bytes`, KafkaStorageError.
        """
        ...

    def freeze(self) -> None:
        """Check the whole, put it on disk, and let it be seen under its name; it never changes again.

        Raises InvalidSnapshot for one that is cut short or broken (it is gone then), KafkaStorageError.
        """
        ...

    def close(self) -> None:
        """Drop what is not frozen."""
        ...


class RawSnapshotReader(Protocol):
    """The bytes of a frozen snapshot."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, position: int, max_bytes: int) -> Buffer:
        """At most so many bytes from `position` on; they may begin and end within a batch.

        Raises PositionOutOfRange where `position` is negative or not below `size_bytes`.
        """
        ...

    def close(self) -> None: ...


class SnapshotWriter(Protocol):
    """Makes a snapshot of records, between a header and a footer that it adds by itself."""

    @property
    def snapshot_id(self) -> OffsetAndEpoch: ...

    def append(self, records: Sequence[ApiMessageAndVersion[MetadataRecord]]) -> None:
        """Add records in order. Raises InvalidRecord, RecordListTooLarge, KafkaStorageError."""
        ...

    def freeze(self) -> None:
        """Write what is left and the footer, and let the snapshot be seen; see RawSnapshotWriter."""
        ...

    def close(self) -> None:
        """Drop what is not frozen."""
        ...


class ReplicatedLog(Protocol):
    """See the module. Offsets are exclusive ends where they are ends."""

    @property
    def is_offline(self) -> bool:
        """Whether its disk has failed, so that it takes nothing any more."""
        ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_fetched_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that ends where the log does; 0 if there is none.

        An epoch that has begun and has no record yet is not meant.
        """
        ...

    @property
    def flushed_offset(self) -> int:
        """All below is on the disk."""
        ...

    def append_as_leader(self, batches: Buffer, epoch: int) -> LogAppendInfo:
        """Append batches at the end, all or none, and give them offsets and the epoch.

        Raises CorruptMessage and its kinds, MessageTooLarge, FencedLeaderEpoch, KafkaStorageError.
        """
        ...

    def append_as_follower(self, records: Buffer, epoch: int) -> LogAppendInfo | None:
        """Append a leader's batches as they are; nothing is cut. None where no batch was for this log.

        Batches of a later epoch than `epoch` are left out (KAFKA-18723). Raises CorruptMessage and its kinds,
        OffsetsOutOfOrder, KafkaStorageError.
        """
        ...

    def flush(self) -> None:
        """Put all below `end_offset` on disk. KafkaStorageError is for good: the log is offline then."""
        ...

    def flush_aside(self, disk: Disk, flushed: Callable[[Callable[[], None]], object]) -> None:
        """Have `disk` do it, then call `flushed(finish)` in the node's loop; `finish` notes it, or raises as
        `flush`."""
        ...

    def read(self, start_offset: int, max_bytes: int, *, committed_only: bool) -> FetchDataInfo:
        """Whole batches from the one with `start_offset` on, as a pinned slice, at least one if there is any.

        `committed_only`: up to the high watermark. Raises OffsetOutOfRange.
        """
        ...

    def validate_offset_and_epoch(self, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        """How a log relates to this one that ends at `offset` with a last record of `epoch`."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The greatest epoch here that is not above `epoch`, and where it ends."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Note that `epoch` begins at the log's end (Kafka: initializeLeaderEpoch)."""
        ...

    def truncate_to(self, offset: int) -> None:
        """Cut everything from `offset` on. Raises FatalTruncation below the high watermark: nothing is cut
        then."""
        ...

    def truncate_to_end_offset(self, end: OffsetAndEpoch) -> int:
        """Cut to where this log and one part whose epoch `end.epoch` ends at `end.offset`; the new end.

        Raises FatalTruncation.
        """
        ...

    def truncate_to_latest_snapshot(self) -> bool:
        """Begin the log anew behind the latest snapshot if that is ahead of it; whether it was.

        The snapshot is committed, so the high watermark is its end then.
        """
        ...

    def update_high_watermark(self, offset: int) -> None:
        """Move the high watermark up to `offset`, or to the log's end where that lies below; never back."""
        ...

    def create_new_snapshot(
        self, snapshot_id: OffsetAndEpoch, *, voters: VoterSet | None = None, kraft_version: int = 0
    ) -> SnapshotWriter:
        """Begin a snapshot of all below `snapshot_id.offset`, where `voters` vote by records if
        `kraft_version` is above 0.

        Raises IllegalSnapshotId unless that is a committed batch's boundary of that epoch, at or above the
        log's start (KAFKA-14618), and no snapshot of this id is there.
        """
        ...

    def store_snapshot(self, snapshot_id: OffsetAndEpoch) -> RawSnapshotWriter:
        """Begin a snapshot whose bytes come from a leader."""
        ...

    def read_snapshot(self, snapshot_id: OffsetAndEpoch) -> RawSnapshotReader | None:
        """The bytes of the frozen snapshot; None if there is none of this id."""
        ...

    @property
    def latest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    @property
    def earliest_snapshot_id(self) -> OffsetAndEpoch | None: ...

    def clean(self, now_ms: int) -> bool:
        """Drop old snapshots and the log below the oldest one kept, by retention; whether anything went.

        The latest snapshot stays, and so does all above it (KAFKA-14238).
        """
        ...

    def close(self) -> None:
        """Flush and let go of the files."""
        ...


class QuorumStateStore(Protocol):
    """Keeps the election as this node last knew it; Kafka's FileBasedStateStore."""

    def read(self) -> QuorumStateData | None:
        """What was last written; None if nothing ever was.

        Raises InvalidFile or UnsupportedVersion for what cannot be read: without it a node could vote twice
        in one epoch, so it must not start.
        """
        ...

    def write(self, state: QuorumStateData) -> None:
        """Put it on disk before this returns. Raises KafkaStorageError."""
        ...
