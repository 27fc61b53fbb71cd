"""Many connections that do not log in: each costs little memory, and other clients are served.

The node is a process of its own, whose memory is measured.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import secured
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until

WAIT_S = 60.0
CONNECTIONS = 120
# With the limit for frames before a login, and what encryption takes.
CONNECTION_BYTES = 64 << 10
# What a burst may leave behind, once its connections are closed.
LEFT_BYTES = 16 << 20
ANNOUNCED_BYTES = 100 << 20
LIMITS = {"max_connections": 2_000, "max_connections_per_ip": 2_000}

CHAIN_BYTES = 32 << 10
SERVER_HELLO_DONE = b"\x0e\0\0\0"

Make = Callable[["Target"], socket.socket]


class Target:
    """A node, and a client of it that goes on working."""

    def __init__(self, nodes: NodeProcesses) -> None:
        self.nodes = nodes
        self.address = nodes.addresses[1]
        self.admin = AdminClient(secured.librdkafka(nodes.bootstrap))
        self.admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        self.producer = Producer(secured.librdkafka(nodes.bootstrap))
        self.context = ssl.create_default_context(cafile=secured.trusted())

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.nodes.pid(1)}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def assert_served(self) -> None:
        failures: list[object] = []
        self.producer.produce("orders", b"x", on_delivery=lambda error, _: failures.append(error))
        assert self.producer.flush(WAIT_S) == 0
        assert failures == [None]
        # A client that connects only now is served as well.
        late = AdminClient(secured.librdkafka(self.nodes.bootstrap))
        assert "orders" in late.list_topics(timeout=WAIT_S).topics

    def plain(self) -> socket.socket:
        return socket.create_connection(self.address, WAIT_S)

    def encrypted(self) -> socket.socket:
        return self.context.wrap_socket(self.plain(), server_hostname="127.0.0.1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # The certificates of clients make a handshake larger.
    asks = {1: {"listener.name.clients.ssl.client.auth": "requested"}}
    directory = tmp_path_factory.mktemp("nodes")
    with NodeProcesses(directory, 1, is_secured=True, of_nodes=asks, **LIMITS) as started:
        yield Target(started)


def silent(target: Target) -> socket.socket:
    return target.plain()


def half_a_hello(target: Target) -> socket.socket:
    client = target.plain()
    client.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"x" * 8_000)
    return client


def half_a_chain(target: Target) -> socket.socket:
    """Announce the longest chain of certificates that may come. TLS 1.2 does not encrypt it."""
    context = ssl.create_default_context(cafile=secured.trusted())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    machine = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        machine.do_handshake()
    client = target.plain()
    client.sendall(outgoing.read())
    answer = b""
    while not answer.endswith(SERVER_HELLO_DONE):
        answer += client.recv(16_384)
    chain = b"\x0b" + (CHAIN_BYTES).to_bytes(3, "big") + (CHAIN_BYTES - 3).to_bytes(3, "big") + b"x" * 16_000
    client.sendall(b"\x16\x03\x03" + len(chain).to_bytes(2, "big") + chain)
    return client


def announces_100_mb(target: Target) -> socket.socket:
    client = target.encrypted()
    with contextlib.suppress(OSError):
        client.sendall(ANNOUNCED_BYTES.to_bytes(4, "big"))
    return client


def most_of_a_frame(target: Target) -> socket.socket:
    client = target.encrypted()
    client.sendall((32 << 10).to_bytes(4, "big") + b"x" * 32_000)
    return client


def most_of_a_token(target: Target) -> socket.socket:
    client = target.encrypted()
    handshake = b"\0\x11\0\1\0\0\0\1\xff\xff\0\5PLAIN"
    client.sendall(len(handshake).to_bytes(4, "big") + handshake)
    assert client.recv(1_000)
    token = b"\0\x24\0\1\0\0\0\2\xff\xff" + (31_000).to_bytes(4, "big") + b"\0" * 30_000
    client.sendall((len(token) + 1_000).to_bytes(4, "big") + token)
    return client


@pytest.mark.parametrize(
    "make",
    [silent, half_a_hello, half_a_chain, announces_100_mb, most_of_a_frame, most_of_a_token],
    ids=lambda make: make.__name__,
)
def test_connections_that_do_not_log_in_cost_little_and_leave_nothing(target: Target, make: Make) -> None:
    """CVE-2022-34917: Kafka's memory was exhausted before any login."""
    target.assert_served()
    sizes = []
    for _ in range(3):
        before = target.resident_bytes()
        with contextlib.ExitStack() as opened:
            for _ in range(CONNECTIONS):
                opened.enter_context(make(target))
            assert target.resident_bytes() - before < CONNECTIONS * CONNECTION_BYTES
            target.assert_served()
        sizes.append(before)
    wait_until(
        lambda: target.resident_bytes() - sizes[1] < LEFT_BYTES, "the memory of closed connections is free"
    )
    target.assert_served()
    assert target.nodes.logged("ERROR") == []


def test_a_thousand_sockets_that_announce_100_mb_each_without_any_security(tmp_path: Path) -> None:
    """CVE-2022-34917 again: memory is reserved for what has come, not for what was announced."""
    with NodeProcesses(tmp_path, 1, is_secured=False, **LIMITS) as started:
        target = Target(started)
        target.assert_served()
        before = target.resident_bytes()
        with contextlib.ExitStack() as opened:
            for _ in range(1_000):
                client = opened.enter_context(target.plain())
                client.sendall(ANNOUNCED_BYTES.to_bytes(4, "big") + b"x" * 1_000)
            target.assert_served()
            assert target.resident_bytes() - before < 1_000 * (64 << 10)


@pytest.mark.parametrize("count", [1, 40])
def test_a_chain_of_huge_certificates_is_refused(target: Target, tmp_path: Path, count: int) -> None:
    """A chain has at most 32 KiB."""
    names = [f"{'x' * 50}.{number}.example.org" for number in range(2_000)]
    made = trustme.CA().issue_cert(*names)
    pem = made.private_key_pem.bytes() + b"".join(each.bytes() for each in made.cert_chain_pems) * count
    path = tmp_path / "huge.pem"
    path.write_bytes(pem)
    context = ssl.create_default_context(cafile=secured.trusted())
    context.load_cert_chain(path)
    before = target.resident_bytes()
    for _ in range(20):
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(target.plain(), server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"\0")
    target.assert_served()
    assert target.resident_bytes() - before < LEFT_BYTES


def test_a_client_that_closes_half_of_its_connection_is_let_go(target: Target) -> None:
    for make in (silent, half_a_hello):
        with make(target) as client:
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                # At most an alert of TLS comes before the end.
                while client.recv(1_000):
                    pass
    target.assert_served()


def test_a_handshake_byte_by_byte_delays_no_other_client(target: Target) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    machine = target.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        machine.do_handshake()
    with target.plain() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = outgoing.read()
        for at, byte in enumerate(hello):
            client.sendall(bytes([byte]))
            if at % 100 == 0:
                target.assert_served()
        assert client.recv(5)[:1] == b"\x16"
