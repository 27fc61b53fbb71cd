"""KafkaConfig: the configuration of a node's process, under Kafka's property names.

    node.id=1
    process.roles=broker,controller
    log.dirs=/var/lib/kreplica
    listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://10.0.0.1:9093
    advertised.listeners=PLAINTEXT://a.example.org:9092
    controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093

Without any listener a broker listens on 127.0.0.1. A voter without a controller listener gets one at its
address in controller.quorum.voters; if that is the address of a listener for clients, one port serves both.
The rest about listeners is in `node_listeners`. An unknown name is rejected, with the nearest known one.
Stateless; any thread.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from kreplica.broker.node_config import BrokerConfig, NodeConfig, Role
from kreplica.broker.node_settings import OF_PROCESS, check_known, known_names, with_settings
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.common.settings import checked, int32, nearest
from kreplica.controller.controller_config import ControllerConfig
from kreplica.log.meta_properties import parse_properties
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import VoterSet
from kreplica.runtime.listener import PREFIX as LISTENER_PREFIX
from kreplica.runtime.listener import Listener, ListenerProperties
from kreplica.runtime.node_listeners import (
    LOOPBACK,
    NodeListeners,
    controller_names,
    has_controller_listener,
    parse_listen_address,
)
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_transport import IN_PLAIN, Address, NodeSecurity
from kreplica.runtime.tls import ClientTls

RAFT = RaftConfig(
    quorum_election_timeout_ms=200,
    quorum_fetch_timeout_ms=1_000,
    quorum_election_backoff_max_ms=200,
    quorum_request_timeout_ms=500,
    quorum_append_linger_ms=0,
)
CONTROLLER = ControllerConfig(
    broker_session_timeout_ms=1_500,
    broker_session_hint_ms=200,
    broker_session_failover_ms=1_500,
    broker_session_max_timeout_ms=12_000,
    # Each record is flushed by all voters and applied by all nodes, and nothing waits for it.
    metadata_max_idle_interval_ms=5_000,
)
BROKER = BrokerConfig(broker_heartbeat_interval_ms=300, broker_heartbeat_timeout_ms=500)

# Bootstrap servers get negative ids, as in Kafka: -2, -3, ...
FIRST_BOOTSTRAP_ID = -2
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """A node, its listeners, and the addresses of the quorum's voters.

    `listeners`: all of them, one for clients first; the host "" means all interfaces. `listen`: where the
    first listens. `voters`: the voters of controller.quorum.voters, and the
    bootstrap servers under negative ids. `to_brokers`, `to_controllers`: how this node connects to the
    listeners of other brokers and of controllers.
    """

    node: NodeConfig
    listeners: tuple[Listener, ...]
    voters: Mapping[int, Address]
    to_brokers: NodeSecurity = IN_PLAIN
    to_controllers: NodeSecurity = IN_PLAIN

    @property
    def listen(self) -> Address:
        return self.listeners[0].address

    @classmethod
    def parse(cls, properties: Mapping[str, object], cluster_id: str) -> KafkaConfig:
        """Return the configuration from these properties. Raises InvalidConfig."""
        return _Parser(properties).parse(cluster_id)


def directories_of(properties: Mapping[str, object]) -> tuple[str, ...]:
    """Return the node's directories, that of the metadata log first. Raises InvalidConfig."""
    parser = _Parser(properties)
    return tuple(dict.fromkeys((parser.metadata_directory, *parser.directories)))


class _Parser:
    """Parses one set of properties."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self._own = {
            name: value
            for name, value in properties.items()
            if name in OF_PROCESS or name.startswith(LISTENER_PREFIX)
        }
        self._others = {name: value for name, value in properties.items() if name not in self._own}

    @property
    def directories(self) -> list[str]:
        """The log directories."""
        return self._words("log.dirs") or self._words("log.dir")

    @property
    def metadata_directory(self) -> str:
        """The directory of the metadata log."""
        directories = self.directories
        if not directories:
            raise InvalidConfig("log.dirs is missing: a node needs a directory for its logs")
        return self._text("metadata.log.dir") or directories[0]

    def parse(self, cluster_id: str) -> KafkaConfig:
        """Return the configuration; see KafkaConfig.parse."""
        voters = self._voters()
        node_id = self._integer("node.id")
        roles = self._roles(node_id, voters)
        own = None if voters is None else _addresses(voters).get(node_id)
        listeners = NodeListeners(self._own, roles, has_voters=voters is not None, own_voter=own)
        bootstrap = self._bootstrap_servers()
        node = NodeConfig(
            node_id=node_id,
            cluster_id=cluster_id,
            directories=tuple(self.directories),
            roles=roles,
            metadata_directory=self.metadata_directory,
            voters=voters,
            bootstrap_ids=tuple(bootstrap),
            endpoints=listeners.advertised() if "broker" in roles else (),
            inter_broker_listener=listeners.inter_broker,
            controller_listener=controller_names(self._own)[0],
            controller_endpoints=listeners.of_controller() if "controller" in roles else (),
            raft=RAFT,
            controller=CONTROLLER,
            broker=BROKER,
        )
        with_others = self._with_others(node)
        return KafkaConfig(
            node=with_others,
            listeners=listeners.listeners(with_others.server.connections_max_idle_ms),
            voters={**bootstrap, **({} if voters is None else _addresses(voters))},
            to_brokers=self._security(
                listeners, listeners.inter_broker, "sasl.mechanism.inter.broker.protocol"
            ),
            to_controllers=self._security(
                listeners, listeners.of_controllers, "sasl.mechanism.controller.protocol"
            ),
        )

    def _security(self, listeners: NodeListeners, name: str, mechanism_name: str) -> NodeSecurity:
        """Return how nodes connect to the listener of that name. Raises InvalidConfig."""
        if not name:
            return IN_PLAIN
        protocol, properties = listeners.protocol(name), ListenerProperties(name, self._own)
        return NodeSecurity(
            ClientTls(properties.trust()) if protocol.encrypts else None,
            properties.login_of_node(mechanism_name) if protocol.has_login else None,
        )

    def _with_others(self, node: NodeConfig) -> NodeConfig:
        known = {*OF_PROCESS, *known_names(node)}
        for name in self._others:
            if name not in known:
                check_known(name)
                near = nearest(name, known)
                hint = f"; is it {near[0]!r}?" if near else ""
                raise InvalidConfig(f"there is no setting {name!r}{hint}")
        return with_settings(node, self._others)

    # ---- roles and quorum ---------------------------------------------------------------------------------

    def _voters(self) -> VoterSet | None:
        text = self._text("controller.quorum.voters")
        return VoterSet.parse(text, controller_names(self._own)[0]) if text else None

    def _bootstrap_servers(self) -> dict[int, Address]:
        """Return the bootstrap servers, under the ids by which the quorum addresses them."""
        name = "controller.quorum.bootstrap.servers"
        addresses = [parse_address(name, word) for word in self._words(name)]
        return {FIRST_BOOTSTRAP_ID - number: address for number, address in enumerate(addresses)}

    def _roles(self, node_id: int, voters: VoterSet | None) -> frozenset[Role]:
        words: list[Any] = self._words("process.roles")
        if words:
            roles: frozenset[Role] = frozenset(words)
        else:
            is_controller = (
                has_controller_listener(self._own) if voters is None else node_id in voters.voter_ids
            )
            roles = frozenset(("broker", "controller") if is_controller else ("broker",))
        if voters is None:
            return roles
        if ("controller" in roles) != (node_id in voters.voter_ids):
            raise InvalidConfig(
                f"node {node_id} is {'a' if 'controller' in roles else 'no'} controller by process.roles, and"
                f" the voters of controller.quorum.voters are {sorted(voters.voter_ids)}"
            )
        return roles

    # ---- values -------------------------------------------------------------------------------------------

    def _text(self, name: str) -> str:
        return str(self._own.get(name, "")).strip()

    def _words(self, name: str) -> list[str]:
        value = self._own.get(name, "")
        items = value if isinstance(value, list) else str(value).split(",")
        return [word for item in items if (word := str(item).strip())]

    def _integer(self, name: str) -> int:
        return int(checked(name, self._own.get(name, ""), int32(0)))


def parse_address(what: str, text: str) -> Address:
    """Parse `host:port`, `[host]:port` or `:port` (this machine only). Raises InvalidConfig."""
    host, port = parse_listen_address(what, text)
    return host or LOOPBACK, port


def _addresses(voters: VoterSet) -> dict[int, Address]:
    return {
        node.voter_key.node_id: (endpoint.host, endpoint.port)
        for node in voters
        for endpoint in node.endpoints[:1]
    }


def read_config_file(path: str) -> dict[str, object]:
    """Return the properties in the file, in the format that its suffix names: .toml or .properties.

    In TOML the names are quoted ("log.dirs" = "/data") or nested ([log] dirs = "/data").

    Raises InvalidFile if it cannot be parsed, InvalidConfig for a repeated property or another suffix,
    KafkaStorageError.
    """
    if not path.endswith((".toml", ".properties")):
        raise InvalidConfig(f"{path}: a configuration file must be a .toml or .properties file")
    data = FileStorage().read_file(path, MAX_FILE_BYTES)
    if path.endswith(".properties"):
        # Kafka accepts a last line without a line break.
        return dict(parse_properties(data + b"\n", path))
    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidFile(f"{path}: {error}") from None
    properties: dict[str, object] = {}
    for name, value in _flat(found, ""):
        if name in properties:
            raise InvalidConfig(f"{path}: {name} is repeated")
        properties[name] = value
    return properties


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
