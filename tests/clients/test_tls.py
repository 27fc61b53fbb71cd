"""Stock clients over TLS, what else arrives on its port, and a certificate that changes."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
import trustme
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from kreplica.cli import client_config
from kreplica.cli.app import app
from kreplica.common.errors import InvalidConfig
from kreplica.runtime import tcp_server
from kreplica.runtime.cipher_suites import CipherSuites
from kreplica.runtime.key_store import PEM, KeyStore
from kreplica.runtime.listener import PLAIN, Login
from kreplica.runtime.tls import ServerTls, TlsSettings
from kreplica.security.jaas import PLAIN_MODULE
from kreplica.security.sasl import Secret
from tests.support.tcp_cluster import TcpCluster

WAIT_S = 30
RECORD = b"x" * 200_000


class Store:
    """A key store on disk, and the authority that has signed its certificate."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.trusted = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.trusted))
        self.path = directory / "node.pem"
        self.issue()

    def issue(self) -> None:
        made = self.authority.issue_cert("127.0.0.1", "localhost")
        new = self.path.with_suffix(".new")
        made.private_key_and_cert_chain_pem.write_to_path(str(new))
        os.replace(new, self.path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module", params=["SSL", "SASL_SSL"])
def cluster(
    request: pytest.FixtureRequest, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, TcpCluster]]:
    login = Login(mechanisms=(PLAIN,), passwords={"alice": Secret("sesame")})
    needed = login if request.param == "SASL_SSL" else None
    # Each certificate of trustme has another name.
    settings = TlsSettings(KeyStore(PEM, str(store.path)), allow_dn_changes=True)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, needed, settings) as made:
        properties = librdkafka(request.param, made, store)
        admin = AdminClient(properties)
        for made_topic in admin.create_topics([NewTopic("orders", 2, 2), NewTopic("read", 1, 2)]).values():
            made_topic.result(WAIT_S)
        yield request.param, made


def librdkafka(protocol: str, cluster: TcpCluster, store: Store) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": protocol,
        "ssl.ca.location": str(store.trusted),
        **({} if protocol == "SSL" else {"sasl.mechanism": PLAIN}),
        **({} if protocol == "SSL" else {"sasl.username": "alice", "sasl.password": "sesame"}),
    }


@pytest.fixture
def address(cluster: tuple[str, TcpCluster]) -> tuple[str, int]:
    return next(iter(cluster[1].client_addresses.values()))


def test_confluent_kafka_writes_and_reads(cluster: tuple[str, TcpCluster], store: Store) -> None:
    properties = librdkafka(*cluster, store)
    producer = Producer(properties)
    for number in range(20):
        producer.produce("read", RECORD + b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**properties, "group.id": "readers", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["read"])
        found = [consumer.poll(WAIT_S) for _ in range(20)]
    finally:
        consumer.close()
    assert [message.value() for message in found] == [RECORD + b"%d" % number for number in range(20)]


def test_kafka_python_writes(cluster: tuple[str, TcpCluster], store: Store) -> None:
    protocol, nodes = cluster
    login = {"sasl_mechanism": PLAIN, "sasl_plain_username": "alice", "sasl_plain_password": "sesame"}
    producer = kafka.KafkaProducer(
        bootstrap_servers=nodes.bootstrap_servers,
        security_protocol=protocol,
        ssl_cafile=str(store.trusted),
        **({} if protocol == "SSL" else login),
    )
    assert producer.send("orders", b"a", partition=1).get(WAIT_S).partition == 1
    producer.close()


def test_commands_connect(cluster: tuple[str, TcpCluster], store: Store, tmp_path: Path) -> None:
    protocol, nodes = cluster
    jaas = f'{PLAIN_MODULE} required username="alice" password="sesame";'
    file = tmp_path / "client.properties"
    login = "" if protocol == "SSL" else f"sasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n"
    file.write_text(f"security.protocol={protocol}\nssl.truststore.location={store.trusted}\n{login}")
    environment = {"KREPLICA_BOOTSTRAP": nodes.bootstrap_servers, "KREPLICA_COMMAND_CONFIG": str(file)}
    try:
        for command in (("topic", "describe", "orders"), ("group", "list"), ("quorum", "describe")):
            ran = CliRunner().invoke(app, command, env=environment)
            assert ran.exit_code == 0, (ran.output, ran.exception)
    finally:
        client_config.use(None)


def test_without_uvloop_it_is_the_same(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with TcpCluster(tmp_path, 1, tls=TlsSettings(KeyStore(PEM, str(store.path)))) as nodes:
        properties = librdkafka("SSL", nodes, store)
        admin = AdminClient(properties)
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        producer = Producer(properties)
        for _ in range(20):
            producer.produce("orders", RECORD, partition=0)
        assert producer.flush(WAIT_S) == 0


def test_a_client_that_trusts_another_authority_does_not_connect(
    cluster: tuple[str, TcpCluster], store: Store, tmp_path: Path
) -> None:
    other = {**librdkafka(*cluster, store), "ssl.ca.location": str(Store(tmp_path).trusted)}
    with pytest.raises(KafkaException):
        AdminClient(other).list_topics(timeout=3)


NOISE = [b"\0\0\0\x13\0\x12\0\0" + bytes(15), b"GET / HTTP/1.1\r\n\r\n", bytes(70_000)]


@pytest.mark.parametrize("noise", NOISE, ids=["a request", "HTTP", "zeros"])
def test_what_is_no_tls_is_closed(address: tuple[str, int], noise: bytes) -> None:
    with socket.create_connection(address, 20) as client:
        client.sendall(noise)
        with_answer = b""
        try:
            while more := client.recv(1 << 16):
                with_answer += more
        except ConnectionResetError:
            pass
        # At most an alert of TLS.
        assert len(with_answer) < 100


def test_a_handshake_that_is_not_finished_is_let_go(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "TLS_HANDSHAKE_TIMEOUT_S", 0.1)
    with socket.create_connection(address, 20) as client:
        client.sendall(b"\x16\x03\x01")
        assert client.recv(100) == b""


def test_unfinished_handshakes_keep_no_client_out(
    cluster: tuple[str, TcpCluster], address: tuple[str, int], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [server] = [
        server
        for node in cluster[1].nodes.values()
        for listener, server in node._alive().servers
        if listener.address == address
    ]
    monkeypatch.setattr(server, "config", server.config.replace({"max.connections": 8}))
    silent = [socket.create_connection(address, 20) for _ in range(12)]
    try:
        assert serial(address, store) > 0
        # The oldest ones were let go.
        assert silent[0].recv(100) == b""
    finally:
        for each in silent:
            each.close()


def serial(address: tuple[str, int], store: Store) -> int:
    context = ssl.create_default_context(cafile=str(store.trusted))
    with (
        socket.create_connection(address, 20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        found = client.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_changed_certificate_is_used_and_a_broken_one_is_not(
    address: tuple[str, int], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = serial(address, store)
    store.issue()
    renewed = serial(address, store)
    assert renewed != before
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:100])
    assert serial(address, store) == renewed
    assert "use the previous certificate" in caplog.text
    store.path.write_bytes(whole)
    assert serial(address, store) == renewed


def test_a_key_store_that_cannot_be_used(tmp_path: Path) -> None:
    for name, text in (("missing", None), ("empty", b""), ("noise", b"-----BEGIN CERTIFICATE-----\n")):
        path = tmp_path / name
        if text is not None:
            path.write_bytes(text)
        with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.location="):
            ServerTls(TlsSettings(KeyStore(PEM, str(path))))


def test_versions_of_tls_are_those_of_the_setting(store: Store) -> None:
    made = ServerTls(TlsSettings(KeyStore(PEM, str(store.path)), suites=CipherSuites(("TLSv1.3",)))).context()
    assert made.minimum_version == made.maximum_version == ssl.TLSVersion.TLSv1_3
