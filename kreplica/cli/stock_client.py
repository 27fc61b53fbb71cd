"""The stock Kafka client of the subcommands that talk to a cluster: librdkafka, by confluent-kafka.

Any Kafka-compatible cluster will do, so nothing here knows kreplica's nodes. What the client reports becomes
one typed error of ours, which the command line prints as one line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kreplica.common.errors import InvalidConfig, KreplicaError, NetworkException
from kreplica.common.wire import error_of

# How long a command waits for the first answer of its cluster.
CONNECT_S = 5.0
# librdkafka reports each address it cannot reach, again and again; the command says it once, at its end.
QUIET = logging.getLogger("kreplica.cli.librdkafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def client_module() -> Any:
    """confluent_kafka. Raises InvalidConfig where it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        text = "this command needs confluent-kafka, which is not installed: pip install 'kreplica[client]'"
        raise InvalidConfig(text) from error
    return confluent_kafka


def admin_module() -> Any:
    """confluent_kafka.admin. Raises InvalidConfig where it is not installed."""
    client_module()
    return import_module("confluent_kafka.admin")


def parse_properties(pairs: Sequence[str]) -> dict[str, str]:
    """Properties from `name=value`. Raises ValueError."""
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
    """librdkafka's properties: those of the command, and above them those that the caller gave."""
    return {"bootstrap.servers": bootstrap, "client.id": "kreplica-cli", **(own or {}), **(given or {})}


def new_client(kind: str, properties: Mapping[str, Any]) -> Any:
    """A client of confluent_kafka: `kind` is Producer, Consumer or admin.AdminClient."""
    module = client_module()
    with errors():
        if kind == "AdminClient":
            return admin_module().AdminClient(dict(properties), logger=QUIET)
        return getattr(module, kind)(dict(properties), logger=QUIET)


@dataclass(frozen=True, slots=True)
class Connected:
    """A client that has reached its cluster, with the cluster's metadata as confluent_kafka has it."""

    client: Any
    metadata: Any
    bootstrap: str
    problems: Problems

    @property
    def cluster(self) -> str:
        """The cluster, for messages."""
        return f"cluster {self.metadata.cluster_id or 'without id'} at {self.bootstrap}"


class Problems:
    """The last error that a client reported of its connections: its `error_cb`."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, error: Any) -> None:
        # Errors of single connections name an address and a cause; this one does not.
        if error.code() != client_module().KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def __str__(self) -> str:
        if self._last is not None:
            return str(self._last.str())
        return "connected, but got no answer: is this a listener for clients?"


def connect(
    kind: str,
    bootstrap: str,
    own: Mapping[str, Any] | None = None,
    given: Mapping[str, str] | None = None,
    *,
    topic: str | None = None,
) -> Connected:
    """Make a client as `new_client` does, and ask its cluster for metadata, of `topic` alone if it is named.

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
        raise NetworkException(f"no broker of {at} answered within {CONNECT_S:g} s: {problems}") from error
    return Connected(client, metadata, properties["bootstrap.servers"], problems)


@contextmanager
def errors() -> Iterator[None]:
    """Raise the client's errors as ours."""
    kafka_exception = client_module().KafkaException
    try:
        yield
    except kafka_exception as error:
        raise typed(error.args[0]) from error


def typed(error: Any) -> KreplicaError:
    """A KafkaError as one of ours: Kafka's codes by their class, the client's own as what they mean."""
    code, text = error.code(), error.str()
    of_server = error_of(code, text) if code > 0 else None
    if of_server is not None:
        return of_server
    kafka_error = client_module().KafkaError
    if code in (kafka_error._INVALID_ARG, kafka_error._CONFLICT):
        return InvalidConfig(text)
    return NetworkException(text)


def result(future: Any) -> Any:
    """What an admin request's future holds."""
    with errors():
        return future.result()


def each_result(futures: Mapping[str, Any], done: Callable[[str], object]) -> None:
    """Call `done(name)` for each that succeeded, as it comes; then raise the first error, if any."""
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
