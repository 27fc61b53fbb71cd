"""What went wrong in Kafka's transactions, as scripts. Each is one of Kafka's bugs, by its number.

A coordinator, its markers and its log are real, and so are the partitions' logs; the network between them is
the script. Histories that need whole nodes and random faults are in tests/simulation.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.types import AppendOrigin
from kreplica.coordinator.transaction_coordinator import COMPLETION_LINGER_MS
from kreplica.coordinator.transaction_metadata import LAST_EPOCH, TransactionMetadata
from kreplica.coordinator.transaction_records import TransactionLogKey, encode_key, encode_value
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build
from tests.support.logs import ManualClock, open_log
from tests.support.transaction_stage import AT, CONFIG, OTHER, TransactionStage, producer

PRODUCER = 7


@pytest.fixture
def stage() -> Any:
    return TransactionStage()


class Partition:
    """A partition's leader and its log."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.log: UnifiedLog = open_log(path, self.clock, **settings)

    def verify(self, sequence: int = 0, *, epoch: int = 0, adds: bool = False) -> Verification:
        """Begin to verify a batch, as its request arrives."""
        return self.log.start_verification(PRODUCER, epoch, sequence, begins_at_zero=adds)

    def append(self, sequence: int, verification: Verification, *, epoch: int = 0) -> None:
        """Append a batch whose verification has succeeded."""
        batch = build(
            [b"value"],
            now_ms=self.clock.now_ms,
            producer_id=PRODUCER,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.log.append_as_leader(batch, 0, verification=verification)

    def produce(self, sequence: int, *, epoch: int = 0) -> None:
        self.append(sequence, self.verify(sequence, epoch=epoch), epoch=epoch)

    def mark(
        self, *, epoch: int = 0, commit: bool = False, coordinator_epoch: int = 0, version: int = 0
    ) -> None:
        marker = build_end_transaction_marker(
            EndTransactionMarker(commit, coordinator_epoch),
            producer_id=PRODUCER,
            producer_epoch=epoch,
            timestamp_ms=self.clock.now_ms,
        )
        origin = AppendOrigin.COORDINATOR_TV2 if version >= 2 else AppendOrigin.COORDINATOR
        self.log.append_as_leader(marker, 0, origin=origin)

    @property
    def is_stable(self) -> bool:
        """Whether readers of committed records see all of the log."""
        self.log.update_high_watermark(self.log.log_end_offset)
        return self.log.last_stable_offset == self.log.log_end_offset


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "t-0")


def end_titles(stage: Any, name: str = "id") -> list[str]:
    """Return the stored states in which a transaction of the id has ended."""
    states = [each.state.title for stored, each in stage.stored() if stored == name and each is not None]
    return [title for title in states if title.startswith("Complete")]


# ---- batches that come late --------------------------------------------------------------------------------


def test_a_batch_that_was_delayed_past_the_abort_does_not_open_its_transaction_again(
    partition: Partition,
) -> None:
    """KAFKA-14402, KAFKA-12671: no coordinator knew the transaction, so it was never ended."""
    stage = TransactionStage(level=0)
    first = stage.init()
    stage.add(first)
    assert stage.end(first, commit=False) == first
    partition.mark()
    # The batch of the aborted transaction arrives, with an epoch that is current.
    late = partition.verify(0)
    assert isinstance(stage.verify(first, AT)[AT], errors.TransactionAbortable)
    assert partition.is_stable
    # It is not appended with the verification of an earlier question, either.
    partition.mark()
    with pytest.raises(errors.InvalidTxnState):
        partition.append(0, late)
    assert partition.is_stable


def test_a_marker_between_the_verification_and_the_append_makes_the_verification_void(
    partition: Partition,
) -> None:
    """KAFKA-14884: a flag stood for all verifications of a producer, so the next one let the batch in."""
    old = partition.verify(0)
    partition.mark()  # the transaction times out while the batch waits for its append
    new = partition.verify(0)
    with pytest.raises(errors.InvalidTxnState):
        partition.append(0, old)
    assert partition.is_stable
    partition.append(0, new)
    assert not partition.is_stable


def test_a_verification_does_not_outlive_a_truncation(partition: Partition) -> None:
    """KAFKA-14402 once more: what was cut off, or fetched anew, may have been the transaction's marker."""
    partition.log.append_records([b"of another leader"])
    waiting = partition.verify(0)
    partition.log.truncate_to(0)
    with pytest.raises(errors.InvalidTxnState):
        partition.append(0, waiting)
    assert partition.is_stable


def test_a_batch_of_an_open_transaction_that_ended_meanwhile_is_refused(partition: Partition) -> None:
    """KAFKA-14884: nothing had to be verified when the request arrived."""
    partition.produce(0)
    waiting = partition.verify(1)
    assert waiting is OPEN_ALREADY
    partition.mark()
    with pytest.raises(errors.InvalidTxnState):
        partition.append(1, waiting)
    assert partition.is_stable


def test_a_transaction_is_verified_while_the_coordinator_stores_another_step(stage: Any) -> None:
    """KAFKA-14904: the first batch failed, and those behind it were out of sequence."""
    first = stage.init()
    stage.add(first)
    stage.log.held = []
    stage.begin_add(first, OTHER)
    assert stage.verify(first, AT) == {AT: None}


def test_the_first_batch_of_a_transaction_is_the_one_with_the_lowest_sequence(partition: Partition) -> None:
    """KAFKA-14920: the second batch overtook the first one while both waited for the coordinator."""
    verification = partition.verify(0)
    assert partition.verify(1) is verification
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        partition.append(1, verification)
    partition.append(0, verification)
    partition.append(1, partition.verify(1))
    assert partition.log.log_end_offset == 2


def test_a_batch_of_an_old_epoch_is_told_from_one_that_is_not_verified(partition: Partition) -> None:
    """KAFKA-19690: its producer got InvalidTxnState, which is fatal, in place of InvalidProducerEpoch."""
    waiting = partition.verify(0)
    partition.mark(epoch=1, version=2)
    with pytest.raises(errors.InvalidProducerEpoch):
        partition.append(0, waiting)
    with pytest.raises(errors.InvalidProducerEpoch):
        partition.verify(0)


def test_a_producer_whose_transaction_timed_out_appends_no_more(stage: Any, partition: Partition) -> None:
    """KAFKA-6119: the abort kept the epoch, so what the producer wrote next was lost at its commit."""
    first = stage.init(timeout_ms=300)
    stage.add(first)
    partition.produce(0)
    stage.pass_time(500)
    [(_, _, _, epoch, commit)] = stage.brokers.taken
    partition.mark(epoch=epoch, commit=commit, version=2)
    with pytest.raises(errors.InvalidProducerEpoch):
        partition.verify(1)
    assert isinstance(stage.add(first), errors.ProducerFenced)
    assert isinstance(stage.end(first), errors.ProducerFenced)
    assert end_titles(stage) == ["CompleteAbort"]


# ---- markers -----------------------------------------------------------------------------------------------


def test_a_marker_that_is_sent_again_is_taken(partition: Partition) -> None:
    """KAFKA-19999: a coordinator that had loaded its state sent a marker for ever."""
    partition.produce(0)
    for coordinator_epoch in (3, 5):
        partition.mark(epoch=1, commit=True, coordinator_epoch=coordinator_epoch, version=2)
        assert partition.is_stable
    # One of the next transaction's epoch is late all the same while that transaction is open.
    partition.produce(0, epoch=1)
    with pytest.raises(errors.InvalidProducerEpoch):
        partition.mark(epoch=1, coordinator_epoch=5, version=2)
    assert not partition.is_stable


def test_an_answer_to_an_earlier_coordinator_ends_no_later_marking(stage: Any) -> None:
    """KAFKA-16352: it removed the markers of the current one, and the transaction stayed in Prepare."""
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    stage.end(first)
    stage.fail_over()
    stage.brokers.codes[AT] = deque([ErrorCode.none, ErrorCode.not_leader_or_follower])
    stage.brokers.release()
    stage.settle()
    assert stage.state() == "PrepareCommit"
    stage.pass_time(50 + COMPLETION_LINGER_MS)
    assert end_titles(stage) == ["CompleteCommit"]


def test_a_transaction_completes_once_however_many_answers_come_at_a_time(stage: Any) -> None:
    """KAFKA-10080: two answers found no marker left, and both appended the completion."""
    first = stage.init()
    stage.add(first, AT, OTHER)
    stage.brokers.held = []
    stage.end(first)
    stage.brokers.release()
    stage.pass_time(2 * COMPLETION_LINGER_MS)
    assert end_titles(stage) == ["CompleteCommit"]


@pytest.mark.parametrize("last", ["answered", "deleted"])
def test_the_last_marker_completes_the_transaction(stage: Any, last: str) -> None:
    """KAFKA-9777: nothing looked at the transaction after its last partition was done."""
    first = stage.init()
    stage.add(first, AT, OTHER)
    leader = stage.brokers.leaders.pop(OTHER)
    stage.end(first)
    stage.pass_time(200)
    assert stage.state() == "PrepareCommit"
    if last == "deleted":
        stage.brokers.deleted.add(OTHER)
    else:
        stage.brokers.leaders[OTHER] = leader
    stage.pass_time(50 + COMPLETION_LINGER_MS)
    assert end_titles(stage) == ["CompleteCommit"]


def test_a_marker_keeps_its_coordinator_epoch_alive(tmp_path: Path) -> None:
    """KAFKA-9144: a producer expired though it had a recent marker, and an old coordinator's was taken."""
    partition = Partition(tmp_path / "t-0")
    partition.produce(0)
    producers = partition.log.producers
    partition.clock.now_ms += producers.producer_id_expiration_ms - 1
    partition.mark(epoch=1, coordinator_epoch=5, version=2)
    partition.clock.now_ms += 10
    producers.remove_expired(partition.clock.now_ms)
    with pytest.raises(errors.TransactionCoordinatorFenced):
        partition.mark(epoch=2, coordinator_epoch=4, version=2)


def test_a_truncation_takes_back_the_transaction_that_it_removes(partition: Partition) -> None:
    """KAFKA-12153: the log went on at a last stable offset of records that were gone."""
    partition.log.append_records([b"before"])
    partition.produce(0)
    assert not partition.is_stable
    partition.log.truncate_to(1)
    assert partition.log.last_stable_offset == 1
    partition.log.append_records([b"behind"])
    assert partition.is_stable


# ---- steps of a coordinator --------------------------------------------------------------------------------


def test_a_transaction_that_is_open_while_the_feature_rises_ends_by_the_rules_it_began_with() -> None:
    """KAFKA-18227: the first partitions by the new rules were put into the last transaction of the old."""
    stage = TransactionStage(level=1)
    first = stage.init()
    stage.add(first, version=0)
    stage.level = 2
    assert stage.add(first, OTHER, version=0) is None
    # EndTxn 4: the epoch stays, and the partitions take a marker of it.
    assert stage.end(first, version=0) == first
    assert sorted(stage.brokers.taken) == [(1, AT, 7, 0, True), (2, OTHER, 7, 0, True)]
    # The producer raises its epoch before it begins by the new rules, so nothing of before can join.
    second = stage.init(producer=first)
    assert second == producer(7, 1)
    assert stage.add(second, version=2) is None
    assert isinstance(stage.add(first, OTHER, version=2), errors.ProducerFenced)
    assert stage.end(second, version=2) == producer(7, 2)
    assert stage.brokers.taken[2:] == [(1, AT, 7, 2, True)]


def test_the_end_of_a_transaction_without_records(stage: Any) -> None:
    """KAFKA-18401, KAFKA-18464: it reached a state that was illegal, or fenced its own producer."""
    first = stage.init()
    assert isinstance(stage.end(first), errors.InvalidTxnState)
    assert stage.end(first, commit=False) == producer(7, 1)
    assert stage.end(first, commit=False) == producer(7, 1)  # repeated
    assert stage.end(producer(7, 1), commit=False) == producer(7, 2)
    assert stage.add(producer(7, 2)) is None
    assert isinstance(stage.add(producer(7, 1), OTHER), errors.ProducerFenced)


def test_nothing_joins_a_transaction_whose_completion_is_being_stored(stage: Any) -> None:
    """KAFKA-18575: partitions were added to the transaction that was about to be complete."""
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    second = stage.end(first)
    assert isinstance(stage.add(second, OTHER), errors.ConcurrentTransactions)
    stage.log.held = []
    stage.brokers.release()
    stage.pass_time(COMPLETION_LINGER_MS)
    assert isinstance(stage.add(second, OTHER), errors.ConcurrentTransactions)
    stage.log.release()
    stage.settle()
    assert stage.add(second, OTHER) is None
    [last] = [each for _, each in stage.stored()[-1:]]
    assert (last.state.title, last.partitions) == ("Ongoing", {OTHER})


def last_epoch_producer(stage: Any, epoch: int = LAST_EPOCH) -> Any:
    """Let "id" be open in that epoch, with the partition AT."""
    stage.init()
    transaction = stage.coordinator._store.shards[0].transactions["id"]
    transaction.current = dataclasses.replace(transaction.current, producer_epoch=epoch)
    last = producer(7, epoch)
    assert stage.add(last) is None
    return last


def test_the_last_epoch_ends_with_another_producer_id_which_every_answer_names(stage: Any) -> None:
    """KAFKA-18660: the answer had the wrong id and epoch, and the new id was refused while it was stored."""
    last = last_epoch_producer(stage)
    stage.log.held = []
    ended = stage.begin_end(last)
    for early in (last, producer(8, 0)):
        assert isinstance(stage.end(early), errors.ConcurrentTransactions)
        assert isinstance(stage.add(early, OTHER), errors.ConcurrentTransactions)
    stage.log.release()
    stage.settle()
    assert ended.result(0) == producer(8, 0)
    assert stage.end(last) == producer(8, 0)
    assert stage.add(producer(8, 0)) is None


@pytest.mark.parametrize(
    ("before", "marked", "after"),
    [(0, 1, (7, 2)), (LAST_EPOCH - 1, LAST_EPOCH, (8, 0)), (LAST_EPOCH, LAST_EPOCH + 1, (8, 1))],
)
def test_a_fence_raises_the_epoch_once(stage: Any, before: int, marked: int, after: tuple[int, int]) -> None:
    """KAFKA-19367: the fence raised it, and so did the abort, which reached the epoch that is no client's."""
    last_epoch_producer(stage, before)
    assert isinstance(stage.begin_init().exception(0), errors.ConcurrentTransactions)
    assert stage.brokers.taken == [(1, AT, 7, marked, False)]
    assert stage.init() == producer(*after)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_transaction_of_the_last_epoch_times_out(level: int) -> None:
    """KAFKA-20090: its epoch could not be raised, so it stayed open for ever."""
    stage = TransactionStage(level=level)
    last_epoch_producer(stage)
    stage.pass_time(61_000)
    assert stage.state() == "CompleteAbort"
    assert stage.brokers.taken == [(1, AT, 7, LAST_EPOCH + 1, False)]
    assert stage.init().producer_epoch <= 1


def test_an_end_or_a_start_that_is_repeated_to_the_next_coordinator_is_no_zombies(stage: Any) -> None:
    """KAFKA-20357, KAFKA-20310: the epoch before the last raise was lost, and the producer was fenced."""
    first = stage.init()
    stage.add(first)
    assert stage.end(first) == producer(7, 1)
    stage.fail_over()
    assert stage.end(first) == producer(7, 1)
    assert stage.init(producer=first) == producer(7, 1)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_commit_that_loses_to_the_timeout_is_fenced(stage: Any, is_complete: bool) -> None:
    """KAFKA-20785: it got InvalidTxnState, which a client takes for a bug of its own."""
    first = stage.init(timeout_ms=300)
    stage.add(first)
    if not is_complete:
        stage.brokers.held = []
    stage.pass_time(500)
    if not is_complete:
        assert stage.state() == "PrepareAbort"
        assert isinstance(stage.end(first), errors.ConcurrentTransactions)
        stage.brokers.release()
        stage.settle()
    assert stage.state() == "CompleteAbort"
    assert isinstance(stage.end(first), errors.ProducerFenced)


def test_failed_attempts_to_fence_use_up_no_epochs(stage: Any) -> None:
    """KAFKA-9666: each of them raised the epoch, until none was left."""
    first = stage.init()
    stage.add(first)
    stage.log.error = errors.NotEnoughReplicas()
    for _ in range(5):
        assert stage.begin_init().exception(0) is not None
        stage.pass_time(200)
    stage.log.error = None
    stage.pass_time(200)
    assert stage.brokers.taken == [(1, AT, 7, 1, False)]
    assert stage.init() == producer(7, 2)


@pytest.mark.parametrize("version", [0, 2])
def test_no_client_ends_a_transaction_with_an_epoch_of_the_future(stage: Any, version: int) -> None:
    """KAFKA-9600: only the coordinator itself may be ahead of the stored epoch."""
    first = stage.init()
    stage.add(first, version=version)
    for commit in (False, True):
        assert isinstance(stage.end(producer(7, 1), commit=commit, version=version), errors.ProducerFenced)
    assert stage.state() == "Ongoing"


def test_a_step_that_is_stored_again_meets_no_other_step(stage: Any) -> None:
    """KAFKA-5416: the id counted as free between two attempts, and its state became illegal."""
    first = stage.init()
    stage.add(first)
    stage.log.error = errors.NotEnoughReplicasAfterAppend()
    assert isinstance(stage.end(first), errors.CoordinatorNotAvailable)
    stage.pass_time(50)
    for other in (stage.begin_init().exception(0), stage.add(first, OTHER), stage.end(first, commit=False)):
        assert isinstance(other, errors.ConcurrentTransactions)
    stage.log.error = None
    stage.pass_time(150)
    assert end_titles(stage) == ["CompleteCommit"]


# ---- what a coordinator loads ------------------------------------------------------------------------------


def test_nothing_of_an_earlier_leadership_is_used(stage: Any) -> None:
    """KAFKA-9307: the state of before was still there, and was taken for the current one."""
    first = stage.init()
    stage.add(first)
    stage.coordinator.resign(0)
    stage.settle()
    # Another broker leads meanwhile, and completes the transaction.
    stage.log.leader_epoch = 1
    other = TransactionStage(log=stage.log)
    assert other.end(first) == producer(7, 1)
    assert other.init() == producer(7, 2)
    stage.log.leader_epoch = 2
    stage.coordinator.elect(0, 2)
    stage.settle()
    assert stage.state() == "Empty"
    assert isinstance(stage.end(first), errors.ProducerFenced)
    assert stage.add(producer(7, 2)) is None


def test_a_log_that_ends_with_a_gap_is_loaded(stage: Any) -> None:
    """KAFKA-9065: compaction had removed its last records, and the load waited for them."""
    first = stage.init()
    stage.log.end += 5
    stage.fail_over()
    assert stage.state() == "Empty"
    assert stage.add(first) is None


# ---- ids that expire ---------------------------------------------------------------------------------------


def expiring() -> Any:
    return TransactionStage(dataclasses.replace(CONFIG, transactional_id_expiration_ms=5_000))


def test_an_id_whose_expiry_was_not_stored_is_not_busy() -> None:
    """KAFKA-7519: it answered ConcurrentTransactions for ever."""
    stage = expiring()
    first = stage.init()
    stage.log.error = errors.NotEnoughReplicas()
    stage.pass_time(7_000)
    stage.log.error = None
    assert stage.add(first) is None


def test_many_ids_expire() -> None:
    """KAFKA-13099: one batch of tombstones was larger than the log takes, and nothing ever expired."""
    stage = expiring()
    names = [f"{number:030000d}" for number in range(50)]
    for name in names:
        stage.init(name)
    taken = stage.log.append

    def limited(partition: int, leader_epoch: int, batch: bytes, *others: Any) -> Any:
        assert len(batch) < 1_000_000, "max.message.bytes"
        return taken(partition, leader_epoch, batch, *others)

    stage.log.append = limited
    stage.pass_time(8_000)
    assert {stage.state(name).__class__ for name in names} == {errors.TransactionalIdNotFound}


def test_an_id_without_an_epoch_expires_as_the_others() -> None:
    """KAFKA-14880: an id of epoch -1 raised an error, which ended the expiry of all."""
    stage = expiring()
    for name, epoch in (("a", -1), ("b", 3)):
        metadata = TransactionMetadata(
            transactional_id=name, producer_id=5, producer_epoch=epoch, timeout_ms=1, last_update_ms=0
        )
        key = encode_key(TransactionLogKey(transactional_id=name))
        stage.coordinator._store.append(
            stage.coordinator._store.shards[0], [(key, encode_value(metadata.record(), 1))], lambda *_: None
        )
    stage.fail_over()
    assert stage.state("a") == stage.state("b") == "Empty"
    stage.pass_time(8_000)
    assert stage.stored()[-2:] == [("a", None), ("b", None)]
    assert isinstance(stage.state("b"), errors.TransactionalIdNotFound)
