"""A session's partitions that are fetched without being named, and what the leader takes for fetched."""

from __future__ import annotations

import pytest

from kreplica.replica.fetch_session import CachedPartition, FetchSession
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
