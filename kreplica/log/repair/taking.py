"""Change a plan so that lost ranges are taken from another replica instead of becoming gaps.

For a range at the end of a segment, whole segment files of the peer become segment files again. Ranges that
an earlier repair has quarantined are taken, too. If the peer disagrees about one range, nothing in the
partition
is repaired: a gap would be possible, but the user asked for the peer's records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import CorruptMessage, KreplicaError
from kreplica.log.file_names import LOG_SUFFIX, file_name, parse_file_name
from kreplica.log.lost_range import PeerDisagrees, Wanted
from kreplica.log.quarantine import read_all
from kreplica.log.repair.finding import BLOCKED, TAKE, Finding
from kreplica.log.repair.peer import Peer
from kreplica.log.repair.plan import Lost, PartitionPlan
from kreplica.log.repair.rewrite import Edit, Piece
from kreplica.log.repair.survey import open_segment

if TYPE_CHECKING:
    from kreplica.common.ports import Storage


def take_from_peer(storage: Storage, plan: PartitionPlan, peer_directory: str) -> None:
    """Change the plan to take its lost ranges from the partition in `peer_directory`, if that agrees."""
    names = storage.list_directory(plan.directory)
    lost = [*plan.lost, *_quarantined(storage, plan, names)]
    if not lost:
        return
    try:
        peer = Peer(storage, peer_directory)
    except KreplicaError as error:
        plan.findings.append(Finding(peer_directory, "PeerDisagrees", BLOCKED, str(error)))
        return
    around = _Around(storage, plan, names)
    for each in lost:
        try:
            pieces = peer.take(around.wanted(each))
        except PeerDisagrees as error:
            each.finding.kind, each.finding.action = "PeerDisagrees", BLOCKED
            each.finding.text = f"{each.finding.text}; not taken: {error}"
        else:
            _place(plan, each, pieces)


def _quarantined(storage: Storage, plan: PartitionPlan, names: list[str]) -> Iterator[Lost]:
    """Yield the ranges that an earlier repair has quarantined and that are still missing."""
    findings = {finding.offset: finding for finding in plan.findings if finding.kind == "Quarantined"}
    for name, note in read_all(storage, plan.directory, names).items():
        finding = findings.get(note.first_offset)
        if finding is None or note.first_offset == note.next_offset:
            continue
        base = max(base for base in _bases(names) if base <= note.first_offset)
        segment = open_segment(storage, f"{plan.directory}/{file_name(base, LOG_SUFFIX)}", base)
        try:
            found = segment.position_of(note.first_offset)
            if found is None or found[3] + 1 != note.next_offset:
                continue
            edit = Edit(found[0], found[0] + found[1], segment.region.read(found[0], found[1]))
            at_end = edit.end_position == segment.size
        except CorruptMessage:
            continue  # the plan already contains the problem
        finally:
            segment.close()
        kept = [name] if note.kept_in is None else [name, note.kept_in]
        notes = tuple(f"{plan.directory}/{each}" for each in kept)
        yield Lost(base, edit, note.first_offset, note.next_offset, at_end, finding, notes)


def _bases(names: list[str]) -> list[int]:
    return sorted(found[0] for found in map(parse_file_name, names) if found and found[1] == LOG_SUFFIX)


class _Around:
    """Finds the batches around the lost ranges of a log."""

    def __init__(self, storage: Storage, plan: PartitionPlan, names: list[str]) -> None:
        self._storage = storage
        self._plan = plan
        self._bases = _bases(names)

    def wanted(self, lost: Lost) -> Wanted:
        at = self._bases.index(lost.base_offset)
        before = self._nearest(self._bases[at::-1], lost.first_offset, is_before=True)
        after = self._nearest(self._bases[at:], lost.next_offset, is_before=False)
        plan = self._plan
        return Wanted(lost.first_offset, lost.next_offset, before, after, plan.epochs, plan.is_compacted)

    def _nearest(self, bases: list[int], offset: int, *, is_before: bool) -> bytes | None:
        """Return the bytes of the nearest batch with records below `offset`, or at or above it."""
        for base in bases:
            found = None
            for batch in self._batches(base):
                if is_before and batch.next_offset <= offset:
                    found = bytes(memoryview(batch))
                elif not is_before and batch.base_offset >= offset:
                    return bytes(memoryview(batch))
            if found is not None:
                return found
        return None

    def _batches(self, base: int) -> Iterator[RecordBatch]:
        """Yield the batches of a segment that are outside the plan's edits and have records."""
        edits = sorted(self._plan.edits.get(base, ()), key=lambda edit: edit.position)
        segment = open_segment(self._storage, f"{self._plan.directory}/{file_name(base, LOG_SUFFIX)}", base)
        try:
            position = 0
            for start, end in [*((edit.position, edit.end_position) for edit in edits), (segment.size, 0)]:
                try:
                    for batch in batches(
                        segment.region.slice(position, max(0, start - position)), partial=True
                    ):
                        if batch.record_count and batch.crc_valid:
                            yield batch
                except CorruptMessage:
                    pass  # the tail that recovery will truncate, or padding
                position = end
        finally:
            segment.close()


def _place(plan: PartitionPlan, lost: Lost, pieces: list[Piece]) -> None:
    files: list[Piece] = []
    inside: list[Piece] = []
    for piece in pieces:
        is_file = lost.is_at_end and piece.position == 0 and piece.base_offset >= lost.first_offset
        (files if is_file and piece.base_offset > lost.base_offset else inside).append(piece)
    edits = [edit for edit in plan.edits.get(lost.base_offset, []) if edit is not lost.edit]
    new = Edit(lost.edit.position, lost.edit.end_position, b"", None, tuple(inside))
    if inside or new.position < new.end_position:
        edits.append(new)
    plan.edits[lost.base_offset] = sorted(edits, key=lambda edit: (edit.position, edit.end_position))
    for piece in files:
        plan.files[piece.base_offset] = piece
    plan.rebuild(lost.base_offset)
    plan.remove += [path for path in lost.notes if path not in plan.remove]
    finding = lost.finding
    finding.action = TAKE
    size = sum(piece.size for piece in pieces)
    finding.text = f"offsets {lost.first_offset} to {lost.next_offset - 1}: {size} bytes of {pieces[0].path}"
    finding.text += f" and {len(pieces) - 1} more" if len(pieces) > 1 else ""
