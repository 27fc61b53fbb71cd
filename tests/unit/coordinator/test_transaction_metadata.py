"""The transitions of a transactional id, as tables of Kafka's rules."""

from __future__ import annotations

import pytest

from kreplica.common.dataclass import replace
from kreplica.common.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
)
from kreplica.common.types import INT16_MAX, TopicPartition
from kreplica.coordinator.transaction_metadata import (
    LAST_EPOCH,
    NO_TIMEOUT_MS,
    TransactionMetadata,
    TransactionState,
)

S = TransactionState
AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
EMPTY = TransactionMetadata(transactional_id="id", producer_id=7, producer_epoch=3, timeout_ms=1_000)
ENDED = "ended"
ENDS = "ends"
FENCED, WRONG, BUSY = ProducerFenced, InvalidTxnState, ConcurrentTransactions


def in_state(state, **changes):
    partitions = frozenset({AT}) if state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT) else frozenset()
    return replace(EMPTY, state=state, partitions=partitions, start_ms=5, **changes)


def outcome(metadata, producer_id, epoch, version, commit):
    try:
        return ENDED if metadata.ended_by_client(producer_id, epoch, version, commit=commit) else ENDS
    except (ProducerFenced, InvalidTxnState, ConcurrentTransactions, InvalidProducerIdMapping) as error:
        return type(error)


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.EMPTY, WRONG, WRONG),
        (S.ONGOING, ENDS, ENDS),
        (S.PREPARE_COMMIT, BUSY, WRONG),
        (S.PREPARE_ABORT, WRONG, BUSY),
        (S.COMPLETE_COMMIT, ENDED, WRONG),
        (S.COMPLETE_ABORT, WRONG, ENDED),
    ],
)
def test_before_version_2_the_state_decides_about_an_end(state, commit, abort):
    metadata = in_state(state)
    assert outcome(metadata, 7, 3, 0, True) == commit
    assert outcome(metadata, 7, 3, 1, False) == abort
    assert outcome(metadata, 7, 2, 0, True) is FENCED
    assert outcome(metadata, 7, 4, 0, True) is FENCED
    assert outcome(metadata, 8, 3, 0, True) is InvalidProducerIdMapping


@pytest.mark.parametrize(
    ("state", "abort_again", "abort", "commit_again", "commit"),
    [
        (S.EMPTY, FENCED, ENDS, FENCED, WRONG),
        (S.ONGOING, FENCED, ENDS, FENCED, ENDS),
        (S.COMPLETE_ABORT, ENDED, ENDS, FENCED, WRONG),
        (S.COMPLETE_COMMIT, WRONG, ENDS, ENDED, WRONG),
        (S.PREPARE_ABORT, BUSY, FENCED, FENCED, FENCED),
        (S.PREPARE_COMMIT, WRONG, FENCED, BUSY, FENCED),
    ],
)
def test_since_version_2_the_epoch_decides_about_an_end(state, abort_again, abort, commit_again, commit):
    # A commit again in the two states of an abort: Kafka 4.3 answers InvalidTxnState (KAFKA-20785).
    metadata = in_state(state, version=2)
    assert outcome(metadata, 7, 2, 2, False) == abort_again
    assert outcome(metadata, 7, 3, 2, False) == abort
    assert outcome(metadata, 7, 2, 2, True) == commit_again
    assert outcome(metadata, 7, 3, 2, True) == commit
    assert outcome(metadata, 7, 1, 2, True) is FENCED
    assert outcome(metadata, 7, 4, 2, True) is FENCED
    assert outcome(metadata, 8, 3, 2, True) is InvalidProducerIdMapping


def test_an_end_that_changed_the_producer_id_is_recognized_when_repeated():
    last = in_state(S.ONGOING, producer_epoch=LAST_EPOCH)
    assert last.needs_next_producer_id(2)
    assert not last.needs_next_producer_id(1)
    prepared = last.prepared(2, 9, commit=True, next_producer_id=9)
    assert (prepared.producer_id, prepared.producer_epoch) == (7, INT16_MAX)
    assert outcome(prepared, 7, LAST_EPOCH, 2, True) is BUSY
    complete = prepared.completed(10)
    assert (complete.producer_id, complete.producer_epoch, complete.previous_producer_id) == (9, 0, 7)
    assert outcome(complete, 7, LAST_EPOCH, 2, True) == ENDED
    assert outcome(complete, 7, LAST_EPOCH, 2, False) is WRONG
    assert outcome(complete, 7, LAST_EPOCH - 1, 2, True) is InvalidProducerIdMapping
    again = TransactionMetadata.of_record("id", complete.record())
    assert outcome(again, 7, LAST_EPOCH, 2, True) == ENDED


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("version", "epoch"), [(0, 3), (1, 3), (2, 4)])
def test_an_end_raises_the_epoch_since_version_2(version, epoch, commit):
    prepared = in_state(S.ONGOING).prepared(version, 9, commit=commit)
    assert prepared.state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
    assert (prepared.producer_epoch, prepared.partitions, prepared.start_ms) == (epoch, {AT}, 5)
    complete = prepared.completed(10)
    assert complete.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert (complete.producer_epoch, complete.partitions, complete.last_update_ms) == (epoch, frozenset(), 10)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("before", "after"), [(3, 4), (LAST_EPOCH, INT16_MAX), (INT16_MAX, INT16_MAX)])
def test_a_fence_raises_the_epoch_once_and_never_above_the_greatest(version, before, after):
    fenced = in_state(S.ONGOING, producer_epoch=before).prepared(
        version, 9, commit=False, fences=True, next_producer_id=8 if version == 2 and before > 3 else -1
    )
    assert (fenced.state, fenced.producer_epoch) == (S.PREPARE_ABORT, after)


def test_an_abort_without_a_transaction_raises_the_epoch():
    prepared = EMPTY.prepared(2, 9, commit=False)
    assert (prepared.producer_epoch, prepared.partitions, prepared.start_ms) == (4, frozenset(), 9)


# ---- a producer that starts --------------------------------------------------------------------------------


def test_a_new_producer_gets_the_next_epoch():
    first = replace(EMPTY, producer_epoch=-1).initialized(-1, 500, 9)
    assert (first.producer_id, first.producer_epoch, first.timeout_ms) == (7, 0, 500)
    second = first.initialized(-1, 600, 10)
    assert (second.producer_epoch, second.last_producer_epoch) == (1, -1)


def test_a_producer_that_names_its_epoch_may_repeat_the_request():
    raised = EMPTY.initialized(3, 1_000, 9)
    assert (raised.producer_epoch, raised.last_producer_epoch) == (4, 3)
    assert raised.initialized(3, 1_000, 10).producer_epoch == 4
    with pytest.raises(ProducerFenced):
        raised.initialized(2, 1_000, 10)


def test_exhausted_epochs_get_another_producer_id():
    last = replace(EMPTY, producer_epoch=LAST_EPOCH)
    assert last.needs_producer_id(-1)
    assert last.needs_producer_id(LAST_EPOCH)
    rotated = last.initialized(LAST_EPOCH, 1_000, 9, new_producer_id=8)
    assert (rotated.producer_id, rotated.producer_epoch, rotated.previous_producer_id) == (8, 0, 7)
    rotated.check_identity(7, LAST_EPOCH)
    assert rotated.initialized(LAST_EPOCH, 1_000, 10).producer_id == 8
    with pytest.raises(ProducerFenced):
        rotated.check_identity(7, LAST_EPOCH - 1)


@pytest.mark.parametrize("producer_id", [8, 0])
def test_another_producer_is_fenced(producer_id):
    with pytest.raises(ProducerFenced):
        EMPTY.check_identity(producer_id, 3)
    EMPTY.check_identity(-1, -1)
    EMPTY.check_identity(7, 0)
    replace(EMPTY, producer_epoch=-1).check_identity(producer_id, 3)


# ---- partitions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state):
    begun = in_state(state).with_partitions(7, 3, [AT], 9, 2)
    assert (begun.state, begun.partitions, begun.start_ms, begun.version) == (S.ONGOING, {AT}, 9, 2)
    more = begun.with_partitions(7, 3, [OTHER], 12, 2)
    assert (more.partitions, more.start_ms, more.last_update_ms) == ({AT, OTHER}, 9, 12)
    assert more.with_partitions(7, 3, [AT], 13, 2) is more


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_an_ending_transaction_takes_no_partitions(state):
    with pytest.raises(ConcurrentTransactions):
        in_state(state).with_partitions(7, 3, [OTHER], 9, 2)
    with pytest.raises(ConcurrentTransactions):
        in_state(state).check_contains(7, 3)


def test_only_the_current_producer_adds_partitions():
    with pytest.raises(InvalidProducerIdMapping):
        EMPTY.with_partitions(8, 3, [AT], 9, 2)
    for epoch in (2, 4):
        with pytest.raises(ProducerFenced):
            EMPTY.with_partitions(7, epoch, [AT], 9, 2)


# ---- time --------------------------------------------------------------------------------------------------


def test_only_an_open_transaction_times_out():
    assert in_state(S.ONGOING).is_timed_out(1_001)
    assert not in_state(S.ONGOING).is_timed_out(1_000)
    assert not in_state(S.ONGOING, timeout_ms=NO_TIMEOUT_MS).is_timed_out(1 << 60)
    assert not in_state(S.PREPARE_COMMIT).is_timed_out(1_001)


@pytest.mark.parametrize("state", list(S))
def test_only_an_id_without_a_transaction_expires(state):
    is_at_rest = state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    assert in_state(state, last_update_ms=100).is_expired(150, 50) == is_at_rest
    assert not in_state(state, last_update_ms=100).is_expired(149, 50)
