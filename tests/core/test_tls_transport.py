"""TLS over a plain transport that the test plays, against Python's own TLS as the client."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.task_queue import TaskQueue
from kreplica._core.tls_transport import RETRY, RETRY_AT, TlsTransport

RECORD_BYTES = 16_384
SIZES = [1, 100, RECORD_BYTES, RECORD_BYTES + 1, 70_000, 1 << 20]


class Tasks(TaskQueue):
    """Runs its tasks when the test says so."""

    def wake_soon(self) -> None:
        """Wait for the test."""

    def report(self, _name: str, error: BaseException) -> None:
        raise error


class Plain:
    """The transport below: keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_paused = self.is_closed = self.is_aborted = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def writelines(self, buffers: list[Any]) -> None:
        self.write(b"".join(buffers))

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def taken(self) -> bytes:
        written, self.written = self.written, []
        return b"".join(written)


class Protocol:
    """What the transport serves: keeps what comes."""

    def __init__(self, size: int = 65_536) -> None:
        self.buffer = bytearray(size)
        self.came = b""
        self.events: list[str] = []
        # Called with each part.
        self.then: Callable[[], object] = lambda: None

    def get_buffer(self, _hint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        self.came += self.buffer[:size]
        self.then()

    def eof_received(self) -> None:
        self.events.append("eof")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, _error: Exception | None) -> None:
        self.events.append("lost")


class Served(TlsTransport):
    """The server's side."""

    def __init__(self, context: ssl.SSLContext, protocol: Protocol) -> None:
        self.socket_buffer = ReceiveBuffer()
        self.tasks_of_test = Tasks()
        self.tasks_of_test.begin_here(lambda: 0.0)
        super().__init__(context, self.socket_buffer, self.tasks_of_test, is_server=True)
        self.plain = Plain()
        self.served = protocol
        self.failures: list[Exception] = []
        self.connection_made(self.plain)

    def handshake_done(self) -> Protocol:
        return self.served

    def handshake_failed(self, error: Exception) -> None:
        self.failures.append(error)

    def receive(self, data: bytes, step: int = 65_536) -> None:
        """Take bytes as an event loop delivers them."""
        for at in range(0, len(data), step):
            part = data[at : at + step]
            memoryview(self.get_buffer(-1))[: len(part)] = part
            self.buffer_updated(len(part))


class Client:
    """A client's side, over memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def hello(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def connect(self, server: Served, step: int = 65_536) -> None:
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            server.receive(self.outgoing.read(), step)
            self.incoming.write(server.plain.taken())
        self.tls.do_handshake()

    def encrypted(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.outgoing.read()

    def decrypted(self, data: bytes) -> bytes:
        self.incoming.write(data)
        found = b""
        while True:
            try:
                part = self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                return found
            if not part:
                return found
            found += part


class Contexts:
    """The contexts of both sides, which trust each other."""

    def __init__(self, authority: trustme.CA, certificate: trustme.LeafCert) -> None:
        self.authority = authority
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self.server)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(self.client)


@pytest.fixture(scope="module")
def issued() -> tuple[trustme.CA, trustme.LeafCert]:
    authority = trustme.CA()
    return authority, authority.issue_cert("127.0.0.1")


@pytest.fixture
def contexts(issued: tuple[trustme.CA, trustme.LeafCert]) -> Contexts:
    return Contexts(*issued)


@pytest.fixture
def both(contexts: Contexts) -> tuple[Served, Client]:
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    client.connect(server)
    return server, client


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_what_a_client_sends_comes_whole(both: tuple[Served, Client], size: int, is_trusted: bool) -> None:
    server, client = both
    server.is_trusted = is_trusted
    data = bytes(range(256)) * (size // 256 + 1)
    for step in (65_536, 777):
        server.served.came = b""
        server.receive(client.encrypted(data), step)
        assert server.served.came == data


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_comes_whole(both: tuple[Served, Client], size: int) -> None:
    server, client = both
    data = bytes(range(256)) * (size // 256 + 1)
    server.write(data)
    assert client.decrypted(server.plain.taken()) == data
    parts = [b"", data[:10], memoryview(data)[10:90], data[90:], b"end", data, b"x" * 9_000, b"y" * 9_000]
    server.writelines(parts)
    assert client.decrypted(server.plain.taken()) == b"".join(parts)


def test_small_answers_share_a_record(both: tuple[Served, Client]) -> None:
    server, client = both
    server.writelines([b"a" * 20, b"b" * 30])
    sent = server.plain.taken()
    assert int.from_bytes(sent[3:5], "big") == len(sent) - 5
    assert client.decrypted(sent) == b"a" * 20 + b"b" * 30


def test_a_handshake_that_comes_byte_by_byte(contexts: Contexts) -> None:
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    client.connect(server, 1)
    server.receive(client.encrypted(b"hello"), 1)
    assert server.served.came == b"hello"


def test_a_paused_protocol_gets_the_rest_later(both: tuple[Served, Client]) -> None:
    server, client = both
    server.served.then = server.pause_reading
    server.receive(client.encrypted(b"x" * 200_000))
    assert server.plain.is_paused
    assert 0 < len(server.served.came) <= 65_536
    server.served.then = lambda: None
    server.resume_reading()
    assert not server.plain.is_paused
    server.tasks_of_test.run_tasks()
    assert len(server.served.came) == 200_000


STEPS = st.lists(
    st.tuples(
        st.integers(0, 40_000), st.sampled_from([1, 7, 4_095, 4_096, 4_097, 16_406, 65_536]), st.booleans()
    ),
    max_size=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=STEPS, size=st.sampled_from([1_000, 16_384, 65_536]), is_trusted=st.booleans())
def test_bytes_keep_their_order_however_they_come_and_whenever_the_protocol_pauses(
    contexts: Contexts, steps: list[tuple[int, int, bool]], size: int, is_trusted: bool
) -> None:
    server, client = Served(contexts.server, Protocol(size)), Client(contexts.client)
    client.connect(server)
    server.is_trusted = is_trusted
    sent, answered = b"", b""
    for number, (length, step, pauses) in enumerate(steps):
        data = bytes([number]) * length
        sent += data
        server.served.then = server.pause_reading if pauses else (lambda: None)
        if length:
            server.receive(client.encrypted(data), max(step, length // 50))
        server.write(data)
        answered += client.decrypted(server.plain.taken())
        # As an event loop: tasks run between two reads.
        server.served.then = lambda: None
        server.resume_reading()
        server.tasks_of_test.run_tasks()
        assert server.served.came == sent
    assert answered == sent


def test_a_protocol_that_closes_gets_no_more(both: tuple[Served, Client]) -> None:
    server, client = both
    server.served.then = server.close
    server.receive(client.encrypted(b"x" * 200_000))
    assert len(server.served.came) <= 65_536
    assert server.plain.is_closed
    # The client gets to know that this is the end, and no attack.
    client.incoming.write(server.plain.taken())
    assert client.tls.read(1) == b""
    server.write(b"late")
    server.writelines([b"late"])
    assert server.plain.taken() == b""


def test_a_client_that_says_that_it_ends(both: tuple[Served, Client]) -> None:
    server, client = both
    data = client.encrypted(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    server.receive(data + client.outgoing.read())
    assert (server.served.came, server.served.events) == (b"last", ["eof"])
    assert server.plain.is_closed
    server.connection_lost(None)
    assert server.served.events == ["eof", "lost"]
    assert server.protocol is None


def test_changed_bytes_end_the_connection(both: tuple[Served, Client]) -> None:
    server, client = both
    sent = bytearray(client.encrypted(b"x" * 100))
    sent[50] ^= 1
    server.receive(bytes(sent))
    assert (server.served.came, server.plain.is_closed, server.failures) == (b"", True, [])


def test_events_of_the_socket_are_passed_on(both: tuple[Served, Client]) -> None:
    server, _ = both
    server.pause_writing()
    server.resume_writing()
    server.eof_received()
    server.connection_lost(None)
    assert server.served.events == ["pause", "resume", "eof", "lost"]


def test_a_client_that_leaves_during_the_handshake(contexts: Contexts) -> None:
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello()[:100])
    server.eof_received()
    server.connection_lost(None)
    assert [type(each) for each in server.failures] == [ConnectionResetError]
    assert server.served.events == []


# ---- what strangers send --------------------------------------------------------------------------------


def claimed(length: int, message: int, kind: int = 1) -> bytes:
    """Return the header of a record and of the message in it, with these lengths."""
    return b"\x16\x03\x01" + length.to_bytes(2, "big") + bytes([kind]) + message.to_bytes(3, "big")


HELLOS = {
    "128 KiB claimed": claimed(1_000, 131_000) + b"x" * 900,
    "a header in two records": b"\x16\x03\x01\0\1\1" + b"\x16\x03\x01\0\3\1\xff\xff",
    "another message": claimed(1_000, 996, kind=11),
    "no handshake at first": b"\x14\x03\x03\0\1\1" + claimed(100, 96),
}


@pytest.mark.parametrize("sent", HELLOS.values(), ids=HELLOS)
@pytest.mark.parametrize("step", [1, 4_096])
def test_a_handshake_begins_with_one_whole_hello(contexts: Contexts, sent: bytes, step: int) -> None:
    server = Served(contexts.server, Protocol())
    server.receive(sent, step)
    assert [type(each) for each in server.failures] == [ConnectionAbortedError]
    assert server.plain.is_closed


def test_nothing_may_come_behind_the_hello_before_its_answer(contexts: Contexts) -> None:
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello() + claimed(1_000, 131_000))
    assert "more than a ClientHello" in str(server.failures)


def test_a_client_may_be_asked_for_a_second_hello(contexts: Contexts) -> None:
    contexts.server.set_ecdh_curve("secp521r1")
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello())
    answer = server.plain.taken()
    assert answer[RETRY_AT : RETRY_AT + len(RETRY)] == RETRY
    client.incoming.write(answer)
    client.connect(server, 100)
    server.receive(client.encrypted(b"hello"))
    assert server.served.came == b"hello"


@pytest.mark.parametrize("before", [b"", b"\x14\x03\x03\0\1\1"], ids=["alone", "behind another record"])
def test_the_second_hello_may_claim_no_more_than_the_first(contexts: Contexts, before: bytes) -> None:
    contexts.server.set_ecdh_curve("secp521r1")
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello())
    server.receive(before + claimed(1_000, 131_000))
    assert "one whole ClientHello" in str(server.failures)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(70_000)], ids=["HTTP", "zeros"])
def test_what_is_no_tls_is_named_by_openssl(contexts: Contexts, noise: bytes) -> None:
    server = Served(contexts.server, Protocol())
    server.receive(noise)
    assert [type(each) for each in server.failures] == [ssl.SSLError]
    assert server.plain.is_closed
    server.connection_lost(None)
    assert len(server.failures) == 1


def test_a_handshake_has_a_bounded_size(contexts: Contexts, tmp_path: Path) -> None:
    """The only large message is a chain of certificates."""
    contexts.server.verify_mode = ssl.CERT_OPTIONAL
    contexts.authority.configure_trust(contexts.server)
    names = [f"{'x' * 50}.{number}.example.org" for number in range(600)]
    made = contexts.authority.issue_cert(*names)
    path = tmp_path / "large.pem"
    path.write_bytes(made.private_key_pem.bytes() + made.cert_chain_pems[0].bytes())
    contexts.client.load_cert_chain(path)
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello())
    client.incoming.write(server.plain.taken())
    client.tls.do_handshake()
    server.receive(client.outgoing.read())
    assert "a handshake of more than 32768 bytes" in str(server.failures)


def test_a_client_with_a_refused_certificate_is_told(contexts: Contexts) -> None:
    contexts.server.verify_mode = ssl.CERT_REQUIRED
    contexts.authority.configure_trust(contexts.server)
    server, client = Served(contexts.server, Protocol()), Client(contexts.client)
    server.receive(client.hello())
    client.incoming.write(server.plain.taken())
    client.tls.do_handshake()
    server.receive(client.outgoing.read())
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in str(server.failures)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        client.decrypted(server.plain.taken())
