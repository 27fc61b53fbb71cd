"""NodeListeners: which listeners a node has, where, and for whom, by its properties.

    listeners=CLIENTS://:9092,OFFICE://10.1.0.1:9095,NODES://10.0.0.1:9094,CONTROLLER://10.0.0.1:9093
    advertised.listeners=CLIENTS://a.example.org:9092,OFFICE://10.1.0.1:9095,NODES://10.0.0.1:9094
    listener.security.protocol.map=CLIENTS:SASL_SSL,OFFICE:SSL,NODES:SSL,CONTROLLER:SSL
    inter.broker.listener.name=NODES

Names are folded to upper case. A listener without a host listens on all interfaces; as in Kafka, clients and
nodes are given the machine's host name for it. A listener named in inter.broker.listener.name is for brokers
only. Where security.inter.broker.protocol or Kafka's default PLAINTEXT names it, clients use it as well.
Stateless; any thread.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import Role
from kreplica.common.errors import InvalidConfig
from kreplica.metadata.records import Endpoint
from kreplica.runtime.listener import PREFIX, Listener, ListenerProperties
from kreplica.runtime.tcp_transport import Address
from kreplica.security.protocol import SecurityProtocol

LOOPBACK = "127.0.0.1"
ANY_HOST = ("0.0.0.0", "::")
DEFAULT_PORT = 9092
PLAINTEXT = "PLAINTEXT"
DEFAULT_CONTROLLER_LISTENER = "CONTROLLER"


def controller_names(properties: Mapping[str, Any]) -> list[str]:
    """Return the names of the listeners for controllers; nodes connect to the first."""
    return _names(properties, "controller.listener.names") or [DEFAULT_CONTROLLER_LISTENER]


def has_controller_listener(properties: Mapping[str, Any]) -> bool:
    """Return whether `listeners` has one for controllers. Raises InvalidConfig."""
    found = _parse_listeners(properties, "listeners")
    return any(name in found for name in controller_names(properties))


class NodeListeners:
    """The listeners of one node.

    `has_voters`: controller.quorum.voters is given; `own_voter`: this node's address there. `brokers`: the
    broker's listeners, the one for clients first; `controllers`: those of the controller. `inter_broker`: the
    name of the listener that brokers use among themselves; "" if a node that is no broker does not know it.
    Raises InvalidConfig.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        roles: frozenset[Role],
        *,
        has_voters: bool,
        own_voter: Address | None,
    ) -> None:
        self._properties = properties
        self._roles = roles
        self._has_voters = has_voters
        self._own_voter = own_voter
        self._controller_names = controller_names(properties)
        self._advertised = _parse_listeners(properties, "advertised.listeners")
        found = _parse_listeners(properties, "listeners")
        _check_ports(found)
        names = self._controller_names
        self.controllers = {name: found[name] for name in names if name in found}
        self.brokers = {name: address for name, address in found.items() if name not in names}
        self._complete(list(found))
        self._is_named = bool(self._text("inter.broker.listener.name"))
        self.inter_broker = self._find_inter_broker()
        if self._is_named and self.inter_broker in self.brokers:
            self.brokers[self.inter_broker] = self.brokers.pop(self.inter_broker)  # move it to the end
        self._protocols = self._find_protocols()

    def _complete(self, given: list[str]) -> None:
        """Add the listeners that need not be given, and check that those fit the roles."""
        names = self._controller_names
        if "broker" in self._roles and not self.brokers:
            self.brokers = {PLAINTEXT: (LOOPBACK, DEFAULT_PORT)}
        own = self._own_voter
        if not self.controllers and own is not None and own[1] not in [at for _, at in self.brokers.values()]:
            self.controllers = {names[0]: own}
        if "broker" not in self._roles and (self.brokers or not self.controllers):
            raise InvalidConfig(f"listeners: a controller needs only the listener {names[0]}, not {given}")
        if "controller" not in self._roles and self.controllers:
            raise InvalidConfig(
                f"listeners: {', '.join(self.controllers)} is for controllers, and this node is not one"
            )
        missing = [name for name in names if name not in self.controllers]
        # A name that no listener has would make a listener for clients of that for controllers.
        is_named = (
            bool(given) and "controller" in self._roles and bool(self._text("controller.listener.names"))
        )
        if missing and (self.controllers or is_named):
            raise InvalidConfig(f"controller.listener.names: {missing[0]} is not one of the listeners")

    def _find_inter_broker(self) -> str:
        name = self._text("inter.broker.listener.name").upper()
        protocol = self._text("security.inter.broker.protocol").upper()
        if name and protocol:
            raise InvalidConfig(
                "inter.broker.listener.name and security.inter.broker.protocol exclude each other: give one"
            )
        if protocol and protocol not in SecurityProtocol.__members__:
            raise InvalidConfig(
                f"security.inter.broker.protocol={protocol[:40]} must be one of"
                f" {', '.join(SecurityProtocol.__members__)}"
            )
        if not self.brokers:
            return name or protocol
        if name and name not in self.brokers:
            raise InvalidConfig(
                f"inter.broker.listener.name: {name} is not one of the broker's listeners,"
                f" {list(self.brokers)}"
            )
        if not name and not protocol and len(self.brokers) == 1:
            return next(iter(self.brokers))
        found = name or protocol or PLAINTEXT
        if found not in self.brokers:
            raise InvalidConfig(
                f"there is no listener {found} for other brokers among {list(self.brokers)}: name one in"
                " inter.broker.listener.name"
            )
        return found

    # ---- protocols ----------------------------------------------------------------------------------------

    def _find_protocols(self) -> dict[str, SecurityProtocol]:
        """Return the protocols by the names of listeners. Raises InvalidConfig."""
        found = {each.name: each for each in SecurityProtocol}
        words = _words(self._properties, "listener.security.protocol.map")
        given: set[str] = set()
        for word in words:
            name, separator, protocol = word.upper().partition(":")
            if not name or not separator or protocol not in SecurityProtocol.__members__:
                raise InvalidConfig(
                    f"listener.security.protocol.map: {word[:80]!r} must be NAME:PROTOCOL, with one of"
                    f" {', '.join(SecurityProtocol.__members__)}"
                )
            if name in given:
                raise InvalidConfig(f"listener.security.protocol.map names listener {name} twice")
            given.add(name)
            found[name] = SecurityProtocol[protocol]
        if not words and not any(found.get(name) for name in self.brokers):
            # As in Kafka: where nothing else is secured, the quorum need not be either.
            found |= dict.fromkeys(self._controller_names, SecurityProtocol.PLAINTEXT)
        return found

    def protocol(self, name: str) -> SecurityProtocol:
        """Return the protocol of a listener.

        Raises InvalidConfig if none is given: a listener whose name is misspelt in the map must not be open.
        """
        if name not in self._protocols:
            raise InvalidConfig(
                f"listener.security.protocol.map has no protocol for listener {name}: add {name}:PROTOCOL"
            )
        return self._protocols[name]

    @property
    def of_controllers(self) -> str:
        """The listener by which nodes connect to controllers; one that brokers share has their name."""
        shared = self.brokers if "controller" in self._roles else ()
        return next(iter((*self.controllers, *shared)), self._controller_names[0])

    # ---- listeners ----------------------------------------------------------------------------------------

    def listeners(self, max_idle_ms: int) -> tuple[Listener, ...]:
        """Return the listeners, one for clients first. `max_idle_ms`: how long a connection may be silent.

        Raises InvalidConfig.
        """
        scopes, early = self._scopes(), self._early()
        made = []
        for name, address in (*self.brokers.items(), *self.controllers.items()):
            properties, protocol = ListenerProperties(name, self._properties), self.protocol(name)
            properties.check()
            login = properties.login() if protocol.has_login else None
            if login is not None and login.failure_delay_ms >= max_idle_ms:
                raise InvalidConfig(
                    f"connection.failed.authentication.delay.ms={login.failure_delay_ms} must be below"
                    f" connections.max.idle.ms={max_idle_ms}"
                )
            tls = properties.tls(has_login=protocol.has_login) if protocol.encrypts else None
            has_certificates = tls is not None and tls.client_auth != "none" and login is None
            made.append(
                Listener(
                    name,
                    scopes[name],
                    protocol,
                    login,
                    tls,
                    properties.principals() if has_certificates else None,
                    address=address,
                    starts_early=name in early or Scope.CONTROLLERS in scopes[name],
                    limits=properties.limits(),
                )
            )
        # A broker that is no controller says how it connects to one.
        self._check_prefixes([*self.brokers, *self._controller_names])
        return tuple(made)

    def _scopes(self) -> dict[str, Scope]:
        """Return the scope of each listener.

        A listener for clients is for them only if other nodes certainly use another address of this node: its
        inter-broker listener, or its address as a configured voter.
        """
        scopes = dict.fromkeys(self.brokers, Scope.CLIENTS)
        if self._is_named and len(self.brokers) > 1:
            scopes[self.inter_broker] = Scope.BROKERS
        elif self.brokers and not (self.controllers and self._has_voters):
            scopes[self.inter_broker] |= Scope.BROKERS
        scopes |= dict.fromkeys(self.controllers, Scope.CONTROLLERS | Scope.BROKERS)
        if "controller" in self._roles and not self.controllers:
            scopes[self._shared()] |= Scope.CONTROLLERS | Scope.BROKERS
        return scopes

    def _shared(self) -> str:
        """Return the broker's listener that the quorum uses as well.

        It has the port of the voter, though the voters may use another name for the host.
        """
        own = self._own_voter
        for name, (_, port) in self.brokers.items():
            if own is not None and own[1] == port:
                return name
        return self.inter_broker

    def _early(self) -> set[str]:
        """Return the listeners that open before the node knows the access rules."""
        found = set(_names(self._properties, "early.start.listeners"))
        unknown = found - {*self.brokers, *self.controllers}
        if unknown:
            raise InvalidConfig(f"early.start.listeners: there is no listener {min(unknown)}")
        return found

    def _check_prefixes(self, names: list[str]) -> None:
        """Raise InvalidConfig for a property of a listener that does not exist."""
        known = tuple(f"{PREFIX}{name.lower()}." for name in names)
        for name in self._properties:
            if name.startswith(PREFIX) and not name.startswith(known):
                raise InvalidConfig(f"{name}: there is no such listener, but {', '.join(names)}")

    # ---- addresses for others -----------------------------------------------------------------------------

    def advertised(self) -> tuple[Endpoint, ...]:
        """Return the addresses of the broker's listeners for clients and other brokers. Raises InvalidConfig.

        Without advertised.listeners all are advertised, and else those named there. As in Kafka, a
        controller's may be named, too.
        """
        for name in self._advertised:
            if name not in self.brokers and name not in self.controllers:
                raise InvalidConfig(f"advertised.listeners: there is no listener {name}")
        given = {name: self._advertised[name] for name in self.brokers if name in self._advertised}
        if given and self.inter_broker not in given:
            raise InvalidConfig(
                f"advertised.listeners: {self.inter_broker} is missing, which other brokers connect to"
            )
        endpoints = []
        for name, (host, port) in (given or self.brokers).items():
            if host in ANY_HOST:
                raise InvalidConfig(f"advertised.listeners: clients cannot connect to {host}; name a host")
            endpoints.append(self._endpoint(name, host, port))
        return tuple(endpoints)

    def of_controller(self) -> tuple[Endpoint, ...]:
        """Return the controller's addresses for other nodes.

        One that listens on 0.0.0.0 is unknown. Raises InvalidConfig.
        """
        listening = self.controllers or {self._shared(): self.brokers[self._shared()]}
        found = []
        for name, address in listening.items():
            host, port = self._advertised.get(name, address)
            if host not in ANY_HOST:
                made = self._endpoint(name, host, port)
                # A shared listener has another name; the quorum expects the controller listener's name.
                found.append(made if self.controllers else _renamed(made, self._controller_names[0]))
        return tuple(found)

    def _endpoint(self, name: str, host: str, port: int) -> Endpoint:
        protocol = self.protocol(name)
        return Endpoint(name=name, host=host or socket.getfqdn(), port=port, security_protocol=protocol)

    def _text(self, name: str) -> str:
        return str(self._properties.get(name) or "").strip()


def _renamed(endpoint: Endpoint, name: str) -> Endpoint:
    return Endpoint(
        name=name, host=endpoint.host, port=endpoint.port, security_protocol=endpoint.security_protocol
    )


def _words(properties: Mapping[str, Any], name: str) -> list[str]:
    value = properties.get(name, "")
    items: Iterable[Any] = value if isinstance(value, list) else str(value).split(",")
    return [word for item in items if (word := str(item).strip())]


def _names(properties: Mapping[str, Any], name: str) -> list[str]:
    return [word.upper() for word in _words(properties, name)]


def _parse_listeners(properties: Mapping[str, Any], what: str) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for word in _words(properties, what):
        name, separator, address = word.partition("://")
        name = name.upper()
        if not name or not separator or name in found:
            raise InvalidConfig(f"{what}: {word[:80]!r} is not NAME://host:port, or its name is repeated")
        found[name] = parse_listen_address(what, address)
    return found


def _check_ports(found: Mapping[str, Address]) -> None:
    """Raise InvalidConfig for a port that two listeners share, but one of IPv4 and one of IPv6 may."""
    by_port: dict[int, list[str]] = {}
    for host, port in found.values():
        by_port.setdefault(port, []).append(host)
    for port, hosts in by_port.items():
        if port and len(hosts) > 1 and sorted(map(_ip_version, hosts)) != [4, 6]:
            raise InvalidConfig(
                f"listeners: {len(hosts)} have port {port}; only one address of IPv4 and one of IPv6 may"
            )


def _ip_version(host: str) -> int:
    """Return 4 or 6, or 0 for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return 0


def parse_listen_address(what: str, text: str) -> Address:
    """Parse `host:port` or `[host]:port`, whose host may be missing, as "". Raises InvalidConfig."""
    host, separator, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not separator or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise InvalidConfig(f"{what}: {text[:80]!r} is not host:port")
    return host, int(port)
