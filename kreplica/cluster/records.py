"""Reading the records of a cluster, also as a member of a consumer group.

`ClusterRecords` makes the readers; `Reading` and `Consuming` return the next request and turn its answer into
records. A request is a function that sends something and returns a future. Cluster waits for it in a thread,
Simulation by advancing virtual time, kreplica.aio in a task.

Thread rule: one thread at a time uses a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kreplica._core.record import Record
from kreplica.client.arguments import (
    choice,
    group_id,
    milliseconds,
    offset_of,
    subscribed_names,
    topic_pattern,
)
from kreplica.client.client import Client
from kreplica.client.client_config import ISOLATION_LEVEL, ConsumerConfig, Isolation, Protocol
from kreplica.client.fetcher import EARLIEST, LATEST, Fetched, Fetcher
from kreplica.client.group_consumer import Chunk, GroupConsumer, Owned
from kreplica.client.group_messages import Membership
from kreplica.client.share_consumer import ShareConsumer
from kreplica.cluster.pending_futures import PendingFutures
from kreplica.common.dataclass import fields, replace
from kreplica.common.errors import (
    ClusterClosed,
    InvalidConfig,
    InvalidRequest,
    RequestTimedOut,
    WouldDeadlock,
)
from kreplica.common.future import Future
from kreplica.common.settings import nearest
from kreplica.common.types import INT32_MAX, TopicPartition
from kreplica.controller.feature_control import GROUP_VERSION
from kreplica.log.transaction_index import AbortedFilter, AbortedTxn
from kreplica.metadata.cluster_metadata import GROUP_RESOURCE, ClusterMetadata

Question = Callable[[], Future[Any]]
# How long one fetch of a following reader may wait at the leader.
FOLLOW_WAIT_MS = 500


class Reading:
    """Reads the records with offsets in [start, stop), or without `start` from the log start.

    It stops at the end of the readable part; with `follow` it stops at `stop` and waits for records to come.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        at: TopicPartition,
        start: int | None,
        stop: int | None,
        isolation: Isolation,
        *,
        follow: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        self._offset_of = partial(fetcher.offset, at, isolation=isolation, timeout_ms=timeout_ms)
        self._fetch = partial(
            fetcher.fetch, at, isolation=isolation, max_wait_ms=FOLLOW_WAIT_MS if follow else 0
        )
        self._offset = start
        self._stop = stop
        self._follows = follow
        self._knows_end = follow
        # Whether reading starts above the readable part; the leader reports if that is also above its log
        # end.
        self._is_beyond = False
        self._is_over = False

    def question(self) -> Question | None:
        """Return the next request; None when there is nothing more to read."""
        if self._offset is None:
            return partial(self._offset_of, EARLIEST)
        if not self._knows_end:
            return partial(self._offset_of, LATEST)
        if self._is_over:
            return None
        if self._stop is not None and self._offset >= self._stop and not self._is_beyond:
            return None
        return partial(self._fetch, self._offset)

    def answer(self, found: Any) -> Iterator[Record]:
        """Iterate over the records of the answer; exhaust the iterator before the next `question`."""
        if self._offset is None:
            self._offset = found
        elif not self._knows_end:
            self._knows_end = True
            self._is_beyond = self._offset > found
            self._stop = found if self._stop is None else min(self._stop, found)
        elif self._is_beyond:
            # The offset is valid, but nothing can be read there yet.
            self._is_over, self._is_beyond = True, False
        else:
            yield from self._records(found, self._offset)

    def _records(self, fetched: Fetched, first: int) -> Iterator[Record]:
        aborted = AbortedFilter([AbortedTxn(pid, start, -1, -1) for pid, start in fetched.aborted])
        offset = first
        for batch in fetched.batches():
            if aborted.admits(batch) and not batch.is_control:
                yield from batch.records(start=first, stop=self._stop)
            offset = max(offset, batch.next_offset)
        # No progress means the end of the readable part, unless following.
        self._is_over = offset == first and not self._follows
        self._offset = offset


def read(reading: Reading, result: Callable[[Question], Any]) -> Iterator[Record]:
    """Iterate over all records; `result(question)` sends the request and waits for its result."""
    while (question := reading.question()) is not None:
        yield from reading.answer(result(question))


# The wait of one poll if the iteration has no timeout.
POLL_MS = 500
# How long an iteration with a timeout waits to become a member.
JOIN_TIMEOUT_MS = 30_000
# A share group's setting of where it begins.
SHARE_RESET = "share.auto.offset.reset"
# In one process a coordinator answers in microseconds; the session only has to outlast a busy machine.
CONSUMER = ConsumerConfig(
    session_timeout_ms=3_000,
    heartbeat_interval_ms=50,
    auto_commit_interval_ms=200,
    metadata_max_age_ms=500,
)


class Consuming:
    """A consumer's records, poll by poll; ends after `timeout_ms` as a member without any record."""

    def __init__(self, consumer: GroupConsumer, timeout_ms: int | None) -> None:
        self._consumer = consumer
        self._is_endless = timeout_ms is None
        self._wait_ms = POLL_MS if timeout_ms is None else max(timeout_ms, 1)
        self._joining_ms = 0
        self._term: Any = None
        self._is_over = False
        # The partitions whose records were given out; whether one was lost before its offset was committed in
        # a transaction.
        self._given: dict[TopicPartition, Owned] = {}
        self._has_lost = False
        self._taken: list[Chunk] = []
        self._is_halfway = False  # in an answer whose records are given out one by one
        # The loop ends the ownership a moment later; what is in hand must not be given out meanwhile.
        self._rewinds = 0

    def question(self) -> Callable[[], Future[Any]] | None:
        """Return the next request; None at the end, after which the caller must call `leave`."""
        if self._is_over:
            return None
        self._term = self._consumer.term if self._consumer.is_settled else None
        return lambda: self._consumer.poll(self._wait_ms)

    def answer(self, chunks: Any) -> Iterator[Record]:
        """Iterate over the records of the answer, marking each as processed when the next is requested.

        Raises RequestTimedOut if the consumer does not become a member.
        """
        self._mark_batch()
        if not chunks and not self._is_endless:
            self._nothing_came()
        self._is_halfway, rewinds = True, self._rewinds
        for chunk in chunks:
            owned = chunk.owned
            if owned.may_read and self._rewinds == rewinds:
                self._note(owned)
            for record in chunk.records:
                if not owned.may_read or self._rewinds != rewinds:
                    break
                offset = owned.taken = (record.offset or 0) + 1
                yield record
                owned.marked = offset
            else:
                owned.taken = owned.marked = chunk.next_offset
            owned.done += 1
        self._is_halfway = False

    def batch(self, chunks: Any) -> list[Record]:
        """Return all records of the answer; `processed` marks them. Raises as `answer`."""
        if not chunks and not self._is_endless:
            self._nothing_came()
        self._taken = []
        records: list[Record] = []
        for chunk in chunks:
            if chunk.owned.may_read:
                self._note(chunk.owned)
                chunk.owned.taken = chunk.next_offset
                records += chunk.records
                self._taken.append(chunk)
            else:
                chunk.owned.done += 1
        return records

    def processed(self) -> None:
        """Mark the records of the last `batch` as processed.

        Raises InvalidRequest if a loop has taken only some of the records that came last.
        """
        if self._is_halfway:
            raise InvalidRequest(
                "some records that have come were read one by one, and others are left: they would be"
                " skipped; read all of them in one way"
            )
        self._mark_batch()

    def _mark_batch(self) -> None:
        for chunk in self._taken:
            chunk.owned.marked = chunk.next_offset
            chunk.owned.done += 1
        self._taken = []

    def _note(self, owned: Owned) -> None:
        """Note that records of the partition are given out."""
        before = self._given.get(owned.at)
        if before is not owned:
            if before is not None and before.taken != before.transacted:
                self._has_lost = True
            self._given[owned.at] = owned

    def require_no_auto_commit(self) -> None:
        """Raises InvalidRequest if the consumer commits on its own."""
        if self._consumer.config.enable_auto_commit:
            raise InvalidRequest(
                "the consumer commits offsets on its own: pass auto_commit=False to consume, so that they are"
                " committed only in transactions"
            )

    def given(self) -> tuple[Membership | None, dict[Owned, int]]:
        """Return the offsets behind all records given out since the last transaction, and the member.

        Raises IllegalGeneration if it has lost the records' partitions, InvalidRequest if the consumer
        commits on its own.
        """
        consumer = self._consumer
        self.require_no_auto_commit()
        given = {each: each.taken for each in self._given.values() if each.taken != each.transacted}
        self._has_lost = self._has_lost or not all(each.is_owned for each in given)
        if self._has_lost:
            raise consumer.is_lost()
        return consumer.identity() if given else None, given

    def transacted(self, given: Mapping[Owned, int]) -> None:
        """Note that a transaction has committed these offsets."""
        for each, offset in given.items():
            each.transacted = offset

    def rewind(self) -> None:
        """Read again all records whose offsets no transaction has committed: their transaction has failed."""
        self._given.clear()
        self._has_lost = self._is_halfway = False
        self._rewinds += 1
        self._consumer.rewind()

    def _nothing_came(self) -> None:
        if self._consumer.is_settled and self._consumer.term == self._term:
            self._is_over = True
            return
        self._joining_ms += self._wait_ms
        if self._joining_ms > JOIN_TIMEOUT_MS + self._wait_ms:
            raise RequestTimedOut(
                f"the consumer did not join its group and get its offsets within {JOIN_TIMEOUT_MS} ms; a"
                " transaction that commits some of them may be open: begin one of its transactional id, which"
                " aborts it"
            )

    def leave(self) -> Future[Any]:
        """Leave the group, and end the reading; must be called however it ended."""
        self._is_over = True
        return self._consumer.close()


class Consumer(Iterator[Record]):
    """The records that a member of a group reads, from `Cluster.consume`: one after the other, or `batches`.

    `result(ask)` sends a request and waits for its result.
    """

    # Neither generator refers to this object: a loop that is left leaves the group at once.

    def __init__(self, consuming: Consuming, result: Callable[[Question], Any]) -> None:
        self.consuming = consuming
        self._result = result
        self._records = _each(consuming, result)

    def __iter__(self) -> Iterator[Record]:
        # Not itself: each record would cost a call more.
        return self._records

    def __next__(self) -> Record:
        return next(self._records)

    def batches(self) -> Iterator[list[Record]]:
        """Iterate over lists of records, each of those that have come since the last one.

        The records of a list count as processed when the next list is requested.
        """
        return _batches(self.consuming, self._result)

    def close(self) -> None:
        """Leave the group; what was read and not processed is given to the next member.

        Any thread may call; a loop of another thread ends.
        """
        leave(self.consuming.leave, self._result)
        with suppress(ValueError):  # another thread is in the generator, which comes to its end
            self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _each(consuming: Consuming, result: Callable[[Question], Any]) -> Generator[Record]:
    try:
        while (question := consuming.question()) is not None:
            yield from consuming.answer(result(question))
    finally:
        leave(consuming.leave, result)


def _batches(consuming: Consuming, result: Callable[[Question], Any]) -> Generator[list[Record]]:
    consuming.processed()
    try:
        while (question := consuming.question()) is not None:
            if records := consuming.batch(result(question)):
                yield records
                consuming.processed()
    finally:
        leave(consuming.leave, result)


def leave(step: Question, result: Callable[[Question], Any]) -> None:
    """Leave the group by this step of a member, and wait until it has left."""
    with suppress(ClusterClosed):  # the group's coordinator is closed, too
        try:
            result(step)
        except WouldDeadlock:
            # In a callback, or a collection of garbage in a thread of the cluster's. It need not wait.
            step()


def consumer_config(settings: Mapping[str, object], base: ConsumerConfig = CONSUMER) -> ConsumerConfig:
    """Return `base` with these properties changed; by default the settings for one process.

    Raises InvalidConfig.
    """
    known = {field.name.replace("_", "."): field.name for field in fields(ConsumerConfig)}
    changes: dict[str, Any] = {}
    for given, value in settings.items():
        name = given.replace("_", ".")
        if name not in known:
            near = nearest(name, known)
            raise InvalidConfig(f"there is no setting {given!r}" + (f"; is it {near[0]!r}?" if near else ""))
        default = getattr(base, known[name])
        if _kind_of(value) != _kind_of(default):
            raise InvalidConfig(f"{name} must be {_kind_of(default)}, not {value!r}")
        changes[known[name]] = value
    return replace(base, **changes)


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "True or False"
    return "an integer" if isinstance(value, int) else "text"


T = TypeVar("T")


class ClusterRecords:
    """The readers of one cluster's records.

    `newest()`: the most recent metadata of any node. `consumer`: default settings of a group member.
    """

    def __init__(
        self,
        client: Client,
        newest: Callable[[], ClusterMetadata],
        pending: PendingFutures,
        consumer: ConsumerConfig = CONSUMER,
    ) -> None:
        self._client = client
        self._newest = newest
        self._pending = pending
        self._consumer = consumer

    def ask(self, question: Callable[[], Future[T]]) -> Future[T]:
        """Send the request; its future fails with ClusterClosed if the cluster is closed meanwhile.

        Raises ClusterClosed, UseAfterFork.
        """
        self._pending.require_open()
        return self._pending.track(question())

    def tracked(self, future: Future[T]) -> Future[T]:
        """Return the future; it fails as that of `ask`."""
        self._pending.require_open()
        return self._pending.track(future)

    def require(self, topic: str, partition: int) -> TopicPartition:
        """Return the partition. Raises UnknownTopicOrPartition, ClusterClosed, UseAfterFork."""
        self._pending.require_open()
        at = TopicPartition(topic, partition)
        self._newest().require_partition(at)
        return at

    def reading(
        self,
        topic: str,
        partition: int,
        start: int | None,
        stop: int | None,
        isolation: Isolation,
        *,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reading:
        """Return the reader of Cluster.read; `timeout` applies to each request.

        Raises UnknownTopicOrPartition, OffsetOutOfRange, ValueError.
        """
        at = self.require(topic, partition)
        choice(isolation, ISOLATION_LEVEL, "isolation")
        return Reading(
            self._client.fetcher,
            at,
            offset_of(start),
            stop,
            isolation,
            follow=follow,
            timeout_ms=None if timeout is None else milliseconds(timeout),
        )

    def consuming(
        self,
        topics: str | Sequence[str],
        group: str,
        timeout: float | None,
        config: Mapping[str, object] | None,
        isolation: Isolation | None = None,
        *,
        auto_commit: bool = True,
        pattern: str | None = None,
        protocol: Protocol | None = None,
        instance_id: str | None = None,
    ) -> Consuming:
        """Return the reader of Cluster.consume.

        Raises InvalidConfig, InvalidRequest, InvalidTopic, TypeError, ValueError.
        """
        self._pending.require_open()
        names, wanted = subscribed_names(topics), topic_pattern(pattern) or None
        if not names and wanted is None:
            raise ValueError("a consumer reads something: name topics, or a pattern of their names")
        given = dict(config or {})
        if isolation is not None:
            given["isolation.level"] = choice(isolation, ISOLATION_LEVEL, "isolation")
        if not auto_commit:
            given["enable.auto.commit"] = False
        if instance_id is not None:
            given["group.instance.id"] = instance_id
        if protocol is not None:
            given["group.protocol"] = protocol
        made = consumer_config(given, self._consumer)
        if made.group_protocol is None:
            made = replace(made, group_protocol=self._protocol())
        member = self._client.consumer(group_id(group), names, made, pattern=wanted)
        return Consuming(member, None if timeout is None else milliseconds(timeout))

    def _protocol(self) -> Protocol:
        """Return the protocol of consumer groups that the cluster has."""
        return "consumer" if self._newest().features.get(GROUP_VERSION, 0) >= 1 else "classic"

    def share_start(self, group: str, start: str | None) -> Question | None:
        """Return the request for the share group's first offset, if the group has none and one is wanted.

        Raises ValueError.
        """
        if start is None:
            return None
        choice(start, dict.fromkeys(("earliest", "latest")), "start")
        if not group_id(group):
            return None  # its coordinator refuses a group without a name
        if SHARE_RESET in self._newest().config(GROUP_RESOURCE, group):
            return None
        return partial(self._client.admin.alter_config, group, {SHARE_RESET: start}, kind="group")

    def share_consumer(
        self, topics: str | Sequence[str], group: str, max_records: int | None
    ) -> ShareConsumer:
        """Return the consumer of Cluster.share. Raises ClusterClosed, InvalidTopic, TypeError, ValueError."""
        self._pending.require_open()
        if max_records is not None and not isinstance(max_records, int):
            raise TypeError(f"max_records must be a number, not {max_records!r}")
        if max_records is not None and not 0 < max_records <= INT32_MAX:
            raise ValueError(f"max_records={max_records} must be from 1 to {INT32_MAX}")
        names = subscribed_names(topics)
        if not names:
            raise ValueError("a share consumer reads something: name topics")
        return self._client.share_consumer(group_id(group), names, max_records, self._consumer)
