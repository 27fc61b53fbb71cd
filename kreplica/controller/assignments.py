"""Checks which brokers a partition may be assigned to. Pure functions of the context."""

from __future__ import annotations

from collections.abc import Sequence

from kreplica.common.errors import InvalidReplicaAssignment
from kreplica.controller.controller_context import ControllerContext
from kreplica.controller.replica_placer import UsableBroker


def usable_brokers(context: ControllerContext) -> list[UsableBroker]:
    """Return the brokers that may get replicas."""
    return [
        UsableBroker(broker_id, broker.rack, broker_id in context.live_broker_ids)
        for broker_id, broker in sorted(context.metadata.brokers.items())
    ]


def check_assignment(context: ControllerContext, replicas: Sequence[int], *, needs_live: bool) -> None:
    """Raise InvalidReplicaAssignment if a partition cannot have these replicas.

    `needs_live`: one of the brokers must be alive, because it has to lead at once.
    """
    if not replicas:
        raise InvalidReplicaAssignment("the list of replicas of a partition is empty")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"the replicas {list(replicas)} name a broker twice")
    unknown = [replica for replica in replicas if replica not in context.metadata.brokers]
    if unknown:
        raise InvalidReplicaAssignment(f"brokers {unknown} of {list(replicas)} are not registered")
    if needs_live and context.live_broker_ids.isdisjoint(replicas):
        raise InvalidReplicaAssignment(f"all brokers of {list(replicas)} are fenced or shutting down")


def check_same_size(assignments: Sequence[Sequence[int]], size: int) -> None:
    """Raise InvalidReplicaAssignment if a partition has another number of replicas than its topic."""
    for assignment in assignments:
        if len(assignment) != size:
            raise InvalidReplicaAssignment(
                f"{list(assignment)} has {len(assignment)} replicas, but the topic's partitions have {size}"
            )
