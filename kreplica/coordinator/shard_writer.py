"""ShardWriter: changes the state of a shard by records only, and appends them in groups.

A request's handler reads the state in memory and puts changes, each a key and a value (None: a tombstone).
They are applied to memory at once, by the code that replays the log, so memory always equals a replay of the
log, and the handler reads what it has put. All that a handler puts is in one batch. One append is in flight;
writes that come meanwhile form the next batch. A write is done when all in-sync replicas have its records.

    outcome of an append     memory                          its requests   later requests
    done                     stays                           succeed        are appended
    certainly not in the log is undone, with all built on it fail           fail
    unknown                  stays: the log has the records  fail           fail until a repetition is done

Every change of memory by `apply` must go through the UndoLog. Other appends to the same partition go through
`append`, which keeps the order of the log. Thread rule: everything runs in the coordinator's loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    KreplicaError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
)
from kreplica.common.ports import Loop
from kreplica.coordinator.shard_store import Appended, Record, Shard, ShardStore, TransactionalProducer

# Errors of an append whose batch may be in the log.
OUTCOME_UNKNOWN = (NotEnoughReplicasAfterAppend, RequestTimedOut, NotLeaderOrFollower, FencedLeaderEpoch)
# Errors that only concern the batch that they were raised for.
OF_ONE_BATCH = (MessageTooLarge, RecordListTooLarge)
# How long to wait before a batch of unknown outcome is appended again.
REPEAT_MS = 500
# Writes are appended as one batch up to this size. It is below the default of message.max.bytes (1,048,588).
MAX_BATCH_BYTES = 900_000
# An upper bound of what a record needs besides its key and value.
RECORD_OVERHEAD_BYTES = 32

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
N = TypeVar("N", bound=Hashable)

Put = Callable[[K, V | None], None]
Written = Callable[[KreplicaError | None], None]
_ABSENT: Any = object()


class UndoLog:
    """The steps that undo changes of memory. It keeps them only while a writer applies changes."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] | None = None

    def set_item(self, mapping: MutableMapping[N, T], key: N, value: T) -> None:
        """Do `mapping[key] = value`."""
        if self._steps is not None:
            old = mapping.get(key, _ABSENT)
            if old is _ABSENT:
                self._steps.append(partial(mapping.pop, key))
            else:
                self._steps.append(partial(mapping.__setitem__, key, old))
        mapping[key] = value

    def pop_item(self, mapping: MutableMapping[N, T], key: N) -> T | None:
        """Remove the key and return its value; None if it is missing."""
        if key not in mapping:
            return None
        old = mapping.pop(key)
        if self._steps is not None:
            self._steps.append(partial(mapping.__setitem__, key, old))
        return old

    def set_attribute(self, target: object, name: str, value: object) -> None:
        """Do `target.name = value`."""
        if self._steps is not None:
            self._steps.append(partial(setattr, target, name, getattr(target, name)))
        setattr(target, name, value)

    def add(self, step: Callable[[], object]) -> None:
        """Call `step` if the change that is being applied is undone. Steps run in reverse order."""
        if self._steps is not None:
            self._steps.append(step)

    @contextmanager
    def keeping(self, steps: list[Callable[[], object]]) -> Iterator[None]:
        """Add the steps of the changes made meanwhile to `steps`. If it raises, they are undone."""
        before, outer = len(steps), self._steps
        self._steps = steps
        try:
            yield
        except BaseException:
            self._steps = None
            undo(steps, before)
            raise
        finally:
            self._steps = outer


def undo(steps: list[Callable[[], object]], until: int = 0) -> None:
    """Run the steps from the last one back to number `until`, and drop them."""
    while len(steps) > until:
        steps.pop()()


@dataclass(slots=True, eq=False)
class _Batch:
    """Records to append, what undoes them in memory, and what waits for them.

    `appended`: the callback of an `append`, which has a batch of its own and changes nothing in memory.
    """

    records: list[Record] = field(default_factory=list)
    steps: list[Callable[[], object]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    size: int = 0
    appended: Appended | None = None
    producer: TransactionalProducer | None = None

    def fail(self, error: KreplicaError) -> None:
        if self.appended is not None:
            self.appended(error, -1)
        for then in self.written:
            then(error)


class ShardWriter(Generic[K, V]):
    """Writes the state of one shard, in the partition of `store`.

    `encode(key, value)`: returns the record. `apply(key, value)`: changes memory, through `undo_log`.
    `undone()`: called after memory was undone, for instance to start timers again. `appended_offset`: the
    offset of the first record of the last batch that all in-sync replicas have, -1 before.
    """

    def __init__(
        self,
        store: ShardStore[Any],
        shard: Shard,
        *,
        encode: Callable[[K, V | None], Record],
        apply: Callable[[K, V | None], None],
        undo_log: UndoLog,
        undone: Callable[[], None],
        loop: Loop,
    ) -> None:
        self._store = store
        self._shard = shard
        self._encode = encode
        self._apply = apply
        self._undo_log = undo_log
        self._undone = undone
        self._loop = loop
        self.appended_offset = -1
        self._queue: deque[_Batch] = deque()
        self._in_flight: _Batch | None = None
        self._is_flush_posted = False
        # The batch of unknown outcome that is being repeated.
        self._doubtful: _Batch | None = None

    @property
    def is_idle(self) -> bool:
        """Whether memory has only what all in-sync replicas have."""
        return self._in_flight is None and not self._queue and self._doubtful is None

    def write(self, changes: Sequence[tuple[K, V | None]], then: Written) -> None:
        """Apply the changes and append their records; `then(error)` is called in the loop.

        Without changes this is `when_committed`. Raises what `run` raises.
        """

        def step(put: Put[K, V]) -> Written:
            for key, value in changes:
                put(key, value)
            return then

        self.run(step)

    def run(self, step: Callable[[Put[K, V]], Written]) -> None:
        """Let `step(put)` change the state; the callback that it returns is called as that of `write`.

        Raises what `step` or `encode` raises, and nothing is changed then. Raises CoordinatorNotAvailable and
        NotCoordinator.
        """
        error = self._refusal()
        if error is not None:
            raise error
        records: list[Record] = []
        steps: list[Callable[[], object]] = []

        def put(key: K, value: V | None) -> None:
            records.append(self._encode(key, value))
            self._apply(key, value)

        try:
            with self._undo_log.keeping(steps):
                then = step(put)
        except BaseException:
            if records:
                self._undone()
            raise
        if not records:
            self.when_committed(then)
            return
        size = sum(map(_size_of, records))
        batch = self._last_batch(size)
        batch.records += records
        batch.steps += steps
        batch.size += size
        batch.written.append(then)
        self._flush_soon()

    def when_committed(self, then: Written) -> None:
        """Call `then(error)` when all in-sync replicas have what is in memory now, or at once if they do."""
        error = self._refusal()
        if error is not None:
            self._loop.post(partial(then, error))
            return
        batches = (*reversed(self._queue), self._in_flight)
        last = next((each for each in batches if each is not None and each.appended is None), None)
        if last is None:
            then(None)
        else:
            last.written.append(then)

    def append(
        self, records: Sequence[Record], then: Appended, producer: TransactionalProducer | None = None
    ) -> None:
        """Do as ShardStore.append, behind the writes before. Memory is the caller's business."""
        batch = _Batch(records=list(records), appended=then, producer=producer)
        if self.is_idle:
            self._store.append_batch(self._shard, records, partial(self._appended_aside, batch), producer)
            return
        error = self._refusal()
        if error is not None:
            self._loop.post(partial(then, error, -1))
            return
        self._queue.append(batch)
        self._flush_soon()

    def drop(self, error: KreplicaError) -> None:
        """Fail what is not appended yet, because another broker leads the partition."""
        waiting, self._queue = self._queue, deque()
        for batch in waiting:
            batch.fail(error)

    # ---- batches ------------------------------------------------------------------------------------------

    def _refusal(self) -> KreplicaError | None:
        """Return the error with which all requests fail at this time, or None."""
        if not self._shard.is_current:
            return NotCoordinator(f"{self._name} is led by another broker")
        if self._doubtful is not None:
            return CoordinatorNotAvailable(f"{self._name}: it is unknown whether earlier records are stored")
        return None

    @property
    def _name(self) -> str:
        return f"{self._store.topic}-{self._shard.partition}"

    def _last_batch(self, size: int) -> _Batch:
        last = self._queue[-1] if self._queue else None
        if last is None or last.appended is not None or last.size + size > MAX_BATCH_BYTES:
            last = _Batch()
            self._queue.append(last)
        return last

    def _flush_soon(self) -> None:
        # The requests that are in the loop's queue already get into the same batch.
        if self._in_flight is None and not self._is_flush_posted:
            self._is_flush_posted = True
            self._loop.post(self._flush)

    def _flush(self) -> None:
        self._is_flush_posted = False
        if self._in_flight is None and self._queue:
            batch = self._in_flight = self._queue.popleft()
            self._store.append_batch(
                self._shard, batch.records, partial(self._appended, batch), batch.producer
            )

    def _appended(self, batch: _Batch, error: BaseException | None, offset: int) -> None:
        assert self._in_flight is batch
        self._in_flight = None
        if error is None:
            self.appended_offset = offset
        if batch.appended is not None:
            self._appended_aside(batch, error, offset)
        elif error is None:
            for then in batch.written:
                then(None)
        elif not self._shard.is_current:
            batch.fail(self._store.error_for_clients(self._shard, error))
        elif isinstance(error, OUTCOME_UNKNOWN):
            self._doubt(batch, error)
        else:
            self._fail(batch, error)
        if self._queue:
            self._flush_soon()

    def _appended_aside(self, batch: _Batch, error: BaseException | None, offset: int) -> None:
        assert batch.appended is not None
        failed = None if error is None else self._store.error_for_clients(self._shard, error)
        batch.appended(failed, offset)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        """Undo the batch, which is not in the log, and all that was built on it."""
        later = self._undo_queue()
        undo(batch.steps)
        self._undone()
        batch.fail(self._store.error_for_clients(self._shard, error))
        self._fail_later(later, error)

    def _doubt(self, batch: _Batch, error: BaseException) -> None:
        """Repeat the batch, which may be in the log, until that is known. Records may be there twice."""
        later = self._undo_queue()
        if later:
            self._undone()
        self._doubtful = batch
        self._repeat_later()
        batch.fail(self._store.error_for_clients(self._shard, error))
        self._fail_later(later, error)

    def _undo_queue(self) -> deque[_Batch]:
        later, self._queue = self._queue, deque()
        for each in reversed(later):
            undo(each.steps)
        return later

    def _fail_later(self, batches: deque[_Batch], cause: BaseException) -> None:
        error = self._store.error_for_clients(self._shard, cause)
        if isinstance(cause, OF_ONE_BATCH):
            error = CoordinatorNotAvailable(f"{self._name}: earlier records could not be stored: {cause}")
        for each in batches:
            each.fail(error)

    def _repeat_later(self) -> None:
        self._loop.post_later(self._repeat, REPEAT_MS)

    def _repeat(self) -> None:
        if self._shard.is_current and self._doubtful is not None:
            self._store.append_batch(self._shard, self._doubtful.records, self._repeated)

    def _repeated(self, error: BaseException | None, offset: int) -> None:
        if error is None:
            self.appended_offset = offset
            self._doubtful = None
        elif self._shard.is_current:
            self._repeat_later()


def _size_of(record: Record) -> int:
    key, value = record
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
