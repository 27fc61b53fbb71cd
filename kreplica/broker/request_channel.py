"""RequestChannel: converts between the bytes of a connection and a node's handlers.

A frame becomes a request in the version that its handler takes. The handler's answer goes back in the
requested version, as buffers that refer to the records of a log. ApiVersions is answered here, since it is
about the versions themselves. A failure that Kafka's protocol cannot express fails the future, and the
connection is to be closed: an unreadable request, an unknown API or version, or a handler that fails.
Requests for the active controller are sent to it in an envelope, and the controller's node opens it here.

Keeps no state and holds no lock; any thread may call. The memory of a frame lives as long as the records of
its request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kreplica._core.server_connection import LaneGate, PendingAnswer, ServerConnection
from kreplica.broker.api_versions import (
    API_RANGES,
    API_VERSIONS,
    DESCRIBE_QUORUM,
    ENVELOPE,
    FETCH,
    FORWARDED,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SHARE_FETCH,
    SHARE_STATE,
    WRITE_TXN_MARKERS,
    ApiVersionRange,
    Scope,
    request_type,
    response_type,
)
from kreplica.broker.forwarding_manager import ForwardingManager, client_of, envelope_refused
from kreplica.broker.message_conversion import TopicIds, downgrade, upgrade
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KreplicaError,
    NotController,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from kreplica.common.future import Future, failed, resolved, then
from kreplica.common.message import Message, replace, schema_of
from kreplica.common.message_reader import MessageReader
from kreplica.common.message_writer import NO_TAGS, MessageWriter
from kreplica.common.messages.controllers import EnvelopeRequest, EnvelopeResponse
from kreplica.common.messages.data import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.feature_control import SUPPORTED_FEATURES
from kreplica.raft.raft_messages import METADATA_TOPIC_ID
from kreplica.security.peer import Peer

if TYPE_CHECKING:
    from kreplica._core.fetch_lane import FetchLane
    from kreplica._core.produce_lane import ProduceLane
    from kreplica.broker.client_quotas import ClientQuotas, RequestQuota

Handle = Callable[[Any, RequestContext], Future[Any]]
# The buffers of an answer's frame; None if the request gets no answer.
Answer = list[Any] | None
# Takes an answer, or the error that makes an answer impossible.
Answered = Callable[[Answer, BaseException | None], object]


def _is_fetch_of_node(request: Any) -> bool:
    """Return whether a replica fetches, or the fetch is of the metadata log, which clients never do."""
    if request.replica_state.replica_id >= 0:
        return True
    return any(topic.topic_id == METADATA_TOPIC_ID for topic in request.topics)


def _names_replica(request: Any) -> bool:
    return bool(request.replica_id >= 0)


# What nodes send to each other as clients of coordinators. No quota applies.
UNLIMITED = frozenset({WRITE_TXN_MARKERS, *SHARE_STATE})
MILLISECOND = timedelta(milliseconds=1)

# The first version of ApiVersions that can describe a feature from level 0 on.
API_VERSIONS_FROM_ZERO = 4

OF_NODES: Mapping[int, Callable[[Any], bool]] = {
    FETCH: _is_fetch_of_node,
    LIST_OFFSETS: _names_replica,
    OFFSET_FOR_LEADER_EPOCH: _names_replica,
}


class Lanes(Protocol):
    """Where the native lanes of requests are found; Node implements it."""

    @property
    def produce_lane(self) -> ProduceLane | None: ...

    @property
    def fetch_lane(self) -> FetchLane | None: ...

    @property
    def rules(self) -> object: ...


class Cancellable(Protocol):
    def cancel(self) -> bool: ...


class Features(Protocol):
    """Knows the cluster's feature levels; Node implements it."""

    def finalized_features(self) -> tuple[int, Mapping[str, int]]: ...


class RequestHeader(NamedTuple):
    """The header of a request, the same in versions 1 and 2."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class RequestChannel:
    """One listener's channel. `handle` answers requests of the versions in `ranges`; `topics` knows topic
    ids.

    Without `forwarding` every request is handled here. APIs outside of the listener's `scope` close the
    connection, as in Kafka, and are not in its ApiVersions. On a listener for clients only, requests of
    replicas close the connection too. `lanes`: take requests that need no decision, before any is read here;
    `gate` leads to them. `may_act_as_node(peer)`: whether a client may forward requests of others. `quotas`:
    limit what the clients of connections may use; a client over its quota has its throttle time in the
    answer, and its connection is muted.
    """

    def __init__(
        self,
        handle: Handle,
        topics: TopicIds,
        ranges: Mapping[int, ApiVersionRange] = API_RANGES,
        forwarding: ForwardingManager | None = None,
        scope: Scope = Scope.ALL,
        lanes: Lanes | None = None,
        features: Features | None = None,
        may_act_as_node: Callable[[Peer], bool] = lambda _: True,
        quotas: ClientQuotas | None = None,
    ) -> None:
        self._handle = handle
        self._may_act_as_node = may_act_as_node
        self._features = features
        self._topics = topics
        self._ranges = {key: each for key, each in ranges.items() if each.scope & scope}
        # The requests that only nodes may send as replicas.
        self._is_of_node = OF_NODES if scope == Scope.CLIENTS else {}
        self._forwarding = forwarding
        self.gate: LaneGate | None = None
        if lanes is not None:
            self.gate = LaneGate(
                lanes, produces=PRODUCE in self._ranges, fetches=FETCH not in self._is_of_node
            )
        self._quotas = quotas
        if quotas is not None and self.gate is not None:
            quotas.watch(self.gate.limit)

    def reads(self, api_key: int, version: int) -> bool:
        """Return whether this listener reads requests of that API and version."""
        known = self._ranges.get(api_key)
        return known is not None and known.reads(version)

    def receive(self, frame: memoryview, peer: Peer) -> Future[Answer]:
        """Do the same as `serve` and return a future, which fails with the error."""
        answer: Future[Answer] = Future()
        self.serve(frame, peer, partial(_resolve, answer))
        return answer

    def serve(
        self, frame: memoryview, peer: Peer, answered: Answered, connection: object = None
    ) -> Cancellable | None:
        """Call `answered` with the answer to one frame, which is passed without its size.

        `peer`, `connection`: see RequestContext. The error is InvalidRequest, UnsupportedVersion, or the
        handler's; this method never raises. It makes no future, which saves time for small requests. Returns
        the work in progress, to be cancelled when the client is gone, or None.
        """
        try:
            taken: Cancellable | None = None
            if self.gate is not None:
                taken = self.gate.take(frame, answered, connection)
        except Exception as error:
            answered(None, error)
            return None
        return self.serve_declined(frame, peer, answered, connection) if taken is None else taken

    def serve_declined(
        self, frame: memoryview, peer: Peer, answered: Answered, connection: object = None
    ) -> Cancellable | None:
        """Do the same for a frame that the `gate` has declined."""
        try:
            return self._serve(MessageReader(frame), frame, peer, answered, connection)
        except Exception as error:
            # A handler's failure also ends the client's request. The owner of the connection logs it.
            answered(None, error)
            return None

    def _serve(
        self,
        reader: MessageReader,
        frame: memoryview,
        peer: Peer,
        answered: Answered,
        connection: object,
    ) -> Future[Any] | None:
        quotas = self._quotas
        began_ns = 0 if quotas is None or quotas.limits is None else quotas.now_ns()
        api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        known = self._ranges.get(api_key)
        if known is None:
            raise UnsupportedVersion(f"this listener does not answer API key {api_key}")
        if not known.reads(version):
            if api_key == API_VERSIONS:
                # Any client understands version 0, which lists the supported versions (KIP-511).
                # The client may know no other version.
                answered(answer_frame(correlation_id, self._refused_versions(known), 0), None)
                return None
            raise UnsupportedVersion(f"API key {api_key} is not supported in version {version}")
        header, request = _read_request(reader, known, version, correlation_id)
        if not began_ns or connection is None:
            return self._dispatch(header, request, frame, peer, answered, connection, None)
        dispatch = partial(self._dispatch, header, request, frame, peer, answered, connection)
        assert quotas is not None
        if not self._is_limited(api_key, request):
            done = dispatch(None)
            quotas.note_exempt(quotas.now_ns() - began_ns)
            return done
        client_id = header.client_id or ""
        quota = quotas.begin(peer, client_id, len(frame), began_ns)
        if quota is not None and isinstance(connection, ServerConnection):
            connection.set_account(quota.client.limits, client_id.encode(), quota.client.account)
        return dispatch(quota)

    def _is_limited(self, api_key: int, request: Any) -> bool:
        """Return whether quotas apply to the request: not to what nodes send to each other."""
        if api_key in UNLIMITED or not self._ranges[api_key].scope & Scope.CLIENTS:
            return False
        return api_key != FETCH or not _is_fetch_of_node(request)

    def _dispatch(
        self,
        header: RequestHeader,
        request: Any,
        frame: memoryview,
        peer: Peer,
        answered: Answered,
        connection: object,
        quota: RequestQuota | None,
    ) -> Future[Any] | None:
        api_key = header.api_key
        if api_key == API_VERSIONS:
            self._answer(header, None, answered, quota, resolved(self._versions(header.api_version)))
            return None
        if api_key == ENVELOPE and self._forwarding is not None:
            opened = self.open_envelope(request, peer)
            opened.add_done_callback(partial(self._answer, header, None, answered, None))
            return opened
        if api_key not in FORWARDED or self._forwarding is None:
            return self._answer_by_handler(header, request, peer, answered, connection, quota)
        handle = partial(self._answer_by_handler, header, request, peer, answered, connection, quota)
        forward = partial(self._forward, header, frame, peer, answered, handle, quota)
        if self._forwarding.is_here:
            return handle(forward)
        done = forward()
        if quota is not None:
            quota.pause()
        return done

    def _forward(
        self,
        header: RequestHeader,
        frame: memoryview,
        peer: Peer,
        answered: Answered,
        handle: Callable[[], object],
        quota: RequestQuota | None,
    ) -> Future[Any]:
        assert self._forwarding is not None
        done = self._forwarding.forward(frame, peer)
        throttle_at = _throttle_position(header)
        done.add_done_callback(partial(_pass_back, answered, handle, quota, throttle_at))
        return done

    def _answer_by_handler(
        self,
        header: RequestHeader,
        request: Any,
        peer: Peer,
        answered: Answered,
        connection: object = None,
        quota: RequestQuota | None = None,
        retry: Callable[[], object] | None = None,
    ) -> Future[Any]:
        """Answer by this node's handler; call `retry` if this is not, or no longer, the active controller."""
        remembered = None
        if header.api_version != request.__version__:
            request, remembered = upgrade(request, header.api_version, self._topics)
        is_of_node = self._is_of_node.get(header.api_key)
        if is_of_node is not None and is_of_node(request):
            raise InvalidRequest(
                f"{type(request).__name__} of a replica came to a listener for clients: use the listener for"
                " brokers"
            )
        context = RequestContext(header.api_version, header.client_id or "", peer, connection, quota=quota)
        if retry is not None:
            context = context._replace(is_retried=True)
        made = self._handle(request, context)
        answer = partial(self._answer, header, remembered, answered, quota)
        made.add_done_callback(answer if retry is None else partial(_answer_or_retry, answer, retry))
        if quota is not None:
            quota.pause()
        return made

    def open_envelope(self, request: EnvelopeRequest, sender: Peer) -> Future[EnvelopeResponse]:
        """Handle a request that another node, `sender`, forwarded in an envelope.

        The future fails with InvalidRequest if no node would send such an envelope, or as a handler does.
        """
        if not self._may_act_as_node(sender):
            return resolved(envelope_refused(ClusterAuthorizationFailed()))
        if self._forwarding is None or not self._forwarding.is_here:
            return resolved(envelope_refused(NotController()))
        frame = memoryview(request.request_data)
        if len(frame) < 2 or int.from_bytes(frame[:2], "big") not in FORWARDED:
            return failed(InvalidRequest("the envelope contains a request that is never forwarded"))
        try:
            peer = client_of(request)
        except PrincipalDeserializationFailure as error:
            return resolved(envelope_refused(error))
        except InvalidRequest as error:
            return failed(error)
        return then(self._receive_forwarded(frame, peer), _envelope_answer, _envelope_refusal)

    def _receive_forwarded(self, frame: memoryview, peer: Peer) -> Future[Answer]:
        """Answer a forwarded request here. The future fails with NotController if another node has to."""
        answer: Future[Answer] = Future()
        answered = partial(_resolve, answer)
        try:
            reader = MessageReader(frame)
            api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
            known = self._ranges.get(api_key)
            if known is None or not known.reads(version):
                raise UnsupportedVersion(f"API key {api_key} is not supported in version {version}")
            header, request = _read_request(reader, known, version, correlation_id)
            refuse = partial(answered, None, NotController("another node is the active controller"))
            self._answer_by_handler(header, request, peer, answered, retry=refuse)
        except Exception as error:
            answered(None, error)
        return answer

    def _answer(
        self,
        header: RequestHeader,
        remembered: Any,
        answered: Answered,
        quota: RequestQuota | None,
        done: Future[Any],
    ) -> None:
        try:
            response = done.result()
            if quota is not None:
                response = _charged(header, response, quota)
            buffers = None if response is None else self._write(header, response, remembered)
        except BaseException as error:
            # This includes values that the answer's fields cannot hold. No other answer is possible then.
            answered(None, error)
            return
        if quota is not None:
            quota.note_time()
            _mute(answered, quota)
        answered(buffers, None)

    def _write(self, header: RequestHeader, response: Any, remembered: Any) -> list[Any]:
        is_asked = response.__version__ == header.api_version
        asked = response if is_asked else downgrade(response, header.api_version, remembered)
        if asked.__api_key__ != header.api_key:
            raise InvalidRequest(f"{type(response).__name__} is not an answer to API key {header.api_key}")
        return answer_frame(header.correlation_id, asked, header.api_version)

    # ---- ApiVersions --------------------------------------------------------------------------------------

    def _versions(self, version: int) -> ApiVersionsResponse:
        epoch, levels = (-1, {}) if self._features is None else self._features.finalized_features()
        # Clients before version 4 cannot read a feature whose lowest level is 0.
        supported = [
            each
            for each in (() if self._features is None else SUPPORTED_FEATURES)
            if version >= API_VERSIONS_FROM_ZERO or each.min_supported_version > 0
        ]
        return ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=each.api_key, min_version=each.min_version, max_version=each.max_version)
                for each in sorted(self._ranges.values())
            ),
            throttle_time=NO_THROTTLE,
            supported_features=tuple(
                SupportedFeatureKey(
                    name=each.name,
                    min_version=each.min_supported_version,
                    max_version=each.max_supported_version,
                )
                for each in supported
            ),
            finalized_features_epoch=epoch,
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(levels.items())
            ),
        )

    def _refused_versions(self, known: ApiVersionRange) -> ApiVersionsResponse:
        version = ApiVersion(
            api_key=known.api_key, min_version=known.min_version, max_version=known.max_version
        )
        return ApiVersionsResponse(
            error_code=ErrorCode.unsupported_version, api_keys=(version,), throttle_time=NO_THROTTLE
        )


def _read_request(
    reader: MessageReader, known: ApiVersionRange, version: int, correlation_id: int
) -> tuple[RequestHeader, Any]:
    """Read the rest of a frame's header, and its request, in the version that handlers take."""
    kind: type[Message] = request_type(known.api_key, known.handled)
    schema = schema_of(kind, version)
    client_id = client_id_of(reader, schema.is_flexible)
    # Bytes after the request are ignored, as by Kafka: librdkafka 2.16 leaves three after a Metadata for all.
    return RequestHeader(known.api_key, version, correlation_id, client_id), reader.read(schema)


def _answer_or_retry(
    answer: Callable[[Future[Any]], None], retry: Callable[[], object], done: Future[Any]
) -> None:
    if not done.cancelled() and isinstance(done.exception(), NotController):
        retry()
    else:
        answer(done)


# ---- quotas ----------------------------------------------------------------------------------------------

# In an answer without its size: behind the correlation id; then come the unknown fields of a flexible header.
AFTER_CORRELATION_ID = 4


def _throttle_position(header: RequestHeader) -> int | None:
    """Return where an answer of the controller, without its size, has its throttle time; None: nowhere."""
    if header.api_key == DESCRIBE_QUORUM:
        return None
    kind: type[Message] = response_type(header.api_key, header.api_version)
    schema = schema_of(kind, header.api_version)
    return AFTER_CORRELATION_ID + schema.is_flexible


def _charged(header: RequestHeader, response: Any, quota: RequestQuota) -> Any:
    """Charge a request that is done; return its answer with the throttle time."""
    quota.resume()
    if header.api_key == PRODUCE:
        quota.charge_produced()
    elif header.api_key == SHARE_FETCH:
        # The records have been acquired, so they are sent in any case.
        quota.charge_fetched(_shared_bytes(response))
    if response is None:
        # With acks=0 only the bytes count.
        return None
    quota.charge_time()
    found = getattr(response, "throttle_time", None)
    if found is None:
        return response
    # A handler may have found that another quota is exceeded. The larger time counts.
    quota.throttle_ms = max(quota.throttle_ms, found // MILLISECOND)
    if not quota.throttle_ms:
        return response
    return replace(response, throttle_time=timedelta(milliseconds=quota.throttle_ms))


def _shared_bytes(response: Any) -> int:
    return sum(
        0 if part.records is None else len(part.records)
        for topic in response.responses
        for part in topic.partitions
    )


def _mute(answered: Answered, quota: RequestQuota) -> None:
    if quota.throttle_ms and isinstance(answered, PendingAnswer):
        answered.throttle_ms = quota.throttle_ms


def _envelope_answer(answer: Answer) -> EnvelopeResponse:
    # Without the frame's size, which the forwarding node writes again.
    return EnvelopeResponse(response_data=b"".join(answer or ())[4:], error_code=ErrorCode.none)


def _envelope_refusal(error: BaseException) -> EnvelopeResponse:
    if isinstance(error, KreplicaError):
        return envelope_refused(error)
    raise error


_THROTTLE = struct.Struct(">i")


def _resolve(future: Future[Answer], answer: Answer, error: BaseException | None) -> None:
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _pass_back(
    answered: Answered,
    handle: Callable[[], object],
    quota: RequestQuota | None,
    throttle_at: int | None,
    done: Future[bytes],
) -> None:
    """Send the controller's answer to the client, or this node's own answer if no controller answered.

    Its throttle time is the controller's or that of the client's quota here, whichever is larger.
    """
    error = CancelledError() if done.cancelled() else done.exception()
    if error is None:
        data = done.result()
        if quota is not None:
            data = _throttled(data, quota, throttle_at)
            _mute(answered, quota)
        answered([len(data).to_bytes(4, "big"), data], None)
        return
    if isinstance(error, NotController):
        try:
            handle()
        except Exception as refused:
            error = refused
        else:
            return
    answered(None, error)


def _throttled(data: bytes, quota: RequestQuota, at: int | None) -> bytes:
    quota.resume()
    quota.charge_time()
    if at is None or len(data) < at + 4:
        return data
    (given_ms,) = _THROTTLE.unpack_from(data, at)
    quota.throttle_ms = max(quota.throttle_ms, given_ms)
    return data[:at] + _THROTTLE.pack(quota.throttle_ms) + data[at + 4 :]


def client_id_of(reader: MessageReader, is_flexible: bool) -> str | None:
    """Read the rest of a request's header; return the client id."""
    # In version 2 too, its length has the format of version 1.
    size = reader.int16()
    client_id = None if size == -1 else reader.text(size)
    if is_flexible:
        reader.skip_tags()
    return client_id


def answer_frame(correlation_id: int, response: Any, version: int) -> list[Any]:
    """Return the buffers of the frame with a response in this version."""
    schema = schema_of(response.__class__, version)
    into = MessageWriter()
    into.int32(correlation_id)
    # A client that asks for ApiVersions does not know the header's version yet (KIP-511).
    if schema.is_flexible and response.__api_key__ != API_VERSIONS:
        into.raw(NO_TAGS)
    into.write(schema, response)
    return into.buffers()
