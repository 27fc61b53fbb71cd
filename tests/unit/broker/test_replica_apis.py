"""WriteTxnMarkers to simulated brokers: by a coordinator, and by an operator for a hanging transaction."""

from __future__ import annotations

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaStorageError,
    KreplicaError,
    NotCoordinator,
)
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.administration import DescribeLogDirsRequest
from kreplica.common.messages.data import DescribeProducersRequest, DescribeProducersRequestTopicRequest
from kreplica.common.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.record.control import parse_end_transaction_marker
from kreplica.sim.cluster import LOG_CONFIG
from tests.support.batches import build
from tests.support.replicas import Replicas

NOW_MS = 1_600_000_000_000


def begin(at: Replicas, producer: int, *, epoch: int = 0, sequence: int = 0, number: int = 0) -> None:
    """Append a transactional batch as a producer of Kafka would, past the handlers, which refuse it."""
    records = build(
        [b"open"],
        now_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    done = at.manager().append_records({at.partitions[number]: records})
    at.settle()
    assert [response.error for response in done.result(0).values()] == [None]


def marker(
    producer: int,
    *numbers: int,
    epoch: int = 0,
    commit: bool = False,
    coordinator_epoch: int = 0,
    version: int = 0,
    topic: str = "t",
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=numbers or (0,)),),
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )


def write(at: Replicas, *markers: WritableTxnMarker, broker: int = 1) -> list[tuple[int, int, ErrorCode]]:
    """Producer id, partition and error of each result."""
    answer = at.broker(broker).handle(WriteTxnMarkersRequest(markers=markers))
    at.settle()
    return [
        (result.producer_id, partition.partition_index, partition.error_code)
        for result in answer.result(0).markers
        for topic in result.topics
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("with_disks", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_ends_a_transaction_on_all_replicas(commit: bool, with_disks: bool) -> None:
    at = Replicas(partitions=2, with_disks=with_disks)
    begin(at, 7)
    begin(at, 7, number=1)
    begin(at, 8, number=1)
    assert at.partition().local_log.last_stable_offset == 0
    found = write(at, marker(7, 0, 1, commit=commit, coordinator_epoch=5), marker(8, 1, commit=commit))
    assert found == [(7, 0, ErrorCode.none), (7, 1, ErrorCode.none), (8, 1, ErrorCode.none)]
    at.pass_time(1_000)
    for broker in at.ids:
        log = at.partition(broker).local_log
        assert (log.high_watermark, log.last_stable_offset, log.producers.has_transactions) == (2, 2, False)
        *_, last = log.batches(0)
        (record,) = last
        written = parse_end_transaction_marker(record.key, record.value)
        assert (written.commit, written.coordinator_epoch) == (commit, 5)
    assert at.partition(1, 1).local_log.last_stable_offset == 4


def test_the_answer_waits_for_the_in_sync_replicas() -> None:
    at = Replicas()
    begin(at, 7)
    at.cluster.kill(2)
    answer = at.broker().handle(WriteTxnMarkersRequest(markers=(marker(7),)))
    at.settle()
    assert not answer.done()
    at.pass_time(60_000)
    assert answer.done()


def test_markers_that_are_too_old_are_fenced() -> None:
    at = Replicas()
    begin(at, 7, epoch=3)
    assert write(at, marker(7, epoch=2)) == [(7, 0, ErrorCode.invalid_producer_epoch)]
    assert write(at, marker(7, epoch=3, version=2)) == [(7, 0, ErrorCode.invalid_producer_epoch)]
    assert write(at, marker(7, epoch=4, version=2, coordinator_epoch=9)) == [(7, 0, ErrorCode.none)]
    begin(at, 7, epoch=4)
    found = write(at, marker(7, epoch=5, version=2, coordinator_epoch=8))
    assert found == [(7, 0, ErrorCode.transaction_coordinator_fenced)]
    assert at.partition().local_log.last_stable_offset == 2


def test_each_partition_has_its_own_error() -> None:
    at = Replicas(partitions=2)
    begin(at, 7)
    found = write(at, marker(7, 0, 5), marker(7, topic="x"))
    assert found == [
        (7, 0, ErrorCode.none),
        (7, 5, ErrorCode.unknown_topic_or_partition),
        (7, 0, ErrorCode.unknown_topic_or_partition),
    ]
    assert write(at, marker(7), broker=2) == [(7, 0, ErrorCode.not_leader_or_follower)]
    assert write(at) == []


def test_a_marker_without_an_open_transaction_changes_nothing_for_readers() -> None:
    at = Replicas()
    assert write(at, marker(7)) == [(7, 0, ErrorCode.none)]
    assert write(at, marker(7)) == [(7, 0, ErrorCode.none)]
    at.pass_time(1_000)
    assert at.partition().local_log.last_stable_offset == 2


def test_offsets_of_a_transaction_are_not_committed_behind_the_coordinators_back() -> None:
    at = Replicas()
    found = write(at, marker(7, 3, topic="__consumer_offsets", commit=True), marker(7, commit=True))
    assert found == [(7, 3, ErrorCode.invalid_txn_state), (7, 0, ErrorCode.none)]


@pytest.mark.parametrize(("producer", "epoch"), [(-1, 0), (7, -1)])
def test_a_marker_of_no_producer_is_refused(producer: int, epoch: int) -> None:
    at = Replicas()
    begin(at, 8)
    found = write(at, marker(producer, epoch=epoch), marker(8))
    assert found == [(producer, 0, ErrorCode.invalid_request), (8, 0, ErrorCode.none)]
    assert at.partition().local_log.log_end_offset == 2


def test_a_marker_needs_enough_replicas_in_sync() -> None:
    at = Replicas(settings={"min.insync.replicas": 2})
    begin(at, 7)
    for broker in (2, 3):
        at.cluster.kill(broker)
    at.elect(1, isr=[1])
    at.settle()
    assert write(at, marker(7)) == [(7, 0, ErrorCode.not_enough_replicas)]
    assert at.partition().local_log.log_end_offset == 1


def test_a_marker_that_too_few_replicas_take_is_not_confirmed() -> None:
    at = Replicas(settings={"min.insync.replicas": 2})
    begin(at, 7)
    for broker in (2, 3):
        at.cluster.kill(broker)
    answer = at.broker().handle(WriteTxnMarkersRequest(markers=(marker(7),)))
    at.pass_time(120_000)
    [found] = answer.result(0).markers[0].topics[0].partitions
    assert found.error_code is ErrorCode.request_timed_out
    assert (at.partition().local_log.log_end_offset, at.partition().local_log.last_stable_offset) == (2, 0)


def test_a_partition_whose_directory_is_offline_takes_no_marker() -> None:
    at = Replicas()
    begin(at, 7)
    at.manager().partitions.take_offline(at.partitions[0])
    assert write(at, marker(7)) == [(7, 0, ErrorCode.kafka_storage_error)]
    assert producers(at, "t", 0) == (ErrorCode.kafka_storage_error, [])


# ---- offsets of groups -------------------------------------------------------------------------------------

OFFSETS = TopicPartition("__consumer_offsets", 0)


class Groups:
    """A coordinator of groups; `ended` lists (partition, producer, commit). Ends wait in `waiting`."""

    def __init__(self) -> None:
        self.refusal: KreplicaError | None = None
        self.ended: list[tuple[int, int, bool]] = []
        self.waiting: list[Future[None]] = []

    def check_partition(self, partition: int) -> Future[None]:
        assert partition == OFFSETS.partition
        return resolved(None) if self.refusal is None else failed(self.refusal)

    def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> Future[None]:
        self.ended.append((partition, producer_id, commit))
        future: Future[None] = Future()
        self.waiting.append(future)
        return future


def with_groups(at: Replicas) -> Groups:
    """Let broker 1 lead a partition of groups' offsets, and coordinate their groups."""
    at.controller.add_topic(OFFSETS.topic, LOG_CONFIG)
    at.notify(at.controller.create(OFFSETS, at.ids))
    at.settle()
    groups = Groups()
    at.broker().replica_apis.offsets = groups
    return groups


def of_offsets(*, commit: bool = True) -> WritableTxnMarker:
    return marker(7, 0, topic=OFFSETS.topic, commit=commit)


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_of_offsets_is_answered_once_fetches_show_the_outcome(commit: bool) -> None:
    """KAFKA-17507: it was answered before, and the next consumer of the group began at a stale offset."""
    at = Replicas()
    groups = with_groups(at)
    answer = at.broker().handle(WriteTxnMarkersRequest(markers=(of_offsets(commit=commit), marker(8))))
    at.settle()
    log = at.manager().partitions.get_or_error(OFFSETS).local_log
    assert (log.log_end_offset, groups.ended) == (1, [(0, 7, commit)])
    assert not answer.done()
    groups.waiting[0].set_result(None)
    at.settle()
    codes = [each.error_code for result in answer.result(0).markers for each in result.topics[0].partitions]
    assert codes == [ErrorCode.none, ErrorCode.none]


@pytest.mark.parametrize("error", [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator])
def test_offsets_are_completed_by_the_loaded_coordinator_only(error: type[KreplicaError]) -> None:
    # The transaction's coordinator is to look for the leader again.
    moved = ErrorCode.not_leader_or_follower
    at = Replicas()
    groups = with_groups(at)
    groups.refusal = error()
    assert write(at, of_offsets(), marker(8)) == [(7, 0, moved), (8, 0, ErrorCode.none)]
    assert at.manager().partitions.get_or_error(OFFSETS).local_log.log_end_offset == 0
    assert groups.ended == []
    # It may also lose the partition after the marker was appended: the next one finds the marker in the log.
    groups.refusal = None
    answer = at.broker().handle(WriteTxnMarkersRequest(markers=(of_offsets(),)))
    at.settle()
    groups.waiting[0].set_exception(error())
    at.settle()
    assert answer.result(0).markers[0].topics[0].partitions[0].error_code is moved


# ---- DescribeProducers -------------------------------------------------------------------------------------


def producers(at: Replicas, topic: str, number: int, *, broker: int = 1) -> tuple[ErrorCode, list[object]]:
    """Return the error, and producer id, epoch, coordinator epoch and first open offset of each producer."""
    asked = DescribeProducersRequestTopicRequest(name=topic, partition_indexes=(number,))
    answer = at.broker(broker).handle(DescribeProducersRequest(topics=(asked,)))
    at.settle()
    [described] = answer.result(0).topics
    assert described.name == topic
    [found] = described.partitions
    assert found.partition_index == number
    return found.error_code, [
        (each.producer_id, each.producer_epoch, each.coordinator_epoch, each.current_txn_start_offset)
        for each in found.active_producers
    ]


def test_every_replica_lists_its_producers() -> None:
    at = Replicas()
    begin(at, 7, epoch=2)
    begin(at, 8)
    write(at, marker(8, coordinator_epoch=5))
    at.pass_time(1_000)
    for broker in at.ids:
        found = producers(at, "t", 0, broker=broker)
        assert found == (ErrorCode.none, [(7, 2, -1, 0), (8, 0, 5, -1)])


@pytest.mark.parametrize(
    ("topic", "number", "code"),
    [
        ("not a topic", 0, ErrorCode.invalid_topic_exception),
        ("unknown", 0, ErrorCode.unknown_topic_or_partition),
        ("t", 1, ErrorCode.unknown_topic_or_partition),
        ("t", -1, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_producers_of_what_is_not_here(topic: str, number: int, code: ErrorCode) -> None:
    assert producers(Replicas(), topic, number) == (code, [])


def test_producers_of_a_replica_that_another_broker_has_or_whose_disk_has_failed() -> None:
    at = Replicas()
    [moved] = at.partitions
    at.manager(2).partitions.remove(moved)
    assert producers(at, "t", 0, broker=2) == (ErrorCode.not_leader_or_follower, [])
    at.manager(3).partitions.take_offline(moved)
    assert producers(at, "t", 0, broker=3) == (ErrorCode.kafka_storage_error, [])


# ---- DescribeLogDirs ------------------------------------------------------------------------------------


def test_directories_are_described_with_their_space(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas()
    logs = at.manager().log_manager
    monkeypatch.setattr(logs, "disk_space", lambda _: (1000, 400))
    [found] = at.broker(1).handle(DescribeLogDirsRequest(topics=None)).result(0).results
    assert (found.error_code, found.total_bytes, found.usable_bytes) == (ErrorCode.none, 1000, 400)
    assert [topic.name for topic in found.topics] == ["t"]


def test_a_directory_whose_disk_does_not_answer_has_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas()

    def fails(path: str) -> tuple[int, int]:
        raise KafkaStorageError(f"looking at {path}: Input/output error")

    monkeypatch.setattr(at.manager().log_manager, "disk_space", fails)
    [found] = at.broker(1).handle(DescribeLogDirsRequest(topics=None)).result(0).results
    assert (found.error_code, found.topics) == (ErrorCode.kafka_storage_error, ())
    assert (found.total_bytes, found.usable_bytes) == (-1, -1)
