"""The invariants of transactions, with their numbers in docs/SIMULATOR.md: one small function for each.

Most compare logs: what __transaction_state says of a transactional id, what the partitions hold, and what the
coordinators and logs have in memory. They run when the cluster is quiet after a round of faults. The rules
about one event run after it. Each raises InvariantViolated; those named `awaits_...` yield what is not yet as
it has to be in the end. What clients get is checked by TransactionHistory. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from kreplica._core.records import batches
from kreplica.common.types import INT16_MAX, INT32_MAX, NO_SEQUENCE, TopicPartition
from kreplica.coordinator import group_records
from kreplica.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kreplica.coordinator.transaction_metadata import (
    AT_REST,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
)
from kreplica.coordinator.transaction_records import decode_key, decode_value
from kreplica.record.control import ControlRecordType, parse_end_transaction_marker
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.replica_view import READ_BYTES, ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated

SECOND = 2


class BatchFacts(NamedTuple):
    """A batch of a producer in a log. `commit`: of a marker, else None."""

    base_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    base_sequence: int
    commit: bool | None
    coordinator_epoch: int
    is_transactional: bool


class StateRecord(NamedTuple):
    """A record of __transaction_state; `state` is None for a tombstone.

    `schema`: the version of the record. Version 0 lacks the producer ids before and after, and the
    transaction version; clusters below level 1 of transaction.version write it.
    """

    transactional_id: str
    offset: int
    state: TransactionMetadata | None
    schema: int


# Of each transactional id: its records in their order, those of a repeated append once.
StateLog = Mapping[str, Sequence[StateRecord]]


def batch_facts(log: Any) -> list[BatchFacts]:
    """Return the batches of producers in a log."""
    found = list[BatchFacts]()
    for batch in _batches(log):
        if batch.producer_id < 0 or batch.last_offset < log.log_start_offset:
            continue
        commit, coordinator_epoch = None, -1
        if batch.is_control:
            record = next(iter(batch), None)
            if record is None:
                # A cleaner has removed the marker.
                continue
            if batch.control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                continue
            marker = parse_end_transaction_marker(record.key, record.value)
            commit, coordinator_epoch = marker.commit, marker.coordinator_epoch
        found.append(
            BatchFacts(
                *(batch.base_offset, batch.last_offset, batch.producer_id, batch.producer_epoch),
                *(batch.base_sequence, commit, coordinator_epoch, batch.is_transactional),
            )
        )
    return found


def state_log(log: Any) -> dict[str, list[StateRecord]]:
    """Return the records of a partition of __transaction_state."""
    found: dict[str, list[StateRecord]] = {}
    for batch in _batches(log):
        of_batch: dict[str, list[StateRecord]] = {}
        for record in () if batch.is_control else batch:
            key = decode_key(bytes(record.key))
            assert key is not None, record
            name = key.transactional_id
            state = (
                None
                if record.value is None
                else TransactionMetadata.of_record(name, decode_value(record.value))
            )
            schema = 0 if record.value is None else int.from_bytes(bytes(record.value)[:2])
            of_batch.setdefault(name, []).append(StateRecord(name, record.offset, state, schema))
        for name, records in of_batch.items():
            of_id = found.setdefault(name, [])
            # An append whose outcome is unknown is repeated, with all of its records.
            if not of_id or of_id[-1].state != records[-1].state:
                of_id += records
    return found


def committed_by_key(log: Any) -> tuple[dict[bytes, bytes | None], set[bytes | None]]:
    """Return what a reader of committed records finds: the last value of each key, and all values."""
    start, bound = log.log_start_offset, log.last_stable_offset
    waiting = sorted(log.aborted_transactions(log.local.segments, start, bound), key=_first, reverse=True)
    aborted = set[int]()
    last, values = dict[bytes, bytes | None](), set[bytes | None]()
    for batch in _batches(log):
        if batch.base_offset >= bound:
            break
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborted.add(waiting.pop().producer_id)
        if batch.record_count and batch.control_type == ControlRecordType.ABORT:
            aborted.discard(batch.producer_id)
        if batch.is_control or (batch.is_transactional and batch.producer_id in aborted):
            continue
        for record in batch:
            if record.key is not None and record.offset >= start:
                value = None if record.value is None else bytes(record.value)
                last[bytes(record.key)] = value
                values.add(value)
    return last, values


def _first(aborted: Any) -> int:
    first: int = aborted.first_offset
    return first


def _batches(log: Any) -> Iterator[Any]:
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        damage = log.damages.at(offset)
        if damage is not None:
            offset = damage.stop_offset
            continue
        for batch in batches(log.read(offset, READ_BYTES, isolation="log_end").records):
            yield batch
            offset = batch.next_offset


def _violated(number: str, facts: str) -> InvariantViolated:
    return InvariantViolated(f"Transactions-{number}", facts)


# ---- what a coordinator has stored -------------------------------------------------------------------------


def check_2_one_decision(at: TopicPartition, log: Sequence[BatchFacts], states: StateLog) -> None:
    """2. A partition has no marker but of a decision, and none opposite to it."""
    decisions = list(_decisions(states))
    for batch in log:
        if batch.commit is None:
            continue
        outcomes = {
            each.state is PREPARE_COMMIT
            for each in decisions
            if (each.producer_id, each.producer_epoch) == (batch.producer_id, batch.epoch)
            and at in each.partitions
        }
        if batch.commit not in outcomes:
            raise _violated("2", f"{at} has {batch}, but its decisions are commit={outcomes}")


def _decisions(states: StateLog) -> Iterator[TransactionMetadata]:
    for records in states.values():
        for record in records:
            if record.state is not None and record.state.state in PREPARED:
                yield record.state


def check_3_decided(
    committed: Iterable[Any], producer_id: int, epoch: int, *, commit: bool, at: TopicPartition
) -> None:
    """3. The outcome that EndTxn confirms is on all replicas in sync. `committed`: the cells of the id's
    partition of __transaction_state, the last one first."""
    for cell in committed:
        if cell is None or cell.value is None:
            continue
        found = TransactionMetadata.of_record("", decode_value(cell.value))
        raised = found.producer_epoch - epoch
        is_end = found.producer_id == producer_id and raised in (0, 1) and found.state in PREPARED
        if is_end and (found.state is PREPARE_COMMIT) == commit:
            return
    facts = f"EndTxn of producer {producer_id}, epoch {epoch}, commit={commit} is confirmed"
    raise _violated("3", f"{facts}, but {at} has no such decision below its high watermark")


def check_8_epochs_rise(records: Sequence[StateRecord]) -> None:
    """8. The epoch of an id does not fall while it has its producer id, and no earlier id returns."""
    left = set[int]()
    last: TransactionMetadata | None = None
    for record in records:
        state = record.state
        if state is None:
            continue
        if last is not None and state.producer_id != last.producer_id:
            left.add(last.producer_id)
        is_same = last is not None and state.producer_id == last.producer_id
        if state.producer_id in left or (
            last is not None and is_same and state.producer_epoch < last.producer_epoch
        ):
            raise _violated("8", f"{state} follows {last}")
        last = state


def check_22_tombstones(records: Sequence[StateRecord]) -> None:
    """22. An id is forgotten only while it has no transaction."""
    for before, record in pairwise(records):
        if record.state is None and before.state is not None and before.state.state not in AT_REST:
            raise _violated("22", f"{record} follows {before}")


def check_27_epochs_of_transactions(records: Sequence[StateRecord]) -> None:
    """27. The end of a transaction raises the epoch once under version 2, at most once under others, and
    again only with another producer id. What is decided is completed in that way."""
    for before, after in pairwise(records):
        old, new = before.state, after.state
        if old is None or new is None:
            continue
        raised = new.producer_epoch - old.producer_epoch
        if new.state in PREPARED:
            legal = (1,) if new.version >= SECOND and old.producer_epoch < INT16_MAX else (0, 1)
            if old.producer_id != new.producer_id or raised not in legal:
                raise _violated("27", f"{new} follows {old}")
        elif old.state in PREPARED and before.schema and after.schema:
            rotated = old.next_producer_id >= 0
            identity = (old.next_producer_id, 0) if rotated else (old.producer_id, old.producer_epoch)
            outcome = (old.state is PREPARE_COMMIT) == (new.state.title == "CompleteCommit")
            if new.state not in AT_REST or not outcome or (new.producer_id, new.producer_epoch) != identity:
                raise _violated("27", f"{new} follows {old}")


def check_28_prepared_transactions(records: Sequence[StateRecord]) -> None:
    """28. A coordinator never ends a transaction of two-phase commit because of its age.

    No producer of a run begins or ends one.
    """
    for before, after in pairwise(records):
        if before.state is not None and before.state.timeout_ms == NO_TIMEOUT_MS:
            raise _violated("28", f"{after} follows {before}")


def check_21_memory(shard: Any, states: StateLog) -> None:
    """21. A coordinator has in memory what its partition of __transaction_state says, soft fields apart."""
    stored = {name: records[-1] for name, records in states.items() if records[-1].state is not None}
    known = {name: each.current for name, each in shard.transactions.items() if each.current is not None}
    for name in sorted(stored.keys() | known.keys()):
        ours, theirs = known.get(name), stored[name].state if name in stored else None
        schema = stored[name].schema if name in stored else 0
        if ours is None or theirs is None or ours.record(schema) != theirs.record(schema):
            raise _violated("21", f"{name}: the coordinator has {ours}, and its log {theirs}")


# ---- what partitions have ----------------------------------------------------------------------------------


class StableOffset:
    """6. The last stable offset is not above the high watermark or the first offset of an open transaction,
    and a leader's does not fall."""

    name: ClassVar[str] = "Transactions-6"

    def __init__(self) -> None:
        # By broker and partition: the log, its leader epoch, and the last stable offset.
        self._seen: dict[tuple[int, TopicPartition], tuple[Any, int, int]] = {}

    def check(self, partition: PartitionView) -> None:
        """Check the replicas that have changed."""
        for replica in partition.changed:
            log = replica.log
            if not replica.is_running or log is None or log.closed or log.failure is not None:
                continue
            if log.stopped_at is None and not log.damages:
                self._check(partition, replica, log)

    def _check(self, partition: PartitionView, replica: ReplicaView, log: Any) -> None:
        stable, undecided = log.last_stable_offset, log.producers.first_undecided_offset
        bound = log.high_watermark if undecided is None else min(log.high_watermark, undecided)
        if stable > max(bound, log.log_start_offset):
            raise _violated("6", f"{replica} has last stable offset {stable}, above {bound}; {partition}")
        key = replica.broker_id, partition.topic_partition
        seen, epoch, before = self._seen.get(key, (None, -1, -1))
        if replica.is_leader and seen is log and epoch == replica.leader_epoch and stable < before:
            raise _violated("6", f"the last stable offset of {replica} falls from {before} to {stable}")
        self._seen[key] = log, replica.leader_epoch if replica.is_leader else -1, stable


def check_14_coordinator_epochs(at: TopicPartition, log: Sequence[BatchFacts]) -> None:
    """14. The coordinator epoch of a producer does not fall in a partition."""
    last: dict[int, BatchFacts] = {}
    for batch in log:
        before = last.get(batch.producer_id)
        if batch.commit is None:
            continue
        if before is not None and batch.coordinator_epoch < before.coordinator_epoch:
            raise _violated("14", f"{at} has {batch} after {before}")
        last[batch.producer_id] = batch


def check_17_abort_index(at: TopicPartition, log: Any, facts: Sequence[BatchFacts]) -> None:
    """13, 17. The index of aborted transactions is what the log gives; a repeated marker adds nothing."""
    start, end = log.log_start_offset, log.log_end_offset
    index = log.aborted_transactions(log.local.segments, start, end)
    found = {(each.producer_id, each.last_offset): each.first_offset for each in index}
    aborted = [each for each in transactions_in(facts) if not each[3]]
    for producer_id, first, last, _ in aborted:
        listed = found.get((producer_id, last), end)
        # A transaction may have begun below the log start.
        if listed > first or (listed < first and listed >= start):
            raise _violated("17", f"{at} lists the aborted transactions {index}, but has {aborted}")
    surplus = found.keys() - {(producer_id, last) for producer_id, _, last, _ in aborted}
    if any(found[each] >= start for each in surplus):
        raise _violated("13", f"{at} lists the aborted transactions {index}, but has {aborted}")
    if len(found) != len(index):
        raise _violated("17", f"{at} lists an aborted transaction twice: {index}")


def transactions_in(facts: Sequence[BatchFacts]) -> list[tuple[int, int, int, bool]]:
    """Return (producer id, first offset, offset of the marker, outcome) of the ended transactions."""
    first: dict[int, int] = {}
    found = []
    for batch in facts:
        if batch.commit is None:
            if batch.is_transactional:
                first.setdefault(batch.producer_id, batch.base_offset)
        elif batch.producer_id in first:
            found.append((batch.producer_id, first.pop(batch.producer_id), batch.base_offset, batch.commit))
    return found


def check_18_producers(replica: ReplicaView, facts: Sequence[BatchFacts]) -> None:
    """18. The state of a log's producers is what its batches give."""
    last: dict[int, BatchFacts] = {}
    markers: dict[int, int] = {}
    for batch in facts:
        if batch.last_offset < replica.log.log_start_offset:
            continue
        last[batch.producer_id] = batch
        if batch.commit is not None:
            markers[batch.producer_id] = batch.coordinator_epoch
    for producer_id, batch in last.items():
        entry = replica.log.producers.last_entry(producer_id)
        is_open = batch.commit is None and batch.is_transactional
        if entry is None:
            raise _violated("18", f"{replica} does not know the producer of {batch}")
        coordinator_epoch = markers.get(producer_id, entry.coordinator_epoch)
        found = entry.producer_epoch, entry.in_transaction, entry.coordinator_epoch
        if found != (batch.epoch, is_open, coordinator_epoch):
            raise _violated("18", f"{replica} has {entry} after {batch}")


def check_19_sequences(at: TopicPartition, log: Sequence[BatchFacts], transactional: set[int]) -> None:
    """19. The batches of a transactional producer follow each other in their sequence, each once."""
    last: dict[int, BatchFacts] = {}
    for batch in log:
        if batch.commit is not None or batch.base_sequence == NO_SEQUENCE:
            continue
        if batch.producer_id not in transactional:
            continue
        before = last.get(batch.producer_id)
        last[batch.producer_id] = batch
        if before is None:
            continue
        expected = 0
        if before.epoch == batch.epoch:
            count = before.last_offset - before.base_offset + 1
            expected = (before.base_sequence + count) & INT32_MAX
        if batch.epoch < before.epoch or batch.base_sequence != expected:
            raise _violated("19", f"{at} has {batch} after {before}")


def check_20_verified(at: TopicPartition, log: Sequence[BatchFacts], states: StateLog) -> None:
    """20. The coordinator knows each transaction of a partition; none goes on after its marker."""
    known = {
        (record.state.producer_id, record.state.producer_epoch)
        for records in states.values()
        for record in records
        if record.state is not None and record.state.state is ONGOING and at in record.state.partitions
    }
    ended: dict[int, int] = {}
    for batch in log:
        if batch.commit is not None:
            ended[batch.producer_id] = batch.epoch
        elif batch.is_transactional:
            if (batch.producer_id, batch.epoch) not in known:
                raise _violated("20", f"{at} has {batch}, which its coordinator has never confirmed")
            if batch.epoch < ended.get(batch.producer_id, -1):
                raise _violated("20", f"{at} has {batch} after a marker of epoch {ended[batch.producer_id]}")


def check_24_marker_is_replicated(log: Any, at: TopicPartition, producer_id: int) -> None:
    """24. A marker is confirmed only when all replicas in sync have it."""
    entry = log.producers.last_entry(producer_id)
    if entry is None:
        return
    late = [each for each in batch_facts(_Tail(log)) if each.producer_id == producer_id]
    if entry.in_transaction and not late:
        raise _violated("24", f"{at}: a marker is confirmed, but {entry} is open")
    if any(each.commit is not None for each in late) and not _has_earlier_marker(log, producer_id):
        raise _violated("24", f"{at}: {late} is confirmed, but the high watermark is {log.high_watermark}")


class _Tail:
    """The uncommitted end of a log."""

    def __init__(self, log: Any) -> None:
        self.log_start_offset, self.log_end_offset = log.high_watermark, log.log_end_offset
        self.damages, self.read = log.damages, log.read


def _has_earlier_marker(log: Any, producer_id: int) -> bool:
    """Whether the committed part of the log ends with a marker of the producer: it was repeated later."""
    high_watermark = log.high_watermark
    committed = [
        each
        for each in batch_facts(log)
        if each.producer_id == producer_id and each.base_offset < high_watermark
    ]
    return bool(committed) and committed[-1].commit is not None


def check_25_cleaning(at: TopicPartition, log: Any, clean: Callable[[], object]) -> None:
    """25. Cleaning leaves the last committed value of each key to a reader, and shows no other value.

    `clean()`: cleans the log.
    """
    last, values = committed_by_key(log)
    clean()
    found, shown = committed_by_key(log)
    # A cleaner may drop tombstones.
    kept: dict[bytes, bytes | None] = {key: None for key, value in last.items() if value is None}
    kept.update(found)
    if kept != last or not shown <= values:
        lost = {key: (value, kept.get(key)) for key, value in last.items() if kept.get(key) != value}
        raise _violated("25", f"{at}: cleaning changed {lost}, and showed {shown - values}")


def check_29_members_commit(at: TopicPartition, log: Any, members: Mapping[int, tuple[int, str]]) -> None:
    """29. A member's offsets are in the log before the record of a generation without that member.

    `members`: the generation and id of the member that has committed an offset in a transaction, by the
    offset.
    """
    groups: dict[str, GroupMetadataValue] = {}
    for batch in _batches(log):
        for record in () if batch.is_control else batch:
            key = group_records.decode_key(bytes(record.key))
            value = None
            if key is not None and record.value is not None:
                value = group_records.decode_value(key, bytes(record.value))
            if isinstance(key, GroupMetadataKey):
                groups.pop(key.group, None)
                if isinstance(value, GroupMetadataValue):
                    groups[key.group] = value
            elif isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
                known, member = groups.get(key.group), members.get(value.offset)
                if not batch.is_transactional or known is None or member is None:
                    continue
                is_there = any(each.member_id == member[1] for each in known.members)
                if known.generation > member[0] or (known.generation == member[0] and not is_there):
                    facts = f"{at} has offset {value.offset} of {member} at {record.offset}, behind {known}"
                    raise _violated("29", facts)


# ---- what coordinators do ----------------------------------------------------------------------------------


def check_16_markers_are_sent(shard: Any) -> None:
    """16. A coordinator sends the markers of each transaction whose end is decided, or stores that all are
    written."""
    for name, transaction in shard.transactions.items():
        current = transaction.current
        if current is None or current.state not in PREPARED or transaction.is_busy:
            continue
        marking = transaction.marking
        if marking is None or marking.is_cancelled or not marking.left:
            raise _violated("16", f"{name} is in {current.state.title}, and no marker is on its way")


def awaits_5_no_open_transaction(replica: ReplicaView) -> Iterator[str]:
    """5. No transaction stays open in a partition."""
    for entry in replica.log.producers.active_producers.values():
        if entry.in_transaction:
            yield f"5: {replica} has an open transaction: {entry}"


def awaits_7_stable(replica: ReplicaView) -> Iterator[str]:
    """7. In the end the last stable offset is the high watermark."""
    log = replica.log
    if log.last_stable_offset != log.high_watermark:
        yield f"7: {replica} has last stable offset {log.last_stable_offset}"


def awaits_15_rest(shard: Any) -> Iterator[str]:
    """15. No id is in the middle of a step for ever."""
    for name, transaction in shard.transactions.items():
        current = transaction.current
        if current is not None and current.timeout_ms == NO_TIMEOUT_MS:
            # Its producer, which is to end it, is not in the run.
            continue
        is_at_rest = current is None or current.state in AT_REST
        if transaction.is_busy or transaction.unstored is not None or not is_at_rest:
            yield f"15: {name} is in {current}, pending {transaction.pending}"


def awaits_23_no_open_offsets(shard: Any) -> Iterator[str]:
    """23. A group coordinator keeps no offset of an ended transaction aside."""
    for group_id in sorted(shard.groups_with_open_offsets()):
        yield f"23: {group_id} has offsets of a transaction"


# By the method of the checker that uses them; see TransactionChecker.
OF_STATES: tuple[Callable[[Sequence[StateRecord]], None], ...] = (
    check_8_epochs_rise,
    check_22_tombstones,
    check_27_epochs_of_transactions,
    check_28_prepared_transactions,
)
