"""The limits of connections, read from settings of several sources."""

from __future__ import annotations

import pytest

from kreplica.common.connection_limits import CREATION_RATE, MAX_CONNECTIONS, ConnectionLimits, kind_of
from kreplica.common.errors import InvalidConfig
from kreplica.common.types import INT32_MAX


def test_a_later_source_comes_first_and_a_listener_has_its_own() -> None:
    limits = ConnectionLimits.of(
        {"max.connections": 10, "listener.name.clients.max.connections": 5, "max.connections.per.ip": 3},
        {"max.connections": "20", "log.retention.ms": "7"},
        {"listener.name.clients.max.connection.creation.rate": "2"},
    )
    assert limits.of_listener("", MAX_CONNECTIONS) == 20
    assert limits.of_listener("CLIENTS", MAX_CONNECTIONS) == 5
    assert limits.of_listener("BROKERS", MAX_CONNECTIONS) == INT32_MAX
    assert limits.of_listener("CLIENTS", CREATION_RATE) == 2
    assert limits.of_listener("", CREATION_RATE) == INT32_MAX
    assert limits.of_host("10.0.0.1") == 3


def test_single_addresses_have_limits_in_any_of_their_texts() -> None:
    limits = ConnectionLimits.of(
        {
            "max.connections.per.ip": 0,
            "max.connections.per.ip.overrides": "10.0.0.1:7, [2001:db8::1]:0,::ffff:10.0.0.2:9",
        }
    )
    assert limits.of_host("::ffff:10.0.0.1") == 7
    assert limits.of_host("2001:DB8:0::1") == 0
    assert limits.of_host("10.0.0.2") == 9
    assert limits.of_host("10.0.0.3") == limits.of_host("") == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.connections", "0"),
        ("max.connections.per.ip", "-1"),
        ("max.connection.creation.rate", "0"),
        ("max.connections.per.ip.overrides", "localhost:5"),
        ("max.connections.per.ip.overrides", "10.0.0.1"),
        ("max.connections.per.ip.overrides", "10.0.0.1:many"),
        ("listener.name.clients.max.connections", "x"),
    ],
)
def test_impossible_limits_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        ConnectionLimits.of({name: value})


@pytest.mark.parametrize(
    "name", ["max.connections.of", "listener.name.max.connections", "listener.name.a.max.connections.per.ip"]
)
def test_other_names_are_no_limits(name: str) -> None:
    assert kind_of(name) is None
