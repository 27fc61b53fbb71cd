"""TransactionalAppends: appends of batches that belong to transactions, once their coordinators know them.

The version of a request decides its rules: since Produce 12 and TxnOffsetCommit 5 the leader adds a partition
to the transaction; before, the producer has added it, and the leader verifies that (KIP-890). No state of its
own; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplica.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager, Results, Verify
from kreplica.common.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    KreplicaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.types import TopicPartition
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification
from kreplica.record.batch_header import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    HEADER_BYTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kreplica.replica.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.produce_lane import LaneRequest

# The first versions of Produce that add partitions, and whose clients know TransactionAbortable.
PRODUCE_ADDS, PRODUCE_ABORTABLE = 12, 11
# A client sends a batch again after NotEnoughReplicas, as it would after these, which it does not expect.
ASK_AGAIN = (NetworkException, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)


class Producer(NamedTuple):
    """The header's fields of a transactional batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


def producer_of(records: Buffer) -> Producer | None:
    """Return the producer of a transaction's batch; None for any other batch, or too few bytes for one."""
    data = memoryview(records).cast("B")
    if len(data) < HEADER_BYTES or not data[ATTRIBUTES] & TRANSACTIONAL:
        return None
    return Producer(
        int.from_bytes(data[PRODUCER_ID], "big", signed=True),
        int.from_bytes(data[PRODUCER_EPOCH], "big", signed=True),
        int.from_bytes(data[BASE_SEQUENCE], "big", signed=True),
    )


class TransactionalAppends:
    """Verifies transactions for the partitions that `replicas` leads.

    `is_enabled`: transaction.partition.verification.enable. Without it, partitions are still added.
    """

    def __init__(
        self, replicas: ReplicaManager, manager: AddPartitionsToTxnManager, *, is_enabled: bool
    ) -> None:
        self._replicas = replicas
        self._manager = manager
        self._is_enabled = is_enabled

    def produce(
        self,
        transactional_id: str | None,
        producers: Mapping[TopicPartition, Producer],
        version: int,
        append: Callable[[dict[TopicPartition, Verification], Results], Any],
    ) -> None:
        """Verify the transactional batches of a Produce request, and call `append` with what came of it.

        `append(verifications, refused)`: appends with these verifications all but the refused partitions.
        """
        refusal: KreplicaError | None = None
        if transactional_id is None:
            refusal = TransactionalIdAuthorizationFailed("a transactional batch without a transactional id")
        elif len({each[:2] for each in producers.values()}) > 1:
            refusal = InvalidProducerIdMapping("batches of several producers or epochs in one request")
        if refusal is not None or transactional_id is None:
            append({}, dict.fromkeys(producers, refusal))
            return
        adds = version >= PRODUCE_ADDS
        if not adds and not self._is_enabled:
            append({}, {})
            return
        verifications: dict[TopicPartition, Verification] = {}
        unverified: Results = {}

        def begin() -> Verify | None:
            # It may begin a second time, in its line.
            verifications.clear()
            unverified.clear()
            unknown = []
            for at, producer in producers.items():
                try:
                    found = verifications[at] = self.start(at, producer, begins_at_zero=adds)
                    if found is not OPEN_ALREADY:
                        unknown.append(at)
                except KreplicaError as error:
                    # Without a proof it is not appended, although the partition may take it a moment later.
                    unverified[at] = error
            if not unknown:
                return None
            first = producers[unknown[0]]
            abortable = version >= PRODUCE_ABORTABLE
            return Verify(transactional_id, *first[:2], unknown, adds, abortable)

        def done(results: Results) -> None:
            refused = {at: error for at, error in results.items() if error is not None}
            refused = {at: _of_produce(error, adds) for at, error in refused.items()}
            append(verifications, {**unverified, **refused})

        self.verify(transactional_id, begin, done)

    def begin(self, request: LaneRequest, transactional_id: str) -> None:
        """Verify the batches of a request on its native way, and let it append them."""
        producers = {
            partition.topic_partition: Producer(*fields) for partition, *fields in request.producers()
        }
        self.produce(transactional_id, producers, request.version, request.append_verified)

    def verify(
        self, transactional_id: str, begin: Callable[[], Verify | None], done: Callable[[Results], None]
    ) -> None:
        """As AddPartitionsToTxnManager.ask, but at once if nothing is to be asked and nothing waits."""
        begun = None
        if not self._manager.has_line(transactional_id):
            begun = begin()
            if begun is None:
                done({})
                return
        self._manager.ask(transactional_id, begin, done, begun)

    def start(self, at: TopicPartition, producer: Producer, *, begins_at_zero: bool) -> Verification:
        """Return the verification of a batch. Raises NotLeaderOrFollower, InvalidProducerEpoch, and others of
        the partition.
        """
        log = self._replicas.partitions.get_or_error(at).require_leader()
        return log.start_verification(*producer, begins_at_zero=begins_at_zero)


def _of_produce(error: KreplicaError, adds: bool) -> KreplicaError:
    if isinstance(error, ASK_AGAIN) or (isinstance(error, ConcurrentTransactions) and not adds):
        return NotEnoughReplicas(str(error))
    return error
