"""EncodedRequest: a request that knows its own bytes, so that a transport of frames makes no message objects.

Thread rule: one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kreplica.common.message import RESPONSES, at, in_version, schema_of
from kreplica.common.message_reader import NUMBER_BYTES, MessageReader, read_message
from kreplica.common.message_writer import NO_TAGS, MessageWriter, request_frame, write_message

# The size field before a frame.
SIZE_BYTES = 4
# In a request: its API key, version and number.
REQUEST_HEAD_BYTES = 8


if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica.common.message import Message


class EncodedRequest:
    """A request for `Transport.send` that is written, and whose response is read, without a message object.

    `kind`: the class of the message. A transport that passes objects sends `message()`, and the caller gets
    the response as a message; so it handles both. A subclass overrides all methods. (An ABC would cost each
    request the calls of its isinstance.)
    """

    __slots__ = ()

    kind: type[Any]

    def message(self) -> Any:
        """Return the request as a message."""
        raise NotImplementedError

    def frame(self, number: int, client_id: bytes) -> Buffer:
        """Return the request with its header, preceded by the size of both."""
        raise NotImplementedError

    def read(self, frame: memoryview) -> Any:
        """Return the answer in a response's frame, which begins with the request's number.

        Raises InvalidRequest for a response that cannot be read.
        """
        raise NotImplementedError

    def read_buffers(self, buffers: list[Any]) -> Any:
        """Return the answer in a response's frame that is in `buffers`, with its size in front.

        Used where nothing comes between writer and reader, so that records need not be copied. Raises
        InvalidRequest.
        """
        return self.read(joined(buffers))


class VersionedRequest(EncodedRequest):
    """A request in another version than the newest one, where the version decides what the request means."""

    __slots__ = ("_request", "kind")

    def __init__(self, request: Message, version: int) -> None:
        self._request = request
        self.kind = at(type(request), version)

    def message(self) -> Any:
        """Return the request as a message, which has lost its version."""
        return self._request

    def frame(self, number: int, client_id: bytes) -> Buffer:
        """Return the request with its header; see EncodedRequest."""
        return b"".join(request_frame(in_version(self._request, self.kind.__version__), number, client_id))

    def read(self, frame: memoryview) -> Any:
        """Return the answer in the frame, with the defaults of the fields that its version lacks."""
        reader = MessageReader(frame, NUMBER_BYTES)
        if self.kind.__flexible__:
            reader.skip_tags()
        return reader.read(schema_of(RESPONSES[self.kind.__api_key__], self.kind.__version__))


def joined(buffers: list[Any]) -> memoryview:
    """Return the frame in the buffers, without its size."""
    return memoryview(b"".join(buffers))[SIZE_BYTES:]


def message_of(request: Any) -> Any:
    """Return the request as a message."""
    return request.message() if isinstance(request, EncodedRequest) else request


def message_in(kind: type[Message], frame: Buffer) -> Any:
    """Return the message in the frame, without its size, of a request with a flexible version."""
    reader = MessageReader(frame, REQUEST_HEAD_BYTES)
    reader.text(reader.int16())  # the client id
    reader.skip_tags()
    return read_message(kind, reader)


def as_answered(request: EncodedRequest, response: Any) -> Any:
    """Return what the sender of the request makes of the frame of this response."""
    if response.__version__ != request.kind.__version__:
        response = in_version(response, request.kind.__version__)
    into = MessageWriter()
    into.int32(0)
    into.raw(NO_TAGS)
    write_message(response, into)
    return request.read(memoryview(b"".join(into.buffers()))[SIZE_BYTES:])
