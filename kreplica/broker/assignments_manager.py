"""AssignmentsManager: reports to the controller in which directory of this broker each replica is (KIP-858).

So the controller knows which leaders to move when a directory fails. Assignments to report wait in a map,
with the latest directory of each replica. One request of bounded size is in flight. If no controller is known
or it has changed, the request is retried later, and so is a replica that the controller rejected for now.
Replicas of deleted topics are dropped. Thread rule: any thread may call `on_assignment`, which posts; the
rest belongs to the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from kreplica.common.controller_requests import ControllerRequests, OneAtATime
from kreplica.common.errors import UnknownTopicId, UnknownTopicOrPartition
from kreplica.common.future import Future
from kreplica.common.messages.controllers import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestDirectoryData as DirectoryData
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestPartitionData as PartitionData
from kreplica.common.messages.controllers import AssignReplicasToDirsRequestTopicData as TopicData
from kreplica.common.ports import Loop, Transport
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of, topic_id_of, uuid_of

LOGGER = logging.getLogger(__name__)

# Kafka's limit. A larger request would be a long event in the controller.
MAX_ASSIGNMENTS_PER_REQUEST = 2250
RETRY_MS = 500
REQUEST_TIMEOUT_MS = 5_000
GONE = (UnknownTopicId, UnknownTopicOrPartition)

Replica = tuple[Uuid, int]


class AssignmentsManager:
    """Reports for broker `broker_id`. `controller()`: the active controller's node id, None if unknown."""

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
        requests = ControllerRequests(
            controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            retry_backoff_ms=RETRY_MS,
        )
        self._reports = OneAtATime(requests, self._request, self._take)
        # Owned by the loop:
        self._waiting: dict[Replica, Uuid] = {}
        self._sent: dict[Replica, Uuid] = {}
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many replicas have a directory that the controller has not confirmed."""
        return len(self._waiting)

    def on_assignment(self, topic_id: Uuid, partition: int, directory: Uuid) -> None:
        """Report that the replica is in that directory."""
        self._loop.post(lambda: self._add((topic_id, partition), directory))

    def close(self) -> None:
        """Send no further reports."""
        self._is_closed = True

    def _add(self, replica: Replica, directory: Uuid) -> None:
        self._waiting[replica] = directory
        self._reports.begin_later(self._loop)

    def _request(self) -> AssignReplicasToDirsRequest | None:
        """Return the next request; None if there is nothing to report."""
        if self._is_closed or not self._waiting:
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
            LOGGER.info(
                "broker %d: could not report the directories of replicas, retrying: %s",
                self._broker_id,
                error,
            )
            return True
        refused = self._settle(self._sent, reply.result())
        # Put them at the end of the line, so that others go first.
        self._waiting.update(refused)
        return bool(refused)

    def _settle(
        self, sent: dict[Replica, Uuid], response: AssignReplicasToDirsResponse
    ) -> dict[Replica, Uuid]:
        """Drop what was accepted or can never be. Returns the rest, which is removed too."""
        refused: dict[Replica, Uuid] = {}
        answers = {
            (topic_id_of(topic.topic_id), each.partition_index): each.error_code
            for directory in response.directories
            for topic in directory.topics
            for each in topic.partitions
        }
        for replica, directory in sent.items():
            if self._waiting.get(replica) != directory:
                continue  # it has moved meanwhile; report that instead
            del self._waiting[replica]
            error = error_of(answers.get(replica, 0))
            if replica not in answers or (error is not None and not isinstance(error, GONE)):
                refused[replica] = directory
                LOGGER.info("broker %d: partition %s-%d: %s", self._broker_id, *replica, error)
        return refused
