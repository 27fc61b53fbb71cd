"""What the leader of a simulated classic group assigns."""

from __future__ import annotations

from kreplica.common.consumer_protocol import AssignedPartitions, ConsumerProtocolSubscription
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.classic_members import assign_ranges_cooperatively


def subscription(*owned: int, generation: int = 3) -> ConsumerProtocolSubscription:
    kept = (AssignedPartitions(topic="t", partitions=owned),)
    return ConsumerProtocolSubscription(topics=("t",), owned_partitions=kept, generation_id=generation)


def assigned(**members: ConsumerProtocolSubscription) -> dict[str, list[int]]:
    found = assign_ranges_cooperatively(members, {"t": 4})
    assert all(isinstance(at, TopicPartition) for each in found.values() for at in each)
    return {name: [at.partition for at in each] for name, each in found.items()}


def test_a_partition_that_has_an_owner_goes_to_no_other_before_it_is_given_up():
    assert assigned(a=subscription(0, 1, 2, 3), b=subscription()) == {"a": [0, 1], "b": []}
    assert assigned(a=subscription(0, 1), b=subscription()) == {"a": [0, 1], "b": [2, 3]}


def test_the_owner_in_the_latest_generation_counts():
    assert assigned(a=subscription(0, 1, 2, generation=2), b=subscription(2, 3)) == {"a": [0, 1], "b": [2, 3]}
    assert assigned(a=subscription(0, generation=2), b=subscription(0)) == {"a": [1], "b": [2, 3]}
