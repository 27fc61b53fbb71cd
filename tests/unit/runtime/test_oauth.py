"""OAUTHBEARER by properties: of listeners, and of what logs in to them."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed
from kreplica.runtime.oauth import OAuthBearerSettings, TokenFetcher, validator
from kreplica.security.jaas import OAUTHBEARER_MODULE, parse_jaas
from kreplica.security.jwks_cache import JwksTimes
from kreplica.security.jwt import TokenRules
from tests.support.tokens import AUDIENCE, CLIENT_ID, CLIENT_SECRET, ISSUER, Issuer, Provider
from tests.support.virtual import VirtualMachine

URL = "https://id.example.org/keys"
PROPERTIES = {
    "sasl.oauthbearer.jwks.endpoint.url": URL,
    "sasl.oauthbearer.allowed.urls": f"https://id.example.org/token, {URL}",
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
}


def settings(jaas: str = "", **changes: object) -> OAuthBearerSettings:
    """The settings with these changes, whose names begin behind `sasl.oauthbearer.`."""
    own = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in changes.items()}
    return OAuthBearerSettings.read({**PROPERTIES, **own}.get, parse_jaas("jaas", jaas) if jaas else None)


def test_defaults_are_those_of_kafka_with_issuer_and_audience() -> None:
    found = settings()
    assert found.rules == TokenRules(issuer=ISSUER, audiences=("other", AUDIENCE))
    assert found.times == JwksTimes(refresh_ms=3_600_000, retry_ms=100, retry_max_ms=10_000)
    assert found.url is not None
    assert found.url.geturl() == URL


def test_all_of_them_can_be_set() -> None:
    found = settings(
        jwks_endpoint_refresh_ms=1,
        jwks_endpoint_retry_backoff_ms="2",
        jwks_endpoint_retry_backoff_max_ms=3,
        sub_claim_name="client",
        scope_claim_name="scp",
        clock_skew_seconds=0,
        expected_issuer="",
        any_issuer_enable="true",
        expected_audience="",
        any_audience_enable=True,
    )
    assert found.times == JwksTimes(refresh_ms=1, retry_ms=2, retry_max_ms=3)
    assert found.rules == TokenRules(
        issuer=None, audiences=(), sub_claim="client", scope_claim="scp", clock_skew_ms=0
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"jwks_endpoint_url": ""}, "jwks.endpoint.url is missing: without keys no token can be checked"),
        ({"jwks_endpoint_url": "keys"}, "must be an http, https or file URL"),
        ({"jwks_endpoint_url": "file:///etc/keys"}, "is not in sasl.oauthbearer.allowed.urls"),
        ({"allowed_urls": ""}, "is not in sasl.oauthbearer.allowed.urls"),
        ({"allowed_urls": "https://id.example.org/"}, "is not in sasl.oauthbearer.allowed.urls"),
        ({"expected_issuer": ""}, "expected.issuer is missing: set it, or .*any.issuer.enable=true"),
        ({"expected_audience": ""}, "expected.audience is missing: set it, or .*any.audience.enable=true"),
        ({"any_issuer_enable": "true"}, "exclude each other"),
        ({"any_audience_enable": "true"}, "exclude each other"),
        ({"any_audience_enable": "yes"}, "any.audience.enable=yes is not true or false"),
        ({"unsecured_tokens_enable": "true"}, "exclude each other"),
        ({"clock_skew_seconds": "-1"}, "clock.skew.seconds=-1"),
        ({"jwks_endpoint_refresh_ms": 0}, "refresh.ms=0"),
    ],
)
def test_what_would_not_check_tokens_is_refused(changes: dict[str, object], why: str) -> None:
    """CVE-2025-27817 and CVE-2026-110985."""
    with pytest.raises(InvalidConfig, match=why):
        settings(**changes)


def test_unsecured_tokens_need_a_switch_of_their_own() -> None:
    found = settings(jwks_endpoint_url="", unsecured_tokens_enable=True, expected_issuer="")
    assert (found.url, found.rules.allows_unsecured) == (None, True)


def of_provider(provider: Provider, **changes: object) -> OAuthBearerSettings:
    return settings(jwks_endpoint_url=provider.url, allowed_urls=provider.url, **changes)


@pytest.mark.parametrize("behaviour", ["", "fail", "redirect", "huge", "many", "garbage", "empty"])
def test_a_start_needs_keys(behaviour: str) -> None:
    machine, issuer = VirtualMachine(), Issuer()
    with Provider(issuer) as provider:
        provider.behaviour = behaviour
        validate, prepare = validator(of_provider(provider), machine.loop, machine.clock)
        with pytest.raises(SaslAuthenticationFailed, match="no key"):
            validate(issuer.token())
        if behaviour:
            with pytest.raises(InvalidConfig, match="there are no keys to check tokens with"):
                prepare()
            return
        prepare()
        now = machine.clock.time_ms() // 1000
        assert validate(issuer.token(iat=now, exp=now + 60)).user == "alice"


class Client:
    """The properties of a client of a provider."""

    def __init__(self, url: str, **changes: object) -> None:
        self.properties: dict[str, Any] = {
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.allowed.urls": url,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            **{f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in changes.items()},
        }

    def fetcher(self, jaas: str = "") -> TokenFetcher:
        return TokenFetcher.read(self.properties.get, parse_jaas("jaas", jaas) if jaas else None)


def test_a_client_gets_a_token_for_its_credentials_and_keeps_it() -> None:
    with Provider(Issuer()) as provider:
        fetcher = Client(provider.token_url, scope="kafka").fetcher()
        token = fetcher.fetch().result(10)
        assert fetcher.fetch().result(10) is token
        assert provider.requests == ["/token"]
        provider.lifetime_s = 0
        short = Client(provider.token_url).fetcher()
        for count in (2, 3):
            short.fetch().result(10)
            assert provider.requests == ["/token"] * count


def test_credentials_may_be_options_of_the_login_module() -> None:
    jaas = f"{OAUTHBEARER_MODULE} required clientId={CLIENT_ID} clientSecret={CLIENT_SECRET} scope=a;"
    with Provider(Issuer()) as provider:
        client = Client(
            provider.token_url, client_credentials_client_id="", client_credentials_client_secret=""
        )
        assert client.fetcher(jaas).fetch().result(10).value.count(".") == 2
        with pytest.raises(InvalidConfig, match=r"client.id or .*client.secret is missing"):
            client.fetcher()


def test_a_client_that_is_refused_does_not_show_its_secret() -> None:
    with Provider(Issuer()) as provider:
        client = Client(provider.token_url, client_credentials_client_secret="wrong-secret")
        with pytest.raises(SaslAuthenticationFailed, match=r"there is no token.*status 401") as refused:
            client.fetcher().fetch().result(10)
        assert "wrong-secret" not in str(refused.value)
        assert "wrong-secret" not in repr(client.fetcher())


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    issuer, file = Issuer(), tmp_path / "token"
    file.write_text(issuer.token("file") + "\n")
    fetcher = Client(f"file://{file}").fetcher()
    assert fetcher.fetch().result(10).value == file.read_text().strip()
    for text in ("", "a.b.c", "no token"):
        file.write_text(text)
        with pytest.raises(SaslAuthenticationFailed, match="no JWT"):
            Client(f"file://{file}").fetcher().fetch().result(10)
    with pytest.raises(InvalidConfig, match="is not in"):
        Client(f"file://{file}", allowed_urls="").fetcher()
    with pytest.raises(InvalidConfig, match="is missing"):
        Client("").fetcher()


def test_a_token_is_kept_until_most_of_its_life_is_over(tmp_path: Path) -> None:
    issuer, file = Issuer(), tmp_path / "token"
    fetcher = Client(f"file://{file}").fetcher()
    now = time.time()
    for expires in (now - 1, now + 600):
        file.write_text(issuer.token(exp=int(expires), jti=random.random()))
        assert fetcher.fetch().result(10).value == file.read_text()
    kept = file.read_text()
    file.write_text(issuer.token(exp=int(now + 900)))
    assert fetcher.fetch().result(10).value == kept
