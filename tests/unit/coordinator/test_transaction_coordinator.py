"""A coordinator and its producers: transactions, fencing, time, and what is left after a fail-over."""

from __future__ import annotations

import dataclasses
from collections import deque

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.coordinator import transaction_coordinator
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import COMPLETION_LINGER_MS
from kreplica.coordinator.transaction_metadata import LAST_EPOCH
from kreplica.coordinator.transaction_records import TransactionLogKey, encode_key
from tests.support.transaction_stage import AT, CONFIG, OTHER, TransactionStage, producer


@pytest.fixture
def stage():
    return TransactionStage()


def at_last_epoch(stage):
    """Return a producer at the last epoch that a client gets."""
    stage.init()
    [(name, metadata)] = stage.stored()
    stage.log.batches.clear()
    transaction = stage.coordinator._store.shards[0].transactions[name]
    transaction.current = dataclasses.replace(metadata, producer_epoch=LAST_EPOCH)
    return producer(7, LAST_EPOCH)


def titles(stage):
    """Return the stored states, in order."""
    return [metadata.state.title for _, metadata in stage.stored()]


# ---- one transaction ---------------------------------------------------------------------------------------


def test_a_transaction_is_committed(stage):
    first = stage.init()
    assert first == producer(7, 0)
    assert stage.add(first, AT, OTHER) is None
    assert stage.state() == "Ongoing"
    # Since version 2 the end raises the epoch.
    assert stage.end(first) == producer(7, 1)
    assert sorted(stage.brokers.taken) == [(1, AT, 7, 1, True), (2, OTHER, 7, 1, True)]
    assert stage.state() == "CompleteCommit"
    stage.pass_time(COMPLETION_LINGER_MS)
    assert titles(stage) == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert stage.add(producer(7, 1)) is None


def test_a_transaction_of_an_older_client_keeps_its_epoch():
    stage = TransactionStage(level=0)
    first = stage.init()
    assert stage.add(first) is None
    assert stage.end(first, commit=False) == first
    assert stage.brokers.taken == [(1, AT, 7, 0, False)]
    assert stage.end(first, commit=False) == first
    assert isinstance(stage.end(first), errors.InvalidTxnState)


def test_an_answer_waits_until_the_outcome_is_stored(stage):
    first = stage.init()
    stage.add(first)
    stage.log.held = []
    ended = stage.begin_end(first)
    assert not ended.done()
    assert stage.brokers.taken == []
    assert isinstance(stage.end(first), errors.ConcurrentTransactions)
    assert isinstance(stage.add(first, OTHER), errors.ConcurrentTransactions)
    stage.log.release()
    stage.settle()
    assert ended.result(0) == producer(7, 1)
    assert stage.brokers.taken == [(1, AT, 7, 1, True)]


@pytest.mark.parametrize("level", [0, 2])
def test_a_request_may_wait_until_the_previous_transaction_is_completed(level):
    stage = TransactionStage(level=level)
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    following = stage.end(first)
    added = stage.begin_add(following, AT, wait_ms=100)
    another = stage.begin_add(following, OTHER, wait_ms=100)
    zombie = stage.begin_add(producer(7, 9), wait_ms=100)
    stage.pass_time(50)
    assert not added.done()
    stage.brokers.release()
    stage.settle()
    assert added.result(0) is None
    assert another.result(0) is None
    assert isinstance(zombie.exception(0), errors.ProducerFenced)
    stage.pass_time(200)
    [*_, (_, metadata)] = stage.stored()
    assert (metadata.state.title, metadata.partitions) == ("Ongoing", {AT, OTHER})


def waits_for_its_turn(stage, *partitions):
    """Let a request for the next transaction wait for the markers of the last one; return its answer."""
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    return stage.begin_add(stage.end(first), *partitions, wait_ms=100)


def test_the_transaction_that_waits_is_stored_with_the_end_of_the_last_one(stage):
    added = waits_for_its_turn(stage, OTHER)
    before = len(stage.log.batches)
    stage.log.held = []
    stage.brokers.release()
    stage.settle()
    assert len(stage.log.batches) == before + 1
    assert titles(stage)[-2:] == ["CompleteCommit", "Ongoing"]
    assert not added.done()
    assert isinstance(stage.end(producer(7, 1)), errors.ConcurrentTransactions)
    # Its time to wait has passed, but it waits no longer.
    stage.pass_time(200)
    assert not added.done()
    stage.log.release()
    stage.settle()
    assert added.result(0) is None
    assert stage.state() == "Ongoing"
    stage.fail_over()
    assert stage.state() == "Ongoing"
    assert stage.end(producer(7, 1)) == producer(7, 2)


@pytest.mark.parametrize("following", ["Ongoing", "Empty", "PrepareAbort"])
def test_a_completion_is_stored_with_the_state_that_follows_it(stage, following):
    first = stage.init()
    stage.add(first)
    second = stage.end(first)
    assert titles(stage)[-1] == "PrepareCommit"
    before = len(stage.log.batches)
    if following == "Ongoing":
        assert stage.add(second, OTHER) is None
    elif following == "Empty":
        assert stage.init() == producer(7, 2)
    else:
        assert stage.end(second, commit=False) == producer(7, 2)
    assert len(stage.log.batches) == before + 1
    assert titles(stage)[-2:] == ["CompleteCommit", following]
    stage.pass_time(2 * COMPLETION_LINGER_MS)
    assert titles(stage).count("CompleteCommit") == 1


def test_a_completion_that_no_state_follows_is_stored_alone(stage):
    first = stage.init()
    stage.add(first)
    stage.end(first)
    stage.pass_time(COMPLETION_LINGER_MS - 1)
    assert titles(stage)[-1] == "PrepareCommit"
    assert stage.state() == "CompleteCommit"
    stage.pass_time(1)
    assert titles(stage)[-1] == "CompleteCommit"


@pytest.mark.parametrize("level", [0, 2])
def test_the_next_coordinator_completes_what_was_not_stored(level):
    stage = TransactionStage(level=level)
    first = stage.init()
    stage.add(first)
    following = stage.end(first)
    assert titles(stage)[-1] == "PrepareCommit"
    stage.fail_over()
    stage.pass_time(2 * COMPLETION_LINGER_MS)
    # Partitions take a marker twice.
    epoch = following.producer_epoch
    assert stage.brokers.taken == [(1, AT, 7, epoch, True), (1, AT, 7, epoch, True)]
    assert titles(stage)[-2:] == ["PrepareCommit", "CompleteCommit"]
    assert stage.add(following) is None


def test_a_transaction_that_is_too_large_does_not_take_the_completion_with_it(stage):
    first = stage.init()
    stage.add(first)
    second = stage.end(first)
    stage.log.error = errors.MessageTooLarge()
    assert isinstance(stage.add(second), errors.UnknownServerError)
    stage.log.error = None
    stage.pass_time(1_000)
    assert titles(stage)[-2:] == ["PrepareCommit", "CompleteCommit"]
    assert stage.add(second, OTHER) is None


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_transaction_that_fits_only_without_the_completion_is_stored_after_it(stage, fails_first):
    first = stage.init()
    stage.add(first)
    second = stage.end(first)
    if fails_first:
        stage.log.error = errors.NotEnoughReplicas()
        assert isinstance(stage.add(second, OTHER), errors.CoordinatorNotAvailable)
        stage.log.error = None
    stage.log.max_bytes = max(map(len, stage.log.batches)) + 20
    before = len(stage.log.batches)
    if fails_first:
        stage.pass_time(1_000)
        assert stage.state() == "Ongoing"
    assert stage.add(second, OTHER) is None
    assert len(stage.log.batches) == before + 2
    assert titles(stage)[-3:] == ["PrepareCommit", "CompleteCommit", "Ongoing"]
    assert stage.end(second) == producer(7, 2)


def test_a_transaction_that_waits_for_the_completion_alone_fails_with_it(stage):
    first = stage.init()
    stage.add(first)
    second = stage.end(first)
    stage.log.max_bytes = max(map(len, stage.log.batches)) + 20
    stage.log.error = errors.NotEnoughReplicas()
    assert isinstance(stage.add(second, OTHER), errors.CoordinatorNotAvailable)
    stage.log.error = None
    stage.pass_time(1_000)
    assert titles(stage)[-2:] == ["PrepareCommit", "CompleteCommit"]
    assert stage.add(second, OTHER) is None


def test_both_records_are_repeated_until_they_are_stored(stage):
    added = waits_for_its_turn(stage)
    stage.log.error = errors.NotEnoughReplicasAfterAppend()
    stage.brokers.release()
    stage.settle()
    assert isinstance(added.exception(0), errors.CoordinatorNotAvailable)
    stage.log.error = None
    stage.pass_time(1_000)
    assert titles(stage)[-2:] == ["CompleteCommit", "Ongoing"]
    assert stage.add(producer(7, 1), AT) is None


@pytest.mark.parametrize("error", [errors.MessageTooLarge, errors.RecordListTooLarge])
def test_the_end_is_stored_alone_if_the_transaction_that_waits_is_too_large(stage, error):
    added = waits_for_its_turn(stage)
    stage.log.error = error()
    stage.brokers.release()
    stage.settle()
    assert isinstance(added.exception(0), errors.UnknownServerError)
    stage.log.error = None
    stage.pass_time(1_000)
    assert stage.state() == "CompleteCommit"
    assert stage.add(producer(7, 1)) is None


def test_a_request_waits_only_for_a_while(stage):
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    added = stage.begin_add(stage.end(first), wait_ms=100)
    stage.pass_time(150)
    assert isinstance(added.exception(0), errors.ConcurrentTransactions)
    stage.brokers.release()
    stage.settle()
    assert stage.state() == "CompleteCommit"


def test_after_one_that_has_waited_in_vain_no_request_waits_for_the_same_completion(stage):
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    second = stage.end(first)
    added = stage.begin_add(second, wait_ms=20)
    stage.pass_time(20)
    assert isinstance(added.exception(0), errors.ConcurrentTransactions)
    assert isinstance(stage.begin_add(second, wait_ms=20).exception(0), errors.ConcurrentTransactions)
    stage.brokers.release()
    stage.settle()
    assert stage.add(second) is None
    stage.brokers.held = []
    waiting = stage.begin_add(stage.end(second), wait_ms=20)
    assert not waiting.done()


def test_a_waiting_request_fails_when_another_broker_takes_over(stage):
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    added = stage.begin_add(stage.end(first), wait_ms=100)
    stage.coordinator.resign(0)
    stage.settle()
    assert isinstance(added.exception(0), errors.NotCoordinator)
    stage.pass_time(200)


def test_a_repeated_end_gets_the_same_answer(stage):
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    assert stage.end(first) == producer(7, 1)
    assert isinstance(stage.end(first), errors.ConcurrentTransactions)
    stage.brokers.release()
    stage.settle()
    assert stage.end(first) == producer(7, 1)
    assert isinstance(stage.end(first, commit=False), errors.InvalidTxnState)


@pytest.mark.parametrize("level", [0, 2])
def test_the_next_transaction_of_a_producer_waits_for_the_markers_of_the_last_one(level):
    stage = TransactionStage(level=level)
    first = stage.init()
    stage.add(first)
    stage.brokers.held = []
    following = stage.end(first)
    # The producer is not fenced, so an answer that says so would end it.
    assert isinstance(stage.end(following, commit=False), errors.ConcurrentTransactions)
    assert isinstance(stage.add(following), errors.ConcurrentTransactions)
    assert isinstance(stage.begin_init().exception(0), errors.ConcurrentTransactions)
    stage.brokers.release()
    stage.settle()
    assert stage.add(following) is None


def test_the_next_transaction_of_another_producer_id_waits_for_the_markers_of_the_last_one(stage):
    last = at_last_epoch(stage)
    stage.add(last)
    stage.brokers.held = []
    following = stage.end(last)
    assert following == producer(8, 0)
    assert isinstance(stage.add(following), errors.ConcurrentTransactions)
    assert isinstance(stage.end(following, commit=False), errors.ConcurrentTransactions)
    stage.brokers.release()
    stage.settle()
    assert stage.add(following) is None


def test_an_unknown_id_is_refused(stage):
    assert isinstance(stage.add(producer(7, 0)), errors.InvalidProducerIdMapping)
    assert isinstance(stage.end(producer(7, 0)), errors.InvalidProducerIdMapping)
    assert isinstance(stage.state(), errors.TransactionalIdNotFound)
    assert isinstance(stage.state(""), errors.InvalidRequest)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(stage, timeout_ms):
    assert isinstance(stage.begin_init(timeout_ms=timeout_ms).exception(0), errors.InvalidTransactionTimeout)
    assert isinstance(stage.begin_init("", timeout_ms=timeout_ms).exception(0), errors.InvalidRequest)
    stage.coordinator.resign(0)
    assert isinstance(stage.begin_init(timeout_ms=timeout_ms).exception(0), errors.InvalidTransactionTimeout)
    assert isinstance(stage.begin_init().exception(0), errors.NotCoordinator)
    assert stage.stored() == []


def test_a_broker_verifies_the_partitions_of_a_transaction(stage):
    first = stage.init()
    stage.add(first)
    found = stage.verify(first, AT, OTHER)
    assert found[AT] is None
    assert isinstance(found[OTHER], errors.TransactionAbortable)
    assert isinstance(stage.verify(producer(7, 1), AT), errors.ProducerFenced)
    stage.brokers.held = []
    stage.end(first)
    assert isinstance(stage.verify(producer(7, 1), AT), errors.ConcurrentTransactions)


# ---- fencing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 2])
def test_a_new_producer_aborts_the_transaction_of_the_previous_one(level):
    stage = TransactionStage(level=level)
    zombie = stage.init()
    stage.add(zombie)
    assert isinstance(stage.begin_init().exception(0), errors.ConcurrentTransactions)
    # The marker has the next epoch, so the zombie can append nothing behind it.
    assert stage.brokers.taken == [(1, AT, 7, 1, False)]
    assert stage.init() == producer(7, 2)
    assert isinstance(stage.end(zombie), errors.ProducerFenced)
    assert isinstance(stage.add(zombie), errors.ProducerFenced)


def test_a_transaction_times_out(stage):
    first = stage.init(timeout_ms=300)
    stage.add(first)
    stage.pass_time(250)
    assert stage.state() == "Ongoing"
    stage.pass_time(200)
    assert stage.state() == "CompleteAbort"
    assert stage.brokers.taken == [(1, AT, 7, 1, False)]
    assert isinstance(stage.end(first), errors.ProducerFenced)


@pytest.mark.parametrize("with_fail_over", [False, True])
def test_a_transaction_times_out_although_the_date_was_set_back(stage, with_fail_over):
    """It stayed open for as long as the dates differed, and readers of its partitions waited."""
    stage.add(stage.init(timeout_ms=500))
    stage.pass_time(200)
    stage.clock.jump_date(-3_600_000)
    if with_fail_over:
        stage.fail_over()
    stage.pass_time(200)
    assert stage.state() == "Ongoing"
    stage.pass_time(500)
    assert stage.state() == "CompleteAbort"


def test_a_transaction_that_was_looked_at_does_not_time_out_because_the_date_was_set_forward(stage):
    stage.add(stage.init(timeout_ms=500))
    stage.pass_time(200)
    stage.clock.jump_date(3_600_000)
    stage.pass_time(200)
    assert stage.state() == "Ongoing"
    stage.pass_time(300)
    assert stage.state() == "CompleteAbort"


@pytest.mark.parametrize("commit", [False, True])
def test_a_zombies_end_is_no_repetition_of_its_successors_under_the_earlier_version(stage, commit):
    """It was answered with the id and epoch of its successor, whose end had not raised the epoch."""
    zombie = stage.init()
    successor = stage.init()
    stage.add(successor, version=0)
    assert stage.end(successor, commit=commit, version=0) == successor
    assert isinstance(stage.end(zombie, commit=commit), errors.ProducerFenced)
    stage.fail_over()
    assert isinstance(stage.end(zombie, commit=commit), errors.ProducerFenced)


def test_exhausted_epochs_end_with_another_producer_id(stage):
    last = at_last_epoch(stage)
    stage.add(last)
    assert stage.end(last) == producer(8, 0)
    assert stage.brokers.taken == [(1, AT, 7, LAST_EPOCH + 1, True)]
    assert stage.end(last) == producer(8, 0)
    assert stage.add(producer(8, 0)) is None


@pytest.mark.parametrize("level", [0, 2])
def test_a_transaction_of_the_last_epoch_times_out_too(level):
    stage = TransactionStage(level=level)
    last = at_last_epoch(stage)
    stage.add(last)
    stage.pass_time(61_000)
    assert stage.state() == "CompleteAbort"
    assert stage.brokers.taken == [(1, AT, 7, LAST_EPOCH + 1, False)]
    assert stage.init() == producer(8, 0 if level == 0 else 1)


def test_no_producer_gets_the_epoch_of_a_fence(stage):
    # The feature was lowered, and the client still follows version 2.
    stage.level = 1
    last = at_last_epoch(stage)
    stage.add(last, version=2)
    stage.pass_time(61_000)
    assert stage.brokers.taken == [(1, AT, 7, LAST_EPOCH + 1, False)]
    assert isinstance(stage.end(last, commit=False, version=2), errors.ProducerFenced)
    assert stage.init() == producer(8, 0)


def test_an_id_waits_for_a_producer_id():
    stage = TransactionStage()
    blocks = deque([Future(), Future()])
    stage.coordinator._new_producer_id = lambda: blocks[0]
    first, second = stage.begin_init(), stage.begin_init()
    blocks.popleft().set_result(70)
    stage.settle()
    # Both have asked before the id existed; one of them came first.
    results = [first.exception(0) or first.result(0), second.exception(0) or second.result(0)]
    assert results[0] == producer(70, 0)
    assert isinstance(results[1], errors.ConcurrentTransactions)
    refused = stage.begin_init("another")
    blocks.popleft().set_exception(errors.CoordinatorLoadInProgress())
    stage.settle()
    assert isinstance(refused.exception(0), errors.CoordinatorLoadInProgress)


# ---- failures ----------------------------------------------------------------------------------------------


def test_an_append_of_unknown_outcome_is_repeated(stage, caplog):
    first = stage.init()
    stage.add(first)
    stage.log.error = errors.NotEnoughReplicasAfterAppend()
    assert isinstance(stage.end(first), errors.CoordinatorNotAvailable)
    assert isinstance(stage.end(first, commit=False), errors.ConcurrentTransactions)
    stage.pass_time(950)
    # One warning for a step, however often it is tried.
    [warning] = caplog.records
    assert "state PrepareCommit cannot be stored, trying until it is" in warning.getMessage()
    stage.log.error = None
    stage.pass_time(150)
    # The outcome is the one that was asked for first.
    assert stage.brokers.taken == [(1, AT, 7, 1, True)]
    assert stage.end(first) == producer(7, 1)


@pytest.mark.parametrize("error", [errors.StorageFull, errors.NotLeaderOrFollower])
def test_an_append_is_repeated_while_the_broker_stays_the_coordinator(stage, error):
    """A full disk leaves the leadership where it is: the id answered ConcurrentTransactions for ever."""
    first = stage.init()
    stage.add(first)
    stage.log.error = error()
    assert isinstance(stage.end(first), errors.NotCoordinator)
    stage.log.error = None
    stage.pass_time(150)
    assert stage.brokers.taken == [(1, AT, 7, 1, True)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_sends_the_markers_again(stage, commit):
    first = stage.init()
    stage.add(first, AT, OTHER)
    stage.brokers.codes[OTHER] = deque([ErrorCode.not_leader_or_follower] * 5)
    assert stage.end(first, commit=commit) == producer(7, 1)
    assert stage.state() == ("PrepareCommit" if commit else "PrepareAbort")
    stage.fail_over()
    stage.pass_time(500)
    title = "CompleteCommit" if commit else "CompleteAbort"
    assert stage.state() == title
    assert stage.brokers.taken.count((1, AT, 7, 1, commit)) == 2
    # The old coordinator has stopped, so OTHER got the marker from the new one only.
    assert stage.brokers.taken.count((2, OTHER, 7, 1, commit)) == 1
    assert [each.state.title for _, each in stage.stored()].count(title) == 1


def test_a_replaced_coordinator_answers_nothing_and_stores_nothing(stage):
    first = stage.init()
    stage.add(first)
    stage.log.held = []
    ended = stage.begin_end(first)
    stage.coordinator.resign(0)
    stage.settle()
    assert isinstance(stage.add(first), errors.NotCoordinator)
    stage.log.release()
    stage.settle()
    assert isinstance(ended.exception(0), errors.NotCoordinator)
    assert stage.brokers.taken == []
    # The record is in the log, so the outcome stands.
    stage.log.leader_epoch += 1
    stage.coordinator.elect(0, stage.log.leader_epoch)
    stage.settle()
    assert stage.state() == "CompleteCommit"


def test_a_repeated_end_is_recognized_after_a_fail_over(stage):
    first = stage.init()
    stage.add(first)
    assert stage.end(first) == producer(7, 1)
    stage.fail_over()
    assert stage.end(first) == producer(7, 1)
    assert stage.init(producer=first) == producer(7, 1)


def test_an_id_whose_first_state_is_not_stored_yet_is_busy(stage):
    stage.log.held = []
    started = stage.begin_init()
    assert isinstance(stage.add(producer(7, 0)), errors.ConcurrentTransactions)
    assert isinstance(stage.begin_init().exception(0), errors.ConcurrentTransactions)
    stage.log.release()
    stage.settle()
    assert started.result(0) == producer(7, 0)


@pytest.mark.parametrize(
    ("raised", "returned"),
    [
        (errors.UnknownTopicOrPartition, errors.CoordinatorNotAvailable),
        (errors.NotEnoughReplicas, errors.CoordinatorNotAvailable),
        (errors.NotEnoughReplicasAfterAppend, errors.CoordinatorNotAvailable),
        (errors.RequestTimedOut, errors.CoordinatorNotAvailable),
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.FencedLeaderEpoch, errors.NotCoordinator),
        (errors.KafkaStorageError, errors.NotCoordinator),
        (errors.MessageTooLarge, errors.UnknownServerError),
        (errors.RecordListTooLarge, errors.UnknownServerError),
    ],
)
@pytest.mark.parametrize("step", ["init", "add", "end"])
def test_a_client_gets_an_error_that_it_knows_for_an_append_that_failed(stage, step, raised, returned):
    first = None if step == "init" else stage.init()
    if step == "end":
        stage.add(first)
    stage.log.error = raised()
    found = {
        "init": lambda: stage.begin_init().exception(0),
        "add": lambda: stage.add(first),
        "end": lambda: stage.end(first),
    }[step]()
    assert type(found) is returned


@pytest.mark.parametrize("error", [errors.MessageTooLarge, errors.RecordListTooLarge])
def test_a_state_that_is_too_large_is_given_up_and_the_id_is_free(stage, error):
    first = stage.init()
    stage.add(first)
    stage.log.error = error()
    assert isinstance(stage.add(first, OTHER), errors.UnknownServerError)
    assert isinstance(stage.begin_init("another").exception(0), errors.UnknownServerError)
    stage.log.error = None
    stage.pass_time(1_000)
    assert [(name, metadata.state.title) for name, metadata in stage.stored()] == [
        *(("id", "Empty"), ("id", "Ongoing"))
    ]
    assert stage.end(first, commit=False) == producer(7, 1)
    assert stage.init("another").producer_epoch == 0


def test_an_id_that_no_record_can_hold_is_refused(stage):
    longest = "\N{SNOWMAN}" * 10_922
    assert stage.init(longest) == producer(7, 0)
    for _ in range(2):
        refused = stage.begin_init(longest + "xx").exception(0)
        assert isinstance(refused, errors.InvalidRequest)
    assert isinstance(stage.add(producer(7, 0), name=longest + "xx"), errors.InvalidRequest)


# ---- loading -----------------------------------------------------------------------------------------------


def test_records_that_cannot_be_read_are_skipped(stage):
    stage.init("before")
    [(key, value)] = [(each.key, each.value) for each in stage.log.raw_records()]
    other = encode_key(TransactionLogKey(transactional_id="other"))
    bad = [
        (b"\0\1\0\1x", b"a type of the future"),
        (b"", b""),
        (b"\0", b""),
        (key[:-1], value),
        (other, b"\0\x09" + value[2:]),  # a version of the future
        (other, value[:-3]),
        (other, value[:16] + b"\x06" + value[17:]),  # a state that is never stored
        (other, b""),
        (b"\0\1", None),
        None,
    ]
    stage.log.add(BatchBuilder().build(bad, now_ms=0))
    stage.init("after")
    stage.fail_over()
    assert stage.state("before") == stage.state("after") == "Empty"
    assert isinstance(stage.state("other"), errors.TransactionalIdNotFound)


def test_the_last_record_of_an_id_counts(stage):
    first = stage.init()
    stage.add(first)
    stage.end(first)
    stage.log.add(
        BatchBuilder().build([(encode_key(TransactionLogKey(transactional_id="id")), None)], now_ms=0)
    )
    stage.fail_over()
    assert isinstance(stage.state(), errors.TransactionalIdNotFound)
    stage.init()
    stage.fail_over()
    assert stage.state() == "Empty"


def test_an_id_whose_partition_changed_begins_anew_and_its_transaction_is_aborted(stage):
    """The number of partitions should not change, but it can: an operator may add some."""
    first = stage.init(timeout_ms=500)
    stage.add(first)
    count = next(count for count in range(2, 99) if partition_for("id", count))
    stage.coordinator._partition_count = lambda: count
    stage.fail_over()
    assert isinstance(stage.begin_init().exception(0), errors.NotCoordinator)
    stage.pass_time(1_000)
    assert [each.state.title for _, each in stage.stored()][-2:] == ["PrepareAbort", "CompleteAbort"]
    assert stage.brokers.taken == [(1, AT, 7, 1, False)]


# ---- expiry ------------------------------------------------------------------------------------------------


def expiring():
    return TransactionStage(dataclasses.replace(CONFIG, transactional_id_expiration_ms=5_000))


def test_an_unused_id_expires():
    stage = expiring()
    stage.init("unused")
    open_one = stage.init("open")
    stage.add(open_one, name="open")
    stage.pass_time(4_000)
    assert stage.state("unused") == "Empty"
    stage.pass_time(3_000)
    assert isinstance(stage.state("unused"), errors.TransactionalIdNotFound)
    assert stage.state("open") == "Ongoing"
    assert stage.stored()[-1] == ("unused", None)
    assert stage.init("unused").producer_epoch == 0


def test_an_id_whose_tombstone_fails_stays():
    stage = expiring()
    stage.init()
    stage.log.error = errors.NotEnoughReplicas()
    stage.pass_time(7_000)
    stage.log.error = None
    assert stage.init() == producer(7, 1)


def test_many_ids_expire_in_batches_of_bounded_size():
    stage = expiring()
    for number in range(20):
        stage.init(f"{number:030000d}")
    before = len(stage.log.batches)
    stage.pass_time(8_000)
    assert all(len(each) < 400_000 for each in stage.log.batches[before:])
    assert [value for _, value in stage.stored()[-20:]] == [None] * 20


@pytest.mark.parametrize("padding", ["", "\U0001f4b6" * 30], ids=["short", "of long characters"])
def test_the_bounded_size_is_that_of_the_tombstones(padding, monkeypatch):
    """Of short ids, most of a tombstone is not its id; a character may have four bytes."""
    monkeypatch.setattr(transaction_coordinator, "TOMBSTONE_BYTES", 2_000)
    stage = expiring()
    for number in range(300):
        stage.init(f"{padding}{number}")
    before = len(stage.log.batches)
    stage.pass_time(8_000)
    sizes = [len(each) for each in stage.log.batches[before:]]
    assert max(sizes) < 2_000 + 200
    assert sum(sizes) / len(sizes) > 1_000
