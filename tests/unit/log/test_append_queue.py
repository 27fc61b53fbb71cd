"""A log's appends on a disk thread: they keep their order, and any other change of the log waits for them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplica._core.append_job import publish_soon
from kreplica.common.errors import KreplicaError, MessageTooLarge, OutOfOrderSequenceNumber, StorageIOError
from kreplica.common.types import AppendOrigin
from kreplica.log.append_queue import LEFT, MADE, AppendQueue, FollowerAppend, LeaderAppend
from kreplica.log.log_validator import LogValidator
from kreplica.log.unified_log import UnifiedLog
from kreplica.sim.disk import SimDisk
from tests.support.batches import build
from tests.support.logs import NOW_MS, open_log, values

EPOCH = 3


class Stage:
    """A log whose disk performs one job at each request of the test, and the outcome of each append."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.disk = SimDisk()
        self.log: UnifiedLog = open_log(path, **settings)
        self.log.begin_epoch(EPOCH, 0)
        self.queue = AppendQueue(self.log, self.disk, self._go_on)
        self.names: dict[object, str] = {}
        self.results: dict[str, object] = {}
        self.carefully: list[str] = []

    def lead(self, name: str, connection: object = None, **fields: object) -> None:
        """Submit a producer's batch with one record, the name."""
        self.lead_batch(name, build([name.encode()], **{"now_ms": NOW_MS, **fields}), connection)

    def lead_batch(self, name: str, records: bytes, connection: object = None) -> None:
        """Submit a producer's batch."""

        self._submit(name, LeaderAppend(records, AppendOrigin.CLIENT, connection))

    def follow(self, name: str, fetched: bytes) -> None:
        """Submit what was fetched."""

        self._submit(name, FollowerAppend(fetched, EPOCH))

    def _submit(self, name: str, append: LeaderAppend | FollowerAppend) -> None:
        self.names[append] = name
        if self.queue.admit(append):
            self._take_turn(append)

    def _take_turn(self, append: LeaderAppend | FollowerAppend) -> None:
        queue, state = self.queue, LEFT
        while state == LEFT:
            state = queue.start(append, EPOCH)
            if state == LEFT and not queue.must_wait(append):
                self.carefully.append(self.names[append])
                state = MADE
                try:
                    if isinstance(append, LeaderAppend):
                        append.make_carefully(self.log, EPOCH)
                    else:
                        append.info = self.log.append_as_follower(append.rest, EPOCH + 1) or append.info
                except KreplicaError as error:
                    append.error = error.with_traceback(None)
            if state == LEFT and not queue.hold_back(append):
                return
        if state == MADE:
            self.note(append)

    def note(self, append: LeaderAppend | FollowerAppend) -> None:
        info, result = append.info, None
        if append.error is not None:
            result = type(append.error)
        elif info is not None:
            result = info.base_offset if isinstance(append, LeaderAppend) else info.last_offset
        self.results[self.names.pop(append)] = result

    def _go_on(self, queue: AppendQueue) -> None:
        append = queue.take_back()
        if append is not None:
            self.note(append)
        while (append := queue.next()) is not None:
            self._take_turn(append)

    def advance(self, offset: int) -> None:
        """Move the high watermark, as the log's owner does."""
        self.log.maybe_increment_high_watermark(offset)
        publish_soon(self.queue)

    def perform(self, count: int = 1) -> None:
        for _ in range(count):
            self.disk.perform_next()

    def notify(self, count: int = 1) -> None:
        for _ in range(count):
            self.disk.notify()

    def finish(self) -> None:
        self.finish_jobs()
        assert self.queue.is_idle

    def finish_jobs(self) -> None:
        """Do what the disk thread does; what is checked aside stays there."""
        while self.disk or self.disk.unnotified:
            if self.disk:
                self.disk.perform_next()
            self.disk.notify()


def test_appends_are_made_in_their_order(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    for name in "abc":
        at.lead(name)
    assert (at.log.log_end_offset, at.results) == (0, {})
    at.perform(2)
    assert (at.log.log_end_offset, at.results) == (2, {})
    at.notify()
    assert at.results == {"a": 0}
    at.finish()
    assert at.results == {"a": 0, "b": 1, "c": 2}
    assert at.carefully == []


def test_none_overtakes_one_that_takes_the_careful_path(tmp_path: Path) -> None:
    at = Stage(tmp_path, segment_bytes=200)
    for name in "abcdef":
        at.lead(name)
    at.finish()
    assert at.results == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5}
    assert at.carefully == ["c", "e"]
    assert len(at.log.local.segments) == 3
    assert [value for _, value in values(at.log)] == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_an_idempotent_producer_may_have_several_under_way(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    for sequence, name in enumerate("abc"):
        at.lead(name, producer_id=7, producer_epoch=0, base_sequence=sequence)
    assert len(at.disk) == 3
    at.finish()
    assert at.results == {"a": 0, "b": 1, "c": 2}
    assert at.carefully == []
    entry = at.log.producers.last_entry(7)
    assert entry is not None
    assert [batch.last_offset for batch in entry.batches] == [0, 1, 2]


def test_what_a_producer_sends_again_gets_the_offset_it_had(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    for name in ("a", "again"):
        at.lead(name, producer_id=7, producer_epoch=0, base_sequence=0)
    at.lead("gap", producer_id=7, producer_epoch=0, base_sequence=5)
    at.finish()
    assert at.results == {"a": 0, "again": 0, "gap": OutOfOrderSequenceNumber}
    assert at.log.log_end_offset == 1


def test_what_ends_a_check_unexpectedly_is_logged_with_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at = Stage(tmp_path / "t-0")

    def validate(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(LogValidator, "is_brief", lambda *_: False)
    append = LeaderAppend(build([b"x" * 50], codec="gzip"), AppendOrigin.CLIENT)
    assert append.make_job(at.log, at.queue, EPOCH) is None
    monkeypatch.setattr(LogValidator, "validate_anew", validate)
    append.check()
    (line,) = caplog.records
    assert "t-0: checking a batch failed" in line.getMessage()
    assert line.exc_info[0] is ZeroDivisionError
    assert append.make_job(at.log, at.queue, EPOCH) is None


def test_a_compressed_batch_is_checked_before_and_appended_aside(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead("a", codec="gzip")
    at.lead("b", codec="gzip", producer_id=7, producer_epoch=0, base_sequence=0)
    at.finish()
    assert (at.results, at.carefully) == ({"a": 0, "b": 1}, [])


def test_a_change_of_the_log_waits_for_pending_appends(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead("a", producer_id=7, producer_epoch=0, base_sequence=0)
    at.lead("b", producer_id=7, producer_epoch=0, base_sequence=1)
    at.log.roll()
    # The snapshot that a roll leaves has both.
    assert at.log.local.segments.active.base_offset == 2
    assert at.log.producers.map_end_offset == 2
    entry = at.log.producers.last_entry(7)
    assert entry is not None
    assert entry.last_sequence == 1
    assert at.results == {}
    at.notify(2)
    assert at.results == {"a": 0, "b": 1}


def test_the_high_watermark_moves_while_an_append_is_under_way(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead("a")
    at.perform()
    at.lead("b")
    at.advance(1)
    assert (at.log.high_watermark, len(at.disk)) == (1, 1)
    at.finish()
    at.advance(2)
    assert at.log.state.is_unpublished
    at.finish()
    assert not at.log.state.is_unpublished


def test_a_log_that_fails_while_an_append_is_under_way_does_not_wait_for_it(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead("a")
    at.log.fail(OSError("the disk is gone"))
    assert len(at.disk) == 1
    assert at.log.is_offline


def test_a_follower_goes_on_carefully_where_an_epoch_begins(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    first = build([b"a", b"b"], base_offset=0, leader_epoch=EPOCH)
    second = build([b"c"], base_offset=2, leader_epoch=EPOCH + 1)
    at.follow("one", first + second)
    at.follow("two", build([b"d"], base_offset=3, leader_epoch=EPOCH + 1))
    at.finish()
    assert at.carefully == ["one", "two"]
    assert at.results == {"one": 2, "two": 3}
    assert at.log.leader_epoch == EPOCH + 1
    assert [value for _, value in values(at.log)] == [b"a", b"b", b"c", b"d"]


def test_a_follower_notes_the_producers_of_a_run(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    fetched = b"".join(
        build(
            [b"x"],
            base_offset=offset,
            leader_epoch=EPOCH,
            producer_id=offset % 2,
            producer_epoch=0,
            base_sequence=offset // 2,
        )
        for offset in range(6)
    )
    at.follow("all", fetched)
    at.finish()
    assert at.carefully == []
    assert {p: e.last_sequence for p, e in at.log.producers.active_producers.items()} == {0: 2, 1: 2}


KINDS = st.sampled_from(
    ["plain", "plain", "producer", "again", "gap", "codec", "late", "roll", "mark", "notify"]
)


@settings(max_examples=60, deadline=None)
@given(kinds=st.lists(KINDS, max_size=40), performed=st.lists(st.integers(0, 3), max_size=40))
def test_the_log_is_the_one_that_direct_appends_make(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], performed: list[int]
) -> None:
    at = Stage(tmp_path_factory.mktemp("queued"), segment_bytes=700)
    direct = open_log(tmp_path_factory.mktemp("direct"), segment_bytes=700)
    direct.begin_epoch(EPOCH, 0)
    expected: dict[str, object] = {}
    sequence = 0
    for number, kind in enumerate(kinds):
        for _ in range(performed[number] if number < len(performed) else 0):
            if at.disk:
                at.perform()
        if kind == "notify":
            at.notify(min(1, at.disk.unnotified))
            continue
        if kind == "mark":
            at.advance(at.log.log_end_offset)
            continue
        if kind == "roll":
            at.log.delete_old_segments()
            continue
        name, fields = str(number), {}
        if kind in ("producer", "again", "gap"):
            fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
            if kind == "again":
                fields["base_sequence"] = max(0, sequence - 1)
            elif kind == "gap":
                fields["base_sequence"] = sequence + 3
            else:
                sequence += 1
        elif kind == "codec":
            fields = {"codec": "gzip"}
        elif kind == "late":
            fields = {"now_ms": NOW_MS + 10**9}
        at.lead(name, **fields)
        try:
            info = direct.append_as_leader(build([name.encode()], **{"now_ms": NOW_MS, **fields}), EPOCH)
            expected[name] = info.base_offset
        except KreplicaError as error:
            expected[name] = type(error)
    at.finish()
    assert at.results == expected
    assert values(at.log) == values(direct)
    for log in (at.log, direct):
        log.close()


def test_appends_that_wait_for_a_hung_disk_can_be_failed(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    for name in "abc":
        at.lead(name)
    at.perform()
    error = StorageIOError("the disk stands still")
    at.log.fail(error)
    for append in at.queue.give_up(error):
        at.note(append)
    assert at.results == {"a": StorageIOError, "b": StorageIOError, "c": StorageIOError}
    # The disk goes on after all: it performs the pending appends, and their callers are not notified again.
    at.finish()
    assert at.log.log_end_offset == 3
    assert at.results == {"a": StorageIOError, "b": StorageIOError, "c": StorageIOError}


def test_what_takes_long_to_check_is_checked_aside_and_holds_up_its_own_log_alone(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    large = build([b"x" * (1 << 20)], now_ms=NOW_MS, codec="zstd")
    at.lead("a")
    at.lead_batch("large", large)
    at.lead("b")
    at.finish_jobs()
    assert at.results == {"a": 0}
    at.disk.notify_aside()
    at.finish()
    assert at.results == {"a": 0, "large": 1, "b": 2}
    assert at.carefully == []
    assert len(values(at.log)) == 3


def bomb(**fields: object) -> bytes:
    """A batch that is checked aside."""
    return build([b"x" * (300 << 10)], **{"now_ms": NOW_MS, "codec": "zstd", **fields})


# Three of a third of this roll a segment, and 32 times this is more than what a bomb has.
SMALL_SEGMENT = 10_000
PADDING = b"x" * (SMALL_SEGMENT // 3)


def test_appends_of_other_connections_pass_one_that_is_checked_aside(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead_batch("large", bomb(), "one")
    at.lead("behind it", "one")
    for name in "ab":
        at.lead(name, "two")
    at.finish_jobs()
    assert at.results == {"a": 0, "b": 1}
    at.disk.notify_aside()
    at.finish()
    assert at.results == {"a": 0, "b": 1, "large": 2, "behind it": 3}
    assert at.carefully == []


def test_no_append_passes_one_of_its_producer_that_is_checked_aside(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    of_seven = {"producer_id": 7, "producer_epoch": 0}
    at.lead_batch("first", bomb(**of_seven, base_sequence=0), "lost connection")
    at.lead("second", "new connection", **of_seven, base_sequence=1)
    at.lead("eight", "other", producer_id=8, producer_epoch=0, base_sequence=0)
    # Behind the second one, which waits.
    at.lead("third", "new connection")
    at.finish_jobs()
    assert at.results == {"eight": 0}
    at.disk.notify_aside()
    at.finish()
    assert at.results == {"eight": 0, "first": 1, "second": 2, "third": 3}
    assert at.carefully == []


def test_an_append_of_no_connection_keeps_its_place_among_all(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    at.lead_batch("large", bomb(), "one")
    at.lead("marker")
    at.lead("a", "two")
    at.finish_jobs()
    assert at.results == {}
    at.disk.notify_aside()
    at.finish()
    assert at.results == {"large": 0, "marker": 1, "a": 2}


def test_what_came_back_from_the_disk_stays_before_what_its_connection_sent_later(tmp_path: Path) -> None:
    at = Stage(tmp_path, segment_bytes=SMALL_SEGMENT)
    at.lead_batch("large", bomb(), "one")
    for name in "abc":
        at.lead_batch(name, build([PADDING], now_ms=NOW_MS), "two")
    # They are with the disk, and the third will come back: its segment is full.
    at.lead_batch("two's", bomb(), "two")
    at.lead("d", "two")
    at.lead("e", "three")
    at.finish_jobs()
    assert at.results == {"a": 0, "b": 1, "c": 2, "e": 3}
    at.disk.notify_aside()
    at.disk.notify_aside()
    at.finish()
    assert at.results == {"a": 0, "b": 1, "c": 2, "e": 3, "large": 4, "two's": 5, "d": 6}


def test_the_time_of_an_append_is_that_of_its_turn(tmp_path: Path) -> None:
    at = Stage(tmp_path, message_timestamp_type="LogAppendTime")
    now = [NOW_MS]
    at.log.time_ms = lambda: now[0]
    at.lead_batch("large", bomb(), "one")
    now[0] += 5
    at.lead("a", "two")
    at.finish_jobs()
    now[0] += 5
    at.disk.notify_aside()
    at.finish()
    stamps = [batch.max_timestamp - NOW_MS for batch in at.log.batches(0)]
    assert stamps == [5, 10]


SENDERS = st.sampled_from([None, "one", "two", "three"])
SENT = st.sampled_from(
    ["plain", "plain", "bomb", "producer", "producer's bomb", "small codec", "notify", "aside"]
)


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(st.tuples(SENDERS, SENT), max_size=30), performed=st.lists(st.integers(0, 3), max_size=30)
)
def test_each_connection_and_each_producer_finds_its_appends_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str | None, str]], performed: list[int]
) -> None:
    at = Stage(tmp_path_factory.mktemp("passed"), segment_bytes=SMALL_SEGMENT)
    orders: dict[object, list[str]] = {}
    sequence = 0
    for number, (connection, kind) in enumerate(sent):
        for _ in range(performed[number] if number < len(performed) else 0):
            if at.disk:
                at.perform()
        if kind == "notify":
            at.notify(min(1, at.disk.unnotified))
        elif kind == "aside":
            if at.disk.has_aside:
                at.disk.notify_aside()
        else:
            name, fields = str(number), {}
            if kind.startswith("producer"):
                fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
                sequence += 1
                orders.setdefault("of the producer", []).append(name)
            if kind.endswith("bomb"):
                at.lead_batch(name, bomb(**fields), connection)
            else:
                if kind == "small codec":
                    fields["codec"] = "gzip"
                at.lead_batch(name, build([PADDING], now_ms=NOW_MS, **fields), connection)
            orders.setdefault(connection, []).append(name)
    while at.disk.has_aside or at.disk or at.disk.unnotified:
        at.finish_jobs()
        if at.disk.has_aside:
            at.disk.notify_aside()
    at.finish()
    for names in orders.values():
        offsets = [at.results[name] for name in names]
        assert offsets == sorted(offsets)
    assert sorted(at.results.values()) == list(range(len(at.results)))
    assert at.log.log_end_offset == len(at.results)
    at.log.close()


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (build([b"x" * (40 << 20)], now_ms=NOW_MS, codec="zstd"), MessageTooLarge),
        (build([b"x" * 2_000_000], now_ms=NOW_MS), MessageTooLarge),
    ],
    ids=["decompressed", "as it is"],
)
def test_what_is_too_large_is_refused_and_those_behind_it_go_on(
    tmp_path: Path, records: bytes, error: type[KreplicaError]
) -> None:
    at = Stage(tmp_path)
    at.lead_batch("large", records)
    at.lead("b")
    while at.disk.has_aside:
        at.disk.notify_aside()
    at.finish()
    assert at.results == {"large": error, "b": 0}


class Received(bytearray):
    """Records that can be watched."""


def test_records_that_are_refused_are_not_left_to_the_collector(tmp_path: Path) -> None:
    at = Stage(tmp_path)
    records = Received(build([b"x" * (40 << 20)], now_ms=NOW_MS, codec="zstd"))
    held = weakref.ref(records)
    gc.disable()
    try:
        at.lead_batch("large", records)
        del records
        at.disk.notify_aside()
        at.finish()
        assert at.results == {"large": MessageTooLarge}
        assert held() is None
    finally:
        gc.enable()


def test_what_was_checked_aside_is_not_checked_again_where_its_segment_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Stage(tmp_path, segment_bytes=40_000)
    for name in ("a" * 19_900, "b" * 19_900):
        at.lead(name)
    at.finish_jobs()
    at.lead_batch("large", build([b"x" * (1 << 20)], now_ms=NOW_MS, codec="zstd"))
    checks = []
    anew = LogValidator.validate_anew
    monkeypatch.setattr(
        LogValidator, "validate_anew", lambda self, *a, **k: checks.append(1) or anew(self, *a, **k)
    )
    at.disk.notify_aside()
    at.finish()
    assert at.carefully == ["large"]
    assert not checks
    assert at.results["large"] == 2
    assert len(at.log.local.segments) == 2
