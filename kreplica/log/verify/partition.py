"""PartitionVerifier: checks the directory of one partition, its segments in order and its other files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from kreplica._core.batch_walk import PlainWalk
from kreplica._core.log_state import LogStanding, read_standing
from kreplica.common.config import LogConfig
from kreplica.common.errors import KafkaStorageError, KreplicaError
from kreplica.log import missing_segments
from kreplica.log.checkpoint import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.damage_search import LARGEST_GAP
from kreplica.log.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    STATE_FILE,
    SWAP_SUFFIX,
    parse_directory_name,
)
from kreplica.log.local_log import Listing, LocalLog
from kreplica.log.producer_state_manager import parse_snapshot, snapshot_offset
from kreplica.log.quarantine import is_note, parse_note
from kreplica.log.settings_file import SettingsFile
from kreplica.log.transaction_index import AbortedTxn, parse_entries
from kreplica.log.verify.checks import (
    BatchCheck,
    EpochCheck,
    OffsetIndexCheck,
    Problem,
    QuarantineCheck,
    RecordsCheck,
    TimeIndexCheck,
    TransactionCheck,
)
from kreplica.log.verify.segment import FileBatches, PlainRuns, SegmentEnd, verify_batches

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

Index = TypeVar("Index", OffsetIndexCheck, TimeIndexCheck)

_OF_A_SEGMENT = re.compile(r"(\d{20})\.(?:index|timeindex|txnindex)")


def has_no_gaps(standing: LogStanding | None) -> bool:
    """Return whether the log must not have gaps between segments, because only kreplica wrote it."""
    return standing is not None and not standing.has_gaps


def may_be_missing(standing: LogStanding | None, first: int, stop: int) -> bool:
    """Return whether the offsets [first, stop) between two segments count as lost.

    They do not below the log start, where they were deleted. A very large gap may come from the leader.
    """
    if standing is not None and stop <= standing.log_start_offset:
        return False
    return first < stop and (not has_no_gaps(standing) or stop - first <= LARGEST_GAP)


class PartitionVerifier:
    """Walks the segments of `directory`, or only the segment file named `only`.

    Afterwards `next_offset` is the log end, `whole` is whether every segment was walked to its last batch,
    `has_gaps` is whether the log was compacted, and `all_bases` are the base offsets of its segments. If a
    writer has published the log's state since the machine started, the walk ends there, because the writer
    may be appending behind it.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        progress: Callable[[int], None] | None = None,
        only: str | None = None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._progress = progress
        self._only = only
        self.next_offset = 0
        self.whole = True
        self._leader_epoch = -1
        self.has_gaps = False  # whether the log was compacted
        # For each empty segment, whether its time index shows that it held records once.
        self._held: dict[int, bool | None] = {}
        self._began: dict[int, int] = {}  # the first offset of each producer's open transaction
        self._epochs: EpochCheck | None = None
        self._standing: LogStanding | None = None
        self._bound: LogStanding | None = None  # the published state, while its writer may be running
        # An interrupted replacement leaves segments whose files end in .swap. Their opening will finish it.
        self._files = LocalLog(directory, LogConfig(), storage, read_only=True)
        self._listing = Listing(())
        self._bases: list[int] = []
        self.all_bases: list[int] = []
        self._quarantines = QuarantineCheck([])

    def problems(self) -> Iterator[Problem]:
        # Read the published state first, so that everything read later includes what it describes.
        yield from self._read_standing()
        self._bases = self._segments()
        self.has_gaps = self._was_cleaned()
        entries = yield from self._read_epochs()
        yield from self._missing_start(entries)
        yield from self._read_quarantines()
        yield from self._read_settings()
        yield from self._walk()
        if self.whole:
            yield from self._other_end_than_published()
            if self._epochs is not None and self._bound is None:
                yield from self._epochs.finish_log(self.next_offset)
        yield from self._beside_segments()
        if self._bases and self._only is None:
            yield from self._quarantines.finish_log(self._directory, self._bases[0])

    # ---- segments ------------------------------------------------------------------------------------

    def _segments(self) -> list[int]:
        """Return the base offsets of the segments to walk."""
        names = [self._only] if self._only else self._storage.list_directory(self._directory)
        self._listing = Listing(names)
        try:
            bases = self._files.base_offsets(self._listing)
        except KafkaStorageError:
            if self._only or set(self._storage.list_directory(self._directory)) == self._listing.all:
                raise
            return self._segments()  # a cleaner at work has renamed a file
        self.all_bases = bases
        if self._bound is None:
            return bases
        return [base for base in bases if base <= self._bound.active_base_offset]

    def _walk(self) -> Iterator[Problem]:
        missing: dict[int, Problem] = {}
        previous = None
        for base, stop in zip_longest(self._bases, self._bases[1:]):
            path = self.path_of(base, ".log")
            if previous is not None and may_be_missing(self._standing, self.next_offset, base):
                text = f"offsets {self.next_offset} to {base - 1} are in no segment"
                missing[previous] = Problem(path, "MissingOffsets", text, self.next_offset, 0)
            previous = base
            try:
                yield from self._segment(base, stop)
            except KreplicaError as error:
                if self._only is None and not self._storage.exists(path):
                    continue  # retention removed it meanwhile
                self.whole = False
                yield _unreadable(path, error)
        for base, problem in missing.items():
            if not self.explains_gap(base, was_compacted=self.has_gaps):
                yield problem

    def explains_gap(self, base: int, *, was_compacted: bool) -> bool:
        """Return whether compaction explains that offsets are missing behind the segment at `base`.

        `was_compacted`: whether the log was.
        """
        held = self._held.get(base)
        return not has_no_gaps(self._standing) and (was_compacted if held is None else not held)

    def _was_cleaned(self) -> bool:
        partition = parse_directory_name(os.path.basename(self._directory))
        return (
            self._only is None
            and partition is not None
            and missing_segments.was_cleaned(self._storage, self._directory, partition)
        )

    def _segment(self, base: int, stop: int | None) -> Iterator[Problem]:
        path = self.path_of(base, ".log")
        self.next_offset = max(self.next_offset, base)
        records = RecordsCheck(path, base, self.next_offset, self._leader_epoch, self._quarantines, stop)
        end = self._end_of(base)
        offsets = self._index(base, OffsetIndexCheck, end)
        times = self._index(base, TimeIndexCheck, end)
        checks: list[BatchCheck] = [self._quarantines]
        for kind, check in ((OffsetIndexCheck, offsets), (TimeIndexCheck, times)):
            if check is not None:
                checks.append(check)
            elif self._only is None and not (self._crashed() and base == self._bases[-1]):
                index = self.path_of(base, kind.SUFFIX)
                yield Problem(index, "MissingIndex", "its segment has no such index")
        if self._epochs is not None:
            self._epochs.segment = path
            checks.append(self._epochs)
        if self._only is None:
            try:
                aborted = self._aborted_transactions(base)
                checks.append(TransactionCheck(self.path_of(base, ".txnindex"), aborted, self._began))
            except KreplicaError as error:
                yield _unreadable(self.path_of(base, ".txnindex"), error, position=error.where)
        with self._storage.open_region(path, max(1, self._storage.size(path)), writable=False) as region:
            walk = PlainWalk(
                region,
                base,
                limit=-1 if end.published is None else end.published,
                offsets=b"" if offsets is None else offsets.entries,
                times=b"" if times is None else times.entries,
            )
            plain = PlainRuns(walk, records, self._quarantines, self._epochs, offsets, times)
            found = FileBatches(walk, plain.advance, self._progress)
            self.whole &= yield from verify_batches(path, found, records, checks, end)
            if region.length == 0 and self._has(base, ".timeindex"):
                time_index = self._storage.read_file(self.path_of(base, ".timeindex"))
                self._held[base] = missing_segments.has_entries(time_index)
                self.has_gaps |= self._held[base] is False and stop is not None
        self.next_offset = records.next_offset
        self._leader_epoch = records.leader_epoch
        self.has_gaps |= records.has_gaps

    def _index(self, base: int, kind: type[Index], end: SegmentEnd) -> Index | None:
        if not self._has(base, kind.SUFFIX):
            return None
        path = self.path_of(base, kind.SUFFIX)
        return kind(path, self._storage.read_file(path), base, end.may_be_unused)

    def _end_of(self, base: int) -> SegmentEnd:
        if self._bound is not None and base == self._bound.active_base_offset:
            return SegmentEnd(may_be_unused=True, published=self._bound.valid_length)
        if self._standing is None:
            return SegmentEnd(may_be_unused=base == self._bases[-1])
        # A crash during a roll leaves two segments that were not trimmed.
        return SegmentEnd(may_be_unused=self._crashed() and base in self._bases[-2:])

    def _crashed(self) -> bool:
        return self._standing is not None and not self._standing.clean and self._bound is None

    def _aborted_transactions(self, base: int) -> list[AbortedTxn]:
        if not self._has(base, ".txnindex"):
            return []
        path = self.path_of(base, ".txnindex")
        return parse_entries(self._storage.read_file(path), path, base)

    def path_of(self, base: int, suffix: str) -> str:
        """Return the path of a segment's file, or that at which it is missing."""
        return self._found(base, suffix) or self._files.path(base, suffix)

    def _has(self, base: int, suffix: str) -> bool:
        return self._found(base, suffix) is not None

    def _found(self, base: int, suffix: str) -> str | None:
        path = self._files.path_in(self._listing, base, suffix)
        if path is None and base < self._listing.bound:
            # Kafka removes the ending of the .log first.
            path = self._files.path(base, suffix) + SWAP_SUFFIX
            path = path if os.path.basename(path) in self._listing.all else None
        if path is not None and path.endswith(SWAP_SUFFIX) and not self._storage.exists(path):
            return self._files.path(base, suffix)  # a cleaner at work has put it in place
        return path

    # ---- other files ---------------------------------------------------------------------------------

    def _read_standing(self) -> Iterator[Problem]:
        path = f"{self._directory}/{STATE_FILE}"
        if self._only is not None or not self._storage.exists(path):
            return
        try:
            standing = read_standing(self._storage.read_file(path))
        except KreplicaError as error:
            yield _unreadable(path, error)
            return
        if standing is None:
            yield Problem(path, "InvalidFile", "holds no whole state")
        elif not standing.clean and standing.boot_id == self._storage.boot_id():
            self._bound = standing
        self._standing = standing

    def _other_end_than_published(self) -> Iterator[Problem]:
        """Check that the log ends where its writer has published; after a crash, not below the flush
        point."""
        standing = self._standing
        if standing is None:
            return
        end = standing.flush_offset if self._crashed() else standing.log_end_offset
        if self.next_offset < end or (self.next_offset > end and not self._crashed()):
            path = f"{self._directory}/{STATE_FILE}"
            text = f"the log went to {end} and ends at {self.next_offset}"
            yield Problem(path, "OffsetBeyondLog", text, self.next_offset)

    def _missing_start(self, epochs: Sequence[EpochEntry]) -> Iterator[Problem]:
        """Check that no first segments are missing, other than deleted ones."""
        standing, state_file = self._standing, f"{self._directory}/{STATE_FILE}"
        if standing is None or not self._bases:
            return
        if self._bound is not None:
            # A writer moves the log start before it removes a segment. Read the state again, in case it just
            # did.
            standing = read_standing(self._storage.read_file(state_file)) or standing
        first = self._bases[0]
        if missing_segments.lacks_start(
            standing, first, epochs[0] if epochs else None, boot_id=self._storage.boot_id()
        ):
            start = standing.log_start_offset
            text = f"offsets {start} to {first - 1} are in no segment"
            yield Problem(self.path_of(first, ".log"), "MissingOffsets", text, start, 0)

    def _read_epochs(self) -> Generator[Problem, None, Sequence[EpochEntry]]:
        if LEADER_EPOCH_CHECKPOINT not in self._listing.all:
            return ()
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            entries = LeaderEpochCheckpointFile.parse(self._storage.read_file(path), path)
            self._epochs = EpochCheck(path, entries)
        except KreplicaError as error:
            yield _unreadable(path, error)
            return ()
        return entries

    def _read_settings(self) -> Iterator[Problem]:
        if self._only is None:
            settings = SettingsFile(self._storage, self._directory)
            try:
                settings.read()
            except KreplicaError as error:
                yield _unreadable(settings.path, error)

    def _read_quarantines(self) -> Iterator[Problem]:
        found = []
        for name in filter(is_note, sorted(self._listing.all)):
            path = f"{self._directory}/{name}"
            try:
                found.append(parse_note(self._storage.read_file(path), path))
            except KreplicaError as error:
                yield _unreadable(path, error)
        self._quarantines = QuarantineCheck(found)

    def _beside_segments(self) -> Iterator[Problem]:
        for name in sorted(self._listing.all):
            path = f"{self._directory}/{name}"
            found = _OF_A_SEGMENT.fullmatch(name)
            log = f"{found[1]}{LOG_SUFFIX}" if found else ""
            if found and self._listing.all.isdisjoint((log, log + SWAP_SUFFIX, log + DELETED_SUFFIX)):
                yield Problem(path, "IndexWithoutSegment", "there is no segment of that name")
            offset = snapshot_offset(name)
            # The writer may be just writing the snapshot at the published end.
            if offset is not None and (self._bound is None or offset < self.next_offset):
                yield from self._snapshot(path, offset)

    def _snapshot(self, path: str, offset: int) -> Iterator[Problem]:
        """Check that the producer snapshot at `offset` refers only to lower offsets."""
        try:
            producers = parse_snapshot(self._storage.read_file(path), path)
        except KreplicaError as error:
            if self._storage.exists(path):
                yield _unreadable(path, error, position=error.where)
            return
        if self.whole and offset > self.next_offset:
            yield Problem(path, "OffsetBeyondLog", f"the log ends at {self.next_offset}", offset)
        for producer in producers:
            last = max(producer.last_data_offset, producer.current_txn_first_offset)
            if last >= offset:
                text = f"producer {producer.producer_id} is said to have written offset {last}"
                yield Problem(path, "SnapshotMismatch", text, last)


def _unreadable(path: str, error: KreplicaError, position: int | None = None) -> Problem:
    return Problem(path, type(error).__name__, str(error), None, position)
