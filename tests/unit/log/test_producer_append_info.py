"""The rules that a producer's batches and markers have to pass."""

import pytest

from kreplica.common.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidTxnState,
    KreplicaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kreplica.common.types import INT16_MAX, INT32_MAX, AppendOrigin
from kreplica.log.producer_append_info import (
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
    add_sequence,
)

CLIENT, REPLICATION, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.REPLICATION, AppendOrigin.COORDINATOR


class Producer:
    """A producer and its log: each append is one record a sequence number, at the next offsets."""

    def __init__(self) -> None:
        self.entry = ProducerStateEntry(7)
        self.offset = 100

    def append(
        self,
        first: int,
        last: int | None = None,
        epoch: int = 0,
        txn: bool = False,
        origin: AppendOrigin = CLIENT,
    ) -> BatchMetadata | None:
        last = first if last is None else last
        appended = ProducerAppendInfo(self.entry, origin)
        delta = add_sequence(last, -first)
        duplicate = appended.append_data_batch(
            epoch, first, last, 1000, self.offset, self.offset + delta, txn
        )
        if duplicate is None:
            self.entry = appended
            self.offset += delta + 1
        return duplicate

    def mark(
        self,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        origin: AppendOrigin = COORDINATOR,
        version: int = 0,
        abort: bool = False,
    ) -> CompletedTxn | None:
        appended = ProducerAppendInfo(self.entry, origin)
        completed = appended.append_end_txn_marker(
            epoch, coordinator_epoch, self.offset, 2000, abort, version
        )
        self.entry = appended
        self.offset += 1
        return completed


def refused(error: type[KreplicaError], producer: Producer, *sequences: int, **how: object) -> None:
    before = repr(producer.entry)
    with pytest.raises(error):
        producer.append(*sequences, **how)  # type: ignore[arg-type]
    assert repr(producer.entry) == before


def test_sequences_go_on_from_batch_to_batch() -> None:
    producer = Producer()
    producer.append(0, 4)
    producer.append(5)
    producer.append(6, 9)
    assert producer.entry.last_sequence == 9
    assert [batch.first_offset for batch in producer.entry.batches] == [100, 105, 106]
    refused(OutOfOrderSequenceNumber, producer, 11)
    refused(OutOfOrderSequenceNumber, producer, 9)
    refused(OutOfOrderSequenceNumber, producer, 0)


def test_unknown_producer_may_be_anywhere_in_its_sequence() -> None:
    producer = Producer()
    producer.append(4711, epoch=3)
    refused(OutOfOrderSequenceNumber, producer, 4713, epoch=3)


def test_sequence_wraps_at_the_greatest() -> None:
    producer = Producer()
    producer.append(INT32_MAX - 1, INT32_MAX)
    refused(OutOfOrderSequenceNumber, producer, 1)
    producer.append(0)
    producer.append(1)
    wrapped = Producer()
    wrapped.append(INT32_MAX - 1, 1)
    assert wrapped.entry.batches[0].first_sequence == INT32_MAX - 1
    wrapped.append(2)
    assert wrapped.append(INT32_MAX - 1, 1) == BatchMetadata(1, 103, 3, 1000)


def test_each_of_the_last_five_batches_is_known_again() -> None:
    producer = Producer()
    for first in range(0, 12, 2):
        producer.append(first, first + 1)
    assert producer.append(10, 11) == BatchMetadata(11, 111, 1, 1000)
    assert producer.append(2, 3) == BatchMetadata(3, 103, 1, 1000)
    assert producer.offset == 112
    assert len(producer.entry.batches) == 5
    # Part of a batch, or two batches joined to one, is no duplicate.
    refused(OutOfOrderSequenceNumber, producer, 2, 2)
    refused(OutOfOrderSequenceNumber, producer, 2, 5)


def test_batch_before_the_last_five_is_a_duplicate_without_an_offset() -> None:
    producer = Producer()
    for first in range(0, 12, 2):
        producer.append(first, first + 1)
    refused(DuplicateSequenceNumber, producer, 0, 1)


def test_batch_before_fewer_than_five_may_have_been_missed() -> None:
    producer = Producer()
    for sequence in range(10, 14):
        producer.append(sequence)
    refused(OutOfOrderSequenceNumber, producer, 9)
    producer.append(14)
    refused(DuplicateSequenceNumber, producer, 9)


def test_batch_far_ahead_is_no_duplicate_even_around_the_wrap() -> None:
    producer = Producer()
    for sequence in (INT32_MAX - 1, INT32_MAX, 0, 1, 2):
        producer.append(sequence)
    refused(DuplicateSequenceNumber, producer, INT32_MAX - 3)
    refused(OutOfOrderSequenceNumber, producer, 4)
    refused(OutOfOrderSequenceNumber, producer, INT32_MAX // 2 - 10)


def test_new_epoch_begins_with_sequence_zero() -> None:
    producer = Producer()
    producer.append(0, 3)
    refused(OutOfOrderSequenceNumber, producer, 4, epoch=1)
    producer.append(0, epoch=1)
    assert [batch.last_offset for batch in producer.entry.batches] == [104]
    refused(InvalidProducerEpoch, producer, 1, epoch=0)
    refused(InvalidProducerEpoch, producer, 0, 3, epoch=0)  # even if it would be a duplicate


def test_followers_take_what_their_leader_took() -> None:
    producer = Producer()
    producer.append(0, epoch=5)
    producer.append(17, epoch=5, origin=REPLICATION)
    producer.append(9, epoch=4, origin=REPLICATION)
    assert (producer.entry.producer_epoch, producer.entry.last_sequence) == (4, 9)
    assert producer.append(9, epoch=4, origin=REPLICATION) is None  # no search for duplicates either


def test_coordinators_have_no_sequences_but_an_epoch() -> None:
    producer = Producer()
    producer.append(-1, -1, epoch=2, txn=True, origin=COORDINATOR)
    producer.append(-1, -1, epoch=2, txn=True, origin=COORDINATOR)
    refused(InvalidProducerEpoch, producer, -1, -1, epoch=1, txn=True, origin=COORDINATOR)


def test_transaction_from_first_batch_to_marker() -> None:
    producer = Producer()
    producer.append(0, 1, txn=True)
    assert producer.entry.current_txn_first_offset == 100
    producer.append(2, txn=True)
    refused(InvalidTxnState, producer, 3)
    assert producer.mark(abort=True) == CompletedTxn(7, 100, 103, True)
    assert not producer.entry.in_transaction
    assert producer.entry.last_timestamp == 2000
    assert producer.mark() is None
    producer.append(3)
    producer.append(4, txn=True)
    assert producer.mark() == CompletedTxn(7, 106, 107, False)


def test_started_transactions_are_returned() -> None:
    appended = ProducerAppendInfo(ProducerStateEntry(7), REPLICATION)
    appended.append_data_batch(0, 0, 0, 1, 10, 10, True)
    appended.append_data_batch(0, 1, 1, 1, 11, 11, True)
    appended.append_end_txn_marker(0, 0, 12, 1, False)
    appended.append_data_batch(0, 2, 2, 1, 13, 13, True)
    assert appended.started == (10, 13)


def test_marker_of_an_older_epoch_or_coordinator_is_fenced() -> None:
    producer = Producer()
    producer.append(0, epoch=3, txn=True)
    with pytest.raises(InvalidProducerEpoch):
        producer.mark(epoch=2)
    producer.mark(epoch=3, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFenced):
        producer.mark(epoch=3, coordinator_epoch=4)
    producer.mark(epoch=3, coordinator_epoch=4, origin=REPLICATION)
    producer.mark(epoch=2, coordinator_epoch=4, origin=REPLICATION)
    assert (producer.entry.producer_epoch, producer.entry.coordinator_epoch) == (2, 4)


def test_marker_with_a_raised_epoch_begins_the_sequences_anew() -> None:
    producer = Producer()
    producer.append(0, 4, txn=True)
    assert producer.mark(epoch=1) == CompletedTxn(7, 100, 105, False)
    refused(InvalidProducerEpoch, producer, 5)
    refused(OutOfOrderSequenceNumber, producer, 5, epoch=1)
    producer.append(0, epoch=1)


def test_late_marker_of_the_second_transaction_version() -> None:
    producer = Producer()
    producer.append(0, epoch=3, txn=True)
    with pytest.raises(InvalidProducerEpoch):
        producer.mark(epoch=3, version=2)
    assert producer.mark(epoch=4, version=2) is not None
    assert producer.mark(epoch=4, version=2) is None  # repeated: no transaction is open
    producer.append(0, epoch=4, txn=True)
    with pytest.raises(InvalidProducerEpoch):
        producer.mark(epoch=4, version=2)
    # The last epoch of all cannot be raised, and its transaction has to end none the less.
    producer.append(0, epoch=INT16_MAX, txn=True)
    assert producer.mark(epoch=INT16_MAX, version=2) is not None
