"""Fetches outside of any session, and the wish that another replica should lead."""

from __future__ import annotations

from typing import Any

from kreplica.common.types import ACKS_LEADER, TopicPartition
from kreplica.replica.partition_state import IsrChangeReason
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)
RECORDS = 5


def filled() -> Replicas:
    """Three replicas with batches of one record each, all in sync."""
    at = Replicas()
    for _ in range(RECORDS):
        at.manager(1).append(T0, batch(b"value"), required_acks=ACKS_LEADER)
        at.settle()
    at.pass_time(1_000)
    assert at.partition(1).high_watermark == RECORDS
    return at


def answered(at: Replicas, peer: int, offset: int, **how: Any) -> Any:
    """What that broker answers broker 2."""
    reply = at.manager(2).peers.fetch(at.partition(2), peer, offset, last_epoch=None, **how)
    assert reply is not None
    at.settle()
    (topic,) = reply.result(0).responses
    (answer,) = topic.partitions
    return answer


def test_a_fetch_below_its_end_reveals_to_the_leader_that_a_replica_lacks_records() -> None:
    at = filled()
    answered(at, 1, RECORDS - 1)
    assert [(each.broker_id, each.reason) for each in at.partition(1).isr_history] == [
        (2, IsrChangeReason.DAMAGED)
    ]


def test_a_consumers_fetch_reveals_nothing_and_is_answered_by_a_follower_too() -> None:
    at = filled()
    for peer in (1, 3):
        answer = answered(at, peer, RECORDS - 1, as_replica=False)
        assert (answer.error_code, bool(answer.records)) == (0, True)
    assert not at.partition(1).isr_history
    assert set(at.partition(1).isr) == {1, 2, 3}


def test_a_fetch_gives_no_more_than_was_asked_for() -> None:
    at = filled()
    whole = answered(at, 1, 0, as_replica=False)
    least = answered(at, 1, 0, as_replica=False, max_bytes=1)
    assert len(whole.records) == RECORDS * len(least.records) > 0


def test_without_a_known_leader_no_broker_is_asked() -> None:
    at = filled()
    partition = at.partition(2)
    at.cluster.hold(lambda message: message.is_request and message.receiver == 1)
    assert at.manager(2).peers.fetch(partition, 1, 0, last_epoch=None) is not None
    at.settle()
    assert len(at.cluster.held()) == 1
    partition.leader_and_isr = None
    assert at.manager(2).peers.fetch(partition, 1, 0, last_epoch=None) is None
    at.settle()
    assert len(at.cluster.held()) == 1


def test_a_request_for_a_handover_reaches_its_listener() -> None:
    at = filled()
    peers, partition = at.manager(1).peers, at.partition(1)
    heard: list[Any] = []
    peers.on_wants_handover = lambda *wish: heard.append(wish)
    peers.want_handover(partition)
    peers.want_handover(partition, filled)
    assert heard == [(partition, None), (partition, filled)]
