"""AssignmentsManager: tells the controller in which of this broker's directories each replica lies (KIP-858).

So the controller knows whose leaders have to move when a directory fails. What is to be told waits in a map,
the latest word for each replica; one request is in flight, of a bounded size. A controller that is not there,
or not the controller any more, is asked again after a while, and so is a replica that it refused for now;
one of a topic that is gone is dropped. Thread rule: `on_assignment` may be called from any thread and posts;
the rest belongs to the loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice

from kio.schema.assign_replicas_to_dirs.v0.request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from kio.schema.assign_replicas_to_dirs.v0.response import AssignReplicasToDirsResponse

from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.errors import UnknownTopicId, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of

LOGGER = logging.getLogger(__name__)

# Kafka's bound: more would make an event of the controller long.
MAX_ASSIGNMENTS_PER_REQUEST = 2250
RETRY_MS = 500
REQUEST_TIMEOUT_MS = 5_000
GONE = (UnknownTopicId, UnknownTopicOrPartition)

Replica = tuple[Uuid, int]


class AssignmentsManager:
    """Of broker `broker_id`; `controller()`: the active controller's node id, None where it is not known."""

    def __init__(
        self,
        broker_id: int,
        *,
        broker_epoch: Callable[[], int],
        controller: Callable[[], int | None],
        transport: Transport,
        loop: Loop,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._loop = loop
        self._requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_MS,
        )
        # The loop's own:
        self._waiting: dict[Replica, Uuid] = {}
        self._sent: dict[Replica, Uuid] = {}
        self._is_busy = False  # a request is in flight, or the next try has its time
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many replicas' directories the controller has not confirmed."""
        return len(self._waiting)

    def on_assignment(self, topic_id: Uuid, partition: int, directory: Uuid) -> None:
        """The replica lies in that directory."""
        self._loop.post(lambda: self._add((topic_id, partition), directory))

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_closed = True

    def _add(self, replica: Replica, directory: Uuid) -> None:
        self._waiting[replica] = directory
        if not self._is_busy:
            # What is added in the same moment goes along.
            self._is_busy = True
            self._loop.post(partial(self._requests.ask, self._request, self._take))

    def _request(self) -> AssignReplicasToDirsRequest | None:
        """The next to be told; None where nothing is."""
        if self._is_closed or not self._waiting:
            self._is_busy = False
            return None
        sent = self._sent = dict(islice(self._waiting.items(), MAX_ASSIGNMENTS_PER_REQUEST))
        by_directory: dict[Uuid, dict[Uuid, list[int]]] = {}
        for (topic_id, partition), directory in sent.items():
            by_directory.setdefault(directory, {}).setdefault(topic_id, []).append(partition)
        return AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=tuple(
                DirectoryData(
                    id_=uuid_of(directory),
                    topics=tuple(
                        TopicData(
                            topic_id=uuid_of(topic_id),
                            partitions=tuple(PartitionData(partition_index=each) for each in partitions),
                        )
                        for topic_id, partitions in topics.items()
                    ),
                )
                for directory, topics in by_directory.items()
            ),
        )

    def _take(self, reply: Future[AssignReplicasToDirsResponse]) -> bool:
        error = reply.exception()
        if error is None:
            error = error_of(reply.result().error_code)
        if error is not None:
            LOGGER.info("broker %d: where replicas lie is told later: %s", self._broker_id, error)
            return True
        refused = self._settle(self._sent, reply.result())
        # At the end of the line: others go first.
        self._waiting.update(refused)
        if not refused:
            self._requests.ask(self._request, self._take)
        return bool(refused)

    def _settle(
        self, sent: dict[Replica, Uuid], response: AssignReplicasToDirsResponse
    ) -> dict[Replica, Uuid]:
        """Forget what was taken, or can never be; the rest, which is taken out too."""
        refused: dict[Replica, Uuid] = {}
        answers = {
            (topic_id_of(topic.topic_id), each.partition_index): each.error_code
            for directory in response.directories
            for topic in directory.topics
            for each in topic.partitions
        }
        for replica, directory in sent.items():
            if self._waiting.get(replica) != directory:
                continue  # it has moved meanwhile, which is still to be told
            del self._waiting[replica]
            error = error_of(answers.get(replica, 0))
            if replica not in answers or (error is not None and not isinstance(error, GONE)):
                refused[replica] = directory
                LOGGER.info("broker %d: partition %s-%d: %s", self._broker_id, *replica, error)
        return refused
