"""A fetch that waits in its session: it is parked only if nothing is ready, and taken by one caller alone."""

from __future__ import annotations

from kreplica._core.fetch_session import CachedPartition, FetchSession, session_key, wire_id
from kreplica.common.types import TopicPartition, Uuid

TOPIC_ID = Uuid(bytes(15) + b"\x01")


def asked(number: int, topic_id: Uuid = TOPIC_ID) -> CachedPartition:
    return CachedPartition(TopicPartition("t", number), topic_id, fetch_offset=0, max_bytes=100)


class Fetch:
    def __init__(self) -> None:
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True


def test_a_partition_is_named_by_its_bytes_in_a_request_if_its_topic_has_an_id() -> None:
    at = TopicPartition("t", 7)
    assert session_key(at, TOPIC_ID) == wire_id(TOPIC_ID.raw, 7) == TOPIC_ID.raw + b"\2\0\0\0\7"
    assert session_key(at, Uuid.ZERO) is at
    assert (asked(7).key, asked(7, Uuid.ZERO).key) == (wire_id(TOPIC_ID.raw, 7), at)


def test_one_fetch_waits_while_nothing_is_ready() -> None:
    session, fetch = FetchSession(1, now_ms=0), Fetch()
    session.ask([asked(0)])
    [partition] = session.partitions.values()
    assert not session.park(fetch)
    assert session.take_ready() == [partition]
    assert session.park(fetch)
    assert not session.park(Fetch())
    # A move makes the partition ready; the caller that takes the fetch works on it alone.
    assert partition.notify() is fetch
    assert [session.unpark(fetch), session.unpark(fetch)] == [True, False]
    assert not session.park(fetch)
    assert session.take_ready() == [partition]
    assert session.park(fetch)
    assert session.parked is fetch


def test_the_end_of_a_session_abandons_its_fetch_and_its_partitions() -> None:
    session, fetch = FetchSession(1, now_ms=0), Fetch()
    session.ask([asked(0), asked(1)])
    gone = session.take_ready()
    assert session.park(fetch)
    session.end()
    assert fetch.is_abandoned
    assert (len(session), session.parked, session.take_ready()) == (0, None, [])
    assert [each.session for each in gone] == [None, None]
    assert gone[0].notify() is None
    session.put_back(gone)
    session.keep_ready(gone)
    assert session.take_ready() == []


def test_a_partition_that_is_named_again_is_unanswered_at_the_next_request() -> None:
    session = FetchSession(1, now_ms=0)
    session.ask([asked(0), asked(1)])
    first, second = session.take_ready()
    first.is_unanswered = second.is_unanswered = False
    session.name_again(second)
    assert session.take_ready() == []
    session.ask([])
    assert (first.is_unanswered, second.is_unanswered) == (False, True)
    assert session.take_ready() == [second]


def test_a_new_leader_epoch_sends_the_offsets_again() -> None:
    session = FetchSession(1, now_ms=0)
    session.ask([asked(0)])
    [partition] = session.take_ready()
    partition.high_watermark_sent, partition.log_start_sent = 5, 2
    offsets = {"fetch_offset": 5, "max_bytes": 9, "last_fetched_epoch": 0, "log_start_offset": 2}
    assert session.ask_again(partition.key, current_leader_epoch=-1, **offsets)
    assert (partition.high_watermark_sent, partition.log_start_sent) == (5, 2)
    assert session.ask_again(partition.key, current_leader_epoch=3, **offsets)
    assert (partition.high_watermark_sent, partition.log_start_sent) == (-1, -1)
    assert not session.ask_again(wire_id(TOPIC_ID.raw, 8), current_leader_epoch=3, **offsets)
