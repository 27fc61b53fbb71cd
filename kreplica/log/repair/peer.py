"""Peer: takes lost ranges from another replica's directory, if both replicas agree.

They agree if the batches around the range are byte-equal, including leader epochs, and both have the same
epochs over the range. The peer's batches must also fill the range from its first offset to its last, with
valid CRCs. Nothing in the peer's directory is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import KreplicaError
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.file_names import LOG_SUFFIX, file_name, parse_file_name
from kreplica.log.lost_range import PeerDisagrees, Wanted, epoch_at
from kreplica.log.quarantine import read_all
from kreplica.log.repair.rewrite import Piece
from kreplica.log.repair.survey import open_segment

if TYPE_CHECKING:
    from kreplica.common.ports import Storage


class Peer:
    """The partition's directory of another replica. Raises KafkaStorageError if it cannot be read."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        names = storage.list_directory(directory)
        found = map(parse_file_name, names)
        self._bases = sorted(each[0] for each in found if each and each[1] == LOG_SUFFIX)
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
