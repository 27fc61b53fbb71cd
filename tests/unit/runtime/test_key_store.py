"""Key stores and trust stores: what is read from PEM and PKCS12, and which properties are refused."""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kreplica.common.errors import InvalidConfig
from kreplica.runtime.cipher_suites import CipherSuites
from kreplica.runtime.key_store import KeyStore, TrustStore, file_of, key_store_of, trust_store_of
from kreplica.runtime.tls import ClientTls, ServerTls, TlsSettings, TrustSettings
from kreplica.security.sasl import Secret

NOW = datetime.datetime.now(datetime.UTC)
PASSWORD = "sesame"


class Made:
    """A key, its certificate, and the authority that signed that through another one."""

    def __init__(self, days: int = 90) -> None:
        root_key, self.root = certificate("root", days=days)
        middle_key, self.middle = certificate("middle", root_key, self.root, days=days)
        self.key, self.leaf = certificate("node", middle_key, self.middle, hosts=["localhost"], days=days)
        self.chain = [self.leaf, self.middle]

    def key_pem(self, password: str = "", form: Any = serialization.PrivateFormat.PKCS8) -> str:
        hidden: Any = serialization.NoEncryption()
        if password:
            hidden = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(serialization.Encoding.PEM, form, hidden).decode()

    @property
    def chain_pem(self) -> str:
        return "".join(pem(each) for each in self.chain)

    def pkcs12(self, password: str = PASSWORD) -> bytes:
        # The store has the authorities in any order.
        return pkcs12.serialize_key_and_certificates(
            b"node",
            self.key,
            self.leaf,
            [self.root, self.middle],
            serialization.BestAvailableEncryption(password.encode()),
        )


def certificate(
    name: str,
    signer: Any = None,
    issuer: Any = None,
    hosts: Sequence[str] = (),
    key: Any = None,
    days: int = 90,
    text_type: Any = None,
) -> tuple[Any, x509.Certificate]:
    own = ec.generate_private_key(ec.SECP256R1()) if key is None else key
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name, _type=text_type)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=1))
        .not_valid_after(NOW + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
    )
    if hosts:
        made = made.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), critical=False
        )
    return own, made.sign(own if signer is None else signer, hashes.SHA256())


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], str]:
    def written(name: str, data: bytes | str) -> str:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return written


Write = Callable[[str, bytes | str], str]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Return the certificate that the client sees. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for each in (other, one):
            with contextlib.suppress(ssl.SSLWantReadError):
                each.do_handshake()
    found = other.getpeercert()
    assert found is not None
    return found


def check(store: KeyStore, trusted: TrustStore) -> None:
    server = ServerTls(TlsSettings(store)).context()
    client = ClientTls(TrustSettings(trusted)).context()
    assert shake_hands(server, client)["subject"] == ((("commonName", "node"),),)


# ---- what is read ------------------------------------------------------------------------------------------


def test_pem_in_a_file_with_text_around_it(made: Made, write: Write) -> None:
    text = f"subject=node\n{made.key_pem()}and its chain:\n{made.chain_pem}\n"
    store = KeyStore("PEM", write("node.pem", text))
    assert store.read().certificates == (der(made.leaf), der(made.middle))
    check(store, TrustStore("PEM", write("ca.pem", f"# ours\n{pem(made.root)}")))


def test_an_encrypted_key_needs_its_password(made: Made, write: Write) -> None:
    path = write("node.pem", made.key_pem(PASSWORD) + made.chain_pem)
    trusted = TrustStore("PEM", certificates=pem(made.root))
    check(KeyStore("PEM", path, key_password=Secret(PASSWORD)), trusted)
    for wrong in (None, Secret("other")):
        with pytest.raises(InvalidConfig, match="another password") as refused:
            ServerTls(TlsSettings(KeyStore("PEM", path, key_password=wrong)))
        assert "other:" not in str(refused.value)


def test_a_legacy_key_is_accepted(write: Write) -> None:
    key = rsa.generate_private_key(65537, 2048)
    _, leaf = certificate("node", hosts=["localhost"], key=key)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
    assert "RSA PRIVATE KEY" in text
    store = KeyStore("PEM", write("node.pem", text + pem(leaf)))
    assert ServerTls(TlsSettings(store)).certificates == {"key": (der(leaf),)}


def test_pem_in_properties_may_be_one_line(made: Made) -> None:
    names = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
    lines = (" ".join(each.split("\n")) for each in (made.key_pem(), made.chain_pem))
    properties = {"ssl.keystore.type": "PEM", **dict(zip(names, lines, strict=True))}
    store = key_store_of(properties.get, "listener A")
    trusted = trust_store_of({"ssl.truststore.certificates": pem(made.root)}.get, "listener A")
    assert store is not None
    assert trusted is not None
    check(store, trusted)
    hidden = "".join(made.key_pem().split("\n")[1:3])
    assert hidden not in repr(store)
    assert "BEGIN PRIVATE" not in repr(store)


def test_pkcs12(made: Made, write: Write) -> None:
    store = KeyStore("PKCS12", write("node.p12", made.pkcs12()), Secret(PASSWORD))
    # The chain is in order, though the store has none.
    assert store.read().certificates == (der(made.leaf), der(made.middle), der(made.root))
    own = pkcs12.PKCS12Certificate(made.root, b"ours")
    trusted = pkcs12.serialize_java_truststore(
        [own], serialization.BestAvailableEncryption(PASSWORD.encode())
    )
    check(store, TrustStore("PKCS12", write("trust.p12", trusted), Secret(PASSWORD)))


def test_pkcs12_of_another_password_or_without_a_key(made: Made, write: Write) -> None:
    with pytest.raises(InvalidConfig, match="no PKCS12 store, or another password") as refused:
        KeyStore("PKCS12", write("node.p12", made.pkcs12()), Secret("wrong")).read()
    assert "wrong" not in str(refused.value)
    alone = pkcs12.serialize_key_and_certificates(
        b"ca", None, None, [made.root], serialization.BestAvailableEncryption(PASSWORD.encode())
    )
    path = write("ca.p12", alone)
    with pytest.raises(InvalidConfig, match="no private key with a certificate in PKCS12"):
        KeyStore("PKCS12", path, Secret(PASSWORD)).read()
    assert TrustStore("PKCS12", path, Secret(PASSWORD)).read() == (der(made.root),)


def test_a_file_that_is_no_store(made: Made, write: Write) -> None:
    jks = write("store.jks", b"\xfe\xed\xfe\xed\0\0\0\2")
    for read in (KeyStore("PKCS12", jks, Secret("a")).read, TrustStore("PEM", jks).read):
        with pytest.raises(InvalidConfig, match=r"is a JKS\. Convert a JKS with `keytool -importkeystore"):
            read()
    two = write("two.pem", made.key_pem() * 2 + made.chain_pem)
    with pytest.raises(InvalidConfig, match="2 keys and 2 certificates; one key is needed"):
        KeyStore("PEM", two).read()
    with pytest.raises(InvalidConfig, match="no certificates in PEM"):
        TrustStore("PEM", write("empty.pem", "")).read()
    with pytest.raises(InvalidConfig, match="cannot be read"):
        TrustStore("PEM", certificates="-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----").read()
    other = write("other.pem", made.key_pem() + pem(made.root))
    with pytest.raises(InvalidConfig, match="no key and certificates that fit each other"):
        ServerTls(TlsSettings(KeyStore("PEM", other)))


def test_the_file_of_a_key_is_gone_afterwards() -> None:
    with file_of(Secret("key")) as path:
        assert Path(path).read_text() == "key"
        assert os.stat(path).st_uid == os.getuid()
    assert not os.path.exists(path)


# ---- properties --------------------------------------------------------------------------------------------


INLINE = {"ssl.keystore.type": "PEM", "ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c"}


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"ssl.keystore.type": "JKS", "ssl.keystore.location": "/a"},
            "=JKS for me must be PEM or PKCS12",
        ),
        ({"ssl.keystore.location": "/a"}, "JKS, if it is not given.* Convert a JKS with `keytool"),
        ({"ssl.keystore.type": "PEM"}, "ssl.keystore.location is missing for me"),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/a", "ssl.keystore.password": "p"},
            "ssl.keystore.password for me: a file in PEM has none",
        ),
        ({"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/a"}, "ssl.keystore.password is missing"),
        (
            {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/a",
                "ssl.keystore.password": "p",
                "ssl.key.password": "q",
            },
            "ssl.key.password for me differs from ssl.keystore.password",
        ),
        ({**INLINE, "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type=PKCS12 for me must be PEM, for"),
        ({**INLINE, "ssl.keystore.key": ""}, "belong together: one is missing"),
        ({**INLINE, "ssl.keystore.certificate.chain": ""}, "belong together: one is missing"),
        ({**INLINE, "ssl.keystore.location": "/a"}, "excludes ssl.keystore.location"),
        (
            {**INLINE, "ssl.keystore.password": "p"},
            "excludes ssl.keystore.location and ssl.key",
        ),
    ],
)
def test_key_stores_that_are_refused(properties: Mapping[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        key_store_of(properties.get, "me")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"type": "JKS", "location": "/a"}, "ssl.truststore.type=JKS for me must be PEM or PKCS12"),
        ({"certificates": "c", "location": "/a"}, "excludes ssl.truststore.location"),
        ({"certificates": "c", "type": "PKCS12"}, "needs ssl.truststore.type=PEM"),
        ({"location": "/a", "password": "p"}, "certificates in PEM have no password"),
    ],
)
def test_trust_stores_that_are_refused(properties: Mapping[str, str], words: str) -> None:
    given = {f"ssl.truststore.{name}": value for name, value in properties.items()}
    with pytest.raises(InvalidConfig, match=words):
        trust_store_of(given.get, "me")


# ---- renewal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_a_renewed_certificate_is_used_if_it_is_for_the_same(
    kind: str, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    root_key, root = certificate("root")

    def renew(name: str, hosts: list[str]) -> bytes:
        key, leaf = certificate(name, root_key, root, hosts)
        hidden = serialization.BestAvailableEncryption(PASSWORD.encode())
        if kind == "PKCS12":
            write("node", pkcs12.serialize_key_and_certificates(b"n", key, leaf, None, hidden))
        else:
            text = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden
            ).decode()
            write("node", text + pem(leaf))
        return der(leaf)

    first = renew("node", ["localhost"])
    secret = Secret(PASSWORD)
    store = KeyStore(
        kind,
        write("other", "")[: -len("other")] + "node",
        secret if kind == "PKCS12" else None,
        key_password=secret if kind == "PEM" else None,
    )
    tls = ServerTls(TlsSettings(store))
    assert tls.certificates == {"key": (first,)}
    # Case does not matter, and further addresses may come.
    second = renew("Node", ["localhost", "example.org"])
    tls.context()
    assert tls.certificates == {"key": (second,)}
    for name, hosts, why in (
        ("other", ["localhost", "example.org"], "names CN=other and the previous one CN=Node"),
        ("node", ["localhost"], "is not for example.org"),
    ):
        caplog.clear()
        renewed = renew(name, hosts)
        tls.context()
        assert tls.certificates == {"key": (second,)}
        assert why in caplog.text
        allowing = ServerTls(TlsSettings(store, allow_dn_changes=True, allow_san_changes=True))
        assert allowing.certificates == {"key": (renewed,)}


TEXT_TYPES = ("UTF8String", "PrintableString", "BMPString")


@pytest.mark.parametrize("before", TEXT_TYPES)
@pytest.mark.parametrize("after", TEXT_TYPES)
def test_a_name_is_the_same_in_another_kind_of_string_and_case(
    write: Write, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA-14770: a renewed certificate was refused because of the text form of its name."""

    def renew(name: str, text_type: str) -> str:
        key, leaf = certificate(name, hosts=["localhost"], text_type=getattr(_ASN1Type, text_type))
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return write("node.pem", text.decode() + pem(leaf))

    tls = ServerTls(TlsSettings(KeyStore("PEM", renew("First Node", before))))
    renew("first  NODE", after)
    tls.context()
    assert tls.refused == 0, caplog.text
    renew("second node", after)
    tls.context()
    assert tls.refused == 1


def test_a_renewed_trust_store_is_used(made: Made, write: Write) -> None:
    path = write("ca.pem", pem(certificate("another")[1]))
    client = ClientTls(TrustSettings(TrustStore("PEM", path)))
    server = ServerTls(TlsSettings(KeyStore("PEM", write("node.pem", made.key_pem() + made.chain_pem))))
    with pytest.raises(ssl.SSLError):
        shake_hands(server.context(), client.context())
    write("ca.pem", pem(made.root))
    assert shake_hands(server.context(), client.context())


class Renewed:
    """A store that is replaced, in use by a listener."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.root_key, self.root = certificate("root")
        self.renew()
        self.store = KeyStore("PEM", self.path)
        self.tls = ServerTls(TlsSettings(self.store))

    def renew(self, days: int = 90, signer: Any = None, issuer: Any = None, more: str = "") -> None:
        """Write another certificate for the same name."""
        by = (self.root_key, self.root) if signer is None else (signer, issuer)
        key, self.leaf = certificate("node", *by, ["localhost"], days=days)
        self.key = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        self.path = self.write("node.pem", self.key + pem(self.leaf) + more)

    def uses(self) -> bool:
        """Whether a new connection gets the certificate that was written last."""
        self.tls.context()
        return self.tls.certificates["key"][0] == der(self.leaf)


def test_a_renewed_certificate_has_to_be_valid_now(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    stage = Renewed(write)
    stage.renew(days=0)
    assert not stage.uses()
    assert "use the previous certificate: ssl.keystore.location=" in caplog.text
    assert "certificate has expired" in caplog.text
    # The same store is tried once, and counted once.
    assert not stage.uses()
    assert stage.tls.refused == 1
    # A node starts with it: its clients may not check.
    assert ServerTls(TlsSettings(stage.store)).certificates
    stage.renew()
    assert stage.uses()
    assert stage.tls.refused == 1


def test_the_certificates_of_a_store_have_to_sign_each_other(write: Write) -> None:
    stage = Renewed(write)
    stage.renew(more=pem(certificate("another")[1]))
    assert not stage.uses()
    with pytest.raises(InvalidConfig, match="its certificates cannot be used"):
        ServerTls(TlsSettings(stage.store))
    stage.renew(more=pem(stage.root))
    assert stage.uses()


def test_a_key_of_another_certificate_is_refused(write: Write) -> None:
    stage = Renewed(write)
    key = stage.key
    stage.renew()
    write("node.pem", key + pem(stage.leaf))
    assert not stage.uses()
    assert stage.tls.refused == 1


def test_a_key_that_no_suite_can_use_is_refused(write: Write, made: Made) -> None:
    path = write("node.pem", made.key_pem() + made.chain_pem)
    suites = CipherSuites.of(["TLSv1.2"], ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"])
    with pytest.raises(InvalidConfig, match=r"its certificates cannot be used .*NO_SHARED_CIPHER"):
        ServerTls(TlsSettings(KeyStore("PEM", path), suites=suites))


@pytest.mark.parametrize("auth", ["none", "required"])
def test_a_renewed_certificate_of_a_node_has_to_be_trusted_by_nodes(
    write: Write, caplog: pytest.LogCaptureFixture, auth: str
) -> None:
    stage = Renewed(write)
    trusted = TrustStore("PEM", write("ca.pem", pem(stage.root)))
    own = stage.store if auth == "required" else None
    stage.tls = ServerTls(TlsSettings(stage.store, auth, trusted if own else None))
    stage.tls.used_by(ClientTls(TrustSettings(trusted, own=own)))
    stage.renew()
    assert stage.uses()
    key, root = certificate("another root")
    stage.renew(signer=key, issuer=root)
    assert not stage.uses()
    assert "this node itself would not connect to another one with these stores" in caplog.text
    # Once the trust store has both authorities, the same certificate is used.
    write("ca.pem", pem(stage.root) + pem(root))
    assert stage.uses()


class NodeStores:
    """A listener of nodes with mutual TLS, how this node connects to it, and the files of both."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.old, self.new = certificate("old root"), certificate("new root")
        self.trust(self.old)
        self.sign(self.old)
        self.nodes = ClientTls(TrustSettings(self.truststore, own=self.store))
        self.tls = ServerTls(TlsSettings(self.store, "required", self.truststore))
        self.tls.used_by(self.nodes, "localhost")

    def trust(self, *roots: tuple[Any, x509.Certificate]) -> None:
        self.truststore = TrustStore("PEM", self.write("ca.pem", "".join(pem(root) for _, root in roots)))

    def sign(self, root: tuple[Any, x509.Certificate], hosts: Sequence[str] = ("localhost",)) -> None:
        key, leaf = certificate("node", *root, hosts)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.store = KeyStore("PEM", self.write("node.pem", text.decode() + pem(leaf)))
        self.written = der(leaf)

    def uses(self, *, key: bool, trusted: Sequence[tuple[Any, x509.Certificate]]) -> None:
        """Check which stores both directions use, in either order of looking."""
        expected = tuple(der(root) for _, root in trusted)
        for each in (self.nodes, self.tls):
            each.context()
        for each in (self.nodes, self.tls):
            assert each.certificates["trust"] == expected
            assert (each.certificates["key"][0] == self.written) is key
        assert shake_hands(self.tls.context(), self.nodes.context())


def test_another_authority_comes_in_three_steps(write: Write) -> None:
    stage = NodeStores(write)
    stage.trust(stage.old, stage.new)
    stage.uses(key=True, trusted=[stage.old, stage.new])
    stage.sign(stage.new)
    stage.uses(key=True, trusted=[stage.old, stage.new])
    stage.trust(stage.new)
    stage.uses(key=True, trusted=[stage.new])
    assert stage.tls.refused == 0


def test_a_trust_store_with_both_authorities_and_a_new_key_may_come_at_once(write: Write) -> None:
    stage = NodeStores(write)
    stage.trust(stage.old, stage.new)
    stage.sign(stage.new)
    stage.uses(key=True, trusted=[stage.old, stage.new])
    assert stage.tls.refused == 0


def test_a_trust_store_without_the_authority_of_the_previous_key_is_refused(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    stage = NodeStores(write)
    stage.trust(stage.new)
    stage.uses(key=True, trusted=[stage.old])
    assert "ca.pem: this node itself would not connect to another one with these stores" in caplog.text
    # The key that fits it does not fit what other nodes have.
    stage.sign(stage.new)
    stage.uses(key=False, trusted=[stage.old])
    assert stage.tls.refused == 3
    stage.trust(stage.old, stage.new)
    stage.uses(key=True, trusted=[stage.old, stage.new])


def test_a_key_that_cannot_be_used_keeps_no_trust_store_back(write: Write) -> None:
    stage = NodeStores(write)
    stage.trust(stage.old, stage.new)
    write("node.pem", "half a file")
    stage.uses(key=True, trusted=[stage.old, stage.new])
    assert stage.tls.refused == 1


@pytest.mark.parametrize(
    ("host", "is_trusted", "words"),
    [
        ("localhost", True, ""),
        ("", True, ""),
        ("other.example.org", True, "Hostname mismatch"),
        ("localhost", False, "unable to get local issuer certificate"),
    ],
)
def test_a_node_whose_certificate_other_nodes_would_refuse_logs_that_at_its_start(
    write: Write, caplog: pytest.LogCaptureFixture, host: str, is_trusted: bool, words: str
) -> None:
    stage = NodeStores(write)
    if not is_trusted:
        stage.trust(stage.new)
    caplog.clear()
    server = ServerTls(TlsSettings(stage.store))
    server.used_by(ClientTls(TrustSettings(stage.truststore)), host)
    logged = "node.pem: other nodes with these stores cannot connect" in caplog.text
    assert logged == bool(words)
    assert words in caplog.text


# ---- cipher suites -----------------------------------------------------------------------------------------

OLD = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
NEW = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
BOTH = ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("names", "versions", "ciphers"),
    [
        ((), BOTH, ""),
        ((OLD, *NEW), BOTH, "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (NEW, ("TLSv1.3",), ""),
        (
            ("TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
            ("TLSv1.2",),
            "AES128-SHA:ECDHE-RSA-CHACHA20-POLY1305",
        ),
        (("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256",), ("TLSv1.2",), "DHE-RSA-AES256-SHA256"),
    ],
)
def test_cipher_suites_have_javas_names(
    names: tuple[str, ...], versions: tuple[str, ...], ciphers: str
) -> None:
    assert CipherSuites.of(BOTH, names) == CipherSuites(versions, ciphers)


def test_only_the_cipher_suites_that_are_given_are_spoken(made: Made, write: Write) -> None:
    store = KeyStore("PEM", write("node.pem", made.key_pem() + made.chain_pem))
    server = ServerTls(TlsSettings(store, suites=CipherSuites.of(BOTH, (OLD,)))).context()
    trusted = TrustStore("PEM", certificates=pem(made.root))
    right = ClientTls(TrustSettings(trusted, suites=CipherSuites.of(BOTH, (OLD, *NEW)))).context()
    assert shake_hands(server, right)
    other = CipherSuites.of(BOTH, ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",))
    with pytest.raises(ssl.SSLError):
        shake_hands(server, ClientTls(TrustSettings(trusted, suites=other)).context())


@pytest.mark.parametrize(
    ("versions", "names", "words"),
    [
        (("TLSv1.1",), (), "ssl.enabled.protocols: TLSv1.1 is not one of"),
        (BOTH, ("AES256-SHA",), "'AES256-SHA' is not Java's name"),
        (BOTH, ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA",), "OpenSSL has no TLS_DHE_RSA_WITH_AES_256_GCM_SHA"),
        (BOTH, NEW[:2], "can only be enabled together; TLS_CHACHA20_POLY1305_SHA256 is missing"),
        (("TLSv1.3",), (OLD,), "has no suite for ssl.enabled.protocols=TLSv1.3"),
    ],
)
def test_cipher_suites_that_are_refused(
    versions: tuple[str, ...], names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        CipherSuites.of(versions, names)
