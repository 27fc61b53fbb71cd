"""Snapshots of the metadata log: their file names, and how they are checked, written and read.

A snapshot is written under a temporary name. When it is complete it is checked, flushed, renamed, and the
directory is flushed, in this order. So a file under a snapshot's name is always a whole snapshot. It never
changes, and a reader keeps it even after the file is removed. The file names are Kafka's:

    00000000000000004711-0000000003.checkpoint           all below offset 4711, the last record of epoch 3
    00000000000000004711-0000000003-7.checkpoint.part    being written
    00000000000000004711-0000000003.checkpoint.deleted   about to be removed by Kafka

Batches follow each other from offset 0 without gaps, all in the epoch of the snapshot's name. The first
record of the first batch is the header, the last record of the last batch is the footer, and neither occurs
elsewhere. The bytes may come from another node or a failing disk: any mismatch raises InvalidSnapshot before
the first record is used. If voters can be added and removed, the first batch also names them (KIP-853).

Owned by the raft loop; a reader belongs to the thread that it was passed to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kreplica._core.records import RecordBatch, batches
from kreplica._core.region import Region, Slice
from kreplica.common.closing import Closing
from kreplica.common.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidSnapshot,
    KafkaStorageError,
    KreplicaError,
    PositionOutOfRange,
    RecordListTooLarge,
)
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import INT32_MAX, INT64_MAX
from kreplica.metadata.batch_reader import Batch, decoded_batches
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control,
)
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import MetadataRecord
from kreplica.metadata.serde import ApiMessageAndVersion
from kreplica.raft.batch_accumulator import BatchAccumulator
from kreplica.raft.voter_set import VoterSet

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"

_FROZEN = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)
_LEFT = re.compile(r"\d{20}-\d{10}.*\.checkpoint\.(part|deleted)", re.ASCII)
BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)
"""The id of the snapshot that a cluster is formatted with. Its records are in no log."""
WRITE_SIZE_BYTES = 1 << 20
"""How many bytes are collected before they are written."""


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """Return the file name of a frozen snapshot."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


def partial_name(snapshot_id: OffsetAndEpoch, number: int) -> str:
    """Return the file name of a snapshot that is being written, the `number`th of its process."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}-{number}{PARTIAL_SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """Return the id of a frozen snapshot, or None for any other name."""
    found = _FROZEN.fullmatch(name)
    if found is None or int(found[1]) > INT64_MAX or int(found[2]) > INT32_MAX:
        return None
    return OffsetAndEpoch(int(found[1]), int(found[2]))


def is_left_over(name: str) -> bool:
    """Return whether a crash left the file, while a snapshot was being written or removed."""
    return _LEFT.fullmatch(name) is not None


class SnapshotSummary(NamedTuple):
    """The content of a snapshot's control records."""

    last_contained_log_timestamp: int
    kraft_version: int
    voters: VoterSet | None


def check_snapshot(snapshot: FileRawSnapshotReader) -> SnapshotSummary:
    """Check all of the snapshot: each CRC, each record's frame, the header and the footer.

    Metadata records are not decoded. Raises InvalidSnapshot, KafkaStorageError.
    """
    with _named_in_errors(snapshot.snapshot_id):
        return _check_all(snapshot)


def summary_of(snapshot: FileRawSnapshotReader) -> SnapshotSummary:
    """Return the content of the first batch without checking the rest. Raises InvalidSnapshot,
    KafkaStorageError.
    """
    with _named_in_errors(snapshot.snapshot_id):
        return _check_first(snapshot)


@contextmanager
def _named_in_errors(snapshot_id: OffsetAndEpoch) -> Iterator[None]:
    """Raise what is wrong with the snapshot as InvalidSnapshot with its id."""
    offset, epoch = snapshot_id
    try:
        yield
    except (KafkaStorageError, InvalidSnapshot):
        raise
    except KreplicaError as error:
        raise InvalidSnapshot(f"snapshot {offset}-{epoch}: {error}", where=error.where) from error


def _check_all(snapshot: FileRawSnapshotReader) -> SnapshotSummary:
    summary, offset, ended = None, 0, False
    for batch in _batches(snapshot):
        if ended:
            raise InvalidRecord(f"there is a batch after the footer, at offset {batch.base_offset}")
        batch.check()
        _check_place(snapshot, batch, offset)
        offset = batch.next_offset
        control = _control_records(batch) if batch.is_control else []
        if summary is None:
            summary = _summary(control)
            control = control[1:]
        ended = bool(control) and isinstance(control[-1], SnapshotFooterRecord)
        inner = control[:-1] if ended else control
        if any(isinstance(each, (SnapshotHeaderRecord, SnapshotFooterRecord)) for each in inner):
            raise InvalidRecord(
                f"there is a header or footer between records, in the batch at {batch.base_offset}"
            )
    if summary is None or not ended:
        raise InvalidRecord(f"it ends at offset {offset}, byte {snapshot.size_bytes}, without a footer")
    return summary


def _check_first(snapshot: FileRawSnapshotReader) -> SnapshotSummary:
    first = next(_batches(snapshot), None)
    if first is None:
        raise InvalidRecord("it is empty")
    _check_place(snapshot, first, 0)
    return _summary(_control_records(first) if first.is_control else [])


def _batches(snapshot: FileRawSnapshotReader) -> Iterator[RecordBatch]:
    if snapshot.size_bytes == 0:
        return iter(())
    return batches(snapshot.read(0, snapshot.size_bytes))


def _check_place(snapshot: FileRawSnapshotReader, batch: RecordBatch, offset: int) -> None:
    epoch = snapshot.snapshot_id.epoch
    if batch.base_offset != offset or batch.leader_epoch != epoch:
        raise InvalidRecord(
            f"got a batch at offset {batch.base_offset} of epoch {batch.leader_epoch}, expected offset"
            f" {offset} of epoch {epoch}"
        )


def _control_records(batch: RecordBatch) -> list[ControlMessage | None]:
    return [decode_control(record.key, record.value) for record in batch]


def _summary(control: list[ControlMessage | None]) -> SnapshotSummary:
    header = control[0] if control else None
    if not isinstance(header, SnapshotHeaderRecord):
        raise InvalidRecord("it does not start with a header")
    version, voters = 0, None
    for each in control:
        if isinstance(each, KRaftVersionRecord):
            version = each.k_raft_version
        elif isinstance(each, VotersRecord):
            voters = VoterSet.from_voters_record(each)
    return SnapshotSummary(header.last_contained_log_timestamp, version, voters)


class FileRawSnapshotWriter:
    """Writes a snapshot into `directory`. `number` distinguishes writers of this process.

    `on_frozen` is called with the id when the snapshot has its final name.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        snapshot_id: OffsetAndEpoch,
        number: int,
        on_frozen: Callable[[OffsetAndEpoch], None],
    ) -> None:
        self.snapshot_id = snapshot_id
        self.size_bytes = 0
        self.is_frozen = False
        self.is_closed = False
        self._storage = storage
        self._directory = directory
        self._path = f"{directory}/{partial_name(snapshot_id, number)}"
        self._on_frozen = on_frozen
        storage.write_file(self._path, b"")

    def append(self, position: int, data: Buffer) -> None:
        """Append the bytes at byte `position` of the snapshot.

        Raises PositionOutOfRange if `position` is not `size_bytes`, KafkaStorageError.
        """
        self._require_open()
        if position != self.size_bytes:
            raise PositionOutOfRange(
                f"snapshot {self._path}: got bytes at position {position}, expected {self.size_bytes}",
                where=self.size_bytes,
            )
        content = bytes(data)
        self._storage.write_at(self._path, position, content)
        self.size_bytes += len(content)

    def freeze(self) -> None:
        """Check the snapshot, flush it, and give it its final name. It never changes after that.

        Raises InvalidSnapshot, and removes the snapshot, if it is cut short or broken. Raises
        KafkaStorageError.
        """
        self._require_open()
        try:
            with FileRawSnapshotReader(self._storage, self._path, self.snapshot_id) as written:
                check_snapshot(written)
            self._storage.sync_file(self._path)
            self._storage.rename(self._path, f"{self._directory}/{snapshot_name(self.snapshot_id)}")
        except BaseException:
            self.close()
            raise
        # From here on the file has its final name, even if the flush of the directory fails.
        self.is_frozen = self.is_closed = True
        self._storage.sync_directory(self._directory)
        self._on_frozen(self.snapshot_id)

    def close(self) -> None:
        """Remove the snapshot if it is not frozen."""
        if not self.is_closed:
            self.is_closed = True
            self._storage.remove(self._path)

    def _require_open(self) -> None:
        if self.is_closed:
            raise InvalidRequest(f"the writer of snapshot {self._path} is closed")


class FileRawSnapshotReader(Closing):
    """Reads the existing file at `path`. The bytes that it returns are pinned."""

    def __init__(self, storage: Storage, path: str, snapshot_id: OffsetAndEpoch) -> None:
        self.path = path
        self.snapshot_id = snapshot_id
        self.size_bytes = storage.size(path)
        self._region: Region = storage.open_region(path, max(1, self.size_bytes), writable=False)

    def read(self, position: int, max_bytes: int) -> Slice:
        """Return up to `max_bytes` from `position` on. They may start and end within a batch.

        Raises PositionOutOfRange if `position` is negative or not below `size_bytes`.
        """
        if not 0 <= position < self.size_bytes:
            raise PositionOutOfRange(
                f"{self.path}: position {position} is outside of its {self.size_bytes} bytes", where=position
            )
        return self._region.slice(position, max(0, min(max_bytes, self.size_bytes - position)))

    def close(self) -> None:
        """Close the file. Bytes that were read stay valid."""
        self._region.close()


class RecordsSnapshotReader(Closing):
    """Reads records from `raw`, and closes it. Each iteration yields all batches again.

    `last_contained_log_timestamp`: ms since 1970. `voters`: None if the snapshot names none.
    """

    last_contained_log_timestamp: int
    kraft_version: int
    voters: VoterSet | None

    def __init__(self, raw: FileRawSnapshotReader) -> None:
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
        with _named_in_errors(self.snapshot_id):
            yield from decoded_batches(self._raw.read(0, self.size_bytes))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class RecordsSnapshotWriter(Closing):
    """Writes records into `raw`.

    `last_contained_log_timestamp`: of the last record that the snapshot covers, in ms since 1970. `voters`
    are written if `kraft_version` is at least 1.
    """

    def __init__(
        self,
        raw: FileRawSnapshotWriter,
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
        """Append records in order. Raises InvalidRecord, RecordListTooLarge, KafkaStorageError.

        The records of one call may be split into several batches.
        """
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
        """Write the remaining records and the footer, and freeze the snapshot; see FileRawSnapshotWriter."""
        self._accumulator.append_control_messages([SnapshotFooterRecord()])
        self._write()
        self._raw.freeze()

    def close(self) -> None:
        """Remove the snapshot if it is not frozen."""
        self._accumulator.close()
        self._raw.close()

    def _write(self) -> None:
        for batch in self._accumulator.drain():
            self._raw.append(self._raw.size_bytes, batch.data)
