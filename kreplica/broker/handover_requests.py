"""HandoverRequests: asks the controller to let another in-sync replica lead a partition.

A leader whose disk is full, or has lost records that a follower has, cannot recover alone. Kafka has no
message for that, so this is ElectLeaders with a type of kreplica's own, which Kafka's clients never send. One
request names all partitions. It is repeated as long as a handover is wanted, since the controller may change
and no other replica may be in sync yet. Thread rule: any thread may call `ask`, which posts; the rest runs in
the loop, which owns the state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.messages.administration import ElectLeadersRequest, TopicPartitions
from kreplica.common.ports import Loop, Transport
from kreplica.controller.replication_control import HANDOVER
from kreplica.replica.partition import Partition

REQUEST_TIMEOUT_MS = 2_000
RETRY_MS = 200


class HandoverRequests:
    """Handover requests of one broker. `controller()`: the active controller's node id, None if unknown."""

    def __init__(self, *, controller: Callable[[], int | None], transport: Transport, loop: Loop) -> None:
        self._loop = loop
        requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_MS,
        )
        # The answer does not matter: the metadata shows who leads.
        self._requests = OneAtATime(requests, self._request, lambda _: True)
        # Owned by the loop: the partitions to hand over, and whether each handover is still wanted.
        self._wanted: dict[Partition, Callable[[], bool]] = {}
        self._is_closed = False

    def ask(self, partition: Partition, is_wanted: Callable[[], bool] | None = None) -> None:
        """Ask that another replica lead this partition.

        The request is repeated while `is_wanted()`, which is called in the loop, or while this broker leads.
        """
        self._loop.post(partial(self._ask, partition, is_wanted or partial(_is_led, partition)))

    def close(self) -> None:
        """Send no further requests."""
        self._is_closed = True

    def _ask(self, partition: Partition, is_wanted: Callable[[], bool]) -> None:
        self._wanted[partition] = is_wanted
        self._requests.begin()

    def _request(self) -> ElectLeadersRequest | None:
        for partition, is_wanted in list(self._wanted.items()):
            if not is_wanted():
                del self._wanted[partition]
        if self._is_closed or not self._wanted:
            return None
        topics: dict[str, list[int]] = {}
        for partition in self._wanted:
            at = partition.topic_partition
            topics.setdefault(at.topic, []).append(at.partition)
        return ElectLeadersRequest(
            election_type=HANDOVER,
            topic_partitions=tuple(
                TopicPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items()
            ),
            timeout=timedelta(milliseconds=REQUEST_TIMEOUT_MS),
        )


def _is_led(partition: Partition) -> bool:
    return partition.leader == partition.broker_id
