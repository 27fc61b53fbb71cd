"""The state of one producer, and its part in one append: checked batch by batch, then handed to the
ProducerStateManager.

An entry does not change once a ProducerStateManager has it: each append replaces it. Nothing changes before
`ProducerStateManager.update`, so a failed append leaves no trace. The rules are those of KIP-98 (idempotence
and transactions), with KIP-360 (an epoch may rise at any time) and the marker rule of KIP-890's second
transaction version. Used by one thread, under the log's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kreplica._core.records import RecordBatch
from kreplica.common.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kreplica.common.types import (
    INT16_MAX,
    INT32_MAX,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    AppendOrigin,
)
from kreplica.record.control import MARKERS, ControlRecordType, parse_control_key, parse_coordinator_epoch

# The batches that a producer may have in flight: it may repeat any of them after a lost answer.
BATCHES_TO_RETAIN = 5

NO_COORDINATOR_EPOCH = -1


def add_sequence(sequence: int, count: int) -> int:
    """Return the sequence number `count` steps after `sequence`; after INT32_MAX comes 0."""
    return (sequence + count) & INT32_MAX


class BatchMetadata(NamedTuple):
    """An appended batch. `offset_delta`: its last offset less its first; its sequences span the same."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return add_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """The state of one producer.

    `batches`: the last batches of this epoch, at most five, oldest first.
    `current_txn_first_offset`: the first offset of the open transaction, or -1.
    `last_timestamp`: that of the last batch or transaction marker, or -1.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        current_txn_first_offset: int = NO_OFFSET,
        batches: tuple[BatchMetadata, ...] = (),
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches = batches

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 if this epoch has no record yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """The offset of the last record, or -1 if this epoch has no record yet."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    @property
    def in_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        """Return the retained batch with exactly these sequence numbers, or None."""
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if last_sequence == batch.last_sequence and first_sequence == batch.first_sequence:
                    return batch
        return None

    def is_before_retained(self, last_sequence: int) -> bool:
        """Return whether a batch up to `last_sequence` must have been appended before the retained ones.

        This is certain only if five batches are retained: a producer has at most five in flight, so an
        earlier one was answered or is being repeated. With fewer, the log may have missed it.
        """
        if len(self.batches) < BATCHES_TO_RETAIN:
            return False
        distance = add_sequence(self.batches[0].first_sequence, -last_sequence)
        return 0 < distance <= INT32_MAX // 2

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in ProducerStateEntry.__slots__)
        return f"{type(self).__name__}({', '.join(fields)})"


class Verification:
    """Proof that the coordinator knows the transaction of a producer in one epoch (KIP-890).

    A transaction's first batch is appended only with the object under which the coordinator was asked. The
    end of a transaction, and its first batch, make the object void, so a batch that was delayed past the end
    cannot open it anew (KAFKA-14402, KAFKA-14884). `lowest_sequence`: the lowest first sequence among the
    batches that wait for the answer; a transaction begins with it (KAFKA-14920). `begins_at_zero`: an unknown
    producer begins at sequence 0, since each transaction has its own epoch (transaction version 2).
    """

    __slots__ = ("begins_at_zero", "lowest_sequence", "producer_epoch", "timestamp")

    def __init__(
        self, producer_epoch: int, lowest_sequence: int, timestamp: int, *, begins_at_zero: bool
    ) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        self.timestamp = timestamp
        self.begins_at_zero = begins_at_zero


# For a batch whose transaction was open already when its request arrived: nothing had to be verified.
OPEN_ALREADY = Verification(NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, begins_at_zero=False)


class CompletedTxn(NamedTuple):
    """A transaction that a marker ended. `last_offset`: the marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppendInfo(ProducerStateEntry):
    """The entry of a producer as one append changes it, batch by batch.

    `started`: the first offsets of the transactions that the append begins.

    `given`: the verification that came with a transactional batch, None to check none. `known`: the valid one
    of this producer, if there is one. `voids_verification`: whether the append ends its validity.
    """

    __slots__ = ("given", "known", "origin", "started", "voids_verification")

    def __init__(
        self,
        current: ProducerStateEntry,
        origin: AppendOrigin,
        given: Verification | None = None,
        known: Verification | None = None,
    ) -> None:
        self.producer_id = current.producer_id
        self.producer_epoch = current.producer_epoch
        self.coordinator_epoch = current.coordinator_epoch
        self.last_timestamp = current.last_timestamp
        self.current_txn_first_offset = current.current_txn_first_offset
        self.batches = current.batches
        self.origin = origin
        self.given = given
        self.known = known
        self.voids_verification = False
        self.started: tuple[int, ...] = ()

    def follow(self, pending: ProducerAppendInfo) -> None:
        """Continue after `pending`, which is not recorded yet.

        A verification that it makes void is not valid any longer.
        """
        self.producer_epoch = pending.producer_epoch
        self.coordinator_epoch = pending.coordinator_epoch
        self.last_timestamp = pending.last_timestamp
        self.current_txn_first_offset = pending.current_txn_first_offset
        self.batches = pending.batches
        if pending.voids_verification:
            self.known, self.voids_verification = None, True

    def append(self, batch: RecordBatch, base_offset: int) -> CompletedTxn | BatchMetadata | None:
        """Check a batch that gets `base_offset`, and add it.

        Returns the transaction that it ends. If it repeats an earlier batch, returns that one and changes
        nothing. Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber,
        InvalidTxnState, TransactionCoordinatorFenced, CorruptMessage.
        """
        count = batch.last_offset - batch.base_offset
        if not batch.is_control:
            # A group coordinator writes the offsets of a transaction without sequence numbers.
            is_numbered = batch.base_sequence != NO_SEQUENCE
            last_sequence = add_sequence(batch.base_sequence, count) if is_numbered else NO_SEQUENCE
            return self.append_data_batch(
                batch.producer_epoch,
                batch.base_sequence,
                last_sequence,
                batch.max_timestamp,
                base_offset,
                base_offset + count,
                batch.is_transactional,
            )
        record = next(iter(batch), None)
        if record is None:
            self.append_emptied_marker(batch.producer_epoch, batch.max_timestamp)
            return None
        kind = parse_control_key(record.key)
        if kind not in MARKERS:
            # Other control batches do not concern producers.
            return None
        return self.append_end_txn_marker(
            batch.producer_epoch,
            parse_coordinator_epoch(record.value),
            base_offset,
            batch.max_timestamp,
            kind == ControlRecordType.ABORT,
            2 if self.origin is AppendOrigin.COORDINATOR_TV2 else 0,
        )

    def append_data_batch(
        self,
        epoch: int,
        first_sequence: int,
        last_sequence: int,
        last_timestamp: int,
        first_offset: int,
        last_offset: int,
        is_transactional: bool,
    ) -> BatchMetadata | None:
        """Add a batch of records; call it in the order of the log.

        If a client repeats one of its last five batches, returns that one and changes nothing: the caller
        appends nothing and answers with its offsets. Otherwise returns None.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber, InvalidTxnState.
        """
        batches = self.batches
        if not batches or epoch != self.producer_epoch or first_sequence != batches[-1].last_sequence + 1:
            # The batch does not simply continue the sequence, but may still be valid.
            if self.origin is AppendOrigin.CLIENT:
                duplicate = self.find_duplicate(epoch, first_sequence, last_sequence)
                if duplicate is not None:
                    return duplicate
                self._check_epoch(epoch, self.producer_epoch, first_offset)
                self._check_verified(is_transactional, epoch, first_sequence, first_offset)
                self._check_sequence(epoch, first_sequence, last_sequence, first_offset)
            else:
                self._check_epoch(epoch, self.producer_epoch, first_offset)
                self._check_verified(is_transactional, epoch, first_sequence, first_offset)
            self._set_epoch(epoch)
        else:
            self._check_verified(is_transactional, epoch, first_sequence, first_offset)
        self.voids_verification = self.voids_verification or is_transactional
        if is_transactional != (self.current_txn_first_offset != NO_OFFSET):
            self._begin_txn(is_transactional, first_offset)
        batch = BatchMetadata(last_sequence, last_offset, last_offset - first_offset, last_timestamp)
        self.batches = (*self.batches[1 - BATCHES_TO_RETAIN :], batch)
        self.last_timestamp = last_timestamp
        return None

    def take_over(self, epoch: int, found: Sequence[tuple[int, int, int, int]], *, continues: bool) -> None:
        """Add batches of one epoch that are in the log already: the fields of each BatchMetadata.

        `continues`: whether they follow the retained batches directly, if those are of the same epoch.
        """
        added = [BatchMetadata(*each) for each in found]
        if self.in_transaction:
            self._begin_txn(False, added[0].first_offset)
        self._set_epoch(epoch)
        self.batches = (*(self.batches if continues else ()), *added)[-BATCHES_TO_RETAIN:]
        self.last_timestamp = added[-1].timestamp

    def append_end_txn_marker(
        self,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        is_abort: bool,
        transaction_version: int = 0,
    ) -> CompletedTxn | None:
        """Add a transaction marker; return the transaction that it ended, or None if none was open.

        From transaction version 2 on the coordinator raises the epoch with each transaction it ends. So a
        marker with the open transaction's own epoch is a late one of the previous transaction. Without an
        open transaction it may be a repeated marker (KAFKA-19999). The greatest epoch cannot be raised.

        Raises InvalidProducerEpoch, TransactionCoordinatorFenced.
        """
        raised = transaction_version >= 2 and self.in_transaction
        self._check_epoch(epoch, min(self.producer_epoch + raised, INT16_MAX), offset)
        if coordinator_epoch < self.coordinator_epoch and self.origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFenced(
                f"{self._whose(offset)}: marker of coordinator epoch {coordinator_epoch}, "
                f"after one of {self.coordinator_epoch}"
            )
        completed = None
        if self.in_transaction:
            completed = CompletedTxn(self.producer_id, self.current_txn_first_offset, offset, is_abort)
        # A later marker of version 2 belongs to the transaction before the one that is being verified.
        is_earlier = (
            transaction_version >= 2 and self.known is not None and epoch == self.known.producer_epoch
        )
        self.voids_verification = self.voids_verification or not is_earlier
        self._set_epoch(epoch)
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = timestamp
        self.current_txn_first_offset = NO_OFFSET
        return completed

    def append_emptied_marker(self, epoch: int, timestamp: int) -> None:
        """Add a control batch whose marker a cleaner has removed; only its epoch still counts."""
        if epoch > self.producer_epoch:
            self._set_epoch(epoch)
        self.last_timestamp = timestamp

    def _check_verified(self, is_transactional: bool, epoch: int, first_sequence: int, offset: int) -> None:
        """Raise unless a batch that begins a transaction was verified by the coordinator."""
        is_open = self.in_transaction and epoch == self.producer_epoch
        if self.given is None or not is_transactional or is_open:
            return
        if self.given is not self.known or self.known.producer_epoch != epoch:
            raise InvalidTxnState(f"{self._whose(offset)}: the coordinator does not know its transaction")
        starts_anew = self.known.begins_at_zero and self.producer_epoch == NO_PRODUCER_EPOCH
        if first_sequence > self.known.lowest_sequence or (starts_anew and first_sequence > 0):
            raise OutOfOrderSequenceNumber(
                f"{self._whose(offset)}: the transaction begins at sequence {self.known.lowest_sequence},"
                f" not {first_sequence}"
            )

    def _begin_txn(self, is_transactional: bool, first_offset: int) -> None:
        if not is_transactional:
            raise InvalidTxnState(f"{self._whose(first_offset)} writes outside of its open transaction")
        self.current_txn_first_offset = first_offset
        self.started = (*self.started, first_offset)

    def _set_epoch(self, epoch: int) -> None:
        """Continue in `epoch`. A new epoch begins its sequence numbers anew."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches = ()

    def _check_epoch(self, epoch: int, least: int, offset: int) -> None:
        # A follower accepts what its leader appended: the leader has checked it.
        if epoch < least and self.origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(f"{self._whose(offset)}: epoch {epoch}, where {least} is the least")

    def _check_sequence(self, epoch: int, first_sequence: int, last_sequence: int, offset: int) -> None:
        if self.producer_epoch == NO_PRODUCER_EPOCH:
            return  # an unknown or expired producer may be anywhere in its sequence
        expected = add_sequence(self.last_sequence, 1) if epoch == self.producer_epoch else 0
        if first_sequence == expected:
            return
        if epoch == self.producer_epoch and self.is_before_retained(last_sequence):
            raise DuplicateSequenceNumber(
                f"{self._whose(offset)}: sequence {first_sequence} to {last_sequence} of epoch {epoch} was "
                f"appended before, too long ago to name its offset"
            )
        raise OutOfOrderSequenceNumber(
            f"{self._whose(offset)}: sequence {first_sequence} of epoch {epoch}, where {expected} is next"
        )

    def _whose(self, offset: int) -> str:
        return f"producer {self.producer_id} at offset {offset}"
