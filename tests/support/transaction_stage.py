"""A transaction coordinator under a virtual clock, over a log in memory; brokers that answer markers."""

from __future__ import annotations

from collections import deque

from kreplica._core.records import RecordBatch
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future, resolved
from kreplica.common.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kreplica.common.types import TopicPartition
from kreplica.coordinator.transaction_config import TransactionConfig
from kreplica.coordinator.transaction_coordinator import (
    InitProducerId,
    ProducerIdAndEpoch,
    TransactionCoordinator,
)
from kreplica.coordinator.transaction_markers import TransactionMarkers
from kreplica.coordinator.transaction_metadata import TransactionMetadata
from kreplica.coordinator.transaction_records import decode_key, decode_value
from tests.support.group_stage import MemoryLog
from tests.support.virtual import VirtualMachine

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = TransactionConfig(
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
)


class Brokers:
    """Leaders of partitions that take markers: `taken` lists (broker, partition, producer, epoch, commit).

    `leaders`: by partition; one that is missing has no leader. `codes`: answers to the next markers of a
    partition, instead of success. Requests wait while `held` is a list.
    """

    def __init__(self):
        self.leaders = {AT: 1, OTHER: 2}
        self.deleted = set()
        self.taken = []
        self.codes = {}
        self.held = None
        self.requests = 0

    def send(self, broker_id, request):
        self.requests += 1
        if self.held is None:
            return resolved(self.answer(broker_id, request))
        future = Future()
        self.held.append((future, broker_id, request))
        return future

    def release(self):
        held, self.held = self.held, None
        for future, broker_id, request in held:
            future.set_result(self.answer(broker_id, request))

    def answer(self, broker_id, request):
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results = []
                for number in topic.partition_indexes:
                    at = TopicPartition(topic.name, number)
                    code = self.codes.get(at, deque()).popleft() if self.codes.get(at) else ErrorCode.none
                    if code is ErrorCode.none:
                        ended = marker.producer_id, marker.producer_epoch, marker.transaction_result
                        self.taken.append((broker_id, at, *ended))
                    results.append(WritableTxnMarkerPartitionResult(partition_index=number, error_code=code))
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(results)))
            markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(topics)))
        return WriteTxnMarkersResponse(markers=tuple(markers))


class TransactionStage(VirtualMachine):
    """A coordinator that leads __transaction_state-0 in leader epoch 0. `level`: of transaction.version."""

    def __init__(self, config=CONFIG, log=None, level=2):
        super().__init__()
        self.log = log or MemoryLog()
        self.brokers = Brokers()
        self.level = level
        self.next_producer_id = 7
        self.coordinator = TransactionCoordinator(
            config,
            self.log,
            TransactionMarkers(
                self.brokers.send,
                leader=self.brokers.leaders.get,
                exists=lambda at: at not in self.brokers.deleted,
                loop=self.loop,
            ),
            partition_count=lambda: 1,
            new_producer_id=self._new_producer_id,
            feature_level=lambda: self.level,
            clock=self.clock,
            loop=self.loop,
        )
        self.coordinator.startup()
        self.coordinator.elect(0, self.log.leader_epoch)
        self.settle()

    def _new_producer_id(self):
        self.next_producer_id += 1
        return resolved(self.next_producer_id - 1)

    def begin_init(self, name="id", timeout_ms=60_000, producer=(-1, -1)):
        future = self.coordinator.init_producer_id(InitProducerId(name, timeout_ms, *producer))
        self.settle()
        return future

    def init(self, name="id", **options):
        return self.begin_init(name, **options).result(0)

    def begin_add(self, producer, *partitions, name="id", version=None, wait_ms=0):
        wanted = self.level if version is None else version
        future = self.coordinator.add_partitions(name, producer, partitions or (AT,), wanted, wait_ms=wait_ms)
        self.settle()
        return future

    def add(self, producer, *partitions, **options):
        """Return the error, None if the partitions were added."""
        return self.begin_add(producer, *partitions, **options).exception(0)

    def begin_end(self, producer, *, commit=True, name="id", version=None):
        wanted = self.level if version is None else version
        future = self.coordinator.end_transaction(name, producer, wanted, commit=commit)
        self.settle()
        return future

    def end(self, producer, **options):
        """Return the producer's id and epoch from now on, or the error."""
        future = self.begin_end(producer, **options)
        return future.exception(0) or future.result(0)

    def verify(self, producer, *partitions, name="id"):
        future = self.coordinator.verify_partitions(name, producer, partitions)
        self.settle()
        return future.exception(0) or future.result(0)

    def state(self, name="id"):
        """Return the title of the id's state, or its error."""
        future = self.coordinator.describe(name)
        self.settle()
        error = future.exception(0)
        return error if isinstance(error, KreplicaError) else future.result(0).state.title

    def stored(self):
        """Return the states in the log, in order: id and metadata, None for a tombstone."""
        return [each for batch in self.stored_batches() for each in batch]

    def stored_batches(self):
        """Return the states of each batch in the log."""
        return [[self._stored(record) for record in RecordBatch(data)] for data in self.log.batches]

    def _stored(self, record):
        name = decode_key(record.key).transactional_id
        value = None if record.value is None else decode_value(record.value)
        return name, None if value is None else TransactionMetadata.of_record(name, value)

    def fail_over(self):
        """Let another broker lead, then this one again: it must load its state from the log."""
        self.coordinator.resign(0)
        self.settle()
        self.log.leader_epoch += 2
        self.coordinator.elect(0, self.log.leader_epoch)
        self.settle()


def producer(producer_id, epoch):
    return ProducerIdAndEpoch(producer_id, epoch)
