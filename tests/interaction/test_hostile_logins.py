"""What a program without a password can do to a listener whose clients log in: nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kreplica.common.messages.data import ApiVersionsRequest, MetadataRequest
from kreplica.runtime import tcp_server
from kreplica.runtime.listener import MAX_RECEIVE_BYTES, PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.requests import frame_of
from tests.support.tcp_cluster import TcpCluster

VERSIONS = frame_of(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 1)
METADATA = frame_of(
    MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False), 1
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    login = Login(mechanisms=(PLAIN,), passwords={"alice": Secret("sesame")}, failure_delay_ms=0)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, login) as made:
        yield made


@pytest.fixture
def client(cluster: TcpCluster) -> Iterator[socket.socket]:
    [address] = cluster.client_addresses.values()
    with socket.create_connection(address, 20) as made:
        yield made


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def read_frame(client: socket.socket) -> bytes:
    """The next frame, empty at the end of the connection."""
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        more = client.recv(1 << 16)
        if not more:
            break
        found += more
    return found[4:]


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("size", [-1, MAX_RECEIVE_BYTES + 1, 100 << 20])
def test_a_size_that_no_login_has_closes_the_connection(client: socket.socket, size: int) -> None:
    client.sendall(size.to_bytes(4, "big", signed=True))
    assert is_closed(client)


@pytest.mark.parametrize("knows_versions", [False, True])
def test_another_request_closes_the_connection_unread(client: socket.socket, knows_versions: bool) -> None:
    if knows_versions:
        client.sendall(framed(VERSIONS))
        assert read_frame(client)
    client.sendall(framed(METADATA))
    assert is_closed(client)


def test_a_client_that_sends_nothing_is_let_go(cluster: TcpCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "LOGIN_TIMEOUT_S", 0.1)
    [address] = cluster.client_addresses.values()
    with socket.create_connection(address, 20) as silent:
        assert is_closed(silent)


def test_requests_behind_an_unanswered_one_are_not_read(client: socket.socket) -> None:
    # The second ApiVersions closes the connection; the answer to the first one comes before.
    client.sendall(framed(VERSIONS) * 1_000)
    assert read_frame(client)[:4] == (1).to_bytes(4, "big")
    assert is_closed(client)


def test_no_secret_is_logged(client: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    handshake = b"\0\x11\0\1\0\0\0\1\xff\xff\0\5PLAIN"
    token = b"\0alice\0wrong sesame"
    client.sendall(framed(handshake))
    assert read_frame(client)
    client.sendall(framed(b"\0\x24\0\1\0\0\0\2\xff\xff" + len(token).to_bytes(4, "big") + token))
    assert b"the user or the password is wrong" in read_frame(client)
    assert is_closed(client)
    assert "closed" in caplog.text
    assert "sesame" not in caplog.text
