"""Take lost ranges from another replica's directory, if both replicas agree, instead of leaving gaps.

They agree if the batches around the range are byte-equal, including leader epochs, and both have the same
epochs over the range. The peer's batches must also fill the range from its first offset to its last, with
valid CRCs. Nothing in the peer's directory is changed.

For a range at the end of a segment, whole segment files of the peer become segment files again. Ranges that
an earlier repair has quarantined are taken, too. If the peer disagrees about one range, nothing in the
partition is repaired: a gap would be possible, but the user asked for the peer's records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import CorruptMessage, KreplicaError
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.file_names import LOG_SUFFIX, file_name, segment_bases
from kreplica.log.lost_range import PeerDisagrees, Wanted, epoch_at
from kreplica.log.quarantine import read_all
from kreplica.log.repair.plan import BLOCKED, TAKE, Finding, Lost, PartitionPlan
from kreplica.log.repair.rewrite import Edit, Piece
from kreplica.log.repair.survey import open_segment

if TYPE_CHECKING:
    from kreplica.common.ports import Storage


class Peer:
    """The partition's directory of another replica. Raises KafkaStorageError if it cannot be read."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        names = storage.list_directory(directory)
        self._bases = segment_bases(names)
        self._epochs = LeaderEpochCheckpointFile(storage, directory).read()
        self._lost = list(read_all(storage, directory, names).values())

    def take(self, wanted: Wanted) -> list[Piece]:
        """Return the peer's batches of the range, by segment. Raises PeerDisagrees with the reason."""
        try:
            self._compare_neighbours(wanted)
            self._compare_epochs(wanted)
            return list(self._pieces(wanted))
        except PeerDisagrees:
            raise
        except KreplicaError as error:
            raise PeerDisagrees(f"{self._directory}: {error}") from error

    def _compare_neighbours(self, wanted: Wanted) -> None:
        if wanted.before is None and wanted.after is None:
            raise PeerDisagrees("no batch next to the range is left to compare the replicas by")
        for where, ours in (("before", wanted.before), ("behind", wanted.after)):
            if ours is None:
                continue
            offset = RecordBatch(ours).base_offset
            theirs = self._batch_at(offset)
            if theirs is None:
                raise PeerDisagrees(f"the peer has no batch at offset {offset}, {where} the range")
            if theirs != ours:
                raise PeerDisagrees(f"the peer has another batch at offset {offset}, {where} the range")

    def _compare_epochs(self, wanted: Wanted) -> None:
        if wanted.epochs is None:
            return  # the comparison of the neighbouring batches has to suffice
        first = RecordBatch(wanted.before).base_offset if wanted.before else wanted.first_offset
        following = RecordBatch(wanted.after).next_offset if wanted.after else wanted.next_offset
        ours, theirs = (_over(epochs, first, following) for epochs in (wanted.epochs, self._epochs))
        if ours != theirs:
            raise PeerDisagrees(f"the peer's leader epochs over the range are {theirs}, not {ours}")

    def _pieces(self, wanted: Wanted) -> Iterator[Piece]:
        offset = wanted.first_offset
        least = wanted.least_epoch
        for base in self._bases[max(0, bisect_right(self._bases, offset) - 1) :]:
            if offset >= wanted.next_offset or base >= wanted.next_offset:
                break
            with self._open(base) as segment:
                begin = end = _position(segment, offset)
                for batch in batches(segment.region.slice(begin, segment.size - begin), partial=True):
                    if batch.base_offset >= wanted.next_offset:
                        break
                    self._check(batch, offset, least, wanted)
                    offset, least, end = batch.next_offset, batch.leader_epoch, end + batch.size
                    if offset >= wanted.next_offset:
                        break
                if end > begin:
                    yield Piece(segment.region.path, base, begin, end)
        if offset != wanted.next_offset and not (wanted.may_have_gaps and offset < wanted.next_offset):
            raise PeerDisagrees(
                f"the peer's batches end at offset {offset}, the range at {wanted.next_offset}"
            )

    def _check(self, batch: RecordBatch, offset: int, least_epoch: int, wanted: Wanted) -> None:
        base = batch.base_offset
        wanted.check(batch, offset, least_epoch)
        known = epoch_at(self._epochs, base)
        if known is not None and known != batch.leader_epoch:
            raise PeerDisagrees(
                f"the peer's batch at offset {base} has another leader epoch than its checkpoint"
            )
        if batch.record_count == 0 and any(q.covers(base, batch.last_offset) for q in self._lost):
            raise PeerDisagrees(f"the peer has lost the offsets from {base} to {batch.last_offset}, too")

    def _batch_at(self, offset: int) -> bytes | None:
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        with self._open(self._bases[at]) as segment:
            found = segment.position_of(offset)
            return None if found is None or found[2] != offset else segment.region.read(found[0], found[1])

    @contextmanager
    def _open(self, base: int) -> Iterator[LogSegment]:
        path = f"{self._directory}/{file_name(base, LOG_SUFFIX)}"
        segment = open_segment(self._storage, path, base)
        try:
            yield segment
        finally:
            segment.close()


def _position(segment: LogSegment, offset: int) -> int:
    found = segment.position_of(offset)
    return segment.size if found is None else found[0]


def _over(epochs: Sequence[EpochEntry], first: int, following: int) -> list[tuple[int, int]]:
    """Return the epochs of the offsets [first, following), each with its first offset among them."""
    inside = [(entry.epoch, entry.start_offset) for entry in epochs if first < entry.start_offset < following]
    before = epoch_at(epochs, first)
    return inside if before is None else [(before, first), *inside]


# ---- the plan ------------------------------------------------------------------------------------------


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
        base = max(base for base in segment_bases(names) if base <= note.first_offset)
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


class _Around:
    """Finds the batches around the lost ranges of a log."""

    def __init__(self, storage: Storage, plan: PartitionPlan, names: list[str]) -> None:
        self._storage = storage
        self._plan = plan
        self._bases = segment_bases(names)

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
