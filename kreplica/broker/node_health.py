"""Whether a node may be sent clients, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator

from kreplica.broker.broker_lifecycle_manager import BrokerLifecycleManager, BrokerState
from kreplica.broker.node import Node

# Records of the metadata log that a broker may not have acted upon yet: it is always some behind.
MOST_RECORDS_BEHIND = 1_000


def what_keeps_from_serving(node: Node) -> list[str]:
    """Why the node cannot serve clients at this moment; an empty list where it can. For any thread."""
    if node.failure is not None:
        return [f"the node cannot go on: {node.failure}"]
    if not node.is_open:
        return ["the node does not run yet, or no longer"]
    reasons = [] if node.active_controller() is not None else ["no controller is known"]
    if node.broker is not None:
        reasons += _of_broker(node)
    return reasons


def _of_broker(node: Node) -> Iterator[str]:
    lifecycle, publisher = node.lifecycle, node.publisher
    if lifecycle is None or lifecycle.broker_epoch() < 0:
        yield "the broker is not registered"
    if publisher is None or not publisher.first_published.done():
        yield "the broker still loads its logs"
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
