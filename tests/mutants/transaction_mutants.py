"""Mutants of transactions: bugs that coordinators, partitions and groups have had, met by random runs.

Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kreplica.broker.replica_apis import ReplicaApis
from kreplica.broker.transactional_appends import TransactionalAppends
from kreplica.common.dataclass import replace
from kreplica.common.types import AppendOrigin
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.transaction_coordinator import TransactionCoordinator, TransactionShard
from kreplica.coordinator.transaction_markers import TransactionMarkers
from kreplica.coordinator.transaction_metadata import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionMetadata,
)
from kreplica.log.producer_append_info import ProducerAppendInfo
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.log.transaction_index import TransactionIndex
from tests.mutants.mutants import Mutant, Replacement

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
        group = shard.group(group_id, shard._store.clock.time_ms())
        group.offsets.update(appended)
        end_append(shard, producer_id, group_id, partitions, {})

    return end


@transaction_mutant(TransactionIndex, "append")
def leave_out_aborted_transactions(append: Replacement) -> Replacement:
    """Every second aborted transaction is missing in the index (KAFKA-7866)."""

    def leave_out(index: Any, entry: Any) -> None:
        if entry.last_offset % 2:
            append(index, entry)

    return leave_out


@transaction_mutant(ProducerAppendInfo, "append_end_txn_marker", SCRIPTED_TRANSACTION_MUTANTS)
def obey_replaced_coordinators(append: Replacement) -> Replacement:
    """A partition takes markers of a coordinator that was replaced."""

    def obey(info: Any, *arguments: Any) -> Any:
        info.coordinator_epoch = -1
        return append(info, *arguments)

    return obey


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
