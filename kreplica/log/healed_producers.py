"""What a log knows of its producers once batches are put back into a damaged range.

While a range is damaged, the state of the producers may be built without its batches: after a truncation or a
restart. So a transaction that began in the range may be unknown, or seem to begin behind it, and one that a
marker in the range ended may seem to be open. Snapshots and entries of transaction indexes that were made
since have the same gap.

`HealedProducers` reads the log again from the newest producer snapshot below the range, with the healed
segments in place, and corrects the state, the snapshots and the transaction indexes. It does so before the
healed segments replace the damaged ones: no reader can see a record of the range while the index lacks its
transaction. A crash leaves snapshots and indexes that are right for the log with the range or without it.

Only producers that have a batch in the range change. Where other ranges are damaged still, what the log knew
of the batches in them is kept.

Thread rule: `read_to` needs no lock for offsets that are in the log already; `install` runs under the log's
lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplica._core.records import batches
from kreplica.common.errors import InvalidFile
from kreplica.log.producer_append_info import BATCHES_TO_RETAIN, ProducerStateEntry
from kreplica.log.producer_state_manager import ProducerStateManager, batches_with_producers
from kreplica.log.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kreplica._core.log_segment import LogSegment
    from kreplica.log.damage import Damage, Damages
    from kreplica.log.local_log import LogSegments
    from kreplica.log.unified_log import UnifiedLog


class HealedProducers:
    """The producers of `log` once `data` fills `damage`.

    `base_offset`: of the first healed segment. State and indexes are right up to there.
    """

    __slots__ = ("_base_offset", "_damage", "_first_offset", "_found", "_log", "_producer_ids", "_state")

    def __init__(self, log: UnifiedLog, damage: Damage, data: bytes, base_offset: int) -> None:
        self._log = log
        self._damage = damage
        self._base_offset = base_offset
        self._first_offset = damage.first_offset
        self._producer_ids: set[int] = set()
        for batch in batches(data):
            # A log may begin inside of a batch.
            self._first_offset = min(self._first_offset, batch.base_offset)
            if batch.producer_id >= 0:
                self._producer_ids.add(batch.producer_id)
        # Base offset of a segment -> the transactions whose abort markers it holds.
        self._found: dict[int, list[AbortedTxn]] = {}
        self._state = ProducerStateManager(log.local.storage, log.local.directory, ())
        if self._producer_ids:
            with log.lock:
                self._begin()

    def _begin(self) -> None:
        known, stop = self._log.producers, self._base_offset
        while (offset := known.latest_snapshot_at_or_before(stop)) is not None:
            try:
                entries = known.read_snapshot(offset)
            except InvalidFile:
                stop = offset - 1  # an older one and the batches behind it say the same
                continue
            for entry in entries:
                self._state.load_producer_entry(entry)
            self._state.map_end_offset = offset
            return

    def read_to(self, segments: LogSegments, stop: int) -> None:
        """Go on to offset `stop` in `segments`, the log's own with the healed ones in place.

        Raises KafkaStorageError, CorruptMessage.
        """
        if not self._producer_ids:
            return
        state = self._state
        for segment, found in batches_with_producers(segments, state.map_end_offset, stop):
            aborted = self._found.setdefault(segment.base_offset, [])
            if isinstance(found, range):
                for entry in self._known_entries(segment):
                    if state.end_aborted(entry, found):
                        aborted.append(entry)
                continue
            done = state.take_over(found)
            if done is not None:
                if done.is_aborted:
                    aborted.append(AbortedTxn(*done[:3], state.last_stable_offset(done)))
                state.complete_txn(done)
        state.map_end_offset = max(stop, state.map_end_offset)

    def install(self, segments: LogSegments, new: Iterable[LogSegment]) -> None:
        """Correct what the log has on disk and in memory, and publish the last stable offset.

        `new`: the healed segments among `segments`, which are not in the log yet. All of the log was read.
        Raises StorageFull, KafkaStorageError; the log goes on as it is then, and may be healed again.
        """
        log, made = self._log, set(new)
        if not self._producer_ids:
            for segment in made:
                for each in self._known_entries(segment):
                    segment.transaction_index.append(each)
            return
        others = log.damages.only(
            lambda known: known != self._damage and known.stop_offset > self._base_offset
        )
        entries = self._changed_entries(others)
        indexes = self._indexes(segments, others, entries)
        # First on disk: if a crash follows, nothing that was built without the range is believed.
        log.producers.remove_snapshots_above(self._base_offset)
        for segment, aborted in indexes:
            if segment in made:
                for each in aborted:
                    segment.transaction_index.append(each)
            else:
                log.local.transaction_index(segment).replace(aborted)
        log.producers.correct(entries, self._state)
        log.publish_stable_offset()

    # ---- entries of producers ------------------------------------------------------------------------------

    def _changed_entries(self, others: Damages) -> list[ProducerStateEntry]:
        log, changed = self._log, []
        for producer_id in sorted(self._producer_ids):
            entry, known = self._state.last_entry(producer_id), log.producers.last_entry(producer_id)
            if entry is None or (known is None and log.producers.is_expired(entry, log.time_ms())):
                continue
            changed.append(entry if known is None else self._merged(known, entry, others))
        return changed

    def _merged(
        self, known: ProducerStateEntry, found: ProducerStateEntry, others: Damages
    ) -> ProducerStateEntry:
        """Join what was known and what is found now; each of the two may lack batches."""
        first = found.current_txn_first_offset
        if found.in_transaction and self._was_ended(first, known.current_txn_first_offset, others):
            first = known.current_txn_first_offset
        latest = known if known.producer_epoch > found.producer_epoch else found
        retained = latest.batches
        if known.producer_epoch == found.producer_epoch:
            both = {*known.batches, *found.batches}
            retained = tuple(sorted(both, key=lambda batch: batch.last_offset)[-BATCHES_TO_RETAIN:])
        return ProducerStateEntry(
            found.producer_id,
            latest.producer_epoch,
            max(known.coordinator_epoch, found.coordinator_epoch),
            max(known.last_timestamp, found.last_timestamp),
            first,
            retained,
        )

    def _was_ended(self, first: int, known_first: int, others: Damages) -> bool:
        """Whether the log knew of a marker that a damaged range holds: the transaction that begins at `first`
        was over before the producer's next one, at `known_first` (-1: none)."""
        if self._first_offset <= first < self._damage.stop_offset or 0 <= known_first <= first:
            return False
        stop = self._log.log_end_offset if known_first < 0 else known_first
        return any(other.stop_offset > first and other.first_offset < stop for other in others)

    # ---- transaction indexes -------------------------------------------------------------------------------

    def _indexes(
        self, segments: LogSegments, others: Damages, entries: list[ProducerStateEntry]
    ) -> list[tuple[LogSegment, list[AbortedTxn]]]:
        """The entries of each segment's index from the first healed one on."""
        indexes = []
        for segment in segments:
            if segment.base_offset >= self._base_offset:
                found = self._found.get(segment.base_offset, [])
                if others:
                    found = self._with_known(segment, found, others)
                indexes.append((segment, found))
        return _bounded(indexes, self._open_from(entries)) if others else indexes

    def _with_known(self, segment: LogSegment, found: list[AbortedTxn], others: Damages) -> list[AbortedTxn]:
        known = {entry.last_offset: entry for entry in self._known_entries(segment)}
        merged: dict[int, AbortedTxn] = {}
        for entry in known.values():
            if entry.producer_id not in self._producer_ids or others.at(entry.first_offset) is not None:
                merged[entry.last_offset] = entry
        for entry in found:
            if entry.producer_id in self._producer_ids:
                before = known.get(entry.last_offset)
                if before is not None and self._was_ended(entry.first_offset, before.first_offset, others):
                    entry = entry._replace(first_offset=before.first_offset)
                merged[entry.last_offset] = entry
        return [merged[last_offset] for last_offset in sorted(merged)]

    def _open_from(self, entries: list[ProducerStateEntry]) -> int:
        changed = {entry.producer_id: entry for entry in entries}
        now = {**self._log.producers.active_producers, **changed}
        return min(
            (entry.current_txn_first_offset for entry in now.values() if entry.in_transaction),
            default=self._log.log_end_offset,
        )

    def _known_entries(self, segment: LogSegment) -> list[AbortedTxn]:
        """What the log's index of the segment says, the damaged one's for a healed one."""
        known = self._log.local.segments
        index = known.index_for(segment.base_offset)
        if index < 0 or known[index].base_offset != segment.base_offset:
            return []
        try:
            return self._log.local.transaction_index(known[index]).entries()
        except InvalidFile:
            return []  # it rotted, and is made anew here


def _bounded(
    indexes: list[tuple[LogSegment, list[AbortedTxn]]], open_from: int
) -> list[tuple[LogSegment, list[AbortedTxn]]]:
    """The same entries, each with a last stable offset at or below the begin of every later transaction.

    A reader looks no further than an entry whose last stable offset covers its range.
    """
    bounded = []
    for segment, entries in reversed(indexes):
        kept = []
        for entry in reversed(entries):
            kept.append(entry._replace(last_stable_offset=min(entry.last_stable_offset, open_from)))
            open_from = min(open_from, entry.first_offset)
        bounded.append((segment, kept[::-1]))
    return bounded[::-1]
