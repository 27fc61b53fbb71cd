"""LeaderEpochFileCache: the start offset of each leader epoch of a log.

Followers use it to decide where to truncate (KIP-101, KIP-279). The entries are kept in memory, oldest first,
and in the file `leader-epoch-checkpoint`. Epochs and start offsets both strictly increase. A new epoch is on
disk before `assign` returns, and so before its records.

Truncation changes memory at once and marks the cache `dirty`. The file may then hold entries past the log end
or below the log start, which loading drops again. That is safe only until records are appended over the
truncated offsets: then an entry of the old history would look valid (KAFKA-16541, KAFKA-10706). So every
`assign` writes pending changes, even if it adds no entry.

Ownership: one UnifiedLog. Thread rule: changes happen under the log's lock. Readers take no lock, because the
entries are an immutable tuple that is replaced as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.common.types import NO_LEADER_EPOCH, NO_OFFSET
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile

# The answer of `end_offset_for` if the epoch is unknown.
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
        """Read the cache from its file. Raises InvalidFile; the log can then rebuild the epochs."""
        return cls(checkpoint, checkpoint.read())

    # ---- changes -------------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`; return whether that changed the entries.

        Entries whose epoch or start offset is not below the new one's contradict it and are dropped.
        """
        latest = self.entries[-1] if self.entries else UNDEFINED
        if epoch == latest.epoch and start_offset >= latest.start_offset and not self.dirty:
            return False  # the usual case: this runs for every batch
        return self.assign_all([EpochEntry(epoch, start_offset)])

    def assign_all(self, entries: Iterable[EpochEntry]) -> bool:
        """Assign each of the entries, and write the file once. Recovery uses it after scanning a log."""
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
        """Assign in memory only. Recovery uses it, and calls `flush` when it is done.

        The file stays unchanged until then: otherwise an interrupted recovery would lose the epochs that it
        had not read yet.
        """
        changed = _with(self.entries, EpochEntry(epoch, start_offset))
        if changed is not self.entries:
            self._replace(changed)

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or after `end_offset`, the new log end. Call `flush` some time
        later."""
        kept = bisect_left(self.entries, end_offset, key=_START_OFFSET)
        if kept < len(self.entries):
            self._replace(self.entries[:kept])

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or before `start_offset`, the new log start.

        The epoch of `start_offset` then begins there.
        """
        if self.entries and self.entries[0].start_offset < start_offset:
            first = bisect_right(self.entries, start_offset, key=_START_OFFSET) - 1
            moved = EpochEntry(self.entries[first].epoch, start_offset)
            self._replace((moved, *self.entries[first + 1 :]))

    def clear(self) -> None:
        """Remove all entries, in memory and on disk."""
        self._replace(())
        self.flush()

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Restore these entries after a change that could not be completed.

        The file is written only if it lacks one of their epochs, since the change may have replaced it. Other
        differences (entries below the log start or past its end) are harmless and wait for the next `flush`.
        So restoring normally succeeds on a full disk. Raises KafkaStorageError; the file may then have fewer
        epochs than the log.
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
        """Write the file if memory differs from it. This may take milliseconds."""
        if self.dirty:
            self._checkpoint.write(self.entries)
            self.dirty = False

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
        """Return the entry of exactly this epoch, or None."""
        at = bisect_left(self.entries, epoch, key=_EPOCH)
        found = self.entries[at : at + 1]
        return found[0] if found and found[0].epoch == epoch else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of `offset`, or None below the first entry. The log end is not considered."""
        at = bisect_right(self.entries, offset, key=_START_OFFSET)
        return self.entries[at - 1].epoch if at > 0 else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the greatest known epoch that is not above `epoch`, and the offset where it ends.

        The latest epoch ends at `log_end_offset`. For an epoch above the latest, the result is (-1, -1). For
        an epoch below all known ones, it is the same epoch and the start offset of the first known one.
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
    """Return the entries with `new` added and those that contradict it dropped; `entries` if unchanged."""
    assert new.epoch >= 0, new
    assert new.start_offset >= 0, new
    if entries and new.epoch == entries[-1].epoch and new.start_offset >= entries[-1].start_offset:
        return entries
    kept = min(
        bisect_left(entries, new.epoch, key=_EPOCH),
        bisect_left(entries, new.start_offset, key=_START_OFFSET),
    )
    return (*entries[:kept], new)
