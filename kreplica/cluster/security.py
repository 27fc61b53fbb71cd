"""Security: how clients connect to a cluster in this process, and what they may do; to test their settings.

    with kreplica.Cluster(serve=True, security=kreplica.Security(acls=True)) as cluster:
        producer = confluent_kafka.Producer(cluster.client_config("alice"))

Certificates are made for the cluster, in the folder `security` of its directory: `ca.pem`, which clients
trust, and `node.pem`. They name 127.0.0.1 and localhost. Users log in by each mechanism; by OAUTHBEARER if
joserfc is installed, with tokens that the cluster signs.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import random
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cluster.tokens import TokenIssuer
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import InvalidConfig
from kreplica.common.messages.users import ScramCredentialUpsertion
from kreplica.runtime.key_store import PEM, KeyStore
from kreplica.runtime.listener import ALL_MECHANISMS, MECHANISMS, PLAIN, Listener, Login
from kreplica.runtime.oauth import ALLOWED_URLS, TOKEN_URL
from kreplica.runtime.tls import TlsSettings
from kreplica.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from kreplica.security.jwt import require_joserfc
from kreplica.security.oauthbearer import OAUTHBEARER
from kreplica.security.protocol import SecurityProtocol
from kreplica.security.sasl import Secret
from kreplica.security.scram import SALT_BYTES, salted_password
from kreplica.security.scram_credential import MIN_ITERATIONS, ScramMechanism

FOLDER = "security"
LISTENER = "CLIENTS"
# Long enough for every test, short enough that none of these serves elsewhere for long.
VALID_DAYS = 30
USERS = {"admin": "admin-secret", "alice": "alice-secret"}
CALLBACK = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
TOKEN_LIFETIME_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a cluster with `serve=True` asks of its clients.

    `protocol`: SASL_SSL, SASL_PLAINTEXT, or SSL, which encrypts and lets everyone in. `users`: the passwords
    of users, by name. `acls`: whether clients need rights; `super_user` has all of them, and others those
    that it gives them. Raises InvalidConfig.
    """

    protocol: str = "SASL_SSL"
    users: Mapping[str, str] = field(default_factory=lambda: dict(USERS))
    acls: bool = False
    super_user: str = "admin"

    def __post_init__(self) -> None:
        if self.protocol not in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise InvalidConfig(f"protocol={self.protocol!r} must be SSL, SASL_PLAINTEXT or SASL_SSL")
        if not all(isinstance(text, str) and text for each in self.users.items() for text in each):
            raise InvalidConfig("users must map names to passwords, neither of them empty")
        if self.acls and (not self.kind.has_login or self.super_user not in self.users):
            raise InvalidConfig(
                f"acls=True needs a protocol with logins, and {self.super_user!r} among the users"
            )

    @property
    def kind(self) -> SecurityProtocol:
        return SecurityProtocol[self.protocol]


class ClusterSecurity:
    """The security of one cluster: its listeners' settings, and those of its clients.

    Raises InvalidConfig if the package `cryptography` is missing, OSError.
    """

    def __init__(self, settings: Security, directory: str) -> None:
        self.settings = settings
        folder = Path(directory) / FOLDER
        self._trusted = folder / "ca.pem"
        self._store = folder / "node.pem"
        if settings.kind.encrypts:
            _make_certificates(folder, self._trusted, self._store)
        has_tokens = settings.kind.has_login and find_spec("joserfc") is not None
        self._issuer = TokenIssuer(folder) if has_tokens else None

    @property
    def node_settings(self) -> dict[str, object]:
        """The properties that every node gets."""
        if not self.settings.acls:
            return {}
        return {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{self.settings.super_user}",
        }

    @property
    def listener(self) -> Listener:
        """The listener of each broker."""
        kind = self.settings.kind
        passwords = {user: Secret(password) for user, password in self.settings.users.items()}
        login = None
        if kind.has_login and self._issuer is None:
            login = Login(mechanisms=MECHANISMS, passwords=passwords)
        elif self._issuer is not None:
            login = Login(mechanisms=ALL_MECHANISMS, passwords=passwords, tokens=self._issuer.settings)
        tls = TlsSettings(KeyStore(PEM, str(self._store))) if kind.encrypts else None
        return Listener(LISTENER, Scope.CLIENTS, kind, login, tls)

    def credentials(self) -> list[list[ScramCredentialUpsertion]]:
        """Return the users' credentials for SCRAM, as requests take them: each user once in each."""
        if not self.settings.kind.has_login:
            return []
        return [
            [_credential(mechanism, user, Secret(text)) for user, text in self.settings.users.items()]
            for mechanism in ScramMechanism
        ]

    def token(self, user: str | None, lifetime_s: float) -> str:
        """Return a token of a user. Raises InvalidConfig without logins, or if joserfc is missing."""
        if not self.settings.kind.has_login:
            raise InvalidConfig(
                f"clients have no tokens with protocol={self.settings.protocol}: use SASL_SSL"
            )
        name = next(iter(self.settings.users), None) if user is None else user
        if not name:
            raise InvalidConfig("a token needs the name of a user")
        return self._tokens().token(name, lifetime_s)[0]

    def _tokens(self) -> TokenIssuer:
        require_joserfc()
        if self._issuer is None:
            raise InvalidConfig("joserfc was installed after the cluster was opened: open it again")
        return self._issuer

    def librdkafka(self, user: str | None, mechanism: str) -> dict[str, Any]:
        """Return the properties of librdkafka with which the user connects. Raises InvalidConfig."""
        found: dict[str, Any] = {"security.protocol": self.settings.protocol}
        if self.settings.kind.encrypts:
            found["ssl.ca.location"] = str(self._trusted)
        if self.settings.kind.has_login:
            name, password = self._user(user, mechanism)
            found["sasl.mechanism"] = mechanism
            if mechanism == OAUTHBEARER:
                issuer = self._tokens()
                found["oauth_cb"] = lambda _: issuer.token(name, TOKEN_LIFETIME_S)
            else:
                found |= {"sasl.username": name, "sasl.password": password}
        return found

    def java(self, user: str | None, mechanism: str) -> dict[str, str]:
        """Return the properties of Kafka's own clients with which the user connects. Raises InvalidConfig."""
        found = {"security.protocol": self.settings.protocol}
        if self.settings.kind.encrypts:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._trusted)}
        if self.settings.kind.has_login:
            name, password = self._user(user, mechanism)
            if mechanism == OAUTHBEARER:
                url = self._tokens().file_url(name)
                return found | {
                    "sasl.mechanism": mechanism,
                    "sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
                    "sasl.login.callback.handler.class": CALLBACK,
                    TOKEN_URL: url,
                    # Kafka's clients take it from a property of Java's.
                    ALLOWED_URLS: url,
                }
            name, password = _quoted(name), _quoted(password)
            module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
            found |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": f"{module} required username={name} password={password};",
            }
        return found

    def _user(self, user: str | None, mechanism: str) -> tuple[str, str]:
        if mechanism not in ALL_MECHANISMS:
            raise InvalidConfig(f"mechanism={mechanism!r} must be one of {', '.join(ALL_MECHANISMS)}")
        users = self.settings.users
        name = next(iter(users), None) if user is None else user
        if name is None or name not in users:
            raise InvalidConfig(f"there is no user {name!r}, but {', '.join(users) or 'none'}")
        return name, users[name]


def _credential(mechanism: ScramMechanism, user: str, password: Secret) -> ScramCredentialUpsertion:
    salt = random.SystemRandom().randbytes(SALT_BYTES)
    return ScramCredentialUpsertion(
        name=user,
        mechanism=mechanism.value,
        iterations=MIN_ITERATIONS,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, MIN_ITERATIONS),
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _make_certificates(folder: Path, trusted: Path, store: Path) -> None:
    """Make an authority and one certificate of it, whose key only the user of this process can read."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        text = (
            "security with TLS needs cryptography, which is not installed: pip install 'kreplica[security]'"
        )
        raise InvalidConfig(text) from error
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, key: Any, issuer: str, signer: Any, *extensions: tuple[Any, bool]) -> bytes:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, issuer)]
        made = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        )
        for extension, is_critical in extensions:
            made = made.add_extension(extension, critical=is_critical)
        return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    folder.mkdir(parents=True, exist_ok=True)
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")), x509.DNSName("localhost")]
    )
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    root = certificate(
        "kreplica test authority",
        authority,
        "kreplica test authority",
        authority,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False),
        (
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            True,
        ),
    )
    leaf = certificate(
        "kreplica node",
        own,
        "kreplica test authority",
        authority,
        (addresses, False),
        (signed_by, False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
    )
    key = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    trusted.write_bytes(root)
    with os.fdopen(os.open(store, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key + leaf)
