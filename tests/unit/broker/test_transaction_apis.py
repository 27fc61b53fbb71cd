"""Requests of transactions: which error each gets, by what it says, its version, and the state of its id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.request_context import RequestContext
from kreplica.broker.transaction_apis import TransactionApis
from kreplica.common import errors
from kreplica.common.dataclass import replace
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future, failed, resolved
from kreplica.common.message import replace as replace_fields
from kreplica.common.messages.data import InitProducerIdRequest
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kreplica.common.types import INT16_MAX, TopicPartition
from kreplica.coordinator.transaction_coordinator import COMPLETION_WAIT_MS, Transaction
from kreplica.coordinator.transaction_metadata import LAST_EPOCH, TransactionMetadata, TransactionState
from kreplica.log.producer_append_info import OPEN_ALREADY, Verification
from kreplica.security.peer import Peer
from tests.support.consumer_stage import ConsumerStage, topic_id
from tests.support.group_stage import GroupStage
from tests.support.transaction_stage import AT, OTHER, TransactionStage

S = TransactionState
OK = ErrorCode.none
BUSY = ErrorCode.concurrent_transactions
FENCED, OLD_EPOCH = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
MAPPING, WRONG = ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_txn_state
LOADING, MOVED = ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator
AWAY = ErrorCode.coordinator_not_available
INVALID, UNKNOWN = ErrorCode.invalid_request, ErrorCode.unknown_topic_or_partition
ABORTABLE = ErrorCode.transaction_abortable

GROUP_PARTITION = TopicPartition("__consumer_offsets", 0)
CURRENT = TransactionMetadata(
    transactional_id="id", producer_id=7, producer_epoch=3, timeout_ms=1_000, version=2
)
UNVERIFIED = Verification(3, 0, 0, begins_at_zero=False)


class Appends:
    """Partitions that answer `found`, and a coordinator that answers `results`; `asked` lists questions."""

    def __init__(self) -> None:
        self.found: Verification | KreplicaError = UNVERIFIED
        self.result: KreplicaError | None = None
        self.asked: list[Any] = []

    def start(self, at: TopicPartition, producer: Any, *, begins_at_zero: bool) -> Verification:
        assert (at, producer[:2], begins_at_zero) == (GROUP_PARTITION, (7, 3), False)
        if isinstance(self.found, KreplicaError):
            raise self.found
        return self.found

    def verify(self, transactional_id: str, begin: Any, done: Any) -> None:
        question = begin()
        if question is None:
            done({})
            return
        assert question.transactional_id == transactional_id
        self.asked.append(question)
        done(dict.fromkeys(question.partitions, self.result))


class Stage(TransactionStage):  # type: ignore[misc]
    """The handlers of a broker that leads __transaction_state-0 and __consumer_offsets-0.

    The cluster has the partitions AT and OTHER.
    """

    def __init__(self, level: int = 2, *, verifies: bool = True) -> None:
        super().__init__(level=level)
        self.groups: Any = GroupStage()
        self.offsets_count: int | None = 1
        self.created: list[str] = []
        self.appends = Appends()
        offsets: Any = SimpleNamespace(
            name="__consumer_offsets",
            partition_count=lambda: self.offsets_count,
            create=lambda: self.created.append("__consumer_offsets"),
        )
        cache: Any = SimpleNamespace(
            contains=lambda at: at in (AT, OTHER, GROUP_PARTITION),
            topic_id=lambda name: topic_id(name) if name == AT.topic else None,
        )
        appends: Any = self.appends
        self.apis = TransactionApis(
            self.coordinator,
            offsets,
            self.groups.coordinator,
            appends,
            cache,
            self._new_producer_id,
            verifies=verifies,
        )

    def settle(self) -> None:
        super().settle()
        if hasattr(self, "groups"):
            self.groups.settle()
            super().settle()

    def begin(self, request: Any, version: int) -> Future[Any]:
        future: Future[Any] = self.apis.handlers[type(request)](
            request, RequestContext(version, "c", Peer(""))
        )
        self.settle()
        return future

    def ask(self, request: Any, version: int) -> Any:
        future = self.begin(request, version)
        if not future.done():
            # Clients' requests wait while the previous transaction is being completed.
            self.pass_time(COMPLETION_WAIT_MS)
        return future.result(0)

    def put(self, state: TransactionState, **changes: Any) -> None:
        """Let "id" be in that state, with producer 7 in epoch 3 and the partition AT."""
        is_open = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
        shard = self.coordinator._store.shards[0]
        current = replace(
            CURRENT,
            state=state,
            partitions=frozenset({AT}) if is_open else frozenset(),
            start_ms=self.clock.time_ms() if is_open else -1,
            **changes,
        )
        shard.transactions["id"] = Transaction(current)
        self.next_producer_id = 8

    def make_busy(self) -> None:
        """Let a step of "id" be in progress: its record is not on all replicas yet."""
        self.log.held = []
        self.begin_add((7, 3), OTHER)

    def make_unavailable(self, code: ErrorCode) -> None:
        """Let the coordinator answer with this code."""
        if code is AWAY:
            self.coordinator._partition_count = lambda: None
        elif code is LOADING:
            self.coordinator._store.shards[0].is_active = False
        else:
            assert code is MOVED
            self.coordinator.resign(0)
        self.settle()


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- InitProducerId ----------------------------------------------------------------------------------------


def init(
    name: str | None = "id", producer_id: int = -1, epoch: int = -1, timeout_ms: int = 1_000
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout=timedelta(milliseconds=timeout_ms),  # type: ignore[arg-type]
        producer_id=producer_id,  # type: ignore[arg-type]
        producer_epoch=epoch,  # type: ignore[arg-type]
    )


def test_a_producer_without_an_id_gets_a_fresh_one_and_leaves_nothing(stage: Stage) -> None:
    for expected in (7, 8):
        # Its timeout does not matter, and there need be no coordinator.
        found = stage.ask(init(None, timeout_ms=-1), 5)
        assert (found.error_code, found.producer_id, found.producer_epoch) == (OK, expected, 0)
        stage.make_unavailable(MOVED)
    assert stage.stored() == []


def test_without_a_block_of_producer_ids_producers_wait(stage: Stage) -> None:
    stage.apis._new_producer_id = lambda: failed(errors.CoordinatorLoadInProgress())
    stage.coordinator._new_producer_id = stage.apis._new_producer_id
    for name in (None, "id"):
        found = stage.ask(init(name), 5)
        assert (found.error_code, found.producer_id, found.producer_epoch) == (LOADING, -1, -1)
    # The id is not busy afterwards.
    stage.coordinator._new_producer_id = lambda: resolved(9)
    assert stage.ask(init(), 5).producer_id == 9


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (init(producer_id=7), INVALID),
        (init(epoch=3), INVALID),
        (init(None, producer_id=7), INVALID),
        (init(""), INVALID),
        (init("", timeout_ms=0), INVALID),
        (init(timeout_ms=0), ErrorCode.invalid_transaction_timeout),
        (init(timeout_ms=-1), ErrorCode.invalid_transaction_timeout),
        (init(timeout_ms=900_001), ErrorCode.invalid_transaction_timeout),
        (init(timeout_ms=900_000), MOVED),
    ],
)
def test_an_invalid_init_is_refused_by_any_broker(
    stage: Stage, request_: InitProducerIdRequest, code: ErrorCode
) -> None:
    stage.make_unavailable(MOVED)
    found = stage.ask(request_, 5)
    assert (found.error_code, found.producer_id, found.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(
    ("state", "producer_id", "epoch", "code", "answer"),
    [
        # A producer that names nothing fences its predecessor.
        (S.EMPTY, -1, -1, OK, (7, 4)),
        (S.COMPLETE_COMMIT, -1, -1, OK, (7, 4)),
        (S.COMPLETE_ABORT, -1, -1, OK, (7, 4)),
        (S.PREPARE_COMMIT, -1, -1, BUSY, (-1, -1)),
        (S.PREPARE_ABORT, -1, -1, BUSY, (-1, -1)),
        (S.ONGOING, -1, -1, BUSY, (-1, -1)),
        # One that names its epoch goes on (KIP-360).
        (S.EMPTY, 7, 3, OK, (7, 4)),
        (S.COMPLETE_COMMIT, 7, 3, OK, (7, 4)),
        (S.ONGOING, 7, 3, BUSY, (-1, -1)),
        (S.PREPARE_COMMIT, 7, 3, BUSY, (-1, -1)),
        # Another producer or epoch is an old one.
        (S.EMPTY, 8, 3, FENCED, (-1, -1)),
        (S.EMPTY, 7, 2, FENCED, (-1, -1)),
        (S.EMPTY, 7, 4, FENCED, (-1, -1)),
        (S.ONGOING, 8, 3, FENCED, (-1, -1)),
        (S.PREPARE_ABORT, 8, 3, FENCED, (-1, -1)),
    ],
)
def test_an_init_by_the_state_of_its_id(
    stage: Stage,
    state: TransactionState,
    producer_id: int,
    epoch: int,
    code: ErrorCode,
    answer: tuple[int, int],
) -> None:
    stage.put(state)
    found = stage.ask(init(producer_id=producer_id, epoch=epoch), 4)
    assert (found.error_code, (found.producer_id, found.producer_epoch)) == (code, answer)


def test_an_init_of_a_busy_id_waits(stage: Stage) -> None:
    stage.put(S.ONGOING)
    stage.make_busy()
    # Even one that is fenced learns that only afterwards.
    assert stage.ask(init(), 5).error_code is BUSY
    assert stage.ask(init(producer_id=8, epoch=0), 5).error_code is BUSY


@pytest.mark.parametrize("code", [AWAY, LOADING, MOVED])
def test_an_init_while_the_coordinator_is_unavailable(stage: Stage, code: ErrorCode) -> None:
    stage.put(S.EMPTY)
    stage.make_unavailable(code)
    for request in (init(), init(producer_id=7, epoch=3), init(producer_id=8, epoch=0)):
        assert stage.ask(request, 5).error_code is code


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, OLD_EPOCH), (3, OLD_EPOCH), (4, FENCED), (5, FENCED)],
)
def test_older_clients_of_init_do_not_know_that_they_are_fenced(
    stage: Stage, version: int, code: ErrorCode
) -> None:
    stage.put(S.EMPTY)
    assert stage.ask(init(producer_id=7, epoch=2), version).error_code is code


@pytest.mark.parametrize(
    ("stored", "named", "code", "answer"),
    [
        # The last epoch of a client is followed by another producer id.
        (LAST_EPOCH, (-1, -1), OK, (8, 0)),
        (LAST_EPOCH, (7, LAST_EPOCH), OK, (8, 0)),
        (LAST_EPOCH, (7, LAST_EPOCH - 1), FENCED, (-1, -1)),
        # The one above it only fences.
        (INT16_MAX, (-1, -1), OK, (8, 0)),
        (INT16_MAX, (7, LAST_EPOCH), FENCED, (-1, -1)),
        (LAST_EPOCH - 1, (-1, -1), OK, (7, LAST_EPOCH)),
    ],
)
def test_an_init_of_exhausted_epochs(
    stage: Stage, stored: int, named: tuple[int, int], code: ErrorCode, answer: tuple[int, int]
) -> None:
    stage.put(S.COMPLETE_COMMIT, producer_epoch=stored)
    found = stage.ask(init("id", *named), 5)
    assert (found.error_code, (found.producer_id, found.producer_epoch)) == (code, answer)
    if code is OK and answer[0] == 8 and named[0] == 7:
        # Its repetition gets the same.
        again = stage.ask(init("id", *named), 5)
        assert (again.error_code, (again.producer_id, again.producer_epoch)) == (code, answer)


# ---- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------


def adding(
    name: str = "id",
    producer: tuple[int, int] = (7, 3),
    partitions: Iterable[TopicPartition] = (OTHER,),
    *,
    verifies: bool = False,
) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer[0],  # type: ignore[arg-type]
        producer_epoch=producer[1],  # type: ignore[arg-type]
        verify_only=verifies,
        topics=tuple(
            AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))  # type: ignore[arg-type]
            for topic, numbers in topics.items()
        ),
    )


def added(stage: Stage, version: int, *transactions: AddPartitionsToTxnTransaction) -> list[list[ErrorCode]]:
    """Return the code of each partition of each transaction."""
    answer = stage.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
    assert answer.error_code is OK
    assert [each.transactional_id for each in answer.results_by_transaction] == [
        each.transactional_id for each in transactions
    ]
    return [
        [each.partition_error_code for topic in result.topic_results for each in topic.results_by_partition]
        for result in answer.results_by_transaction
    ]


# The rows of requests that add, or verify: state, producer, and the code of one that knows ProducerFenced.
BY_STATE = [
    (S.EMPTY, (7, 3), OK),
    (S.ONGOING, (7, 3), OK),
    (S.COMPLETE_COMMIT, (7, 3), OK),
    (S.COMPLETE_ABORT, (7, 3), OK),
    (S.PREPARE_COMMIT, (7, 3), BUSY),
    (S.PREPARE_ABORT, (7, 3), BUSY),
    (S.ONGOING, (8, 3), MAPPING),
    (S.ONGOING, (8, 2), MAPPING),
    (S.ONGOING, (7, 2), FENCED),
    (S.ONGOING, (7, 4), FENCED),
    (S.PREPARE_COMMIT, (8, 3), MAPPING),
    (S.PREPARE_COMMIT, (7, 2), FENCED),
]


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(("state", "producer", "code"), BY_STATE)
def test_adding_partitions_by_the_state_of_the_id(
    stage: Stage, version: int, state: TransactionState, producer: tuple[int, int], code: ErrorCode
) -> None:
    stage.put(state)
    expected = OLD_EPOCH if version < 2 and code is FENCED else code
    assert added(stage, version, adding(producer=producer)) == [[expected]]
    assert (stage.stored() != []) == (code is OK)
    if code is OK:
        # Partitions that it has are not stored again.
        assert added(stage, version, adding(producer=producer)) == [[OK]]
        [(_, metadata)] = stage.stored()
        assert (metadata.state, OTHER in metadata.partitions) == (S.ONGOING, True)


@pytest.mark.parametrize(("state", "producer", "code"), BY_STATE)
def test_verifying_partitions_by_the_state_of_the_id(
    stage: Stage, state: TransactionState, producer: tuple[int, int], code: ErrorCode
) -> None:
    stage.put(state)
    at = ABORTABLE if code is OK and state is not S.ONGOING else code
    other = ABORTABLE if code is OK else code
    asked = adding(producer=producer, partitions=[AT, OTHER], verifies=True)
    assert added(stage, 5, asked) == [[at, other]]
    assert stage.stored() == []


def test_a_busy_id_takes_no_partitions_but_is_verified(stage: Stage) -> None:
    stage.put(S.ONGOING)
    stage.make_busy()
    assert added(stage, 3, adding()) == [[BUSY]]
    # It is busy for anyone: its producer id may be about to change.
    assert added(stage, 3, adding(producer=(8, 0))) == [[BUSY]]
    assert added(stage, 5, adding(partitions=[AT, OTHER], verifies=True)) == [[OK, ABORTABLE]]


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("code", [AWAY, LOADING, MOVED])
def test_partitions_while_the_coordinator_is_unavailable(
    stage: Stage, code: ErrorCode, verifies: bool
) -> None:
    stage.put(S.ONGOING)
    stage.make_unavailable(code)
    assert added(stage, 5, adding(verifies=verifies)) == [[code]]
    assert added(stage, 5, adding("", verifies=verifies)) == [[INVALID]]
    offsets = AddOffsetsToTxnRequest(transactional_id="id", producer_id=7, producer_epoch=3, group_id="g")  # type: ignore[arg-type]
    assert stage.ask(offsets, 4).error_code is code


@pytest.mark.parametrize("verifies", [False, True])
def test_partitions_of_an_unknown_id(stage: Stage, verifies: bool) -> None:
    assert added(stage, 5, adding(partitions=[AT, OTHER], verifies=verifies)) == [[MAPPING, MAPPING]]


@pytest.mark.parametrize("version", [0, 3, 5])
def test_an_unknown_partition_keeps_the_others_out(stage: Stage, version: int) -> None:
    stage.put(S.EMPTY)
    unknown = [TopicPartition("t", 9), TopicPartition("u", 0)]
    found = added(stage, version, adding(partitions=[AT, *unknown]))
    assert found == [[ErrorCode.operation_not_attempted, UNKNOWN, UNKNOWN]]
    assert stage.stored() == []


def test_transactions_of_one_request_are_independent_and_answered_together(stage: Stage) -> None:
    stage.put(S.ONGOING)
    other = stage.init("other")
    stage.log.held = []
    request = AddPartitionsToTxnRequest(
        transactions=(
            adding(verifies=True, partitions=[AT]),
            adding("other", other),
            adding("unknown"),
            adding(producer=(7, 2)),
        )
    )
    answer = stage.begin(request, 5)
    assert not answer.done()
    stage.log.release()
    stage.settle()
    codes = [
        each.topic_results[0].results_by_partition[0].partition_error_code
        for each in answer.result(0).results_by_transaction
    ]
    assert codes == [OK, OK, MAPPING, FENCED]


def test_a_request_without_transactions_is_answered(stage: Stage) -> None:
    assert added(stage, 5) == []


@pytest.mark.parametrize("version", [0, 1, 2, 4])
@pytest.mark.parametrize(("state", "producer", "code"), BY_STATE)
def test_adding_offsets_by_the_state_of_the_id(
    stage: Stage, version: int, state: TransactionState, producer: tuple[int, int], code: ErrorCode
) -> None:
    stage.put(state)
    request = AddOffsetsToTxnRequest(
        transactional_id="id",
        producer_id=producer[0],  # type: ignore[arg-type]
        producer_epoch=producer[1],  # type: ignore[arg-type]
        group_id="g",
    )
    expected = OLD_EPOCH if version < 2 and code is FENCED else code
    assert stage.ask(request, version).error_code is expected
    if code is OK:
        [(_, metadata)] = stage.stored()
        assert GROUP_PARTITION in metadata.partitions


@pytest.mark.parametrize("version", [0, 1, 2, 4])
@pytest.mark.parametrize(("name", "code"), [("", INVALID), ("unknown", MAPPING), ("id", BUSY)])
def test_offsets_of_what_is_no_id_or_a_busy_one(
    stage: Stage, name: str, code: ErrorCode, version: int
) -> None:
    stage.put(S.ONGOING)
    stage.make_busy()
    request = AddOffsetsToTxnRequest(transactional_id=name, producer_id=7, producer_epoch=3, group_id="g")  # type: ignore[arg-type]
    assert stage.ask(request, version).error_code is code


def test_offsets_before_their_topic_exists(stage: Stage) -> None:
    stage.put(S.ONGOING)
    stage.offsets_count = None
    request = AddOffsetsToTxnRequest(transactional_id="id", producer_id=7, producer_epoch=3, group_id="g")  # type: ignore[arg-type]
    assert stage.ask(request, 4).error_code is AWAY
    assert stage.created == ["__consumer_offsets"]


# ---- EndTxn ------------------------------------------------------------------------------------------------


def ending(epoch: int = 3, *, commit: bool = True, producer_id: int = 7, name: str = "id") -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=producer_id,  # type: ignore[arg-type]
        producer_epoch=epoch,  # type: ignore[arg-type]
        committed=commit,
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.ONGOING, OK, OK),
        (S.COMPLETE_COMMIT, OK, WRONG),
        (S.COMPLETE_ABORT, WRONG, OK),
        (S.PREPARE_COMMIT, BUSY, WRONG),
        (S.PREPARE_ABORT, WRONG, BUSY),
        (S.EMPTY, WRONG, WRONG),
    ],
)
def test_ends_of_older_clients(
    version: int, state: TransactionState, commit: ErrorCode, abort: ErrorCode
) -> None:
    for commits, code in ((True, commit), (False, abort)):
        stage = Stage()
        stage.put(state)
        found = stage.ask(ending(commit=commits), version)
        # The epoch stays, and no producer is in the answer.
        assert (found.error_code, found.producer_id, found.producer_epoch) == (code, -1, -1)
        if code is OK and state is S.ONGOING:
            assert stage.brokers.taken == [(1, AT, 7, 3, commits)]
        else:
            assert stage.stored() == []
        # Other producers, and other epochs, before and after.
        old = OLD_EPOCH if version < 2 else FENCED
        for producer_id, epoch, refusal in ((8, 3, MAPPING), (7, 2, old), (7, 4, old)):
            stage.put(state)
            refused = stage.ask(ending(epoch, commit=commits, producer_id=producer_id), version)
            assert refused.error_code is refusal


@pytest.mark.parametrize(
    ("state", "abort_again", "abort", "commit_again", "commit"),
    [
        (S.EMPTY, FENCED, OK, FENCED, WRONG),
        # Kafka 4.3 answers InvalidTxnState to a commit of what was aborted meanwhile (KAFKA-20785).
        (S.COMPLETE_ABORT, OK, OK, FENCED, WRONG),
        (S.COMPLETE_COMMIT, WRONG, OK, OK, WRONG),
        (S.PREPARE_ABORT, BUSY, FENCED, FENCED, FENCED),
        (S.PREPARE_COMMIT, WRONG, FENCED, BUSY, FENCED),
        (S.ONGOING, FENCED, OK, FENCED, OK),
    ],
)
def test_ends_by_transaction_version_2(
    state: TransactionState,
    abort_again: ErrorCode,
    abort: ErrorCode,
    commit_again: ErrorCode,
    commit: ErrorCode,
) -> None:
    rows = [
        *((2, False, abort_again), (3, False, abort), (2, True, commit_again), (3, True, commit)),
        *((1, False, FENCED), (4, False, FENCED), (1, True, FENCED), (4, True, FENCED)),
    ]
    for epoch, commits, code in rows:
        stage = Stage()
        stage.put(state)
        found = stage.ask(ending(epoch, commit=commits), 5)
        assert found.error_code is code, (epoch, commits)
        is_end = code is OK and epoch == 3
        if is_end:
            assert (found.producer_id, found.producer_epoch) == (7, 4)
            # Without a transaction there is no partition to mark.
            expected = [(1, AT, 7, 4, commits)] if state is S.ONGOING else []
            assert stage.brokers.taken == expected
            assert stage.state() == ("CompleteCommit" if commits else "CompleteAbort")
        else:
            answer = (7, 3) if code is OK else (-1, -1)
            assert (found.producer_id, found.producer_epoch) == answer
            assert stage.stored() == []
        stage.put(state)
        assert stage.ask(ending(epoch, commit=commits, producer_id=8), 5).error_code is MAPPING


@pytest.mark.parametrize("version", [0, 4, 5])
@pytest.mark.parametrize("code", [AWAY, LOADING, MOVED])
def test_an_end_while_the_coordinator_is_unavailable(stage: Stage, version: int, code: ErrorCode) -> None:
    stage.put(S.ONGOING)
    stage.make_unavailable(code)
    assert stage.ask(ending(), version).error_code is code
    assert stage.ask(ending(name=""), version).error_code is INVALID


@pytest.mark.parametrize("version", [0, 4, 5])
def test_an_end_of_an_unknown_id(stage: Stage, version: int) -> None:
    assert stage.ask(ending(), version).error_code is MAPPING


@pytest.mark.parametrize(
    ("version", "producer_id", "epoch", "code"),
    [
        # A client of version 2 may be about to get another producer id (KAFKA-18660).
        (5, 7, 3, BUSY),
        (5, 8, 3, BUSY),
        (5, 7, 2, BUSY),
        (4, 7, 3, BUSY),
        (4, 8, 3, MAPPING),
        (4, 7, 2, FENCED),
        (1, 7, 2, OLD_EPOCH),
    ],
)
def test_an_end_of_a_busy_id(
    stage: Stage, version: int, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    stage.put(S.ONGOING)
    stage.make_busy()
    assert stage.ask(ending(epoch, producer_id=producer_id), version).error_code is code


@pytest.mark.parametrize("commit", [False, True])
def test_the_end_of_the_last_epoch_is_repeated(stage: Stage, commit: bool) -> None:
    stage.put(S.ONGOING, producer_epoch=LAST_EPOCH)
    stage.brokers.held = []
    request = ending(LAST_EPOCH, commit=commit)
    found = stage.ask(request, 5)
    assert (found.error_code, found.producer_id, found.producer_epoch) == (OK, 8, 0)
    assert stage.ask(request, 5).error_code is BUSY
    stage.brokers.release()
    stage.settle()
    assert stage.brokers.taken == [(1, AT, 7, INT16_MAX, commit)]
    for other, code in (
        (request, OK),
        (ending(LAST_EPOCH, commit=not commit), FENCED if not commit else WRONG),
    ):
        again = stage.ask(other, 5)
        assert again.error_code is code
        assert (again.producer_id, again.producer_epoch) == ((8, 0) if code is OK else (-1, -1))
    # After the next transaction has begun it is another producer's.
    assert added(stage, 5, adding(producer=(8, 0))) == [[OK]]
    assert stage.ask(request, 5).error_code is MAPPING


def test_an_end_waits_for_a_producer_id(stage: Stage) -> None:
    stage.put(S.ONGOING, producer_epoch=LAST_EPOCH)
    stage.coordinator._new_producer_id = lambda: failed(errors.CoordinatorLoadInProgress())
    assert stage.ask(ending(LAST_EPOCH), 5).error_code is LOADING
    assert stage.state() == "Ongoing"


# ---- TxnOffsetCommit ---------------------------------------------------------------------------------------


def committing(
    *partitions: TopicPartition, group: str = "g", generation: int = -1, member: str = ""
) -> TxnOffsetCommitRequest:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions or (AT,):
        topics.setdefault(topic, []).append(number)
    return TxnOffsetCommitRequest(
        transactional_id="id",
        group_id=group,
        producer_id=7,  # type: ignore[arg-type]
        producer_epoch=3,  # type: ignore[arg-type]
        generation_id=generation,  # type: ignore[arg-type]
        member_id=member,
        topics=tuple(
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    TxnOffsetCommitRequestPartition(
                        partition_index=number,  # type: ignore[arg-type]
                        committed_offset=number + 5,  # type: ignore[arg-type]
                        committed_metadata="",
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in topics.items()
        ),
    )


def committed(stage: Stage, request: TxnOffsetCommitRequest, version: int) -> list[ErrorCode]:
    answer = stage.ask(request, version)
    return [each.error_code for topic in answer.topics for each in topic.partitions]


@pytest.mark.parametrize(
    ("version", "adds", "knows_abortable"),
    [
        *((0, False, False), (3, False, False)),
        *((4, False, True), (5, True, True)),
    ],
)
def test_offsets_are_verified_or_added_by_the_version(
    stage: Stage, version: int, adds: bool, knows_abortable: bool
) -> None:
    assert committed(stage, committing(AT, OTHER), version) == [OK, OK]
    [asked] = stage.appends.asked
    assert (asked.producer_id, asked.producer_epoch, list(asked.partitions)) == (7, 3, [GROUP_PARTITION])
    assert (asked.adds, asked.knows_abortable) == (adds, knows_abortable)


def test_an_open_transaction_of_offsets_is_not_verified_again(stage: Stage) -> None:
    stage.appends.found = OPEN_ALREADY
    assert committed(stage, committing(), 5) == [OK]
    assert stage.appends.asked == []


def test_without_verification_offsets_are_still_added() -> None:
    for version, questions in ((4, 0), (5, 1)):
        stage = Stage(verifies=False)
        assert committed(stage, committing(), version) == [OK]
        assert len(stage.appends.asked) == questions


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidProducerEpoch, OLD_EPOCH),
        (errors.InvalidProducerIdMapping, MAPPING),
        (errors.TransactionAbortable, ABORTABLE),
        (errors.InvalidTxnState, WRONG),
        (errors.ConcurrentTransactions, BUSY),
        (errors.CoordinatorNotAvailable, AWAY),
        (errors.NotCoordinator, MOVED),
        # Those that a client of a coordinator does not know.
        (errors.NetworkException, LOADING),
        (errors.UnknownTopicOrPartition, AWAY),
        (errors.NotEnoughReplicas, AWAY),
        (errors.RequestTimedOut, AWAY),
        (errors.NotLeaderOrFollower, MOVED),
        (errors.KafkaStorageError, MOVED),
    ],
)
@pytest.mark.parametrize("is_local", [False, True])
def test_offsets_that_cannot_be_verified(
    stage: Stage, error: type[KreplicaError], code: ErrorCode, is_local: bool
) -> None:
    # An unknown partition is one whatever else is wrong.
    if is_local:
        stage.appends.found = error()
    else:
        stage.appends.result = error()
    assert committed(stage, committing(AT, TopicPartition("t", 9)), 5) == [code, UNKNOWN]
    assert stage.groups.log.batches == []


@pytest.mark.parametrize(("version", "code"), [(0, AWAY), (1, AWAY), (2, LOADING), (5, LOADING)])
def test_older_clients_do_not_know_that_a_coordinator_loads(
    stage: Stage, version: int, code: ErrorCode
) -> None:
    stage.groups.coordinator._store.shards[0].is_active = False
    assert committed(stage, committing(), version) == [code]
    stage.appends.result = errors.NetworkException()
    assert committed(stage, committing(), version) == [code]


def test_offsets_of_unknown_partitions_ask_no_coordinator(stage: Stage) -> None:
    assert committed(stage, committing(TopicPartition("u", 0), TopicPartition("t", 9)), 5) == [UNKNOWN] * 2
    assert stage.appends.asked == []
    stage.offsets_count = None
    assert committed(stage, committing(AT, TopicPartition("u", 0)), 5) == [AWAY, UNKNOWN]
    assert stage.created == ["__consumer_offsets"]


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"), [(-1, -1, MAPPING), (-1, 3, MAPPING), (7, -1, OLD_EPOCH)]
)
def test_offsets_of_no_producer_are_refused(
    verifies: bool, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    # No marker would ever end their transaction.
    stage = Stage(verifies=verifies)
    request = replace_fields(committing(), producer_id=producer_id, producer_epoch=epoch)
    assert committed(stage, request, 3) == [code]
    assert (stage.groups.log.batches, stage.appends.asked) == ([], [])


def test_the_group_decides_who_commits(stage: Stage) -> None:
    joined = stage.groups.one_member()
    generation, member = joined.generation_id, joined.member_id
    illegal, stranger = ErrorCode.illegal_generation, ErrorCode.unknown_member_id
    for request, code in [
        (committing(generation=generation, member=member), OK),
        (committing(), OK),  # a producer before KIP-447
        (committing(generation=generation - 1, member=member), illegal),
        (committing(generation=generation + 1, member=member), illegal),
        (committing(generation=generation, member="stranger"), stranger),
        (committing(generation=0, member=member, group="missing"), illegal),
        (committing(group="missing"), OK),
        (committing(group=""), ErrorCode.invalid_group_id),
    ]:
        assert committed(stage, request, 5) == [code]
    stage.groups.coordinator.resign(0)
    assert committed(stage, committing(), 5) == [MOVED]


def test_a_static_member_that_was_replaced_commits_no_offsets(stage: Stage) -> None:
    old = stage.groups.one_member(instance="one")
    request = replace_fields(
        committing(generation=old.generation_id, member=old.member_id), group_instance_id="one"
    )
    assert committed(stage, request, 5) == [OK]
    stage.groups.begin_join(instance="one").result(0)
    assert committed(stage, request, 5) == [ErrorCode.fenced_instance_id]


def test_a_member_of_the_consumer_protocol_commits_what_it_has_had_since_its_epoch(stage: Stage) -> None:
    """KIP-1251: the epoch rises, and its partitions stay, while its transaction is under way."""
    stage.groups = ConsumerStage()
    stage.apis._groups = stage.groups.coordinator
    stage.groups.beat("a")
    stage.groups.topics.counts["t"] = 3
    stage.groups.coordinator.change_topics(["t"], has_other_names=False)
    stage.groups.settle()
    assert stage.groups.beat("a", 2).member_epoch == 3
    for epoch, code in ((3, OK), (2, OK), (4, ErrorCode.illegal_generation), (-1, OK)):
        member = "" if epoch < 0 else "a"
        assert committed(stage, committing(AT, OTHER, generation=epoch, member=member), 5) == [code, code]


def test_membership_holds_when_the_offsets_are_stored(stage: Stage) -> None:
    """KAFKA-15784: the group was checked before the transaction was verified, and changed meanwhile."""
    joined = stage.groups.one_member()
    waiting: list[Any] = []
    stage.appends.verify = lambda _, begin, done: waiting.append((begin(), done))  # type: ignore[method-assign]
    answer = stage.begin(committing(generation=joined.generation_id, member=joined.member_id), 5)
    stage.groups.begin_join(stage.groups.new_id())
    stage.groups.begin_join(joined.member_id).result(0)
    [(question, done)] = waiting
    done(dict.fromkeys(question.partitions))
    stage.settle()
    assert answer.result(0).topics[0].partitions[0].error_code is ErrorCode.illegal_generation
    complete = stage.groups.coordinator.complete_transaction(0, 7, commit=True)
    stage.settle()
    assert (complete.done(), stage.groups.committed()) == (True, {})


# ---- DescribeTransactions, ListTransactions ----------------------------------------------------------------


def described(stage: Stage, *names: str) -> list[Any]:
    found = stage.ask(DescribeTransactionsRequest(transactional_ids=names), 0).transaction_states
    assert [each.transactional_id for each in found] == list(names)
    return list(found)


def test_each_id_is_described_or_has_its_error(stage: Stage) -> None:
    stage.put(S.ONGOING)
    one, unknown, empty = described(stage, "id", "unknown", "")
    assert (one.error_code, one.transaction_state, one.producer_id, one.producer_epoch) == (
        *(OK, "Ongoing", 7, 3),
    )
    assert [(each.topic, each.partitions) for each in one.topics] == [("t", (0,))]
    assert one.transaction_timeout == timedelta(seconds=1)
    assert (unknown.error_code, empty.error_code) == (ErrorCode.transactional_id_not_found, INVALID)
    assert (unknown.producer_id, unknown.producer_epoch, unknown.topics) == (-1, -1, ())
    for code in (LOADING, MOVED, AWAY):
        stage.make_unavailable(code)
        assert described(stage, "id")[0].error_code is code


def test_an_ending_transaction_shows_where_its_marker_is_missing(stage: Stage) -> None:
    first = stage.init()
    stage.add(first, AT, OTHER)
    stage.brokers.leaders.pop(OTHER)
    stage.end(first)
    [found] = described(stage, "id")
    assert (found.transaction_state, [each.partitions for each in found.topics]) == ("PrepareCommit", [(1,)])


def listed(stage: Stage, **filters: Any) -> tuple[ErrorCode, list[str], tuple[str, ...]]:
    found = stage.ask(ListTransactionsRequest(**filters), 2)
    names = sorted(each.transactional_id for each in found.transaction_states)
    return found.error_code, names, found.unknown_state_filters


@pytest.fixture
def listing(stage: Stage) -> Stage:
    """Return a stage with "open-1", open for 500 ms, "open-2" for 200 ms, and "idle"; producers 7 to 9."""
    for name, pause_ms in (("open-1", 300), ("open-2", 200)):
        stage.add(stage.init(name), name=name)
        stage.pass_time(pause_ms)
    stage.init("idle")
    return stage


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["idle", "open-1", "open-2"]),
        ({"state_filters": ("Ongoing",)}, ["open-1", "open-2"]),
        ({"state_filters": ("Empty", "Ongoing")}, ["idle", "open-1", "open-2"]),
        ({"state_filters": ("CompleteCommit",)}, []),
        ({"producer_id_filters": (7, 9)}, ["idle", "open-1"]),
        ({"producer_id_filters": (99,)}, []),
        ({"duration_filter": 200}, ["open-1"]),
        ({"duration_filter": 199}, ["open-1", "open-2"]),
        ({"duration_filter": 500}, []),
        ({"duration_filter": -1}, ["idle", "open-1", "open-2"]),
        # A pattern stands for the whole id.
        ({"transactional_id_pattern": "open-."}, ["open-1", "open-2"]),
        ({"transactional_id_pattern": "open"}, []),
        ({"transactional_id_pattern": ""}, ["idle", "open-1", "open-2"]),
        ({"transactional_id_pattern": ".*1", "state_filters": ("Ongoing",)}, ["open-1"]),
    ],
)
def test_ids_are_listed_by_filters(listing: Stage, filters: dict[str, Any], names: Sequence[str]) -> None:
    assert listed(listing, **filters) == (OK, list(names), ())


def test_unknown_states_are_named_and_a_bad_pattern_is_refused(listing: Stage) -> None:
    filters = ("Ongoing", "Prepared")
    assert listed(listing, state_filters=filters) == (OK, ["open-1", "open-2"], ("Prepared",))
    assert listed(listing, state_filters=("x",)) == (OK, [], ("x",))
    assert listed(listing, state_filters=("Dead", "PrepareEpochFence")) == (OK, [], ())
    code = ErrorCode.invalid_regular_expression
    assert listed(listing, transactional_id_pattern="(") == (code, [], ())


def test_a_list_is_not_given_while_a_part_is_loading(listing: Stage) -> None:
    listing.make_unavailable(LOADING)
    assert listed(listing) == (LOADING, [], ())
    listing.make_unavailable(MOVED)
    assert listed(listing) == (OK, [], ())
