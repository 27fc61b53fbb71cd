"""kreplica for asyncio: Log and Cluster with calls that wait without blocking the event loop.

    async with aio.Log.open("data/orders-0") as log:
        info = await log.append([b"value"])
        async for record in log.read(): ...

    async with aio.Cluster.open(brokers=3) as cluster:
        await cluster.create_topic("orders")
        await cluster.append("orders", [b"value"], partition=0)
        async for record in cluster.consume("orders", group="billing"): ...

Calls that wait for a disk, and close(), run in the loop's default executor. Calls that wait for a replica
are futures of the cluster and need no thread. Arguments, results and errors are those of `kreplica.Log` and
`kreplica.Cluster`; the attributes `.log` and `.cluster` give access to the rest. Thread rule: call only from
the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, cast

from kreplica import engine
from kreplica._core.record import Record
from kreplica.client import client_config
from kreplica.client.arguments import milliseconds
from kreplica.client.client_config import Isolation
from kreplica.client.producer import Acks, AppendResult, TopicProducer
from kreplica.cluster.cluster import Cluster as BlockingCluster
from kreplica.cluster.records import Consuming, Question
from kreplica.cluster.share import Received, Sharing
from kreplica.cluster.transactions import TRANSACTION_TIMEOUT, Offsets, Transacting
from kreplica.cluster.views import PartitionView
from kreplica.common.errors import ClusterClosed
from kreplica.common.future import Future
from kreplica.engine import LogAppendInfo
from kreplica.metadata import watches
from kreplica.metadata.image_format import ROOT
from kreplica.metadata.image_paths import TreeChange
from kreplica.metadata.watches import MAX_PENDING

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList

__all__ = ["Cluster", "Log"]

T = TypeVar("T")

# Records taken from a log per turn in the executor.
PIECE = 1_000
# Stands for the answer to a member of a group that has left.
END = object()


async def _in_executor(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, partial(call, *arguments, **named))


class _Closing(Protocol):
    """What can be opened."""

    async def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closing)


class Opening(Coroutine[Any, Any, Opened]):
    """A log or a cluster that is being opened: await it, enter it by `async with`, or give it to a task."""

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._opening = opening
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._opening.__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        assert self._opened is not None
        await self._opened.close()

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opening.throw(*error)

    def close(self) -> None:
        self._opening.close()


class Log:
    """`kreplica.Log` for asyncio; create it with `async with Log.open(...)`, or `await Log.open(...)`."""

    def __init__(self, log: engine.Log) -> None:
        self.log = log

    @classmethod
    def open(cls, path: Any, **options: Any) -> Opening[Log]:
        """Open a log as `kreplica.Log.open` does, recovery included."""
        return Opening(cls._open(path, options))

    @classmethod
    async def _open(cls, path: Any, options: dict[str, Any]) -> Log:
        return cls(await _in_executor(engine.Log.open, path, **options))

    async def append(self, records: RecordList, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append records as `kreplica.Log.append` does.

        Concurrent appends share a flush, in no defined order. A cancelled append may have been carried out.
        """
        return await _in_executor(self.log.append, records, leader_epoch=leader_epoch)

    async def append_one(
        self, value: bytes | None, key: bytes | None = None, **options: Any
    ) -> LogAppendInfo:
        """Append one record as `kreplica.Log.append_one` does."""
        return await _in_executor(self.log.append_one, value, key, **options)

    async def append_batch(self, batch: bytes, *, leader_epoch: int | None = None) -> LogAppendInfo:
        """Append one batch as `kreplica.Log.append_batch` does."""
        return await _in_executor(self.log.append_batch, batch, leader_epoch=leader_epoch)

    async def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Any = "log_end",
        follow: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Record]:
        """Iterate over records as `kreplica.Log.read` does."""
        # Only checks the arguments: a read that follows would hold a thread of the executor while it waits.
        self.log.read(start, stop, isolation=isolation, follow=follow, timeout=timeout)
        offset, pause, idle = start, engine.SHORTEST_PAUSE, 0.0
        while True:
            records: Iterator[Record] = self.log.read(offset, stop, isolation=isolation)
            has_come = False
            while piece := await _in_executor(_take, records):
                for record in piece:
                    yield record
                    offset = (record.offset or 0) + 1
                has_come = True
            if not follow or (stop is not None and offset is not None and offset >= stop):
                return
            idle = 0.0 if has_come else idle
            pause = engine.SHORTEST_PAUSE if has_come else min(2 * pause, engine.LONGEST_PAUSE)
            if timeout is not None and idle >= timeout:
                return
            await asyncio.sleep(pause)
            idle += pause

    async def flush(self) -> int:
        """Flush as `kreplica.Log.flush` does."""
        return await _in_executor(self.log.flush)

    async def close(self) -> None:
        """Close as `kreplica.Log.close` does."""
        await _in_executor(self.log.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.{self.log!r}"


def _take(records: Iterator[Record]) -> list[Record]:
    return list(islice(records, PIECE))


class Watch:
    """The changes of a cluster's metadata, from `Cluster.watch`. Close it, or use it in `async with`."""

    def __init__(self, watch: watches.Watch, timeout: float | None) -> None:
        self._watch = watch
        self._timeout = timeout

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TreeChange:
        while (change := self._watch.pop()) is None:
            if self._watch.is_closed:
                raise StopAsyncIteration
            try:
                await asyncio.wait_for(asyncio.wrap_future(self._watch.ready()), self._timeout)
            except TimeoutError:
                raise StopAsyncIteration from None
        return change

    async def close(self) -> None:
        """End the watch."""
        self._watch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.close()


class _Appends:
    """Passes the results of appends to one event loop, all that are done by then in one of its callbacks.

    Waking the loop for each append would cost more than the append. Thread rule: any thread calls `done`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[tuple[asyncio.Future[AppendResult], bool, Future[AppendResult]]] = deque()
        self._is_awake = False  # a call of `_pass_on` is scheduled

    def waiting_for(
        self, append: Future[AppendResult], *, may_be_dropped: bool
    ) -> asyncio.Future[AppendResult]:
        """Return the loop's future for the append. `may_be_dropped`: an error that no task asks for is not
        logged.
        """
        waiting: asyncio.Future[AppendResult] = self.loop.create_future()
        append.add_done_callback(partial(self._is_done, waiting, may_be_dropped))
        return waiting

    def _is_done(
        self, waiting: asyncio.Future[AppendResult], may_be_dropped: bool, append: Future[AppendResult]
    ) -> None:
        self._done.append((waiting, may_be_dropped, append))
        if not self._is_awake and not self.loop.is_closed():
            self._is_awake = True
            self.loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        # What is done from here on schedules the next call.
        self._is_awake = False
        while self._done:
            waiting, may_be_dropped, append = self._done.popleft()
            if waiting.done():
                continue  # it was cancelled
            if (error := append.exception()) is not None:
                waiting.set_exception(error)
                if may_be_dropped:
                    waiting.exception()
            else:
                waiting.set_result(append.result())


S = TypeVar("S", bound="Consuming | Sharing[Message]")


class _Reader(Generic[S]):
    """The requests of a group's member, one at a time, for one task at a time.

    A task that stops waiting, as in `asyncio.wait_for`, loses nothing: the next wait is for the same answer.
    The loops that read refer to this object, and to the Consumer or Messages only as long as they run.
    """

    def __init__(self, source: S, ask: Callable[[Question], Future[Any]]) -> None:
        self.source = source
        self.found: Iterator[Any] = iter(())  # what is left of the last answer
        self._ask = ask
        self._asked: Future[Any] | None = None
        self._is_busy = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def more(self) -> bool:
        """Wait for the next answer to `found`; False at the end. Raises as `answer`."""
        answer = await self.answer()
        if answer is not END:
            self.found = self.source.answer(answer)
        return answer is not END

    async def answer(self) -> Any:
        """Return the next answer, or END when the member has left the group.

        Raises the errors of requests, after it has left, and RuntimeError if another task waits.
        """
        if self._is_busy:
            raise RuntimeError("another task waits for the next records of this member of a group already")
        self._is_busy = True
        try:
            if self._asked is None:
                question = self.source.question()
                if question is None:
                    await self.leave()
                    return END
                self._asked = self._ask(question)
            answer = await self._result(self._asked)
            self._asked = None
            return answer
        except Exception:
            self._asked = None
            await self.leave()
            raise
        finally:
            self._is_busy = False

    async def _result(self, future: Future[Any]) -> Any:
        """Return the future's result; unlike `asyncio.wrap_future`, let it go on if the task is cancelled."""
        loop = self._loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        future.add_done_callback(partial(_wake, waiting, loop))
        await waiting
        return future.result()

    async def leave(self) -> None:
        """Leave the group."""
        with suppress(ClusterClosed):  # the group's coordinator is closed, too
            await self._result(self._ask(self.source.leave))

    def drop(self) -> None:
        """Leave the group, for an object that has gone; any thread may call."""
        if self._loop is None:
            return  # it has never asked
        if self._loop.is_running():
            # Here some lock may be held: a collection may begin anywhere.
            self._loop.call_soon_threadsafe(self.source.leave)
        else:
            self.source.leave()


def _wake(waiting: asyncio.Future[None], loop: asyncio.AbstractEventLoop, _: object) -> None:
    def wake() -> None:
        if not waiting.done():  # otherwise the task was cancelled
            waiting.set_result(None)

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(wake)


class _Reading(Generic[S, T]):
    """What `Cluster.consume` and `Cluster.share` return: it is in the group until it is closed or gone."""

    def __init__(self, source: S, ask: Callable[[Question], Future[Any]]) -> None:
        self._reader = _Reader(source, ask)

    def __aiter__(self) -> AsyncIterator[T]:
        # Not itself: each record would cost a call more.
        return _each(self, self._reader)

    async def __anext__(self) -> T:
        try:
            reader = self._reader
            while True:
                for each in reader.found:
                    return cast(T, each)
                if not await reader.more():
                    raise StopAsyncIteration
        finally:
            # The traceback of a task that was cancelled must not keep the member in its group.
            del self

    def batches(self) -> AsyncIterator[list[T]]:
        """Iterate over lists, each of what has come since the last one.

        The items of a list count as processed when the next list is requested.
        """
        return _Batches(self, self._reader)

    async def aclose(self) -> None:
        """Leave the group; what is not processed is given to other members. A loop of another task ends."""
        await self._reader.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._reader.drop()


async def _each(reading: _Reading[Any, T], reader: _Reader[Any]) -> AsyncGenerator[T, None]:
    try:
        while True:
            for each in reader.found:
                yield each
            if not await reader.more():
                return
    finally:
        del reading  # see __anext__


class _Batches(Generic[T]):
    """The lists of `batches`; they keep `reading` in its group."""

    def __init__(self, reading: _Reading[Any, T], reader: _Reader[Any]) -> None:
        self._reading = reading
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[T]:
        try:
            reader = self._reader
            reader.source.processed()
            while (answer := await reader.answer()) is not END:
                if found := reader.source.batch(answer):
                    return cast("list[T]", found)
            raise StopAsyncIteration
        finally:
            del self  # see _Reading.__anext__


class Consumer(_Reading[Consuming, Record]):
    """The records that a member of a group reads, from `Cluster.consume`; see `kreplica.Cluster.consume`.

    It leaves the group when the program no longer refers to it, as after a loop that was left; to wait for
    that, close the consumer (`async with`). A wait with a time limit may be repeated:
    `await asyncio.wait_for(anext(consumer), 1)`.
    """

    @property
    def consuming(self) -> Consuming:
        return self._reader.source


class Message(Received[Awaitable[None]]):
    """A message from `Cluster.share`; see `kreplica.Cluster.share`. Its methods need not be awaited."""

    __slots__ = ()


class Messages(_Reading[Sharing[Message], Message]):
    """The messages of a share group that come to this program, from `Cluster.share`.

    It leaves the group when the program no longer refers to it, as after a loop that was left, and releases
    all messages that are not settled; to wait for that, close this object (`async with`). A wait with a time
    limit may be repeated, as that of a Consumer.
    """


class Transaction:
    """A transaction, from `Cluster.transaction`, for `async with`; see `kreplica.Cluster.transaction`.

    It is aborted if its task is cancelled in the block. If the task is cancelled while it commits, at the end
    of the block or in `commit`, the commit goes on.
    """

    def __init__(self, steps: Transacting, appends: Callable[..., asyncio.Future[AppendResult]]) -> None:
        self._steps = steps
        self._append = appends

    def append(
        self, topic: str, records: RecordList, *, partition: int | None = None, timeout: float | None = None
    ) -> asyncio.Future[AppendResult]:
        """Append records; the calls take effect in order, awaited or not."""
        return self._append(self._steps, topic, records, partition, timeout)

    async def commit_offsets(self, source: str | Consumer, offsets: Offsets | None = None) -> None:
        """Commit offsets of a consumer group with the transaction."""
        of = source.consuming if isinstance(source, Consumer) else source
        await asyncio.wrap_future(self._steps.commit_offsets(of, offsets))

    async def commit(self) -> None:
        """Commit now, before the block ends."""
        await asyncio.wrap_future(self._steps.end(commit=True))

    async def abort(self) -> None:
        """Abort now, before the block ends."""
        await asyncio.wrap_future(self._steps.end(commit=False))

    async def __aenter__(self) -> Self:
        self._steps.require_new()
        try:
            await asyncio.wrap_future(self._steps.begin())
        except BaseException:
            self._steps.give_up()
            raise
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._steps.has_ended:
            return
        if error is None:
            await self.commit()
        else:
            with self._steps.noting(error):
                await self.abort()


class Cluster:
    """`kreplica.Cluster` for asyncio; create it with `async with Cluster.open(...)`, or await that."""

    def __init__(self, cluster: BlockingCluster) -> None:
        self.cluster = cluster
        self._appends: _Appends | None = None  # of the loop that has made the last one

    @classmethod
    def open(cls, brokers: int = 3, directory: Any = None, **options: Any) -> Opening[Cluster]:
        """Start a `kreplica.Cluster`; once it is open, every broker is able to lead."""
        return Opening(cls._open(brokers, directory, options))

    @classmethod
    async def _open(cls, brokers: int, directory: Any, options: dict[str, Any]) -> Cluster:
        return cls(await _in_executor(BlockingCluster, brokers, directory, **options))

    # ---- records ------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: RecordList,
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Append as `kreplica.Cluster.append` does; the calls take effect in order, awaited or not.

        Cancelling the future only stops waiting; the records may still be appended. The call itself never
        waits, so a program that awaits none of its futures can fill the memory.
        """
        return self._append_by(self.cluster.producer, topic, records, partition, acks, timeout)

    def append_one(
        self,
        topic: str,
        value: bytes | bytearray | memoryview | None,
        key: bytes | bytearray | memoryview | None = None,
        headers: Sequence[tuple[str, bytes | bytearray | memoryview | None]] = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Append one record as `kreplica.Cluster.append_one` does."""
        record = Record(value, key, headers, timestamp)
        return self.append(topic, [record], partition=partition, acks=acks, timeout=timeout)

    def _append_by(
        self, producer: TopicProducer | Transacting, *arguments: Any
    ) -> asyncio.Future[AppendResult]:
        loop, appends = asyncio.get_running_loop(), self._appends
        if appends is None or appends.loop is not loop:
            appends = self._appends = _Appends(loop)
        # The end of a transaction raises the error of an append that has failed.
        is_in_transaction = isinstance(producer, Transacting)
        return appends.waiting_for(producer.append(*arguments), may_be_dropped=is_in_transaction)

    def transaction(
        self, transactional_id: str, *, source: Consumer | None = None, timeout: float = TRANSACTION_TIMEOUT
    ) -> Transaction:
        """Return a transaction as `kreplica.Cluster.transaction` does, for `async with`."""
        steps = self.cluster.transactions.transaction(transactional_id, source, timeout)
        return Transaction(steps, self._append_by)

    async def read(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        stop: int | None = None,
        *,
        follow: bool = False,
        isolation: Isolation = "high_watermark",
    ) -> AsyncIterator[Record]:
        """Iterate over records as `kreplica.Cluster.read` does."""
        reading = self.cluster.records.reading(topic, partition, start, stop, isolation, follow=follow)
        while (question := reading.question()) is not None:
            for record in reading.answer(await self._ask(question)):
                yield record

    def consume(
        self,
        topics: str | Sequence[str] = (),
        group: str = "",
        *,
        pattern: str | None = None,
        instance_id: str | None = None,
        protocol: client_config.Protocol | None = None,
        isolation: Isolation | None = None,
        auto_commit: bool = True,
        timeout: float | None = None,
        config: Any = None,
    ) -> Consumer:
        """Iterate over records as `kreplica.Cluster.consume` does."""
        records = self.cluster.records
        consuming = records.consuming(
            topics,
            group,
            timeout,
            config,
            isolation,
            auto_commit=auto_commit,
            pattern=pattern,
            protocol=protocol,
            instance_id=instance_id,
        )
        return Consumer(consuming, records.ask)

    def share(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] | None = "earliest",
        max_records: int | None = None,
        auto_accept: bool = True,
        timeout: float | None = None,
    ) -> Messages:
        """Take messages as `kreplica.Cluster.share` does; await what a message's methods return."""
        prepare = self.cluster.records.share_start(group, start)
        consumer = self.cluster.records.share_consumer(topics, group, max_records)
        wait_ms = None if timeout is None else milliseconds(timeout)
        sharing = Sharing(consumer, self._settled, Message, wait_ms, auto_accept=auto_accept, prepare=prepare)
        return Messages(sharing, self.cluster.records.ask)

    def _settled(self, future: Future[None]) -> Awaitable[None]:
        wrapped = asyncio.wrap_future(self.cluster.records.tracked(future))
        # A program that does not wait for it does not want to hear of it: the message comes again.
        wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
        return wrapped

    async def _ask(self, question: Question) -> Any:
        return await asyncio.wrap_future(self.cluster.records.ask(question))

    def watch(
        self,
        path: str = ROOT,
        *,
        timeout: float | None = None,
        initial: bool = False,
        max_pending: int = MAX_PENDING,
    ) -> Watch:
        """Observe the cluster as `kreplica.Cluster.watch` does, with `async for`."""
        return Watch(self.cluster.open_watch(path, initial=initial, max_pending=max_pending), timeout)

    # ---- topics and nodes ---------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **options: Any
    ) -> None:
        """Create a topic as `kreplica.Cluster.create_topic` does."""
        await _in_executor(self.cluster.create_topic, name, partitions, replication_factor, **options)

    async def delete_topic(self, name: str, **options: Any) -> None:
        """Delete a topic as `kreplica.Cluster.delete_topic` does."""
        await _in_executor(self.cluster.delete_topic, name, **options)

    async def create_partitions(self, name: str, count: int, **options: Any) -> None:
        """Add partitions as `kreplica.Cluster.create_partitions` does."""
        await _in_executor(self.cluster.create_partitions, name, count, **options)

    async def alter_config(self, name: str, changes: Any, **options: Any) -> None:
        """Change a topic's settings as `kreplica.Cluster.alter_config` does."""
        await _in_executor(self.cluster.alter_config, name, changes, **options)

    async def reassign(
        self, topic: str, partition: int, replicas: Sequence[int] | None, **options: Any
    ) -> None:
        """Change a partition's replicas as `kreplica.Cluster.reassign` does."""
        await _in_executor(self.cluster.reassign, topic, partition, replicas, **options)

    async def elect(
        self,
        topic: str,
        partition: int = 0,
        kind: Literal["preferred", "unclean"] = "preferred",
        **options: Any,
    ) -> None:
        """Elect a leader as `kreplica.Cluster.elect` does."""
        await _in_executor(self.cluster.elect, topic, partition, kind, **options)

    async def start(self, node_id: int, **options: Any) -> None:
        """Start a node as `kreplica.Cluster.start` does."""
        await _in_executor(self.cluster.start, node_id, **options)

    async def stop(self, node_id: int, **options: Any) -> None:
        """Stop a node as `kreplica.Cluster.stop` does."""
        await _in_executor(self.cluster.stop, node_id, **options)

    async def kill(self, node_id: int) -> None:
        """Kill a node as `kreplica.Cluster.kill` does."""
        await _in_executor(self.cluster.kill, node_id)

    def partition(self, topic: str, partition: int = 0) -> PartitionView:
        """Return the state of a partition as `kreplica.Cluster.partition` does, without waiting."""
        return self.cluster.partition(topic, partition)

    @property
    def bootstrap_servers(self) -> str:
        """The address for Kafka clients, as in `kreplica.Cluster.bootstrap_servers`."""
        return self.cluster.bootstrap_servers

    def client_config(self, user: str | None = None, *, mechanism: str = "PLAIN") -> dict[str, Any]:
        """The properties of librdkafka, as `kreplica.Cluster.client_config` returns them."""
        return self.cluster.client_config(user, mechanism=mechanism)

    def client_properties(self, user: str | None = None, *, mechanism: str = "PLAIN") -> dict[str, str]:
        """The properties of Kafka's clients, as `kreplica.Cluster.client_properties` returns them."""
        return self.cluster.client_properties(user, mechanism=mechanism)

    def token(self, user: str | None = None, *, lifetime_s: float = 3600.0) -> str:
        """A token of OAUTHBEARER, as `kreplica.Cluster.token` returns it."""
        return self.cluster.token(user, lifetime_s=lifetime_s)

    async def close(self) -> None:
        """Close as `kreplica.Cluster.close` does."""
        await _in_executor(self.cluster.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.{self.cluster!r}"
