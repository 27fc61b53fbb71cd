"""Principals as text, and the peer that no client can claim to be."""

from __future__ import annotations

from kreplica.security.peer import ANONYMOUS, THIS_PROCESS, KafkaPrincipal, Peer


def test_a_principal_is_written_as_type_and_name() -> None:
    assert str(KafkaPrincipal("User", "alice:of:sales")) == "User:alice:of:sales"
    assert str(Peer("/10.0.0.1").principal) == str(ANONYMOUS) == "User:ANONYMOUS"


def test_no_client_can_claim_to_be_this_process() -> None:
    claimed = Peer("", KafkaPrincipal(THIS_PROCESS.principal.type, THIS_PROCESS.principal.name))
    assert claimed == THIS_PROCESS
    assert claimed is not THIS_PROCESS
