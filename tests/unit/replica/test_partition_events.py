"""What a broker's log says of its partitions, and how much of it."""

from __future__ import annotations

import logging

import pytest

from kreplica.replica.partition_events import MOST_LINES
from tests.support.replicas import Replicas, batch

LAG_MS = 30_000


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kreplica.replica")


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [text for text in caplog.messages if words in text]


def test_leadership_is_logged_when_it_is_taken_and_when_it_is_lost(caplog) -> None:
    at = Replicas()
    at.manager().append(at.partitions[0], batch(b"a", b"b"))
    at.settle()
    at.elect(2)
    assert said(caplog, "leads in epoch") == [
        "t-0: broker 1 leads in epoch 0, from offset 0 on; in sync are [1, 2, 3], high watermark 0",
        "t-0: broker 2 leads in epoch 1, from offset 2 on; in sync are [1, 2, 3], high watermark 2",
    ]
    assert said(caplog, "no longer") == [
        "t-0: broker 1 is no longer the leader since epoch 1: broker 2 leads; its log ends at 2"
    ]


def test_a_broker_that_stops_in_order_sums_up_what_happened_to_its_partitions(caplog) -> None:
    at = Replicas(partitions=3)
    at.manager(1).events.begin_shutdown()
    at.settle()
    caplog.clear()
    for topic_partition in at.partitions[:2]:
        at.notify(at.controller.elect(topic_partition, 2, [1, 2]), to=[1])
    at.notify(at.controller.elect(at.partitions[0], 1, [1]), to=[1])
    at.notify(at.controller.elect(at.partitions[2], -1, [1]), to=[1])
    assert said(caplog, "t-") == []
    at.manager(1).shutdown()
    assert said(caplog, "shut down") == [
        "broker 1: while it shut down, its partitions changed: 2 x leadership handed over, 1 x ISR shrink,"
        " 1 x leadership taken, 1 x leadership lost"
    ]
    at.manager(1).events.report()
    assert said(caplog, "in the last minute") == []


def test_a_broker_that_stops_and_has_no_changes_logs_nothing(caplog) -> None:
    at = Replicas()
    at.manager(1).events.begin_shutdown()
    at.settle()
    at.manager(1).shutdown()
    assert said(caplog, "shut down") == []


def test_a_replica_that_never_fetched_leaves_at_no_offset(caplog) -> None:
    at = Replicas()
    at.cluster.cut(2, 3)
    at.elect(2)
    at.notify(at.controller.elect(at.partitions[0], 2, [1, 2]), to=[2])
    [line] = said(caplog, "leaves the ISR")
    assert line.startswith(
        "t-0: broker 3 leaves the ISR (controller) before its first fetch; the leader's log"
    )


def test_a_replica_that_leaves_the_isr_and_comes_back_is_logged_with_reason_and_offsets(caplog) -> None:
    at = Replicas()
    at.cluster.kill(3)
    at.manager().append(at.partitions[0], batch(b"a"))
    at.pass_time(2 * LAG_MS)
    [line] = said(caplog, "leaves the ISR")
    assert line == (
        "t-0: broker 3 leaves the ISR (stuck) at offset 0; the leader's log ends at 1, high watermark 0;"
        " in sync are [1, 2], leader epoch 0, partition epoch 1"
    )
    at.cluster.start(3)
    at.notify(at.controller.partitions[at.partitions[0]], to=[3])
    at.pass_time(1_000)
    [line] = said(caplog, "joins the ISR")
    assert line.startswith("t-0: broker 3 joins the ISR (caught up) at offset 1; the leader's log ends at 1")


def test_a_cut_is_logged_by_the_follower_and_by_the_leader(caplog) -> None:
    at = Replicas()
    at.cluster.cut(1, 2)
    at.cluster.cut(1, 3)
    at.manager().append(at.partitions[0], batch(b"never committed"))
    at.notify(at.controller.elect(at.partitions[0], 2, [2, 3]), to=[2, 3])
    at.manager(2).append(at.partitions[0], batch(b"committed"))
    at.settle()
    at.cluster.heal_all()
    at.notify(at.controller.partitions[at.partitions[0]], to=[1])
    at.pass_time(1_000)
    [cut] = said(caplog, "truncated") + said(caplog, "dropped the records")
    assert "from offset" in cut
    assert "broker 2" in cut
    [parts] = said(caplog, "parts from this one")
    assert parts.startswith("t-0: the log of broker 1, which fetches from offset 1, parts from this one")


def test_a_warning_comes_once_a_minute_while_something_is_wrong(caplog) -> None:
    at = Replicas(partitions=5)
    at.pass_time(120_000)
    assert said(caplog, "of its partitions") == []
    at.cluster.kill(3)
    for topic_partition in at.partitions:
        at.manager().append(topic_partition, batch(b"a"))
    at.pass_time(180_000)
    warnings = said(caplog, "are under-replicated")
    assert 2 <= len(warnings) <= 3
    assert set(warnings) == {"broker 1: 5 of its partitions are under-replicated: t-0, t-1, t-2, ..."}
    assert {each.levelname for each in caplog.records if "of its partitions" in each.message} == {"WARNING"}
    at.cluster.start(3)
    for topic_partition in at.partitions:
        at.notify(at.controller.partitions[topic_partition], to=[3])
    at.pass_time(5_000)
    caplog.clear()
    at.pass_time(180_000)
    assert said(caplog, "of its partitions") == []


def test_partitions_without_a_leader_are_counted(caplog) -> None:
    at = Replicas(partitions=2)
    at.elect(-1, [1, 2, 3])
    at.pass_time(60_000)
    text = "broker 2: 2 of its partitions have no leader: t-0, t-1"
    assert said(caplog, "have no leader").count(text) == 1


def test_many_changes_at_once_are_counted(caplog) -> None:
    at = Replicas(partitions=MOST_LINES + 7)
    assert len(said(caplog, "leads in epoch 0")) == MOST_LINES
    at.pass_time(60_000)
    assert said(caplog, "more changes") == [
        "broker 1: more changes of partitions in the last minute: 7 x leadership taken"
    ]
