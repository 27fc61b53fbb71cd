"""ControllerApis: passes requests for the active controller to this node's QuorumController.

Each request becomes one event, which is atomic and answered when it is committed. If this node's controller
is not active, the answer is NOT_CONTROLLER; its message, if it has one, names the active node. Requests that
wait when leadership is lost get the same answer, and may or may not have been done. Each request gets an
answer, except that those in an `is_retried` context fail with NotController instead. No state; any thread may
call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from kreplica.broker.api_versions import response_type
from kreplica.broker.request_context import IN_PROCESS, RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError, NotController, UnsupportedVersion, known_error
from kreplica.common.future import Future, failed, then
from kreplica.common.message import replace
from kreplica.common.messages.administration import (
    AclCreationResult,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    CreatableTopicResult,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from kreplica.common.messages.administration import AlterConfigsResourceResponse as AlterAnswer
from kreplica.common.messages.administration import AlterConfigsResourceResponse as IncrementalAnswer
from kreplica.common.messages.controllers import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
)
from kreplica.common.messages.quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.client_quota_control import altered
from kreplica.controller.controller_mutation_quota import ControllerMutationQuota
from kreplica.controller.controller_term import ControllerTerm
from kreplica.controller.delegation_token_control import refused_token
from kreplica.controller.quorum_controller import QuorumController
from kreplica.controller.replication_control import ReplicationControl
from kreplica.security.peer import KafkaPrincipal

Operation = Callable[[ControllerTerm, Any], Any]
OfClient = Callable[[ControllerTerm, Any, KafkaPrincipal], Any]
Refuse = Callable[[Any, KreplicaError], Any]


class Mutation(NamedTuple):
    """How a request that is charged for its partitions is handled.

    `strict_since`: the first version that is refused over the quota; older ones are delayed afterwards.
    """

    strict_since: int
    handle: Callable[[ControllerTerm, Any, ControllerMutationQuota], Any]


MUTATIONS: dict[type[Any], Mutation] = {
    CreateTopicsRequest: Mutation(6, lambda term, *asked: _replication(term).create_topics(*asked)),
    DeleteTopicsRequest: Mutation(5, lambda term, *asked: _replication(term).delete_topics(*asked)),
    CreatePartitionsRequest: Mutation(3, lambda term, *asked: _replication(term).create_partitions(*asked)),
}


def _replication(term: ControllerTerm) -> ReplicationControl:
    return term.machines.replication_control


# How the active controller handles the other requests.
OPERATIONS: dict[type[Any], Operation] = {
    AlterPartitionRequest: lambda term, request: term.machines.replication_control.alter_partition(request),
    ElectLeadersRequest: lambda term, request: term.machines.replication_control.elect_leaders(request),
    AlterPartitionReassignmentsRequest: lambda term, request: (
        term.machines.replication_control.alter_partition_reassignments(request)
    ),
    ListPartitionReassignmentsRequest: lambda term, request: (
        term.machines.replication_control.list_partition_reassignments(request)
    ),
    AssignReplicasToDirsRequest: lambda term, request: (
        term.machines.replication_control.assign_replicas_to_dirs(request)
    ),
    BrokerRegistrationRequest: lambda term, request: term.cluster.register_broker(request),
    BrokerHeartbeatRequest: lambda term, request: term.cluster.process_broker_heartbeat(request),
    UnregisterBrokerRequest: lambda term, request: term.cluster.unregister_broker(request),
    ControllerRegistrationRequest: lambda term, request: term.cluster.register_controller(request),
    IncrementalAlterConfigsRequest: lambda term, request: term.alter_configs(
        term.configs.incremental_alter_configs(request)
    ),
    AlterConfigsRequest: lambda term, request: term.alter_configs(term.configs.alter_configs(request)),
    AllocateProducerIdsRequest: lambda term, request: term.producer_ids.allocate(request),
    UpdateFeaturesRequest: lambda term, request: term.features.update(request),
    AlterUserScramCredentialsRequest: lambda term, request: term.scram.alter(request),
    CreateAclsRequest: lambda term, request: term.acls.create(request),
    DeleteAclsRequest: lambda term, request: term.acls.delete(request),
    AlterClientQuotasRequest: lambda term, request: term.quotas.alter(request),
}


# The same, of those that depend on the client.
OPERATIONS_OF_CLIENT: dict[type[Any], OfClient] = {
    CreateDelegationTokenRequest: lambda term, request, client: term.delegation_tokens.create(
        request, client
    ),
    RenewDelegationTokenRequest: lambda term, request, client: term.delegation_tokens.renew(request, client),
    ExpireDelegationTokenRequest: lambda term, request, client: term.delegation_tokens.expire(
        request, client
    ),
}


class QuotaOf(Protocol):
    def __call__(self, context: RequestContext, *, is_strict: bool) -> ControllerMutationQuota: ...


def _unlimited(context: RequestContext, *, is_strict: bool) -> ControllerMutationQuota:  # noqa: ARG001
    return ControllerMutationQuota(is_strict=is_strict)


class ControllerApis:
    """The request handlers of one node's controller. `quota_of`: the quota of a request's client."""

    def __init__(self, controller: QuorumController, quota_of: QuotaOf = _unlimited) -> None:
        self._controller = controller
        self._quota_of = quota_of

    def takes(self, request: Any) -> bool:
        """Return whether the request is for the active controller."""
        kind = type(request)
        return kind in OPERATIONS or kind in MUTATIONS or kind in OPERATIONS_OF_CLIENT

    def handle(self, request: Any, context: RequestContext = IN_PROCESS) -> Future[Any]:
        """Answer a request. The future fails with UnsupportedVersion if there is no handler."""
        mutation = MUTATIONS.get(type(request))
        if mutation is not None:
            return self._mutate(request, mutation, context)
        operation = OPERATIONS.get(type(request))
        of_client = OPERATIONS_OF_CLIENT.get(type(request))
        if of_client is not None:
            operation = partial(_for, of_client, context.principal)
        if operation is None:
            return failed(UnsupportedVersion(f"no handler for {type(request).__name__}"))
        done = self._controller.append_write_event(_name_of(request), lambda term: operation(term, request))
        return then(done, lambda answer: answer, partial(_refused, request, context))

    def _mutate(self, request: Any, mutation: Mutation, context: RequestContext) -> Future[Any]:
        quota = self._quota_of(context, is_strict=context.api_version >= mutation.strict_since)

        def handle(term: ControllerTerm) -> Any:
            quota.begin()
            return mutation.handle(term, request, quota)

        def delayed(answer: Any) -> Any:
            return replace(answer, throttle_time=timedelta(milliseconds=quota.throttle_ms))

        done = self._controller.append_write_event(_name_of(request), handle)
        return then(
            done,
            lambda answer: delayed(answer) if quota.throttle_ms else answer,
            partial(_refused, request, context),
        )


def _name_of(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


def _for(operation: OfClient, client: KafkaPrincipal, term: ControllerTerm, request: Any) -> Any:
    return operation(term, request, client)


def _refused(request: Any, context: RequestContext, error: BaseException) -> Any:
    if context.is_retried and isinstance(error, NotController):
        raise error
    return refusal(request, known_error(error))


def refusal(request: Any, error: KreplicaError) -> Any:
    """Return the answer that rejects a request with `error`."""
    return REFUSALS[type(request)](request, error)


# ---- refusals ----------------------------------------------------------------------------------------------


def _with_code(**fields: Any) -> Refuse:
    """Make the answer, of the request's version, with these fields and the error's code."""

    def refuse(request: Any, error: KreplicaError) -> Any:
        answer = response_type(request.__api_key__, request.__version__)
        return answer(throttle_time=NO_THROTTLE, error_code=ErrorCode(error.code), **fields)

    return refuse


def _with_message(**fields: Any) -> Refuse:
    return lambda request, error: _with_code(error_message=str(error), **fields)(request, error)


def _refuse_create_topics(request: CreateTopicsRequest, error: KreplicaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            CreatableTopicResult(
                name=topic.name,
                topic_id=None,
                error_code=ErrorCode(error.code),
                error_message=str(error),
                configs=None,
            )
            for topic in request.topics
        ),
    )


def _refuse_delete_topics(request: DeleteTopicsRequest, error: KreplicaError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            DeletableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                error_code=ErrorCode(error.code),
                error_message=str(error),
            )
            for topic in request.topics
        ),
    )


def _refuse_create_partitions(
    request: CreatePartitionsRequest, error: KreplicaError
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            CreatePartitionsTopicResult(
                name=topic.name, error_code=ErrorCode(error.code), error_message=str(error)
            )
            for topic in request.topics
        ),
    )


def _refuse_configs(response: type[Any], answer: type[Any]) -> Refuse:
    return lambda request, error: response(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            answer(
                error_code=ErrorCode(error.code),
                error_message=str(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ),
    )


def _refuse_users(
    request: AlterUserScramCredentialsRequest, error: KreplicaError
) -> AlterUserScramCredentialsResponse:
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            AlterUserScramCredentialsResult(
                user=name, error_code=ErrorCode(error.code), error_message=str(error)
            )
            for name in dict.fromkeys(names)
        ),
    )


def _refuse_new_acls(request: CreateAclsRequest, error: KreplicaError) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=ErrorCode(error.code), error_message=str(error))
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(refused,) * len(request.creations))


def _refuse_acl_filters(request: DeleteAclsRequest, error: KreplicaError) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode(error.code), error_message=str(error), matching_acls=()
    )
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(refused,) * len(request.filters))


def _refuse_quotas(request: AlterClientQuotasRequest, error: KreplicaError) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE, entries=tuple(altered(entry, error) for entry in request.entries)
    )


REFUSALS: dict[type[Any], Refuse] = {
    CreateTopicsRequest: _refuse_create_topics,
    DeleteTopicsRequest: _refuse_delete_topics,
    CreatePartitionsRequest: _refuse_create_partitions,
    AlterPartitionRequest: _with_code(topics=()),
    ElectLeadersRequest: _with_code(replica_election_results=()),
    AlterPartitionReassignmentsRequest: _with_message(responses=()),
    ListPartitionReassignmentsRequest: _with_message(topics=()),
    AssignReplicasToDirsRequest: _with_code(directories=()),
    BrokerRegistrationRequest: _with_code(),
    BrokerHeartbeatRequest: _with_code(should_shut_down=False),
    UnregisterBrokerRequest: _with_message(),
    ControllerRegistrationRequest: _with_message(),
    IncrementalAlterConfigsRequest: _refuse_configs(IncrementalAlterConfigsResponse, IncrementalAnswer),
    AlterConfigsRequest: _refuse_configs(AlterConfigsResponse, AlterAnswer),
    AllocateProducerIdsRequest: _with_code(producer_id_start=-1, producer_id_len=0),
    UpdateFeaturesRequest: _with_message(results=()),
    AlterUserScramCredentialsRequest: _refuse_users,
    CreateAclsRequest: _refuse_new_acls,
    DeleteAclsRequest: _refuse_acl_filters,
    AlterClientQuotasRequest: _refuse_quotas,
    CreateDelegationTokenRequest: refused_token,
    RenewDelegationTokenRequest: _with_code(expiry_timestamp=-1),
    ExpireDelegationTokenRequest: _with_code(expiry_timestamp=-1),
}
