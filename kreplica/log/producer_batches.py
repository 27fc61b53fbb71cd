"""How batches and producers' state meet: on an append, and when a log is read again after a restart or a
cut."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica._core.log_segment import LogSegment
from kreplica._core.records import RecordBatch
from kreplica._core.segment_scan import resync, scan
from kreplica.common.errors import CorruptMessage, InvalidFile
from kreplica.common.types import NO_OFFSET, AppendOrigin
from kreplica.log.local_log import LocalLog, LogSegments
from kreplica.log.producer_append_info import CompletedTxn, ProducerAppendInfo
from kreplica.log.producer_state_entry import BatchMetadata, add_sequence
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.transaction_index import AbortedTxn
from kreplica.record.control import ControlRecordType, parse_control_key, parse_end_transaction_marker

# The transaction markers among the control batches; the others say nothing of producers.
MARKERS = (ControlRecordType.ABORT, ControlRecordType.COMMIT)


def take_in(
    info: ProducerAppendInfo, batch: RecordBatch, base_offset: int
) -> CompletedTxn | BatchMetadata | None:
    """Check a producer's batch that gets `base_offset` and take it into `info`.

    Returns the transaction that it ends, or the batch appended before that it
    repeats (and is not taken in).
    Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber, InvalidTxnState,
    TransactionCoordinatorFenced, CorruptMessage.
    """
    count = batch.last_offset - batch.base_offset
    if not batch.is_control:
        return info.append_data_batch(
            batch.producer_epoch,
            batch.base_sequence,
            add_sequence(batch.base_sequence, count),
            batch.max_timestamp,
            base_offset,
            base_offset + count,
            batch.is_transactional,
        )
    record = next(iter(batch), None)
    if record is None:
        info.append_emptied_marker(batch.producer_epoch, batch.max_timestamp)
        return None
    if parse_control_key(record.key) not in MARKERS:
        return None
    marker = parse_end_transaction_marker(record.key, record.value)
    return info.append_end_txn_marker(
        batch.producer_epoch,
        marker.coordinator_epoch,
        base_offset,
        batch.max_timestamp,
        not marker.commit,
        2 if info.origin is AppendOrigin.COORDINATOR_TV2 else 0,
    )


def complete(
    producers: ProducerStateManager, local: LocalLog, segment: LogSegment, done: CompletedTxn
) -> None:
    """A transaction's marker is in the log, in `segment`."""
    if not local.read_only:
        note_abort(producers, local, segment, done)
    producers.complete_txn(done)


def note_abort(
    producers: ProducerStateManager, local: LocalLog, segment: LogSegment, done: CompletedTxn
) -> None:
    """Let the segment's index have the transaction, if it is aborted, and is not there yet."""
    index = local.transaction_index(segment)
    entries = index.entries() if done.is_aborted else []
    if done.is_aborted and (not entries or entries[-1].last_offset < done.last_offset):
        stable = producers.last_stable_offset(done)
        index.append(AbortedTxn(done.producer_id, done.first_offset, done.last_offset, stable))


def take_over(producers: ProducerStateManager, batch: RecordBatch) -> CompletedTxn | None:
    """A batch that is in the log already: it is not checked again. Returns the transaction that it ends."""
    if batch.producer_id < 0:
        return None
    info = producers.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
    done = take_in(info, batch, batch.base_offset)
    producers.update(info)
    return done if isinstance(done, CompletedTxn) else None


def feed(producers: ProducerStateManager, local: LocalLog, segment: LogSegment, batch: RecordBatch) -> None:
    """The same, and the segment's index has what the batch aborts."""
    done = take_over(producers, batch)
    if done is not None:
        complete(producers, local, segment, done)


def note_replicated(producers: ProducerStateManager, batch: RecordBatch) -> None:
    """A leader's batch is in a follower's log, and no transaction is open there: it is not checked again."""
    if batch.producer_id >= 0:
        info = producers.prepare_update(batch.producer_id, AppendOrigin.REPLICATION)
        take_in(info, batch, batch.base_offset)
        producers.update(info)


def replay(producers: ProducerStateManager, local: LocalLog, stop: int) -> None:
    """Feed the log's batches from `map_end_offset` to `stop`, skipping natively what no producer state
    needs."""
    for segment, found in walk(local.segments, producers.map_end_offset, stop):
        if isinstance(found, range):
            try:
                entries = local.transaction_index(segment).entries()
            except InvalidFile:
                continue  # a reader that needs the index gets its error
            for entry in entries:
                end_aborted(producers, entry, found)
        else:
            feed(producers, local, segment, found)
    producers.map_end_offset = stop


def walk(segments: LogSegments, start: int, stop: int) -> Iterator[tuple[LogSegment, RecordBatch | range]]:
    """The batches from offset `start` to `stop` that have a producer, and the offsets that rotted, in order,
    each with its segment."""
    for index in range(max(0, segments.index_for(start)), len(segments)):
        segment = segments[index]
        if segment.base_offset >= stop:
            break
        position, epoch = _position_of(segment, start), -1
        if position is None:
            continue
        while True:
            status, position, offset, header = scan(segment, position, segment.size, 0, epoch)
            if status < 0:
                # A reader reports what rotted; the batches behind it count all the same.
                behind = resync(segment, position, offset)
                yield segment, range(offset, stop if behind is None else behind[0])
                if behind is not None:
                    position, epoch = behind[1], -1
                    continue
            if status <= 0 or offset > stop:
                break
            epoch = header[2]
            if offset > start:
                yield segment, batch_before(segment, position, header)


def end_aborted(producers: ProducerStateManager, entry: AbortedTxn, rotted: range) -> bool:
    """End the transaction of an index's entry if its abort marker lay at one of the offsets that rotted, and
    it is open; whether that was done. Without that it would stay open, and bound the last stable offset."""
    known = producers.last_entry(entry.producer_id)
    is_open = known is not None and known.current_txn_first_offset == entry.first_offset
    if not is_open or entry.last_offset not in rotted:
        return False
    info = producers.prepare_update(entry.producer_id, AppendOrigin.REPLICATION)
    info.current_txn_first_offset = NO_OFFSET
    producers.update(info)
    producers.complete_txn(CompletedTxn(entry.producer_id, entry.first_offset, entry.last_offset, True))
    return True


def _position_of(segment: LogSegment, offset: int) -> int | None:
    if offset <= segment.base_offset:
        return 0
    try:
        found = segment.position_of(offset)
    except CorruptMessage:
        return 0
    return None if found is None else found[0]


def batch_before(segment: LogSegment, position: int, header: tuple[int, ...]) -> RecordBatch:
    """The batch that ends at `position`, of which a scan gave `header`."""
    size = header[-1]
    return RecordBatch(segment.region.slice(position - size, size))


def load_for_reader(producers: ProducerStateManager, stop: int) -> None:
    """Take the newest snapshot at or below `stop` that is whole; nothing on disk changes."""
    while (offset := producers.latest_snapshot_at_or_before(stop)) is not None:
        try:
            entries = producers.read_snapshot(offset)
        except InvalidFile:
            # A power cut tears what was not flushed; the batches from the one before it on say the same.
            stop = offset - 1
            continue
        for entry in entries:
            producers.load_producer_entry(entry)
        producers.map_end_offset = offset
        return
