"""Put the bytes of a lost range back into a log.

In a running log, the segment is written anew and takes the old one's place, so a crash leaves one or the
other. Before that, `HealedProducers` corrects what the log knows of producers. A log whose recovery stopped
at the range does not run: its file is written anew before it is opened again. Thread rule: one thread makes a
splice; appends and reads go on meanwhile. `splice` and `splice_stopped` raise StorageFull and
KafkaStorageError, which leave the log as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kreplica._core.batch_walk import AT_END
from kreplica._core.log_segment import LogSegment
from kreplica._core.records import batches
from kreplica.common.errors import InvalidFile, LogCleaningAborted
from kreplica.common.types import INT32_MAX
from kreplica.log.checkpoint import EpochEntry, LeaderEpochCheckpointFile
from kreplica.log.file_names import DELETED_SUFFIX, parse_file_name
from kreplica.log.leader_epoch_file_cache import LeaderEpochFileCache
from kreplica.log.local_log import MAX_SEGMENT_BYTES
from kreplica.log.lost_range import PeerDisagrees
from kreplica.log.producer_append_info import BATCHES_TO_RETAIN, ProducerStateEntry
from kreplica.log.producer_state_manager import ProducerStateManager, batches_with_producers
from kreplica.log.recovery_scan import walk_indexing
from kreplica.log.state_file import publish_state, read_state
from kreplica.log.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kreplica.common.ports import Storage
    from kreplica.log.damage import Damage, Damages
    from kreplica.log.local_log import LogSegments
    from kreplica.log.unified_log import UnifiedLog

COPY_BYTES = 8 << 20


def splice(log: UnifiedLog, damage: Damage, data: bytes) -> None:
    """Let `data`, the batches of a damaged range, stand in its place, and forget the damage.

    Raises LogCleaningAborted where the log has changed meanwhile, and PeerDisagrees where the batches do not
    fit its segment.
    """
    with log.lock:
        cuts, segments = log.state.cuts, log.local.segments
        is_start = damage.first_offset < segments[0].base_offset
        index = 0 if is_start else segments.index_for(damage.first_offset)
        if damage not in log.damages or segments[index].region.path != damage.path:
            raise LogCleaningAborted(f"{log.topic_partition}: the log changed while it was healed")
        old = segments[index]
        others = [each for each in log.damages if each.path == damage.path and each != damage]
        is_settled = old is not log.active
    if is_start:
        _put_before(log, damage, data, cuts)
        return
    if not is_settled:
        # The disk had no room for another segment when the range was found.
        log.settle_damage(old)
    shift = len(data) - (damage.end_position - damage.position)
    _require_room(old, shift)
    if shift and any(each.position > damage.position for each in others):
        # Its place would be another one, and after a crash the file that remembers it might be the older one.
        raise PeerDisagrees(f"{damage.path}: the range is of another size, and one behind it is damaged")
    new = log.local.open_cleaned(old.base_offset, old.size + shift)
    with _discarded_on_error(log, [new]):
        _write(new, old, damage, data)
        bad = _index(new, others)
    if bad is not None:
        new.close()
        log.local.discard_cleaned([new.base_offset])
        _look_again(log, old, bad)
    _take_place(log, damage, data, [new], [old], cuts)


def _take_place(
    log: UnifiedLog,
    damage: Damage,
    data: bytes,
    new: list[LogSegment],
    old: list[LogSegment],
    cuts: int,
) -> None:
    """Let the healed segments be part of the log; what it knows of producers comes first.

    The long parts, reading the log and flushing the segments, run without the lock.
    """
    with _discarded_on_error(log, new):
        for segment in new:
            segment.region.flush()
        producers = HealedProducers(log, damage, data, new[0].base_offset)
        producers.read_to(_healed(log, new, old, cuts), log.log_end_offset)
    with log.lock, log.step:
        with _discarded_on_error(log, new):
            segments = _healed(log, new, old, cuts)
            producers.read_to(segments, log.log_end_offset)
            producers.install(segments, new)
        log.replace_segments(new, old, cuts)
        log.forget_damages(lambda known: known != damage)


def _healed(log: UnifiedLog, new: list[LogSegment], old: list[LogSegment], cuts: int) -> LogSegments:
    """The log's segments with the healed ones in place. Raises LogCleaningAborted if the log has changed."""
    with log.lock:
        segments = log.local.segments
        if log.state.cuts != cuts or any(segment not in segments for segment in old):
            raise LogCleaningAborted(f"{log.topic_partition}: the log changed while it was healed")
        return segments.with_replaced(old, new)


@contextmanager
def _discarded_on_error(log: UnifiedLog, new: list[LogSegment]) -> Iterator[None]:
    """Remove the new segments where an error is raised. `new` may grow meanwhile."""
    try:
        yield
    except BaseException:
        for segment in new:
            segment.close()
        log.local.discard_cleaned([segment.base_offset for segment in new])
        raise


def _put_before(log: UnifiedLog, damage: Damage, data: bytes, cuts: int) -> None:
    """Let segments of `data` come before the log's first one: those that were there are gone."""
    parts = _parted(data, damage.first_offset, log.config.segment_bytes)
    new: list[LogSegment] = []
    with _discarded_on_error(log, new):
        for base_offset, part in parts:
            try:
                segment = log.local.open_cleaned(base_offset, len(part))
            except BaseException:
                log.local.discard_cleaned([base_offset])
                raise
            new.append(segment)
            segment.region.ensure(len(part))
            segment.region.write(0, part)
            segment.region.publish(len(part))
            segment.limit_to(len(part))
            if _index(segment, []) is not None:
                raise PeerDisagrees(f"{damage.path}: the batches from offset {base_offset} on do not join")
    _take_place(log, damage, data, new, [], cuts)


def _parted(data: bytes, first_offset: int, most_bytes: int) -> list[tuple[int, bytes]]:
    """The batches in parts for one segment each, with the offsets at which these begin."""
    parts: list[tuple[int, bytearray]] = []
    for batch in batches(data):
        if not parts:
            # The log may begin inside of a batch; compaction may have left nothing at its start.
            parts.append((min(first_offset, batch.base_offset), bytearray()))
        base_offset, part = parts[-1]
        if (part and len(part) + batch.size > most_bytes) or batch.last_offset - base_offset > INT32_MAX:
            part = bytearray()
            parts.append((batch.base_offset, part))
        part += memoryview(batch)
    return [(base_offset, bytes(part)) for base_offset, part in parts] or [(first_offset, b"")]


def _require_room(old: LogSegment, shift: int) -> None:
    if old.size + shift > MAX_SEGMENT_BYTES:
        raise PeerDisagrees(f"{old.region.path}: the batches are too many for one segment")


def _write(new: LogSegment, old: LogSegment, damage: Damage, data: bytes) -> None:
    size = old.size - (damage.end_position - damage.position) + len(data)
    region = new.region
    region.ensure(size)
    at = _copy(old, 0, damage.position, new, 0)
    region.write(at, data)
    _copy(old, damage.end_position, old.size, new, at + len(data))
    region.publish(size)
    new.limit_to(size)


def _copy(old: LogSegment, start: int, stop: int, new: LogSegment, at: int) -> int:
    for position in range(start, stop, COPY_BYTES):
        chunk = old.region.read(position, min(COPY_BYTES, stop - position))
        new.region.write(at, chunk)
        at += len(chunk)
    return at


def _index(new: LogSegment, others: list[Damage]) -> int | None:
    """Feed the new segment's indexes, past ranges that are damaged still; the offset of other damage."""
    position, offset = 0, new.base_offset
    for known in [*sorted(others, key=lambda each: each.position), None]:
        walk = walk_indexing(new, position, offset, new.size if known is None else known.position)
        if walk.skip() != AT_END:
            return walk.next_offset
        if known is not None:
            position, offset = known.end_position, known.stop_offset
    return None


def _look_again(log: UnifiedLog, segment: LogSegment, offset: int) -> None:
    # More of the segment has rotted since: the log is to know of that first.
    log.search_damage(segment, offset)
    raise LogCleaningAborted(f"{log.topic_partition}: more is damaged, at offset {offset}")


def splice_stopped(storage: Storage, damage: Damage, data: bytes) -> None:
    """Put `data` in the place of the range at which a log's recovery stopped; the log must not be open."""
    directory, base_offset = _place(damage)
    end = damage.position + len(data)
    shift = end - damage.end_position
    standing = read_state(storage, directory)
    is_believed = standing is not None and standing.boot_id == storage.boot_id()
    if standing is None or not is_believed or standing.active_base_offset != base_offset or shift == 0:
        standing = None
    elif damage.next_offset is None:
        *_, last = batches(data)
        standing = standing._replace(
            valid_length=end,
            log_end_offset=last.next_offset,
            leader_epoch=max(standing.leader_epoch, last.leader_epoch),
        )
    else:
        standing = standing._replace(valid_length=standing.valid_length + shift)
    if damage.next_offset is None:
        _note_epochs(storage, directory, data)
    # A crash in between leaves a file that is longer than what was published, never one that seems cut short.
    if standing is not None and shift < 0:
        publish_state(storage, directory, standing)
    _replace(storage, directory, base_offset, damage.position, damage.end_position, data)
    if standing is not None and shift > 0:
        publish_state(storage, directory, standing)


def _note_epochs(storage: Storage, directory: str, data: bytes) -> None:
    """Write the leader epochs that begin in `data` to the checkpoint, as an append does, before the batches.

    Recovery takes a batch of an epoch that the checkpoint does not have for damage.
    """
    checkpoint = LeaderEpochCheckpointFile(storage, directory)
    try:
        known = LeaderEpochFileCache.load(checkpoint)
    except InvalidFile:
        # Recovery finds out the epochs from the batches.
        return
    latest, begun = known.latest_epoch, []
    if latest is None:
        return
    for batch in batches(data):
        if batch.leader_epoch > latest:
            latest = batch.leader_epoch
            begun.append(EpochEntry(latest, batch.base_offset))
    known.assign_all(begun)


def cut_stopped(storage: Storage, damage: Damage) -> None:
    """Let a log at whose range recovery stopped end there; the log must not be open."""
    directory, base_offset = _place(damage)
    standing = read_state(storage, directory)
    if standing is not None:
        end = damage.first_offset
        cut = standing._replace(
            log_start_offset=min(standing.log_start_offset, end),
            high_watermark=min(standing.high_watermark, end),
            last_stable_offset=min(standing.last_stable_offset, end),
            log_end_offset=end,
            active_base_offset=base_offset,
            valid_length=damage.position,
            flush_offset=min(standing.flush_offset, end),
        )
        # First, as a log that runs does it: what is cut must not seem to be missing.
        publish_state(storage, directory, cut)
    later = {name for name in storage.list_directory(directory) if (_base_of(name) or 0) > base_offset}
    for name in sorted(later, reverse=True):  # a crash leaves no hole
        storage.rename(f"{directory}/{name}", f"{directory}/{name}{DELETED_SUFFIX}")
    size = storage.size(damage.path)
    _replace(storage, directory, base_offset, damage.position, size, b"")


def _replace(
    storage: Storage, directory: str, base_offset: int, position: int, end_position: int, data: bytes
) -> None:
    from kreplica.log.repair import rewrite  # a node without damage needs none of it

    rewrite.rewrite(storage, directory, base_offset, [rewrite.Edit(position, end_position, data)])


def _place(damage: Damage) -> tuple[str, int]:
    """The directory and the base offset of the segment."""
    directory, _, name = damage.path.rpartition("/")
    base_offset = _base_of(name)
    assert base_offset is not None
    return directory, base_offset


def _base_of(name: str) -> int | None:
    found = parse_file_name(name)
    return None if found is None else found[0]


# ---- producers ------------------------------------------------------------------------------------------


class HealedProducers:
    """Corrects what `log` knows of its producers once `data` fills `damage`.

    While a range is damaged, the producers' state may be built without its batches: after a truncation or a
    restart. So a transaction that began in the range may be unknown, or seem to begin behind it, and one that
    a marker in the range ended may seem to be open. Snapshots and entries of transaction indexes that were
    made since have the same gap.

    The log is read again from the newest producer snapshot below the range, with the healed segments in
    place, and state, snapshots and transaction indexes are corrected. That happens before the healed segments
    replace the damaged ones: no reader can see a record of the range while the index lacks its transaction. A
    crash leaves snapshots and indexes that are right for the log with the range or without it.

    Only producers that have a batch in the range change. Where other ranges are still damaged, what the log
    knew of the batches in them is kept. `base_offset`: of the first healed segment; state and indexes are
    right up to there. `read_to` needs no lock for offsets that are in the log already; `install` runs under
    the log's lock.
    """

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
        """Read on to offset `stop` in `segments`, the log's own with the healed ones in place.

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
                    aborted.append(
                        AbortedTxn(
                            done.producer_id,
                            done.first_offset,
                            done.last_offset,
                            state.last_stable_offset(done),
                        )
                    )
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
