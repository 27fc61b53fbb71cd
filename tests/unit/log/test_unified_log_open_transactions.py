"""Open transactions of a log, by its public face: listed, and ended by an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica import Log
from kreplica.common.errors import InvalidTxnState, LogClosed, ReadOnlyLog
from tests.support.batches import build
from tests.support.logs import ManualClock, open_log, values

NOW_MS = 1_700_000_000_000


def sent_by(producer: int, *values: bytes, epoch: int = 0, sequence: int = 0) -> bytes:
    return build(
        list(values),
        now_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def committed(log: Log) -> list[object]:
    return [record.value for record in log.read(isolation="txn_committed")]


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_an_aborted_transaction_no_longer_hides_records(tmp_path: Path, durability: str) -> None:
    with Log.open(tmp_path / "t-0", durability=durability) as log:
        log.append([b"before"])
        log.append_batch(sent_by(7, b"open", epoch=3))
        log.append([b"behind"])
        log.append_batch(sent_by(7, b"more", epoch=3, sequence=1))
        assert committed(log) == [b"before"]
        assert log.open_transactions == [(7, 3, 1, NOW_MS)]

        info = log.abort_transaction(7)

        assert (info.base_offset, log.last_stable_offset) == (4, 5)
        assert log.open_transactions == []
        assert committed(log) == [b"before", b"behind"]
    with Log.open(tmp_path / "t-0") as log:
        assert (log.open_transactions, committed(log)) == ([], [b"before", b"behind"])
        # The producer, if it is alive after all, begins another transaction where its sequence goes on.
        log.append_batch(sent_by(7, b"next", epoch=3, sequence=2))
        assert [each.first_offset for each in log.open_transactions] == [5]


def test_open_transactions_are_listed_by_their_first_offsets(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        for producer in (9, 4, 6):
            log.append_batch(sent_by(producer, b"open"))
        log.abort_transaction(4)
        assert [(each.producer_id, each.first_offset) for each in log.open_transactions] == [(9, 0), (6, 2)]
        assert log.last_stable_offset == 0


def test_only_an_open_transaction_is_aborted(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append_batch(
            build([b"idempotent"], now_ms=NOW_MS, producer_id=5, producer_epoch=0, base_sequence=0)
        )
        log.append_batch(sent_by(7, b"open"))
        log.abort_transaction(7)
        end = log.log_end_offset
        for producer in (5, 7, 8):
            with pytest.raises(InvalidTxnState, match=f"producer {producer} has no open transaction"):
                log.abort_transaction(producer)
        with pytest.raises(ValueError, match="producer_id"):
            log.abort_transaction(-1)
        assert log.log_end_offset == end
    with pytest.raises(LogClosed):
        log.open_transactions  # noqa: B018
    with pytest.raises(LogClosed):
        log.abort_transaction(7)


def test_a_reader_beside_the_writer_lists_and_ends_nothing(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        assert reader.open_transactions == []
        log.append_batch(sent_by(7, b"open"))
        assert reader.open_transactions == log.open_transactions == [(7, 0, 0, NOW_MS)]
        with pytest.raises(ReadOnlyLog):
            reader.abort_transaction(7)
        log.abort_transaction(7)
        assert reader.open_transactions == []
        assert reader.last_stable_offset == 2


@pytest.mark.parametrize("by", ["retention", "an operator"])
def test_the_last_stable_offset_is_not_below_the_log_start(tmp_path: Path, by: str) -> None:
    """A consumer that begins at the end of what is committed would find its offset out of range."""
    clock = ManualClock()
    log = open_log(tmp_path / "t-0", clock, retention_ms=1_000)
    log.append_as_leader(sent_by(7, b"open"), 0)
    log.roll()
    clock.now_ms += 10_000
    log.append_as_leader(build([b"behind"], now_ms=clock.now_ms), 0)
    assert log.last_stable_offset == 0
    if by == "retention":
        assert log.delete_old_segments() == 1
    else:
        assert log.maybe_increment_log_start_offset(1)
    assert (log.log_start_offset, log.last_stable_offset) == (1, 1)
    log.close()
    log = open_log(tmp_path / "t-0", clock, retention_ms=1_000)
    assert (log.log_start_offset, log.last_stable_offset) == (1, 1)
    log.append_as_leader(build([b"more"], now_ms=clock.now_ms), 0)
    assert values(log, isolation="txn_committed") == []
    log.close()
