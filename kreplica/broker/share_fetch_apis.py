"""The requests of a share group's members to partition leaders: ShareFetch and ShareAcknowledge (KIP-932).

A handler checks the request as a whole, then its session, then each partition. The acknowledgements of a
ShareFetch are made first; a fetch that brought some is not held for records once they are stored, so that
they are answered soon. No state of its own; any thread may call, and all work is done in the manager's loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.broker.auto_topic_creation_manager import AutoTopicCreationManager
from kreplica.broker.kafka_apis import LONGEST_WAIT_MS
from kreplica.broker.kraft_metadata_cache import KRaftMetadataCache
from kreplica.broker.node_config import NodePorts
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    InvalidShareSessionEpoch,
    KreplicaError,
    NotLeaderOrFollower,
    ShareSessionLimitReached,
    UnsupportedVersion,
)
from kreplica.common.future import Future, after, pass_on, resolved, then
from kreplica.common.messages.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kreplica.common.messages.share_groups import AcknowledgementBatch as AskedBatch
from kreplica.common.messages.share_groups import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareLeaderIdAndEpoch,
    ShareNodeEndpoint,
)
from kreplica.common.metrics import MetricRegistry
from kreplica.common.share_state import Persister, SharePartitionKey
from kreplica.common.types import ACKS_ALL, TopicPartition
from kreplica.common.wire import NO_THROTTLE, error_of, topic_id_of, uuid_of
from kreplica.controller.feature_control import SHARE_VERSION
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_settings import GroupConfigManager
from kreplica.metadata.registrations import NOWHERE
from kreplica.replica.replica_manager import ReplicaManager
from kreplica.share.dead_letters import ENABLE, DeadLetterTopics
from kreplica.share.delayed_share_fetch import FetchAnswer, ShareFetchParams, SharePartitionData
from kreplica.share.share_config import ShareGroupConfig, config_of
from kreplica.share.share_partition import GAP, REJECT, RENEW, AcknowledgementBatch
from kreplica.share.share_partition_manager import AcknowledgeAnswer, SharePartitionManager
from kreplica.share.share_session import FINAL_EPOCH, INITIAL_EPOCH, ShareSession

MILLISECOND = timedelta(milliseconds=1)
LONGEST_MEMBER_ID = 36
# The first version with renewals.
RENEWALS = 2
EXACT_MODE = 1
# How long a dead letter may take to reach all in-sync replicas.
LETTER_TIMEOUT_MS = 10_000
NO_LEADER = ShareLeaderIdAndEpoch(leader_id=0, leader_epoch=0)
# A partition with one of these errors names its leader.
MOVED = (NotLeaderOrFollower, FencedLeaderEpoch)

Errors = dict[SharePartitionKey, KreplicaError]
Batches = dict[SharePartitionKey, Sequence[AcknowledgementBatch]]


class ShareFetchApis:
    """The handlers of one broker. `handlers`: by type of request, in the context of its client."""

    def __init__(self, manager: SharePartitionManager, cache: KRaftMetadataCache) -> None:
        self.manager = manager
        self._cache = cache
        self._fetches = manager.metrics.meter("BrokerTopicMetrics", "TotalShareFetchRequestsPerSec")
        self._acknowledges = manager.metrics.meter(
            "BrokerTopicMetrics", "TotalShareAcknowledgementRequestsPerSec"
        )
        # Whether a request of a member has come.
        self._is_used = False
        self.handlers: dict[type[Any], Callable[[Any, RequestContext], Future[Any]]] = {
            ShareFetchRequest: self.handle_share_fetch,
            ShareAcknowledgeRequest: self.handle_share_acknowledge,
        }

    # ---- ShareFetch ---------------------------------------------------------------------------------------

    def handle_share_fetch(
        self, request: ShareFetchRequest, context: RequestContext
    ) -> Future[ShareFetchResponse]:
        """Handle ShareFetch (78): acknowledge records, and acquire others or wait for them.

        Errors of the whole request: UnsupportedVersion without the feature, InvalidRequest,
        ShareSessionLimitReached after the request's wait, ShareSessionNotFound, InvalidShareSessionEpoch.
        """
        return self._in_loop(lambda: self._fetch(request, context), _fetch_refused)

    def _fetch(self, request: ShareFetchRequest, context: RequestContext) -> Future[ShareFetchResponse]:
        self._fetches.mark()
        group_id, member_id = self._check_member(request)
        renews = context.api_version >= RENEWALS and request.is_renew_ack
        max_wait_ms = min(request.max_wait // MILLISECOND, LONGEST_WAIT_MS)
        if renews and (request.max_bytes or request.min_bytes or request.max_records or max_wait_ms):
            raise InvalidRequest(
                "a fetch that renews locks gets no records: MaxBytes, MinBytes, MaxRecords and MaxWaitMs"
                " must be 0"
            )
        epoch = request.share_session_epoch
        batches, errors = self._acknowledgements(request.topics, group_id, renews)
        if epoch == INITIAL_EPOCH and (batches or errors):
            raise InvalidRequest("the request opens a share session: nothing can be acknowledged in it")
        try:
            session = self.manager.session_of_fetch(group_id, member_id, epoch, context.connection)
        except ShareSessionLimitReached as error:
            refused = _fetch_refused(error)
            return then(self.manager.wait(max_wait_ms), lambda _: refused)
        named = [
            SharePartitionKey(group_id, topic_id_of(topic.topic_id), each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        ]
        forgotten = [
            SharePartitionKey(group_id, topic_id_of(topic.topic_id), each)
            for topic in request.forgotten_topics_data
            for each in topic.partitions
        ]
        session.update(named, forgotten)
        params = ShareFetchParams(
            group_id,
            member_id,
            max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            0 if renews else request.max_records,
            request.batch_size,
            context.api_version >= RENEWALS and request.share_acquire_mode == EXACT_MODE,
        )
        fetched = partial(self._fetched, group_id, context.peer.listener)
        return self._fetch_in(session, params, batches, errors, fetched, is_final=epoch == FINAL_EPOCH)

    def _fetch_in(
        self,
        session: ShareSession,
        params: ShareFetchParams,
        batches: Batches,
        errors: Errors,
        fetched: Callable[[FetchAnswer, AcknowledgeAnswer], ShareFetchResponse],
        *,
        is_final: bool,
    ) -> Future[ShareFetchResponse]:
        manager = self.manager
        acknowledged = manager.acknowledge(params.member_id, batches)
        if is_final:
            # What the member has not acknowledged is free when its acknowledgements are stored.
            acknowledged.add_done_callback(
                lambda _: manager.loop.post(lambda: manager.close_session(session))
            )
            return then(acknowledged, lambda found: fetched({}, {**found, **errors}))
        fetch = manager.fetch(params, session)
        if not batches and not errors:
            return then(fetch.future, lambda found: fetched(found, {}))
        acknowledged.add_done_callback(
            lambda _: manager.loop.post(lambda: manager.try_fetch(fetch, is_last=True))
        )
        return after(
            acknowledged,
            lambda found: then(fetch.future, lambda data: fetched(data, {**found, **errors})),
        )

    def _fetched(
        self, group_id: str, listener: str, found: FetchAnswer, acknowledged: AcknowledgeAnswer
    ) -> ShareFetchResponse:
        topics: dict[uuid.UUID, list[ShareFetchPartitionData]] = {}
        moved: list[SharePartitionKey] = []
        for key in dict.fromkeys([*acknowledged, *found]):
            data, error = found.get(key, NOTHING), acknowledged.get(key)
            if isinstance(data.error, MOVED) or isinstance(error, MOVED):
                moved.append(key)
            topics.setdefault(uuid_of(key.topic_id), []).append(
                ShareFetchPartitionData(
                    partition_index=key.partition,
                    error_code=_code(data.error),
                    error_message=_text(data.error),
                    acknowledge_error_code=_code(error),
                    acknowledge_error_message=_text(error),
                    current_leader=self._leader(key) if moved and moved[-1] is key else NO_LEADER,
                    records=data.records,
                    acquired_records=tuple(
                        AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                        for first, last, count in data.acquired
                    ),
                )
            )
        return ShareFetchResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            acquisition_lock_timeout=self._lock_duration(group_id),
            responses=tuple(
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
            node_endpoints=self._endpoints(moved, listener),
        )

    # ---- ShareAcknowledge ---------------------------------------------------------------------------------

    def handle_share_acknowledge(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> Future[ShareAcknowledgeResponse]:
        """Handle ShareAcknowledge (79). It is answered when the changes are stored.

        Errors of the whole request: UnsupportedVersion without the feature, InvalidRequest,
        ShareSessionNotFound, InvalidShareSessionEpoch.
        """
        return self._in_loop(lambda: self._acknowledge(request, context), _acknowledge_refused)

    def _acknowledge(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> Future[ShareAcknowledgeResponse]:
        self._acknowledges.mark()
        group_id, member_id = self._check_member(request)
        manager, epoch = self.manager, request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch("a ShareAcknowledge opens no share session: epoch 0")
        session = manager.sessions.use(group_id, member_id, epoch)
        renews = context.api_version >= RENEWALS and request.is_renew_ack
        batches, errors = self._acknowledgements(request.topics, group_id, renews)
        acknowledged = manager.acknowledge(member_id, batches)
        if epoch == FINAL_EPOCH:
            acknowledged.add_done_callback(
                lambda _: manager.loop.post(lambda: manager.close_session(session))
            )
        listener = context.peer.listener
        return then(acknowledged, lambda found: self._acknowledged(group_id, listener, {**found, **errors}))

    def _acknowledged(
        self, group_id: str, listener: str, found: AcknowledgeAnswer
    ) -> ShareAcknowledgeResponse:
        topics: dict[uuid.UUID, list[ShareAcknowledgePartitionData]] = {}
        for key, error in found.items():
            topics.setdefault(uuid_of(key.topic_id), []).append(
                ShareAcknowledgePartitionData(
                    partition_index=key.partition,
                    error_code=_code(error),
                    error_message=_text(error),
                    current_leader=self._leader(key) if isinstance(error, MOVED) else NO_LEADER,
                )
            )
        return ShareAcknowledgeResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            acquisition_lock_timeout=self._lock_duration(group_id),
            responses=tuple(
                ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
            node_endpoints=self._endpoints(
                (key for key, error in found.items() if isinstance(error, MOVED)), listener
            ),
        )

    def client_gone(self, connection: object) -> None:
        """Close the sessions of a connection that is closed."""
        if self._is_used:
            self.manager.loop.post(partial(self.manager.connection_closed, connection))

    # ---- both ---------------------------------------------------------------------------------------------

    def _in_loop(
        self, work: Callable[[], Future[Any]], refuse: Callable[[KreplicaError], Any]
    ) -> Future[Any]:
        """Do the work in the manager's loop; an error that it raises is one of the whole request."""
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                done = work()
            except KreplicaError as error:
                done = resolved(refuse(error))
            except Exception as error:
                answer.set_exception(error)
                return
            done.add_done_callback(partial(pass_on, answer))

        self._is_used = True
        self.manager.loop.post(run)
        return answer

    def _check_member(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> tuple[str, str]:
        if not self._cache.metadata.features.get(SHARE_VERSION):
            raise UnsupportedVersion("the cluster's feature share.version is not enabled")
        if request.group_id is None:
            raise InvalidRequest("the request names no group")
        if not request.member_id or len(request.member_id) > LONGEST_MEMBER_ID:
            raise InvalidRequest(
                f"member id {request.member_id!r}: it has 1 to {LONGEST_MEMBER_ID} characters"
            )
        return request.group_id, request.member_id

    def _acknowledgements(self, topics: Iterable[Any], group_id: str, renews: bool) -> tuple[Batches, Errors]:
        """Return the acknowledgements of a request by partition, and the errors of malformed ones."""
        asked: dict[SharePartitionKey, list[AskedBatch]] = {}
        for topic in topics:
            topic_id = topic_id_of(topic.topic_id)
            for each in topic.partitions:
                if each.acknowledgement_batches:
                    key = SharePartitionKey(group_id, topic_id, each.partition_index)
                    # A partition may come several times; its answer is for all of them.
                    asked.setdefault(key, []).extend(each.acknowledgement_batches)
        batches: Batches = {}
        errors: Errors = {}
        for key, each in asked.items():
            try:
                batches[key] = checked_batches(each, renews=renews)
            except InvalidRequest as error:
                errors[key] = error
        return batches, errors

    def _lock_duration(self, group_id: str) -> timedelta:
        return timedelta(milliseconds=self.manager.lock_duration_ms(group_id))

    def _leader(self, key: SharePartitionKey) -> ShareLeaderIdAndEpoch:
        state = self._state(key)
        if state is None:
            return NO_LEADER
        return ShareLeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)

    def _state(self, key: SharePartitionKey) -> Any:
        name = self._cache.topic_name(key.topic_id)
        return None if name is None else self._cache.metadata.partition(TopicPartition(name, key.partition))

    def _endpoints(self, moved: Iterable[SharePartitionKey], listener: str) -> tuple[ShareNodeEndpoint, ...]:
        leaders = {state.leader for key in moved if (state := self._state(key)) is not None}
        brokers = self._cache.metadata.brokers
        return tuple(
            ShareNodeEndpoint(node_id=node_id, host=address[0], port=address[1], rack=broker.rack)
            for node_id in sorted(leaders)
            if (broker := brokers.get(node_id)) is not None and not broker.fenced
            if (address := broker.address(listener)) is not None and address != NOWHERE
        )


NOTHING = SharePartitionData()


def checked_batches(asked: Sequence[AskedBatch], *, renews: bool) -> list[AcknowledgementBatch]:
    """Return the batches of one partition.

    Raises InvalidRequest if one ends before it begins, overlaps another or is out of order, has no types, or
    as many as no other number of records, or a type that is unknown or not allowed here.
    """
    batches = []
    end = -1
    most = RENEW if renews else REJECT
    for each in asked:
        first, last, types = each.first_offset, each.last_offset, each.acknowledge_types
        where = f"acknowledgement of {first}-{last}"
        if first > last:
            raise InvalidRequest(f"{where}: it ends before it begins")
        if first <= end:
            raise InvalidRequest(f"{where}: it overlaps the one before, which ends at {end}")
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"{where}: {len(types)} types; one is needed, or one for each record")
        if min(types) < GAP or max(types) > most:
            raise InvalidRequest(f"{where}: a type is not in {GAP} to {most}")
        batches.append(AcknowledgementBatch(first, last, types))
        end = last
    return batches


class ShareGroupConfigs:
    """The settings of share groups, by group, as of the present metadata. Thread rule: the manager's loop."""

    def __init__(self, broker: GroupConfig, cache: KRaftMetadataCache) -> None:
        self._cache = cache
        self._values = GroupConfigManager(broker, lambda: cache.metadata)
        self._metadata: object = None
        self._known: dict[str, ShareGroupConfig] = {}

    def __call__(self, group_id: str) -> ShareGroupConfig:
        """Return the settings of a group."""
        if self._metadata is not self._cache.metadata:
            self._metadata = self._cache.metadata
            self._known.clear()
        found = self._known.get(group_id)
        if found is None:
            found = self._known[group_id] = config_of(self._values, group_id)
        return found


def make_shares(
    broker_id: int,
    config: GroupConfig,
    ports: NodePorts,
    *,
    replicas: ReplicaManager,
    persister: Persister,
    cache: KRaftMetadataCache,
    creation: AutoTopicCreationManager,
    metrics: MetricRegistry,
) -> ShareFetchApis:
    """Return the handlers for the share partitions that a broker leads."""

    def append(leader: int, at: TopicPartition, batch: bytes) -> Future[Any]:
        if leader == broker_id:
            return replicas.appends.append(at, batch, timeout_ms=LETTER_TIMEOUT_MS)
        data = PartitionProduceData(index=at.partition, records=batch)
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout=timedelta(milliseconds=LETTER_TIMEOUT_MS),
            topic_data=(TopicProduceData(name=at.topic, partition_data=(data,)),),
        )
        return then(ports.transport.send(leader, request, timeout_ms=2 * LETTER_TIMEOUT_MS), _appended)

    def create(topic: str) -> None:
        creation.create([topic], {ENABLE: "true"})

    topics = DeadLetterTopics(
        lambda: cache.metadata,
        append,
        create if config.errors_deadletterqueue_auto_create_topics_enable else None,
        config.errors_deadletterqueue_topic_name_prefix,
    )
    manager = SharePartitionManager(
        replicas.partitions,
        persister,
        clock=ports.clock,
        loop=ports.loop("share-partitions"),
        max_sessions=config.group_share_max_share_sessions,
        config_of=ShareGroupConfigs(config, cache),
        topic_name=cache.topic_name,
        letter_topics=topics,
        metrics=metrics,
    )
    return ShareFetchApis(manager, cache)


def _appended(response: ProduceResponse) -> None:
    (topic,) = response.responses
    (part,) = topic.partition_responses
    error = error_of(part.error_code, part.error_message)
    if error is not None:
        raise error


def _code(error: KreplicaError | None) -> ErrorCode:
    return ErrorCode.none if error is None else ErrorCode(error.code)


def _text(error: KreplicaError | None) -> str | None:
    return None if error is None else str(error)


def _fetch_refused(error: KreplicaError) -> ShareFetchResponse:
    return ShareFetchResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error.code),
        error_message=str(error),
        acquisition_lock_timeout=NO_THROTTLE,
        responses=(),
        node_endpoints=(),
    )


def _acknowledge_refused(error: KreplicaError) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error.code),
        error_message=str(error),
        responses=(),
        node_endpoints=(),
    )
