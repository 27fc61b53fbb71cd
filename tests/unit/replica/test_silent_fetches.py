"""A session's partitions that are fetched without being named, and what the leader takes for fetched."""

from __future__ import annotations

import pytest

from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica.replica.delayed_fetch import FetchParams
from tests.support import replicas as brokers
from tests.support.partitions import TOPIC_ID, TOPIC_PARTITION, Replicas


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas()
    made.lead(1)
    made.catch_up(2, 3)
    return made


@pytest.mark.parametrize("how", ["forgets it", "ends"])
def test_a_partition_that_leaves_its_session_is_fetched_no_more(replicas, how):
    session = FetchSession(7, now_ms=replicas.clock.now_ms, is_privileged=True)
    cached = CachedPartition(TOPIC_PARTITION, TOPIC_ID, fetch_offset=0, max_bytes=1)
    session.ask([cached])
    cached.listen(replicas.leader)
    replicas.leader.attach_fetch_clock(2, session.clock)
    if how == "ends":
        session.end()
    else:
        session.ask([], [cached.key])
    assert replicas.leader.replica(2).fetch_clock is None
    assert (cached.session, len(session), replicas.leader.fetch_waiters) == (None, 0, {})


@pytest.mark.parametrize("is_lasting", [True, False])
def test_a_late_fetch_is_made_up_for_by_the_next_one_of_the_session(is_lasting):
    at = brokers.Replicas()
    manager, topic_partition = at.manager(), at.partitions[0]
    manager.append(topic_partition, brokers.batch(b"a"))
    at.pass_time(1_000)
    follower = at.partition().replica(2)
    assert follower.log_end_offset == 1
    # The follower has given that one up long ago, and goes on in the session that came after it.
    now_ms = manager.fetches.now_ms()
    late = manager.fetches.sessions.create(1, is_privileged=True, now_ms=now_ms)
    if not is_lasting:
        late = FetchSession(now_ms=now_ms, is_privileged=True)
    epoch = at.controller.broker_epochs[2]
    topic_id = at.controller.topics[topic_partition.topic].topic_id
    late.ask([CachedPartition(topic_partition, topic_id, fetch_offset=0, max_bytes=1 << 20)])
    manager.fetches.fetch_messages(late, FetchParams(2, epoch, 500, 1, 1 << 20, "log_end", not is_lasting))
    assert follower.log_end_offset == 0
    at.pass_time(1_000)
    assert follower.log_end_offset == 1
    assert follower.fetch_clock is not late.clock
    assert manager.fetches.now_ms() - follower.fetch_clock.last_fetch_time_ms <= 500
