"""Damaged ranges of segments that are not plain: with transactions, and compacted, also unlike the peer's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from kreplica._core.offset_map import OffsetMap
from kreplica.common.types import ACKS_LEADER, AppendOrigin
from kreplica.log.cleaner import Cleaner
from kreplica.log.scrubber import Scrubber
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build
from tests.support.replicas import Replicas
from tests.unit.replica.test_damage_repair import T0, Died, flip, image, place

NOW_MS = 1_600_000_000_000
PRODUCER = 7
# Of a batch's byte that any record covers: the records' section begins at 61.
RECORDS = 62


def put(at: Replicas, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    done = at.manager(1).append_records({T0: data}, required_acks=ACKS_LEADER, origin=origin).result(0)
    assert done[T0].error is None
    at.settle()


def in_transaction(at: Replicas, sequence: int) -> None:
    fields = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": sequence, "now_ms": NOW_MS}
    put(at, build([b"%d" % sequence], transactional=True, **fields))


def end_transaction(at: Replicas, *, commit: bool) -> None:
    ended = EndTransactionMarker(commit, 0)
    marker = build_end_transaction_marker(ended, producer_id=PRODUCER, producer_epoch=0, timestamp_ms=NOW_MS)
    put(at, marker, AppendOrigin.COORDINATOR)


def log_of(at: Replicas, broker: int) -> UnifiedLog:
    return at.partition(broker).local_log


def roll(at: Replicas) -> None:
    for broker in at.ids:
        log_of(at, broker).roll()


def find(at: Replicas, broker: int, offset: int) -> None:
    """Let the batch that holds the offset rot, and be found."""
    segment, position = place(at, broker, offset)
    flip(segment, position, RECORDS)
    assert log_of(at, broker).search_damage(segment, offset)


def committed(at: Replicas, broker: int) -> list[tuple[int | None, bytes | None]]:
    batches = log_of(at, broker).batches(log_of(at, broker).log_start_offset, isolation="txn_committed")
    return [(record.offset, record.value) for each in batches if not each.is_control for record in each]


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_aborted_stays_hidden(broker: int, offset: int, crashes: bool) -> None:
    at = Replicas()
    put(at, build([b"plain"], now_ms=NOW_MS))
    in_transaction(at, 0)
    in_transaction(at, 1)
    end_transaction(at, commit=False)  # at offset 3
    in_transaction(at, 2)
    end_transaction(at, commit=True)
    roll(at)
    put(at, build([b"last"], now_ms=NOW_MS))
    at.settle()
    whole, seen = image(at, broker), committed(at, broker)
    assert [value for _, value in seen] == [b"plain", b"2", b"last"]
    find(at, broker, offset)
    if crashes:
        at.cluster.kill(broker)
        at.cluster.start(broker)
        at.notify(at.controller.decide(T0))
    at.pass_time(3_000)
    assert image(at, broker) == whole
    assert committed(at, broker) == seen
    at.cluster.kill(broker)
    at.cluster.start(broker)
    at.notify(at.controller.decide(T0))
    at.settle()
    assert committed(at, broker) == seen


# ---- compacted ---------------------------------------------------------------------------------------------


def compacted(keys: str, cleaned: Sequence[int]) -> Replicas:
    """A batch for each letter, which is its record's key; those brokers' cleaners have been there."""
    at = Replicas(settings={"cleanup.policy": "compact"})
    for offset, key in enumerate(keys):
        put(at, build([(key.encode(), b"%d" % offset)], now_ms=NOW_MS))
    roll(at)
    put(at, build([(b"last", b"last")], now_ms=NOW_MS))
    at.settle()
    for broker in cleaned:
        clean(at, broker, len(keys))
    return at


def latest(at: Replicas, broker: int) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for each in log_of(at, broker).batches(0) for record in each}


def sound(at: Replicas, broker: int) -> bool:
    """Whether a scrubber that comes now finds nothing."""
    manager = at.broker(broker).log_manager
    scrubber = Scrubber(manager.logs, manager.scrubber.clock, manager.scrubber.on_error, manager.settings)
    while scrubber.status.rounds == 0:
        scrubber.do_work()
    return not log_of(at, broker).damages


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("offset", [2, 3, 5])
def test_a_compacted_segment_is_what_it_was(broker: int, offset: int) -> None:
    at = compacted("aabcad", [1, 2, 3])
    assert [each.base_offset for each in log_of(at, broker).batches(0)] == [2, 3, 4, 5, 6]
    whole = image(at, broker)
    find(at, broker, offset)
    at.pass_time(3_000)
    assert image(at, broker) == whole
    assert sound(at, broker)


@pytest.mark.parametrize("offset", range(6))
def test_a_range_comes_from_a_peer_that_has_compacted_it(offset: int) -> None:
    at = compacted("aabcad", [1, 3])
    before = latest(at, 2)
    find(at, 2, offset)
    at.pass_time(3_000)
    assert latest(at, 2) == before
    assert sound(at, 2)
    assert set(at.partition(1).isr) == {1, 2, 3}
    at.cluster.kill(2)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.settle()
    assert latest(at, 2) == before
    assert sound(at, 2)


def clean(at: Replicas, broker: int, stop: int, now_ms: int = NOW_MS) -> None:
    for _ in Cleaner(OffsetMap(1 << 10, bytes(16)), 1 << 10).clean(log_of(at, broker), 0, stop, now_ms):
        pass


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_a_compacted_range_comes_from_a_peer_that_has_as_much_there(offset: int) -> None:
    at = compacted("aabcad", [2])
    before = latest(at, 2)
    find(at, 2, offset)
    at.pass_time(3_000)
    assert latest(at, 2) == before
    assert sound(at, 2)
    assert set(at.partition(1).isr) == {1, 2, 3}


def test_a_deleted_key_does_not_come_back_from_a_peer_that_is_not_cleaned_yet() -> None:
    at = Replicas(settings={"cleanup.policy": "compact", "delete.retention.ms": 0})
    for record in ((b"z", b"z"), (b"a", b"1"), (b"b", b"b"), (b"a", None)):
        put(at, build([record], now_ms=NOW_MS))
    roll(at)
    put(at, build([(b"last", b"last")], now_ms=NOW_MS))
    at.settle()
    # The tombstone goes in the second round.
    for now_ms in (NOW_MS, 2 * NOW_MS):
        clean(at, 2, 4, now_ms)
    before = latest(at, 2)
    assert b"a" not in before
    find(at, 2, 2)
    at.pass_time(3_000)
    assert log_of(at, 2).damages
    for now_ms in (NOW_MS, 2 * NOW_MS):
        clean(at, 3, 4, now_ms)
    at.pass_time(3_000)
    assert latest(at, 2) == before
    assert set(at.partition(1).isr) == {1, 2, 3}


# ---- missing at the log's start ----------------------------------------------------------------------------

SMALL = {"segment.bytes": 1000, "segment.index.bytes": 4096, "max.message.bytes": 900}


def lose_first(at: Replicas, broker: int, count: int = 1) -> int:
    """Remove the files of a killed broker's first segments, and start it; what its log begins with then."""
    segments = log_of(at, broker).local.segments
    at.cluster.kill(broker)
    storage = at.cluster.brokers[broker].storage
    for segment in segments[:count]:
        directory, _, name = segment.region.path.rpartition("/")
        for each in storage.list_directory(directory):
            if each.startswith(name.removesuffix(".log")):
                storage.remove(f"{directory}/{each}")
        storage.sync_directory(directory)
    at.cluster.start(broker)
    at.notify(at.controller.decide(T0))
    return segments[count].base_offset


def follower_filled() -> Replicas:
    at = Replicas(settings=SMALL)
    for number in range(30):
        put(at, build([b"%03d" % number * 50], now_ms=NOW_MS))
    return at


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_a_log_without_its_first_segments_takes_them_from_a_peer(broker: int, count: int) -> None:
    at = follower_filled()
    whole = image(at, broker)
    stop = lose_first(at, broker, count)
    assert [(each.first_offset, each.stop_offset) for each in log_of(at, broker).damages] == [(0, stop)]
    assert log_of(at, broker).log_start_offset == 0
    at.pass_time(3_000)
    assert image(at, broker) == whole
    assert sound(at, broker)
    assert set(at.partition(1).isr) == {1, 2, 3}
    at.cluster.kill(broker)
    at.cluster.start(broker)
    at.notify(at.controller.decide(T0))
    at.settle()
    assert image(at, broker) == whole
    assert not log_of(at, broker).damages


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(0, 24, 2))
def test_a_crash_while_a_logs_first_segments_are_put_back(step: int, power: bool) -> None:
    at = follower_filled()
    log_of(at, 2).flush()
    whole = image(at, 2)
    lose_first(at, 2, 2)
    left = [step]

    def fault(operation: str, path: str) -> None:
        if ".cleaned" in path or ".swap" in path or left[0] < step:
            left[0] -= 1
        if left[0] < 0:
            raise Died(operation, path)

    at.cluster.set_disk_fault(2, fault)
    with suppress(Died):
        at.pass_time(1_000)
    at.cluster.set_disk_fault(2, None)
    (at.cluster.power_cut if power else at.cluster.kill)(2)
    at.cluster.start(2)
    at.notify(at.controller.decide(T0))
    at.pass_time(10_000)
    assert image(at, 2) == whole
    assert set(at.partition(1).isr) == {1, 2, 3}


def test_a_missing_start_whose_log_begins_inside_of_a_batch() -> None:
    at = Replicas(settings=SMALL)
    for _ in range(4):
        put(at, build([b"%03d" % number * 50 for number in range(5)], now_ms=NOW_MS))
    at.pass_time(100)
    log_of(at, 1).maybe_increment_log_start_offset(3)
    put(at, build([b"last"], now_ms=NOW_MS))
    at.settle()
    whole = image(at, 2)
    assert log_of(at, 2).log_start_offset == 3
    assert lose_first(at, 2) == 5
    at.pass_time(3_000)
    assert image(at, 2) == whole
    assert log_of(at, 2).log_start_offset == 3
    assert sound(at, 2)


def test_what_was_aborted_in_a_missing_start_stays_hidden() -> None:
    at = Replicas()
    put(at, build([b"plain"], now_ms=NOW_MS))
    in_transaction(at, 0)
    in_transaction(at, 1)
    end_transaction(at, commit=False)
    in_transaction(at, 2)
    end_transaction(at, commit=True)
    roll(at)
    put(at, build([b"last"], now_ms=NOW_MS))
    at.settle()
    whole, seen = image(at, 2), committed(at, 2)
    lose_first(at, 2)
    at.pass_time(3_000)
    assert image(at, 2) == whole
    assert committed(at, 2) == seen
    assert [value for _, value in seen] == [b"plain", b"2", b"last"]
