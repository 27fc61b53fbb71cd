"""HandoverRequests: asks the controller to let another replica in sync lead a partition.

A leader whose disk lost what a follower has cannot mend everything by itself, and Kafka has no message for
that: so it is ElectLeaders with a type of kreplica's own, which Kafka's clients never send. It is asked again
while this broker leads, for the controller may be another one by then. Thread rule: `ask` from any thread
posts; the rest runs in the loop, which owns the state.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions

from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import TopicPartition
from kreplica.controller.replication_control import HANDOVER
from kreplica.replica.partition import Partition

REQUEST_TIMEOUT_MS = 2_000
RETRY_MS = 200


class HandoverRequests:
    """One broker's. `controller()`: the active controller's node id, None where it is not known."""

    def __init__(self, *, controller: Callable[[], int | None], transport: Transport, loop: Loop) -> None:
        self._loop = loop
        self._requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_MS,
        )
        # The loop's own:
        self._asking: set[TopicPartition] = set()
        self._is_closed = False

    def ask(self, partition: Partition) -> None:
        """Another replica should lead this partition, which is led here."""
        self._loop.post(partial(self._ask, partition))

    def close(self) -> None:
        """Ask nothing any more."""
        self._is_closed = True

    def _ask(self, partition: Partition) -> None:
        if partition.topic_partition not in self._asking:
            self._asking.add(partition.topic_partition)
            # Whatever the answer says: what counts is who leads then.
            self._requests.ask(partial(self._request, partition), lambda _: True)

    def _request(self, partition: Partition) -> ElectLeadersRequest | None:
        """Ask, if the cluster still has this broker lead."""
        at = partition.topic_partition
        if self._is_closed or partition.leader != partition.broker_id:
            self._asking.discard(at)
            return None
        return ElectLeadersRequest(
            election_type=HANDOVER,
            topic_partitions=(TopicPartitions(topic=at.topic, partitions=(at.partition,)),),
            timeout=timedelta(milliseconds=REQUEST_TIMEOUT_MS),
        )
