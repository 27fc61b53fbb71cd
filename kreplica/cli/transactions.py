"""`kreplica transactions`: show transactions, and abort those that no coordinator ends, in any
Kafka-compatible cluster (KIP-664, KIP-994).

`list` and `describe` ask the coordinators, which are all brokers; `find-hanging` and `abort` the leaders of
partitions. Thread rule: one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kreplica.cli.kafka_connection import Brokers
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTxnState,
    KreplicaError,
    LeaderNotAvailable,
    NetworkException,
    NotCoordinator,
    TransactionalIdNotFound,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kreplica.common.message import in_version
from kreplica.common.messages.data import DescribeProducersRequest
from kreplica.common.messages.data import DescribeProducersRequestTopicRequest as TopicRequest
from kreplica.common.messages.transactions import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.runtime.clock import SystemClock

LIST_TRANSACTIONS = 66
# The first versions of ListTransactions that filter by duration, and by a pattern.
BY_DURATION, BY_PATTERN, NEWEST_LIST = 1, 2, 2
MS_A_MINUTE = 60_000
# How long and how often to ask again about partitions without an answer.
RETRY_S, RETRY_BACKOFF_S = 5.0, 0.2
NO_COORDINATOR_EPOCH = -1
COLUMNS = (
    *("topic", "partition", "producer_id", "producer_epoch"),
    *("start_offset", "last_timestamp", "idle_ms", "transactional_id"),
)
LIST_COLUMNS = ("transactional_id", "coordinator", "producer_id", "state")
DESCRIBE_COLUMNS = (
    *("transactional_id", "coordinator", "producer_id", "producer_epoch", "state"),
    *("timeout_ms", "start_timestamp", "open_ms", "partitions"),
)
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction, as the leader of its partition reports it."""

    at: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int

    def fact(self, now_ms: int) -> Fact:
        """Return the fact to print. `idle_ms`: time since the producer's last write."""
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "start_offset": self.start_offset,
            "last_timestamp": self.last_timestamp,
            "idle_ms": max(0, now_ms - self.last_timestamp),
            "coordinator_epoch": self.coordinator_epoch,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """The transactions to list; empty fields filter nothing. `longer_than_ms`: -1 for any duration."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    longer_than_ms: int = -1
    pattern: str | None = None

    @property
    def min_version(self) -> int:
        """The first version of ListTransactions with these filters."""
        if self.pattern is not None:
            return BY_PATTERN
        return BY_DURATION if self.longer_than_ms >= 0 else 0


class Leaders(Brokers):
    """Connections to the brokers, as the coordinators of transactions and the leaders of their partitions."""

    def leader_of(self, at: TopicPartition) -> int:
        """Return the leader of a partition. Raises UnknownTopicOrPartition, LeaderNotAvailable."""
        leader = self.leaders_of(at.topic).get(at)
        if leader is None:
            raise UnknownTopicOrPartition(f"there is no partition {at}")
        if leader < 0:
            raise LeaderNotAvailable(f"{at} has no leader, which alone can end a transaction")
        return leader

    def transactions(self, broker: int, wanted: Wanted) -> list[Any]:
        """Return the transactions that the broker coordinates. Raises its errors, UnsupportedVersion."""
        versions = range(wanted.min_version, NEWEST_LIST + 1)
        version = self.newest(broker, LIST_TRANSACTIONS, versions)
        request = ListTransactionsRequest(
            state_filters=tuple(wanted.states),
            producer_id_filters=tuple(wanted.producer_ids),
            duration_filter=wanted.longer_than_ms,
            transactional_id_pattern=wanted.pattern,
        )
        answer = self.ask(broker, in_version(request, version))
        error = error_of(answer.error_code)
        if error is not None:
            raise error
        if answer.unknown_state_filters:
            unknown = ", ".join(answer.unknown_state_filters)
            raise InvalidTxnState(f"broker {broker} knows no state {unknown}: use one such as Ongoing")
        return list(answer.transaction_states)

    def described(self, broker: int, transactional_ids: Sequence[str]) -> list[Any]:
        """Return what the broker says of these ids, an error code for those of other coordinators."""
        request = DescribeTransactionsRequest(transactional_ids=tuple(transactional_ids))
        return list(self.ask(broker, request).transaction_states)

    def coordinated(
        self, producer_ids: Sequence[int]
    ) -> tuple[dict[tuple[int, TopicPartition], str], dict[int, KreplicaError]]:
        """Return the partitions of the open transactions of these producers, with their transactional ids,
        and the brokers that could not be asked.

        Both are empty in a cluster that does not list transactions.
        """
        found: dict[tuple[int, TopicPartition], str] = {}
        failures: dict[int, KreplicaError] = {}
        for broker in self.brokers:
            try:
                listed = self.transactions(broker, Wanted(producer_ids=producer_ids))
                names = [each.transactional_id for each in listed]
                described = self.described(broker, names) if names else []
            except UnsupportedVersion:
                continue
            except KreplicaError as error:
                failures[broker] = error
                continue
            for each in described:
                for topic in each.topics:
                    for number in topic.partitions:
                        at = TopicPartition(topic.topic, number)
                        found[each.producer_id, at] = each.transactional_id
        return found, failures

    def open_transactions(
        self, partitions: Mapping[TopicPartition, int]
    ) -> Iterator[OpenTransaction | tuple[TopicPartition, KreplicaError]]:
        """Return the open transactions of these partitions, given with their leaders, and the partitions that
        could not be checked."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for at, leader in sorted(partitions.items()):
            if leader < 0:
                yield at, LeaderNotAvailable(f"{at} has no leader")
            else:
                by_leader.setdefault(leader, []).append(at)
        for leader, led in by_leader.items():
            try:
                answer = self.ask(leader, _question(led))
            except KreplicaError as error:
                yield from ((at, error) for at in led)
                continue
            for topic in answer.topics:
                for each in topic.partitions:
                    at = TopicPartition(topic.name, each.partition_index)
                    failure = error_of(each.error_code, each.error_message)
                    if failure is not None:
                        yield at, failure
                        continue
                    for producer in each.active_producers:
                        if producer.current_txn_start_offset >= 0:
                            yield _open(at, producer)


def _question(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    asked = tuple(
        TopicRequest(name=name, partition_indexes=tuple(numbers)) for name, numbers in topics.items()
    )
    return DescribeProducersRequest(topics=asked)


def _open(at: TopicPartition, producer: Any) -> OpenTransaction:
    return OpenTransaction(
        at,
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.current_txn_start_offset,
        producer.last_timestamp,
    )


def list_transactions(bootstrap: str, wanted: Wanted, as_json: bool) -> int:
    """Print the transactional ids that the coordinators know. Returns 1 if one of these did not answer."""
    facts: list[Fact] = []
    with Leaders(bootstrap) as leaders:
        leaders.leaders_of(None)
        deadline = time.monotonic() + RETRY_S
        left = leaders.brokers
        while True:
            failures: dict[int, KreplicaError] = {}
            for broker in left:
                try:
                    found = leaders.transactions(broker, wanted)
                except KreplicaError as error:
                    if not error.retriable:
                        raise
                    failures[broker] = error
                    continue
                facts += [_listed(broker, each) for each in found]
            if not failures or time.monotonic() > deadline:
                break
            # It is still loading.
            time.sleep(RETRY_BACKOFF_S)
            left = list(failures)
    facts.sort(key=lambda fact: str(fact["transactional_id"]))
    if facts or as_json:
        print_facts(f"transactions of cluster {leaders.cluster_id}", LIST_COLUMNS, facts, as_json)
    else:
        such = "transactional ids" if wanted == Wanted() else "such transactions"
        say(f"cluster {leaders.cluster_id} has no {such}")
    for broker, failure in failures.items():
        say(f"broker {broker}: not listed: {failure}", stderr=True)
    return 1 if failures else 0


def _listed(broker: int, found: Any) -> Fact:
    return {
        "transactional_id": found.transactional_id,
        "coordinator": broker,
        "producer_id": found.producer_id,
        "state": found.transaction_state,
    }


def describe(bootstrap: str, transactional_ids: Sequence[str], as_json: bool) -> int:
    """Print the state of these transactional ids; returns the exit code.

    Raises InvalidRequest, TransactionalIdNotFound, CoordinatorNotAvailable, and the coordinators' errors.
    """
    if not all(transactional_ids):
        raise InvalidRequest("a transactional id is empty: name one, as `transactions list` shows them")
    with Leaders(bootstrap) as leaders:
        leaders.leaders_of(None)
        facts = [_described(leaders, name) for name in transactional_ids]
    print_facts(f"transactions of cluster {leaders.cluster_id}", DESCRIBE_COLUMNS, facts, as_json)
    return 0


def _described(leaders: Leaders, name: str) -> Fact:
    # Asking all is simpler than FindCoordinator, and creates no topic in a cluster without transactions.
    failure: KreplicaError = CoordinatorNotAvailable(f"no broker coordinates {name!r} now")
    for broker in leaders.brokers:
        try:
            [found] = leaders.described(broker, [name])
        except NetworkException as error:
            failure = error
            continue
        refusal = error_of(found.error_code)
        if refusal is None:
            return _state_of(broker, found)
        if isinstance(refusal, TransactionalIdNotFound):
            raise TransactionalIdNotFound(f"there is no transactional id {name!r}")
        if not isinstance(refusal, (NotCoordinator, CoordinatorNotAvailable)):
            failure = type(refusal)(f"{name}: {refusal}")
    raise failure


def _state_of(broker: int, found: Any) -> Fact:
    began = found.transaction_start_time
    start_ms = -1 if began is None else round(began.timestamp() * 1000)
    return {
        "transactional_id": found.transactional_id,
        "coordinator": broker,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": found.transaction_timeout // MILLISECOND,
        "start_timestamp": start_ms,
        "open_ms": max(0, SystemClock().time_ms() - start_ms) if found.topics else -1,
        "partitions": [f"{topic.topic}-{number}" for topic in found.topics for number in topic.partitions],
    }


def find_hanging(
    bootstrap: str, topic: str | None, partition: int | None, broker: int | None, minutes: int, as_json: bool
) -> int:
    """Print the open transactions without a write for more than `minutes` that no coordinator will end.

    With 0 minutes, print all open transactions. `topic`, `partition` and `broker` (a leader) restrict the
    search. Returns the exit code: 1 if a partition could not be checked.
    """
    now_ms = SystemClock().time_ms()
    found: list[OpenTransaction] = []
    failures: list[tuple[TopicPartition, KreplicaError]] = []
    with Leaders(bootstrap) as leaders:
        wanted = {
            at: leader
            for at, leader in leaders.leaders_of(topic).items()
            if partition in (None, at.partition) and broker in (None, leader)
        }
        if broker is not None and broker not in leaders.brokers:
            live = ", ".join(map(str, leaders.brokers))
            raise InvalidRequest(f"no broker {broker} among the live brokers {live}")
        if topic is not None and partition is not None and not wanted and broker is None:
            raise UnknownTopicOrPartition(f"there is no partition {topic}-{partition}")
        deadline = time.monotonic() + RETRY_S
        left = wanted
        while True:
            failures = []
            for each in leaders.open_transactions(left):
                if isinstance(each, OpenTransaction):
                    found.append(each)
                else:
                    failures.append(each)
            if not failures or time.monotonic() > deadline:
                break
            # The leader may just have changed: ask again about partitions without an answer.
            time.sleep(RETRY_BACKOFF_S)
            now = leaders.leaders_of(topic)
            left = {at: now[at] for at, _ in failures if at in now}
        idle = [each for each in found if now_ms - each.last_timestamp > minutes * MS_A_MINUTE or not minutes]
        known, silent = leaders.coordinated(sorted({each.producer_id for each in idle})) if idle else ({}, {})
    shown = [each for each in idle if not minutes or (each.producer_id, each.at) not in known]
    facts = [
        {**each.fact(now_ms), "transactional_id": known.get((each.producer_id, each.at))}
        for each in sorted(shown, key=lambda each: each.at)
    ]
    if facts or as_json:
        print_facts(f"open transactions of cluster {leaders.cluster_id}", COLUMNS, facts, as_json)
    else:
        say(f"no hanging transaction in {len(wanted)} partitions")
    others = {
        f"were written to in the last {minutes} minutes": len(found) - len(idle),
        "are to be ended by their coordinators": len(idle) - len(shown),
    }
    for what, count in others.items():
        if count:
            say(f"{count} open transactions {what}: --max-transaction-timeout 0 lists them, too", stderr=True)
    for at, error in failures:
        say(f"{at}: not checked: {error}", stderr=True)
    for node_id, error in silent.items():
        say(f"broker {node_id} did not say which transactions it will end: {error}", stderr=True)
    return 1 if failures or silent else 0


def abort(
    bootstrap: str,
    at: TopicPartition,
    start_offset: int | None,
    producer_id: int | None,
    force: bool,
    as_json: bool,
) -> int:
    """Abort the open transaction that begins at `start_offset`, or that of `producer_id`; returns the exit
    code. `force`: also one that its coordinator will end.

    Returns when all in-sync replicas have the marker. Raises InvalidTxnState if there is no such transaction
    or its coordinator will end it, NetworkException if a broker does not say which ones it will end,
    UnknownTopicOrPartition, LeaderNotAvailable, and the leader's errors.
    """
    with Leaders(bootstrap) as leaders:
        leader = leaders.leader_of(at)
        transaction = _the_one(leaders, at, leader, start_offset, producer_id)
        if not force:
            _require_hanging(leaders, transaction)
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=(WritableTxnMarkerTopic(name=at.topic, partition_indexes=(at.partition,)),),
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        answer = leaders.ask(leader, in_version(WriteTxnMarkersRequest(markers=(marker,)), 1))
        results = [part for each in answer.markers for topic in each.topics for part in topic.partitions]
        if len(results) != 1:
            raise UnknownServerError(f"broker {leader} answered for {len(results)} partitions instead of 1")
        error = error_of(results[0].error_code)
        if error is not None:
            raise type(error)(f"{at}: producer {transaction.producer_id}: {error}")
    if as_json:
        print_json({**transaction.fact(SystemClock().time_ms()), "done": "aborted"})
    else:
        say(
            f"aborted the transaction of producer {transaction.producer_id} that begins at offset"
            f" {transaction.start_offset} of {at}, in cluster {leaders.cluster_id} at {bootstrap}"
        )
    return 0


def _require_hanging(leaders: Leaders, transaction: OpenTransaction) -> None:
    """Refuse to abort a part of a transaction whose other parts may be committed."""
    at = transaction.at
    known, silent = leaders.coordinated([transaction.producer_id])
    name = known.get((transaction.producer_id, at))
    if name is not None:
        raise InvalidTxnState(
            f"{at}: the coordinator of {name!r} will end this transaction. Its producer may commit what it"
            " writes elsewhere, and the records here would be lost: give --force to abort them"
        )
    for broker, error in silent.items():
        raise NetworkException(
            f"broker {broker} did not say whether it will end this transaction: {error}; try again, or give"
            " --force"
        )


def _the_one(
    leaders: Leaders, at: TopicPartition, leader: int, start_offset: int | None, producer_id: int | None
) -> OpenTransaction:
    found = []
    for each in leaders.open_transactions({at: leader}):
        if not isinstance(each, OpenTransaction):
            raise each[1]
        found.append(each)
    for each in found:
        if start_offset in (None, each.start_offset) and producer_id in (None, each.producer_id):
            return each
    what = f"begins at offset {start_offset}" if producer_id is None else f"is of producer {producer_id}"
    others = ", ".join(f"producer {each.producer_id} from {each.start_offset}" for each in found) or "none"
    raise InvalidTxnState(f"{at}: no open transaction {what}; open are: {others}")
