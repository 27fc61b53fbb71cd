"""Requests to a provider that misbehaves."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from kreplica.common.errors import InvalidConfig, KafkaStorageError, KreplicaError, NetworkException
from kreplica.runtime import http_fetch
from kreplica.runtime.http_fetch import fetch, in_background, parse_url
from kreplica.runtime.tls import ClientTls, TrustSettings
from tests.support.tokens import Issuer, Provider

LIMIT = 256 << 10
TLS = ClientTls(TrustSettings()).context


def got(url: str) -> bytes:
    return fetch(parse_url("url", url), LIMIT, TLS)


@pytest.mark.parametrize(
    "text",
    [
        *("", "id.example.org/keys", "ftp://a/b", "http:///keys", "http://a:0/", "http://a:99999/"),
        *("https://user:secret@a/keys", "file://other/keys", "file:keys", "http://[::1/", "http://a/\n"),
    ],
)
def test_a_url_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^url="):
        parse_url("url", text)


def test_what_a_server_and_a_file_have_is_returned(tmp_path: Path) -> None:
    issuer = Issuer()
    with Provider(issuer) as provider:
        assert got(provider.url) == issuer.jwks()
        assert got(f"{provider.url}?a=b") == issuer.jwks()
        assert provider.requests == ["/keys", "/keys?a=b"]
    file = tmp_path / "the keys"
    file.write_bytes(issuer.jwks())
    assert got(f"file://{str(file).replace(' ', '%20')}") == issuer.jwks()
    assert got(f"file://localhost{str(file).replace(' ', '%20')}") == issuer.jwks()


@pytest.mark.parametrize(
    ("behaviour", "why"), [("fail", "status 503"), ("redirect", "redirects"), ("huge", "larger than 262144")]
)
def test_an_answer_that_is_not_as_expected_is_an_error(behaviour: str, why: str) -> None:
    """CVE-2025-27817: the target of a redirect has not been allowed."""
    with Provider(Issuer()) as provider:
        provider.behaviour = behaviour
        with pytest.raises(NetworkException, match=why):
            got(provider.url)
        assert provider.requests == ["/keys"]


def test_a_server_that_is_not_there_or_speaks_otherwise_is_an_error(tmp_path: Path) -> None:
    with Provider(Issuer()) as provider:
        url = provider.url
        with pytest.raises(NetworkException, match=r"https://127\.0\.0\.1"):
            got(url.replace("http:", "https:"))
    with pytest.raises(NetworkException, match=r"http://127\.0\.0\.1"):
        got(url)
    with pytest.raises(KafkaStorageError):
        got(f"file://{tmp_path}/none")
    with pytest.raises(KreplicaError):
        got(f"file://{tmp_path}")


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_a_slow_server_is_left_at_the_deadline(
    scheme: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_fetch, "DEADLINE_S", 0.1)
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            accepted, _ = server.accept()
            accepted.sendall(said)
            held.append(accepted)

        thread = threading.Thread(target=accept)
        thread.start()
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/keys"
        with pytest.raises(NetworkException):
            got(url)
        thread.join()
        for each in held:
            each.close()


def test_a_task_in_the_background_has_a_result_or_an_error() -> None:
    assert in_background("task", lambda: 1).result(10) == 1

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(InvalidConfig, match="mine"):
        in_background("task", lambda: fail(InvalidConfig("mine"))).result(10)
    with pytest.raises(NetworkException, match="task failed: ZeroDivisionError"):
        in_background("task", lambda: 1 // 0).result(10)
