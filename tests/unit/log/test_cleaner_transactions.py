"""Transactions in a log that is cleaned: what an aborted one wrote never counts, wherever its marker lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica._core.offset_map import OffsetMap
from kreplica.common.types import AppendOrigin
from kreplica.log.cleaner import Cleaner, log_to_clean
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build
from tests.support.logs import NOW_MS, open_log, values

PRODUCER = 7
DELETE_RETENTION_MS = 1_000


def opened(path: Path) -> UnifiedLog:
    return open_log(path, cleanup_policy="compact", delete_retention_ms=DELETE_RETENTION_MS)


def produce(log: UnifiedLog, key: bytes, value: bytes, sequence: int, *, epoch: int = 0) -> None:
    fields = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence, "now_ms": NOW_MS}
    log.append_as_leader(build([(key, value)], transactional=True, **fields), 0)


def end(log: UnifiedLog, *, commit: bool, epoch: int = 0) -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(commit, 0), producer_id=PRODUCER, producer_epoch=epoch, timestamp_ms=NOW_MS
    )
    log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)


def clean(log: UnifiedLog, start: int, stop: int, now_ms: int = NOW_MS) -> None:
    for _ in Cleaner(OffsetMap(1 << 10, bytes(16)), 1 << 10).clean(log, start, stop, now_ms):
        pass


def aborted(log: UnifiedLog) -> list[tuple[int, int]]:
    """First and last offset of the aborted transactions that the indexes name."""
    indexes = [log.local.transaction_index(segment) for segment in log.local.segments]
    return [(txn.first_offset, txn.last_offset) for index in indexes for txn in index.collect(0, 1 << 62)[0]]


def test_the_marker_of_an_aborted_transaction_may_lie_in_the_active_segment(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    log.append_records([(b"key", b"valid")])
    produce(log, b"key", b"aborted", 0)
    log.roll()
    end(log, commit=False)
    clean(log, 0, 2)
    assert values(log, isolation="txn_committed") == [(0, b"valid")]
    log.close()


def test_an_index_names_an_aborted_transaction_while_a_cleaning_meets_data_of_it(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    produce(log, b"a", b"aborted", 0)
    end(log, commit=False)
    produce(log, b"b", b"committed", 1)
    end(log, commit=True)
    log.roll()
    assert aborted(log) == [(0, 1)]
    # The producer's last data lies in the other one: of the first, only the marker is left, for a while.
    clean(log, 0, 4)
    assert aborted(log) == [(0, 1)]
    assert [batch.is_control for batch in log.batches(0)] == [True, False, True]
    log.append_records([(b"c", b"more")])
    log.roll()
    clean(log, 4, 5)
    assert aborted(log) == []
    assert [batch.is_control for batch in log.batches(0)] == [True, False, True, False]
    log.close()


def test_a_segment_with_an_open_transaction_waits_as_a_whole(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    log.append_records([(b"a", b"1")])
    log.roll()
    log.append_records([(b"b", b"2")])
    produce(log, b"c", b"open", 0)
    log.roll()
    assert log.last_stable_offset == 2
    assert log_to_clean(log, 0, NOW_MS).stop_offset == 1
    assert not log_to_clean(log, 1, NOW_MS).is_due
    end(log, commit=True)
    assert log_to_clean(log, 1, NOW_MS).stop_offset == 3
    log.close()


def test_a_record_with_the_key_of_a_marker_does_not_replace_the_marker(tmp_path: Path) -> None:
    """KAFKA-14055: the marker went, and the aborted data in front of it became visible."""
    log = opened(tmp_path / "t-0")
    produce(log, b"a", b"aborted", 0)
    end(log, commit=False)
    key = EndTransactionMarker(commit=False, coordinator_epoch=0).key
    log.append_records([(key, b"of the same key")])
    log.roll()
    clean(log, 1, 3)
    assert values(log, isolation="txn_committed") == [(2, b"of the same key")]
    clean(log, 0, 3)
    assert values(log, isolation="txn_committed") == [(2, b"of the same key")]
    # The aborted data went; its batch stays for the producer's last sequence.
    assert [(batch.is_control, len(list(batch))) for batch in log.batches(0)] == [
        *((False, 0), (True, 1), (False, 1))
    ]
    log.close()


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_marker_stays_as_long_as_data_of_its_transaction(tmp_path: Path, stop: int) -> None:
    """KAFKA-8351, KAFKA-13727: it went with a part of the data, in several segments or in one."""
    log = opened(tmp_path / "t-0")
    produce(log, b"a", b"aborted", 0)
    produce(log, b"b", b"aborted", 1)
    if stop % 2:
        log.roll()
    produce(log, b"c", b"aborted", 2)
    end(log, commit=False)
    log.append_records([(b"d", b"valid")])
    log.roll()
    # Cleaned up to that offset only, often enough for the marker's time to run out.
    for round_ in range(4):
        clean(log, 0, stop, NOW_MS + round_ * 10 * DELETE_RETENTION_MS)
        assert values(log, isolation="txn_committed") == [(4, b"valid")]
    for round_ in range(4, 8):
        clean(log, 0, 5, NOW_MS + round_ * 10 * DELETE_RETENTION_MS)
        assert values(log, isolation="txn_committed") == [(4, b"valid")]
    assert values(log) == [(4, b"valid")]
    assert log.last_stable_offset == 5
    log.close()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_what_transactions_leave_does_not_grow_with_their_number(
    tmp_path: Path, commit: bool, raises: bool
) -> None:
    """KAFKA-8335: an emptied batch and a marker of each stayed, and a topic of offsets grew for ever."""
    log = opened(tmp_path / "t-0")
    for number in range(30):
        epoch = number if raises else 0
        produce(log, b"key", b"%d" % number, 0 if raises else number, epoch=epoch)
        end(log, commit=commit, epoch=epoch + raises)
    log.append_records([(b"last", b"one")])
    log.roll()
    for round_ in range(4):
        clean(log, 0, 61, NOW_MS + round_ * 10 * DELETE_RETENTION_MS)
    expected = [(60, b"one")] if not commit else [(58, b"29"), (60, b"one")]
    assert values(log, isolation="txn_committed") == expected
    # The last batch of the producer, its marker, and the last batch of the log.
    assert len(list(log.batches(0))) <= 3
    log.close()
