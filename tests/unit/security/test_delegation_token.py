"""A login by a delegation token, by SCRAM with tokenauth=true."""

from __future__ import annotations

import base64
import random

import pytest

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security import delegation_token
from kreplica.security.delegation_token import TokenCredentials, TokenLogin, parse_principal, token_hmac
from kreplica.security.peer import KafkaPrincipal
from kreplica.security.sasl import Secret
from kreplica.security.scram import ScramSaslServer
from kreplica.security.scram_credential import ScramMechanism
from tests.support.scram import ScramClient

SECRET = Secret("cluster-secret")
NOW_MS = 5_000
OWNER = KafkaPrincipal("User", "alice", token_authenticated=True)
PASSWORD = base64.b64encode(token_hmac(SECRET, "token-1")).decode()
CREDENTIALS = TokenCredentials(SECRET)


def log_in(
    mechanism: ScramMechanism,
    *,
    user: str = "token-1",
    password: str = PASSWORD,
    extensions: str = ",tokenauth=true",
    expires_ms: int = NOW_MS + 700,
) -> ScramSaslServer:
    credential = CREDENTIALS.credential(mechanism, "token-1")
    tokens = {"token-1": TokenLogin(credential, OWNER, expires_ms)}
    server = ScramSaslServer(
        mechanism, lambda _: None, random.Random(1), b"secret", tokens.get, lambda: NOW_MS
    )
    client = ScramClient(mechanism, user, password, extensions=extensions)
    answer = server.respond(client.final(server.respond(client.first())))
    assert answer == client.signature.encode()
    return server


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("extensions", [",tokenauth=true", ",a=b,tokenauth=true"])
def test_a_token_logs_in_as_its_owner_until_it_expires(mechanism: ScramMechanism, extensions: str) -> None:
    server = log_in(mechanism, extensions=extensions)
    assert (server.principal, server.lifetime_ms) == (OWNER, 700)


@pytest.mark.parametrize(
    "changes",
    [
        {"password": "wrong"},
        {"user": "token-2"},
        {"expires_ms": NOW_MS},
        {"extensions": ""},
        {"extensions": ",tokenauth=false"},
        {"extensions": ",tokenauth=true,m=1"},
    ],
)
def test_what_is_no_valid_token_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SaslAuthenticationFailed):
        log_in(ScramMechanism.SCRAM_SHA_256, **changes)  # type: ignore[arg-type]


def test_the_ready_credentials_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_token, "MOST_READY", 2)
    credentials = TokenCredentials(SECRET)
    made = [credentials.credential(ScramMechanism.SCRAM_SHA_256, f"token-{n % 3}") for n in range(6)]
    assert made[:3] == made[3:]
    assert len(set(made)) == 3
    assert len(credentials._ready) <= 2


def test_principals_of_records_are_read() -> None:
    assert parse_principal("User:CN=a,O=b:c") == KafkaPrincipal("User", "CN=a,O=b:c")
