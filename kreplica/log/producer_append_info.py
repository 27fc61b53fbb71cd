"""One producer's part in one append: checked batch by batch, then handed to the ProducerStateManager.

Nothing changes before `ProducerStateManager.update`, so a failed append leaves no trace. The rules are those
of KIP-98 (idempotence and transactions), with KIP-360 (an epoch may rise at any time) and the marker rule of
KIP-890's second transaction version. Used by one thread, under the log's lock.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.errors import (
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kreplica.common.types import INT16_MAX, NO_OFFSET, NO_PRODUCER_EPOCH, AppendOrigin
from kreplica.log.producer_state_entry import (
    BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerStateEntry,
    add_sequence,
)


class CompletedTxn(NamedTuple):
    """A transaction that a marker ended. `last_offset`: the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppendInfo(ProducerStateEntry):
    """A producer's entry as an append makes it: what it was, and batch by batch what comes to it.

    `started`: the first offsets of the transactions that the append begins.
    """

    __slots__ = ("origin", "started")

    def __init__(self, current: ProducerStateEntry, origin: AppendOrigin) -> None:
        self.producer_id = current.producer_id
        self.producer_epoch = current.producer_epoch
        self.coordinator_epoch = current.coordinator_epoch
        self.last_timestamp = current.last_timestamp
        self.current_txn_first_offset = current.current_txn_first_offset
        self.batches = current.batches
        self.origin = origin
        self.started: tuple[int, ...] = ()

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
        """Take a batch of records in, in the order of the log.

        Returns None; or, if a client sends one of its last five batches again, that batch: then nothing has
        changed, nothing is to be appended, and the offsets in it are the answer.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber, InvalidTxnState.
        """
        batches = self.batches
        if not batches or epoch != self.producer_epoch or first_sequence != batches[-1].last_sequence + 1:
            # Not the plain continuation of what was there; it may still be right.
            if self.origin is AppendOrigin.CLIENT:
                duplicate = self.find_duplicate(epoch, first_sequence, last_sequence)
                if duplicate is not None:
                    return duplicate
                self._check_epoch(epoch, self.producer_epoch, first_offset)
                self._check_sequence(epoch, first_sequence, last_sequence, first_offset)
            else:
                self._check_epoch(epoch, self.producer_epoch, first_offset)
            self._set_epoch(epoch)
        if is_transactional != (self.current_txn_first_offset != NO_OFFSET):
            self._begin_txn(is_transactional, first_offset)
        batch = BatchMetadata(last_sequence, last_offset, last_offset - first_offset, last_timestamp)
        self.batches = (*self.batches[1 - BATCHES_TO_RETAIN :], batch)
        self.last_timestamp = last_timestamp
        return None

    def append_end_txn_marker(
        self,
        epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        is_abort: bool,
        transaction_version: int = 0,
    ) -> CompletedTxn | None:
        """Take a transaction marker in; returns what it ended, None if no transaction was open.

        From transaction version 2 on the coordinator raises the epoch with each transaction it ends, so a
        marker of the open transaction's own epoch is a late one, of the transaction before. With none open it
        may be a repeated one (KAFKA-19999), and the last epoch of all cannot be raised. Raises
        InvalidProducerEpoch, TransactionCoordinatorFenced.
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
        self._set_epoch(epoch)
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = timestamp
        self.current_txn_first_offset = NO_OFFSET
        return completed

    def append_emptied_marker(self, epoch: int, timestamp: int) -> None:
        """Take in a control batch whose marker a cleaner has let go: it stayed for the epoch alone."""
        if epoch > self.producer_epoch:
            self._set_epoch(epoch)
        self.last_timestamp = timestamp

    def _begin_txn(self, is_transactional: bool, first_offset: int) -> None:
        if not is_transactional:
            raise InvalidTxnState(f"{self._whose(first_offset)} writes outside of its open transaction")
        self.current_txn_first_offset = first_offset
        self.started = (*self.started, first_offset)

    def _set_epoch(self, epoch: int) -> None:
        """Go on in `epoch`; in another one than before, sequences begin anew."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches = ()

    def _check_epoch(self, epoch: int, least: int, offset: int) -> None:
        # A follower takes what its leader took: the leader has checked, or was right not to.
        if epoch < least and self.origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(f"{self._whose(offset)}: epoch {epoch}, where {least} is the least")

    def _check_sequence(self, epoch: int, first_sequence: int, last_sequence: int, offset: int) -> None:
        if self.producer_epoch == NO_PRODUCER_EPOCH:
            return  # nothing is known of the producer, perhaps no more: it may be anywhere in its sequence
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
