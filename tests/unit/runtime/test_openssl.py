"""The limit of certificate chains: it reaches OpenSSL, and longer chains end the handshake."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
import trustme

from kreplica.runtime.openssl import limit_chain

MOST_BYTES = 4 << 10


def certified(name: str, authority: trustme.CA, copies: int, tmp_path: Path) -> str:
    """Return a file with a key and a chain of `copies` of its certificate."""
    made = authority.issue_cert(name)
    chain = made.cert_chain_pems[0].bytes() * copies
    path = tmp_path / f"{name}-{copies}.pem"
    path.write_bytes(made.private_key_pem.bytes() + chain)
    return str(path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("copies", "is_taken"), [(1, True), (20, False)])
def test_a_longer_chain_ends_the_handshake(
    version: ssl.TLSVersion, copies: int, is_taken: bool, tmp_path: Path
) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certified("server", authority, 1, tmp_path))
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    assert limit_chain(server, MOST_BYTES)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    client.check_hostname = False
    client.minimum_version = client.maximum_version = version
    client.load_cert_chain(certified("client", authority, copies, tmp_path))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    with (
        contextlib.nullcontext() if is_taken else pytest.raises(ssl.SSLError, match="EXCESSIVE_MESSAGE_SIZE")
    ):
        for _ in range(4):
            for each in (one, other):
                with contextlib.suppress(ssl.SSLWantReadError):
                    each.do_handshake()
        assert other.getpeercert() is not None


def test_a_limit_is_set_once() -> None:
    """OpenSSL's default shows that this is its field: a context that has another limit is left alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert limit_chain(context, MOST_BYTES)
    assert not limit_chain(context, 2 * MOST_BYTES)
