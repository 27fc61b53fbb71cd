"""A share partition is the same as a model with one entry for each record, after every step of random runs.

The steps are requests of members with partial acknowledgements, writes that fail or whose answer is lost,
locks that end, a moving log start, changed settings, dead letters and new leaders. The log has batches of
several records, control batches, and offsets that compaction has removed. What is stored is kept beside, as
the share coordinator would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from random import Random
from typing import Any

import pytest

from kreplica.common.errors import InvalidRecordState, InvalidRequest, KreplicaError
from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    ShareState,
    StateBatch,
)
from kreplica.share.share_partition import (
    ACCEPT,
    GAP,
    NEVER,
    REJECT,
    RELEASE,
    RENEW,
    SETTLED,
    AcknowledgementBatch,
    AcquiredRecords,
    FetchedBatch,
    InFlightBatch,
    SharePartition,
    ShareSettings,
    StateChange,
)

LOCK_MS = 100
KINDS = [GAP, ACCEPT, RELEASE, RELEASE, RELEASE, REJECT, RENEW]
DONE = (ACKNOWLEDGED, ARCHIVED)


@dataclass
class Entry:
    """A record in flight."""

    state: int
    count: int
    member: str = ""
    deadline_ms: int = NEVER
    target: int = SETTLED

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and self.target == SETTLED

    @property
    def is_delivered(self) -> bool:
        return self.state in (*DONE, ARCHIVING) or self.target not in (SETTLED, AVAILABLE)


class Machine:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.settings = ShareSettings(LOCK_MS, 4, 20)
        self.now_ms = 0
        self.leader_epoch = 0
        self.log: list[FetchedBatch] = []
        self.log_end = self.log_start = 0
        # What the share coordinator has: (state, delivery count) by offset.
        self.stored: dict[int, tuple[int, int]] = {}
        self.stored_start = 0
        # The records that a member was answered to have done with.
        self.finished: set[int] = set()
        self.share = SharePartition(ShareState(0, 0, 0), 0, self.settings)
        # The writes under way, in their order: a state, and the acknowledgement that waits for it with its
        # records, or None.
        self.line: list[tuple[ShareState, StateChange | None, list[int]]] = []
        self.letters: list[tuple[list[InFlightBatch], list[int]]] = []
        # The model.
        self.start = 0
        self.entries: dict[int, Entry] = {}
        self.append([(0, 6, False), (0, 3, False), (1, 1, True), (0, 4, False)])

    # ---- the model ----------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.start + len(self.entries) - 1

    @property
    def undelivered(self) -> int:
        return ARCHIVING if self.settings.has_dead_letters else ARCHIVED

    def advance(self) -> None:
        while self.entries and self.entries[self.start].state in DONE:
            del self.entries[self.start]
            self.start += 1

    def free(self, offsets: Iterable[int]) -> None:
        for each in offsets:
            entry = self.entries[each]
            is_spent = entry.count >= self.settings.delivery_count_limit
            self.entries[each] = Entry(self.undelivered if is_spent else AVAILABLE, entry.count)

    def check_state(self, state: ShareState | None, offsets: Iterable[int]) -> None:
        """Check what is to be stored for these records, before the start offset moves."""
        expected = {
            each: (entry.state if entry.target == SETTLED else entry.target, entry.count)
            for each in offsets
            for entry in [self.entries[each]]
        }
        if not expected:
            assert state is None
            return
        assert state is not None
        found = [
            (each, (b.delivery_state, b.delivery_count))
            for b in state.batches
            for each in range(b.first_offset, b.last_offset + 1)
        ]
        assert found == sorted(expected.items())
        assert (state.leader_epoch, state.start_offset) == (self.leader_epoch, self.start)
        assert state.delivery_complete_count == self.delivered()

    def delivered(self) -> int:
        return sum(entry.is_delivered for entry in self.entries.values())

    def is_visible(self, offset: int) -> bool:
        return any(b.first_offset <= offset <= b.last_offset and not b.is_hidden for b in self.log)

    # ---- the log ------------------------------------------------------------------------------------------

    def append(self, sizes: list[tuple[int, int, bool]]) -> None:
        for gap, size, is_control in sizes:
            first = self.log_end + gap
            last = first if is_control else first + size - 1
            self.log.append(FetchedBatch(first, last, is_control))
            self.log_end = last + 1

    def delete_records(self, steps: int) -> None:
        self.log_start = min(self.log_start + steps, self.log_end)
        self.move_log_start()

    def move_log_start(self) -> None:
        self.share.move_log_start(self.log_start)
        if self.log_start > self.start:
            self.entries = {each: entry for each, entry in self.entries.items() if each >= self.log_start}
            self.start = self.log_start
            self.advance()

    # ---- acquisition --------------------------------------------------------------------------------------

    def acquire(self, member: str, most: int, size: int, exact: bool, batches: int) -> None:
        offset = self.share.next_fetch_offset
        fetched = [each for each in self.log if each.last_offset >= offset][:batches]
        found = self.share.acquire(
            member, fetched, offset, self.now_ms, max_records=most, batch_size=size, is_exact=exact
        )
        if not fetched or most <= 0:
            assert found == []
            return
        last = fetched[-1].last_offset
        counts = {each: n for first, end, n in found for each in range(first, end + 1)}
        assert list(counts) == sorted(counts), "out of order, or delivered twice"
        old_end, room = self.end, self.settings.max_record_locks - len(self.entries)
        self.check_size(found, counts, most, size, exact=exact)
        is_alone = self.check_isolated(counts)
        self.take(counts, member, offset, last)
        # Nothing is passed over, and nothing left behind without a reason.
        new = [each for each in counts if each > old_end]
        if len(counts) < most and not is_alone:
            left = [each for each, entry in self.entries.items() if entry.is_free and offset <= each <= last]
            assert not left
            assert self.end >= last or len(new) >= room
        if exact:
            assert len(new) <= max(room, 0)
        self.advance()

    def check_size(
        self, found: list[AcquiredRecords], counts: dict[int, int], most: int, size: int, *, exact: bool
    ) -> None:
        assert all(each not in self.finished for each in counts), "delivered after it was answered"
        if not counts:
            return
        if exact:
            assert len(counts) <= most
        batch_of = {
            each: n for n, b in enumerate(self.log) for each in range(b.first_offset, b.last_offset + 1)
        }
        ending = max(counts)
        assert sum(batch_of[each] != batch_of[ending] for each in counts) < most
        for first, end, _ in found:
            whole = sum(batch_of[each] != batch_of[end] for each in range(first, end + 1))
            assert whole < max(size, 1)

    def check_isolated(self, counts: dict[int, int]) -> bool:
        """Check that records near the limit are delivered apart. Returns whether there are any."""
        limit, split_from = self.settings.delivery_count_limit, self.settings.split_from
        near = [each for each, n in counts.items() if n > split_from]
        if near:
            assert len(set(counts.values())) == 1
            assert near == list(counts)
            if counts[near[0]] == limit:
                assert len(near) == 1
        return any(entry.is_free and entry.count >= split_from for entry in self.entries.values())

    def take(self, counts: dict[int, int], member: str, first: int, last: int) -> None:
        """Update the model by what was acquired, and archive what has to be."""
        ending = max(counts, default=last)
        deadline_ms = self.now_ms + LOCK_MS
        now = {each: state for each, state, *_ in self.shape()}
        for each in range(self.end + 1, self.share.end_offset + 1):
            assert each <= last
            assert (each in counts) == self.is_visible(each), "a new record was passed over"
            self.entries[each] = Entry(AVAILABLE if each in counts else ARCHIVED, 0)
        for each, entry in self.entries.items():
            is_spent = entry.count >= self.settings.delivery_count_limit
            if each in counts:
                assert entry.is_free
                assert not is_spent
                assert first <= each <= last
                assert counts[each] == entry.count + 1
                self.entries[each] = Entry(ACQUIRED, entry.count + 1, member, deadline_ms)
            elif entry.is_free and first <= each <= last and (is_spent or not self.is_visible(each)):
                states = {self.undelivered} if is_spent else {ARCHIVED}
                if is_spent and not self.is_visible(each):
                    states.add(ARCHIVED)
                if each > ending:
                    states.add(AVAILABLE)
                # An entry that the start offset has passed is done.
                assert now.get(each, ARCHIVED) in states
                self.entries[each] = Entry(now.get(each, ARCHIVED), entry.count)
            elif entry.is_free:
                assert not first <= each < ending, "an available record was passed over"

    # ---- acknowledgements ---------------------------------------------------------------------------------

    def acknowledge(self, member: str, *, is_wild: bool) -> None:
        """Acknowledge some records in a row that the member has acquired, or any if `is_wild`."""
        random = self.random
        mine = {e for e, entry in self.entries.items() if entry.member == member and entry.target == SETTLED}
        if not mine and not is_wild:
            return
        around = (max(0, self.start - 3), self.end + 3)
        at = random.randint(*around) if is_wild else random.choice(sorted(mine))
        batches: list[AcknowledgementBatch] = []
        kinds: dict[int, int] = {}
        for _ in range(random.randint(1, 3)):
            last = at + random.randint(0, 5)
            while last >= at and not (is_wild or mine.issuperset(range(at, last + 1))):
                last -= 1
            if last < at:
                break
            count = random.choice([1, last - at + 1])
            given = random.choices(KINDS, k=count)
            batches.append(AcknowledgementBatch(at, last, given))
            kinds.update({each: given[0 if count == 1 else each - at] for each in range(at, last + 1)})
            at = last + random.randint(1, 3)
        if not batches:
            return
        refused = next(filter(None, (self.refusal(member, each) for each in batches)), None)
        if refused is not None:
            with pytest.raises(refused):
                self.share.acknowledge(member, batches, self.now_ms)
            return
        change = self.share.acknowledge(member, batches, self.now_ms)
        changing = []
        for each, kind in kinds.items():
            entry = self.entries.get(each)
            if entry is None:
                continue
            if kind == RENEW:
                entry.deadline_ms = self.now_ms + LOCK_MS
                continue
            is_spent = kind == RELEASE and entry.count >= self.settings.delivery_count_limit
            entry.target = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE}.get(kind, -9)
            if is_spent or kind == REJECT:
                entry.target = self.undelivered
            changing.append(each)
        self.check_state(change.state, changing)
        if change.state is not None:
            self.line.append((change.state, change, changing))

    def refusal(self, member: str, batch: AcknowledgementBatch) -> type[KreplicaError] | None:
        first, last, types = batch
        if last < self.start:
            return InvalidRecordState
        if last > self.end:
            return InvalidRequest
        if RENEW in types and not self.settings.renew_enabled:
            return InvalidRecordState
        for each in range(max(first, self.start), last + 1):
            entry = self.entries[each]
            if entry.state != ACQUIRED or entry.member != member or entry.target != SETTLED:
                return InvalidRecordState
        return None

    def answer_write(self, is_stored: bool, is_answered: bool) -> None:
        """The first write under way ends; it may have been stored although its answer is an error."""
        if not self.line:
            return
        state, change, offsets = self.line.pop(0)
        if is_stored:
            self.store(state)
        if change is not None:
            self.settle(change, offsets, is_stored=is_stored and is_answered)

    def settle(self, change: StateChange, offsets: list[int], *, is_stored: bool) -> None:
        state = self.share.complete(change, self.now_ms, is_stored=is_stored)
        late = []
        for each in offsets:
            entry = self.entries.get(each)
            if entry is None:
                continue
            target, entry.target = entry.target, SETTLED
            if is_stored:
                self.entries[each] = Entry(target, entry.count)
                if target in (*DONE, ARCHIVING):
                    self.finished.add(each)
            elif entry.deadline_ms <= self.now_ms:
                late.append(each)
        self.free(late)
        self.store_later(state, late)

    def leave(self, member: str) -> None:
        self.end_locks(self.share.release(member), lambda entry: entry.member == member)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.end_locks(self.share.expire(self.now_ms), lambda entry: entry.deadline_ms <= self.now_ms)

    def end_locks(self, state: ShareState | None, ends: Any) -> None:
        ended = [
            each
            for each, entry in self.entries.items()
            if entry.state == ACQUIRED and entry.target == SETTLED and ends(entry)
        ]
        self.free(ended)
        self.store_later(state, ended)

    # ---- dead letters -------------------------------------------------------------------------------------

    def take_letters(self, most: int, ahead: int) -> None:
        waiting = [
            e for e, entry in self.entries.items() if (entry.state, entry.target) == (ARCHIVING, SETTLED)
        ]
        assert self.share.next_letter == (waiting[0] if waiting else None)
        if not waiting:
            return
        expected = [each for each in waiting if each <= waiting[0] + ahead][:most]
        letters = self.share.take_letters(most, waiting[0] + ahead)
        assert [e for b in letters for e in range(b.first_offset, b.last_offset + 1)] == expected
        for each in expected:
            self.entries[each].target = ARCHIVED
        self.letters.append((letters, expected))

    def settle_letters(self, is_done: bool) -> None:
        if not self.letters:
            return
        letters, offsets = self.letters.pop(0)
        state = self.share.settle_letters(letters, is_done=is_done)
        kept = [each for each in offsets if each in self.entries]
        for each in kept:
            self.entries[each] = Entry(ARCHIVED if is_done else ARCHIVING, self.entries[each].count)
        self.store_later(state, kept if is_done else [])

    # ---- settings -----------------------------------------------------------------------------------------

    def change_settings(self, limit: int, locks: int, has_letters: bool, renews: bool) -> None:
        self.settings = ShareSettings(LOCK_MS, limit, locks, renews, has_letters)
        self.share.settings = self.settings

    # ---- the share coordinator ----------------------------------------------------------------------------

    def store_later(self, state: ShareState | None, offsets: list[int]) -> None:
        """Store what holds already; the start offset moves afterwards."""
        self.check_state(state, offsets)
        if state is not None:
            self.line.append((state, None, []))
        self.advance()

    def store(self, state: ShareState) -> None:
        assert state.start_offset >= self.stored_start, "the stored start offset goes back"
        self.stored_start = state.start_offset
        for first, last, kind, count in state.batches:
            assert kind in (AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED)
            self.stored.update(dict.fromkeys(range(first, last + 1), (kind, count)))
        self.stored = {each: kept for each, kept in self.stored.items() if each >= self.stored_start}

    def change_leader(self, stored: int) -> None:
        """A new leader begins with what is stored. The first writes under way may be."""
        for state, _, _ in self.line[:stored]:
            self.store(state)
        self.line.clear()
        self.letters.clear()
        self.leader_epoch += 1
        batches = [StateBatch(each, each, *kept) for each, kept in sorted(self.stored.items())]
        state = ShareState(0, self.leader_epoch, self.stored_start, batches)
        self.share = SharePartition(state, self.leader_epoch, self.settings)
        self.start = self.stored_start
        self.entries = {
            each: Entry(*self.stored.get(each, (AVAILABLE, 0)))
            for each in range(self.start, max(self.stored, default=self.start - 1) + 1)
        }
        self.advance()
        self.move_log_start()

    # ---- steps --------------------------------------------------------------------------------------------

    def step(self) -> None:
        random = self.random
        member, yes = random.choice("ab"), random.random() < 0.5
        [kind] = random.choices(range(11), (3, 10, 10, 2, 7, 3, 5, 5, 5, 2, 1))
        if kind == 0:
            self.append(
                [
                    (random.randint(0, 2), random.randint(1, 9), random.random() < 0.2)
                    for _ in range(random.randint(1, 3))
                ]
            )
        elif kind == 1:
            most, size = random.randint(0, 12), random.randint(0, 12)
            self.acquire(member, most, size, exact=yes, batches=random.randint(1, 6))
        elif kind in (2, 3):
            self.acknowledge(member, is_wild=kind == 3)
        elif kind == 4:
            self.answer_write(is_stored=random.random() < 0.7, is_answered=random.random() < 0.8)
        elif kind == 5:
            self.leave(member)
        elif kind == 6:
            self.wait(random.choice([1, LOCK_MS // 2, LOCK_MS - 1, LOCK_MS]))
        elif kind == 7:
            self.take_letters(random.randint(1, 12), random.randint(0, 12))
        elif kind == 8:
            self.settle_letters(is_done=yes)
        elif kind == 9:
            limit, locks = random.randint(2, 6), random.choice([5, 20])
            self.change_settings(limit, locks, random.random() < 0.7, random.random() < 0.8)
        elif yes:
            self.delete_records(random.choice([1, 5, 10, 40]))
        else:
            self.change_leader(random.randint(0, 3))
        self.it_is_as_the_model()
        self.the_first_available_record_is_next()
        self.the_first_lock_to_end_is_known()

    # ---- what always holds --------------------------------------------------------------------------------

    def shape(self) -> list[tuple[Any, ...]]:
        return [
            (offset, b.state, b.delivery_count, b.member_id, b.deadline_ms, b.target)
            for b in self.share.batches()
            for offset in range(b.first_offset, b.last_offset + 1)
        ]

    def it_is_as_the_model(self) -> None:
        assert self.shape() == [(each, *astuple(entry)) for each, entry in self.entries.items()]
        share = self.share
        assert (share.start_offset, share.end_offset) == (self.start, self.end)
        assert (share.in_flight, share.done_count) == (len(self.entries), self.delivered())
        assert all(b.first_offset <= b.last_offset for b in share.batches())

    def the_first_available_record_is_next(self) -> None:
        available = [each for each, entry in self.entries.items() if entry.is_free]
        assert self.share.next_fetch_offset == min(available, default=self.end + 1)
        has_room = len(self.entries) < self.settings.max_record_locks
        assert self.share.can_acquire == (has_room or bool(available))
        assert self.share.has_letters == any(
            ARCHIVING in (entry.state, entry.target) for entry in self.entries.values()
        )

    def the_first_lock_to_end_is_known(self) -> None:
        locks = [entry for entry in self.entries.values() if entry.state == ACQUIRED]
        settled = min((entry.deadline_ms for entry in locks if entry.target == SETTLED), default=NEVER)
        assert self.share.next_deadline_ms <= settled
        assert self.share.next_deadline_ms in {settled, *(entry.deadline_ms for entry in locks)}

    def teardown(self) -> None:
        """Everything ends: one member accepts what is left, and nothing stays behind."""
        self.change_settings(5, 20, False, True)
        while self.line:
            self.answer_write(is_stored=False, is_answered=True)
        while self.letters:
            self.settle_letters(is_done=False)
        self.wait(LOCK_MS)
        self.append([(0, 3, False)])
        for _ in range(self.log_end + 10):
            if self.share.start_offset == self.log_end:
                break
            self.take_letters(99, 99)
            self.settle_letters(is_done=True)
            self.acquire("c", 9, 5, exact=False, batches=4)
            for each in [each for each, entry in self.entries.items() if entry.member == "c"]:
                change = self.share.acknowledge(
                    "c", [AcknowledgementBatch(each, each, [ACCEPT])], self.now_ms
                )
                self.entries[each].target = ACKNOWLEDGED
                self.settle(change, [each], is_stored=True)
        assert (self.share.start_offset, self.share.done_count) == (self.log_end, 0)
        assert list(self.share.batches()) == []


@pytest.mark.parametrize("seed", range(8))
def test_it_is_as_the_model(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(600):
        machine.step()
    machine.teardown()
