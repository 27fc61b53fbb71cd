"""The messages of OAUTHBEARER (RFC 7628)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.jwt import OAuthBearerToken
from kreplica.security.oauthbearer import OAuthBearerSaslServer, first_message, parse_first
from kreplica.security.peer import KafkaPrincipal
from kreplica.security.sasl import Secret

NOW_MS = 1_000_000


def validate(token: str) -> OAuthBearerToken:
    if token != "right":
        raise SaslAuthenticationFailed("the token has expired")
    return OAuthBearerToken("alice", frozenset(), NOW_MS + 5_000)


def server() -> OAuthBearerSaslServer:
    return OAuthBearerSaslServer(validate, lambda: NOW_MS)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\1auth=Bearer right\1\1",
        b"n,a=alice,\1auth=Bearer right\1\1",
        b"n,,\1auth=bEARER  right\1\1",
        b"n,,\1auth=Bearer right\1host=example.org\1port=9092\1traceId=1 2\1\1",
    ],
)
def test_a_token_logs_in_until_it_expires(message: bytes) -> None:
    login = server()
    assert login.respond(message) == b""
    assert login.principal == KafkaPrincipal("User", "alice")
    assert login.lifetime_ms == 5_000
    with pytest.raises(SaslAuthenticationFailed, match="complete"):
        login.respond(message)


def test_a_refused_token_is_answered_by_json_before_the_login_fails() -> None:
    login = server()
    assert json.loads(login.respond(b"n,,\1auth=Bearer wrong\1\1")) == {"status": "invalid_token"}
    assert login.principal is None
    for answer in (b"\1", b"n,,\1auth=Bearer right\1\1"):
        with pytest.raises(SaslAuthenticationFailed, match="the token has expired"):
            login.respond(answer)
    assert login.principal is None


def test_a_client_cannot_act_as_another_user() -> None:
    """CVE-2017-12610."""
    login = server()
    with pytest.raises(SaslAuthenticationFailed, match="authorization id"):
        login.respond(b"n,a=bob,\1auth=Bearer right\1\1")
    assert login.principal is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\1",
        b"n,,\1\1",
        b"n,,\1auth=Bearer right\1",
        b"n,,auth=Bearer right\1\1",
        b"y,,\1auth=Bearer right\1\1",
        b"n,b=alice,\1auth=Bearer right\1\1",
        b"n,a=a=b,\1auth=Bearer right\1\1",
        b"n,,\1auth=Basic right\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Bearer a b\1\1",
        b"n,,\1Auth=Bearer right\1\1",
        b"n,,\1auth=Bearer right\1auth=Bearer right\1\1",
        b"n,,\1auth=Bearer right\1a1=x\1\1",
        b"n,,\1auth=Bearer right\1=x\1\1",
        b"n,,\1auth=Bearer right\1a=\0\1\1",
        b"n,,\1auth=Bearer right\1\1more",
        b"\xff",
        b"n,," + b"\1a=b" * 50_000,
    ],
)
def test_a_message_that_is_not_valid_is_refused(message: bytes) -> None:
    login = server()
    with pytest.raises(SaslAuthenticationFailed):
        login.respond(message)
    assert login.principal is None


NAMES = st.text("abcXYZ", min_size=1).filter(lambda name: name != "auth")
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@given(st.text("abc-_.", min_size=1), st.dictionaries(NAMES, VALUES, max_size=3))
def test_the_message_of_our_client_is_read(token: str, extensions: dict[str, str]) -> None:
    authorization_id, found = parse_first(first_message(Secret(token), extensions).decode())
    assert (authorization_id, found.value) == ("", token)


def test_an_extension_cannot_add_to_the_message() -> None:
    with pytest.raises(SaslAuthenticationFailed):
        first_message(Secret("right"), {"a": "b\1auth=Bearer other"})
