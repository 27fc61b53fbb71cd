"""Reports whether a node can serve clients, and the reasons if it cannot."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.broker.broker_lifecycle_manager import BrokerLifecycleManager, BrokerState
from kreplica.broker.node import Node

# How many records of the metadata log a healthy broker may not have applied yet. It is always a bit behind.
MOST_RECORDS_BEHIND = 1_000


def what_keeps_from_serving(node: Node) -> list[str]:
    """Return why the node cannot serve clients now; an empty list if it can. Any thread may call."""
    if node.failure is not None:
        return [f"the node has failed: {node.failure}"]
    if not node.is_open:
        return ["the node is starting or has stopped"]
    reasons = [] if node.active_controller() is not None else ["no controller is known"]
    if node.broker is not None:
        reasons += _of_broker(node)
    return reasons


def _of_broker(node: Node) -> Iterator[str]:
    lifecycle, publisher = node.lifecycle, node.publisher
    if lifecycle is None or lifecycle.broker_epoch() < 0:
        yield "the broker is not registered"
    if publisher is None or not publisher.first_published.done():
        yield "the broker is still loading its logs"
        return
    if lifecycle is not None:
        yield from _of_lifecycle(lifecycle)
    behind = (node.raft.high_watermark or 0) - 1 - publisher.metadata_offset()
    if behind > MOST_RECORDS_BEHIND:
        yield f"the broker is {behind} records behind the cluster's metadata"


def _of_lifecycle(lifecycle: BrokerLifecycleManager) -> Iterator[str]:
    if lifecycle.state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN):
        yield "the broker is shutting down"
    elif lifecycle.is_fenced:
        yield "the controller has fenced the broker"
