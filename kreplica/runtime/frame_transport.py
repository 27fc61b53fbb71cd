"""FrameTransport: the Transport port over anything that carries bytes between two nodes.

The program supplies a function that takes a frame to a node, and calls `receive` with each frame that
arrives: over a pipe, a socket, a queue. This class numbers the requests, writes and reads Kafka's messages,
and fails requests whose answer does not come in time.

A frame has a head of 9 bytes, big-endian: its kind (int8), the number of the request (int32) and the sender's
node id (int32). In a request and a response the size of the rest follows (int32); then Kafka's request header
and body, or the response's API key (int16), version (int16) and body. In a failure a text in UTF-8 follows.

Ownership: it owns a thread for timeouts, and one for each node that it sends to. Thread rule: any thread may
call anything; `_lock` guards all state, and nothing is called under it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from kreplica.broker.api_versions import request_type, response_type
from kreplica.common.encoded_request import message_of
from kreplica.common.errors import InvalidRequest, NetworkException, NodeUnreachable, UnsupportedVersion
from kreplica.common.future import Future, failed
from kreplica.common.locks import Lock
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import MessageWriter, request_frame, write_message
from kreplica.common.ports import Cancellable
from kreplica.runtime.scheduler import ThreadScheduler

SendFrame = Callable[[int, bytes], object]
Handle = Callable[[Any], Future[Any]]

HEAD = Struct(">bii")
# Behind the head and the size of the rest.
MESSAGE_AT = HEAD.size + 4
REQUEST, RESPONSE, NO_RESPONSE, FAILURE = range(4)
CLIENT = b"kreplica"
# Numbers of requests are int32.
NUMBERS = 1 << 31

LOGGER = logging.getLogger(__name__)


class _Call(NamedTuple):
    """A request that waits for its answer."""

    node_id: int
    future: Future[Any]
    timer: Cancellable


class FrameTransport:
    """Carries the requests of node `node_id` in frames; implements `kreplica.common.ports.Transport`.

    `send_frame(node_id, frame)` takes a frame to another node. It may block, and is called by one thread for
    each node; frames for one node must arrive in order, or not at all. If it raises, the connection to that
    node counts as closed. Close the transport when the node is closed.
    """

    def __init__(self, node_id: int, send_frame: SendFrame) -> None:
        self.node_id = node_id
        self._send_frame = send_frame
        self._timeouts = ThreadScheduler()
        self._timeouts.start()
        self._lock = Lock()
        # Guarded by _lock:
        self._handle: Handle | None = None
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._senders: dict[int, ThreadPoolExecutor] = {}
        self._listeners: list[Callable[[int], object]] = []
        self._is_closed = False

    def serve(self, handle: Handle) -> None:
        """Let `handle(request)` answer the requests of other nodes; it returns a future of the response."""
        with self._lock:
            self._handle = handle

    def close(self) -> None:
        """Stop the threads. Pending requests fail with NetworkException, later ones with NodeUnreachable."""
        with self._lock:
            self._is_closed = True
            senders, calls = list(self._senders.values()), list(self._calls)
        for number in calls:
            self._fail(number, NetworkException(f"the transport of node {self.node_id} was closed"))
        for sender in senders:
            sender.shutdown(wait=False, cancel_futures=True)
        self._timeouts.shutdown()

    # ---- the Transport port -------------------------------------------------------------------------------

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request`; the future gets the response entity.

        It fails with NetworkException after `timeout_ms` or when the connection closes, and with
        InvalidRequest for a request whose fields cannot be written.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                return failed(NodeUnreachable(f"the transport of node {self.node_id} is closed"))
            number = self._number = (self._number + 1) % NUMBERS
        try:
            body = b"".join(request_frame(message_of(request), number, CLIENT))
        except Exception as error:
            # Invalid fields concern only this caller.
            return failed(error)
        late = NetworkException(f"no answer from node {node_id} within {timeout_ms} ms")
        expire = partial(self._fail, number, late)
        with self._lock:
            timer = self._timeouts.schedule("request timeout", expire, timeout_ms)
            self._calls[number] = _Call(node_id, future, timer)
        self._post(node_id, REQUEST, number, body)
        return future

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when `connection_closed(node_id)` is called."""
        with self._lock:
            self._listeners.append(listener)

    # ---- what the program reports -------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        """Take a frame that another node's `send_frame` was given.

        A request is handled in this thread. Raises InvalidRequest for a frame that cannot be read; then close
        the connection it came by.
        """
        if len(frame) < HEAD.size:
            raise InvalidRequest(f"a frame of {len(frame)} bytes is shorter than its head of {HEAD.size}")
        kind, number, sender = HEAD.unpack_from(frame)
        if kind == REQUEST:
            self._serve(sender, number, _request_of(frame))
        elif kind == RESPONSE:
            self._end(number, _response_of(frame))
        elif kind == NO_RESPONSE:
            self._end(number, None)
        elif kind == FAILURE:
            self._fail(number, NetworkException(bytes(frame[HEAD.size :]).decode(errors="replace")))
        else:
            raise InvalidRequest(f"a frame of unknown kind {kind}")

    def connection_closed(self, node_id: int) -> None:
        """Fail every pending request to the node with NetworkException, and notify the listeners."""
        with self._lock:
            numbers = [number for number, call in self._calls.items() if call.node_id == node_id]
            listeners = list(self._listeners)
        for number in numbers:
            self._fail(number, NetworkException(f"the connection to node {node_id} broke"))
        for listener in listeners:
            listener(node_id)

    # ---- the inside ---------------------------------------------------------------------------------------

    def _serve(self, sender: int, number: int, request: Any) -> None:
        handle = self._handle
        if handle is None:
            self._post(sender, FAILURE, number, f"node {self.node_id} serves nothing yet".encode())
            return
        try:
            answer = handle(request)
        except Exception as error:
            answer = failed(error)
        answer.add_done_callback(partial(self._answer, sender, number))

    def _answer(self, node_id: int, number: int, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is not None:
            LOGGER.error("node %d failed to answer a request", self.node_id, exc_info=error)
            self._post(node_id, FAILURE, number, f"node {self.node_id} failed: {error!r}".encode())
        elif answer.result() is None:
            self._post(node_id, NO_RESPONSE, number, b"")
        else:
            self._post(node_id, RESPONSE, number, _bytes_of(answer.result()))

    def _post(self, node_id: int, kind: int, number: int, body: bytes) -> None:
        with self._lock:
            if self._is_closed:
                return
            sender = self._senders.get(node_id)
            if sender is None:
                name = f"kreplica-frames-{self.node_id}-{node_id}"
                sender = self._senders[node_id] = ThreadPoolExecutor(1, name)
            sender.submit(self._send_one, node_id, HEAD.pack(kind, number, self.node_id) + body)

    def _send_one(self, node_id: int, frame: bytes) -> None:
        try:
            self._send_frame(node_id, frame)
        except Exception as error:
            LOGGER.warning("node %d cannot send to node %d: %r", self.node_id, node_id, error)
            self.connection_closed(node_id)

    def _end(self, number: int, response: Any) -> None:
        call = self._taken(number)
        if call is not None:
            call.future.set_result(response)

    def _fail(self, number: int, error: NetworkException) -> None:
        call = self._taken(number)
        if call is not None:
            call.future.set_exception(error)

    def _taken(self, number: int) -> _Call | None:
        # An answer may come after its timeout.
        with self._lock:
            call = self._calls.pop(number, None)
        if call is not None:
            call.timer.cancel()
        return call


def _bytes_of(response: Any) -> bytes:
    into = MessageWriter()
    into.int16(response.__api_key__)
    into.int16(response.__version__)
    write_message(response, into)
    return b"".join(into.buffers())


def _reader(frame: bytes) -> MessageReader:
    if len(frame) < MESSAGE_AT:
        raise InvalidRequest(f"a frame of {len(frame)} bytes has no message, which begins at {MESSAGE_AT}")
    return MessageReader(frame, MESSAGE_AT)


def _request_of(frame: bytes) -> Any:
    reader = _reader(frame)
    kind = _known(request_type, reader.int16(), reader.int16())
    reader.int32()  # the number, which is in the frame's head too
    reader.text(reader.int16())
    if kind.__flexible__:
        reader.skip_tags()
    return read_message(kind, reader)


def _response_of(frame: bytes) -> Any:
    reader = _reader(frame)
    return read_message(_known(response_type, reader.int16(), reader.int16()), reader)


def _known(schema: Callable[[int, int], type[Any]], api_key: int, version: int) -> type[Any]:
    try:
        return schema(api_key, version)
    except UnsupportedVersion:
        raise InvalidRequest(f"Kafka has no API of key {api_key} in version {version}") from None
