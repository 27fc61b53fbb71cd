"""The log of one partition beside plain lists: appends, rolls, retention, truncation, producers."""

from __future__ import annotations

import pytest

from kreplica._core.records import RecordBatch
from kreplica.common import errors
from kreplica.common.types import AppendOrigin
from kreplica.log.log_loader import OpenOptions
from kreplica.log.unified_log import UnifiedLog
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from tests.support.batches import build, with_crc, with_field
from tests.support.logs import NOW_MS, ManualClock, open_log, values

REPLICA = OpenOptions()  # one of several: the high watermark comes from elsewhere


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def batch(*payload: bytes, **fields) -> bytes:
    return build(list(payload), now_ms=fields.pop("now_ms", NOW_MS), **fields)


def sent_by(producer: int, sequence: int, *payload: bytes, epoch: int = 0, **fields) -> bytes:
    return batch(*payload, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **fields)


def marker(producer: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    return build_end_transaction_marker(
        EndTransactionMarker(commit, coordinator_epoch),
        producer_id=producer,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
    )


def end(log: UnifiedLog, producer: int, *, commit: bool) -> None:
    log.append_as_leader(marker(producer, commit=commit), 0, origin=AppendOrigin.COORDINATOR)


# ---- append ------------------------------------------------------------------------------------------------


def test_a_leader_gives_offsets_and_epochs(tmp_path):
    with_epochs = open_log(tmp_path / "t-0")
    first = with_epochs.append_as_leader(batch(b"a", b"b"), 3)
    second = with_epochs.append_as_leader(batch(b"c"), 5)
    third = with_epochs.append_records([b"d", (b"k", b"e")], 5)
    assert [(i.base_offset, i.last_offset) for i in (first, second, third)] == [(0, 1), (2, 2), (3, 4)]
    assert [(b.base_offset, b.leader_epoch) for b in with_epochs.batches(0)] == [(0, 3), (2, 5), (3, 5)]
    assert [tuple(e) for e in with_epochs.epochs.entries] == [(3, 0), (5, 2)]
    with pytest.raises(errors.FencedLeaderEpoch):
        with_epochs.append_as_leader(batch(b"x"), 4)
    with pytest.raises(errors.FencedLeaderEpoch):
        with_epochs.begin_epoch(4, 5)
    assert with_epochs.log_end_offset == 5
    assert [tuple(e) for e in with_epochs.epochs.entries] == [(3, 0), (5, 2)]


def test_a_follower_keeps_offsets_and_epochs_and_leaves_later_epochs_out(tmp_path):
    log = open_log(tmp_path / "t-0", options=REPLICA)
    fetched = b"".join(
        batch(value, base_offset=offset, leader_epoch=epoch)
        for value, offset, epoch in [(b"a", 0, 1), (b"b", 1, 1), (b"c", 5, 2), (b"d", 6, 3)]
    )
    info = log.append_as_follower(fetched, 2)
    assert (info.base_offset, info.last_offset, log.log_end_offset) == (5, 5, 6)
    assert [tuple(e) for e in log.epochs.entries] == [(1, 0), (2, 5)]
    assert values(log) == [(0, b"a"), (1, b"b"), (5, b"c")]
    assert log.append_as_follower(batch(b"x", base_offset=6, leader_epoch=9), 2) is None
    assert log.append_as_follower(b"", 2) is None


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (batch(b"x", base_offset=1, leader_epoch=7), errors.OffsetsOutOfOrder),
        (batch(b"x", base_offset=2, leader_epoch=2), errors.OffsetsOutOfOrder),
        (batch(b"x", base_offset=2, leader_epoch=7)[:-1] + b"?", errors.InvalidCrc),
        (batch(b"x", base_offset=1 << 40, leader_epoch=7)[:-1] + b"?", errors.InvalidCrc),
        (batch(b"x", base_offset=(1 << 63) - 1, leader_epoch=7), errors.CorruptMessage),
        (batch(b"x", base_offset=-5, leader_epoch=7), errors.CorruptMessage),
    ],
)
def test_what_a_follower_refuses_leaves_no_trace(tmp_path, bad, kind):
    log = open_log(tmp_path / "t-0", options=REPLICA)
    log.append_as_follower(batch(b"a", b"b", leader_epoch=3))
    with pytest.raises(kind):
        log.append_as_follower(bad)
    assert (log.log_end_offset, log.leader_epoch, len(log.local.segments)) == (2, 3, 1)
    assert [tuple(e) for e in log.epochs.entries] == [(3, 0)]
    log.append_as_follower(batch(b"c", base_offset=2, leader_epoch=3))
    assert values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_message_bytes": 200}, "max.message.bytes=200"),
        ({"segment_bytes": 1 << 20, "max_message_bytes": 2 << 20}, "segment.bytes=1,048,576"),
    ],
)
def test_a_batch_that_is_too_large_is_refused_with_the_limit_that_it_exceeds(
    tmp_path, clock, settings, limit
) -> None:
    log = open_log(tmp_path / "t-0", clock, **settings)
    value = bytes((1 << 20) + 100)
    for append in (
        lambda: log.append_as_leader(build([value]), 0),
        lambda: log.append_records([value], 0),
    ):
        with pytest.raises(errors.MessageTooLarge, match=f"bytes is above {limit}"):
            append()


def test_a_batch_that_is_too_large_or_of_another_time(tmp_path, clock):
    log = open_log(
        tmp_path / "t-0",
        clock,
        max_message_bytes=200,
        message_timestamp_after_max_ms=1000,
        message_timestamp_before_max_ms=5000,
    )
    for append in (
        lambda value, at: log.append_as_leader(build([(None, value, (), at)]), 0),
        lambda value, at: log.append_records([(None, value, (), at)], 0),
    ):
        with pytest.raises(errors.MessageTooLarge):
            append(bytes(200), NOW_MS)
        with pytest.raises(errors.InvalidTimestamp):
            append(b"", NOW_MS + 1001)
        with pytest.raises(errors.InvalidTimestamp):
            append(b"", NOW_MS - 5001)
        append(b"", NOW_MS + 1000)
        append(b"", NOW_MS - 5000)
    assert log.log_end_offset == 4


def test_a_header_that_lies_about_its_timestamps(tmp_path, clock):
    log = open_log(tmp_path / "t-0", clock, message_timestamp_after_max_ms=1000)
    honest = build([(None, b"x", (), NOW_MS), (None, b"y", (), NOW_MS + 900)])
    log.append_as_leader(with_field(honest, 35, ">q", NOW_MS), 0)
    assert log.offset_for_timestamp(NOW_MS + 500)[:2] == (NOW_MS + 900, 1)
    late = build([(None, b"x", (), NOW_MS), (None, b"y", (), NOW_MS + 5000)])
    with pytest.raises(errors.InvalidTimestamp):
        log.append_as_leader(with_field(late, 35, ">q", NOW_MS), 0)
    assert log.log_end_offset == 2


def test_log_append_time_replaces_the_producers(tmp_path, clock):
    log = open_log(tmp_path / "t-0", clock, message_timestamp_type="LogAppendTime")
    log.append_as_leader(batch(b"a", now_ms=5), 0)
    clock.now_ms += 10
    info = log.append_records([(None, b"b", (), 7)])
    assert info.log_append_time == NOW_MS + 10
    records = [record for batch in log.batches(0) for record in batch]
    assert [(r.timestamp, r.timestamp_type) for r in records] == [
        (NOW_MS, "log_append"),
        (NOW_MS + 10, "log_append"),
    ]


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_stored_in_the_topics_codec(tmp_path, stored, sent):
    log = open_log(tmp_path / "t-0", compression_type=stored)
    log.append_as_leader(batch(b"a" * 100, b"b" * 100, codec=sent), 0)
    log.append_records([b"c" * 100])
    assert {b.codec for b in log.batches(0)} == {"none" if stored == "uncompressed" else stored}
    assert values(log) == [(0, b"a" * 100), (1, b"b" * 100), (2, b"c" * 100)]


def test_a_compacted_topic_wants_keys(tmp_path):
    log = open_log(tmp_path / "t-0", cleanup_policy="compact")
    with pytest.raises(errors.InvalidRecord):
        log.append_as_leader(batch(b"no key"), 0)
    with pytest.raises(errors.InvalidRecord):
        log.append_records([(b"k", b"v"), b"no key"])
    log.append_records([(b"k", b"v")])
    assert log.log_end_offset == 1


# ---- roll --------------------------------------------------------------------------------------------------


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.local.segments]


@pytest.mark.parametrize("leads", [True, False])
def test_kafkas_reasons_to_roll(tmp_path, leads):
    def appended(name: str, steps: list[tuple[int, int]], **settings: object) -> list[int]:
        log = open_log(tmp_path / name, options=REPLICA, **settings)
        for offset, timestamp in steps:
            data = batch(bytes(40), now_ms=timestamp, base_offset=offset, leader_epoch=0)
            log.append_as_leader(data, 0) if leads else log.append_as_follower(data)
        if not leads:
            assert values(log) == [(offset, bytes(40)) for offset, _ in steps]
        return bases(log)

    size = len(batch(bytes(40)))
    steady = [(offset, NOW_MS) for offset in range(6)]
    assert appended("size", steady, segment_bytes=2 * size) == [0, 2, 4]
    aging = [(offset, NOW_MS + 10 * offset) for offset in range(6)]
    assert appended("time", aging, segment_ms=20) == [0, 3]
    assert appended("index", steady, segment_index_bytes=24, index_interval_bytes=0) == [0, 2, 4]
    if not leads:
        far = [(0, NOW_MS), (0x7FFFFFFF, NOW_MS), (0x80000000, NOW_MS), (1 << 40, NOW_MS)]
        assert appended("offset", far) == [0, 0x80000000, 1 << 40]


def test_a_roll_leaves_a_snapshot_and_an_empty_segment_is_not_rolled(tmp_path):
    log = open_log(tmp_path / "t-0")
    log.roll()
    assert bases(log) == [0]
    log.append_as_leader(sent_by(5, 0, b"a", b"b"), 0)
    log.roll()
    log.roll()
    assert bases(log) == [0, 2]
    assert log.producers.snapshot_offsets == [2]


# ---- read --------------------------------------------------------------------------------------------------


def test_each_isolation_stops_at_its_bound(tmp_path):
    log = open_log(tmp_path / "t-0", options=REPLICA, segment_bytes=300)
    for number in range(10):
        log.append_as_leader(batch(bytes([number]) * 50), 0)
    log.append_as_leader(sent_by(5, 0, b"open", transactional=True), 0)
    log.update_high_watermark(7)
    assert len(values(log)) == 11
    assert [offset for offset, _ in values(log, isolation="high_watermark")] == list(range(7))
    assert [offset for offset, _ in values(log, isolation="txn_committed")] == list(range(7))
    log.update_high_watermark(11)
    assert len(values(log, isolation="txn_committed")) == 10
    read = log.read(0, 1 << 20)
    assert (read.high_watermark, read.last_stable_offset, read.log_end_offset) == (11, 10, 11)
    assert log.read(11, 100, isolation="log_end").records is None
    for outside in (-1, 12):
        with pytest.raises(errors.OffsetOutOfRange):
            log.read(outside, 100)
    with pytest.raises(ValueError):
        log.read(0, 100, isolation="hopeful")


def test_aborted_transactions_are_listed_and_left_out(tmp_path):
    log = open_log(tmp_path / "t-0", segment_bytes=400)
    log.append_as_leader(sent_by(1, 0, b"a1", transactional=True), 0)
    log.append_as_leader(sent_by(2, 0, b"b1", transactional=True), 0)
    assert (log.high_watermark, log.last_stable_offset) == (2, 0)
    log.append_as_leader(batch(b"plain"), 0)
    log.append_as_leader(sent_by(1, 1, b"a2", transactional=True), 0)
    end(log, 1, commit=False)
    assert log.last_stable_offset == 1
    end(log, 2, commit=True)
    assert log.last_stable_offset == log.log_end_offset == 6
    log.append_as_leader(sent_by(1, 2, b"a3", transactional=True), 0)
    end(log, 1, commit=True)
    assert [v for _, v in values(log, isolation="txn_committed")] == [b"b1", b"plain", b"a3"]
    assert [v for _, v in values(log, 1, isolation="txn_committed")] == [b"b1", b"plain", b"a3"]
    (aborted,) = log.read(0, 1 << 20, isolation="txn_committed").aborted
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (1, 0, 4)


def test_a_refused_batch_of_a_transaction_does_not_hold_back_the_last_stable_offset(tmp_path):
    log = open_log(tmp_path / "t-0", segment_bytes=1 << 20)
    bad = sent_by(5, 3, b"open", transactional=True)
    log.append_as_leader(sent_by(5, 0, b"a", transactional=True), 0)
    end(log, 5, commit=True)
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        log.append_as_leader(bad, 0)
    with pytest.raises(errors.FencedLeaderEpoch):
        log.append_as_leader(sent_by(5, 1, b"open", transactional=True), -1)
    log.append_as_leader(batch(b"plain"), 0)
    assert log.last_stable_offset == log.high_watermark == 3


# ---- producers ---------------------------------------------------------------------------------------------


def test_the_last_five_batches_of_a_producer_are_known_again(tmp_path):
    log = open_log(tmp_path / "t-0")
    batches = [sent_by(5, 2 * number, b"x", b"y") for number in range(7)]
    for data in batches:
        assert not log.append_as_leader(data, 0).duplicate
    for number in range(2, 7):
        again = log.append_as_leader(batches[number], 0)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, 2 * number, 2 * number + 1)
    for number in range(2):
        with pytest.raises(errors.KreplicaError) as caught:
            log.append_as_leader(batches[number], 0)
        assert isinstance(caught.value, (errors.DuplicateSequenceNumber, errors.OutOfOrderSequenceNumber))
    with pytest.raises(errors.OutOfOrderSequenceNumber):
        log.append_as_leader(sent_by(5, 20, b"gap"), 0)
    log.append_as_leader(sent_by(5, 0, b"new epoch", epoch=1), 0)
    with pytest.raises(errors.InvalidProducerEpoch):
        log.append_as_leader(sent_by(5, 14, b"old epoch"), 0)
    assert log.log_end_offset == 15


@pytest.mark.parametrize("clean", [True, False])
def test_producers_and_transactions_outlive_the_process(tmp_path, clean):
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for number in range(6):
        log.append_as_leader(sent_by(5, number, bytes(30)), 0)
    log.append_as_leader(sent_by(6, 0, b"aborted", transactional=True), 0)
    end(log, 6, commit=False)
    log.append_as_leader(sent_by(7, 0, b"open", transactional=True), 0)
    log.close() if clean else log.abandon()
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    assert (log.high_watermark, log.last_stable_offset) == (9, 8)
    assert log.append_as_leader(sent_by(5, 5, bytes(30)), 0).duplicate
    assert len(values(log, isolation="txn_committed")) == 6
    end(log, 7, commit=True)
    assert log.last_stable_offset == 10


# ---- retention ---------------------------------------------------------------------------------------------


def test_retention_by_time_size_and_start(tmp_path, clock):
    size = len(batch(bytes(40)))

    def ten(name: str, **settings: object) -> UnifiedLog:
        log = open_log(tmp_path / name, clock, segment_bytes=2 * size, **settings)
        for number in range(10):
            log.append_as_leader(batch(bytes(40), now_ms=NOW_MS + number), 0)
        return log

    by_size = ten("size", retention_bytes=5 * size)
    assert (by_size.delete_old_segments(), by_size.log_start_offset) == (2, 4)

    by_start = ten("start", retention_ms=-1)
    assert by_start.maybe_increment_log_start_offset(5)
    assert not by_start.maybe_increment_log_start_offset(4)
    assert (by_start.delete_old_segments(), bases(by_start)) == (2, [4, 6, 8])
    assert by_start.log_start_offset == 5
    with pytest.raises(errors.OffsetOutOfRange):
        by_start.maybe_increment_log_start_offset(11)
    with pytest.raises(errors.OffsetOutOfRange):
        list(by_start.batches(4))

    by_time = ten("time", retention_ms=100)
    clock.now_ms = NOW_MS + 105
    assert (by_time.delete_old_segments(), by_time.log_start_offset) == (2, 4)
    clock.now_ms = NOW_MS + 1000
    assert by_time.delete_old_segments() == 3
    assert (by_time.log_start_offset, by_time.log_end_offset, by_time.size) == (10, 10, 0)
    assert by_time.append_records([b"next"]).base_offset == 10
    names = by_time.local.storage.list_directory(str(tmp_path / "time"))
    assert [name for name in names if name.endswith((".log", ".index.deleted", ".log.deleted"))] == [
        "00000000000000000010.log"
    ]


def test_retention_waits_for_the_high_watermark_and_leaves_compacted_topics(tmp_path, clock):
    log = open_log(tmp_path / "t-0", clock, options=REPLICA, segment_bytes=150, retention_ms=0)
    for _ in range(6):
        log.append_as_leader(batch(bytes(60)), 0)
    clock.now_ms += 1000
    assert log.delete_old_segments() == 0
    log.update_high_watermark(3)
    log.delete_old_segments()
    assert log.log_start_offset == 3
    compacted = open_log(tmp_path / "c-0", clock, cleanup_policy="compact", retention_ms=0, segment_bytes=150)
    for _ in range(3):
        compacted.append_records([(b"k", bytes(60))])
    clock.now_ms += 1000
    assert compacted.delete_old_segments() == 0


# ---- truncation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reopen", [None, "clean", "unclean"])
def test_truncation_at_every_offset(tmp_path, reopen):
    for offset in range(22):
        path = tmp_path / f"{reopen}-{offset}"
        log = open_log(path, options=REPLICA, segment_bytes=500)
        known = []
        for number in range(9):
            payload = [bytes([number]) * 30] * (1 + number % 3)
            if number % 3 == 0:
                data = sent_by(5, number // 3, *payload, transactional=True)
            else:
                data = batch(*payload)
            info = log.append_as_leader(data, number // 2)
            known.append((info.base_offset, info.last_offset, number // 2, payload))
            if number == 4:
                log.append_as_leader(marker(5, commit=False), 2, origin=AppendOrigin.COORDINATOR)
        marker_at = known[4][1] + 1
        log.update_high_watermark(15)
        before = log.log_end_offset
        kept = [b for b in known if b[1] < offset]
        keeps_marker = marker_at < offset
        assert log.truncate_to(offset) == (offset < before)
        end_offset = max([b[1] + 1 for b in kept] + ([marker_at + 1] if keeps_marker else []), default=0)
        if reopen:
            log.close() if reopen == "clean" else log.abandon()
            log = open_log(path, options=OpenOptions(high_watermark=min(15, end_offset)), segment_bytes=500)
        assert log.log_end_offset == end_offset, offset
        assert log.high_watermark == min(15, end_offset)
        assert values(log) == [(b[0] + step, value) for b in kept for step, value in enumerate(b[3])], offset
        epochs = {}
        for base_offset, _, epoch, _ in kept:
            epochs.setdefault(epoch, base_offset)
        assert [tuple(e) for e in log.epochs.entries] == sorted(epochs.items())
        assert log.leader_epoch == max(epochs, default=-1)
        # Of producer 5: 0 and 6 are open until the marker; 12 begins another transaction.
        undone = [b[0] for number, b in enumerate(known) if number % 3 == 0 and b in kept]
        if keeps_marker:
            undone = [base_offset for base_offset in undone if base_offset > marker_at]
        stable = min([*undone[:1], log.high_watermark])
        if keeps_marker and log.high_watermark <= marker_at:
            stable = 0
        assert log.last_stable_offset == stable, offset
        index = [txn for s in log.local.segments for txn in log.local.transaction_index(s).entries()]
        assert len(index) == keeps_marker
        sequence = sum(1 for number, b in enumerate(known) if number % 3 == 0 and b in kept)
        log.append_as_leader(sent_by(5, sequence, b"next", transactional=True), 9)
        assert values(log)[-1] == (end_offset, b"next")
        log.close()


def test_beginning_anew_elsewhere(tmp_path):
    for offset in (0, 3, 50):
        path = tmp_path / str(offset)
        log = open_log(path, options=REPLICA, segment_bytes=200)
        for number in range(6):
            log.append_as_leader(sent_by(5, number, bytes(50)), number)
        log.update_high_watermark(4)
        log.truncate_fully_and_start_at(offset)
        for reopened in (log, None):
            if reopened is None:
                log.close()
                log = open_log(path, options=OpenOptions(high_watermark=offset), segment_bytes=200)
            facts = (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset)
            assert facts == (offset,) * 4
            assert (log.epochs.entries, log.leader_epoch, bases(log)) == ((), -1, [offset])
            assert log.producers.is_empty
        assert log.append_as_leader(sent_by(5, 0, b"x"), 1).base_offset == offset
        log.close()


def test_what_is_closed_or_for_readers_refuses_changes(tmp_path):
    log = open_log(tmp_path / "t-0")
    log.append_records([b"x"])
    log.close()
    reader = open_log(tmp_path / "t-0", options=OpenOptions(read_only=True))
    assert values(reader) == [(0, b"x")]
    changes = {
        "append_records": ([b"y"],),
        "append_as_leader": (batch(b"y"), 0),
        "append_as_follower": (batch(b"y", base_offset=1),),
        "truncate_to": (0,),
        "truncate_fully_and_start_at": (0,),
        "roll": (),
        "delete_old_segments": (),
        "maybe_increment_log_start_offset": (1,),
        "begin_epoch": (7, 1),
    }
    for refused, kind in ((log, errors.LogClosed), (reader, errors.ReadOnlyLog)):
        for method, arguments in changes.items():
            with pytest.raises(kind):
                getattr(refused, method)(*arguments)
    with pytest.raises(errors.LogClosed):
        log.read(0, 100)


# ---- timestamps --------------------------------------------------------------------------------------------


def test_offsets_for_timestamps_beside_a_linear_search(tmp_path):
    log = open_log(tmp_path / "t-0", segment_bytes=400, index_interval_bytes=100)
    stamps = [5, 3, 9, 9, 1, 12, 40, 38, 41, 30, 30, 60, 2, 61]
    for number in range(0, len(stamps), 2):
        log.append_records(
            [(None, bytes(40), (), NOW_MS + at) for at in stamps[number : number + 2]], number // 4
        )
    assert len(log.local.segments) > 2
    for start in range(len(stamps) + 1):
        log.maybe_increment_log_start_offset(start)
        left = list(enumerate(stamps))[start:]
        for at in range(63):
            expected = next(((NOW_MS + s, offset, offset // 4) for offset, s in left if s >= at), None)
            assert log.offset_for_timestamp(NOW_MS + at) == expected, (start, at)
        largest = max((s for _, s in left), default=None)
        first = next(((NOW_MS + s, offset, offset // 4) for offset, s in left if s == largest), None)
        assert log.offset_for_timestamp(-3) == first, start
        assert log.offset_for_timestamp(-2)[:2] == (-1, start)
        assert log.offset_for_timestamp(-1)[:2] == (-1, len(stamps))


def test_the_batch_of_a_reader_is_a_view_of_the_map(tmp_path):
    log = open_log(tmp_path / "t-0")
    log.append_records([b"x"])
    piece = log.read(0, 100, isolation="log_end").records
    assert log.local.segments.active.region.contains_address(piece.address)
    assert isinstance(RecordBatch(piece), RecordBatch)
    assert with_crc(bytes(piece)) == bytes(piece)
