"""A share partition's records: how they are acquired, acknowledged, released, stored and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kreplica.common.errors import InvalidRecordState, InvalidRequest, KreplicaError
from kreplica.common.share_state import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
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
    AcknowledgementBatch,
    FetchedBatch,
    SharePartition,
    ShareSettings,
    StateChange,
)

LOCK_MS = 30_000
Flight = list[tuple[int, int, int, int]]


def partition(
    *stored: tuple[int, int, int, int], start: int = 0, settings: ShareSettings | None = None
) -> SharePartition:
    state = ShareState(7, 3, start, [StateBatch(*each) for each in stored])
    return SharePartition(state, 4, settings or ShareSettings())


def log_of(*batches: tuple[int, int] | tuple[int, int, bool]) -> list[FetchedBatch]:
    return [FetchedBatch(*each) for each in batches]


def take(
    share: SharePartition,
    fetched: Sequence[FetchedBatch],
    *,
    member: str = "a",
    now_ms: int = 0,
    most: int = 500,
    batch_size: int = 500,
    exact: bool = False,
) -> list[tuple[int, int, int]]:
    acquired = share.acquire(
        member,
        [each for each in fetched if each.last_offset >= share.next_fetch_offset],
        share.next_fetch_offset,
        now_ms,
        max_records=most,
        batch_size=batch_size,
        is_exact=exact,
    )
    return [tuple(each) for each in acquired]  # type: ignore[misc]


def answer(
    share: SharePartition, first: int, last: int, *types: int, member: str = "a", now_ms: int = 0
) -> StateChange:
    return share.acknowledge(member, [AcknowledgementBatch(first, last, types)], now_ms)


def store(share: SharePartition, first: int, last: int, *types: int, member: str = "a") -> None:
    change = answer(share, first, last, *types, member=member)
    assert share.complete(change, 0, is_stored=True) is None


def flight(share: SharePartition) -> Flight:
    return [
        (each.first_offset, each.last_offset, each.state, each.delivery_count) for each in share.batches()
    ]


# ---- acquisition -------------------------------------------------------------------------------------------


def test_a_new_batch_is_acquired_whole_and_not_delivered_again() -> None:
    share = partition()
    assert take(share, log_of((0, 9))) == [(0, 9, 1)]
    assert flight(share) == [(0, 9, ACQUIRED, 1)]
    assert (share.next_fetch_offset, share.next_deadline_ms) == (10, LOCK_MS)
    assert take(share, log_of((0, 9)), member="b") == []


@pytest.mark.parametrize(
    ("most", "batch_size", "exact", "acquired", "end"),
    [
        (500, 500, False, [(0, 24, 1)], 24),
        (500, 10, False, [(0, 14, 1), (15, 24, 1)], 24),
        (500, 1, False, [(0, 4, 1), (5, 14, 1), (15, 19, 1), (20, 24, 1)], 24),
        (500, 0, False, [(0, 4, 1), (5, 14, 1), (15, 19, 1), (20, 24, 1)], 24),
        (1, 500, False, [(0, 4, 1)], 4),
        (6, 500, False, [(0, 14, 1)], 14),
        (6, 5, False, [(0, 4, 1), (5, 14, 1)], 14),
        (1, 500, True, [(0, 0, 1)], 0),
        (6, 500, True, [(0, 5, 1)], 5),
        (6, 5, True, [(0, 4, 1), (5, 5, 1)], 5),
        (25, 500, True, [(0, 24, 1)], 24),
        (0, 500, False, [], -1),
    ],
)
def test_the_limit_of_records_ends_at_a_batch_or_is_exact(
    most: int, batch_size: int, exact: bool, acquired: object, end: int
) -> None:
    share = partition()
    fetched = log_of((0, 4), (5, 14), (15, 19), (20, 24))
    assert take(share, fetched, most=most, batch_size=batch_size, exact=exact) == acquired
    assert share.end_offset == end


def test_offsets_without_records_are_archived_at_the_acquisition() -> None:
    # Compaction has removed 0-2 and 6-7; 10 is a control record.
    share = partition()
    fetched = log_of((3, 5), (8, 9), (10, 10, True), (11, 12))
    assert take(share, fetched) == [(3, 5, 1), (8, 9, 1), (11, 12, 1)]
    assert share.start_offset == 3
    assert flight(share)[1:4] == [(6, 7, ARCHIVED, 0), (8, 9, ACQUIRED, 1), (10, 10, ARCHIVED, 0)]


def test_control_records_alone_are_passed_over() -> None:
    share = partition()
    assert take(share, log_of((0, 0, True), (1, 1, True))) == []
    assert (share.start_offset, share.next_fetch_offset, share.done_count) == (2, 2, 0)


def test_no_more_records_than_the_limit_of_locks_are_in_flight() -> None:
    share = partition(settings=ShareSettings(max_record_locks=10))
    assert take(share, log_of((0, 7), (8, 19)), exact=True) == [(0, 9, 1)]
    assert not share.can_acquire
    assert take(share, log_of((8, 19))) == []
    store(share, 3, 4, RELEASE)
    assert share.can_acquire
    assert take(share, log_of((0, 7), (8, 19))) == [(3, 4, 2)]
    store(share, 0, 5, ACCEPT)
    assert share.can_acquire
    assert take(share, log_of((8, 19)), exact=True) == [(10, 15, 1)]


def test_released_records_come_before_new_ones() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    store(share, 2, 3, RELEASE)
    store(share, 7, 7, RELEASE)
    assert share.next_fetch_offset == 2
    assert take(share, log_of((0, 9), (10, 19)), most=3) == [(2, 3, 2), (7, 7, 2)]
    assert share.next_fetch_offset == 10


def test_stored_batches_leave_gaps_that_are_acquired() -> None:
    """KAFKA-18494: they were passed over after a restart, and their records lost."""
    share = partition((5, 9, ACKNOWLEDGED, 1), (15, 19, AVAILABLE, 2))
    assert share.next_fetch_offset == 0
    assert take(share, log_of((0, 29))) == [(0, 4, 1), (10, 14, 1), (15, 19, 3), (20, 29, 1)]


def test_a_gap_without_records_is_archived() -> None:
    share = partition((5, 9, ACKNOWLEDGED, 1))
    assert take(share, log_of((10, 14))) == [(10, 14, 1)]
    assert share.start_offset == 10


def test_what_is_not_read_yet_stays_available() -> None:
    share = partition((10, 19, AVAILABLE, 1))
    assert take(share, log_of((0, 4))) == [(0, 4, 1)]
    assert share.next_fetch_offset == 5
    assert take(share, log_of((5, 12))) == [(5, 9, 1), (10, 12, 2)]
    assert share.next_fetch_offset == 13


@pytest.mark.parametrize(
    ("stored", "start"),
    [
        ([(0, 4, ACKNOWLEDGED, 1), (5, 9, ARCHIVED, 5)], 10),
        ([(0, 4, ACKNOWLEDGED, 1), (6, 9, ARCHIVED, 5)], 5),
        ([(0, 4, AVAILABLE, 1)], 0),
        ([], 0),
    ],
)
def test_the_start_offset_passes_what_was_done_before(
    stored: list[tuple[int, int, int, int]], start: int
) -> None:
    assert partition(*stored).start_offset == start


# ---- acknowledgement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "start"),
    [(GAP, ARCHIVED, 10), (ACCEPT, ACKNOWLEDGED, 10), (REJECT, ARCHIVED, 10), (RELEASE, AVAILABLE, 0)],
)
def test_each_type_leads_to_its_state(kind: int, state: int, start: int) -> None:
    share = partition()
    take(share, log_of((0, 9)))
    change = answer(share, 0, 9, kind)
    assert change.state == ShareState(7, 4, 0, [StateBatch(0, 9, state, 1)], 0 if state == AVAILABLE else 10)
    # Nothing holds before it is stored.
    assert (flight(share), share.start_offset) == ([(0, 9, ACQUIRED, 1)], 0)
    assert share.next_fetch_offset == 10
    assert share.complete(change, 5, is_stored=True) is None
    assert share.start_offset == start
    assert share.next_deadline_ms == NEVER


def test_one_type_for_each_record() -> None:
    share = partition()
    take(share, log_of((0, 6)))
    change = answer(share, 0, 6, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW, ACCEPT)
    assert change.state is not None
    assert change.state.batches == [
        *(StateBatch(0, 1, ACKNOWLEDGED, 1), StateBatch(2, 2, AVAILABLE, 1)),
        *(StateBatch(3, 4, ARCHIVED, 1), StateBatch(6, 6, ACKNOWLEDGED, 1)),
    ]
    assert change.state.delivery_complete_count == 5
    share.complete(change, 0, is_stored=True)
    assert (share.start_offset, share.next_fetch_offset, share.done_count) == (2, 2, 3)


def test_several_batches_are_one_change() -> None:
    share = partition()
    take(share, log_of((0, 4), (5, 9)), batch_size=1)
    asked = [AcknowledgementBatch(0, 1, [ACCEPT]), AcknowledgementBatch(3, 7, [ACCEPT])]
    change = share.acknowledge("a", asked, 0)
    assert change.state is not None
    assert change.state.batches == [StateBatch(0, 1, ACKNOWLEDGED, 1), StateBatch(3, 7, ACKNOWLEDGED, 1)]


def test_the_stored_start_offset_is_never_ahead_of_what_is_stored() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    first, second = answer(share, 0, 4, ACCEPT), answer(share, 5, 9, ACCEPT)
    assert first.state is not None
    assert second.state is not None
    assert (first.state.start_offset, second.state.start_offset) == (0, 0)
    assert second.state.delivery_complete_count == 10
    share.complete(first, 0, is_stored=False)
    share.complete(second, 0, is_stored=True)
    assert (share.start_offset, share.done_count) == (0, 5)


@pytest.mark.parametrize(
    ("first", "last", "member", "error"),
    [
        (0, 9, "b", InvalidRecordState),  # another member's
        (5, 24, "a", InvalidRecordState),  # 20-24 are acquired by b
        (25, 29, "a", InvalidRecordState),  # released
        (12, 12, "a", InvalidRecordState),  # about to change
        (30, 30, "a", InvalidRequest),  # behind the end
        (28, 31, "b", InvalidRequest),  # the bounds are checked before the states
        (20, 35, "b", InvalidRequest),
    ],
)
def test_an_acknowledgement_is_refused_as_a_whole(
    first: int, last: int, member: str, error: type[KreplicaError]
) -> None:
    share = partition()
    take(share, log_of((0, 19)))
    take(share, log_of((20, 29)), member="b")
    store(share, 25, 29, RELEASE, member="b")
    answer(share, 12, 12, ACCEPT)
    before = flight(share)
    with pytest.raises(error):
        answer(share, first, last, ACCEPT, member=member)
    assert flight(share) == before
    if member == "a":
        good = AcknowledgementBatch(0, 1, [ACCEPT])
        with pytest.raises(error):
            share.acknowledge(member, [good, AcknowledgementBatch(first, last, [ACCEPT])], 0)
        assert flight(share) == before


def test_below_the_start_offset() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    store(share, 0, 4, ACCEPT)
    with pytest.raises(InvalidRecordState, match="before the start offset 5"):
        answer(share, 0, 4, ACCEPT)
    # The part above the start counts.
    change = answer(share, 3, 6, ACCEPT)
    assert change.state is not None
    assert change.state.batches == [StateBatch(5, 6, ACKNOWLEDGED, 1)]
    share.complete(change, 0, is_stored=True)
    assert share.start_offset == 7


def test_a_change_that_is_not_stored_leaves_the_records_acquired() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    change = answer(share, 0, 9, ACCEPT)
    assert share.complete(change, LOCK_MS - 1, is_stored=False) is None
    assert flight(share) == [(0, 9, ACQUIRED, 1)]
    assert (share.done_count, share.next_deadline_ms) == (0, LOCK_MS)
    store(share, 0, 9, ACCEPT)
    assert share.start_offset == 10


@pytest.mark.parametrize(
    ("delivered", "state", "next_offset", "start"), [(3, AVAILABLE, 0, 0), (4, ARCHIVED, 1, 1)]
)
def test_a_lock_that_ends_while_a_change_is_not_stored_ends_with_it(
    delivered: int, state: int, next_offset: int, start: int
) -> None:
    """KAFKA-19476: the record stayed acquired for ever, or came again above the limit."""
    share = partition((0, 0, AVAILABLE, delivered))
    take(share, log_of((0, 0)))
    change = answer(share, 0, 0, ACCEPT)
    assert share.expire(LOCK_MS) is None
    assert flight(share) == [(0, 0, ACQUIRED, delivered + 1)]
    stored = share.complete(change, LOCK_MS, is_stored=False)
    assert stored is not None
    assert stored.batches == [StateBatch(0, 0, state, delivered + 1)]
    assert (share.next_fetch_offset, share.start_offset) == (next_offset, start)


def test_what_is_being_acknowledged_is_not_acquired_and_keeps_its_lock() -> None:
    """KAFKA-18084: it was acquired again, and its lock never ended."""
    share = partition()
    take(share, log_of((0, 9)))
    change = answer(share, 0, 4, RELEASE)
    assert take(share, log_of((0, 9))) == []
    assert share.complete(change, 0, is_stored=False) is None
    assert flight(share) == [(0, 4, ACQUIRED, 1), (5, 9, ACQUIRED, 1)]
    assert share.expire(LOCK_MS) is not None
    assert take(share, log_of((0, 9)), now_ms=LOCK_MS) == [(0, 4, 2), (5, 9, 2)]


def test_a_lock_that_ends_while_a_change_is_stored_does_not_count() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    change = answer(share, 0, 9, ACCEPT)
    assert share.expire(LOCK_MS) is None
    assert share.complete(change, LOCK_MS, is_stored=True) is None
    assert share.start_offset == 10


# ---- locks -------------------------------------------------------------------------------------------------


def test_a_lock_ends() -> None:
    share = partition()
    take(share, log_of((0, 9)), now_ms=100)
    take(share, log_of((10, 19)), now_ms=200)
    assert share.expire(100 + LOCK_MS - 1) is None
    stored = share.expire(100 + LOCK_MS)
    assert stored is not None
    assert stored.batches == [StateBatch(0, 9, AVAILABLE, 1)]
    assert (share.next_fetch_offset, share.next_deadline_ms) == (0, 200 + LOCK_MS)
    with pytest.raises(InvalidRecordState):
        answer(share, 0, 9, ACCEPT)
    assert take(share, log_of((0, 9)), member="b", now_ms=50_000) == [(0, 9, 2)]
    # The lock of the first owner is over: its end does not touch the second one's.
    assert share.expire(200 + LOCK_MS) is not None
    assert flight(share)[0] == (0, 9, ACQUIRED, 2)


def test_renewal_restarts_the_lock_and_stores_nothing() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    assert answer(share, 2, 4, RENEW, now_ms=20_000) == StateChange([], None)
    stored = share.expire(LOCK_MS)
    assert stored is not None
    assert stored.batches == [StateBatch(0, 1, AVAILABLE, 1), StateBatch(5, 9, AVAILABLE, 1)]
    assert share.next_deadline_ms == 20_000 + LOCK_MS


@pytest.mark.parametrize("again", [RENEW, RELEASE])
def test_a_lock_that_began_twice_at_the_same_time_ends_once(again: int) -> None:
    share = partition(settings=ShareSettings(delivery_count_limit=2))
    take(share, log_of((0, 4)))
    change = answer(share, 0, 4, again)
    if again == RELEASE:
        share.complete(change, 0, is_stored=True)
        assert take(share, log_of((0, 4)), most=1, exact=True) == [(0, 0, 2)]
    state = share.expire(LOCK_MS)
    assert state is not None
    offsets = [each for b in state.batches for each in range(b.first_offset, b.last_offset + 1)]
    assert offsets == ([0] if again == RELEASE else [0, 1, 2, 3, 4])
    assert share.done_count == 0
    assert share.start_offset == (1 if again == RELEASE else 0)


def test_renewal_may_be_disabled() -> None:
    share = partition(settings=ShareSettings(renew_enabled=False))
    take(share, log_of((0, 9)))
    with pytest.raises(InvalidRecordState, match=r"share\.renew\.acknowledge\.enable"):
        answer(share, 0, 9, RENEW)


def test_a_member_that_goes_releases_what_it_has() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    take(share, log_of((10, 19)), member="b")
    change = answer(share, 0, 4, ACCEPT)
    stored = share.release("a")
    assert stored is not None
    assert stored.batches == [StateBatch(5, 9, AVAILABLE, 1)]
    assert share.release("a") is None
    share.complete(change, 0, is_stored=True)
    assert flight(share) == [(5, 9, AVAILABLE, 1), (10, 19, ACQUIRED, 1)]


# ---- the limit of deliveries -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["release", "lock", "member"])
def test_a_record_that_was_delivered_too_often_is_archived(way: str) -> None:
    share = partition((0, 0, AVAILABLE, 4))
    assert take(share, log_of((0, 0))) == [(0, 0, 5)]
    if way == "release":
        change = answer(share, 0, 0, RELEASE)
        state = change.state
        share.complete(change, 0, is_stored=True)
    else:
        state = share.expire(LOCK_MS) if way == "lock" else share.release("a")
    assert state is not None
    assert (state.batches, state.delivery_complete_count) == ([StateBatch(0, 0, ARCHIVED, 5)], 1)
    assert share.start_offset == 1


@pytest.mark.parametrize(
    ("limit", "count", "acquired"),
    [
        (5, 1, [(0, 9, 2), (10, 19, 1)]),
        (5, 2, [(0, 9, 3), (10, 19, 1)]),
        (5, 3, [(0, 4, 4)]),
        (5, 4, [(0, 0, 5)]),
        (2, 1, [(0, 9, 2), (10, 19, 1)]),
        (3, 1, [(0, 9, 2), (10, 19, 1)]),
        (3, 2, [(0, 0, 3)]),
        (10, 6, [(0, 1, 7)]),
        (10, 9, [(0, 0, 10)]),
    ],
)
def test_near_the_limit_a_batch_is_delivered_in_parts(limit: int, count: int, acquired: object) -> None:
    share = partition((0, 9, AVAILABLE, count), settings=ShareSettings(delivery_count_limit=limit))
    assert take(share, log_of((0, 19))) == acquired


def test_a_part_is_delivered_alone() -> None:
    share = partition((0, 4, AVAILABLE, 1), (5, 8, AVAILABLE, 3), (9, 9, AVAILABLE, 1))
    assert take(share, log_of((0, 19))) == [(0, 4, 2)]
    assert take(share, log_of((0, 19))) == [(5, 6, 4)]
    assert take(share, log_of((0, 19))) == [(7, 7, 4)]
    assert take(share, log_of((0, 19))) == [(8, 8, 4)]
    assert take(share, log_of((0, 19))) == [(9, 9, 2), (10, 19, 1)]


def test_a_lower_limit_archives_what_is_above_it() -> None:
    share = partition((0, 4, AVAILABLE, 4))
    share.settings = ShareSettings(delivery_count_limit=3)
    assert take(share, log_of((0, 9))) == [(5, 9, 1)]
    assert share.start_offset == 5


# ---- the log's start ---------------------------------------------------------------------------------------


def test_records_below_the_start_of_the_log_are_forgotten() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    take(share, log_of((10, 19)), member="b")
    store(share, 5, 5, ACCEPT)
    share.move_log_start(8)
    assert (share.start_offset, share.done_count) == (8, 0)
    assert flight(share) == [(8, 9, ACQUIRED, 1), (10, 19, ACQUIRED, 1)]
    change = answer(share, 0, 9, ACCEPT)
    assert change.state is not None
    assert change.state.batches == [StateBatch(8, 9, ACKNOWLEDGED, 1)]
    share.move_log_start(30)
    assert (share.start_offset, share.end_offset, flight(share)) == (30, 29, [])
    assert share.next_deadline_ms == NEVER
    assert share.expire(LOCK_MS) is None
    share.move_log_start(5)
    assert share.start_offset == 30


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("log_start", [4, 5, 10, 20])
def test_the_log_start_moves_while_a_change_is_stored(is_stored: bool, log_start: int) -> None:
    """KAFKA-19476: the record stayed acquired for ever."""
    share = partition()
    take(share, log_of((0, 9)))
    change = answer(share, 0, 4, ACCEPT)
    share.move_log_start(log_start)
    share.complete(change, LOCK_MS, is_stored=is_stored)
    share.expire(LOCK_MS)
    assert share.start_offset == (5 if log_start == 4 and is_stored else log_start)
    assert all(state == AVAILABLE for _, _, state, _ in flight(share))
    assert share.done_count == 0


def test_the_start_offset_passes_only_records_that_are_done_without_a_gap() -> None:
    share = partition()
    take(share, log_of((0, 9)))
    store(share, 3, 5, ACCEPT)
    assert (share.start_offset, share.done_count) == (0, 3)
    store(share, 0, 1, REJECT)
    assert (share.start_offset, share.done_count) == (2, 3)
    store(share, 2, 2, ACCEPT)
    assert (share.start_offset, share.done_count) == (6, 0)
