"""Decide whether another replica's batches may fill a lost range of a log.

They may if both replicas agree. The batches around the range must be byte-equal in both (in a compacted log,
of the same leader epoch). The peer's batches must cover the range from its first offset to its last, with
valid CRCs and matching leader epochs.

This module accesses no files. Thread rule: an object belongs to one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kreplica._core.records import RecordBatch, batches
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import CorruptMessage, InvalidFile
from kreplica.common.types import INT32_MAX
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.record.made_batches import empty_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica.log.damage import Damage
    from kreplica.log.unified_log import UnifiedLog


class PeerDisagrees(InvalidFile):
    """The lost range cannot be taken from this peer, because the two replicas disagree."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lost offsets [`first_offset`, `next_offset`) of a log, and what the log knows around them.

    `before`, `after`: the bytes of the adjacent batches.
    `epochs`: the log's leader epochs, or None if they cannot be read.
    `may_have_gaps`: whether the log was compacted.
    `log_start`: offsets below are deleted, and a peer need not have them.
    """

    first_offset: int
    next_offset: int
    before: bytes | None
    after: bytes | None
    epochs: Sequence[EpochEntry] | None
    may_have_gaps: bool
    log_start: int = -1
    # The epochs that recovery compares each batch with.
    recovery_epochs: Sequence[EpochEntry] = ()

    def check(self, batch: RecordBatch, offset: int, least_epoch: int) -> None:
        """Raise PeerDisagrees unless the peer's batch may follow at `offset`, after leader epoch
        `least_epoch`."""
        base = batch.base_offset
        most = RecordBatch(self.after).leader_epoch if self.after else None
        if not batch.crc_valid:
            raise PeerDisagrees(f"the peer's batch at offset {base} rotted, too")
        # A log may begin inside a batch.
        is_first = offset == self.first_offset == self.log_start and batch.next_offset > offset
        if (base < offset and not is_first) or (base > offset and not self.may_have_gaps):
            raise PeerDisagrees(f"the peer has a batch at offset {base}, but the range needs one at {offset}")
        if batch.next_offset > self.next_offset:
            raise PeerDisagrees(
                f"the peer's batch at offset {base} reaches beyond the range, which ends"
                f" at {self.next_offset}"
            )
        if batch.leader_epoch < least_epoch or (most is not None and batch.leader_epoch > most):
            raise PeerDisagrees(
                f"the peer's batch at offset {base} has leader epoch {batch.leader_epoch}, outside"
                f" {least_epoch} to {'any' if most is None else most}"
            )

    def is_another(self, batch: RecordBatch, known: bytes | None) -> bool:
        """Return whether the peer's batch contradicts `known`, this log's batch at the same place.

        In a compacted log the cleaners of the two replicas work independently. Only the leader epochs of
        batches with the same offset are compared there.
        """
        if known is None or not batch.crc_valid:
            return False
        if not self.may_have_gaps:
            return bytes(memoryview(batch)) != known
        ours = RecordBatch(known)
        return ours.base_offset == batch.base_offset and ours.leader_epoch != batch.leader_epoch

    @property
    def least_epoch(self) -> int:
        """The least leader epoch that a batch of the range may have."""
        return RecordBatch(self.before).leader_epoch if self.before else -1


def epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int | None:
    """Return the leader epoch of an offset, or None below the first entry."""
    at = bisect_right([entry.start_offset for entry in epochs], offset) - 1
    return epochs[at].epoch if at >= 0 else None


class RangeFromPeers:
    """Collects the batches of a lost range from peers, fetch by fetch. One peer may continue after another.

    `fetch_offset`: where the next fetch begins. `next_offset`: everything below has been received.

    The batches next to the range are compared only if the peer can send them. The peer's log may end sooner
    than this one, or have rot there.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._begin()

    def _begin(self) -> None:
        self.next_offset = self._wanted.first_offset
        self._epoch = self._wanted.least_epoch
        self._before = self._wanted.before
        self._pieces: list[bytes] = []
        self._deleted_below = self._wanted.log_start
        self.begin_with_peer()
        self._fill_deleted()

    def begin_with_peer(self) -> None:
        """Continue with another peer."""
        self._compared = self._before is None
        self._at_last = False

    def skip_before(self) -> bool:
        """Skip the batch before the range, which the peer cannot send; return False if already skipped."""
        skips, self._compared = not self._compared, True
        return skips

    def skip_to_last(self) -> bool:
        """Fetch at the last offset of the range; return False if that was tried before.

        The peer's log may begin inside the range's last batch, which it sends as a whole.
        """
        if self._at_last or self.fetch_offset >= self._wanted.next_offset - 1:
            return False
        self._at_last = True
        return True

    @property
    def fetch_offset(self) -> int:
        if self._at_last:
            return self._wanted.next_offset - 1
        if not self._compared and self._before is not None:
            return RecordBatch(self._before).base_offset
        return max(self.next_offset, self._deleted_below)

    def _fill_deleted(self) -> None:
        if self._deleted_below >= self._wanted.next_offset:
            after = self._wanted.after
            self._fill(self._wanted.next_offset, 0 if after is None else RecordBatch(after).leader_epoch)

    def _fill(self, end: int, epoch: int) -> None:
        # Recovery compares each batch with the log's leader epochs, so write one empty batch for each epoch.
        # Without known epochs, use that of the batch before the range, or else `epoch`.
        if end - self.next_offset > INT32_MAX:
            raise PeerDisagrees(
                f"the deleted offsets {self.next_offset} to {end - 1} do not fit into one empty batch"
            )
        epochs = self._wanted.recovery_epochs
        starts = [entry.start_offset for entry in epochs]
        while self.next_offset < end:
            at = bisect_right(starts, self.next_offset) - 1
            stop = min([end, *starts[at + 1 : at + 2]])
            known = epoch if self._epoch < 0 else self._epoch
            if at >= 0:
                known = max(epochs[at].epoch, self._epoch)
            self._pieces.append(empty_batch(self.next_offset, stop - 1, known))
            self.next_offset = stop

    @property
    def is_whole(self) -> bool:
        """Whether every offset of the range has been received."""
        return self.next_offset >= self._wanted.next_offset

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)

    def take(self, records: Buffer) -> bool:
        """Take the records of a fetch at `fetch_offset`; return whether there is more to fetch.

        Raises PeerDisagrees with the reason.
        """
        try:
            for batch in batches(records, partial=True):
                if not self._take(batch):
                    return False
        except CorruptMessage as error:
            raise PeerDisagrees(f"the peer sent a malformed batch: {error}") from error
        return not (self.is_whole and self._wanted.after is None)

    def _take(self, batch: RecordBatch) -> bool:
        wanted, base, data = self._wanted, batch.base_offset, bytes(memoryview(batch))
        if not self._compared and (base < self.next_offset or not wanted.may_have_gaps):
            if wanted.is_another(batch, self._before):
                raise PeerDisagrees(f"the peer has another batch at offset {base}, before the range")
            self._compared = True
            return True
        self._compared = True
        if batch.next_offset <= self.next_offset and wanted.may_have_gaps:
            return True
        if wanted.may_have_gaps and base >= wanted.next_offset:
            self.next_offset = wanted.next_offset
        if self.is_whole:
            if wanted.is_another(batch, wanted.after):
                self._begin()
                raise PeerDisagrees(f"the peer has another batch at offset {base}, behind the range")
            return False
        if self.next_offset < base <= self._deleted_below:
            self._fill(base, batch.leader_epoch)
        wanted.check(batch, self.next_offset, self._epoch)
        known = None if wanted.epochs is None else epoch_at(wanted.epochs, base)
        if known is not None and known != batch.leader_epoch:
            raise PeerDisagrees(
                f"the peer's batch at offset {base} has leader epoch {batch.leader_epoch},"
                f" this log has {known}"
            )
        self._pieces.append(data)
        self._before, self._at_last = data, False
        self.next_offset, self._epoch = batch.next_offset, batch.leader_epoch
        return True


# ---- the range of a log ------------------------------------------------------------------------------------


def wanted_by(log: UnifiedLog, damage: Damage) -> Wanted:
    """Return what a damaged range of the log needs from a peer.

    A range that nothing follows is never whole.
    """
    epochs = None if log.stopped_at is damage else log.epochs.entries
    return Wanted(
        damage.first_offset,
        damage.stop_offset,
        _before(log, damage),
        _after(log, damage),
        epochs or None,
        log.config.compact,
        log.log_start_offset,
        log.epochs.entries if epochs is not None else _epochs_on_disk(log),
    )


def _epochs_on_disk(log: UnifiedLog) -> Sequence[EpochEntry]:
    try:
        return LeaderEpochCheckpointFile(log.local.storage, log.local.directory).read()
    except InvalidFile:
        return ()  # the file has rotted, so recovery has no epochs to compare batches with


def _before(log: UnifiedLog, damage: Damage) -> bytes | None:
    offset = damage.first_offset - 1
    if offset < log.log_start_offset or log.damages.at(offset) is not None:
        return None
    segments = log.local.segments
    index = segments.index_for(offset)
    if index < 0:
        return None
    segment = segments[index]
    try:
        found = log.position_of(segment, offset)
        if found is None or found[3] >= damage.first_offset:
            return None
        data = segment.region.read(found[0], found[1])
        return data if RecordBatch(data).crc_valid else None
    except CorruptMessage:
        # This batch has rotted, too; a read finds that.
        return None


def _after(log: UnifiedLog, damage: Damage) -> bytes | None:
    if damage.next_offset is None or log.damages.at(damage.next_offset) is not None:
        return None
    segments = log.local.segments
    index = max(0, segments.index_for(damage.first_offset))  # the first segment if the start is missing
    segment, position = segments[index], damage.end_position
    if position >= segment.size:
        if index + 1 == len(segments):
            return None
        segment, position = segments[index + 1], 0
    try:
        for batch in batches(segment.region.slice(position, segment.size - position), partial=True):
            return bytes(memoryview(batch)) if batch.crc_valid else None
    except CorruptMessage:
        pass  # rotted, too; a read finds that
    return None
