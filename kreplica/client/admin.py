"""Admin: changes topics and partitions through requests to the active controller.

A request is sent again if another node turns out to be the controller, or if the answer was lost. If a lost
first try was carried out and the second is therefore refused, the operation counts as done. Thread rule: any
thread; futures are resolved in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from kreplica.client.client_config import ClientConfig
from kreplica.common.controller_requests import ControllerRequests
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import (
    ElectionNotNeeded,
    KreplicaError,
    NetworkException,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicOrPartition,
    timed_out,
)
from kreplica.common.future import Future
from kreplica.common.messages.administration import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from kreplica.common.ports import Clock, Loop, Transport, monotonic_ms
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

# What has settings that can be changed, with Kafka's numbers.
ConfigKind = Literal["topic", "group"]
CONFIG_KINDS: Mapping[str, int] = {"topic": 2, "group": 32}
SET, DELETE = 0, 1
ELECTION_TYPES = {"preferred": 0, "unclean": 1}
# After these errors, retry: another node may be the controller, or this one may succeed later.
ELSEWHERE = (NotController, NetworkException, RequestTimedOut)

ErrorIn = Callable[[Any], KreplicaError | None]


@dataclass(slots=True, eq=False)
class _Ask:
    request: Any
    error_in: ErrorIn
    done_already: type[KreplicaError] | None
    deadline_ms: int
    future: Future[None] = field(default_factory=Future)
    may_be_done: bool = False  # a try was sent and its answer was lost
    last_error: BaseException | None = None


class Admin:
    """Sends administrative requests; see the methods for each.

    `controllers()`: the nodes that may be the active controller, the likeliest first. Futures fail with the
    controller's error and text, or with RequestTimedOut after `timeout_ms` (default.api.timeout.ms by
    default).
    """

    def __init__(
        self,
        controllers: Callable[[], Sequence[int]],
        *,
        transport: Transport,
        loop: Loop,
        clock: Clock,
        config: ClientConfig | None = None,
    ) -> None:
        self._controllers = controllers
        self._loop = loop
        self._clock = clock
        self._config = config = config or ClientConfig()
        self._tries = 0
        self._requests = ControllerRequests(
            self._next_controller,
            transport=transport,
            loop=loop,
            request_timeout_ms=config.request_timeout_ms,
            retry_backoff_ms=config.retry_backoff_ms,
        )

    # ---- topics -------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Create a topic; -1 means the controller's default.

        `assignment`: for each partition its brokers, the preferred leader first; `partitions` and
        `replication_factor` must then be -1. Errors: TopicAlreadyExists, InvalidTopic, InvalidPartitions,
        InvalidReplicationFactor, InvalidReplicaAssignment, InvalidConfig.
        """
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=tuple(
                CreatableReplicaAssignment(partition_index=number, broker_ids=tuple(brokers))
                for number, brokers in (assignment or {}).items()
            ),
            configs=tuple(
                CreatableTopicConfig(name=key, value=_text(value)) for key, value in (config or {}).items()
            ),
        )
        request = CreateTopicsRequest(
            topics=(topic,), timeout=self._patience(timeout_ms), validate_only=False
        )
        return self._ask(request, lambda response: _first(response.topics), TopicAlreadyExists, timeout_ms)

    def delete_topic(self, name: str, *, timeout_ms: int | None = None) -> Future[None]:
        """Delete a topic. Errors: UnknownTopicOrPartition."""
        request = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=name, topic_id=None),), timeout=self._patience(timeout_ms)
        )
        return self._ask(
            request, lambda response: _first(response.responses), UnknownTopicOrPartition, timeout_ms
        )

    def create_partitions(self, name: str, count: int, *, timeout_ms: int | None = None) -> Future[None]:
        """Increase the topic's partitions to `count`. Errors: UnknownTopicOrPartition, InvalidPartitions."""
        request = CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name=name, count=count, assignments=None),),
            timeout=self._patience(timeout_ms),
            validate_only=False,
        )
        return self._ask(request, lambda response: _first(response.results), None, timeout_ms)

    def alter_config(
        self,
        name: str,
        changes: Mapping[str, object | None],
        *,
        kind: ConfigKind = "topic",
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Change settings of a topic or group; None resets one.

        Errors: InvalidConfig, UnknownTopicOrPartition.
        """
        configs = tuple(
            AlterableConfig(
                name=key,
                config_operation=DELETE if value is None else SET,
                value=None if value is None else _text(value),
            )
            for key, value in changes.items()
        )
        resource = AlterConfigsResource(resource_type=CONFIG_KINDS[kind], resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        return self._ask(request, lambda response: _first(response.responses), None, timeout_ms)

    # ---- users --------------------------------------------------------------------------------------------

    def set_credentials(
        self, upsertions: Sequence[ScramCredentialUpsertion], *, timeout_ms: int | None = None
    ) -> Future[None]:
        """Let users log in by SCRAM; at most one credential for each user. Errors: UnacceptableCredential."""
        request = AlterUserScramCredentialsRequest(deletions=(), upsertions=tuple(upsertions))
        return self._ask(request, _worst_of_users, None, timeout_ms)

    # ---- partitions ---------------------------------------------------------------------------------------

    def reassign(
        self, at: TopicPartition, replicas: Sequence[int] | None, *, timeout_ms: int | None = None
    ) -> Future[None]:
        """Start moving the partition to these brokers, or cancel the move (None); done when it has started.

        Errors: InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition.
        """
        wanted = ReassignablePartition(
            partition_index=at.partition, replicas=None if replicas is None else tuple(replicas)
        )
        request = AlterPartitionReassignmentsRequest(
            timeout=self._patience(timeout_ms),
            topics=(ReassignableTopic(name=at.topic, partitions=(wanted,)),),
        )

        def error_in(response: Any) -> KreplicaError | None:
            error = error_of(response.error_code, response.error_message)
            return error or _first(_only(response.responses).partitions)

        return self._ask(request, error_in, None, timeout_ms)

    def elect_leader(
        self,
        at: TopicPartition,
        kind: Literal["preferred", "unclean"] = "preferred",
        *,
        timeout_ms: int | None = None,
    ) -> Future[None]:
        """Elect the preferred replica, or with "unclean" any live one; succeeds also if it leads already.

        Errors: PreferredLeaderNotAvailable, EligibleLeadersNotAvailable, UnknownTopicOrPartition.
        """
        request = ElectLeadersRequest(
            election_type=ELECTION_TYPES[kind],
            topic_partitions=(TopicPartitions(topic=at.topic, partitions=(at.partition,)),),
            timeout=self._patience(timeout_ms),
        )

        def error_in(response: Any) -> KreplicaError | None:
            error = error_of(response.error_code)
            if error is None:
                error = _first(_only(response.replica_election_results).partition_result)
            return None if isinstance(error, ElectionNotNeeded) else error

        return self._ask(request, error_in, None, timeout_ms)

    # ---- in the loop --------------------------------------------------------------------------------------

    def _patience(self, timeout_ms: int | None) -> timedelta:
        return timedelta(
            milliseconds=self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        )

    def _ask(
        self,
        request: Any,
        error_in: ErrorIn,
        done_already: type[KreplicaError] | None,
        timeout_ms: int | None,
    ) -> Future[None]:
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        asked = _Ask(request, error_in, done_already, monotonic_ms(self._clock) + patience_ms)
        make, take = partial(self._request, asked), partial(self._take, asked)
        self._loop.post(partial(self._requests.ask, make, take, left_ms=partial(self._left_ms, asked)))
        return asked.future

    def _next_controller(self) -> int | None:
        nodes = self._controllers()
        return nodes[self._tries % len(nodes)] if nodes else None

    def _left_ms(self, asked: _Ask) -> int:
        return asked.deadline_ms - monotonic_ms(self._clock)

    def _request(self, asked: _Ask) -> Any | None:
        if self._left_ms(asked) > 0:
            return asked.request
        what = f"{type(asked.request).__name__}: no controller carried it out in time"
        asked.future.set_exception(timed_out(what, asked.last_error))
        return None

    def _take(self, asked: _Ask, reply: Future[Any]) -> bool:
        error = reply.exception()
        if error is not None:
            asked.may_be_done = True
        else:
            error = asked.error_in(reply.result())
        if isinstance(error, ELSEWHERE):
            asked.last_error = error
            # A controller that resigned before the commit does not know the outcome either.
            asked.may_be_done = True
            self._tries += 1
            return True
        if error is None or self._was_done(asked, error):
            asked.future.set_result(None)
        else:
            asked.future.set_exception(error)
        return False

    def _was_done(self, asked: _Ask, error: BaseException) -> bool:
        return asked.may_be_done and asked.done_already is not None and isinstance(error, asked.done_already)


def _only(answers: Sequence[Any]) -> Any:
    if not answers:
        raise UnknownServerError("the response leaves out the requested item")
    return answers[0]


def _first(answers: Sequence[Any]) -> KreplicaError | None:
    answer = _only(answers)
    return error_of(answer.error_code, answer.error_message)


def _worst_of_users(response: AlterUserScramCredentialsResponse) -> KreplicaError | None:
    errors = [error_of(each.error_code, each.error_message) for each in response.results]
    return next((error for error in errors if error is not None), None)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
