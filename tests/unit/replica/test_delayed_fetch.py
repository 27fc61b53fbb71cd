"""Delayed fetches: each case that completes them, and what an incremental fetch costs and returns."""

from __future__ import annotations

import pytest

from kreplica._core.fetch_session import CachedPartition, FetchSession, wire_id
from kreplica.common.errors import (
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageIOError,
    UnknownTopicOrPartition,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.delayed_fetch import CONSUMER, FetchParams
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)


class Consumer:
    """Fetches from broker 1 without a session."""

    def __init__(self, at: Replicas, *, min_bytes: int = 1, max_wait_ms: int = 500) -> None:
        self.at = at
        self.params = FetchParams(CONSUMER, -1, max_wait_ms, min_bytes, 1 << 20, "high_watermark")

    def fetch(self, offset: int = 0, *, partition=T0, epoch: int = -1, topic_id=None):
        fetches = self.at.manager().fetches
        session = FetchSession(now_ms=fetches.now_ms())
        known = self.at.controller.topic_id(partition.topic) or Uuid.ZERO
        wanted = CachedPartition(
            partition,
            known if topic_id is None else topic_id,
            fetch_offset=offset,
            max_bytes=1 << 20,
            current_leader_epoch=epoch,
        )
        session.ask([wanted])
        return fetches.fetch_messages(session, self.params)


def data_of(future):
    assert future.done()
    [(_, data)] = future.result(0)
    return data


def committed(at: Replicas, *values: bytes) -> None:
    at.manager().append(T0, batch(*values))
    at.settle()


# ---- the cases ---------------------------------------------------------------------------------------------


def test_a_and_b_a_leader_that_is_one_no_longer_answers() -> None:
    at = Replicas()
    waiting = Consumer(at).fetch()
    assert not waiting.done()
    at.elect(2)
    assert isinstance(data_of(waiting).error, NotLeaderOrFollower)
    waiting = Consumer(at).fetch()
    assert isinstance(data_of(waiting).error, NotLeaderOrFollower)


def test_b_a_replica_that_is_stopped_answers() -> None:
    at = Replicas()
    waiting = Consumer(at).fetch()
    at.manager().stop_replicas({T0: True})
    assert isinstance(data_of(waiting).error, NotLeaderOrFollower)


def test_c_an_unknown_partition_completes_the_fetch_at_once() -> None:
    at = Replicas()
    answer = Consumer(at).fetch(partition=TopicPartition("x", 0))
    assert isinstance(data_of(answer).error, UnknownTopicOrPartition)


def test_d_a_directory_that_fails_answers() -> None:
    at = Replicas()
    waiting = Consumer(at).fetch()
    at.manager().handle_log_directory_failure("/data", StorageIOError("gone"))
    assert isinstance(data_of(waiting).error, KafkaStorageError)


def test_e_a_leader_epoch_that_is_over_answers() -> None:
    at = Replicas()
    waiting = Consumer(at).fetch(epoch=0)
    assert not waiting.done()
    at.elect(1)
    assert isinstance(data_of(waiting).error, FencedLeaderEpoch)


def test_f_an_offset_in_an_older_segment_needs_no_least_size() -> None:
    at = Replicas()
    committed(at, b"a")
    waiting = Consumer(at, min_bytes=1_000_000).fetch()
    assert not waiting.done()
    at.partition().local_log.roll()
    committed(at, b"b")
    assert data_of(waiting).records is not None


def test_f_is_passed_over_where_there_is_nothing_to_read() -> None:
    at = Replicas()
    committed(at, b"a")
    waiting = Consumer(at).fetch(1)
    at.partition().local_log.roll()
    at.manager().delayed.operations.moved(at.partition())
    assert not waiting.done()


def test_g_it_waits_for_the_least_size_or_the_longest_time() -> None:
    at = Replicas()
    waiting = Consumer(at, min_bytes=150).fetch()
    committed(at, b"a" * 50)
    assert not waiting.done()
    committed(at, b"b" * 50)
    assert data_of(waiting).size >= 150
    waiting = Consumer(at, min_bytes=10_000, max_wait_ms=300).fetch()
    at.pass_time(299)
    assert not waiting.done()
    at.pass_time(1)
    assert data_of(waiting).size >= 150


def test_the_partitions_of_delayed_fetches_are_listed() -> None:
    at = Replicas(brokers=1, partitions=2)
    name = "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch"
    assert at.broker().metrics.values()[name] == 0
    waiting = [Consumer(at).fetch(partition=partition) for partition in (*at.partitions, T0)]
    assert at.broker().metrics.values()[name] == 3
    committed(at, b"a")
    assert [each.done() for each in waiting] == [True, False, True]
    assert at.broker().metrics.values()[name] == 1


def test_what_waits_is_counted_once_it_is_answered() -> None:
    at = Replicas()
    waiting = Consumer(at, min_bytes=400).fetch()
    for _ in range(4):
        committed(at, b"a" * 50)
    assert at.manager().fetches._bytes_out.count == data_of(waiting).size


def test_a_consumer_is_answered_when_records_are_committed_and_not_before() -> None:
    at = Replicas()
    at.cluster.cut(1, 3)
    waiting = Consumer(at, max_wait_ms=100_000).fetch()
    committed(at, b"a")
    assert at.partition().log_end_offset == 1
    assert not waiting.done()
    at.pass_time(50_000)  # broker 3 is dropped from the ISR
    assert data_of(waiting).high_watermark == 1
    assert data_of(waiting).records is not None


def test_fetches_that_cannot_wait_are_answered_at_once() -> None:
    at = Replicas()
    committed(at, b"a")
    assert isinstance(data_of(Consumer(at).fetch(7)).error, OffsetOutOfRange)
    other = Uuid(b"another topic id")
    assert isinstance(data_of(Consumer(at).fetch(topic_id=other)).error, InconsistentTopicId)
    assert data_of(Consumer(at, max_wait_ms=0).fetch(1)).records is None


# ---- sizes -------------------------------------------------------------------------------------------------


def test_the_first_batch_comes_whole_and_the_others_as_far_as_they_fit() -> None:
    at = Replicas(partitions=2)
    for number in range(2):
        for _ in range(3):
            at.manager().append(TopicPartition("t", number), batch(b"v" * 1000))
    at.settle()
    fetches = at.manager().fetches
    session = FetchSession(now_ms=0)
    topic_id = at.controller.topic_id("t")
    session.ask(
        CachedPartition(TopicPartition("t", number), topic_id, fetch_offset=0, max_bytes=100)
        for number in range(2)
    )
    params = FetchParams(CONSUMER, -1, 0, 1, 100, "high_watermark")
    (_, first), (_, second) = fetches.fetch_messages(session, params).result(0)
    assert first.size > 1000
    assert second.records is None


def test_a_slice_is_the_log_itself() -> None:
    at = Replicas()
    committed(at, b"a" * 100)
    records = data_of(Consumer(at).fetch()).records
    region = at.partition().local_log.local.segments.active.region
    assert region.contains_address(records.address)
    assert region.pins >= 1


# ---- sessions ----------------------------------------------------------------------------------------------


def test_a_consumer_that_reads_again_gets_the_records_without_naming_the_partition() -> None:
    # It has thrown the records away, as in a seek of Kafka's consumer; its offset is that of its last fetch.
    at = Replicas(partitions=2)
    committed(at, b"a")
    fetches = at.manager().fetches
    session = fetches.sessions.create(2, is_privileged=False, now_ms=fetches.now_ms())
    topic_id = at.controller.topic_id("t")
    wanted = [CachedPartition(each, topic_id, fetch_offset=0, max_bytes=1 << 20) for each in at.partitions]
    session.ask(wanted)
    params = FetchParams(CONSUMER, -1, 500, 1, 1 << 20, "high_watermark")
    first = fetches.fetch_messages(session, params).result(0)
    assert sorted((cached.topic_partition, data.size > 0) for cached, data in first) == [
        (each, each == T0) for each in at.partitions
    ]
    for _ in range(2):
        session.ask([])
        again = fetches.fetch_messages(session, params._replace(wants_all=False))
        assert data_of(again).records is not None
    session.ask([], [wire_id(topic_id.raw, T0.partition)])
    assert not fetches.fetch_messages(session, params._replace(wants_all=False)).done()


def test_a_fetch_over_idle_partitions_looks_only_at_what_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas(brokers=2, partitions=300)
    at.pass_time(2_000)
    manager, reads = at.manager(), []
    read = manager.fetches._read_from
    monkeypatch.setattr(manager.fetches, "_read_from", lambda *args: reads.append(args[1]) or read(*args))
    at.pass_time(2_000)
    assert reads == []
    manager.append(TopicPartition("t", 123), batch(b"a"))
    at.settle()
    at.pass_time(2_000)
    assert {cached.topic_partition.partition for cached in reads} == {123}
    assert len(reads) < 10
    assert at.partition(2, 123).high_watermark == 1


def test_idle_followers_stay_in_sync_and_busy_ones_are_not_put_out() -> None:
    at = Replicas(partitions=5)
    at.pass_time(300_000)
    assert all(at.partition(1, number).isr == (1, 2, 3) for number in range(5))
    at.cluster.cut(1, 3)
    at.manager().append(T0, batch(b"a"))
    at.pass_time(1_000)
    at.manager().maybe_shrink_isr()
    assert at.partition().isr == (1, 2, 3)
    at.pass_time(60_000)
    assert at.partition().isr == (1, 2)


def test_a_new_high_watermark_reaches_followers_without_new_records() -> None:
    at = Replicas()
    committed(at, b"a")
    assert at.partition(1).high_watermark == 1
    at.pass_time(10)
    assert [at.partition(broker).high_watermark for broker in (2, 3)] == [1, 1]


def fetch_as_follower(
    at: Replicas,
    broker_id: int,
    session: FetchSession,
    *offsets: int,
    last_epoch: int = -1,
    max_wait_ms: int = 500,
):
    """A fetch of broker 1 as the follower would send it, naming the partition at each of these offsets."""
    wanted = [
        CachedPartition(
            T0,
            at.controller.topic_id("t"),
            fetch_offset=offset,
            max_bytes=1 << 20,
            current_leader_epoch=at.partition().leader_epoch,
            last_fetched_epoch=last_epoch,
            log_start_offset=0,
        )
        for offset in offsets
    ]
    session.ask(wanted)
    epoch = at.controller.get_alive_broker_epoch(broker_id)
    params = FetchParams(broker_id, epoch, max_wait_ms, 1, 1 << 20, "log_end", False)
    return at.manager().fetches.fetch_messages(session, params)


def played_follower(at: Replicas) -> FetchSession:
    """Broker 2 is played from here: a session of its fetcher."""
    at.manager(2).fetchers.shutdown()
    fetches = at.manager().fetches
    return fetches.sessions.create(1, is_privileged=True, now_ms=fetches.now_ms())


def test_a_follower_gets_the_high_watermark_again_after_a_diverging_epoch() -> None:
    """It takes only the diverging epoch from that response, and the log has no further records for it."""
    at = Replicas(brokers=2)
    committed(at, b"a")
    at.elect(1)
    session = played_follower(at)
    diverging = data_of(fetch_as_follower(at, 2, session, 2, last_epoch=0))
    assert (diverging.diverging_epoch, diverging.high_watermark) == ((0, 1), 1)
    again = fetch_as_follower(at, 2, session, 1, last_epoch=0, max_wait_ms=0)
    assert data_of(again).high_watermark == 1
    assert again.done()
    assert fetch_as_follower(at, 2, session, 1, last_epoch=0, max_wait_ms=0).result(0) == []


@pytest.mark.parametrize("way", ["by a request", "by a request of one partition", "without a session"])
def test_a_follower_gets_the_marks_anew_in_each_leader_epoch(way: str) -> None:
    """It may have dropped an earlier response while its role changed."""
    at = Replicas(brokers=2)
    committed(at, b"a")
    session = played_follower(at)
    if way == "without a session":
        session = FetchSession(now_ms=at.manager().fetches.now_ms(), is_privileged=True)
    first = fetch_as_follower(at, 2, session, 1, max_wait_ms=0)
    assert data_of(first).high_watermark == 1
    at.elect(1)
    if way == "by a request of one partition":
        key = wire_id(at.controller.topic_id("t").raw, 0)
        asked = {"fetch_offset": 1, "max_bytes": 1, "last_fetched_epoch": 0, "log_start_offset": 0}
        assert session.ask_again(key, current_leader_epoch=1, **asked)
        response = fetch_as_follower(at, 2, session, max_wait_ms=0)
    elif way == "by a request":
        response = fetch_as_follower(at, 2, session, 1, max_wait_ms=0)
    else:
        anew = FetchSession(now_ms=at.manager().fetches.now_ms(), is_privileged=True)
        response = fetch_as_follower(at, 2, anew, 1)
        at.pass_time(10)
    assert data_of(response).high_watermark == 1
    if way != "without a session":
        assert fetch_as_follower(at, 2, session, 1, max_wait_ms=0).result(0) == []


@pytest.mark.parametrize("is_lasting", [True, False])
@pytest.mark.parametrize(("offset", "epoch"), [(0, -1), (2, 0)])
def test_a_session_that_goes_on_is_believed_again_after_a_fetch_that_came_late(
    is_lasting: bool, offset: int, epoch: int
) -> None:
    """Its fetcher gave that fetch up long ago. The session is idle and spells the partition out no more:
    without that the follower would lag, or diverge, for ever."""
    at = Replicas(brokers=2)
    committed(at, b"a")
    at.elect(1)
    session = played_follower(at)
    fetch_as_follower(at, 2, session, 1, last_epoch=0, max_wait_ms=0)
    replica = at.partition().replica(2)
    assert (replica.log_end_offset, replica.diverged) == (1, False)
    late = played_follower(at) if is_lasting else FetchSession(now_ms=at.manager().fetches.now_ms())
    fetch_as_follower(at, 2, late, offset, last_epoch=epoch, max_wait_ms=0)
    assert (replica.log_end_offset, replica.diverged) == ((1, True) if offset > 1 else (0, False))
    at.pass_time(1_000)
    fetch_as_follower(at, 2, session, max_wait_ms=0)
    assert (replica.log_end_offset, replica.diverged) == (1, False)
    assert replica.fetch_clock is session.clock
    assert replica.last_caught_up_time_ms == at.manager().fetches.now_ms()


@pytest.mark.parametrize("behind", [0, 1])
def test_the_fetch_that_moves_the_high_watermark_returns_it_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    at = Replicas(brokers=2)
    # Broker 2 is played from here.
    at.manager(2).fetchers.shutdown()
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=True, now_ms=fetches.now_ms())
    data_of_first = fetch_as_follower(at, 2, session, 0)
    waiting = [at.manager().append(T0, batch(b"x")) for _ in range(1 + behind)]
    assert data_of(data_of_first).records is not None
    looks = []
    look = fetches._read_from
    monkeypatch.setattr(fetches, "_read_from", lambda *given: looks.append(given) or look(*given))
    answer = fetch_as_follower(at, 2, session, 1)
    assert waiting[0].done()
    assert len(looks) == 1
    if behind:
        # It is answered with records as the read has found them; the partition has news for the next one.
        assert data_of(answer).high_watermark == 0
        answer = fetch_as_follower(at, 2, session)
    else:
        assert not answer.done()
        at.pass_time(fetches.linger_ms + 1)
    assert data_of(answer).high_watermark == 1


def test_a_fetch_that_its_fetcher_gave_up_is_answered_when_the_next_comes() -> None:
    at = Replicas()
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=False, now_ms=0)
    topic_id = at.controller.topic_id("t")
    session.ask([CachedPartition(T0, topic_id, fetch_offset=0, max_bytes=100)])
    params = FetchParams(CONSUMER, -1, 10_000, 1, 100, "high_watermark", False)
    first = fetches.fetch_messages(session, params)
    second = fetches.fetch_messages(session, params)
    assert first.done()
    assert not second.done()
    committed(at, b"a")
    [(cached, data)] = second.result(0)
    assert (cached.topic_partition, data.high_watermark) == (T0, 1)


def test_what_there_is_no_room_for_waits_with_the_fetch() -> None:
    at = Replicas(partitions=2)
    for each in at.partitions:
        at.manager().append(each, batch(b"x" * 50))
    at.settle()
    fetches = at.manager().fetches
    session = fetches.sessions.create(2, is_privileged=False, now_ms=0)
    topic_id = at.controller.topic_id("t")
    # Each partition may give one byte, which only the first batch of an answer may be more than.
    session.ask([CachedPartition(each, topic_id, fetch_offset=0, max_bytes=1) for each in at.partitions])
    answer = fetches.fetch_messages(session, FetchParams(CONSUMER, -1, 500, 1000, 1 << 20, "high_watermark"))
    assert not answer.done()
    at.pass_time(501)
    assert [data.records is not None for _, data in answer.result(0)] == [True, False]
    # The other partition comes first in the next fetch.
    first, second = (session.partitions[wire_id(topic_id.raw, number)] for number in (0, 1))
    assert list(session.ready) == [second, first]


def test_a_fetch_for_no_bytes_at_all_gets_the_first_batch() -> None:
    at = Replicas()
    committed(at, b"a")
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=False, now_ms=0)
    session.ask([CachedPartition(T0, at.controller.topic_id("t"), fetch_offset=0, max_bytes=0)])
    answer = fetches.fetch_messages(session, FetchParams(CONSUMER, -1, 500, 1, 0, "high_watermark", False))
    assert data_of(answer).records is not None


def test_a_fetch_is_answered_when_its_session_is_evicted() -> None:
    at = Replicas()
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=False, now_ms=0)
    session.ask([CachedPartition(T0, at.controller.topic_id("t"), fetch_offset=0, max_bytes=100)])
    answer = fetches.fetch_messages(session, FetchParams(CONSUMER, -1, 500, 1, 100, "high_watermark", False))
    assert not answer.done()
    fetches.sessions.remove(session.id)
    assert answer.result(0) == []
    assert not [cached for cached in at.partition().fetch_waiters if not cached.session]
    at.pass_time(501)


def test_of_two_fetches_of_a_session_that_overlap_none_is_lost() -> None:
    at = Replicas()
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=False, now_ms=0)
    session.ask([CachedPartition(T0, at.controller.topic_id("t"), fetch_offset=0, max_bytes=100)])
    params = FetchParams(CONSUMER, -1, 10_000, 1, 100, "high_watermark", False)
    first = fetches.fetch_messages(session, params)
    old = session.parked
    assert old is not None
    # Another thread is looking at the first one when the second comes.
    assert session.unpark(old)
    second = fetches.fetch_messages(session, params)
    assert old._park()
    assert first.done()
    assert not second.done()
    committed(at, b"a")
    assert data_of(second).high_watermark == 1


def test_a_partition_hears_no_more_of_a_session_that_ends_while_it_is_read() -> None:
    at = Replicas()
    session = FetchSession(1, now_ms=0)
    cached = CachedPartition(T0, at.controller.topic_id("t"), fetch_offset=0, max_bytes=100)
    session.ask([cached])
    session.end()
    # The thread that reads was about to listen.
    cached.listen(at.partition())
    assert cached not in at.partition().fetch_waiters


def test_a_session_finds_a_topic_that_becomes_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas()
    committed(at, b"a")
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=False, now_ms=0)
    # As a request is taken in whose topic's id is not known.
    unnamed = TopicPartition("", 0)
    session.ask([CachedPartition(unnamed, at.controller.topic_id("t"), fetch_offset=0, max_bytes=100)])
    params = FetchParams(CONSUMER, -1, 500, 1, 100, "high_watermark", False)
    with monkeypatch.context() as unheard:
        unheard.setattr(fetches, "_topic_name", lambda _: None)
        answer = fetches.fetch_messages(session, params)
        assert isinstance(data_of(answer).error, UnknownTopicOrPartition)
    assert data_of(fetches.fetch_messages(session, params)).records is not None


def test_a_session_that_ends_while_a_follower_is_read_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas()
    fetches = at.manager().fetches
    session = fetches.sessions.create(1, is_privileged=True, now_ms=0)
    session.ask([CachedPartition(T0, at.controller.topic_id("t"), fetch_offset=0, max_bytes=100)])
    read = type(at.partition()).fetch_records

    def end_while_it_reads(*given, **named):
        fetches.sessions.remove(session.id)
        return read(*given, **named)

    monkeypatch.setattr(type(at.partition()), "fetch_records", end_while_it_reads)
    follower = FetchParams(2, -1, 0, 1, 100, "log_end", False)
    assert data_of(fetches.fetch_messages(session, follower)).error is None
