"""Checks that bytes are a whole snapshot, before they get its name and before they are used.

Batches follow each other from offset 0 without gaps, all in the epoch of the snapshot's name. The first
record of the first batch is the header, the last record of the last batch is the footer, and neither occurs
elsewhere. The bytes may come from another node or a failing disk: any mismatch raises InvalidSnapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import InvalidRecord, InvalidSnapshot, KafkaStorageError, KreplicaError
from kreplica.metadata.control_records import (
    ControlMessage,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control,
)
from kreplica.raft.replicated_log import RawSnapshotReader
from kreplica.raft.voter_set import VoterSet


class SnapshotSummary(NamedTuple):
    """The content of a snapshot's control records."""

    last_contained_log_timestamp: int
    kraft_version: int
    voters: VoterSet | None


_Check = Callable[[RawSnapshotReader], SnapshotSummary]


def check_snapshot(snapshot: RawSnapshotReader) -> SnapshotSummary:
    """Check all of the snapshot: each CRC, each record's frame, the header and the footer.

    Metadata records are not decoded. Raises InvalidSnapshot, KafkaStorageError.
    """
    return _guarded(snapshot, _check_all)


def summary_of(snapshot: RawSnapshotReader) -> SnapshotSummary:
    """Return the content of the first batch without checking the rest. Raises InvalidSnapshot,
    KafkaStorageError.
    """
    return _guarded(snapshot, _check_first)


def _guarded(snapshot: RawSnapshotReader, check: _Check) -> SnapshotSummary:
    offset, epoch = snapshot.snapshot_id
    try:
        return check(snapshot)
    except (KafkaStorageError, InvalidSnapshot):
        raise
    except KreplicaError as error:
        raise InvalidSnapshot(f"snapshot {offset}-{epoch}: {error}", where=error.where) from error


def _check_all(snapshot: RawSnapshotReader) -> SnapshotSummary:
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


def _check_first(snapshot: RawSnapshotReader) -> SnapshotSummary:
    first = next(_batches(snapshot), None)
    if first is None:
        raise InvalidRecord("it is empty")
    _check_place(snapshot, first, 0)
    return _summary(_control_records(first) if first.is_control else [])


def _batches(snapshot: RawSnapshotReader) -> Iterator[RecordBatch]:
    if snapshot.size_bytes == 0:
        return iter(())
    return batches(snapshot.read(0, snapshot.size_bytes))


def _check_place(snapshot: RawSnapshotReader, batch: RecordBatch, offset: int) -> None:
    epoch = snapshot.snapshot_id.epoch
    if batch.base_offset != offset or batch.leader_epoch != epoch:
        raise InvalidRecord(
            f"got a batch at offset {batch.base_offset} of epoch {batch.leader_epoch}, expected offset"
            f" {offset}"
            f" of epoch {epoch}"
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
