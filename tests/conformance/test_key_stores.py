"""Stores that Java's keytool makes: PKCS12 is read, and a JKS after the conversion that its refusal shows."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from kreplica.common.errors import InvalidConfig
from kreplica.runtime.key_store import KeyStore, TrustStore
from kreplica.runtime.tls import ClientTls, ServerTls, TlsSettings, TrustSettings
from kreplica.security.sasl import Secret
from tests.unit.runtime.test_key_store import shake_hands

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(shutil.which("keytool") is None, reason="needs Java's keytool"),
]
PASSWORD = "sesame"
SECRET = Secret(PASSWORD)


def keytool(directory: Path, *arguments: str) -> None:
    passwords = ("-storepass", PASSWORD, "-noprompt")
    subprocess.run(["keytool", *arguments, *passwords], cwd=directory, check=True, capture_output=True)


def make_key(directory: Path, store: str, kind: str) -> None:
    name = ("-dname", "CN=node, O=example", "-ext", "SAN=dns:localhost", "-keyalg", "EC")
    keytool(directory, "-genkeypair", "-alias", "node", "-keystore", store, "-storetype", kind, *name)


def check(store: KeyStore, trusted: TrustStore) -> None:
    server = ServerTls(TlsSettings(store)).context()
    found = shake_hands(server, ClientTls(TrustSettings(trusted)).context())
    assert (("commonName", "node"),) in found["subject"]


def test_stores_in_pkcs12(tmp_path: Path) -> None:
    make_key(tmp_path, "node.p12", "PKCS12")
    keytool(tmp_path, "-exportcert", "-alias", "node", "-keystore", "node.p12", "-rfc", "-file", "node.pem")
    entry = ("-alias", "ours", "-file", "node.pem")
    keytool(tmp_path, "-importcert", *entry, "-keystore", "trust.p12", "-storetype", "PKCS12")
    store = KeyStore("PKCS12", str(tmp_path / "node.p12"), SECRET)
    check(store, TrustStore("PKCS12", str(tmp_path / "trust.p12"), SECRET))
    check(store, TrustStore("PEM", str(tmp_path / "node.pem")))
    make_key(tmp_path, "other.p12", "PKCS12")
    with pytest.raises(ssl.SSLError):
        check(
            KeyStore("PKCS12", str(tmp_path / "other.p12"), SECRET),
            TrustStore("PEM", str(tmp_path / "node.pem")),
        )


def test_a_jks_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    make_key(tmp_path, "store.jks", "JKS")
    with pytest.raises(InvalidConfig, match="is a JKS") as refused:
        KeyStore("PKCS12", str(tmp_path / "store.jks"), SECRET).read()
    found = re.search("`(keytool .*)`", str(refused.value))
    assert found is not None
    passwords = ["-srcstorepass", PASSWORD, "-deststorepass", PASSWORD]
    command = [*shlex.split(found[1]), *passwords]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert KeyStore("PKCS12", str(tmp_path / "store.p12"), SECRET).read().certificates
