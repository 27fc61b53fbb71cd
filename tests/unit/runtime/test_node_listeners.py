"""The listeners of a node: which there may be, where, for whom, and what others know of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from kreplica.broker.api_versions import Scope
from kreplica.common.errors import InvalidConfig
from kreplica.runtime.kafka_config import KafkaConfig
from kreplica.security.protocol import SecurityProtocol

LEAST = {"node.id": 7, "log.dirs": "/d", "controller.quorum.voters": "1@a:9093,2@b:9093"}
MAP = "CLIENTS:SSL,OFFICE:PLAINTEXT,NODES:PLAINTEXT,CONTROLLER:PLAINTEXT"
SEVERAL = {
    "listeners": "NODES://10.0.0.1:9094,clients://:9092,OFFICE://10.1.0.1:9095",
    "advertised.listeners": "CLIENTS://a.example.org:19092,NODES://10.0.0.1:9094",
    "listener.security.protocol.map": MAP,
    "inter.broker.listener.name": "nodes",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/etc/node.pem",
}


def parse(properties: dict[str, object]) -> KafkaConfig:
    return KafkaConfig.parse({**LEAST, **properties}, "cluster")


def scopes(config: KafkaConfig) -> dict[str, Scope]:
    return {each.name: each.scope for each in config.listeners}


def test_a_broker_has_several_listeners_for_clients_and_one_for_brokers() -> None:
    config = parse(SEVERAL)
    assert scopes(config) == {
        "CLIENTS": Scope.CLIENTS,
        "OFFICE": Scope.CLIENTS,
        "NODES": Scope.BROKERS,
    }
    assert [each.address for each in config.listeners] == [
        ("", 9092),
        ("10.1.0.1", 9095),
        ("10.0.0.1", 9094),
    ]
    # The listener that is not advertised serves, and no client is sent to it.
    assert [(each.name, each.host, each.port, each.security_protocol) for each in config.node.endpoints] == [
        ("CLIENTS", "a.example.org", 19092, SecurityProtocol.SSL),
        ("NODES", "10.0.0.1", 9094, SecurityProtocol.PLAINTEXT),
    ]
    assert config.node.inter_broker_listener == "NODES"


def test_kafkas_default_for_brokers_is_the_plain_listener_which_clients_use_as_well(tmp_path: Path) -> None:
    trustme.CA().issue_cert("a").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
    tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "node.pem")}
    config = parse({**tls, **PURE})
    assert scopes(config) == {"SSL": Scope.CLIENTS, "PLAINTEXT": Scope.CLIENTS | Scope.BROKERS}
    by_protocol = {**tls, **PURE, "security.inter.broker.protocol": "SSL"}
    config = parse(by_protocol)
    assert scopes(config) == {"SSL": Scope.CLIENTS | Scope.BROKERS, "PLAINTEXT": Scope.CLIENTS}
    assert config.to_brokers.tls is not None
    assert config.to_controllers.tls is None


PURE = {
    "listeners": "SSL://a:2,PLAINTEXT://a:1",
    "listener.security.protocol.map": "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


def test_a_controller_may_have_several_listeners_and_nodes_connect_to_the_first() -> None:
    config = parse(
        {
            "node.id": 1,
            "process.roles": "controller",
            "controller.quorum.voters": "",
            "listeners": "OLD://a:1,NEW://a:2",
            "controller.listener.names": "NEW,OLD",
            "listener.security.protocol.map": "OLD:PLAINTEXT,NEW:PLAINTEXT",
        }
    )
    assert [each.name for each in config.listeners] == ["NEW", "OLD"]
    assert [(each.name, each.port) for each in config.node.controller_endpoints] == [("NEW", 2), ("OLD", 1)]
    assert config.node.controller_listener == "NEW"


def test_an_address_of_ipv4_and_one_of_ipv6_share_a_port_and_free_ports_may_repeat() -> None:
    config = parse(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092,A://a:0,B://a:0",
            "listener.security.protocol.map": "SIX:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
    )
    assert [each.address for each in config.listeners] == [
        ("127.0.0.1", 9092),
        ("::1", 9092),
        ("a", 0),
        ("a", 0),
    ]


def test_a_listener_has_limits_of_its_own() -> None:
    own = {"listener.name.clients.max.connections": "17", "max.connections": 50}
    limits = parse({**SEVERAL, **own}).node
    assert limits.server.max_connections == 50


def test_only_controllers_listeners_open_before_the_rules_are_known() -> None:
    both = {
        "node.id": 1,
        "controller.quorum.voters": "1@a:9093",
        "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
    }
    assert [each.starts_early for each in parse(both).listeners] == [False, True]
    early = parse({**both, "early.start.listeners": "plaintext"})
    assert [each.starts_early for each in early.listeners] == [True, True]
    # One that the quorum shares cannot wait: without the quorum there are no rules.
    shared = parse({**both, "listeners": "PLAINTEXT://a:9093"})
    assert [each.starts_early for each in shared.listeners] == [True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listeners": "A://a:1,B://b:1"}, "2 have port 1; only one address of IPv4 and one of IPv6 may"),
        ({"listeners": "A://1.2.3.4:1,B://5.6.7.8:1"}, "2 have port 1"),
        ({"listeners": "A://1.2.3.4:1,B://[::1]:1,C://[::2]:1"}, "3 have port 1"),
        ({"listeners": "CLIENTS://a:1,clients://a:2"}, "its name is repeated"),
        (
            {"listeners": "CLIENTS://:1,OFFICE://:2", "inter.broker.listener.name": ""},
            "there is no listener PLAINTEXT for other brokers among",
        ),
        (
            {"security.inter.broker.protocol": "SSL"},
            "inter.broker.listener.name and security.inter.broker.protocol exclude each other",
        ),
        (
            {"inter.broker.listener.name": "", "security.inter.broker.protocol": "SSL"},
            "there is no listener SSL for other brokers",
        ),
        (
            {"inter.broker.listener.name": "", "security.inter.broker.protocol": "TLS"},
            "security.inter.broker.protocol=TLS must be one of",
        ),
        ({"advertised.listeners": "CLIENTS://a:1"}, "NODES is missing, which other brokers connect to"),
        ({"advertised.listeners": "NODES://a:1,X://a:2"}, "there is no listener X"),
        ({"advertised.listeners": "NODES://[::]:1"}, "clients cannot connect to ::"),
        ({"advertised.listeners": "NODES://0.0.0.0:1"}, "clients cannot connect to 0.0.0.0"),
        (
            {"listener.security.protocol.map": MAP.replace("OFFICE", "OFICE")},
            "listener.security.protocol.map has no protocol for listener OFFICE",
        ),
        (
            {"listener.security.protocol.map": MAP.replace("CONTROLLER", "QUORUM")},
            "listener.security.protocol.map has no protocol for listener CONTROLLER",
        ),
        ({"listeners": "NODES://:1,CONTROLLER://:2"}, "CONTROLLER is for controllers, and this node is not"),
        ({"early.start.listeners": "X"}, "early.start.listeners: there is no listener X"),
        ({"listener.name.clients.max.connections": 0}, "listener.name.clients.max.connections=0"),
        ({"listener.name.x.max.connections": 1}, "there is no such listener"),
        (
            {
                "node.id": 1,
                "listeners": "NODES://:1,CONTROLLER://:9093",
                "controller.listener.names": "CONTROLLER,OTHER",
            },
            "controller.listener.names: OTHER is not one of the listeners",
        ),
        (
            {
                "node.id": 1,
                "listeners": "NODES://:1,CONTROLLER://:9093",
                "controller.listener.names": "QUORUM",
            },
            "controller.listener.names: QUORUM is not one of the listeners",
        ),
        ({"listener.security.protocol.map": f"{MAP},OFFICE:PLAINTEXT"}, "names listener OFFICE twice"),
    ],
)
def test_listeners_that_contradict_each_other_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse({**SEVERAL, **changes})
