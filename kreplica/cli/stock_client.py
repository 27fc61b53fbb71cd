"""The stock Kafka client of the subcommands that talk to a cluster: librdkafka, by confluent-kafka.

It works with any Kafka-compatible cluster; nothing here depends on kreplica's nodes. Errors of the client
become our typed errors, which the command line prints as one line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kreplica.cli import client_config
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, KreplicaError, NetworkException
from kreplica.common.wire import error_of

# How long a command waits for the first answer of the cluster.
CONNECT_S = 5.0
# librdkafka reports unreachable addresses repeatedly; the command reports them once, at its end.
QUIET = logging.getLogger("kreplica.cli.stock_client")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def client_module() -> Any:
    """Return confluent_kafka. Raises InvalidConfig if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        text = "this command needs confluent-kafka, which is not installed: pip install 'kreplica[client]'"
        raise InvalidConfig(text) from error
    return confluent_kafka


def admin_module() -> Any:
    """Return confluent_kafka.admin. Raises InvalidConfig if it is not installed."""
    client_module()
    return import_module("confluent_kafka.admin")


def parse_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` pairs. Raises ValueError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"{pair!r} is not name=value")
        found[name.strip()] = value.strip()
    return found


def client_properties(
    bootstrap: str, own: Mapping[str, Any] | None = None, given: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return librdkafka's properties: those of the command, overridden by those of the user."""
    of_file = client_config.chosen().properties
    own_names = {"bootstrap.servers": bootstrap, "client.id": "kreplica-cli"}
    return {**own_names, **(own or {}), **of_file, **(given or {})}


def new_client(kind: str, properties: Mapping[str, Any]) -> Any:
    """Create a client of confluent_kafka; `kind` is Producer, Consumer or admin.AdminClient."""
    module = client_module()
    with errors():
        if kind == "AdminClient":
            return admin_module().AdminClient(dict(properties), logger=QUIET)
        return getattr(module, kind)(dict(properties), logger=QUIET)


@dataclass(frozen=True, slots=True)
class Connected:
    """A client that has reached its cluster, with the cluster's metadata from confluent_kafka."""

    client: Any
    metadata: Any
    bootstrap: str
    problems: Problems

    @property
    def cluster(self) -> str:
        """The cluster's name in messages."""
        return f"cluster {self.metadata.cluster_id or 'without id'} at {self.bootstrap}"


class Problems:
    """Keeps the last error that a client reported of its connections; serves as `error_cb`."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, error: Any) -> None:
        # Errors of single connections name an address and a cause; this summary does not.
        if error.code() != client_module().KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def __str__(self) -> str:
        if self._last is not None:
            return str(self._last.str())
        return (
            "connected, but got no answer: is this a listener for clients, and does it ask for encryption or"
            " a login, which a file for --command-config describes?"
        )


def connect(
    kind: str,
    bootstrap: str,
    own: Mapping[str, Any] | None = None,
    given: Mapping[str, str] | None = None,
    *,
    topic: str | None = None,
) -> Connected:
    """Create a client as `new_client` does, and request its cluster's metadata, of `topic` only if given.

    Raises NetworkException with the addresses and the cause if no broker answers within CONNECT_S, and
    InvalidConfig.
    """
    problems = Problems()
    properties = client_properties(bootstrap, own, given)
    client = new_client(kind, {"error_cb": problems, **properties})
    asked = () if topic is None else (topic,)
    try:
        metadata = client.list_topics(*asked, timeout=CONNECT_S)
    except client_module().KafkaException as error:
        client.poll(0)  # reports the errors of connections
        at = properties["bootstrap.servers"]
        text = f"no broker of {at} answered within {CONNECT_S:g} s: {problems}"
        if "Connection refused" in text:
            text += "; if no node runs there, name another one by -b or KREPLICA_BOOTSTRAP"
        raise NetworkException(text) from error
    return Connected(client, metadata, properties["bootstrap.servers"], problems)


@contextmanager
def errors() -> Iterator[None]:
    """Convert the client's errors to ours."""
    kafka_exception = client_module().KafkaException
    try:
        yield
    except kafka_exception as error:
        raise typed(error.args[0]) from error


def typed(error: Any) -> KreplicaError:
    """Return our error for a KafkaError: the class of Kafka's code, or what the client's own code means."""
    code, text = error.code(), error.str()
    of_server = error_of(code, text) if code > 0 else None
    if of_server is not None:
        return of_server
    kafka_error = client_module().KafkaError
    if code in (kafka_error._INVALID_ARG, kafka_error._CONFLICT):
        return InvalidConfig(text)
    return NetworkException(text)


def result(future: Any) -> Any:
    """Return the result of an admin request's future."""
    with errors():
        return future.result()


def each_result(futures: Mapping[str, Any], done: Callable[[str], object]) -> None:
    """Call `done(name)` for each request that succeeds, as results arrive; then raise the first error, if
    any."""
    first: KreplicaError | None = None
    for name, future in futures.items():
        try:
            result(future)
        except KreplicaError as error:
            first = first or type(error)(f"{name}: {error}")
        else:
            done(name)
    if first is not None:
        raise first
