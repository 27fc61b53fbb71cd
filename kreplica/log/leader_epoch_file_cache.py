"""Where each leader epoch of a partition begins: what truncation is decided by (KIP-101, KIP-279).

The entries are kept in memory, oldest first, epochs and start offsets both strictly growing, and in the file
`leader-epoch-checkpoint`. An epoch that comes is on disk before `assign` returns, hence before its records.
Truncation changes memory at once and marks the cache `dirty`: the file then holds entries past the log's end
or below its start, which loading cuts off again. That is safe only until records are appended over the
truncated offsets, since then an entry of the old history would look valid (KAFKA-16541, KAFKA-10706); so
every `assign` writes what is pending, even if it has nothing to add itself.

Owned by one UnifiedLog. Changes happen under the log's lock; readers need none, for the entries are an
immutable tuple that is replaced as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.common.types import NO_LEADER_EPOCH, NO_OFFSET
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile

# What `end_offset_for` answers where this log knows nothing of the epoch.
UNDEFINED = EpochEntry(NO_LEADER_EPOCH, NO_OFFSET)

_EPOCH = itemgetter(0)
_START_OFFSET = itemgetter(1)


class LeaderEpochFileCache:
    """The leader epochs of one log. `entries`: all of them, oldest first."""

    __slots__ = ("_checkpoint", "dirty", "entries")

    def __init__(self, checkpoint: LeaderEpochCheckpointFile, entries: Iterable[EpochEntry] = ()) -> None:
        self._checkpoint = checkpoint
        self.entries: tuple[EpochEntry, ...] = tuple(entries)
        self.dirty = False  # memory holds what the file does not

    @classmethod
    def load(cls, checkpoint: LeaderEpochCheckpointFile) -> LeaderEpochFileCache:
        """The cache with what the file holds. Raises InvalidFile; the log can then rebuild the epochs."""
        return cls(checkpoint, checkpoint.read())

    # ---- changes -------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Say that records from `start_offset` on are of `epoch`; returns whether that was news.

        Entries that contradict it, with an epoch or a start offset not below the new one's, are dropped.
        """
        latest = self.entries[-1] if self.entries else UNDEFINED
        if epoch == latest.epoch and start_offset >= latest.start_offset and not self.dirty:
            return False  # as nearly always: this is asked for every batch
        return self.assign_all([EpochEntry(epoch, start_offset)])

    def assign_all(self, entries: Iterable[EpochEntry]) -> bool:
        """`assign` each of the entries, and write the file once; for a recovery that scanned a log."""
        changed = self.entries
        for entry in entries:
            changed = _with(changed, entry)
        news = changed is not self.entries
        if news or self.dirty:
            self._checkpoint.write(changed)
            self.entries = changed
            self.dirty = False
        return news

    def learn(self, epoch: int, start_offset: int) -> None:
        """`assign` in memory alone, for a recovery, which calls `flush` at its end.

        The file says what it said until then: one that is interrupted would leave it without the epochs that
        were not read yet.
        """
        changed = _with(self.entries, EpochEntry(epoch, start_offset))
        if changed is not self.entries:
            self._replace(changed)

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop what starts at or after `end_offset`, the log's new end. Call `flush` afterwards, sometime."""
        kept = bisect_left(self.entries, end_offset, key=_START_OFFSET)
        if kept < len(self.entries):
            self._replace(self.entries[:kept])

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop what ends at or before `start_offset`, the log's new start; its epoch begins there."""
        if self.entries and self.entries[0].start_offset < start_offset:
            first = bisect_right(self.entries, start_offset, key=_START_OFFSET) - 1
            moved = EpochEntry(self.entries[first].epoch, start_offset)
            self._replace((moved, *self.entries[first + 1 :]))

    def clear(self) -> None:
        """Forget everything, on disk too."""
        self._replace(())
        self.flush()

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Know these entries again, after a change that could not be completed.

        The file is written only if it lacks one of their epochs: the change may or may not have replaced it.
        What else differs (older entries below the log start, or ones past its end) is harmless, and waits for
        the next `flush`, so that a full disk is no obstacle. Raises KafkaStorageError; the file may know
        fewer epochs than the log has then.
        """
        if entries is not self.entries:
            self._replace(entries)
        try:
            on_disk = self._checkpoint.read()
        except (InvalidFile, KafkaStorageError):
            on_disk = []
        self.dirty = tuple(on_disk) != entries
        if not {entry.epoch for entry in entries} <= {entry.epoch for entry in on_disk}:
            self.flush()

    def flush(self) -> None:
        """Write the file if memory is ahead of it. May take milliseconds."""
        if self.dirty:
            self._checkpoint.write(self.entries)
            self.dirty = False

    def update_directory(self, directory: str) -> None:
        """The partition's directory was renamed."""
        self._checkpoint.directory = directory

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        self.entries = entries
        self.dirty = True

    # ---- questions -----------------------------------------------------------------------------------

    @property
    def latest_entry(self) -> EpochEntry | None:
        return self.entries[-1] if self.entries else None

    @property
    def earliest_entry(self) -> EpochEntry | None:
        return self.entries[0] if self.entries else None

    @property
    def latest_epoch(self) -> int | None:
        return self.entries[-1].epoch if self.entries else None

    def entry_for(self, epoch: int) -> EpochEntry | None:
        """The entry of exactly this epoch."""
        at = bisect_left(self.entries, epoch, key=_EPOCH)
        found = self.entries[at : at + 1]
        return found[0] if found and found[0].epoch == epoch else None

    def previous_epoch(self, epoch: int) -> int | None:
        """The greatest epoch below `epoch` that wrote something here."""
        at = bisect_left(self.entries, epoch, key=_EPOCH)
        return self.entries[at - 1].epoch if at > 0 else None

    def next_epoch(self, epoch: int) -> int | None:
        """The least epoch above `epoch` that wrote something here."""
        at = bisect_right(self.entries, epoch, key=_EPOCH)
        return self.entries[at].epoch if at < len(self.entries) else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that `offset` belongs to; None below the first entry. Knows nothing of the log's end."""
        at = bisect_right(self.entries, offset, key=_START_OFFSET)
        return self.entries[at - 1].epoch if at > 0 else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The greatest epoch here that is not above `epoch`, and the offset where it ends.

        The latest epoch ends at `log_end_offset`. For an epoch above the latest: (-1, -1), nothing is known.
        For one below all that is here: the same epoch, and the offset where the first one here begins.
        """
        entries = self.entries
        above = bisect_right(entries, epoch, key=_EPOCH)
        if above < len(entries) and epoch != NO_LEADER_EPOCH:
            floor = entries[above - 1].epoch if above > 0 else epoch
            return floor, entries[above].start_offset
        if entries and entries[-1].epoch == epoch:
            return epoch, log_end_offset
        return UNDEFINED


def _with(entries: tuple[EpochEntry, ...], new: EpochEntry) -> tuple[EpochEntry, ...]:
    """The entries with the new one behind them, less what contradicts it; `entries` itself if no news."""
    assert new.epoch >= 0, new
    assert new.start_offset >= 0, new
    if entries and new.epoch == entries[-1].epoch and new.start_offset >= entries[-1].start_offset:
        return entries
    kept = min(
        bisect_left(entries, new.epoch, key=_EPOCH),
        bisect_left(entries, new.start_offset, key=_START_OFFSET),
    )
    return (*entries[:kept], new)
