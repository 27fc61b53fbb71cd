"""What a log knows of its producers: for idempotence, and for the last stable offset.

Every batch of a producer passes `prepare_update` (checks), and after it was appended `update`. A transaction
is ongoing from its first batch to its marker; then it is completed but unreplicated until the high watermark
has passed the marker. The first unstable offset is where the oldest of both begins: read_committed reads stop
there.

Snapshots (`<offset>.snapshot`) keep the state, so a restart reads only the records behind the newest one.
After `truncate_and_reload` the records from `map_end_offset` to the log's end have to be fed in again.

Owned by one UnifiedLog; everything here happens under the log's lock. Nothing is allocated before the first
producer comes, for most logs of most nodes are idle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kreplica.common.config import PRODUCER_ID_EXPIRATION_MS
from kreplica.common.errors import InvalidFile
from kreplica.common.types import AppendOrigin
from kreplica.log.producer_append_info import CompletedTxn, ProducerAppendInfo
from kreplica.log.producer_snapshot import file_name, format_snapshot, offset_of, parse_snapshot
from kreplica.log.producer_state_entry import ProducerStateEntry

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

MAX_TRANSACTION_TIMEOUT_MS = 900_000
LATE_TRANSACTION_BUFFER_MS = 300_000
DELETED_SUFFIX = ".deleted"

_NO_PRODUCERS: Final[Mapping[int, ProducerStateEntry]] = MappingProxyType({})


class ProducerStateManager:
    """The producers of one log.

    `map_end_offset`: all batches below it are accounted for; whoever appends sets it after `update`.
    `snapshot_offsets`: of the snapshot files, sorted.
    `producer_id_expiration_ms`: how long an idle producer is remembered.
    """

    __slots__ = (
        "_last_snapshot_offset",
        "_ongoing",
        "_producers",
        "_storage",
        "_unreplicated",
        "directory",
        "map_end_offset",
        "producer_id_expiration_ms",
        "snapshot_offsets",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        names: Iterable[str] | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        """`names`: what is in the directory, if the caller has listed it already. Reads no snapshot yet."""
        self._storage = storage
        self.directory = directory
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.map_end_offset = 0
        self._last_snapshot_offset = 0
        self._producers: dict[int, ProducerStateEntry] | None = None
        # First offset -> producer id of transactions without a marker, in the order of the offsets.
        self._ongoing: dict[int, int] | None = None
        # (first offset, marker's offset) of completed ones that the high watermark has not passed, sorted.
        self._unreplicated: list[tuple[int, int]] = []
        self.snapshot_offsets: list[int] = []
        self.load_snapshots(names)

    # ---- producers -----------------------------------------------------------------------------------

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """All entries by producer id; not to be changed."""
        return _NO_PRODUCERS if self._producers is None else self._producers

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self._unreplicated

    @property
    def has_transactions(self) -> bool:
        """Whether one is open."""
        return bool(self._ongoing)

    def last_entry(self, producer_id: int) -> ProducerStateEntry | None:
        return None if self._producers is None else self._producers.get(producer_id)

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """Begin the producer's part of an append; nothing changes before `update`."""
        assert producer_id >= 0, producer_id
        current = self.last_entry(producer_id)
        return ProducerAppendInfo(ProducerStateEntry(producer_id) if current is None else current, origin)

    def update(self, appended: ProducerAppendInfo) -> None:
        """The batches of `appended` are in the log now."""
        if self._producers is None:
            self._producers = {}
        self._producers[appended.producer_id] = appended
        if appended.started:
            ongoing = self._ongoing = {} if self._ongoing is None else self._ongoing
            for first_offset in appended.started:
                ongoing[first_offset] = appended.producer_id

    def load_producer_entry(self, entry: ProducerStateEntry) -> None:
        """Take an entry over as it is, its open transaction too; from a snapshot, or rebuilt from the log."""
        if self._producers is None:
            self._producers = {}
        self._producers[entry.producer_id] = entry
        if entry.in_transaction:
            ongoing = dict(self._ongoing or {})
            ongoing[entry.current_txn_first_offset] = entry.producer_id
            self._ongoing = dict(sorted(ongoing.items()))

    def is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return not entry.in_transaction and now_ms - entry.last_timestamp >= self.producer_id_expiration_ms

    def remove_expired(self, now_ms: int, among: Iterable[int] | None = None) -> int:
        """Forget producers that have written nothing for too long; returns how many. `among`: look at these
        producer ids alone, so that a log with many is gone through in steps."""
        producers = self._producers
        if producers is None:
            return 0
        wanted = list(producers) if among is None else among
        entries = (entry for producer_id in wanted if (entry := producers.get(producer_id)) is not None)
        expired = [entry.producer_id for entry in entries if self.is_expired(entry, now_ms)]
        for producer_id in expired:
            del producers[producer_id]
        if len(expired) > len(producers):
            # A dict keeps the room of what was deleted.
            self._producers = dict(producers) or None
        return len(expired)

    # ---- transactions --------------------------------------------------------------------------------

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest transaction without a marker begins."""
        return next(iter(self._ongoing)) if self._ongoing else None

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins whose outcome is open, or not replicated yet."""
        undecided = self.first_undecided_offset
        if not self._unreplicated:
            return undecided
        unreplicated = self._unreplicated[0][0]
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed` is replicated; the transaction index keeps it."""
        for first_offset, producer_id in (self._ongoing or {}).items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete_txn(self, completed: CompletedTxn) -> None:
        """The marker of an ongoing transaction is in the log now."""
        assert self._ongoing is not None, completed
        del self._ongoing[completed.first_offset]
        insort(self._unreplicated, (completed.first_offset, completed.last_offset))

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Transactions whose marker lies below the high watermark are stable."""
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if txn[1] >= high_watermark]

    def has_late_transaction(
        self, now_ms: int, max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS
    ) -> bool:
        """Whether the oldest ongoing transaction should have been aborted by its coordinator long ago."""
        for producer_id in (self._ongoing or {}).values():
            idle_ms = now_ms - self.active_producers[producer_id].last_timestamp
            return idle_ms > max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return False

    def correct(self, entries: Iterable[ProducerStateEntry], found: ProducerStateManager) -> None:
        """Take over `entries` that were read from the log anew, and the transactions that are completed in
        `found`, which was fed on the way."""
        producers = self._producers = dict(self._producers or {})
        for entry in entries:
            producers[entry.producer_id] = entry
        ongoing = [
            (entry.current_txn_first_offset, entry.producer_id)
            for entry in producers.values()
            if entry.in_transaction
        ]
        self._ongoing = dict(sorted(ongoing)) or None
        self._unreplicated = sorted({*self._unreplicated, *found._unreplicated})

    # ---- the log moves -------------------------------------------------------------------------------

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> list[str]:
        """The log now is [log_start_offset, log_end_offset): go back to the newest snapshot that fits.

        Returns the files that were damaged; they are removed, an older one is taken. From `map_end_offset` on
        the log's batches have to be fed in again, without a check.
        """
        damaged: list[str] = []
        self._remove_for_good(
            [o for o in self.snapshot_offsets if not log_start_offset < o <= log_end_offset]
        )
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return damaged
        self._clear()
        while self.snapshot_offsets:
            offset = self.snapshot_offsets[-1]
            try:
                entries = self.read_snapshot(offset)
            except InvalidFile:
                damaged.append(self.snapshot_path(offset))
                self._remove_for_good([offset])
                continue
            for entry in entries:
                if not self.is_expired(entry, now_ms):
                    self.load_producer_entry(entry)
            self._last_snapshot_offset = self.map_end_offset = offset
            return damaged
        self._last_snapshot_offset = self.map_end_offset = log_start_offset
        return damaged

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """The log is empty now and begins at `offset`."""
        self._clear()
        self._remove_for_good(list(self.snapshot_offsets))
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """The records below `log_start_offset` are gone; their producers are remembered all the same."""
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        latest = self.snapshot_offsets[-1] if self.snapshot_offsets else log_start_offset
        self._last_snapshot_offset = latest

    def _clear(self) -> None:
        self._producers = None
        self._ongoing = None
        self._unreplicated = []

    # ---- snapshots -----------------------------------------------------------------------------------

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset)}"

    def load_snapshots(self, names: Iterable[str] | None = None) -> None:
        """Look anew which snapshots there are, in the directory or among `names`."""
        listed = self._storage.list_directory(self.directory) if names is None else names
        offsets = (offset_of(name) for name in listed)
        self.snapshot_offsets = sorted(offset for offset in offsets if offset is not None)

    def read_snapshot(self, offset: int) -> list[ProducerStateEntry]:
        """What the snapshot at `offset` holds. Raises InvalidFile."""
        path = self.snapshot_path(offset)
        return parse_snapshot(self._storage.read_file(path), path)

    def remove_unreadable(self) -> list[str]:
        """Remove all snapshots that were never flushed and that a power cut has torn; returns their paths.

        No one but the newest is ever needed, until a truncation goes back to it.
        """
        torn = [offset for offset in self.snapshot_offsets if not self._is_readable(offset)]
        self._remove_for_good(torn)
        return [self.snapshot_path(offset) for offset in torn]

    def _is_readable(self, offset: int) -> bool:
        try:
            self.read_snapshot(offset)
        except InvalidFile:
            return False
        return True

    def take_snapshot(self, sync: bool = False) -> str | None:
        """Write the state at `map_end_offset`, if there is news since the last time; returns the path.

        With `sync` the file outlives a power cut; without, a power cut may leave a damaged one, which its
        checksum tells. Raises KafkaStorageError; no file is left then.
        """
        offset = self.map_end_offset
        if offset <= self._last_snapshot_offset:
            return None
        path = self.snapshot_path(offset)
        write = self._storage.write_file_atomically if sync else self._storage.write_file
        try:
            write(path, format_snapshot(self.active_producers.values()))
        except BaseException:
            # A disk that is full takes the name, and no bytes.
            self._storage.remove(path)
            raise
        if offset not in self.snapshot_offsets:
            insort(self.snapshot_offsets, offset)
        self._last_snapshot_offset = offset
        return path

    @contextmanager
    def snapshot_at(self, offset: int, *, sync: bool) -> Iterator[None]:
        """Take a snapshot for a log that will end at `offset` once what is done meanwhile succeeds."""
        before, last = self.map_end_offset, self._last_snapshot_offset
        self.map_end_offset = offset
        try:
            self.take_snapshot(sync)
            yield
        except BaseException:
            self.map_end_offset = before
            if offset > before and offset in self.snapshot_offsets:
                # The records below it may be others than those that it knows.
                self._last_snapshot_offset = last
                self._remove_snapshot(offset)
            raise

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int]) -> None:
        """Keep the snapshots at the segments' beginnings, and the newest other one if newer than these."""
        bases = set(segment_base_offsets)
        strays = [offset for offset in self.snapshot_offsets if offset not in bases]
        if strays and (not bases or strays[-1] >= max(bases)):
            strays.pop()
        for offset in strays:
            self._remove_snapshot(offset)

    def delete_snapshots_before(self, offset: int) -> None:
        """Remove the snapshots below `offset`."""
        for snapshot in self.snapshot_offsets[: bisect_left(self.snapshot_offsets, offset)]:
            self._remove_snapshot(snapshot)

    def remove_snapshots_above(self, offset: int) -> None:
        """Remove the snapshots above `offset`, which lack batches below them; that outlives a power cut."""
        self._remove_for_good(self.snapshot_offsets[bisect_right(self.snapshot_offsets, offset) :])
        self._last_snapshot_offset = self.snapshot_offsets[-1] if self.snapshot_offsets else 0

    def mark_snapshot_for_deletion(self, offset: int) -> str | None:
        """Rename the snapshot of a segment that is being deleted; returns the path to remove later."""
        if offset not in self.snapshot_offsets:
            return None
        path = self.snapshot_path(offset)
        self.snapshot_offsets.remove(offset)
        self._storage.rename(path, path + DELETED_SUFFIX)
        return path + DELETED_SUFFIX

    def latest_snapshot_at_or_before(self, offset: int) -> int | None:
        """The newest snapshot that says nothing of records at or behind `offset`."""
        at = bisect_right(self.snapshot_offsets, offset)
        return self.snapshot_offsets[at - 1] if at > 0 else None

    def _remove_for_good(self, offsets: Collection[int]) -> None:
        """Remove snapshots of records that were truncated.

        If one came back with a power cut, after other records took the place of those, it would look valid.
        """
        for offset in offsets:
            self._remove_snapshot(offset)
        if offsets:
            self._storage.sync_directory(self.directory)

    def _remove_snapshot(self, offset: int) -> None:
        self._storage.remove(self.snapshot_path(offset))
        self.snapshot_offsets.remove(offset)
