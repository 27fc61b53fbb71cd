"""Mutants of transactions: bugs that coordinators, partitions and groups have had, met by random runs.

Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kreplica.broker.replica_apis import ReplicaApis
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.transactional_appends import TransactionalAppends
from kreplica.client.transaction_manager import ProducerIdAndEpoch, TransactionManager
from kreplica.common.dataclass import replace
from kreplica.common.message import replace as replace_fields
from kreplica.common.types import AppendOrigin
from kreplica.controller.cluster_control import ProducerIdControl
from kreplica.coordinator.group_offsets import GroupOffsets
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.shard_store import ShardStore
from kreplica.coordinator.transaction_coordinator import TransactionCoordinator, TransactionShard
from kreplica.coordinator.transaction_markers import TransactionMarkers
from kreplica.coordinator.transaction_metadata import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
)
from kreplica.log.cleaner import _Round
from kreplica.log.producer_append_info import ProducerAppendInfo, ProducerStateEntry
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.transaction_index import TransactionIndex
from kreplica.log.unified_log import UnifiedLog
from tests.mutants.mutants import Mutant, Replacement

# The API key of Produce.
PRODUCE = 0
TRANSACTION_MUTANTS: dict[str, Mutant] = {}
# Random runs do not meet these: they need a message that is late at one moment.
SCRIPTED_TRANSACTION_MUTANTS: dict[str, Mutant] = {}


def transaction_mutant(
    owner: Any, name: str, mutants: dict[str, Mutant] = TRANSACTION_MUTANTS
) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for TRANSACTION_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        mutants[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@transaction_mutant(TransactionalAppends, "verify")
def append_without_asking(_: Replacement) -> Replacement:
    """A leader appends a transaction's first batch without its coordinator (KAFKA-14402)."""

    def verify(_: Any, __: str, begin: Callable[[], Any], done: Callable[[Any], None]) -> None:
        begin()
        done({})

    return verify


@transaction_mutant(ProducerStateManager, "update", SCRIPTED_TRANSACTION_MUTANTS)
def keep_the_proof(update: Replacement) -> Replacement:
    """The proof that a transaction is known stays valid after its marker (KAFKA-14884)."""

    def keep(producers: ProducerStateManager, appended: ProducerAppendInfo) -> None:
        appended.voids_verification = False
        update(producers, appended)

    return keep


@transaction_mutant(ReplicaApis, "_append_markers")
def confirm_markers_at_once(_: Replacement) -> Replacement:
    """A leader confirms a marker before other replicas have it."""

    def append(apis: Any, marker: Any, entries: Any) -> Any:
        is_second = marker.transaction_version >= 2
        return apis._replicas.append_records(
            entries,
            required_acks=1,
            timeout_ms=30_000,
            internal_topics_allowed=True,
            origin=AppendOrigin.COORDINATOR_TV2 if is_second else AppendOrigin.COORDINATOR,
        )

    return append


@transaction_mutant(TransactionShard, "activate")
def send_no_markers_after_a_failover(_: Replacement) -> Replacement:
    """A new coordinator leaves decided transactions as they are (KAFKA-9777)."""

    def activate(_: Any) -> Iterator[None]:
        yield from ()

    return activate


@transaction_mutant(TransactionCoordinator, "_change")
def confirm_decisions_at_once(change: Replacement) -> Replacement:
    """EndTxn is answered before the decision is on all replicas in sync."""

    def confirm(coordinator: Any, shard: Any, transaction: Any, following: Any, then: Any) -> None:
        if following.state not in PREPARED:
            change(coordinator, shard, transaction, following, then)
            return
        change(coordinator, shard, transaction, following, lambda _: None)
        then(None)

    return confirm


@transaction_mutant(TransactionMetadata, "prepared")
def fence_without_a_new_epoch(prepared: Replacement) -> Replacement:
    """An abort by the coordinator leaves the epoch to the producer that it fences (KAFKA-6119)."""

    def keep(metadata: Any, *arguments: Any, fences: bool = False, **named: Any) -> Any:
        found = prepared(metadata, *arguments, fences=fences, **named)
        return replace(found, producer_epoch=metadata.producer_epoch) if fences else found

    return keep


@transaction_mutant(TransactionShard, "activate")
def abort_what_was_decided(activate: Replacement) -> Replacement:
    """A new coordinator aborts the transactions that it finds, also those to be committed."""

    def flip(shard: Any) -> Iterator[None]:
        for transaction in shard.transactions.values():
            if transaction.current.state is PREPARE_COMMIT:
                transaction.current = replace(transaction.current, state=PREPARE_ABORT)
        yield from activate(shard)

    return flip


@transaction_mutant(GroupShard, "end_append")
def count_offsets_before_their_marker(end_append: Replacement) -> Replacement:
    """The offsets of a transaction count when they are in the log."""

    def end(shard: Any, producer_id: int, group_id: str, partitions: Any, appended: Any) -> None:
        shard.group(group_id, shard._store.clock.time_ms())
        for at, offset in appended.items():
            shard.keep_offset(group_id, at, offset)
        end_append(shard, producer_id, group_id, partitions, {})

    return end


@transaction_mutant(GroupShard, "open_offsets")
def forget_open_offsets(_: Replacement) -> Replacement:
    """A group is deleted while a transaction has an offset of it (KAFKA-19163)."""

    def none(_: Any, __: str) -> set[Any]:
        return set()

    return none


@transaction_mutant(GroupOffsets, "_check")
def let_anyone_commit(check: Replacement) -> Replacement:
    """The offsets of a transaction count also where their member has left the group (KAFKA-15784)."""

    def let(offsets: Any, group: Any, asked: Any) -> None:
        if asked.producer is None:
            check(offsets, group, asked)

    return let


@transaction_mutant(TransactionIndex, "append")
def leave_out_aborted_transactions(append: Replacement) -> Replacement:
    """Every second aborted transaction is missing in the index (KAFKA-7866)."""

    def leave_out(index: Any, entry: Any) -> None:
        if entry.last_offset % 2:
            append(index, entry)

    return leave_out


@transaction_mutant(ProducerStateManager, "prepare_update", SCRIPTED_TRANSACTION_MUTANTS)
def obey_replaced_coordinators(prepare_update: Replacement) -> Replacement:
    """A partition takes markers of a coordinator that was replaced."""

    def obey(producers: ProducerStateManager, producer_id: int, origin: Any, verification: Any = None) -> Any:
        known = producers.last_entry(producer_id)
        if known is None:
            return prepare_update(producers, producer_id, origin, verification)
        entry = ProducerStateEntry(
            producer_id,
            known.producer_epoch,
            -1,
            known.last_timestamp,
            known.current_txn_first_offset,
            known.batches,
        )
        valid = producers._verifications.get(producer_id)
        return ProducerAppendInfo(entry, origin, verification, valid)

    return obey


@transaction_mutant(ShardStore, "_is_committed", SCRIPTED_TRANSACTION_MUTANTS)
def serve_what_may_be_lost(_: Replacement) -> Replacement:
    """A new coordinator acts on records that not all replicas in sync have (KIP-966)."""

    def is_committed(*_: Any) -> bool:
        return True

    return is_committed


@transaction_mutant(TransactionMarkers, "add")
def complete_before_all_markers(add: Replacement) -> Replacement:
    """A transaction is complete once one of its partitions has the marker."""

    def add_one(markers: Any, marking: Any) -> None:
        marking.left = set(sorted(marking.left)[:1])
        add(markers, marking)

    return add_one


@transaction_mutant(TransactionMetadata, "prepared")
def raise_the_epoch_twice(prepared: Replacement) -> Replacement:
    """Under version 2 a fence raises the epoch, and the end does so again (KAFKA-19367)."""

    def twice(metadata: Any, version: int, *arguments: Any, fences: bool = False, **named: Any) -> Any:
        found = prepared(metadata, version, *arguments, fences=fences, **named)
        return replace(found, producer_epoch=found.producer_epoch + 1) if fences and version >= 2 else found

    return twice


@transaction_mutant(TransactionCoordinator, "_append_again")
def give_up_an_append(_: Replacement) -> Replacement:
    """After an append that failed, its state stays pending, and nothing repeats it (KAFKA-7519)."""

    def leave(*_: Any) -> None:
        return None

    return leave


@transaction_mutant(TransactionShard, "activate")
def remember_an_earlier_ownership(activate: Replacement) -> Replacement:
    """What a coordinator knew in an earlier leadership comes back with the next one (KAFKA-9307)."""
    known: dict[tuple[Any, int], dict[str, Any]] = {}

    def remember(shard: Any) -> Iterator[None]:
        key = shard._resume.__self__, shard.partition
        shard.transactions.update(known.get(key, {}))
        known[key] = shard.transactions
        yield from activate(shard)

    return remember


@transaction_mutant(TransactionMetadata, "is_expired")
def forget_open_transactions(_: Replacement) -> Replacement:
    """An id expires also while its transaction is open."""

    def is_expired(metadata: Any, now_ms: int, expiration_ms: int) -> bool:
        age_ms = now_ms - metadata.last_update_ms
        return age_ms >= (expiration_ms if metadata.state is not ONGOING else expiration_ms // 8)

    return is_expired


@transaction_mutant(TransactionMetadata, "check_producer")
def believe_any_epoch(_: Replacement) -> Replacement:
    """Partitions are added for a producer that was fenced."""

    def check(*_: Any) -> None:
        return None

    return check


@transaction_mutant(TransactionCoordinator, "_change")
def confirm_partitions_at_once(change: Replacement) -> Replacement:
    """A partition counts as added before the record is on all replicas in sync."""

    def confirm(coordinator: Any, shard: Any, transaction: Any, following: Any, then: Any) -> None:
        if following.state is not ONGOING:
            change(coordinator, shard, transaction, following, then)
            return
        change(coordinator, shard, transaction, following, lambda _: None)
        then(None)

    return confirm


@transaction_mutant(ProducerIdControl, "allocate")
def count_blocks_anew(allocate: Replacement) -> Replacement:
    """Each active controller counts the blocks of producer ids from the first one on."""
    given: dict[int, int] = {}

    def count(control: Any, request: Any) -> Any:
        result = allocate(control, request)
        first = given.get(id(control), 0)
        given[id(control)] = first + result.response.producer_id_len
        return result._replace(response=replace_fields(result.response, producer_id_start=first))

    return count


@transaction_mutant(TransactionMetadata, "needs_next_producer_id")
def use_up_the_epochs(_: Replacement) -> Replacement:
    """A producer at the last epoch gets no other producer id (KAFKA-20090)."""

    def needs(*_: Any) -> bool:
        return False

    return needs


@transaction_mutant(TransactionMetadata, "is_timed_out")
def time_out_two_phase_commits(_: Replacement) -> Replacement:
    """A transaction of two-phase commit is aborted when it is older than its timeout can say."""

    def is_timed_out(metadata: Any, open_ms: int) -> bool:
        return metadata.state is ONGOING and bool(metadata.timeout_ms < open_ms)

    return is_timed_out


@transaction_mutant(TransactionMarkers, "_route")
def give_up_a_marker(route: Replacement) -> Replacement:
    """A marker that its partition has refused is not sent again (KAFKA-9777)."""

    def route_once(markers: Any, marking: Any, partitions: Any) -> None:
        if not isinstance(partitions, tuple):
            route(markers, marking, partitions)

    return route_once


@transaction_mutant(_Round, "_collect_batch")
def clean_by_aborted_records(_: Replacement) -> Replacement:
    """Of a key, cleaning keeps the last record, though its transaction was aborted."""

    def collect(round_: Any, batch: Any, transactions: Any) -> bool:
        if batch.is_control:
            transactions.ends_nothing(batch)
            round_.map.skip_batch(batch)
            return True
        return bool(round_.map.put_batch(batch))

    return collect


@transaction_mutant(RequestChannel, "serve", SCRIPTED_TRANSACTION_MUTANTS)
def verify_batches_in_shared_memory(serve: Replacement) -> Replacement:
    """A batch waits for its coordinator in memory that the next request overwrites (KAFKA-15653)."""
    shared: dict[int, bytearray] = {}

    def serve_in_shared(channel: Any, frame: memoryview, *others: Any) -> Any:
        if int.from_bytes(frame[:2]) == PRODUCE:
            memory = shared.setdefault(id(channel), bytearray(1 << 20))
            memory[: len(frame)] = frame
            frame = memoryview(memory)[: len(frame)].toreadonly()
        return serve(channel, frame, *others)

    return serve_in_shared


@transaction_mutant(UnifiedLog, "update_high_watermark", SCRIPTED_TRANSACTION_MUTANTS)
def raise_the_stable_offset_with_the_mark(_: Replacement) -> Replacement:
    """For a moment readers of committed records see all that is replicated (KAFKA-9807)."""

    def update(log: Any, offset: int) -> int:
        with log.offsets_lock:
            offset = max(log.state.log_start_offset, min(offset, log.state.log_end_offset))
            log.state.advance(offset, offset)
            log.publish_stable_offset()
            return offset

    return update


@transaction_mutant(TransactionManager, "begin", SCRIPTED_TRANSACTION_MUTANTS)
def keep_the_epoch_of_a_lost_batch(begin: Replacement) -> Replacement:
    """After a batch whose outcome is unknown, a producer begins its sequence again in the same epoch
    (KAFKA-14053)."""

    def begin_again(manager: Any, **named: Any) -> Any:
        manager.producer = ProducerIdAndEpoch(*manager.producer)
        manager._must_start = manager.producer.producer_id < 0
        return begin(manager, **named)

    return begin_again
