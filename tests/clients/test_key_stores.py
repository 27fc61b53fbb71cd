"""Stores in PKCS12, and in properties, on both ends of a connection: listeners, commands, stock clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from typer.testing import CliRunner

from kreplica.cli.app import app
from kreplica.runtime.key_store import KeyStore, TrustStore
from kreplica.runtime.tls import TlsSettings
from kreplica.security.sasl import Secret
from tests.support.tcp_cluster import TcpCluster

PASSWORD = "sesame"
HIDDEN = BestAvailableEncryption(PASSWORD.encode())


class Stores:
    """An authority in a trust store, and one certificate for the node and one for a client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        root = load_pem_x509_certificate(self.authority.cert_pem.bytes())
        self.trusted = directory / "trust.p12"
        self.trusted.write_bytes(
            pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(root, b"ca")], HIDDEN)
        )
        self.node = self._store("node", self.authority.issue_cert("127.0.0.1"))
        self.made = self.authority.issue_cert("alice@example.org")
        self.client = self._store("client", self.made)

    def _store(self, name: str, made: trustme.LeafCert) -> Path:
        key: Any = load_pem_private_key(made.private_key_pem.bytes(), None)
        chain = [load_pem_x509_certificate(each.bytes()) for each in made.cert_chain_pems]
        path = self.directory / f"{name}.p12"
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, chain[0], chain[1:], HIDDEN)
        )
        return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def cluster(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    secret = Secret(PASSWORD)
    settings = TlsSettings(
        KeyStore("PKCS12", str(stores.node), secret),
        "required",
        TrustStore("PKCS12", str(stores.trusted), secret),
    )
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 1, None, settings) as made:
        yield made


def in_files(stores: Stores) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(stores.client),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(stores.trusted),
        "ssl.truststore.password": PASSWORD,
    }


def in_properties(stores: Stores) -> dict[str, str]:
    made = stores.made
    texts = {
        "ssl.keystore.key": made.private_key_pem.bytes(),
        "ssl.keystore.certificate.chain": b"".join(each.bytes() for each in made.cert_chain_pems),
        "ssl.truststore.certificates": stores.authority.cert_pem.bytes(),
    }
    lines = {name: text.decode().replace("\n", " ") for name, text in texts.items()}
    return {"ssl.keystore.type": "PEM", **lines}


@pytest.mark.parametrize("properties", [in_files, in_properties])
def test_commands_connect_by_their_own_sockets_and_by_the_stock_client(
    cluster: TcpCluster, stores: Stores, tmp_path: Path, properties: Any
) -> None:
    name = properties.__name__
    file = tmp_path / "client.properties"
    lines = {"security.protocol": "SSL", **properties(stores)}
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def run(*arguments: str, text: str = "") -> str:
        found = CliRunner().invoke(
            app,
            ["--command-config", str(file), *arguments],
            input=text,
            env={"KREPLICA_BOOTSTRAP": cluster.bootstrap_servers},
        )
        assert found.exit_code == 0, found.output
        return found.stdout

    run("topic", "create", name)
    run("produce", name, text="of alice\n")
    consumed = json.loads(run("consume", name, "--limit", "1", "--json"))
    assert consumed["value"] == "of alice"
    assert "leader" in run("quorum", "describe", "--json")


def test_without_a_key_a_command_is_refused(cluster: TcpCluster, stores: Stores, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    trusting = {name: value for name, value in in_files(stores).items() if "truststore" in name}
    file.write_text("security.protocol=SSL\n" + "".join(f"{each}={trusting[each]}\n" for each in trusting))
    found = CliRunner().invoke(
        app,
        ["--command-config", str(file), "quorum", "describe"],
        env={"KREPLICA_BOOTSTRAP": cluster.bootstrap_servers},
    )
    assert found.exit_code != 0
