"""The rights that requests to coordinators need, where a row is more than one question.

No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kreplica.broker.blank_answers import blank, refused_element, refused_whole
from kreplica.broker.client_rights import ClientRights
from kreplica.broker.rights import (
    CLUSTER_ACTION,
    DESCRIBE,
    READ,
    WRITE,
    Row,
    Verdict,
    all_of,
    cluster,
    group,
    of_group,
    of_groups,
    response_of,
    shown,
    topics,
    whole,
    with_operations,
    without,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KreplicaError,
    OperationNotAttempted,
    ShareSessionNotFound,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.message import replace, structure_of
from kreplica.common.messages.data import InitProducerIdRequest
from kreplica.common.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kreplica.common.messages.share_groups import ShareFetchRequest
from kreplica.common.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kreplica.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from kreplica.share.share_session import INITIAL_EPOCH

# The types of a coordinator's key, and the first version of AddPartitionsToTxn that only brokers send.
TRANSACTION_KEY, SHARE_KEY = 1, 2
ADD_PARTITIONS_OF_BROKERS = 4

# ---- groups ------------------------------------------------------------------------------------------------


def find_coordinator(client: ClientRights, request: FindCoordinatorRequest) -> Verdict:
    """FindCoordinator (10)."""

    def may(key: str) -> bool:
        if request.key_type == TRANSACTION_KEY:
            return client.transactional_id(DESCRIBE, key)
        if request.key_type == SHARE_KEY:
            return client.cluster(CLUSTER_ACTION)
        return client.group(DESCRIBE, key)

    errors: dict[int, type[KreplicaError]] = {
        TRANSACTION_KEY: TransactionalIdAuthorizationFailed,
        SHARE_KEY: ClusterAuthorizationFailed,
    }
    error = errors.get(request.key_type, GroupAuthorizationFailed)
    refused = [key for key in request.coordinator_keys if not may(key)]
    kind = structure_of(FindCoordinatorResponse, "coordinators")
    refusals: list[Coordinator] = [
        blank(kind, key=key, error_code=ErrorCode(error.code), error_message=str(error())) for key in refused
    ]
    return without(request, "coordinator_keys", refused, "coordinators", refusals)


def list_groups(client: ClientRights, request: Any) -> Verdict:
    """ListGroups (16): who may describe the cluster sees all groups."""
    if client.sees(DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return Verdict(request)
    return shown("groups", _visible_group)(client, request)


def _visible_group(client: ClientRights, _: Any, listed: Any) -> Any:
    return listed if client.sees(DESCRIBE, ResourceType.GROUP, listed.group_id) else None


def _subscribed(client: ClientRights, request: Any) -> bool:
    return all(client.topic(DESCRIBE, name) for name in request.subscribed_topic_names or ())


# ConsumerGroupHeartbeat (68), ShareGroupHeartbeat (76).
group_heartbeat = all_of(of_group(READ), whole(_subscribed, TopicAuthorizationFailed))


def _topology(client: ClientRights, request: Any) -> bool:
    if request.topology is None:
        return True
    return all(client.topic(DESCRIBE, name) for name in _topics_of(request.topology.subtopologies))


def _topics_of(subtopologies: Iterable[Any]) -> Iterator[str]:
    for each in subtopologies:
        yield from each.source_topics
        yield from each.repartition_sink_topics
        for topic in (*each.state_changelog_topics, *each.repartition_source_topics):
            yield topic.name


# StreamsGroupHeartbeat (88). Its handler asks who may create the internal topics.
streams_heartbeat = all_of(of_group(READ), whole(_topology, TopicAuthorizationFailed))


def _with_visible_members(client: ClientRights, _: Any, described: Any) -> Any:
    """Without its members, if the client may not describe a topic that they have."""
    if described.error_code or all(map(client.sees_topic, set(_topics_described(described)))):
        return described
    error = TopicAuthorizationFailed()
    return replace(described, error_code=ErrorCode(error.code), error_message=str(error), members=())


def _topics_described(described: Any) -> Iterator[str]:
    topology = getattr(described, "topology", None)
    if topology is not None:
        yield from _topics_of(topology.subtopologies or ())
    for member in described.members:
        yield from getattr(member, "subscribed_topic_names", ())
        for field in ("assignment", "target_assignment"):
            assignment = getattr(member, field, None)
            for topic in getattr(assignment, "topic_partitions", ()):
                yield topic.topic_name


# ConsumerGroupDescribe (69), ShareGroupDescribe (77), StreamsGroupDescribe (89).
describe_groups = all_of(
    of_groups(DESCRIBE, "group_ids", "groups"),
    shown("groups", _with_visible_members),
    shown("groups", with_operations(ResourceType.GROUP, "group_id")),
)


# ---- offsets -----------------------------------------------------------------------------------------------


def offsets_of_groups(client: ClientRights, request: Any) -> Verdict:
    """OffsetFetch (9), DescribeShareGroupOffsets (90): about several groups, and all topics or some."""
    kind = structure_of(response_of(request), "groups")
    topic_kind = structure_of(kind, "topics")
    refused = [asked for asked in request.groups if not client.group(DESCRIBE, asked.group_id)]
    refusals = [refused_element(kind, asked, GroupAuthorizationFailed()) for asked in refused]
    verdict = without(request, "groups", refused, "groups", refusals)
    if verdict.request is None:
        return verdict
    left, hidden = [], {}
    for asked in verdict.request.groups:
        if asked.topics is None:
            left.append(asked)
            continue
        denied = [each for each in asked.topics if not _may_describe(client, each)]
        hidden[asked.group_id] = [
            refused_element(topic_kind, each, TopicAuthorizationFailed()) for each in denied
        ]
        left.append(replace(asked, topics=tuple(each for each in asked.topics if each not in denied)))

    def finish(response: Any) -> Any:
        groups = tuple(_with_visible_topics(client, hidden, found) for found in response.groups)
        response = replace(response, groups=groups)
        return response if verdict.finish is None else verdict.finish(response)

    return Verdict(replace(verdict.request, groups=tuple(left)), finish)


def _may_describe(client: ClientRights, asked: Any) -> bool:
    name = client.name_of(asked)
    return name is None or client.topic(DESCRIBE, name)


def _with_visible_topics(client: ClientRights, hidden: dict[str, list[Any]], found: Any) -> Any:
    if found.group_id in hidden:
        return replace(found, topics=(*found.topics, *hidden[found.group_id]))
    return replace(found, topics=tuple(each for each in found.topics if _sees(client, each)))


def _sees(client: ClientRights, answered: Any) -> bool:
    name = client.name_of(answered)
    return name is not None and client.sees_topic(name)


# ---- share groups ------------------------------------------------------------------------------------------


def share_fetch(client: ClientRights, request: ShareFetchRequest) -> Verdict:
    """ShareFetch (78), ShareAcknowledge (79). A session is allowed by the rules that it was opened under."""
    verdict = all_of(of_group(READ), topics(READ, "topics", "responses"))(client, request)
    key = (request.group_id or "", request.member_id or "")
    if request.share_session_epoch != INITIAL_EPOCH:
        session = client.share_sessions.get(key)
        if verdict.request is not None and session is not None and session.holder != client.holder:
            return Verdict(None, answer=refused_whole(request, ShareSessionNotFound()))
        return verdict

    def finish(response: Any) -> Any:
        session = client.share_sessions.get(key)
        if session is not None:
            session.holder = client.holder
        return response if verdict.finish is None else verdict.finish(response)

    return verdict if verdict.request is None else Verdict(verdict.request, finish)


# ---- transactions ------------------------------------------------------------------------------------------


def init_producer_id(client: ClientRights, request: InitProducerIdRequest) -> Verdict:
    """InitProducerId (22)."""
    name = request.transactional_id
    if name is not None and not client.transactional_id(WRITE, name):
        return Verdict(None, answer=refused_whole(request, TransactionalIdAuthorizationFailed()))
    if name is None and not client.may_write_idempotently():
        return Verdict(None, answer=refused_whole(request, ClusterAuthorizationFailed()))
    return Verdict(request)


def add_partitions_to_txn(client: ClientRights, request: AddPartitionsToTxnRequest) -> Verdict:
    """AddPartitionsToTxn (24): of a client for one transaction, and of a broker for several."""
    if client.api_version >= ADD_PARTITIONS_OF_BROKERS:
        return whole(cluster(CLUSTER_ACTION), ClusterAuthorizationFailed)(client, request)
    (transaction,) = request.transactions
    named = [asked.name for asked in transaction.topics]
    denied: dict[str, KreplicaError]
    if not client.transactional_id(WRITE, transaction.transactional_id):
        # Also without topics: the request would begin a transaction.
        denied = dict.fromkeys(named, TransactionalIdAuthorizationFailed())
        return Verdict(None, answer=_not_added(transaction, denied))
    denied = {name: TopicAuthorizationFailed() for name in named if not client.topic(WRITE, name)}
    return Verdict(None, answer=_not_added(transaction, denied)) if denied else Verdict(request)


def _not_added(
    transaction: AddPartitionsToTxnTransaction, denied: dict[str, KreplicaError]
) -> AddPartitionsToTxnResponse:
    """Refuse a transaction's topics. The others are not added, either."""
    results = []
    for asked in transaction.topics:
        code = ErrorCode(denied.get(asked.name, OperationNotAttempted()).code)
        parts = tuple(
            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
            for number in asked.partitions
        )
        results.append(AddPartitionsToTxnTopicResult(name=asked.name, results_by_partition=parts))
    result = AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id, topic_results=tuple(results)
    )
    made: AddPartitionsToTxnResponse = blank(AddPartitionsToTxnResponse, results_by_transaction=(result,))
    return made


def write_txn_markers(client: ClientRights, request: WriteTxnMarkersRequest) -> Verdict:
    """WriteTxnMarkers (27)."""
    if client.sees(CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME) or client.cluster(AclOperation.ALTER):
        return Verdict(request)
    code = ErrorCode(ClusterAuthorizationFailed.code)
    markers = tuple(
        WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=tuple(
                WritableTxnMarkerTopicResult(
                    name=asked.name,
                    partitions=tuple(
                        WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)
                        for number in asked.partition_indexes
                    ),
                )
                for asked in marker.topics
            ),
        )
        for marker in request.markers
    )
    return Verdict(None, answer=blank(WriteTxnMarkersResponse, markers=markers))


def described_transaction(client: ClientRights, _: Any, state: Any) -> Any:
    """Leave out the topics that the client may not describe."""
    return replace(state, topics=tuple(each for each in state.topics if client.sees_topic(each.topic)))


def listed_transaction(client: ClientRights, _: Any, state: Any) -> Any:
    return state if client.sees(DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id) else None


def of_transaction(*rows: Row) -> Row:
    """The row of a request about one transaction, which may need more."""
    return all_of(whole(_may_write, TransactionalIdAuthorizationFailed), *rows)


def _may_write(client: ClientRights, request: Any) -> bool:
    return client.transactional_id(WRITE, request.transactional_id)


def _commit(client: ClientRights, request: Any) -> Verdict:
    """Refuse every topic if the transaction or the group is not the client's."""
    error: KreplicaError | None = None
    if not client.transactional_id(WRITE, request.transactional_id):
        error = TransactionalIdAuthorizationFailed()
    elif not group(READ)(client, request):
        error = GroupAuthorizationFailed()
    return Verdict(request) if error is None else refuse_topics(request, error)


def _commit_of_group(client: ClientRights, request: Any) -> Verdict:
    if group(READ)(client, request):
        return Verdict(request)
    return refuse_topics(request, GroupAuthorizationFailed())


def refuse_topics(request: Any, error: KreplicaError) -> Verdict:
    """Return the verdict on a request whose topics are all refused."""
    kind = structure_of(response_of(request), "topics")
    refused = tuple(refused_element(kind, asked, error) for asked in request.topics)
    return Verdict(None, answer=blank(response_of(request), topics=refused))


txn_offset_commit = all_of(_commit, topics(READ))
offset_commit = all_of(_commit_of_group, topics(READ))
