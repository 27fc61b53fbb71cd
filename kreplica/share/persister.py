"""SharePersister: stores the states of share partitions, as a client of the share coordinators (KIP-932).

    read, write ... ──▶ line of the share partition ──▶ lane of a coordinator ──▶ request ──▶ future

The calls of one share partition stand in line: one at a time is under way, so they take effect in their
order. Writes of the same epochs that wait there become one. A lane sends the calls of one kind and group to
one coordinator. One of its requests is in flight, with all calls that have come together meanwhile. A call is
sent again after a pause if its coordinator is missing, has moved or is loading, or if its answer is lost.
Each call may be repeated without harm. Thread rule: any thread may call; all else is done in the persister's
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KreplicaError,
    NotCoordinator,
)
from kreplica.common.future import Future
from kreplica.common.messages.share_groups import (
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteStateData,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    ReadPartition,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    StateBatchData,
    SummaryPartitionResult,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteStateData,
)
from kreplica.common.ports import Loop
from kreplica.common.share_state import SharePartitionKey, ShareState, StateBatch
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of

# The pauses before a call is repeated. Together they are as long as the five of Kafka, which begin with 1 s.
RETRY_BACKOFFS_MS = (50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000)
# Errors after which the call is repeated.
RETRIED = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)
# The most share partitions in one request.
MOST_PARTITIONS = 1_000


class _Kind(NamedTuple):
    """A kind of calls: its request and the parts of it, and how the result of a partition is read."""

    request: Callable[..., Any]
    topic: Callable[..., Any]
    partition: Callable[[int, Any], Any]
    result: Callable[[Any, Any], Any]


class _Call:
    """A call under way. `asked`: its argument; `futures`: of those who wait for it."""

    __slots__ = ("asked", "backoffs_ms", "futures", "key", "kind")

    def __init__(self, kind: _Kind, key: SharePartitionKey, asked: Any) -> None:
        self.kind = kind
        self.key = key
        self.asked = asked
        self.futures: list[Future[Any]] = [Future()]
        self.backoffs_ms = iter(RETRY_BACKOFFS_MS)

    def absorb(self, other: _Call) -> bool:
        """Take over a write that follows; return False if the two must be apart."""
        if self.kind is not WRITE or other.kind is not WRITE or self.asked[:2] != other.asked[:2]:
            return False
        first, second = self.asked, other.asked
        self.asked = second._replace(
            start_offset=max(first.start_offset, second.start_offset),
            batches=(*first.batches, *second.batches),
        )
        self.futures += other.futures
        return True


class _Lane(NamedTuple):
    """Where requests of one kind go."""

    node_id: int
    kind: _Kind
    group_id: str


class SharePersister:
    """Implements `kreplica.common.share_state.Persister` for one broker.

    `send(broker_id, request)`: sends a request, also to this broker. `coordinator(key)`: the broker that
    coordinates the share partition with that name, None if it is unknown now.
    """

    def __init__(
        self,
        send: Callable[[int, Any], Future[Any]],
        coordinator: Callable[[str], int | None],
        loop: Loop,
    ) -> None:
        self._send = send
        self._coordinator = coordinator
        self._loop = loop
        # The calls of each share partition; the first one is under way.
        self._lines: dict[SharePartitionKey, deque[_Call]] = {}
        self._waiting: dict[_Lane, list[_Call]] = {}
        self._in_flight: set[_Lane] = set()

    # ---- the port -----------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Future[None]:
        """Begin a new state without batches at `start_offset`, which may be NO_START_OFFSET."""
        return self._call(INITIALIZE, key, (state_epoch, start_offset))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        """Return the stored state. Earlier leaders are fenced from then on."""
        return self._call(READ, key, leader_epoch)

    def write(self, key: SharePartitionKey, state: ShareState) -> Future[None]:
        """Store the batches over what is stored, and the start offset unless it is NO_START_OFFSET."""
        return self._call(WRITE, key, state)

    def delete(self, key: SharePartitionKey) -> Future[None]:
        """Delete the state. An unknown key is no error."""
        return self._call(DELETE, key, None)

    def summary(self, key: SharePartitionKey, leader_epoch: int) -> Future[ShareState]:
        """Return the state without its batches, and check or record no epoch."""
        return self._call(SUMMARY, key, leader_epoch)

    # ---- lines --------------------------------------------------------------------------------------------

    def _call(self, kind: _Kind, key: SharePartitionKey, asked: Any) -> Future[Any]:
        call = _Call(kind, key, asked)
        [future] = call.futures
        self._loop.post(partial(self._line_up, call))
        return future

    def _line_up(self, call: _Call) -> None:
        line = self._lines.get(call.key)
        if line is None:
            self._lines[call.key] = deque([call])
            self._route(call)
        elif len(line) == 1 or not line[-1].absorb(call):
            line.append(call)

    def _finish(self, call: _Call, result: Any, error: KreplicaError | None) -> None:
        line = self._lines[call.key]
        assert line[0] is call
        line.popleft()
        if line:
            self._route(line[0])
        else:
            del self._lines[call.key]
        for future in call.futures:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(type(error)(str(error)))

    def _retry(self, call: _Call, error: KreplicaError) -> None:
        backoff_ms = next(call.backoffs_ms, None)
        if backoff_ms is None:
            self._finish(call, None, error)
        else:
            self._loop.post_later(partial(self._route, call), backoff_ms)

    # ---- lanes --------------------------------------------------------------------------------------------

    def _route(self, call: _Call) -> None:
        node_id = self._coordinator(str(call.key))
        if node_id is None:
            self._retry(call, CoordinatorNotAvailable(f"{call.key}: its share coordinator is unknown"))
            return
        lane = _Lane(node_id, call.kind, call.key.group_id)
        self._waiting.setdefault(lane, []).append(call)
        self._loop.post(partial(self._flush, lane))

    def _flush(self, lane: _Lane) -> None:
        if lane in self._in_flight or lane not in self._waiting:
            return
        waiting = self._waiting.pop(lane)
        sent, left = waiting[:MOST_PARTITIONS], waiting[MOST_PARTITIONS:]
        if left:
            self._waiting[lane] = left
        self._in_flight.add(lane)
        answer = self._send(lane.node_id, _request(lane, sent))
        answer.add_done_callback(lambda done: self._loop.post(partial(self._answered, lane, sent, done)))

    def _answered(self, lane: _Lane, sent: list[_Call], answer: Future[Any]) -> None:
        self._in_flight.discard(lane)
        failure = answer.exception()
        results = {} if failure is not None else _results(answer.result())
        for call in sent:
            found = results.get((call.key.topic_id, call.key.partition))
            if found is None:
                text = f"{call.key}: no answer of share coordinator {lane.node_id}: {failure}"
                error: KreplicaError | None = CoordinatorNotAvailable(text)
            else:
                error = error_of(found.error_code, found.error_message)
            if isinstance(error, RETRIED):
                self._retry(call, error)
            else:
                self._finish(call, None if error is not None else call.kind.result(found, call.asked), error)
        self._flush(lane)


def _request(lane: _Lane, calls: Sequence[_Call]) -> Any:
    topics: dict[Uuid, list[_Call]] = {}
    for call in calls:
        topics.setdefault(call.key.topic_id, []).append(call)
    kind = lane.kind
    return kind.request(
        group_id=lane.group_id,
        topics=tuple(
            kind.topic(
                topic_id=uuid_of(topic_id),
                partitions=tuple(kind.partition(each.key.partition, each.asked) for each in found),
            )
            for topic_id, found in topics.items()
        ),
    )


def _results(response: Any) -> Mapping[tuple[Uuid, int], Any]:
    return {
        (topic_id_of(topic.topic_id), each.partition): each
        for topic in response.results
        for each in topic.partitions
    }


def _initialized(number: int, asked: tuple[int, int]) -> InitializePartition:
    state_epoch, start_offset = asked
    return InitializePartition(partition=number, state_epoch=state_epoch, start_offset=start_offset)


def _read(number: int, leader_epoch: int) -> ReadPartition:
    return ReadPartition(partition=number, leader_epoch=leader_epoch)


def _written(number: int, state: ShareState) -> WritePartition:
    return WritePartition(
        partition=number,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        state_batches=tuple(
            StateBatchData(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in state.batches
        ),
    )


def _state(found: ReadPartitionResult, leader_epoch: int) -> ShareState:
    return ShareState(
        found.state_epoch,
        leader_epoch,
        found.start_offset,
        tuple(
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in found.state_batches
        ),
    )


def _summary(found: SummaryPartitionResult, _: int) -> ShareState:
    return ShareState(
        found.state_epoch,
        found.leader_epoch,
        found.start_offset,
        delivery_complete_count=found.delivery_complete_count,
    )


def _nothing(_found: Any, _asked: Any) -> None:
    return None


INITIALIZE = _Kind(InitializeShareGroupStateRequest, InitializeStateData, _initialized, _nothing)
READ = _Kind(ReadShareGroupStateRequest, ReadStateData, _read, _state)
WRITE = _Kind(WriteShareGroupStateRequest, WriteStateData, _written, _nothing)
DELETE = _Kind(
    DeleteShareGroupStateRequest,
    DeleteStateData,
    lambda number, _: DeletePartition(partition=number),
    _nothing,
)
SUMMARY = _Kind(ReadShareGroupStateSummaryRequest, ReadStateData, _read, _summary)
