"""Taking messages from a cluster as a member of a share group: the object of `cluster.share(...)`.

`Sharing` returns the next request and turns its answer into messages, as `Consuming` does for consumer
groups. Thread rule: one thread at a time takes messages; any thread may settle them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from kreplica._core.record import Record
from kreplica.client.share_consumer import ACCEPT, REJECT, RELEASE, RENEW, Acquired, ShareConsumer
from kreplica.cluster.records import JOIN_TIMEOUT_MS, POLL_MS, Question, leave
from kreplica.common.errors import InvalidRecordState, InvalidRequest, RequestTimedOut
from kreplica.common.future import Future

F = TypeVar("F")


class Received(Generic[F]):
    """A message that this program has taken from a topic, for itself until its lock runs out.

    `delivery_count`: how often it was delivered, with this time. `record`: the record that it is.
    """

    __slots__ = ("_acquired", "_settle")

    def __init__(self, acquired: Acquired, settle: Callable[[Acquired, int], F]) -> None:
        self._acquired = acquired
        self._settle = settle

    def accept(self) -> F:
        """Settle the message as processed: no member of the group gets it again."""
        return self._settle(self._acquired, ACCEPT)

    def release(self) -> F:
        """Give the message back: a member of the group gets it soon, unless it was delivered too often."""
        return self._settle(self._acquired, RELEASE)

    def reject(self) -> F:
        """Settle the message as one that cannot be processed: no member of the group gets it again."""
        return self._settle(self._acquired, REJECT)

    def renew(self) -> F:
        """Start the time of the message's lock again, to process it for longer."""
        return self._settle(self._acquired, RENEW)

    @property
    def record(self) -> Record:
        return self._acquired.record

    @property
    def topic(self) -> str:
        return self._acquired.at.topic

    @property
    def partition(self) -> int:
        return self._acquired.at.partition

    @property
    def offset(self) -> int:
        return self._acquired.record.offset or 0

    @property
    def timestamp(self) -> int | None:
        return self._acquired.record.timestamp

    @property
    def key(self) -> bytes | None:
        return self._acquired.record.key

    @property
    def value(self) -> bytes | None:
        return self._acquired.record.value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return self._acquired.record.headers

    @property
    def delivery_count(self) -> int:
        return self._acquired.delivery_count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._acquired.at} offset={self.offset} value={self.value!r}>"


class Message(Received[Future[None]]):
    """A message from `Cluster.share`.

    The futures of its methods are done when the new state is on all in-sync replicas. They fail with
    InvalidRecordState if the lock has run out meanwhile, and with NetworkException if the outcome is unknown;
    the message may be delivered again then. The methods raise InvalidRecordState if the message is settled.
    """

    __slots__ = ()


M = TypeVar("M", bound=Received[Any])


class Sharing(Generic[M]):
    """A share consumer's messages, poll by poll; ends after `timeout_ms` as a member without any message.

    With `auto_accept` a message that is not settled when the next one is requested counts as accepted.
    `message(acquired, settle)`: the class of the messages. `track`: what a message's methods make of their
    future; raises ClusterClosed. `prepare`: a request before the first poll.
    """

    def __init__(
        self,
        consumer: ShareConsumer,
        track: Callable[[Future[None]], Any],
        message: Callable[[Acquired, Callable[[Acquired, int], Any]], M],
        timeout_ms: int | None,
        *,
        auto_accept: bool,
        prepare: Question | None = None,
    ) -> None:
        self._prepare = prepare
        self._consumer = consumer
        self._track = track
        self._message = message
        self._is_endless = timeout_ms is None
        self._wait_ms = POLL_MS if timeout_ms is None else max(timeout_ms, 1)
        self._auto_accept = auto_accept
        self._joining_ms = 0
        self._was_settled = self._is_over = False
        self._given: list[Acquired] = []
        self._is_halfway = False  # in an answer whose messages are given out one by one

    def settle(self, acquired: Acquired, kind: int) -> Any:
        """Send the message's new state. Raises InvalidRecordState if it is settled, ClusterClosed."""
        if acquired.is_settled:
            raise InvalidRecordState(
                f"{acquired.at}: the message at offset {acquired.record.offset} is settled already"
            )
        acquired.is_settled = kind != RENEW
        return self._track(self._consumer.acknowledge(acquired, kind))

    def question(self) -> Question | None:
        """Return the next request; None at the end, after which the caller must call `leave`."""
        if self._is_over:
            return None
        if self._prepare is not None:
            prepare, self._prepare = self._prepare, None
            return prepare
        self._was_settled = self._consumer.is_settled
        return lambda: self._consumer.poll(self._wait_ms)

    def answer(self, found: Sequence[Acquired] | None) -> Iterator[M]:
        """Iterate over the messages of the answer, accepting each when the next is requested.

        Raises RequestTimedOut if the group assigns no partition.
        """
        if found is None:  # the answer of `prepare`
            return
        self._accept_batch()
        self._look_for_end(found)
        consumer, accepts = self._consumer, self._auto_accept
        self._is_halfway = True
        for each in found:
            if self._is_over:
                return
            if consumer.claim(each):  # otherwise another member may have it
                yield self._message(each, self.settle)
                if accepts and not each.is_settled:
                    self._accept(each)
        self._is_halfway = False

    def batch(self, found: Sequence[Acquired] | None) -> list[M]:
        """Return all messages of the answer; `processed` accepts them. Raises as `answer`."""
        if found is None:
            return []
        self._look_for_end(found)
        # Another member may have those whose locks have run out.
        self._given = [each for each in found if self._consumer.claim(each)]
        return [self._message(each, self.settle) for each in self._given]

    def processed(self) -> None:
        """Accept the messages of the last `batch` that are not settled.

        Raises InvalidRequest if a loop has taken only some of the messages that came last.
        """
        if self._is_halfway:
            raise InvalidRequest(
                "some messages that have come were taken one by one, and others are left: take all of them in"
                " one way"
            )
        self._accept_batch()

    def _accept_batch(self) -> None:
        if self._auto_accept:
            for each in self._given:
                if not each.is_settled:
                    self._accept(each)
        self._given = []

    def _accept(self, acquired: Acquired) -> None:
        acquired.is_settled = True
        self._consumer.acknowledge_later(acquired, ACCEPT)

    def _look_for_end(self, found: Sequence[Acquired]) -> None:
        if found or self._is_endless:
            return
        if self._was_settled:
            self._is_over = True
            return
        self._joining_ms += self._wait_ms
        if self._joining_ms > JOIN_TIMEOUT_MS + self._wait_ms:
            raise RequestTimedOut(
                f"the share group has assigned no partition within {JOIN_TIMEOUT_MS} ms: is there the topic?"
            )

    def leave(self) -> Future[Any]:
        """Release all messages that are not settled, leave the group, and end the iteration."""
        self._is_over = True
        return self._consumer.close()


class Messages(Iterator[Message]):
    """The messages of a share group that come to this program, from `Cluster.share`.

    `result(ask)` sends a request and waits for its result.
    """

    # Neither generator refers to this object: a loop that is left leaves the group at once.

    def __init__(self, sharing: Sharing[Message], result: Callable[[Question], Any]) -> None:
        self.sharing = sharing
        self._result = result
        self._messages = _each(sharing, result)

    def __iter__(self) -> Iterator[Message]:
        return self._messages

    def __next__(self) -> Message:
        return next(self._messages)

    def batches(self) -> Iterator[list[Message]]:
        """Iterate over lists of messages, each of those that have come since the last one."""
        return _batches(self.sharing, self._result)

    def close(self) -> None:
        """Leave the group; all messages that are not settled are released to other members.

        Any thread may call; a loop of another thread ends.
        """
        leave(self.sharing.leave, self._result)
        with suppress(ValueError):  # another thread is in the generator, which comes to its end
            self._messages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _each(sharing: Sharing[Message], result: Callable[[Question], Any]) -> Generator[Message]:
    try:
        while (question := sharing.question()) is not None:
            yield from sharing.answer(result(question))
    finally:
        leave(sharing.leave, result)


def _batches(sharing: Sharing[Message], result: Callable[[Question], Any]) -> Generator[list[Message]]:
    sharing.processed()
    try:
        while (question := sharing.question()) is not None:
            if messages := sharing.batch(result(question)):
                yield messages
                sharing.processed()
    finally:
        leave(sharing.leave, result)
