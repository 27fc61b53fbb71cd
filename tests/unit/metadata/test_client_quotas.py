"""Which entities may have quotas, and which values."""

from __future__ import annotations

import math

import pytest

from kreplica.common.errors import InvalidRequest
from kreplica.metadata.client_quotas import check_quota, quota_key

USER = (("user", "alice"),)
IP = (("ip", "10.0.0.1"),)


def test_the_key_of_an_entity_does_not_depend_on_the_order() -> None:
    pair = [("user", "alice"), ("client-id", None)]
    assert quota_key(pair) == quota_key(reversed(pair)) == (("client-id", None), ("user", "alice"))


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ((), "no components"),
        ((("topic", "x"),), "entity type 'topic'"),
        ((("user", ""),), "0 characters"),
        ((("client-id", "x" * 256),), "256 characters"),
        ((("user", "a"), ("user", "b")), "twice"),
        ((("user", "a"), ("user", None)), "twice"),
        ((("ip", "10.0.0.1"), ("user", "a")), "cannot be combined"),
        ((("ip", "localhost"),), "not an IP address"),
    ],
)
def test_impossible_entities_are_refused(
    components: tuple[tuple[str, str | None], ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        quota_key(components)


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "fe80::1", None])
def test_an_address_and_the_default_are_ips(address: str | None) -> None:
    assert quota_key([("ip", address)]) == (("ip", address),)


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        (USER, "producer_byte_rate", 1.0),
        (USER, "producer_byte_rate", float(2**63)),
        (USER, "consumer_byte_rate", 1024.0000001),
        (USER, "request_percentage", 0.01),
        (USER, "controller_mutation_rate", 0.5),
        (USER, "controller_mutation_rate", None),
        (IP, "connection_creation_rate", float(2**31 - 1)),
    ],
)
def test_possible_quotas_are_accepted(key: tuple[tuple[str, str]], name: str, value: float | None) -> None:
    check_quota(key, name, value)


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        *(
            (USER, name, value)
            for name in ("producer_byte_rate", "request_percentage")
            for value in (0.0, -1.0)
        ),
        *((USER, "request_percentage", value) for value in (math.nan, math.inf, -math.inf)),
        (USER, "consumer_byte_rate", math.nan),
        (USER, "consumer_byte_rate", 1.5),
        (USER, "consumer_byte_rate", 1e-7),
        (USER, "producer_byte_rate", 1e19),
        (USER, "connection_creation_rate", 5.0),
        (USER, "no_such_rate", None),
        (IP, "producer_byte_rate", 5.0),
        (IP, "connection_creation_rate", float(2**31)),
    ],
)
def test_impossible_quotas_are_refused(key: tuple[tuple[str, str]], name: str, value: float | None) -> None:
    with pytest.raises(InvalidRequest, match=name):
        check_quota(key, name, value)
