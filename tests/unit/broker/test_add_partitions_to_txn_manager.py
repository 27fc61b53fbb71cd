"""Questions to transaction coordinators: order, requests, and what leaders make of the answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.add_partitions_to_txn_manager import (
    RETRY_BACKOFFS_MS,
    AddPartitionsToTxnManager,
    Results,
    Verify,
)
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kreplica.common.types import TopicPartition
from tests.support.virtual import VirtualMachine

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
OK, BUSY = ErrorCode.none, ErrorCode.concurrent_transactions


def question(name: str = "id", *partitions: TopicPartition, epoch: int = 0, **options: Any) -> Verify:
    return Verify(name, 7, epoch, partitions or (AT,), **{"adds": True, "knows_abortable": True, **options})


class Stage(VirtualMachine):
    """A manager; `requests` lists (broker, request, future). Ids that begin with "b" belong to broker 2."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[int, Any, Future[Any]]] = []
        self.done: list[tuple[str, Results]] = []
        self.has_coordinator = True
        self.manager = AddPartitionsToTxnManager(self._send, self._coordinator, self.loop)

    def _send(self, broker_id: int, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.requests.append((broker_id, request, future))
        return future

    def _coordinator(self, transactional_id: str) -> int | None:
        if not self.has_coordinator:
            return None
        return 2 if transactional_id.startswith("b") else 1

    def ask(
        self, name: str = "id", begin: Callable[[], Verify | None] | None = None, label: str = ""
    ) -> None:
        def done(results: Results) -> None:
            self.done.append((label or name, results))

        self.manager.ask(name, begin or (lambda: question(name)), done)
        self.settle()

    def answer(self, code: ErrorCode = OK, number: int = -1, top: ErrorCode = OK) -> None:
        """Answer a request: `code` for each of its partitions."""
        _, request, future = self.requests[number]
        future.set_result(
            AddPartitionsToTxnResponse(
                throttle_time=timedelta(0),  # type: ignore[arg-type]
                error_code=top,
                results_by_transaction=tuple(
                    AddPartitionsToTxnResult(
                        transactional_id=each.transactional_id,
                        topic_results=tuple(
                            AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=tuple(
                                    AddPartitionsToTxnPartitionResult(
                                        partition_index=index, partition_error_code=code
                                    )
                                    for index in topic.partitions
                                ),
                            )
                            for topic in each.topics
                        ),
                    )
                    for each in request.transactions
                    if top is OK
                ),
            )
        )
        self.settle()

    def outcome(self) -> type[BaseException] | None:
        """Return the type of the only error of the only question."""
        [(_, results)] = self.done
        [error] = results.values()
        return None if error is None else type(error)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds", [False, True])
def test_a_question_names_the_producer_and_its_partitions(stage: Stage, adds: bool) -> None:
    stage.ask("id", lambda: question("id", OTHER, AT, TopicPartition("u", 3), epoch=4, adds=adds))
    [(broker, request, _)] = stage.requests
    [asked] = request.transactions
    assert (broker, asked.transactional_id, asked.producer_id, asked.producer_epoch) == (1, "id", 7, 4)
    assert asked.verify_only is not adds
    assert [(topic.name, topic.partitions) for topic in asked.topics] == [("t", (0, 1)), ("u", (3,))]
    stage.answer()
    assert stage.done == [("id", {OTHER: None, AT: None, TopicPartition("u", 3): None})]


def test_one_request_is_in_flight_to_each_coordinator(stage: Stage) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        stage.ask(name)
    assert [
        (broker, [each.transactional_id for each in request.transactions])
        for broker, request, _ in stage.requests
    ] == [(1, ["a1"]), (2, ["b1"])]
    stage.answer(number=0)
    # Those that came meanwhile share the next one.
    assert [each.transactional_id for each in stage.requests[-1][1].transactions] == ["a2", "a3"]
    stage.answer()
    stage.answer(number=1)
    assert [label for label, _ in stage.done] == ["a1", "a2", "a3", "b1"]


def test_without_a_coordinator_the_question_fails_at_once(stage: Stage) -> None:
    stage.has_coordinator = False
    stage.ask()
    assert stage.outcome() is errors.CoordinatorNotAvailable
    assert stage.requests == []
    assert not stage.manager.has_line("id")


# ---- the line of an id -------------------------------------------------------------------------------------


def test_batches_of_an_id_keep_their_order(stage: Stage) -> None:
    """KAFKA-14920: the second batch overtook the first one while that was verified."""
    stage.ask(label="first")
    # The second batch finds its transaction open when its turn comes: the first one is in the log.
    begun: list[str] = []

    def second() -> Verify | None:
        begun.append("second")
        return None

    stage.ask(begin=second, label="second")
    stage.ask("other", label="other")
    assert begun == []
    stage.answer(number=0)
    stage.answer()
    assert [label for label, _ in stage.done] == ["first", "second", "other"]
    assert not stage.manager.has_line("id")


def test_a_question_has_its_place_in_line_as_soon_as_it_is_asked(stage: Stage) -> None:
    done: list[Results] = []
    stage.manager.ask("id", question, done.append)
    # The manager's loop has not turned since: what comes now must not overtake it.
    assert stage.manager.has_line("id")
    stage.settle()
    assert stage.manager.has_line("id")
    stage.answer()
    assert done == [{AT: None}]
    assert not stage.manager.has_line("id")


def test_a_request_that_goes_on_is_in_line_until_that_is_done(stage: Stage) -> None:
    seen: list[bool] = []
    stage.manager.ask("id", question, lambda _: seen.append(stage.manager.has_line("id")))
    stage.settle()
    stage.answer()
    stage.manager.ask("id", lambda: None, lambda _: seen.append(stage.manager.has_line("id")))
    stage.settle()
    assert seen == [True, True]


def test_a_long_line_without_a_coordinator_has_an_end(stage: Stage) -> None:
    stage.has_coordinator = False
    for number in range(2_000):
        stage.manager.ask("id", question, lambda results, n=number: stage.done.append((str(n), results)))  # type: ignore[misc]
    stage.settle()
    assert [label for label, _ in stage.done] == [str(number) for number in range(2_000)]
    assert not stage.manager.has_line("id")


def test_a_request_that_fails_unexpectedly_leaves_the_others_their_turn(stage: Stage) -> None:
    def fail(_: Results) -> None:
        raise MemoryError

    stage.manager.ask("id", lambda: question("id"), fail)
    stage.settle()
    stage.ask("other")
    assert len(stage.requests) == 1
    with pytest.raises(MemoryError):
        stage.answer()
    stage.settle()
    assert len(stage.requests) == 2
    stage.answer()
    assert stage.done == [("other", {AT: None})]


def test_a_request_that_fails_unexpectedly_leaves_those_of_its_line_and_of_its_question_their_turn(
    stage: Stage,
) -> None:
    def fail(_: Results) -> None:
        raise MemoryError

    stage.manager.ask("id", question, fail)
    stage.manager.ask(
        "other", lambda: question("other"), lambda results: stage.done.append(("other", results))
    )
    stage.manager.ask("id", lambda: None, fail)
    stage.ask(label="behind")
    with pytest.raises(MemoryError):
        stage.answer()
    with pytest.raises(MemoryError):
        stage.settle()
    stage.settle()
    assert len(stage.requests) == 2
    stage.answer()
    assert stage.done == [("other", {AT: None}), ("behind", {AT: None})]
    assert not stage.manager.has_line("id")


def test_a_question_that_fails_lets_the_next_one_ask_anew(stage: Stage) -> None:
    stage.ask(label="first")
    stage.ask(label="second")
    stage.answer(ErrorCode.invalid_producer_id_mapping)
    assert [label for label, _ in stage.done] == ["first"]
    stage.answer()
    assert stage.done[-1] == ("second", {AT: None})
    assert len(stage.requests) == 2


def test_a_producer_that_was_fenced_holds_up_its_successor_for_one_answer_only(stage: Stage) -> None:
    stage.ask(begin=lambda: question(epoch=0), label="zombie")
    stage.ask(begin=lambda: question(epoch=1), label="successor")
    stage.answer(ErrorCode.producer_fenced)
    stage.answer()
    [(_, refused), (_, taken)] = stage.done
    assert isinstance(refused[AT], errors.InvalidProducerEpoch)
    assert taken == {AT: None}


# ---- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (OK, None),
        (ErrorCode.producer_fenced, errors.InvalidProducerEpoch),
        (ErrorCode.invalid_producer_epoch, errors.InvalidProducerEpoch),
        (ErrorCode.invalid_producer_id_mapping, errors.InvalidProducerIdMapping),
        (ErrorCode.coordinator_load_in_progress, errors.CoordinatorLoadInProgress),
        (ErrorCode.coordinator_not_available, errors.CoordinatorNotAvailable),
        (ErrorCode.not_coordinator, errors.NotCoordinator),
        (ErrorCode.unknown_topic_or_partition, errors.UnknownTopicOrPartition),
        (ErrorCode.invalid_txn_state, errors.InvalidTxnState),
    ],
)
@pytest.mark.parametrize("adds", [False, True])
def test_what_a_leader_makes_of_an_answer(
    stage: Stage, adds: bool, code: ErrorCode, error: type[BaseException] | None
) -> None:
    stage.ask(begin=lambda: question(adds=adds))
    stage.answer(code)
    assert stage.outcome() is error


@pytest.mark.parametrize(
    ("knows_abortable", "error"), [(True, errors.TransactionAbortable), (False, errors.InvalidTxnState)]
)
def test_a_partition_that_the_transaction_lacks(
    stage: Stage, knows_abortable: bool, error: type[BaseException]
) -> None:
    stage.ask(begin=lambda: question(adds=False, knows_abortable=knows_abortable))
    stage.answer(ErrorCode.transaction_abortable)
    assert stage.outcome() is error


@pytest.mark.parametrize(
    "fail",
    [
        lambda stage: stage.requests[0][2].set_exception(errors.NetworkException("gone")),
        lambda stage: stage.requests[0][2].set_exception(errors.RequestTimedOut("late")),
        lambda stage: stage.requests[0][2].cancel(),
        lambda stage: stage.answer(top=ErrorCode.unknown_server_error),
        # An answer without the partition.
        lambda stage: stage.requests[0][2].set_result(
            AddPartitionsToTxnResponse(throttle_time=timedelta(0))  # type: ignore[arg-type]
        ),
    ],
)
def test_a_question_without_an_answer(stage: Stage, fail: Callable[[Stage], object]) -> None:
    stage.ask()
    fail(stage)
    stage.settle()
    assert stage.outcome() is errors.NetworkException
    # The next question to this coordinator is sent.
    stage.ask("another")
    stage.answer()
    assert stage.done[-1] == ("another", {AT: None})


@pytest.mark.parametrize("adds", [False, True])
def test_a_coordinator_that_refuses_this_broker_fails_the_transaction(stage: Stage, adds: bool) -> None:
    # Only an operator can grant the right, so the client must not retry for ever.
    stage.ask(begin=lambda: question(adds=adds))
    stage.answer(top=ErrorCode.cluster_authorization_failed)
    assert stage.outcome() is errors.InvalidTxnState


def test_partitions_are_added_again_while_the_previous_transaction_completes(stage: Stage) -> None:
    """KAFKA-18654: clients saw ConcurrentTransactions at the start of each transaction."""
    stage.ask()
    for _ in range(3):
        stage.answer(BUSY)
        assert stage.done == []
        stage.pass_time(20)
    stage.answer()
    assert stage.outcome() is None


def test_adding_again_has_an_end(stage: Stage) -> None:
    stage.ask()
    begin_ms = stage.clock.time_ms()
    for backoff_ms in RETRY_BACKOFFS_MS:
        stage.answer(BUSY)
        stage.pass_time(backoff_ms)
    assert stage.done == []
    stage.answer(BUSY)
    assert stage.outcome() is errors.ConcurrentTransactions
    assert stage.clock.time_ms() - begin_ms == 100


def test_a_question_that_only_verifies_is_not_repeated(stage: Stage) -> None:
    stage.ask(begin=lambda: question(adds=False))
    stage.answer(BUSY)
    assert stage.outcome() is errors.ConcurrentTransactions


def test_partitions_are_added_again_at_the_coordinator_of_then(stage: Stage) -> None:
    stage.ask()
    stage.answer(BUSY)
    stage.has_coordinator = False
    stage.pass_time(20)
    assert stage.outcome() is errors.CoordinatorNotAvailable
