"""SharePartition: the state of the records that a share group has in flight in one partition (KIP-932).

The partition's leader keeps it. From the start offset to the end offset each record is in one state. A range
of records with the same state, owner and history is one `InFlightBatch`; it is split only where an
acquisition or an acknowledgement needs it, so a batch costs as much as a record.

    AVAILABLE ──acquire──▶ ACQUIRED ──accept──▶ ACKNOWLEDGED
        ▲                     │ │
        └─release, lock ends──┘ ├──reject, gap, delivered too often──▶ ARCHIVED
                                │                                         ▲
                                └──reject, delivered too often──▶ ARCHIVING

A group with a dead-letter topic takes the way over ARCHIVING: the record is a dead letter, which the caller
takes by `take_letters` and copies to that topic. `settle_letters` then archives it. ARCHIVING is stored, so a
later leader copies a letter again unless ARCHIVED was stored as well.

An acknowledgement is a `StateChange`: its records keep their state, and change no further, until the caller
has stored it and calls `complete`. The lock may end meanwhile; if the change could not be stored, the records
are then released. What ends a lock without a request (`expire`, `release`) holds at once, and the caller
stores it when it can.

A pure state machine: the caller passes the time, reads the log, and stores what is returned. Thread rule: the
loop of the share partitions' owner.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from kreplica.common.errors import InvalidRecordState, InvalidRequest
from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    NO_START_OFFSET,
    ShareState,
    StateBatch,
)

# What a member says about a record that it has acquired.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
# The state to which each of them leads; RENEW leads to none. REJECT may lead to ARCHIVING instead.
TARGETS = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED}
# The state that a batch is about to take, if it is about to take none.
SETTLED = -1
NO_MEMBER = ""
NEVER = 1 << 62

_first_offset = attrgetter("first_offset")


class ShareSettings(NamedTuple):
    """The settings of a share group that its partitions follow. Times in ms.

    `delivery_count_limit`: a record that was acquired this often is not delivered again.
    `max_record_locks`: how many records may lie between the start and the end offset. `has_dead_letters`:
    whether records that are rejected or delivered too often become dead letters.
    """

    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    renew_enabled: bool = True
    has_dead_letters: bool = False

    @property
    def undelivered(self) -> int:
        """The state of a record that is not delivered again although no member has accepted it."""
        return ARCHIVING if self.has_dead_letters else ARCHIVED

    @property
    def split_from(self) -> int:
        """The delivery count from which on a batch is delivered in parts, to isolate what cannot be
        processed.
        """
        return max(2, (self.delivery_count_limit + 1) // 2)


class FetchedBatch(NamedTuple):
    """The offsets of one record batch of the log. `is_hidden`: it has no records for consumers."""

    first_offset: int
    last_offset: int
    is_hidden: bool = False


class AcquiredRecords(NamedTuple):
    """Records that one member may process now."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AcknowledgementBatch(NamedTuple):
    """A member's acknowledgement. `types`: one for all records, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class InFlightBatch:
    """A range of records with the same state.

    `member_id`, `deadline_ms`: the owner and the end of its lock, while ACQUIRED. `target`: the state that it
    takes when a change is stored or a dead letter written, or SETTLED. `is_rejected`: whether a member has
    rejected it; in a state that was read the delivery count decides that.
    """

    __slots__ = (
        "deadline_ms",
        "delivery_count",
        "first_offset",
        "is_rejected",
        "last_offset",
        "member_id",
        "state",
        "target",
    )

    def __init__(self, first_offset: int, last_offset: int, state: int, delivery_count: int) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        self.deadline_ms = NEVER
        self.target = SETTLED
        self.is_rejected = False

    @property
    def size(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_done(self) -> bool:
        """Whether the records need nothing more."""
        return self.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def is_delivered(self) -> bool:
        """Whether the records are never delivered again, or are about to be so."""
        return self.target not in (SETTLED, AVAILABLE) or self.state in (ACKNOWLEDGED, ARCHIVING, ARCHIVED)

    @property
    def is_waiting_letter(self) -> bool:
        return self.state == ARCHIVING and self.target == SETTLED

    @property
    def may_be_acquired(self) -> bool:
        return self.state == AVAILABLE and self.target == SETTLED

    def __repr__(self) -> str:
        return f"InFlightBatch({self.first_offset}-{self.last_offset}, {self.state}, {self.delivery_count})"


class StateChange(NamedTuple):
    """An acknowledgement that waits until it is stored. `state`: what to store; None for renewals alone."""

    batches: Sequence[InFlightBatch]
    state: ShareState | None


class SharePartition:
    """The share partition as read from the share coordinator in `leader_epoch`.

    `state`: what was read, with a start offset. `settings`: may be replaced at any time.
    """

    def __init__(self, state: ShareState, leader_epoch: int, settings: ShareSettings) -> None:
        assert state.start_offset != NO_START_OFFSET, "the caller chooses where to start"
        self.settings = settings
        self.leader_epoch = leader_epoch
        self.state_epoch = state.state_epoch
        # The first record that is not done, and the last one that was ever acquired or read as a state.
        self.start_offset = state.start_offset
        self.end_offset = state.start_offset - 1
        # Without gaps from the start to the end offset.
        self._batches: list[InFlightBatch] = []
        # How many records from the start offset on are never delivered again, or are about to be so.
        self.done_count = 0
        # Whether a batch may be available; else the next record to fetch is behind the end.
        self._may_have_available = False
        # Whether a batch may be ARCHIVING and not taken.
        self._may_have_letters = False
        # (end of the lock, number, batch); entries whose batch has another deadline by now count no more.
        self._locks: list[tuple[int, int, InFlightBatch]] = []
        self._numbers = itertools.count()
        self._load(state.batches)

    def _load(self, stored: Iterable[StateBatch]) -> None:
        """Take over what was stored. Records between two batches were never acquired, or their lock ended
        with the last leader: they are available.
        """
        for first, last, state, count in stored:
            first = max(first, self.end_offset + 1)
            if first <= last:
                self._append(self.end_offset + 1, first - 1, AVAILABLE, 0)
                self._append(first, last, AVAILABLE if state == ACQUIRED else state, count)
                if state == ARCHIVING:
                    self._batches[-1].is_rejected = count < self.settings.delivery_count_limit
        self._advance()

    # ---- queries ------------------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that can be acquired: an available one in flight, or the one behind the end."""
        if self._may_have_available:
            for batch in self._batches:
                if batch.may_be_acquired:
                    return batch.first_offset
            self._may_have_available = False
        return self.end_offset + 1

    @property
    def in_flight(self) -> int:
        """How many records lie between the start and the end offset."""
        return self.end_offset - self.start_offset + 1

    @property
    def batch_count(self) -> int:
        """How many batches the records in flight are."""
        return len(self._batches)

    @property
    def can_acquire(self) -> bool:
        """Whether a record in flight is available, or there is room for another one."""
        return self.in_flight < self.settings.max_record_locks or self.next_fetch_offset <= self.end_offset

    @property
    def next_deadline_ms(self) -> int:
        """When the next lock may end; NEVER without locks."""
        locks = self._locks
        while locks and not _is_locked_until(locks[0][2], locks[0][0]):
            heapq.heappop(locks)
        return locks[0][0] if locks else NEVER

    def batches(self) -> Iterator[InFlightBatch]:
        """Iterate over the batches in flight, from the start offset to the end."""
        return iter(self._batches)

    # ---- acquisition --------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[FetchedBatch],
        fetch_offset: int,
        now_ms: int,
        *,
        max_records: int,
        batch_size: int,
        is_exact: bool = False,
    ) -> list[AcquiredRecords]:
        """Lock records for a member.

        `fetched`: what was read of the log from `fetch_offset` on, which is the `next_fetch_offset`. A record
        batch of the log is acquired as a whole, even if that is more than `max_records`, unless `is_exact`.
        `batch_size`: parts of the answer end at the first end of a record batch after this many records.

        Offsets for which the log has no record are archived.
        """
        acquired: list[AcquiredRecords] = []
        if not fetched or max_records <= 0:
            return acquired
        deadline_ms = now_ms + self.settings.lock_duration_ms
        taking = _Taking(member_id, deadline_ms, max_records, batch_size, is_exact)
        last = fetched[-1].last_offset
        for batch in self._available_between(fetch_offset, last):
            if not self._take(batch, fetched, taking, acquired):
                break
        else:
            self._take_new(fetched, taking, acquired)
        self._advance()
        return acquired

    def _available_between(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the available batches in these bounds, cut at them."""
        if not self._may_have_available:
            return []
        found = []
        index = max(0, bisect_right(self._batches, first, key=_first_offset) - 1)
        while index < len(self._batches) and self._batches[index].first_offset <= last:
            batch = self._batches[index]
            if batch.may_be_acquired and batch.last_offset >= first:
                if batch.first_offset < first:
                    index += 1
                    batch = self._split(batch, first)
                if batch.last_offset > last:
                    self._split(batch, last + 1)
                found.append(batch)
            index += 1
        return found

    def _take(
        self,
        batch: InFlightBatch,
        fetched: Sequence[FetchedBatch],
        taking: _Taking,
        acquired: list[AcquiredRecords],
    ) -> bool:
        """Acquire an available batch, or its first part. Returns False if nothing behind it may follow."""
        settings = self.settings
        if batch.delivery_count >= settings.delivery_count_limit:
            # The limit was lowered.
            self._archive(batch, settings.undelivered)
            return True
        is_alone = batch.delivery_count >= settings.split_from
        if taking.left <= 0 or (is_alone and acquired):
            return False
        if is_alone:
            size = batch.size >> (batch.delivery_count - settings.split_from + 1)
            if batch.delivery_count == settings.delivery_count_limit - 1:
                size = 1
            if max(size, 1) < batch.size:
                self._split(batch, batch.first_offset + max(size, 1))
        last = batch.last_offset
        for first, end, is_hidden in _pieces(batch.first_offset, last, fetched, taking):
            piece = batch
            if end < last:
                batch = self._split(batch, end + 1)
            if is_hidden:
                self._archive(piece)
            elif taking.left <= 0:
                return False
            else:
                assert first == piece.first_offset
                self._lock(piece, taking, acquired)
        return not is_alone

    def _take_new(
        self, fetched: Sequence[FetchedBatch], taking: _Taking, acquired: list[AcquiredRecords]
    ) -> None:
        """Acquire records behind the end offset, as far as there is room for them."""
        first, last = self.end_offset + 1, fetched[-1].last_offset
        room = self.settings.max_record_locks - self.in_flight
        taking.left = min(taking.left, room)
        if first > last or taking.left <= 0:
            return
        for start, end, is_hidden in _pieces(first, last, fetched, taking):
            if is_hidden:
                self._append(start, end, ARCHIVED, 0)
            elif taking.left <= 0:
                return
            else:
                self._append(start, end, AVAILABLE, 0)
                self._lock(self._batches[-1], taking, acquired)

    def _lock(self, batch: InFlightBatch, taking: _Taking, acquired: list[AcquiredRecords]) -> None:
        batch.state = ACQUIRED
        batch.member_id = taking.member_id
        batch.delivery_count += 1
        self._lock_until(batch, taking.deadline_ms)
        taking.left -= batch.size
        acquired.append(AcquiredRecords(batch.first_offset, batch.last_offset, batch.delivery_count))

    def _lock_until(self, batch: InFlightBatch, deadline_ms: int) -> None:
        batch.deadline_ms = deadline_ms
        heapq.heappush(self._locks, (deadline_ms, next(self._numbers), batch))

    # ---- acknowledgement ----------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], now_ms: int
    ) -> StateChange:
        """Begin to change the state of records that the member has acquired: all of them or, by an error,
        none.

        The batches ascend and do not overlap. Renewals hold at once. Pass the result to `complete` when its
        state is stored. Records below the start offset are ignored if the batch reaches above it.

        Raises InvalidRecordState if a record is not acquired by the member or about to change, or if renewals
        are disabled, and InvalidRequest beyond the end offset.
        """
        for batch in batches:
            self._check_owned(member_id, batch)
        changing: list[InFlightBatch] = []
        for batch in batches:
            for first, last, kind in _runs(batch):
                for owned in self._cut_out(max(first, self.start_offset), last):
                    if kind == RENEW:
                        self._lock_until(owned, now_ms + self.settings.lock_duration_ms)
                    else:
                        self._begin(owned, TARGETS[kind], is_rejected=kind == REJECT)
                        changing.append(owned)
        return StateChange(changing, self._state_of(changing) if changing else None)

    def _check_owned(self, member_id: str, asked: AcknowledgementBatch) -> None:
        first, last, types = asked
        if last < self.start_offset:
            raise InvalidRecordState(f"{first}-{last} are before the start offset {self.start_offset}")
        if last > self.end_offset:
            raise InvalidRequest(f"{first}-{last}: the last acquired record is {self.end_offset}")
        if RENEW in types and not self.settings.renew_enabled:
            raise InvalidRecordState("share.renew.acknowledge.enable is false: locks are not renewed")
        for batch in self._overlapping(max(first, self.start_offset), last):
            if batch.state != ACQUIRED or batch.member_id != member_id or batch.target != SETTLED:
                raise InvalidRecordState(
                    f"{batch.first_offset}-{batch.last_offset} are not acquired by member {member_id},"
                    " or their state is changing"
                )

    def _begin(self, batch: InFlightBatch, target: int, *, is_rejected: bool) -> None:
        is_spent = target == AVAILABLE and batch.delivery_count >= self.settings.delivery_count_limit
        if is_spent or is_rejected:
            target = self.settings.undelivered
        batch.is_rejected = is_rejected
        batch.target = target
        if target != AVAILABLE:
            self.done_count += batch.size

    def complete(self, change: StateChange, now_ms: int, *, is_stored: bool) -> ShareState | None:
        """End a change: the records take their new state, or if it was not stored, keep the old one.

        A record whose lock has ended meanwhile is released then. Returns a state to store, or None.
        """
        late = []
        for batch in change.batches:
            target, batch.target = batch.target, SETTLED
            if batch.last_offset < self.start_offset:
                # The log's start has passed it.
                continue
            if is_stored:
                self._end_lock(batch, target)
                continue
            if target != AVAILABLE:
                self.done_count -= batch.size
            if batch.deadline_ms <= now_ms:
                late.append(batch)
        state = self._free(late)
        self._advance()
        return state

    # ---- the end of locks ---------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> ShareState | None:
        """Free the records whose lock has ended. Returns a state to store, or None."""
        # A batch that was locked twice at the same time has two entries.
        ended: dict[InFlightBatch, None] = {}
        locks = self._locks
        while locks and locks[0][0] <= now_ms:
            deadline_ms, _, batch = heapq.heappop(locks)
            if _is_locked_until(batch, deadline_ms) and batch.target == SETTLED:
                ended[batch] = None
        state = self._free(ended)
        self._advance()
        return state

    def release(self, member_id: str) -> ShareState | None:
        """Free all records of a member that has gone, but for those about to change. Returns a state to
        store.
        """
        state = self._free(
            batch
            for batch in self._batches
            if batch.state == ACQUIRED and batch.member_id == member_id and batch.target == SETTLED
        )
        self._advance()
        return state

    def _free(self, batches: Iterable[InFlightBatch]) -> ShareState | None:
        freed = sorted(batches, key=_first_offset)
        if not freed:
            return None
        for batch in freed:
            is_spent = batch.delivery_count >= self.settings.delivery_count_limit
            if is_spent:
                self.done_count += batch.size
            batch.is_rejected = False
            self._end_lock(batch, self.settings.undelivered if is_spent else AVAILABLE)
        return self._state_of(freed)

    def _end_lock(self, batch: InFlightBatch, state: int) -> None:
        batch.state = state
        batch.member_id = NO_MEMBER
        batch.deadline_ms = NEVER
        if state == AVAILABLE:
            self._may_have_available = True
        elif state == ARCHIVING:
            self._may_have_letters = True

    def _archive(self, batch: InFlightBatch, state: int = ARCHIVED) -> None:
        """Archive an available batch, or make it a dead letter."""
        batch.state = state
        self.done_count += batch.size
        if state == ARCHIVING:
            self._may_have_letters = True

    # ---- dead letters -------------------------------------------------------------------------------------

    @property
    def has_letters(self) -> bool:
        """Whether records are dead letters or about to be."""
        return any(ARCHIVING in (batch.state, batch.target) for batch in self._batches)

    @property
    def next_letter(self) -> int | None:
        """The offset of the first dead letter that waits to be copied."""
        if self._may_have_letters:
            for batch in self._batches:
                if batch.is_waiting_letter:
                    return batch.first_offset
            self._may_have_letters = False
        return None

    def take_letters(self, most: int, last_offset: int) -> list[InFlightBatch]:
        """Return the first dead letters that wait to be copied: at most this many, none behind `last_offset`.

        Pass them to `settle_letters` later.
        """
        taken = []
        for batch in list(self._batches) if self._may_have_letters else ():
            last = min(batch.last_offset, batch.first_offset + most - 1, last_offset)
            if not batch.is_waiting_letter or last < batch.first_offset:
                continue
            if last < batch.last_offset:
                self._split(batch, last + 1)
            most -= batch.size
            taken.append(batch)
        for batch in taken:
            batch.target = ARCHIVED
        return taken

    def settle_letters(self, letters: Iterable[InFlightBatch], *, is_done: bool) -> ShareState | None:
        """Archive dead letters that are copied, or let them wait again. Returns a state to store, or None."""
        archived = []
        for batch in letters:
            batch.target = SETTLED
            if batch.last_offset < self.start_offset:
                # The log's start has passed it.
                continue
            if is_done:
                batch.state = ARCHIVED
                archived.append(batch)
            else:
                self._may_have_letters = True
        state = self._state_of(archived) if archived else None
        self._advance()
        return state

    # ---- offsets ------------------------------------------------------------------------------------------

    def move_log_start(self, log_start_offset: int) -> None:
        """Forget the records below the log's start, whatever their state."""
        if log_start_offset <= self.start_offset:
            return
        self.start_offset = log_start_offset
        gone = 0
        for batch in self._batches:
            if batch.first_offset >= log_start_offset:
                break
            if batch.last_offset >= log_start_offset:
                if batch.is_delivered:
                    self.done_count -= log_start_offset - batch.first_offset
                batch.first_offset = log_start_offset
                break
            if batch.is_delivered:
                self.done_count -= batch.size
            batch.deadline_ms = NEVER
            gone += 1
        del self._batches[:gone]
        self.end_offset = max(self.end_offset, log_start_offset - 1)
        self._advance()

    def _advance(self) -> None:
        """Move the start offset over the records that are done."""
        gone = 0
        for batch in self._batches:
            if not batch.is_done:
                break
            self.done_count -= batch.size
            gone += 1
        if gone:
            del self._batches[:gone]
            self.start_offset = self._batches[0].first_offset if self._batches else self.end_offset + 1

    # ---- batches ------------------------------------------------------------------------------------------

    def _append(self, first: int, last: int, state: int, delivery_count: int) -> None:
        """Add a batch behind the end offset, unless it is empty."""
        if first > last:
            return
        assert first == self.end_offset + 1
        batch = InFlightBatch(first, last, state, delivery_count)
        self._batches.append(batch)
        self.end_offset = last
        if batch.is_delivered:
            self.done_count += batch.size
        if state == AVAILABLE:
            self._may_have_available = True
        elif state == ARCHIVING:
            self._may_have_letters = True

    def _index_of(self, offset: int) -> int:
        return bisect_right(self._batches, offset, key=_first_offset) - 1

    def _overlapping(self, first: int, last: int) -> Iterator[InFlightBatch]:
        for index in range(self._index_of(first), len(self._batches)):
            if self._batches[index].first_offset > last:
                return
            yield self._batches[index]

    def _cut_out(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches from `first` to `last`, split there if they reach further."""
        if first > last:
            return []
        start = self._batches[self._index_of(first)]
        if start.first_offset < first:
            self._split(start, first)
        end = self._batches[self._index_of(last)]
        if end.last_offset > last:
            self._split(end, last + 1)
        return list(self._overlapping(first, last))

    def _split(self, batch: InFlightBatch, offset: int) -> InFlightBatch:
        """Split a settled batch before `offset`. Returns the new batch, which is the second one."""
        assert batch.first_offset < offset <= batch.last_offset
        assert batch.target == SETTLED
        second = InFlightBatch(offset, batch.last_offset, batch.state, batch.delivery_count)
        second.member_id = batch.member_id
        second.is_rejected = batch.is_rejected
        batch.last_offset = offset - 1
        if batch.state == ACQUIRED:
            self._lock_until(second, batch.deadline_ms)
        self._batches.insert(self._index_of(batch.first_offset) + 1, second)
        return second

    def _state_of(self, batches: Iterable[InFlightBatch]) -> ShareState:
        """Return what to store for batches in ascending order, each in the state that it takes."""
        parts: list[StateBatch] = []
        for batch in batches:
            state = batch.state if batch.target == SETTLED else batch.target
            before = parts[-1] if parts else None
            if (
                before is not None
                and before.last_offset + 1 == batch.first_offset
                and before.delivery_state == state
                and before.delivery_count == batch.delivery_count
            ):
                parts[-1] = before._replace(last_offset=batch.last_offset)
            else:
                parts.append(StateBatch(batch.first_offset, batch.last_offset, state, batch.delivery_count))
        return ShareState(self.state_epoch, self.leader_epoch, self.start_offset, parts, self.done_count)


class _Taking:
    """An acquisition under way. `left`: how many records may still be acquired."""

    __slots__ = ("batch_size", "deadline_ms", "is_exact", "left", "member_id")

    def __init__(
        self, member_id: str, deadline_ms: int, max_records: int, batch_size: int, is_exact: bool
    ) -> None:
        self.member_id = member_id
        self.deadline_ms = deadline_ms
        self.left = max_records
        self.batch_size = max(batch_size, 1)
        self.is_exact = is_exact


def _pieces(
    first: int, last: int, fetched: Sequence[FetchedBatch], taking: _Taking
) -> Iterator[tuple[int, int, bool]]:
    """Yield (first, last, whether it is without records) for parts of a range, which they fill in order.

    A part with records is cut where the acquisition must end, by what is `left` when it is asked for.
    """
    index = bisect_right(fetched, first, key=_first_offset) - 1
    if index >= 0 and fetched[index].last_offset < first:
        index += 1
    index = max(index, 0)
    while first <= last:
        found = fetched[index] if index < len(fetched) else None
        if found is None or found.first_offset > first or found.is_hidden:
            end = last if found is None else min(last, found.first_offset - 1)
            if found is not None and found.is_hidden and found.first_offset <= first:
                end = min(last, found.last_offset)
                index += 1
            yield first, end, True
            first = end + 1
            continue
        enough = min(taking.left, taking.batch_size)
        end = found.last_offset
        index += 1
        while index < len(fetched) and end < last and end - first + 1 < enough:
            if fetched[index].first_offset != end + 1 or fetched[index].is_hidden:
                break
            end = fetched[index].last_offset
            index += 1
        end = min(end, last)
        if taking.is_exact and end - first + 1 > taking.left > 0:
            end = first + taking.left - 1
            index -= 1
        yield first, end, False
        first = end + 1


def _runs(batch: AcknowledgementBatch) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, type) for the records with the same type in a row."""
    first, last, types = batch
    if len(types) == 1:
        yield first, last, types[0]
        return
    for kind, same in itertools.groupby(types):
        size = sum(1 for _ in same)
        yield first, first + size - 1, kind
        first += size


def _is_locked_until(batch: InFlightBatch, deadline_ms: int) -> bool:
    return batch.state == ACQUIRED and batch.deadline_ms == deadline_ms
