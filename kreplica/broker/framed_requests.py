"""FramedRequests: lets requests that are objects take the way of those that come as bytes.

The nodes of the simulator exchange messages as objects. Their Produce and Fetch requests are encoded, take
the node's native lanes like the frame of a client or a follower, and their answers are decoded again. A
follower's fetch comes as a frame anyway. So the lanes run under every fault that the simulator knows.

Keeps no state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.broker.api_versions import response_type
from kreplica.broker.message_conversion import TopicIds
from kreplica.broker.request_channel import Answer, Handle, Lanes, RequestChannel
from kreplica.broker.request_context import RequestContext
from kreplica.common.encoded_request import joined
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import FetchRequest, ProduceRequest
from kreplica.raft.raft_messages import is_of_metadata_log
from kreplica.security.peer import THIS_PROCESS

CLIENT = b"framed"
SIZE_BYTES = 4


class FramedRequests:
    """Passes Produce and Fetch requests to the `lanes` as frames.

    `handle` answers those that are declined, and all other requests. `topics` knows topic ids.
    `handle_in_context`: answers, with the context that the frame shows, those that came as frames; None:
    `handle` does.
    """

    def __init__(
        self,
        handle: Callable[[Any], Future[Any]],
        lanes: Lanes,
        topics: TopicIds,
        handle_in_context: Handle | None = None,
    ) -> None:
        self._handle = handle
        self._handle_in_context = handle_in_context
        self._channel = RequestChannel(self._declined, topics, lanes=lanes)

    def handle(self, request: Any) -> Future[Any]:
        """Answer a request."""
        if type(request) is not ProduceRequest and not _is_of_partitions(request):
            return self._handle(request)
        frame = b"".join(request_frame(request, 0, CLIENT))[SIZE_BYTES:]
        kind = response_type(request.__api_key__, request.__version__)
        return self._serve(memoryview(frame), partial(_response, kind))

    def handle_frame(self, frame: memoryview) -> Future[Any]:
        """Answer a request's frame with the response's, both without their size."""
        return self._serve(frame, _joined)

    def _serve(self, frame: memoryview, read: Callable[[Answer], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._channel.serve(frame, THIS_PROCESS, partial(_resolve, answer, read))
        error = answer.exception() if answer.done() else None
        if error is not None and not isinstance(error, KreplicaError):
            # The channel would close a connection. Here the caller reports what failed unexpectedly.
            raise error
        return answer

    def _declined(self, request: Any, context: RequestContext) -> Future[Any]:
        if self._handle_in_context is None:
            return self._handle(request)
        return self._handle_in_context(request, context)


def _is_of_partitions(request: Any) -> bool:
    # No lane takes a fetch of the quorum.
    return type(request) is FetchRequest and not is_of_metadata_log(request)


def _resolve(
    answer: Future[Any], read: Callable[[Answer], Any], buffers: Answer, error: BaseException | None
) -> None:
    if error is not None:
        answer.set_exception(error)
        return
    try:
        made = read(buffers)
    except Exception as failure:
        answer.set_exception(failure)
    else:
        answer.set_result(made)


def _joined(buffers: Answer) -> memoryview | None:
    return None if buffers is None else joined(buffers)


def _response(kind: type[Any], buffers: list[Any] | None) -> Any:
    if buffers is None:
        return None
    reader = MessageReader(b"".join(buffers), SIZE_BYTES)
    reader.int32()  # the correlation id
    reader.skip_tags()
    return read_message(kind, reader)
