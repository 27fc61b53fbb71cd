"""KafkaConfig: the configuration of a node's process, under Kafka's property names.

    node.id=1
    process.roles=broker,controller
    log.dirs=/var/lib/kreplica
    listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://10.0.0.1:9093
    advertised.listeners=PLAINTEXT://a.example.org:9092
    controller.quorum.voters=1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093

A listener without a host listens on all interfaces; as in Kafka, clients and nodes are given the machine's
host name for it. Without any listener a broker listens on 127.0.0.1. A voter without a controller listener
gets one at its address in controller.quorum.voters; if that is the address of the client listener, one port
serves both. An unknown name is rejected, with the nearest known one. Stateless; any thread.
"""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import BrokerConfig, NodeConfig, Role
from kreplica.broker.node_settings import OF_PROCESS, check_known, known_names, with_settings
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, InvalidFile
from kreplica.common.settings import checked, int32, nearest
from kreplica.controller.controller_config import ControllerConfig
from kreplica.log.meta_properties import parse_properties
from kreplica.metadata.records import Endpoint
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.voter_set import VoterSet
from kreplica.runtime.listener import PREFIX as LISTENER_PREFIX
from kreplica.runtime.listener import Listener, ListenerProperties
from kreplica.runtime.storage import FileStorage
from kreplica.runtime.tcp_transport import IN_PLAIN, Address, NodeSecurity
from kreplica.runtime.tls import ClientTls
from kreplica.security.protocol import SecurityProtocol

LOOPBACK = "127.0.0.1"
ANY_HOST = ("0.0.0.0", "::")
DEFAULT_PORT = 9092
PLAINTEXT = "PLAINTEXT"
DEFAULT_CONTROLLER_LISTENER = "CONTROLLER"

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

    `listeners`: all of them, by address; the host "" means all interfaces. `listen`: the listener for
    clients, or for a pure controller its own. `voters`: the voters of controller.quorum.voters, and the
    bootstrap servers under negative ids. `to_brokers`, `to_controllers`: how this node connects to the
    listeners of other brokers and of controllers.
    """

    node: NodeConfig
    listeners: Mapping[Address, Listener]
    voters: Mapping[int, Address]
    to_brokers: NodeSecurity = IN_PLAIN
    to_controllers: NodeSecurity = IN_PLAIN

    @property
    def listen(self) -> Address:
        return next(iter(self.listeners))

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
        listeners, controllers = self._listeners(roles, node_id, voters)
        bootstrap = self._bootstrap_servers()
        node = NodeConfig(
            node_id=node_id,
            cluster_id=cluster_id,
            directories=tuple(self.directories),
            roles=roles,
            metadata_directory=self.metadata_directory,
            voters=voters,
            bootstrap_ids=tuple(bootstrap),
            endpoints=self._advertised(listeners, controllers) if "broker" in roles else (),
            controller_endpoints=self._of_controller(listeners, controllers) if "controller" in roles else (),
            raft=RAFT,
            controller=CONTROLLER,
            broker=BROKER,
        )
        of_brokers = list(listeners)[-1] if listeners else None
        return KafkaConfig(
            node=self._with_others(node),
            listeners=self._with_logins(listeners, controllers, node),
            voters={**bootstrap, **({} if voters is None else _addresses(voters))},
            to_brokers=self._security(of_brokers, "sasl.mechanism.inter.broker.protocol"),
            to_controllers=self._security(
                self._name_of_controllers(roles, listeners, controllers), "sasl.mechanism.controller.protocol"
            ),
        )

    def _name_of_controllers(
        self, roles: frozenset[Role], brokers: Mapping[str, Address], controllers: Mapping[str, Address]
    ) -> str:
        """Return the name of the listener for controllers; one that brokers share has their name."""
        shared = brokers if "controller" in roles else ()
        return next(iter((*controllers, *shared)), self._controller_names()[0])

    def _security(self, name: str | None, mechanism_name: str) -> NodeSecurity:
        """Return how nodes connect to the listener of that name. Raises InvalidConfig."""
        if name is None:
            return IN_PLAIN
        protocol, properties = self._protocol(name), ListenerProperties(name, self._own)
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
        return VoterSet.parse(text, self._controller_names()[0]) if text else None

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
            has_listener = any(
                each.startswith(f"{name}://")
                for name in self._controller_names()
                for each in self._words("listeners")
            )
            is_controller = has_listener if voters is None else node_id in voters.voter_ids
            roles = frozenset(("broker", "controller") if is_controller else ("broker",))
        if voters is None:
            return roles
        if ("controller" in roles) != (node_id in voters.voter_ids):
            raise InvalidConfig(
                f"node {node_id} is {'a' if 'controller' in roles else 'no'} controller by process.roles, and"
                f" the voters of controller.quorum.voters are {sorted(voters.voter_ids)}"
            )
        return roles

    # ---- addresses ----------------------------------------------------------------------------------------

    def _controller_names(self) -> list[str]:
        return self._words("controller.listener.names") or [DEFAULT_CONTROLLER_LISTENER]

    def _listeners(
        self, roles: frozenset[Role], node_id: int, voters: VoterSet | None
    ) -> tuple[dict[str, Address], dict[str, Address]]:
        """Return the broker's listeners, the one for clients first, and the controller's listener."""
        found = _parse_listeners("listeners", self._words("listeners"))
        names = self._controller_names()
        controllers = {name: address for name, address in found.items() if name in names}
        others = {name: address for name, address in found.items() if name not in names}
        if "broker" in roles and not others:
            others = {PLAINTEXT: (LOOPBACK, DEFAULT_PORT)}
        own = None if voters is None else _addresses(voters).get(node_id)
        if not controllers and own is not None and own[1] not in [port for _, port in others.values()]:
            controllers = {names[0]: own}
        if "broker" not in roles and (others or not controllers):
            raise InvalidConfig(
                f"listeners: a controller needs only the listener {names[0]}, not {list(found)}"
            )
        between = self._text("inter.broker.listener.name")
        if between and others and between not in others:
            raise InvalidConfig(
                f"inter.broker.listener.name: {between} is not one of the broker's listeners, {list(others)}"
            )
        if between in others:
            others[between] = others.pop(between)  # move it to the end
        if len(others) > 1 + (len(others) == 2 and bool(between)) or len(controllers) > 1:
            raise InvalidConfig(
                "listeners: allowed are one for clients, one for controllers and the one in"
                f" inter.broker.listener.name, not {list(found)}"
            )
        return others, controllers

    def _protocols(self) -> dict[str, SecurityProtocol]:
        """Return the protocols by the names of listeners. Raises InvalidConfig."""
        found = {each.name: each for each in SecurityProtocol}
        for word in self._words("listener.security.protocol.map"):
            name, separator, protocol = word.partition(":")
            if not name or not separator or protocol not in SecurityProtocol.__members__:
                raise InvalidConfig(
                    f"listener.security.protocol.map: {word[:80]!r} must be NAME:PROTOCOL, with one of"
                    f" {', '.join(SecurityProtocol.__members__)}"
                )
            found[name] = SecurityProtocol[protocol]
        between = self._text("security.inter.broker.protocol")
        if between not in ("", PLAINTEXT):
            raise InvalidConfig(f"security.inter.broker.protocol={between[:40]} must be {PLAINTEXT}")
        return found

    def _protocol(self, name: str) -> SecurityProtocol:
        """Return the protocol of a listener."""
        return self._protocols().get(name, SecurityProtocol.PLAINTEXT)

    def _with_logins(
        self, brokers: Mapping[str, Address], controllers: Mapping[str, Address], node: NodeConfig
    ) -> dict[Address, Listener]:
        """Return the listeners, the one for clients first."""
        scopes = _scopes(list(brokers.values()), list(controllers.values()), node)
        listeners = {}
        for name, address in (*brokers.items(), *controllers.items()):
            scope, properties = scopes[address], ListenerProperties(name, self._own)
            protocol = self._protocol(name)
            properties.check()
            login = properties.login() if protocol.has_login else None
            idle_ms = node.server.connections_max_idle_ms
            if login is not None and login.failure_delay_ms >= idle_ms:
                raise InvalidConfig(
                    f"connection.failed.authentication.delay.ms={login.failure_delay_ms} must be below"
                    f" connections.max.idle.ms={idle_ms}"
                )
            tls = properties.tls(has_login=protocol.has_login) if protocol.encrypts else None
            has_certificates = tls is not None and tls.client_auth != "none" and login is None
            principals = properties.principals() if has_certificates else None
            listeners[address] = Listener(name, scope, protocol, login, tls, principals)
        # A broker that is no controller says how it connects to one.
        self._check_prefixes([*brokers, *self._controller_names()])
        return listeners

    def _check_prefixes(self, names: list[str]) -> None:
        """Raise InvalidConfig for a property of a listener that does not exist."""
        known = tuple(f"{LISTENER_PREFIX}{name.lower()}." for name in names)
        for name in self._own:
            if name.startswith(LISTENER_PREFIX) and not name.startswith(known):
                raise InvalidConfig(f"{name}: there is no such listener, but {', '.join(names)}")

    def _advertised(
        self, listeners: Mapping[str, Address], controllers: Mapping[str, Address]
    ) -> tuple[Endpoint, ...]:
        """Return the addresses for clients and other brokers.

        As in Kafka, a controller's may be named, too.
        """
        given = _parse_listeners("advertised.listeners", self._words("advertised.listeners"))
        for name in given:
            if name not in listeners and name not in controllers:
                raise InvalidConfig(f"advertised.listeners: there is no listener {name}")
        endpoints = []
        for name, address in {**listeners, **given}.items():  # in the order of the listeners
            if name in controllers:
                continue
            if address[0] in ANY_HOST:
                raise InvalidConfig(
                    f"advertised.listeners: clients cannot connect to {address[0]}; name a host"
                )
            host = address[0] or socket.getfqdn()
            protocol = self._protocols().get(name, SecurityProtocol.PLAINTEXT)
            endpoints.append(Endpoint(name=name, host=host, port=address[1], security_protocol=protocol))
        return tuple(endpoints)

    def _of_controller(
        self, listeners: Mapping[str, Address], controllers: Mapping[str, Address]
    ) -> tuple[Endpoint, ...]:
        """Return the controller's address for other nodes; empty if unknown because it listens on 0.0.0.0."""
        given = _parse_listeners("advertised.listeners", self._words("advertised.listeners"))
        name, address = next(iter((controllers or listeners).items()))
        host, port = given.get(name, address)
        if host in ANY_HOST:
            return ()
        # A shared listener has another name; the quorum expects the controller listener's name.
        name = name if controllers else self._controller_names()[0]
        return (Endpoint(name=name, host=host or socket.getfqdn(), port=port, security_protocol=0),)

    # ---- values -------------------------------------------------------------------------------------------

    def _text(self, name: str) -> str:
        return str(self._own.get(name, "")).strip()

    def _words(self, name: str) -> list[str]:
        value = self._own.get(name, "")
        items = value if isinstance(value, list) else str(value).split(",")
        return [word for item in items if (word := str(item).strip())]

    def _integer(self, name: str) -> int:
        return int(checked(name, self._own.get(name, ""), int32(0)))


def _scopes(brokers: list[Address], controllers: list[Address], node: NodeConfig) -> dict[Address, Scope]:
    """Return the scope of each listener.

    The client listener is for clients only if other nodes certainly use another address of this node: its
    inter-broker listener, or its address as a configured voter.
    """
    scopes = dict.fromkeys(brokers, Scope.CLIENTS)
    is_separate = len(brokers) > 1 or (controllers and node.voters is not None)
    if brokers and not is_separate:
        scopes[brokers[0]] |= Scope.BROKERS
    for address in brokers[1:]:
        scopes[address] = Scope.BROKERS
    for address in controllers:
        scopes[address] = Scope.CONTROLLERS | Scope.BROKERS
    if "controller" in node.roles and not controllers:
        # One of these is the voter's address, though the voters may use another name for the host.
        own = None if node.voters is None else _addresses(node.voters).get(node.node_id)
        for address in brokers:
            if own is None or own[1] == address[1]:
                scopes[address] |= Scope.CONTROLLERS | Scope.BROKERS
    return scopes


def _parse_listeners(what: str, words: list[str]) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for word in words:
        name, separator, address = word.partition("://")
        if not name or not separator or name in found:
            raise InvalidConfig(f"{what}: {word[:80]!r} is not NAME://host:port, or its name is repeated")
        found[name] = _parse_address(what, address)
    return found


def parse_address(what: str, text: str) -> Address:
    """Parse `host:port`, `[host]:port` or `:port` (this machine only). Raises InvalidConfig."""
    host, port = _parse_address(what, text)
    return host or LOOPBACK, port


def _parse_address(what: str, text: str) -> Address:
    """Parse an address whose host may be missing, as "". Raises InvalidConfig."""
    host, separator, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not separator or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise InvalidConfig(f"{what}: {text[:80]!r} is not host:port")
    return host, int(port)


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
