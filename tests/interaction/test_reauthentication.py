"""Requests that are pipelined around another login keep their order, and are all answered (KAFKA-9854)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kreplica.broker import sasl_authenticator
from kreplica.common.message import at
from kreplica.common.messages.data import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from kreplica.runtime.listener import PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.requests import frame_of, response_of
from tests.support.sockets import framed, read_frame
from tests.support.tcp_cluster import TcpCluster

ASKED = MetadataRequest(topics=(), allow_auto_topic_creation=False)
HANDSHAKE = SaslHandshakeRequest(mechanism=PLAIN)
TOKEN = SaslAuthenticateRequest(auth_bytes=b"\0alice\0sesame")
LIFETIME_MS = 60_000


def test_requests_around_another_login_are_answered_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_authenticator, "MIN_REAUTH_MS", 0)
    login = Login(mechanisms=(PLAIN,), passwords={"alice": Secret("sesame")}, max_reauth_ms=LIFETIME_MS)
    with TcpCluster(tmp_path, 1, login) as cluster:
        [address] = cluster.client_addresses.values()
        with socket.create_connection(address, timeout=30) as client:
            for number, request in enumerate((HANDSHAKE, TOKEN)):
                client.sendall(framed(frame_of(request, number)))
                read_frame(client)
            pipelined = [ASKED, HANDSHAKE, ASKED, ASKED, TOKEN, ASKED] * 5
            client.sendall(b"".join(framed(frame_of(each, n)) for n, each in enumerate(pipelined, 100)))
            for number, request in enumerate(pipelined, 100):
                answer = read_frame(client)
                assert int.from_bytes(answer[:4], "big") == number
                if request is TOKEN:
                    found = response_of(at(SaslAuthenticateResponse, 2), answer, number)
                    assert found.session_lifetime.total_seconds() * 1000 == LIFETIME_MS
