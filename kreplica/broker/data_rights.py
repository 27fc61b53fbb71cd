"""The rights that requests for records and topics need, where a row is more than one question.

No state; any thread may call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kreplica.broker.blank_answers import blank, partition_numbers, refused_element
from kreplica.broker.client_rights import ClientRights
from kreplica.broker.rights import (
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    WRITE,
    Row,
    Verdict,
    all_of,
    each,
    response_of,
    topics,
    without,
)
from kreplica.broker.transactional_appends import producer_of
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    FetchSessionIdNotFound,
    GroupAuthorizationFailed,
    KreplicaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.message import replace, structure_of
from kreplica.common.messages.administration import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from kreplica.common.messages.data import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    OffsetForLeaderTopic,
    PartitionData,
    ProduceRequest,
    ProduceResponse,
)
from kreplica.common.types import METADATA_TOPIC
from kreplica.common.wire import topic_id_of
from kreplica.metadata.cluster_metadata import BROKER_LOGGER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from kreplica.raft.raft_messages import is_of_metadata_log
from kreplica.replica.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from kreplica.security.acl import CLUSTER_NAME, AclOperation, ResourceType

TOPIC_DENIED = ErrorCode(TopicAuthorizationFailed.code)

# ---- records -----------------------------------------------------------------------------------------------


def produce(client: ClientRights, request: ProduceRequest) -> Verdict:
    """Produce (0). A batch of a transaction needs its id, too (CVE-2018-17196)."""
    records = [part.records for topic_data in request.topic_data for part in topic_data.partition_data]
    if request.transactional_id is not None or any(
        batches is not None and producer_of(batches) is not None for batches in records
    ):
        name = request.transactional_id
        if name is None or not client.transactional_id(WRITE, name):
            return _unless_unanswered(
                request, _every_partition(request, TransactionalIdAuthorizationFailed())
            )
    return _unless_unanswered(request, topics(WRITE, "topic_data", "responses")(client, request))


def _every_partition(request: ProduceRequest, error: KreplicaError) -> Verdict:
    kind = structure_of(ProduceResponse, "responses")
    refused = tuple(refused_element(kind, topic_data, error) for topic_data in request.topic_data)
    return Verdict(None, answer=blank(ProduceResponse, responses=refused))


def _unless_unanswered(request: ProduceRequest, verdict: Verdict) -> Verdict:
    """With acks=0 no answer can refuse anything, so the connection is closed, after the other appends."""
    if request.acks or (verdict.request is not None and verdict.finish is None):
        return verdict
    if verdict.request is None:
        raise TopicAuthorizationFailed
    return Verdict(verdict.request, _not_authorized)


def _not_authorized(_: Any) -> Any:
    raise TopicAuthorizationFailed


def fetch(client: ClientRights, request: FetchRequest) -> Verdict:
    """Fetch (1). Each fetch of a session is allowed by the rules that the session was opened under.

    When these have changed, the client has to open another one. A client that may not read all that it asks
    for gets no session, so that it learns of that each time.
    """
    if request.replica_state.replica_id >= 0 or is_of_metadata_log(request):
        return _fetch_of_node(client, request)
    named = [(asked, client.name_of(asked)) for asked in request.topics]
    denied = [asked for asked, name in named if name is not None and not client.topic(READ, name)]
    if request.session_epoch > INITIAL_EPOCH:
        session = client.sessions.get(request.session_id)
        if denied or (session is not None and session.holder != client.holder):
            return Verdict(None, answer=_fetch_refused(FetchSessionIdNotFound))
        return Verdict(request)
    if not denied:
        return Verdict(request, partial(_opened, client))
    left = tuple(asked for asked in request.topics if asked not in denied)
    refused = tuple(_unread(asked, TopicAuthorizationFailed) for asked in denied)
    finish = partial(_with_unread, refused)
    if not left:
        return Verdict(None, answer=finish(_fetch_refused(None)))
    return Verdict(replace(request, topics=left, session_epoch=FINAL_EPOCH), finish)


def _fetch_of_node(client: ClientRights, request: FetchRequest) -> Verdict:
    if client.cluster(CLUSTER_ACTION):
        return Verdict(request)
    # Kafka's code here, though the right is one to the cluster.
    refused = tuple(_unread(asked, TopicAuthorizationFailed) for asked in request.topics)
    return Verdict(None, answer=replace(_fetch_refused(ClusterAuthorizationFailed), responses=refused))


def _fetch_refused(error: type[KreplicaError] | None) -> FetchResponse:
    code = ErrorCode.none if error is None else ErrorCode(error.code)
    made: FetchResponse = blank(FetchResponse, error_code=code, session_id=0)
    return made


def _unread(asked: Any, error: type[KreplicaError]) -> FetchableTopicResponse:
    partitions = tuple(
        blank(PartitionData, partition_index=number, error_code=ErrorCode(error.code), records=b"")
        for number in partition_numbers(asked)
    )
    return FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=partitions)


def _with_unread(refused: tuple[Any, ...], response: FetchResponse) -> FetchResponse:
    return replace(response, responses=(*response.responses, *refused))


def _opened(client: ClientRights, response: FetchResponse) -> FetchResponse:
    session = client.sessions.get(response.session_id)
    if session is not None:
        session.holder = client.holder
    return response


def _epoch_ends(client: ClientRights, asked: OffsetForLeaderTopic) -> bool:
    if client.sees(CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        return True
    return client.topic(DESCRIBE, asked.topic)


offset_for_leader_epoch = each("topics", _epoch_ends, TopicAuthorizationFailed, "topics")


def alter_replica_log_dirs(client: ClientRights, request: AlterReplicaLogDirsRequest) -> Verdict:
    """AlterReplicaLogDirs (34)."""
    if client.cluster(AclOperation.ALTER):
        return Verdict(request)
    kind = structure_of(AlterReplicaLogDirsResponse, "results")
    refused = tuple(
        replace(refused_element(kind, asked, ClusterAuthorizationFailed()), topic_name=asked.name)
        for directory in request.dirs
        for asked in directory.topics
    )
    return Verdict(None, answer=blank(AlterReplicaLogDirsResponse, results=refused))


# ---- what exists -------------------------------------------------------------------------------------------


def metadata(client: ClientRights, request: MetadataRequest) -> Verdict:
    """Metadata (3). Topics that the client may not describe are left out, or refused if it names them."""
    refused: list[MetadataResponseTopic] = []
    if request.topics is not None:
        left = []
        for asked in request.topics:
            if _may_describe(client, request, asked):
                left.append(asked)
            else:
                name = asked.name if asked.topic_id is None else None
                refused.append(
                    blank(MetadataResponseTopic, error_code=TOPIC_DENIED, name=name, topic_id=asked.topic_id)
                )
        if refused:
            request = replace(request, topics=tuple(left))
    return Verdict(request, partial(_described, client, request, refused))


def _may_describe(client: ClientRights, request: MetadataRequest, asked: MetadataRequestTopic) -> bool:
    if asked.topic_id is None and asked.name is not None:
        name = asked.name
    else:
        known = client.metadata.topic_names.get(topic_id_of(asked.topic_id))
        if known is None:
            return True
        name = known
    if not client.topic(DESCRIBE, name):
        return False
    creates = request.allow_auto_topic_creation and client.creates_topics
    return not creates or name in client.metadata.topics or client.may_create(name)


def _described(
    client: ClientRights,
    request: MetadataRequest,
    refused: list[MetadataResponseTopic],
    response: MetadataResponse,
) -> MetadataResponse:
    found = response.topics
    if request.topics is None:
        found = tuple(each for each in found if client.sees_topic(each.name or ""))
    if request.include_topic_authorized_operations:
        found = tuple(
            replace(each, topic_authorized_operations=client.operations(ResourceType.TOPIC, each.name or ""))
            for each in found
        )
    if request.include_cluster_authorized_operations:
        response = replace(response, cluster_authorized_operations=_of_cluster(client))
    return replace(response, topics=(*found, *refused))


def _of_cluster(client: ClientRights) -> int:
    if not client.sees(DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return client.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def describe_cluster(client: ClientRights, request: DescribeClusterRequest) -> Verdict:
    """DescribeCluster (60): everyone may call it."""
    if not request.include_cluster_authorized_operations:
        return Verdict(request)

    def finish(response: DescribeClusterResponse) -> DescribeClusterResponse:
        return replace(response, cluster_authorized_operations=_of_cluster(client))

    return Verdict(request, finish)


def describe_topic_partitions(client: ClientRights, request: DescribeTopicPartitionsRequest) -> Verdict:
    """DescribeTopicPartitions (75)."""
    if not request.topics:
        names = [name for name in client.metadata.topics if client.sees_topic(name)]
        if not names:
            return Verdict(None, answer=blank(DescribeTopicPartitionsResponse))
        asked = tuple(DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names)
        request = replace(request, topics=asked)
    verdict = topics(DESCRIBE)(client, request)

    def finish(response: DescribeTopicPartitionsResponse) -> DescribeTopicPartitionsResponse:
        described = tuple(
            replace(each, topic_authorized_operations=client.operations(ResourceType.TOPIC, each.name or ""))
            for each in response.topics
        )
        response = replace(response, topics=described)
        return response if verdict.finish is None else verdict.finish(response)

    return verdict if verdict.request is None else Verdict(verdict.request, finish)


# ---- topics ------------------------------------------------------------------------------------------------


def create_topics(client: ClientRights, request: CreateTopicsRequest) -> Verdict:
    """CreateTopics (19). The settings are shown to those who may describe them (KIP-525)."""

    def may(client: ClientRights, asked: Any) -> bool:
        # Only nodes write the metadata log, and the handler says so.
        return asked.name == METADATA_TOPIC or client.may_create(asked.name)

    def hide_settings(_: ClientRights, request: CreateTopicsRequest) -> Verdict:
        return Verdict(request, partial(_without_settings, client))

    rows: tuple[Row, ...] = (each("topics", may, TopicAuthorizationFailed, "topics"), hide_settings)
    return all_of(*rows)(client, request)


def _without_settings(client: ClientRights, response: CreateTopicsResponse) -> CreateTopicsResponse:
    def visible(result: Any) -> Any:
        if result.error_code or client.sees(DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
            return result
        return replace(
            result,
            topic_config_error_code=int(TOPIC_DENIED),
            num_partitions=-1,
            replication_factor=-1,
            configs=None,
        )

    return replace(response, topics=tuple(map(visible, response.topics)))


def delete_topics(client: ClientRights, request: DeleteTopicsRequest) -> Verdict:
    """DeleteTopics (20). A topic named by its id has its name in the answer only for who may see it."""
    refused, refusals = [], []
    for asked in request.topics:
        name = asked.name if asked.name is not None else client.name_of(asked)
        if name is None or client.sees(DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
            continue
        if not client.topic(DELETE, name):
            is_shown = asked.name is not None or client.sees_topic(name)
            refused.append(asked)
            refusals.append(
                DeletableTopicResult(
                    name=name if is_shown else None,
                    topic_id=asked.topic_id,
                    error_code=TOPIC_DENIED,
                    error_message=str(TopicAuthorizationFailed()),
                )
            )
    return without(request, "topics", refused, "responses", refusals)


# ---- settings ----------------------------------------------------------------------------------------------


def _of_resource(operation: AclOperation) -> Any:
    def may(client: ClientRights, asked: Any) -> bool:
        if asked.resource_type == TOPIC_RESOURCE:
            return client.topic(operation, asked.resource_name)
        if asked.resource_type == GROUP_RESOURCE:
            return client.group(operation, asked.resource_name)
        is_change = operation == ALTER_CONFIGS and asked.resource_type == BROKER_LOGGER_RESOURCE
        return client.cluster(CLUSTER_ACTION if is_change else operation)

    return may


def configs(operation: AclOperation, answers: str) -> Row:
    """DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44)."""
    may = _of_resource(operation)

    def row(client: ClientRights, request: DescribeConfigsRequest) -> Verdict:
        refused = [asked for asked in request.resources if not may(client, asked)]
        kind = structure_of(response_of(request), answers)
        errors = {TOPIC_RESOURCE: TopicAuthorizationFailed, GROUP_RESOURCE: GroupAuthorizationFailed}
        refusals = [
            refused_element(kind, asked, errors.get(asked.resource_type, ClusterAuthorizationFailed)())
            for asked in refused
        ]
        return without(request, "resources", refused, answers, refusals)

    return row
