"""What runs of batches make of a log's producers: the same as their batches one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.producer_table import PendingProducers
from kreplica._core.records import batches
from kreplica.common.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KreplicaError,
    OutOfOrderSequenceNumber,
)
from kreplica.common.types import AppendOrigin
from kreplica.log.producer_append_info import OPEN_ALREADY, CompletedTxn
from kreplica.log.producer_state_manager import ProducerStateManager
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build
from tests.support.logs import NOW_MS
from tests.support.memory_storage import MemoryStorage


def open_manager() -> ProducerStateManager:
    return ProducerStateManager(MemoryStorage(), "/log", producer_id_expiration_ms=1_000)


def everything(manager: ProducerStateManager) -> tuple[object, ...]:
    """All that the manager knows, in its order."""
    transactions = (list((manager.ongoing or {}).items()), manager._unreplicated)
    return repr(list(manager.active_producers.items())), transactions, manager.first_unstable_offset


# ---- runs without transactions ---------------------------------------------------------------------------

PRODUCED = st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 2**31 - 1), st.integers(1, 3))


def run_of(produced: list[tuple[int, int, int, int]]) -> bytes:
    """Batches of (producer, epoch, first sequence, records); of producer -1: without one."""
    made, offset = bytearray(), 0
    for number, (producer, epoch, sequence, count) in enumerate(produced):
        fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        values = [b"v"] * count
        given = {} if producer < 0 else fields
        made += build(values, base_offset=offset, now_ms=NOW_MS + number, **given)
        offset += count
    return bytes(made)


@given(st.lists(PRODUCED, max_size=20), st.lists(PRODUCED, max_size=20))
def test_a_run_tells_of_producers_what_its_batches_do_one_by_one(first, second):
    at_once, one_by_one = open_manager(), open_manager()
    for produced in (first, second):
        run = run_of(produced)
        at_once.take_over_run(run + b"half a batch")
        for batch in batches(run):
            one_by_one.take_over(batch)
    assert everything(at_once) == everything(one_by_one)


def test_a_run_in_an_open_transaction_of_its_producer_is_refused():
    manager, producer = open_manager(), {"producer_id": 1, "producer_epoch": 0}
    opened = build([b"v"], base_offset=0, base_sequence=0, transactional=True, **producer)
    manager.take_over(next(iter(batches(opened))))
    with pytest.raises(InvalidTxnState, match="producer 1 at offset 5 writes outside"):
        manager.take_over_run(build([b"v"], base_offset=5, base_sequence=1, **producer))


# ---- runs with transactions ------------------------------------------------------------------------------

STEPS = ("transactional", "transactional", "numberless", "idempotent", "plain", "commit", "commit", "abort")
STEP = st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 1), st.integers(1, 3))


def history_of(steps: list[tuple[str, int, int, int]]) -> list[bytes]:
    """A log's batches: of each step the kind, the producer, its epoch and the number of records."""
    made, offset, sequences = [], 0, [0] * 6
    for number, (kind, producer, epoch, count) in enumerate(steps):
        fields = {"producer_id": producer, "producer_epoch": epoch}
        at = producer * 2 + epoch
        if kind in ("commit", "abort"):
            marker = EndTransactionMarker(kind == "commit", number)
            made.append(
                build_end_transaction_marker(
                    marker, timestamp_ms=NOW_MS + number, base_offset=offset, **fields
                )
            )
            offset += 1
            continue
        if kind == "plain":
            fields = {}
        elif kind == "numberless":
            fields |= {"transactional": True, "base_sequence": -1}
        else:
            fields |= {"transactional": kind == "transactional", "base_sequence": sequences[at]}
            sequences[at] += count
        made.append(build([b"v"] * count, base_offset=offset, now_ms=NOW_MS + number, **fields))
        offset += count
    return made


def add(manager: ProducerStateManager, batch: bytes) -> bool:
    """Add one batch as a follower does that handles it individually. Return whether it was refused."""
    try:
        done = manager.take_over(next(batches(batch)))
    except KreplicaError:
        return True
    if done is not None:
        manager.complete_txn(done)
    return False


@settings(max_examples=200)
@given(st.lists(STEP, max_size=25), st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_prepared_runs_change_what_their_batches_do_one_by_one(steps, lengths, data):
    at_once, one_by_one = open_manager(), open_manager()
    history, index = history_of(steps), 0
    for batch in history:
        add(one_by_one, batch)
    while index < len(history):
        some = history[index : index + lengths[index % len(lengths)]]
        before = everything(at_once)
        prepared = at_once.prepare_run(b"".join(some))
        assert everything(at_once) == before
        # The disk may have appended only the first of them.
        done = data.draw(st.integers(0, len(some)))
        size = sum(map(len, some[:done]))
        if size > prepared.size:
            size = prepared.size
            done = next(n for n in range(len(some) + 1) if sum(map(len, some[:n])) == size)
        at_once.note_run(prepared, size)
        index += done
        if done < len(some):
            add(at_once, history[index])
            index += 1
    assert everything(at_once) == everything(one_by_one)


def test_a_prepared_run_ends_before_an_abort_and_before_what_is_refused():
    manager = open_manager()
    begins, aborts, behind = history_of(
        [("transactional", 1, 0, 2), ("abort", 1, 0, 1), ("transactional", 1, 0, 1)]
    )
    prepared = manager.prepare_run(begins + aborts + behind)
    assert (prepared.size, prepared.begins_at) == (len(begins), 0)
    outside = history_of([("transactional", 1, 0, 2), ("idempotent", 1, 0, 1)])
    assert manager.prepare_run(b"".join(outside)).size == len(outside[0])
    torn = bytearray(history_of([("commit", 1, 0, 1)])[0])
    torn[-1] ^= 1
    assert manager.prepare_run(begins + bytes(torn)).size == len(begins)
    nothing = manager.prepare_run(b"")
    assert (nothing.size, nothing.begins_at) == (0, None)


# ---- a leader's appends ----------------------------------------------------------------------------------


class Pending(PendingProducers):
    """As AppendQueue: the owner of the states in flight."""

    __slots__ = ("log",)


class Log:
    """The part of a UnifiedLog that PendingProducers uses."""

    def __init__(self) -> None:
        self.producers = open_manager()


def batch_at(sequence: int, *, transactional: bool = True):
    fields = {"producer_id": 4, "producer_epoch": 0, "base_sequence": sequence}
    return next(batches(build([b"v"], now_ms=NOW_MS, transactional=transactional, **fields)))


def test_a_batch_follows_those_in_flight():
    pending, log = Pending(), Log()
    pending.log, pending.end = log, 10
    first = pending.continue_sequence(batch_at(0), AppendOrigin.CLIENT)
    assert first is not None
    assert first.started == (10,)
    pending.end = 11
    second = pending.continue_sequence(batch_at(1), AppendOrigin.CLIENT)
    assert second is not None
    assert second.started == ()
    with pytest.raises(InvalidTxnState, match="producer 4 at offset 11 writes outside"):
        pending.continue_sequence(batch_at(2, transactional=False), AppendOrigin.CLIENT)
    assert pending.continue_sequence(batch_at(0), AppendOrigin.CLIENT) is None
    assert log.producers.last_entry(4) is None
    pending.note_producer(first, 11)
    pending.note_producer(second, 12)
    assert log.producers.map_end_offset == 12
    assert log.producers.last_entry(4) is second
    assert log.producers.ongoing == {10: 4}


def test_an_open_transaction_needs_no_verification_and_an_older_epoch_gets_none():
    manager = open_manager()
    known = manager.start_verification(4, 1, 5, NOW_MS, begins_at_zero=False)
    assert manager.start_verification(4, 1, 3, NOW_MS, begins_at_zero=False) is known
    assert known.lowest_sequence == 3
    appended = manager.prepare_update(4, AppendOrigin.CLIENT, known)
    appended.append_data_batch(1, 3, 3, NOW_MS, 0, 0, True)
    manager.update(appended)
    assert manager.start_verification(4, 1, 4, NOW_MS, begins_at_zero=False) is OPEN_ALREADY
    with pytest.raises(InvalidProducerEpoch, match="producer 4: epoch 0, where 1 is the least"):
        manager.start_verification(4, 0, 0, NOW_MS, begins_at_zero=False)
    assert manager.start_verification(4, 2, 0, NOW_MS, begins_at_zero=False) is not known
    manager.complete_txn(CompletedTxn(4, 0, 1, False))
    assert manager.ongoing == {}


@pytest.mark.parametrize(("begins_at_zero", "sequence", "first"), [(True, 1, 0), (False, 3, 1)])
def test_a_transaction_that_begins_too_late_says_where_it_should(begins_at_zero, sequence, first):
    """As of a producer whose topic is made again in the middle of its transaction."""
    manager = open_manager()
    known = manager.start_verification(4, 1, 1, NOW_MS, begins_at_zero=begins_at_zero)
    appended = manager.prepare_update(4, AppendOrigin.CLIENT, known)
    with pytest.raises(OutOfOrderSequenceNumber, match=f"begins at sequence {first}, not {sequence}"):
        appended.append_data_batch(1, sequence, sequence, NOW_MS, 0, 0, True)
