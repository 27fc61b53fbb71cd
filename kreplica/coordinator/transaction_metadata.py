"""TransactionMetadata: the state of one transactional id, and its legal transitions.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ──┐
      ▲          │                                           ├──▶ Ongoing, Empty
      │          └──────▶ PrepareAbort ───▶ CompleteAbort ───┘

A metadata object does not change. A transition returns the next one, or raises the error for the client, and
changes nothing: the coordinator appends the next one to __transaction_state and replaces the current one
when all in-sync replicas have it. So a failed append leaves no trace, and repeating it raises no epoch twice
(KAFKA-9666).

Two sets of rules exist (KIP-890). Under transaction version 2 the end of each transaction raises the
producer's epoch, so that a late batch of it cannot join the next one. Before, only a new or fenced producer
raises it. Pure functions; any thread may call.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Self

from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidTxnState,
    ProducerFenced,
)
from kreplica.common.types import (
    INT16_MAX,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)
from kreplica.coordinator.transaction_records import PartitionsSchema, TransactionLogValue

# The last epoch of a client. The one above it is only for markers and fences.
LAST_EPOCH = INT16_MAX - 1
# The timeout of a transaction that never times out (KIP-939).
NO_TIMEOUT_MS = INT32_MAX


class TransactionState(IntEnum):
    """The states, by their numbers on disk. Dead and PrepareEpochFence of Kafka's are never stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name that Kafka's tools show."""
        return "".join(part.capitalize() for part in self.name.split("_"))


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
COMPLETE = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
AT_REST = COMPLETE | {EMPTY}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id. Times in ms since 1970, -1 for none.

    `last_producer_epoch`: the epoch before the last raise, if a client may repeat the request that raised it;
    it is not stored. `previous_producer_id`, `next_producer_id`: of the change to another producer id when
    the epochs are exhausted. `version`: the transaction version by which the transaction ends.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    version: int = 0

    # ---- a new producer ---------------------------------------------------------------------------------

    def check_identity(self, producer_id: int, producer_epoch: int) -> None:
        """Check the producer id that InitProducerId names; -1 if it names none (KIP-360).

        Raises ProducerFenced.
        """
        is_known = (
            producer_id in (NO_PRODUCER_ID, self.producer_id)
            or self.producer_epoch == NO_PRODUCER_EPOCH
            or (producer_id == self.previous_producer_id and producer_epoch >= LAST_EPOCH)
        )
        if not is_known:
            raise self._fenced(producer_id, producer_epoch)

    def needs_producer_id(self, expected_epoch: int) -> bool:
        """Whether `initialized` needs a new producer id, since the epochs of this one are exhausted."""
        return self.producer_epoch >= LAST_EPOCH and expected_epoch in (
            NO_PRODUCER_EPOCH,
            self.producer_epoch,
        )

    def initialized(
        self, expected_epoch: int, timeout_ms: int, now_ms: int, new_producer_id: int = NO_PRODUCER_ID
    ) -> Self:
        """Return the state for a producer that starts: with the next epoch, or with another producer id.

        `expected_epoch`: the epoch that the producer has, -1 for none. A repeated request gets the epoch that
        the first one has raised (KIP-360). Raises ProducerFenced.
        """
        assert self.state in AT_REST, self
        producer_id, epoch, last = self.producer_id, self.producer_epoch, self.last_producer_epoch
        if self.needs_producer_id(expected_epoch):
            assert new_producer_id >= 0, self
            producer_id, epoch, last = new_producer_id, 0, expected_epoch
        elif expected_epoch == NO_PRODUCER_EPOCH or epoch == NO_PRODUCER_EPOCH:
            epoch, last = epoch + 1, NO_PRODUCER_EPOCH
        elif expected_epoch == epoch:
            epoch, last = epoch + 1, epoch
        elif expected_epoch != last:
            raise self._fenced(self.producer_id, expected_epoch)
        return replace(
            self,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            state=EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )

    # ---- the partitions ---------------------------------------------------------------------------------

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Check who adds to the transaction. Raises InvalidProducerIdMapping, ProducerFenced."""
        if producer_id != self.producer_id:
            raise self._other_producer(producer_id)
        if producer_epoch != self.producer_epoch:
            raise self._fenced(producer_id, producer_epoch)

    def with_partitions(
        self,
        producer_id: int,
        producer_epoch: int,
        added: Collection[TopicPartition],
        now_ms: int,
        version: int,
    ) -> Self:
        """Return the state with more partitions; the same object if it has all of them.

        Raises InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions.
        """
        self.check_producer(producer_id, producer_epoch)
        if self.state in PREPARED:
            raise self._is_being_completed()
        if self.state is ONGOING and self.partitions.issuperset(added):
            return self
        is_new = self.state is not ONGOING
        return replace(
            self,
            state=ONGOING,
            previous_producer_id=self.producer_id,
            partitions=frozenset(added) if is_new else self.partitions.union(added),
            start_ms=now_ms if is_new else self.start_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def check_contains(self, producer_id: int, producer_epoch: int) -> None:
        """Check whether a broker may ask which partitions the transaction has (KIP-890).

        Raises as `with_partitions`.
        """
        self.check_producer(producer_id, producer_epoch)
        if self.state in PREPARED:
            raise self._is_being_completed()

    # ---- the end ----------------------------------------------------------------------------------------

    def ended_by_client(self, producer_id: int, producer_epoch: int, version: int, *, commit: bool) -> bool:
        """Return whether the transaction that EndTxn names is ended already: the request is a repetition.

        Returns False if it is to be ended now. Raises InvalidProducerIdMapping, ProducerFenced,
        ConcurrentTransactions while it is being completed, InvalidTxnState.
        """
        if version >= 2:
            return self._ended_by_epoch(producer_id, producer_epoch, commit)
        if producer_id != self.producer_id:
            raise self._other_producer(producer_id)
        if producer_epoch != self.producer_epoch:
            raise self._fenced(producer_id, producer_epoch)
        if self.state is ONGOING:
            return False
        if self.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
            return True
        if self.state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
            raise self._is_being_completed()
        raise self._wrong_state(commit)

    def _ended_by_epoch(self, producer_id: int, producer_epoch: int, commit: bool) -> bool:
        # Transaction version 2: the epoch shows whether the request is about the current transaction or about
        # one that has ended before (KIP-890).
        has_rotated = (
            producer_id == self.previous_producer_id != self.producer_id
            and producer_epoch == LAST_EPOCH
            and self.producer_epoch == 0
        )
        if producer_id != self.producer_id and not has_rotated:
            raise self._other_producer(producer_id)
        is_current = producer_epoch == self.producer_epoch and not has_rotated
        # An end under the earlier version has raised no epoch: the request is a fenced producer's then, also
        # where Kafka takes it for a repetition, and gives it the epoch of its successor.
        has_risen = has_rotated or producer_epoch + 1 == self.producer_epoch
        is_repetition = has_risen and self.version >= 2
        state = self.state
        if is_current and (state is ONGOING or (state in AT_REST and not commit)):
            # An abort without a transaction raises the epoch, too: batches of it may be on their way.
            return False
        if is_current and state in AT_REST:
            raise self._wrong_state(commit)
        if self.producer_epoch == INT16_MAX and state in COMPLETE:
            # A fence by the rules of before has raised the epoch to the one that is no client's.
            raise self._fenced(producer_id, producer_epoch)
        if is_repetition and state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
            return True
        if is_repetition and state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
            raise self._is_being_completed()
        if is_repetition and not commit and state in (PREPARE_COMMIT, COMPLETE_COMMIT):
            raise self._wrong_state(commit)
        # A commit of what the coordinator has aborted in the meantime is the request of a fenced producer
        # (KAFKA-20785; Kafka 4.3 answers InvalidTxnState).
        raise self._fenced(producer_id, producer_epoch)

    def needs_next_producer_id(self, version: int) -> bool:
        """Whether `prepared` needs a new producer id, since it raises the last epoch (KAFKA-20090)."""
        return version >= 2 and self.producer_epoch >= LAST_EPOCH

    def prepared(
        self,
        version: int,
        now_ms: int,
        *,
        commit: bool,
        fences: bool = False,
        next_producer_id: int = NO_PRODUCER_ID,
    ) -> Self:
        """Return the state in which the outcome is decided, and the markers are to be written.

        `fences`: the coordinator aborts, because of a timeout or another producer, so the epoch rises under
        any version. The greatest epoch cannot rise.
        """
        assert self.state is ONGOING or (version >= 2 and not commit and self.state in AT_REST), self
        raises = (version >= 2 or fences) and self.producer_epoch < INT16_MAX
        return replace(
            self,
            state=PREPARE_COMMIT if commit else PREPARE_ABORT,
            producer_epoch=self.producer_epoch + raises,
            last_producer_epoch=self.producer_epoch if version >= 2 else NO_PRODUCER_EPOCH,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            partitions=self.partitions if self.state is ONGOING else frozenset(),
            start_ms=self.start_ms if self.state is ONGOING else now_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def completed(self, now_ms: int) -> Self:
        """Return the state in which all partitions have their marker."""
        assert self.state in PREPARED, self
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0 if rotates else self.producer_epoch,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def waiting_for(self, left: Collection[TopicPartition]) -> Self:
        """Return the state as tools show it, with the partitions that have no marker yet."""
        return replace(self, partitions=frozenset(left))

    def open_ms(self, now_ms: int) -> int:
        """Return for how long a transaction has been open or ending; -1 without one."""
        return -1 if self.state in AT_REST else now_ms - self.start_ms

    def is_timed_out(self, open_ms: int) -> bool:
        """Whether the coordinator is to abort the transaction, which has been open for `open_ms`."""
        return self.state is ONGOING and self.timeout_ms != NO_TIMEOUT_MS and self.timeout_ms < open_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id may be forgotten."""
        return self.state in AT_REST and self.last_update_ms <= now_ms - expiration_ms

    # ---- on disk ----------------------------------------------------------------------------------------

    def record(self, version: int = 1) -> TransactionLogValue:
        """Return the value to store, in this version of the record's schema."""
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self.partitions):
            topics.setdefault(topic, []).append(number)
        return TransactionLogValue(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.state),
            transaction_partitions=None
            if self.state is EMPTY
            else tuple(
                PartitionsSchema(topic=topic, partition_ids=tuple(numbers))
                for topic, numbers in topics.items()
            ),
            transaction_last_update_timestamp_ms=self.last_update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            previous_producer_id=self.previous_producer_id if version else NO_PRODUCER_ID,
            next_producer_id=self.next_producer_id if version else NO_PRODUCER_ID,
            client_transaction_version=self.version if version else 0,
        )

    @classmethod
    def of_record(cls, transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
        """Return the stored state. Raises InvalidRecord for a state that is never stored.

        Under transaction version 2 the epoch before the last raise follows from the state, so a request that
        is repeated to another coordinator is recognized (KAFKA-20357).
        """
        try:
            state = TransactionState(value.transaction_status)
        except ValueError:
            raise InvalidRecord(f"{transactional_id}: unknown state {value.transaction_status}") from None
        ends_raised = value.client_transaction_version >= 2 and state not in (EMPTY, ONGOING)
        return cls(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            last_producer_epoch=value.producer_epoch - 1 if ends_raised else NO_PRODUCER_EPOCH,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            timeout_ms=value.transaction_timeout_ms,
            state=state,
            partitions=frozenset(
                TopicPartition(each.topic, number)
                for each in value.transaction_partitions or ()
                for number in each.partition_ids
            ),
            start_ms=value.transaction_start_timestamp_ms,
            last_update_ms=value.transaction_last_update_timestamp_ms,
            version=value.client_transaction_version,
        )

    # ---- errors -----------------------------------------------------------------------------------------

    def _fenced(self, producer_id: int, producer_epoch: int) -> ProducerFenced:
        return ProducerFenced(
            f"{self.transactional_id}: producer {producer_id} with epoch {producer_epoch}, where"
            f" {self.producer_id} with epoch {self.producer_epoch} is the current one"
        )

    def _other_producer(self, producer_id: int) -> InvalidProducerIdMapping:
        return InvalidProducerIdMapping(
            f"{self.transactional_id}: producer {producer_id}, but the id belongs to {self.producer_id}"
        )

    def _is_being_completed(self) -> ConcurrentTransactions:
        return ConcurrentTransactions(f"{self.transactional_id}: the transaction is in {self.state.title}")

    def _wrong_state(self, commit: bool) -> InvalidTxnState:
        what = "commit" if commit else "abort"
        return InvalidTxnState(f"{self.transactional_id}: cannot {what} in {self.state.title}")
