"""Blocking connections to brokers, for requests that stock clients do not send.

They ask for supported versions first, so they work with any Kafka-compatible broker that has the request.
Each length in an answer is checked, and no answer may exceed MAX_RESPONSE_BYTES.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from kreplica.broker.api_versions import request_type, response_type
from kreplica.cli import client_config
from kreplica.cli.client_config import ClientConfig
from kreplica.common.closing import Closing
from kreplica.common.errors import InvalidRequest, NetworkException, UnsupportedVersion
from kreplica.common.message import in_version
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.data import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of
from kreplica.security.client_login import log_in

TIMEOUT_S = 15.0
MAX_RESPONSE_BYTES = 64 << 20
CLIENT_ID = b"kreplica-cli"
REMEDY = "is a broker running there? --bootstrap or a profile names the addresses"
# Versions of Metadata that name topics and include the cluster's id.
METADATA_VERSIONS = range(4, 8)


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Parse `host:port,...`. Raises ValueError."""
    found = []
    for each in text.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{each.strip()!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return found


@contextmanager
def any_broker(bootstrap: str) -> Iterator[KafkaConnection]:
    """Connect to the first address that answers. Raises NetworkException, ValueError."""
    failed = []
    for host, port in parse_bootstrap(bootstrap):
        try:
            connection = KafkaConnection(host, port)
        except OSError as error:
            failed.append(f"{host}:{port}: {error.strerror or error}")
            continue
        with connection:
            yield connection
        return
    raise NetworkException(f"{'; '.join(failed)} ({REMEDY})")


class KafkaConnection(Closing):
    """A blocking connection to one broker.

    `security`: whether to encrypt and to log in; None: as `--command-config` says. Raises OSError if the
    connection is refused, SaslAuthenticationFailed, NetworkException.
    """

    def __init__(self, host: str, port: int, security: ClientConfig | None = None) -> None:
        self._name = f"{host}:{port}"
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._number = 0
        self._ranges: dict[int, tuple[int, int]] = {}
        _, login, tls = security or client_config.chosen()
        if tls is not None:
            # A failed handshake closes the socket, and is an OSError.
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        if login is not None:
            try:
                log_in(login.ready().result().steps(random.SystemRandom()), self.ask)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def newest(self, api_key: int, versions: Sequence[int]) -> type[Any]:
        """Return the class of the newest version of a request that is in `versions` and that the broker
        supports.

        Raises UnsupportedVersion.
        """
        if not self._ranges:
            answer = self.ask(
                ApiVersionsRequest(client_software_name="kreplica", client_software_version="1")
            )
            self._ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        low, high = self._ranges.get(api_key, (0, -1))
        for version in sorted(versions, reverse=True):
            if low <= version <= high:
                return request_type(api_key, version)
        raise UnsupportedVersion(f"{self._name} supports no version of API {api_key} that this program knows")

    def ask(self, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a request and return the answer. Raises NetworkException, InvalidRequest."""
        self._number += 1
        self._socket.settimeout(timeout_s)
        kind = response_type(request.__api_key__, request.__version__)
        try:
            self._send(request)
            frame = self._receive(int.from_bytes(self._receive(4), "big"))
        except OSError as error:
            raise NetworkException(f"{self._name}: {error}") from error
        reader = MessageReader(memoryview(frame))
        if reader.int32() != self._number:
            raise InvalidRequest(f"{self._name} sent an answer that does not fit the request")
        # ApiVersions is answered with the old header, since the client may know no other yet.
        if kind.__flexible__ and kind.__api_key__ != ApiVersionsRequest.__api_key__:
            reader.skip_tags()
        return read_message(kind, reader)

    def ask_newest(self, request: Any, versions: Sequence[int]) -> Any:
        """Send the request in the newest of these versions that the broker supports, and return the answer.

        Raises UnsupportedVersion, NetworkException, InvalidRequest.
        """
        version = self.newest(request.__api_key__, versions).__version__
        return self.ask(in_version(request, version))

    def _send(self, request: Any) -> None:
        self._socket.sendall(b"".join(request_frame(request, self._number, CLIENT_ID)))

    def _receive(self, size: int) -> bytes:
        if size > MAX_RESPONSE_BYTES:
            raise InvalidRequest(f"{self._name} announces an answer of {size} bytes: is it a Kafka broker?")
        parts = []
        while size:
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise NetworkException(
                    f"{self._name} closed the connection: does it ask for encryption or a login, which a file"
                    " for --command-config describes?"
                )
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Brokers(Closing):
    """Connections to the brokers of a cluster, made when they are first needed."""

    def __init__(self, bootstrap: str) -> None:
        self._held = ExitStack()
        self._connections: dict[int, KafkaConnection] = {}
        self._seed = self._held.enter_context(any_broker(bootstrap))
        self._addresses: dict[int, tuple[str, int]] = {}
        self.bootstrap = bootstrap
        self.cluster_id = ""
        # The controller, or for KRaft any live broker, which passes requests on to it.
        self.controller = -1

    def close(self) -> None:
        """Close all connections."""
        self._held.close()

    def leaders_of(self, topic: str | None) -> dict[TopicPartition, int]:
        """Return the leader of each partition of the topic, or of all topics; -1 for no leader.

        Raises UnknownTopicOrPartition.
        """
        return {at: each.leader_id for at, each in self.partitions_of(topic).items()}

    def partitions_of(self, topic: str | None) -> dict[TopicPartition, Any]:
        """Return the partitions of the topic, or of all topics, as Metadata describes them.

        Raises UnknownTopicOrPartition.
        """
        topics = None
        if topic is not None:
            topics = (MetadataRequestTopic(name=topic),)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = self._seed.ask_newest(request, METADATA_VERSIONS)
        self.cluster_id = answer.cluster_id or "without id"
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        self.controller = answer.controller_id
        partitions = {}
        for found in answer.topics:
            error = error_of(found.error_code)
            if error is not None and topic is not None:
                raise type(error)(f"topic {topic}: {error}")
            for each in found.partitions:
                partitions[TopicPartition(found.name, each.partition_index)] = each
        return partitions

    def ask(self, node_id: int, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a request to that broker and return the answer. Raises NetworkException, UnsupportedVersion,
        InvalidRequest."""
        connection = self._connected(node_id)
        try:
            connection.newest(request.__api_key__, (request.__version__,))
            return connection.ask(request, timeout_s)
        except NetworkException:
            # A late answer would be taken for that of the next request.
            del self._connections[node_id]
            raise

    def ask_newest(
        self, node_id: int, request: Any, versions: Sequence[int], timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Send the request in the newest of these versions that the broker supports. Raises as `ask`."""
        version = self.newest(node_id, request.__api_key__, versions)
        return self.ask(node_id, in_version(request, version), timeout_s)

    def _connected(self, node_id: int) -> KafkaConnection:
        connection = self._connections.get(node_id)
        if connection is None:
            address = self._addresses.get(node_id)
            if address is None:
                raise NetworkException(f"broker {node_id} is not among the cluster's live brokers")
            try:
                connection = KafkaConnection(*address)
            except OSError as error:
                raise NetworkException(f"broker {node_id} at {address[0]}:{address[1]}: {error}") from error
            self._connections[node_id] = self._held.enter_context(connection)
        return connection

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """The addresses of all live brokers, once the partitions have been asked for."""
        return dict(self._addresses)

    @property
    def seed(self) -> KafkaConnection:
        """The connection to one of the bootstrap servers."""
        return self._seed

    @property
    def brokers(self) -> list[int]:
        """The ids of all live brokers, once the partitions have been asked for."""
        return sorted(self._addresses)

    def newest(self, node_id: int, api_key: int, versions: Sequence[int]) -> int:
        """Return the newest of these versions that the broker supports. Raises as `ask`."""
        return int(self._connected(node_id).newest(api_key, versions).__version__)


def check(result: Any) -> None:
    """Raise the error of an answer, or of one of its results, if it has one."""
    error = error_of(result.error_code, result.error_message)
    if error is not None:
        raise error
