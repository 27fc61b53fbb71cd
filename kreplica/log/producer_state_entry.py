"""What a log knows of one producer: its epoch, its last batches, its open transaction.

An entry does not change once a ProducerStateManager has it: each append puts a new one in its place.
"""

from __future__ import annotations

from typing import NamedTuple

from kreplica.common.types import INT32_MAX, NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

# As many batches as a producer may have in flight: any of them may come again after a lost answer.
BATCHES_TO_RETAIN = 5

NO_COORDINATOR_EPOCH = -1


def add_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` steps after `sequence` (before it, if negative). 0 follows the greatest."""
    return (sequence + count) & INT32_MAX


class BatchMetadata(NamedTuple):
    """A batch that was appended. `offset_delta`: its last offset less its first; its sequences likewise."""

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
    """One producer's state.

    `batches`: the last five at most of this epoch, oldest first. `current_txn_first_offset`: where the open
    transaction begins, or -1. `last_timestamp`: of the last batch or transaction marker, or -1.
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
        """The sequence of the last record, or -1 where this epoch has written none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """The offset of the last record, or -1 where this epoch has written none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    @property
    def in_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        """The retained batch with just these sequence numbers: the one asked about was appended before."""
        if epoch == self.producer_epoch:
            for batch in self.batches:
                if last_sequence == batch.last_sequence and first_sequence == batch.first_sequence:
                    return batch
        return None

    def is_before_retained(self, last_sequence: int) -> bool:
        """Whether a batch up to `last_sequence` must have been appended, longer ago than is retained.

        Certain only with all five retained: a producer has no more than five in flight, so one from before
        them was answered or is being repeated. With fewer, the log may have missed it.
        """
        if len(self.batches) < BATCHES_TO_RETAIN:
            return False
        distance = add_sequence(self.batches[0].first_sequence, -last_sequence)
        return 0 < distance <= INT32_MAX // 2

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in ProducerStateEntry.__slots__)
        return f"{type(self).__name__}({', '.join(fields)})"
