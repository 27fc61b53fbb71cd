"""Clients in Java, Go and JavaScript log in by each mechanism, and are refused as Kafka refuses.

The nodes listen once with SASL_PLAINTEXT, once with SASL_SSL and once with SSL and certificates of clients.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as Mechanism

from kreplica.runtime.key_store import PEM, KeyStore, TrustStore
from kreplica.runtime.listener import MECHANISMS, PLAIN, Login
from kreplica.runtime.tls import TlsSettings
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from kreplica.security.sasl import Secret
from tests.conformance.foreign_clients import FRANZ_GO, KAFKAJS, Program
from tests.conformance.kafka_peer import PeerError, missing, run_java
from tests.support.tcp_cluster import TcpCluster

pytestmark = pytest.mark.conformance

WAIT_S = 60.0
TOPICS = "org.apache.kafka.tools.TopicCommand"
USER, PASSWORD, WRONG = "alice", "sesame", "open sesame"


@pytest.fixture(scope="session", autouse=True)
def _kafka() -> None:
    """Kafka itself is not needed here, but for its client in Java."""


class Certificates:
    """An authority, and files with certificates that it has signed, or another one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.trusted = str(directory / "ca.pem")
        self._authority.cert_pem.write_to_path(self.trusted)
        self.of_node = self.issue(self._authority, "127.0.0.1")
        self.of_client = self.issue(self._authority, "client.example.org")
        self.of_stranger = self.issue(trustme.CA(), "stranger.example.org")

    def issue(self, authority: trustme.CA, name: str) -> str:
        path = self._directory / f"{name}.pem"
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL"])
def sasl(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[tuple[str, TcpCluster]]:
    """A node at which alice logs in by each mechanism, and its protocol."""
    login = Login(mechanisms=MECHANISMS, passwords={USER: Secret(PASSWORD)})
    tls = TlsSettings(KeyStore(PEM, certificates.of_node)) if request.param == "SASL_SSL" else None
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, login, tls) as made:
        admin = AdminClient(
            {
                "bootstrap.servers": made.bootstrap_servers,
                "security.protocol": request.param,
                "ssl.ca.location": certificates.trusted,
                "sasl.mechanism": PLAIN,
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        for mechanism in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            upsertion = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
            admin.alter_user_scram_credentials([upsertion])[USER].result(WAIT_S)
        yield request.param, made


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TcpCluster]:
    """A node whose clients need certificates."""
    tls = TlsSettings(
        KeyStore(PEM, certificates.of_node),
        client_auth="required",
        truststore=TrustStore(PEM, certificates.trusted),
    )
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, None, tls) as made:
        yield made


@pytest.fixture(params=[FRANZ_GO, KAFKAJS], ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    if reason := found.missing():
        pytest.skip(reason)
    return found


def run(program: Program, servers: str, case: str, **variables: str) -> tuple[int, str]:
    """Run a case with these variables of its environment; return its exit code, and what it printed."""
    done = subprocess.run(
        [*program.make(), servers, case],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_logs_in_and_is_refused_with_a_wrong_password(
    sasl: tuple[str, TcpCluster], certificates: Certificates, program: Program, mechanism: str
) -> None:
    protocol, nodes = sasl
    login = {"CLIENT_MECHANISM": mechanism, "CLIENT_USER": USER}
    if protocol == "SASL_SSL":
        login["CLIENT_CA"] = certificates.trusted
    code, printed = run(program, nodes.bootstrap_servers, "records", **login, CLIENT_PASSWORD=PASSWORD)
    assert code == 0, printed
    code, printed = run(program, nodes.bootstrap_servers, "refused-login", **login, CLIENT_PASSWORD=WRONG)
    assert code == 0, printed


def test_a_client_needs_a_certificate(
    mutual: TcpCluster, certificates: Certificates, program: Program
) -> None:
    encrypted = {"CLIENT_CA": certificates.trusted}
    servers, own = mutual.bootstrap_servers, certificates.of_client
    code, printed = run(program, servers, "records", **encrypted, CLIENT_CERTIFICATE=own)
    assert code == 0, printed
    code, printed = run(program, servers, "refused-certificate", **encrypted)
    assert code == 0, printed
    stranger = certificates.of_stranger
    code, printed = run(program, servers, "refused-certificate", **encrypted, CLIENT_CERTIFICATE=stranger)
    assert code == 0, printed


# ---- Java ------------------------------------------------------------------------------------------------


def topics(directory: Path, servers: str, properties: dict[str, str], timeout_ms: int = 60_000) -> str:
    """What Kafka's tool lists with these properties of its client, which tries until the timeout."""
    if reason := missing():
        pytest.skip(reason)
    path = directory / "client.properties"
    # A client that cannot encrypt tries again until then.
    limits = {"default.api.timeout.ms": f"{timeout_ms}", "request.timeout.ms": f"{timeout_ms - 1000}"}
    path.write_text("".join(f"{name}={value}\n" for name, value in {**limits, **properties}.items()))
    return run_java(TOPICS, "--bootstrap-server", servers, "--command-config", str(path), "--list")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_client_logs_in_and_is_refused_with_a_wrong_password(
    sasl: tuple[str, TcpCluster], certificates: Certificates, tmp_path: Path, mechanism: str
) -> None:
    protocol, nodes = sasl

    def properties(password: str) -> dict[str, str]:
        module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        return {
            "security.protocol": protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates.trusted,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
        }

    assert "orders" in topics(tmp_path, nodes.bootstrap_servers, properties(PASSWORD))
    with pytest.raises(PeerError, match="SaslAuthenticationException"):
        topics(tmp_path, nodes.bootstrap_servers, properties(WRONG))


def test_javas_client_needs_a_certificate(
    mutual: TcpCluster, certificates: Certificates, tmp_path: Path
) -> None:
    trust: dict[str, Any] = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.trusted,
    }
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": as_pkcs8(certificates.of_client, tmp_path)}
    topics(tmp_path, mutual.bootstrap_servers, {**trust, **own})
    other = {**own, "ssl.keystore.location": as_pkcs8(certificates.of_stranger, tmp_path)}
    for wrong in (trust, {**trust, **other}):
        with pytest.raises(PeerError, match=r"SslAuthenticationException|TimeoutException"):
            topics(tmp_path, mutual.bootstrap_servers, wrong, 10_000)


def as_pkcs8(path: str, directory: Path) -> str:
    """Return a file with the key in the only form that Java reads, before the certificates."""
    from cryptography.hazmat.primitives import serialization

    text = Path(path).read_bytes()
    key = serialization.load_pem_private_key(text, None)
    made = directory / Path(path).name
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made.write_bytes(key.private_bytes(*form) + text[text.index(b"-----BEGIN CERTIFICATE") :])
    return str(made)
