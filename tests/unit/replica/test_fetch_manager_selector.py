"""A consumer that names its rack is sent to a replica there, if one has what it asks for (KIP-392)."""

from __future__ import annotations

import pytest

from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica.common.errors import InvalidConfig
from kreplica.common.types import Uuid
from kreplica.replica.delayed_fetch import CONSUMER, FetchParams
from kreplica.replica.replica_config import ReplicaConfig
from tests.support.replicas import Replicas, batch

RACK_AWARE = ReplicaConfig(replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector")


def replicas(config=RACK_AWARE):
    at = Replicas(config=config)
    at.controller.racks.update({1: "a", 2: "b", 3: "b"})
    at.manager().append(at.partitions[0], batch(b"one"))
    at.settle()
    return at


def fetched(at, rack, *, offset=0, broker=1, replica_id=CONSUMER, epoch=-1):
    """Where the consumer is sent, -1: nowhere, and what it gets."""
    params = FetchParams(
        replica_id,
        -1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation="high_watermark",
        only_leader=not rack,
        client_rack=rack,
    )
    session = FetchSession(now_ms=0)
    asked = CachedPartition(
        at.partitions[0], Uuid.ZERO, fetch_offset=offset, max_bytes=1 << 20, current_leader_epoch=epoch
    )
    session.ask([asked], [])
    future = at.manager(broker).fetches.fetch_messages(session, params)
    if not future.done():
        at.pass_time(150)
    ((_, data),) = future.result(0)
    return data.preferred_read_replica, data.size, data.error


def test_it_is_sent_to_its_rack_and_served_there():
    at = replicas()
    size = len(batch(b"one"))
    at.pass_time(1000)  # until the followers know what is committed
    sent_to, nothing, error = fetched(at, "b")
    assert (nothing, error) == (0, None)
    assert sent_to in (2, 3)
    assert fetched(at, "b", broker=sent_to) == (-1, size, None)


@pytest.mark.parametrize("rack", ["", "a", "elsewhere"])
def test_a_consumer_stays_at_the_leader_if_no_replica_is_nearer(rack):
    assert fetched(replicas(), rack) == (-1, len(batch(b"one")), None)


def test_a_consumer_is_not_sent_to_a_replica_out_of_sync():
    at = replicas()
    at.elect(1, isr=(1, 3))
    assert fetched(at, "b")[0] == 3
    at.controller.fenced.add(3)
    assert fetched(at, "b")[0] == -1


def test_a_consumer_is_not_sent_to_a_replica_without_the_offset():
    at = replicas()
    for broker in (2, 3):
        at.cluster.pause(broker)
    at.manager().append(at.partitions[0], batch(b"two"))
    at.settle()
    assert at.partition().log_end_offset == 2
    assert fetched(at, "b", offset=1)[0] in (2, 3)
    assert fetched(at, "b", offset=2)[0] == -1


def test_an_error_comes_before_a_preferred_replica():
    _, _, error = fetched(replicas(), "b", offset=99)
    assert error is not None


def test_by_default_everybody_reads_from_leaders():
    assert fetched(replicas(ReplicaConfig()), "b") == (-1, len(batch(b"one")), None)


def test_a_selector_that_there_is_not():
    with pytest.raises(InvalidConfig, match=r"replica\.selector\.class"):
        Replicas(config=ReplicaConfig(replica_selector_class="Mine"))
