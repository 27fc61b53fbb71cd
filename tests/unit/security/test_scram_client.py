"""The client's side of SCRAM: it logs in, and believes no server that it should not."""

from __future__ import annotations

import random

import pytest

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.sasl import Secret
from kreplica.security.scram import ScramSaslServer, credential_of, salted_password
from kreplica.security.scram_client import ScramSaslClient
from kreplica.security.scram_credential import ScramMechanism


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_both_sides_agree(mechanism: ScramMechanism) -> None:
    salted = salted_password(mechanism, Secret("sesame"), b"salt", 7)
    known = {"a=l,ice": credential_of(mechanism, salted, b"salt", 7)}
    server = ScramSaslServer(mechanism, known.get, random.Random(1), b"secret")
    client = ScramSaslClient(mechanism.sasl_name, "a=l,ice", Secret("sesame"), random.Random(2))
    answer = server.respond(client.final(server.respond(client.first())))
    client.check(answer)
    assert server.principal is not None
    with pytest.raises(SaslAuthenticationFailed, match="does not know the password"):
        client.check(answer[:-4] + b"AAA=")


def test_a_hostile_server_keeps_no_client_busy() -> None:
    """CVE-2026-10143 and CVE-2026-10142 of kafka-python."""
    client = ScramSaslClient("SCRAM-SHA-256", "alice", Secret("sesame"), random.Random(2))
    nonce = client.first().rpartition(b"r=")[2]
    for answer in (
        b"r=" + nonce + b"x,s=c2FsdA==,i=999999999",
        b"r=" + nonce + b"x,s=c2FsdA==,i=0",
        b"r=" + nonce + b",s=c2FsdA==,i=4096",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=" + nonce + b"x,s=" + b"A" * 5000 + b",i=4096",
        b"r=" + nonce + b"x,s=?,i=4096",
        b"",
    ):
        with pytest.raises(SaslAuthenticationFailed):
            client.final(answer)
