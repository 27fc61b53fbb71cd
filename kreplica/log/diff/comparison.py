"""Compare two logs: whole chunks at a time where they are equal, single batches where they differ.

Also pairs up the partitions of two directories, and compares two histories of leader epochs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from kreplica._core.batch_comparison import RecordCursor, agree, compare_records
from kreplica.common.config import LogConfig
from kreplica.common.errors import CorruptMessage, KafkaStorageError, KreplicaError
from kreplica.common.isolation import Isolation, isolation_level
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import INT64_MAX, NO_LEADER_EPOCH
from kreplica.log.checkpoint import EpochEntry
from kreplica.log.diff.report import Comparison, Divergence, EpochHistory, LostRange, Place, Standing
from kreplica.log.file_names import parse_directory_name, partition_of, segment_bases
from kreplica.log.leader_epoch_file_cache import UNDEFINED, LeaderEpochFileCache
from kreplica.log.live_reader import LiveReader
from kreplica.log.log_walk import UNKNOWN_END, LogWalk
from kreplica.log.state_file import read_state
from kreplica.log.transaction_index import AbortedTxn
from kreplica.log.unified_log import UnifiedLog
from kreplica.log.verify import places
from kreplica.record import RecordBatch
from kreplica.record.batch_header import LEADER_EPOCH

# The number of attempts if a writer truncates a log, or retention deletes a part of it, meanwhile.
ATTEMPTS = 5

_LAST_OFFSET = attrgetter("last_offset")

Progress = Callable[[int], None]
Known = tuple[LeaderEpochFileCache, int]


# ---- pairs of directories ------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A partition's directory on each side; None where that side does not have the partition."""

    name: str
    left: str | None
    right: str | None


def pair_up(storage: Storage, left: str, right: str) -> list[Pair] | None:
    """Return the partitions of two directories by name, such as node-1/topic-0 in a cluster's folder.

    Returns None if the directories are not of the same kind, or hold no partition.
    """
    are_logs = [bool(segment_bases(storage.list_directory(directory))) for directory in (left, right)]
    if all(are_logs):
        return [Pair(left.rsplit("/", 1)[-1], left, right)]
    if any(are_logs):
        return None
    logs, others = zip(*(_partitions(storage, directory) for directory in (left, right)), strict=True)
    if not any(logs):
        return None
    # A log on one side and a directory without a log on the other form a pair that cannot be read.
    sides = [{**others[side], **logs[side]} for side in (0, 1)]
    names = sorted({*logs[0], *logs[1]})
    return [Pair(name, sides[0].get(name), sides[1].get(name)) for name in names]


def _partitions(storage: Storage, path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the partition directories below `path` by name: those with a log, and those without one."""
    found = places(storage, path)
    logs = [directory for directories in found.logs.values() for directory in directories]
    named = [
        {each[len(path) + 1 :]: each for each in some if parse_directory_name(each.rsplit("/", 1)[-1])}
        for some in (logs, found.not_understood)
    ]
    return named[0], named[1]


# ---- the comparison ------------------------------------------------------------------------------------


def compare(
    storage: Storage,
    clock: Clock,
    left: str,
    right: str,
    *,
    by_record: bool = False,
    isolation: Isolation = "log_end",
    progress: Progress | None = None,
) -> Comparison:
    """Compare the replicas of one partition in the directories `left` and `right`.

    `by_record`: compare the records of differing batches, for logs that compaction has rewritten. Records
    whose offset only one side has are counted, and are no divergence.
    `isolation`: compare what readers of this level may read of both, as for `Log.read`. By record, readers
    with "txn_committed" do not see aborted transactions.
    `progress`: called with the bytes of `left` compared since its last call.
    Raises InvalidFile if a directory holds no log, and KafkaStorageError if the disk fails, or if a writer
    truncates its log during every attempt.
    """
    level = isolation_level(isolation)
    for attempt in range(ATTEMPTS):
        cuts = [_cuts(storage, directory) for directory in (left, right)]
        try:
            with ExitStack() as opened:
                logs = [
                    opened.enter_context(closing(_open(storage, clock, directory)))
                    for directory in (left, right)
                ]
                sides = Replica("left", logs[0]), Replica("right", logs[1])
                found = _Comparison(*sides, by_record, level, progress).run()
        except KafkaStorageError:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        if cuts == [_cuts(storage, directory) for directory in (left, right)]:
            return found
    raise KafkaStorageError(
        f"{left}, {right}: a writer truncated a log during each of {ATTEMPTS} attempts; retry later"
    )


def compare_pair(
    storage: Storage,
    clock: Clock,
    pair: Pair,
    *,
    by_record: bool = False,
    isolation: Isolation = "log_end",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare the sides of `pair`; return `partition`, `outcome` and the fields of the Comparison for JSON.

    The arguments are those of `compare`. A pair that cannot be read has the outcome "unread" and a `problem`.
    """
    if pair.left is None or pair.right is None:
        return {"partition": pair.name, "outcome": "only right" if pair.left is None else "only left"}
    try:
        found = compare(
            storage,
            clock,
            pair.left,
            pair.right,
            by_record=by_record,
            isolation=isolation,
            progress=progress,
        )
    except KreplicaError as error:
        return {"partition": pair.name, "outcome": "unread", "problem": str(error)}
    return {"partition": pair.name, "outcome": found.outcome, **found.as_fact()}


def _open(storage: Storage, clock: Clock, directory: str) -> UnifiedLog:
    directory = directory.rstrip("/")
    return LiveReader(directory, partition_of(directory), LogConfig(), storage, clock).open()


def _cuts(storage: Storage, directory: str) -> int | None:
    standing = read_state(storage, directory)
    return None if standing is None else standing.cuts


class Replica(LogWalk):
    """A walk through the log of one side, "left" or "right"."""

    def __init__(self, side: str, log: UnifiedLog) -> None:
        super().__init__(log, own=True)
        self.side = side

    @cached_property
    def _aborted(self) -> dict[int, list[AbortedTxn]]:
        found: dict[int, list[AbortedTxn]] = {}
        for each in self.log.aborted_transactions(self.segments, self.log.log_start_offset, INT64_MAX):
            found.setdefault(each.producer_id, []).append(each)
        return found

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Whether the batch belongs to an aborted transaction, by the transaction indexes."""
        if not batch.is_transactional or batch.is_control:
            return False
        known = self._aborted.get(batch.producer_id, [])
        # Transactions of one producer follow each other.
        at = bisect_left(known, batch.base_offset, key=_LAST_OFFSET)
        return at < len(known) and known[at].first_offset <= batch.base_offset

    @property
    def standing(self) -> Standing:
        log = self.log
        if log.stopped_at is not None:
            end = self.last_end()
        elif self.end_offset == UNKNOWN_END:
            end = max(log.log_end_offset, self.next_offset)
        else:
            end = log.log_end_offset
        directory = log.local.directory
        return Standing(directory, log.log_start_offset, end, log.leader_epoch, self.segments.size)

    def place(self, batch: RecordBatch) -> Place:
        """Return the place of `batch`, which is at the current position."""
        return Place(
            path=self.segment.region.path,
            position=self.position,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            records=batch.record_count,
            leader_epoch=batch.leader_epoch,
            size=batch.size,
            crc=batch.crc,
            codec=batch.codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )


class _Comparison:
    """One walk through two logs."""

    def __init__(
        self, left: Replica, right: Replica, by_record: bool, isolation: str, progress: Progress | None
    ) -> None:
        self.left = left
        self.right = right
        self.by_record = by_record
        self.hides_aborted = isolation == "txn_committed"
        self.progress = progress
        self.first_offset = max(left.log.log_start_offset, right.log.log_start_offset)
        # A log whose recovery stopped at damage may have batches behind its end.
        bounds = [side.log.upper_bound(isolation) for side in (left, right)]
        self.bound = INT64_MAX if isolation == "log_end" else min(bounds)
        self.end_offset = max(self.first_offset, min(left.end_offset, right.end_offset, self.bound))
        self.divergence: Divergence | None = None
        self.agreed_offset = self.first_offset
        self.agreed_epoch = NO_LEADER_EPOCH
        self.bytes = self.records = self.only_left = self.only_right = 0
        self.first_only_left: int | None = None
        self.first_only_right: int | None = None

    def run(self) -> Comparison:
        if self.first_offset < self.end_offset:
            self.left.seek(self.first_offset)
            self.right.seek(self.first_offset)
            while self._agree() or self._look():
                pass
        for side in (self.left, self.right):
            side.note_cut_end()
        standings = self.left.standing, self.right.standing
        ends = (standing.log_end_offset for standing in standings)
        end = max(self.first_offset, min(*ends, self.bound))
        if self.divergence is None:
            self.agreed_offset = end
        return Comparison(
            left=standings[0],
            right=standings[1],
            first_offset=self.first_offset,
            end_offset=end,
            agreed_offset=self.agreed_offset,
            agreed_epoch=self.agreed_epoch,
            compared_bytes=self.bytes,
            compared_records=self.records,
            only_left=self.only_left,
            only_right=self.only_right,
            first_only_left=self.first_only_left,
            first_only_right=self.first_only_right,
            divergence=self.divergence,
            epochs=compare_epochs(
                (self.left.log.epochs, standings[0].log_end_offset),
                (self.right.log.epochs, standings[1].log_end_offset),
                self.first_offset,
                end,
            ),
            lost=tuple(self._lost_in_common()),
        )

    def _lost_in_common(self) -> list[LostRange]:
        found = [
            LostRange(side.side, **asdict(damage))
            for side in (self.left, self.right)
            for damage in side.lost
            if damage.first_offset < self.end_offset
        ]
        return sorted(found, key=lambda each: (each.first_offset, each.side))

    # ---- whole batches ------------------------------------------------------------------------------------

    def _agree(self) -> bool:
        """Skip equal bytes. Returns whether there were any."""
        left, right = self.left.chunk(), self.right.chunk()
        if left is None or right is None:
            return False
        expected = max(self.left.next_offset, self.right.next_offset)
        size, next_offset, epoch = agree(left, right, expected, self.end_offset)
        if size == 0:
            return False
        self._advance(size, next_offset, epoch)
        return True

    def _advance(self, size: int, next_offset: int, epoch: int) -> None:
        self.left.advance(size, next_offset)
        self.right.advance(size, next_offset)
        self.bytes += size
        self.note_agreed(next_offset, epoch)
        if self.progress is not None:
            self.progress(size)

    def note_agreed(self, next_offset: int, epoch: int) -> None:
        self.agreed_offset = max(self.agreed_offset, min(next_offset, self.end_offset))
        self.agreed_epoch = epoch

    def _look(self) -> bool:
        """Compare the next batch of each side, where bytes differ or a side ends; return whether to go on."""
        left, right = self.peek(self.left), self.peek(self.right)
        if left is None and right is None:
            return False
        for batch, side, other in ((left, self.left, self.right), (right, self.right, self.left)):
            lost = None if batch is None else other.lost_at(batch.base_offset)
            if batch is not None and lost is not None:
                # The other side has rotted here, so skip this side's batch.
                side.advance(batch.size, batch.next_offset)
                return lost.next_offset is not None
        if left is None or right is None:
            ended = self.left if left is None else self.right
            if ended.end_offset == UNKNOWN_END:
                return False
        elif memoryview(left) == memoryview(right):
            self._advance(left.size, left.next_offset, left.leader_epoch)
            return True
        elif self._header_rotted(left, right):
            return True
        if self.by_record:
            return _ByRecord(self).run(left, right)
        self._diverges(left, right)
        return False

    def peek(self, side: Replica) -> RecordBatch | None:
        batch = side.peek()
        return None if batch is None or batch.base_offset >= self.end_offset else batch

    def _header_rotted(self, left: RecordBatch, right: RecordBatch) -> bool:
        """Return whether only the leader epoch differs, and one side's epoch history shows that it rotted."""
        if not _differ_only_in(LEADER_EPOCH, left, right):
            return False
        believable = [
            side.log.epochs.epoch_for_offset(batch.base_offset) in (None, batch.leader_epoch)
            for side, batch in ((self.left, left), (self.right, right))
        ]
        if believable[0] == believable[1]:
            return False
        side, batch = (self.right, right) if believable[0] else (self.left, left)
        epoch = side.log.epochs.epoch_for_offset(batch.base_offset)
        side.skip_lost(f"leader epoch {batch.leader_epoch} where the log's history has {epoch}")
        return True

    def _diverges(self, left: RecordBatch | None, right: RecordBatch | None) -> None:
        there = [batch for batch in (left, right) if batch is not None]
        offset = min(batch.base_offset for batch in there)
        if left is None or right is None or left.base_offset != right.base_offset:
            kind = "missing"
            left, right = (
                batch if batch is not None and batch.base_offset == offset else None
                for batch in (left, right)
            )
        else:
            kind = "leader_epoch" if _differ_only_in(LEADER_EPOCH, left, right) else "batch"
        self.diverges_at(kind, max(offset, self.first_offset), left, right)

    def diverges_at(
        self, kind: str, offset: int, left: RecordBatch | None, right: RecordBatch | None
    ) -> None:
        epochs = [batch.leader_epoch for batch in (left, right) if batch is not None]
        self.divergence = Divergence(
            kind,
            offset,
            max(epochs),
            None if left is None else self.left.place(left),
            None if right is None else self.right.place(right),
        )
        self.agreed_offset = min(offset, self.end_offset)

    # ---- by record ----------------------------------------------------------------------------------------

    def count(self, found: tuple[bool, int, int, int, int, int]) -> None:
        _, compared, only_left, only_right, first_left, first_right = found
        self.records += compared
        self.only_left += only_left
        self.only_right += only_right
        if only_left and self.first_only_left is None:
            self.first_only_left = first_left
        if only_right and self.first_only_right is None:
            self.first_only_right = first_right


class _ByRecord:
    """Compares differing batches by record, until both sides are at the same offset again."""

    def __init__(self, comparison: _Comparison) -> None:
        self._comparison = comparison
        self._cursors = (RecordCursor(), RecordCursor())
        self._sides = (comparison.left, comparison.right)
        self._batches: list[RecordBatch | None] = [None, None]

    def run(self, left: RecordBatch | None, right: RecordBatch | None) -> bool:
        """Return True if the records agree and more batches may follow."""
        comparison, (a, b) = self._comparison, self._cursors
        self._load(0, left)
        self._load(1, right)
        while True:
            found = compare_records(a, b, comparison.end_offset)
            comparison.count(found)
            if found.differs:
                comparison.diverges_at("record", a.offset, *self._batches)
                return False
            if not (a.is_drained or b.is_drained):
                return False  # the end of the range
            self._finish_drained()
            if a.is_drained and b.is_drained and self._sides[0].next_offset == self._sides[1].next_offset:
                return True
            for index in (0, 1):
                if self._cursors[index].is_drained:
                    self._load(index, comparison.peek(self._sides[index]))

    def _finish_drained(self) -> None:
        for index in (0, 1):
            batch = self._batches[index]
            if self._cursors[index].is_drained and batch is not None:
                self._sides[index].advance(batch.size, batch.next_offset)
                self._batches[index] = None
                offset = min(side.next_offset for side in self._sides)
                self._comparison.note_agreed(offset, batch.leader_epoch)
                self._note_progress(index, batch)

    def _note_progress(self, index: int, batch: RecordBatch) -> None:
        if index == 0 and self._comparison.progress is not None:
            self._comparison.progress(batch.size)

    def _load(self, index: int, batch: RecordBatch | None) -> None:
        side, cursor = self._sides[index], self._cursors[index]
        while batch is not None:
            if self._comparison.hides_aborted and side.is_aborted(batch):
                side.advance(batch.size, batch.next_offset)
                self._note_progress(index, batch)
                batch = self._comparison.peek(side)
                continue
            try:
                cursor.load(batch)
                break
            except CorruptMessage as error:
                side.skip_lost(str(error))
                batch = self._comparison.peek(side)
        if side.lost:
            last = side.lost[-1]
            cursor.lost(last.first_offset, INT64_MAX if last.next_offset is None else last.next_offset)
        self._batches[index] = batch
        if batch is None:
            cursor.end()
        else:
            cursor.seek(self._comparison.first_offset)


def _differ_only_in(field: slice, left: RecordBatch, right: RecordBatch) -> bool:
    a, b = memoryview(left), memoryview(right)
    return a[: field.start] == b[: field.start] and a[field.stop :] == b[field.stop :]


# ---- leader epochs -------------------------------------------------------------------------------------


def compare_epochs(left: Known, right: Known, first_offset: int, end_offset: int) -> EpochHistory:
    """Compare two histories, each given as a cache and its log end, within [first_offset, end_offset).

    If a side has no entries, there is nothing to compare.
    """
    if not left[0].entries or not right[0].entries:
        return EpochHistory(None, None, None)
    agreed = _agreed(left, right)
    for a, b in zip_longest(*(_within(known[0], first_offset, end_offset) for known in (left, right))):
        if a != b:
            return EpochHistory(agreed, a, b)
    return EpochHistory(agreed, None, None)


def _agreed(left: Known, right: Known) -> EpochEntry | None:
    # The protocol of KIP-279: ask each side in turn for its greatest epoch not above the other's answer. The
    # epoch decreases until both agree.
    latest = [known[0].latest_epoch for known in (left, right)]
    epoch = min(each for each in latest if each is not None)
    asked, other = left, right
    while True:
        found, end = asked[0].end_offset_for(epoch, asked[1])
        if found == UNDEFINED.epoch:
            return None
        confirmed, other_end = other[0].end_offset_for(found, other[1])
        if confirmed == found:
            if asked[0].entry_for(found) is None or other[0].entry_for(found) is None:
                return None
            return EpochEntry(found, min(end, other_end))
        epoch, asked, other = confirmed, other, asked
        if epoch == UNDEFINED.epoch:
            return None


def _within(cache: LeaderEpochFileCache, first_offset: int, end_offset: int) -> Iterator[EpochEntry]:
    """Yield the entries of the offsets in [first_offset, end_offset), the first one clipped."""
    entries = cache.entries
    for index, entry in enumerate(entries):
        end = entries[index + 1].start_offset if index + 1 < len(entries) else end_offset
        if entry.start_offset < end_offset and end > first_offset:
            yield EpochEntry(entry.epoch, max(entry.start_offset, first_offset))
