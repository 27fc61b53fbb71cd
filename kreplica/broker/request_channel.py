"""RequestChannel: between the bytes of a connection and a node's handlers.

A frame becomes a request of kio, in the version that its handler takes; the handler's answer goes back in
the version that was asked, as buffers that refer to the records of a log. ApiVersions is answered here, since
it is about the versions themselves. Whatever cannot be answered in Kafka's protocol fails the future, and the
connection is to be closed: a request that cannot be read, an API or a version that is not there, a handler
that fails. What the active controller does goes there in an envelope, and comes out of one there.

Keeps no state and holds no lock; any thread may call. A frame's memory is held by whoever holds the records
of its request.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from kio.schema.api_versions.v0.response import ApiVersion as OldApiVersion
from kio.schema.api_versions.v0.response import ApiVersionsResponse as OldApiVersionsResponse
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode

from kreplica.broker.api_versions import (
    API_RANGES,
    API_VERSIONS,
    ENVELOPE,
    FORWARDED,
    ApiVersionRange,
)
from kreplica.broker.forwarding_manager import ForwardingManager, envelope_refused, unpacked
from kreplica.broker.message_conversion import TopicIds, downgrade, read_type, upgrade
from kreplica.broker.request_context import RequestContext
from kreplica.common.errors import InvalidRequest, KreplicaError, NotController, UnsupportedVersion
from kreplica.common.future import Future, failed, resolved
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import NO_TAGS, MessageWriter, write_message

Handle = Callable[[Any, RequestContext], Future[Any]]
# The buffers of an answer's frame; None where there is none to give.
Answer = list[Any] | None
# Takes an answer, or the error for which there can be none.
Answered = Callable[[Answer, BaseException | None], object]

NO_THROTTLE = timedelta(0)


class RequestHeader(NamedTuple):
    """What stands before a request, in versions 1 and 2 alike."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class RequestChannel:
    """See the module. `handle` answers requests of the versions that `ranges` names; `topics` knows ids.

    Without `forwarding` every request is handled here.
    """

    def __init__(
        self,
        handle: Handle,
        topics: TopicIds,
        ranges: Mapping[int, ApiVersionRange] = API_RANGES,
        forwarding: ForwardingManager | None = None,
    ) -> None:
        self._handle = handle
        self._topics = topics
        self._ranges = ranges
        self._forwarding = forwarding

    def receive(self, frame: memoryview, client_host: str) -> Future[Answer]:
        """The same as `serve` as a future; it fails with the error."""
        answer: Future[Answer] = Future()
        self.serve(frame, client_host, partial(_resolve, answer))
        return answer

    def serve(self, frame: memoryview, client_host: str, answered: Answered) -> None:
        """Let `answered` have the answer to one frame, which is given without its size.

        `client_host`: the client's address, after a slash. The error is InvalidRequest, UnsupportedVersion,
        or the handler's; never raises. No future is made for it, which counts with small requests.
        """
        try:
            self._serve(MessageReader(frame), frame, client_host, answered)
        except Exception as error:
            # A handler's own failure is its client's too: whoever holds the connection tells of it.
            answered(None, error)

    def _serve(self, reader: MessageReader, frame: memoryview, client_host: str, answered: Answered) -> None:
        api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        known = self._ranges.get(api_key)
        if known is None:
            raise UnsupportedVersion(f"no API of key {api_key}")
        if not known.reads(version):
            if api_key == API_VERSIONS:
                # Any client understands version 0, and finds there which to use instead (KIP-511).
                answered(_frame(api_key, correlation_id, self._refused_versions(known)), None)
                return
            raise UnsupportedVersion(f"version {version} of API {api_key}")
        kind = read_type(api_key, version, known.handled)
        header = RequestHeader(api_key, version, correlation_id, _client_id(reader, kind))
        # Bytes behind it are passed over, as by Kafka: librdkafka 2.16 leaves three after a Metadata for all.
        request = read_message(kind, reader)
        if api_key == API_VERSIONS:
            answered(self._write(header, self._versions(), None), None)
        elif api_key == ENVELOPE and self._forwarding is not None:
            opened = self.open_envelope(request)
            opened.add_done_callback(partial(self._answer, header, None, answered))
        elif api_key not in FORWARDED or self._forwarding is None or self._forwarding.is_here:
            self._answer_by_handler(header, request, known.handled, client_host, answered)
        else:
            handle = partial(self._answer_by_handler, header, request, known.handled, client_host, answered)
            done = self._forwarding.forward(frame, client_host)
            done.add_done_callback(partial(_pass_back, answered, handle))

    def _answer_by_handler(
        self, header: RequestHeader, request: Any, handled: int, client_host: str, answered: Answered
    ) -> None:
        remembered = None
        if request.__version__ != handled:
            request, remembered = upgrade(request, handled, self._topics)
        context = RequestContext(header.api_version, header.client_id or "", client_host)
        self._handle(request, context).add_done_callback(partial(self._answer, header, remembered, answered))

    def open_envelope(self, request: EnvelopeRequest) -> Future[EnvelopeResponse]:
        """The answer to a request that another node passed on. The future fails with InvalidRequest for an
        envelope that no node would send, or as a handler does."""
        if self._forwarding is None or not self._forwarding.is_here:
            return resolved(envelope_refused(NotController()))
        frame = memoryview(request.request_data)
        if len(frame) < 2 or int.from_bytes(frame[:2], "big") not in FORWARDED:
            return failed(InvalidRequest("an envelope around what no node forwards"))
        try:
            client_host = unpacked(request.client_host_address)
        except ValueError:
            return failed(InvalidRequest("a client's host that is no address"))
        answer: Future[EnvelopeResponse] = Future()
        self.receive(frame, client_host).add_done_callback(partial(_close_envelope, answer))
        return answer

    def _answer(self, header: RequestHeader, remembered: Any, answered: Answered, done: Future[Any]) -> None:
        try:
            response = done.result()
            buffers = None if response is None else self._write(header, response, remembered)
        except BaseException as error:
            # Also what the answer's fields cannot hold: there is no other answer to give then.
            answered(None, error)
        else:
            answered(buffers, None)

    def _write(self, header: RequestHeader, response: Any, remembered: Any) -> list[Any]:
        is_asked = response.__version__ == header.api_version
        asked = response if is_asked else downgrade(response, header.api_version, remembered)
        if asked.__api_key__ != header.api_key:
            raise InvalidRequest(f"{type(response).__name__} answers no request of API {header.api_key}")
        return _frame(header.api_key, header.correlation_id, asked)

    # ---- ApiVersions --------------------------------------------------------------------------------------

    def _versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=each.api_key, min_version=each.min_version, max_version=each.max_version)
                for each in sorted(self._ranges.values())
            ),
            throttle_time=NO_THROTTLE,
        )

    def _refused_versions(self, known: ApiVersionRange) -> OldApiVersionsResponse:
        version = OldApiVersion(
            api_key=known.api_key, min_version=known.min_version, max_version=known.max_version
        )
        return OldApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(version,))


def _close_envelope(answer: Future[EnvelopeResponse], done: Future[Answer]) -> None:
    error = done.exception()
    if error is None:
        # Without the frame's size, which whoever sends it on writes anew.
        data = b"".join(done.result() or ())[4:]
        answer.set_result(EnvelopeResponse(response_data=data, error_code=ErrorCode.none))
    elif isinstance(error, KreplicaError):
        answer.set_result(envelope_refused(error))
    else:
        answer.set_exception(error)


def _resolve(future: Future[Answer], answer: Answer, error: BaseException | None) -> None:
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _pass_back(answered: Answered, handle: Callable[[], None], done: Future[bytes]) -> None:
    """Give the client what the controller answered; if there is none, what this node says to that."""
    error = done.exception()
    if error is None:
        data = done.result()
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


def _client_id(reader: MessageReader, kind: type[Any]) -> str | None:
    # Also in version 2 it has the length of a version 1.
    size = reader.int16()
    client_id = None if size == -1 else reader.text(size)
    if kind.__flexible__:
        reader.skip_tags()
    return client_id


def _frame(api_key: int, correlation_id: int, response: Any) -> list[Any]:
    into = MessageWriter()
    into.int32(correlation_id)
    # A client that asks for ApiVersions does not know yet which header it will get (KIP-511).
    if response.__flexible__ and api_key != API_VERSIONS:
        into.raw(NO_TAGS)
    write_message(response, into)
    return into.buffers()
