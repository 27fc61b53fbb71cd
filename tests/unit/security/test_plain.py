"""PLAIN: a name and a password in one token."""

from __future__ import annotations

import pytest

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.peer import KafkaPrincipal
from kreplica.security.plain import PlainSaslServer
from kreplica.security.sasl import Secret


def server() -> PlainSaslServer:
    return PlainSaslServer({"alice": Secret("right"), "bob": Secret("b")})


@pytest.mark.parametrize("token", [b"\0alice\0right", b"alice\0alice\0right"])
def test_a_user_with_the_right_password_logs_in(token: bytes) -> None:
    side = server()
    assert side.respond(token) == b""
    assert side.principal == KafkaPrincipal("User", "alice")


@pytest.mark.parametrize(
    "token",
    [
        *(b"\0alice\0wrong", b"\0carol\0right", b"bob\0alice\0right", b"\0alice\0", b"\0\0right"),
        *(b"", b"alice\0right", b"\0alice\0right\0", b"\0\xff\0right"),
    ],
)
def test_a_login_is_refused(token: bytes) -> None:
    side = server()
    with pytest.raises(SaslAuthenticationFailed):
        side.respond(token)
    assert side.principal is None
