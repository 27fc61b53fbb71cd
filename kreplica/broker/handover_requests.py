"""HandoverRequests: asks the controller to let another replica in sync lead a partition.

A leader whose disk lost what a follower has, or has no room, cannot mend everything by itself, and Kafka has
no message for that: so it is ElectLeaders with a type of kreplica's own, which Kafka's clients never send. It
is asked again as long as that is wanted, for the controller may be another one by then, or nobody else in
sync; all partitions in one request. Thread rule: `ask` from any thread posts; the rest runs in the loop,
which owns the state.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions

from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.ports import Loop, Transport
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
        # The loop's own: what another replica should lead, and whether it still should.
        self._wanted: dict[Partition, Callable[[], bool]] = {}
        self._is_asking = False
        self._is_closed = False

    def ask(self, partition: Partition, is_wanted: Callable[[], bool] | None = None) -> None:
        """Another replica should lead this partition, which is led here: as long as `is_wanted()`, which is
        asked in the loop, or as long as it is led here."""
        self._loop.post(partial(self._ask, partition, is_wanted or partial(_is_led, partition)))

    def close(self) -> None:
        """Ask nothing any more."""
        self._is_closed = True

    def _ask(self, partition: Partition, is_wanted: Callable[[], bool]) -> None:
        self._wanted[partition] = is_wanted
        if not self._is_asking:
            self._is_asking = True
            # Whatever the answer says: what counts is who leads then.
            self._requests.ask(self._request, lambda _: True)

    def _request(self) -> ElectLeadersRequest | None:
        for partition, is_wanted in list(self._wanted.items()):
            if not is_wanted():
                del self._wanted[partition]
        if self._is_closed or not self._wanted:
            self._is_asking = False
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
