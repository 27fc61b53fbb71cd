"""ShardStore: what a coordinator keeps in the partitions of its internal topic that this broker leads.

When the broker becomes leader of a partition, the store loads it in steps, from the log start to the log end,
and waits until all of that is committed. With fewer replicas in sync than min.insync.replicas, the last
records may be lost to the next leader (KIP-966), and what a coordinator does because of a record cannot be
taken back: the markers of a transaction, an answer. Kafka 4.3 does not wait. Until then the shard is
unavailable (CoordinatorLoadInProgress). Each leadership has its own Shard, which is dropped as a whole. An
append that completes after its shard was dropped fails with NotCoordinator; the log refuses an append with
the leader epoch of another shard.

Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    KafkaStorageError,
    KreplicaError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future
from kreplica.common.ports import Clock, Loop
from kreplica.common.rare_collections import rare_collections
from kreplica.log.producer_append_info import Verification

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOGGER = logging.getLogger(__name__)

# The store and the replicas are notified of leadership on different ways, so one may be earlier.
ROLE_RETRY_MS = 10
LOAD_RETRY_MS = 1_000
COMMIT_RETRY_MS = 10
# Records to replay in one step, in whole batches: a node may do all of its work in one loop.
RECORDS_A_STEP = 2_000

# Errors of an append after which a client repeats its request.
CLIENTS_RETRY = (
    UnknownTopicOrPartition,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)

# The number of groups and transactional ids whose partition is remembered.
REMEMBERED_KEYS = 10_000

Record = tuple[bytes, bytes | None]
# The callback of an append: its error, and the offset of its first record.
Appended = Callable[[KreplicaError | None, int], None]
# The callback of a log: the base offset once all in-sync replicas have the batch, or -1, and the error.
Answered = Callable[[int, BaseException | None], None]


@lru_cache(maxsize=REMEMBERED_KEYS)
def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of a group or transactional id, by Java's hash of it."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return (abs(signed) & 0x7FFFFFFF) % partition_count


class HasLoop(Protocol):
    """A coordinator: its loop does its work."""

    _loop: Loop


C = TypeVar("C", bound=HasLoop)
P = ParamSpec("P")
T = TypeVar("T")


def attempt(future: Future[Any], step: Callable[[], None]) -> None:
    """Run the step that resolves the future. It fails with the error that the step raises.

    An unforeseen error is logged.
    """
    try:
        step()
    except KreplicaError as error:
        future.set_exception(error)
    except Exception as error:
        LOGGER.exception("a request to a coordinator failed")
        if not future.done():
            future.set_exception(UnknownServerError(repr(error)))


def in_loop(
    step: Callable[Concatenate[C, Future[T], P], None],
) -> Callable[Concatenate[C, P], Future[T]]:
    """Let a method run in the coordinator's loop. Callers get its future, see `attempt`."""

    @wraps(step)
    def post(self: C, /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        self._loop.post(partial(attempt, future, partial(step, self, future, *arguments, **named)))
        return future

    return post


class TransactionalProducer(NamedTuple):
    """A producer whose transaction a batch belongs to. `verification`: of UnifiedLog.start_verification."""

    producer_id: int
    producer_epoch: int
    verification: Verification | None = None


class LogChunk(NamedTuple):
    """Whole batches of a partition's log; `records` is None without any. Offsets of the log."""

    records: Buffer | None
    log_start_offset: int
    log_end_offset: int


class CoordinatorLog(Protocol):
    """The logs of a coordinator's topic on this broker.

    Appends fail with, and the other methods raise, FencedLeaderEpoch or NotLeaderOrFollower if this broker
    does not lead the partition in that leader epoch.
    """

    def append(
        self,
        partition: int,
        leader_epoch: int,
        batch: bytes,
        answered: Answered,
        verification: Verification | None = None,
    ) -> None:
        """Append with acks=all; `answered` is called once, in any thread, perhaps before this returns.

        `verification`: see UnifiedLog.start_verification.
        """
        ...

    def read(self, partition: int, leader_epoch: int, offset: int | None, max_bytes: int) -> LogChunk:
        """Read from `offset` (None: the log start), at least one batch, committed or not."""
        ...

    def high_watermark(self, partition: int, leader_epoch: int) -> int:
        """Return the offset below which all records are committed."""
        ...


class Shard(ABC):
    """One partition during one leadership. `is_active`: it is loaded. `is_current`: it is not dropped."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_active = False
        self.is_current = True

    @abstractmethod
    def replay(self, batch: RecordBatch, now_ms: int) -> None:
        """Apply the records of a batch of the log."""

    def activate(self) -> Iterator[None]:
        """Take what was loaded into service, in steps."""
        yield from ()

    @abstractmethod
    def drop(self) -> None:
        """End the service: another broker leads the partition now."""


def _steps(records: Buffer) -> Iterator[list[RecordBatch]]:
    """Yield the batches to replay in each step."""
    step: list[RecordBatch] = []
    count = 0
    for batch in batches(records):
        step.append(batch)
        count += batch.record_count
        if count >= RECORDS_A_STEP:
            yield step
            step, count = [], 0
    yield step


S = TypeVar("S", bound=Shard)


class ShardStore(Generic[S]):
    """Loads and stores the shards of `topic`. `new_shard(partition, leader_epoch)`: makes an empty one."""

    def __init__(
        self,
        topic: str,
        log: CoordinatorLog,
        new_shard: Callable[[int, int], S],
        *,
        load_buffer_size: int,
        clock: Clock,
        loop: Loop,
    ) -> None:
        self.topic = topic
        self.shards: dict[int, S] = {}
        self._log = log
        self._new_shard = new_shard
        self._load_buffer_size = load_buffer_size
        self._clock = clock
        self._loop = loop

    def shard(self, partition: int) -> S:
        """Return the partition's shard.

        Raises NotCoordinator if another broker leads it, CoordinatorLoadInProgress while it is loading.
        """
        shard = self.shards.get(partition)
        if shard is None:
            raise NotCoordinator(f"{self.topic}-{partition} is led by another broker")
        if not shard.is_active:
            raise CoordinatorLoadInProgress(f"{self.topic}-{partition} is being loaded")
        return shard

    def active_shards(self) -> list[S]:
        return [shard for shard in self.shards.values() if shard.is_active]

    @property
    def is_loading(self) -> bool:
        return any(not shard.is_active for shard in self.shards.values())

    # ---- leadership ---------------------------------------------------------------------------------------

    def elect(self, partition: int, leader_epoch: int) -> None:
        """Load the partition, because this broker leads it from that epoch on."""
        known = self.shards.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self.resign(partition)
        shard = self.shards[partition] = self._new_shard(partition, leader_epoch)
        self._step(shard, self._loading(shard))

    def resign(self, partition: int) -> None:
        """Drop the partition, because this broker no longer leads it."""
        shard = self.shards.pop(partition, None)
        if shard is not None:
            shard.is_current = False
            shard.drop()

    def _step(self, shard: S, steps: Iterator[int]) -> None:
        if not shard.is_current:
            return
        delay_ms = next(steps, None)
        if delay_ms is not None:
            self._loop.post_later(partial(self._step, shard, steps), delay_ms)

    def _loading(self, shard: S) -> Iterator[int]:
        """Load the shard in steps; each yields the delay in ms before the next one."""
        offset: int | None = None
        stop: int | None = None
        while stop is None or offset is None or offset < stop:
            try:
                chunk = self._log.read(shard.partition, shard.leader_epoch, offset, self._load_buffer_size)
                if stop is None:
                    offset, stop = chunk.log_start_offset, chunk.log_end_offset
                if chunk.records is None:
                    # Nothing is left before the end: a cleaner has removed it (KAFKA-9065).
                    offset = stop
                for step in _steps(chunk.records or b""):
                    # What is loaded stays: a search for garbage in it is in vain.
                    with rare_collections():
                        for batch in step:
                            batch.check()
                            shard.replay(batch, self._clock.time_ms())
                            offset = batch.next_offset
                    yield 0
            except (NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicOrPartition):
                yield ROLE_RETRY_MS
            except Exception:
                # Damage may be repaired from another replica, or a disk may recover; the shard stays
                # unavailable until then. A record that meets a bug must not end one node after the other.
                LOGGER.exception("%s-%d cannot be loaded; trying again", self.topic, shard.partition)
                yield LOAD_RETRY_MS
        while not self._is_committed(shard, stop):
            yield COMMIT_RETRY_MS
        for _ in shard.activate():
            yield 0
        shard.is_active = True

    def _is_committed(self, shard: S, stop_offset: int) -> bool:
        """Whether all records below that offset are committed."""
        try:
            return self._log.high_watermark(shard.partition, shard.leader_epoch) >= stop_offset
        except KreplicaError:
            # Not the leader, and soon notified of it; or the disk failed, which ends the leadership.
            return False

    # ---- appends ------------------------------------------------------------------------------------------

    def append(
        self,
        shard: S,
        records: Sequence[Record],
        then: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Append the records as one batch, and call `then` in the loop once all in-sync replicas have it.

        `producer`: the producer whose transaction the batch belongs to.
        `then` gets an error suitable for clients, see `error_for_clients`.
        """
        self.append_batch(shard, records, partial(self._answer_client, shard, then), producer)

    def _answer_client(self, shard: S, then: Appended, error: BaseException | None, offset: int) -> None:
        then(None if error is None else self.error_for_clients(shard, error), offset)

    def append_batch(
        self,
        shard: S,
        records: Sequence[Record],
        then: Callable[[BaseException | None, int], None],
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Do as `append`, but `then` gets the log's own error, or NotCoordinator if the shard was dropped."""
        appended = partial(self._appended, shard, then)
        try:
            builder = BatchBuilder()
            if producer is not None:
                builder.transactional = True
                builder.producer_id, builder.producer_epoch = producer.producer_id, producer.producer_epoch
            batch = builder.build(list(records), now_ms=self._clock.time_ms())
        except KreplicaError as error:
            self._loop.post(partial(appended, -1, error))
            return
        verification = None if producer is None else producer.verification
        answered = partial(self._answered, appended)
        self._log.append(shard.partition, shard.leader_epoch, batch, answered, verification)

    def _answered(self, appended: Answered, offset: int, error: BaseException | None) -> None:
        self._loop.post(partial(appended, offset, error))

    def _appended(
        self,
        shard: S,
        then: Callable[[BaseException | None, int], None],
        offset: int,
        error: BaseException | None,
    ) -> None:
        if error is None and not shard.is_current:
            error = NotCoordinator(f"{self.topic}-{shard.partition}: another broker leads it now")
        then(error, offset if error is None else -1)

    def error_for_clients(self, shard: S, error: BaseException) -> KreplicaError:
        """Return the error that a client gets for an append that failed with `error`.

        It is CoordinatorNotAvailable, NotCoordinator, MessageTooLarge, or another KreplicaError.
        """
        text = f"{self.topic}-{shard.partition}: {error}"
        if not shard.is_current or isinstance(
            error, (NotLeaderOrFollower, FencedLeaderEpoch, KafkaStorageError)
        ):
            return NotCoordinator(text)
        if isinstance(error, CLIENTS_RETRY):
            return CoordinatorNotAvailable(text)
        return error if isinstance(error, KreplicaError) else UnknownServerError(text)
