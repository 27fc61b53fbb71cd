"""Security: how clients connect to a cluster in this process, and what they may do; to test their settings.

    with kreplica.Cluster(serve=True, security=kreplica.Security(acls=True)) as cluster:
        producer = confluent_kafka.Producer(cluster.client_config("alice"))

Certificates are made for the cluster, in the folder `security` of its directory: `ca.pem`, which clients
trust, `node.pem`, which is valid for 127.0.0.1 and localhost, and one for each user if clients need them.
Users log in by each mechanism; by OAUTHBEARER if joserfc is installed, with tokens that the cluster signs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cluster.certificate_authority import CertificateAuthority
from kreplica.cluster.tokens import TokenIssuer
from kreplica.common.dataclass import dataclass, field, replace
from kreplica.common.errors import InvalidConfig
from kreplica.common.messages.users import ScramCredentialUpsertion
from kreplica.runtime.key_store import PEM, KeyStore, TrustStore
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
from kreplica.security.ssl_principal_mapper import SslPrincipalMapper

FOLDER = "security"
LISTENER = "CLIENTS"
# Names that are the same in a certificate, a principal and a file.
CERTIFIED = re.compile(r"[A-Za-z0-9._@-]{1,64}")
# Makes the principal of the name in a user's certificate.
PRINCIPALS = "RULE:^CN=(.*)$/$1/"
USERS = {"admin": "admin-secret", "alice": "alice-secret"}
CALLBACK = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
TOKEN_LIFETIME_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a cluster with `serve=True` asks of its clients.

    `protocol`: SASL_SSL, SASL_PLAINTEXT, or SSL, which encrypts and lets everyone in. `users`: the passwords
    of users, by name. `certificates`: whether a client needs a certificate, too (mutual TLS); each user has
    one, and with SSL it says who the client is. `acls`: whether clients need rights; `super_user` has all of
    them, and others those that it gives them. Raises InvalidConfig.
    """

    protocol: str = "SASL_SSL"
    users: Mapping[str, str] = field(default_factory=lambda: dict(USERS))
    acls: bool = False
    super_user: str = "admin"
    certificates: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise InvalidConfig(f"protocol={self.protocol!r} must be SSL, SASL_PLAINTEXT or SASL_SSL")
        if not all(isinstance(text, str) and text for each in self.users.items() for text in each):
            raise InvalidConfig("users must map names to passwords, neither of them empty")
        if self.certificates:
            self._check_certificates()
        if self.acls and (not self.knows_users or self.super_user not in self.users):
            raise InvalidConfig(
                "acls=True needs a protocol with logins or certificates=True, and"
                f" {self.super_user!r} among the users"
            )

    def _check_certificates(self) -> None:
        if not self.kind.encrypts:
            raise InvalidConfig(f"certificates=True needs SSL or SASL_SSL, not {self.protocol}")
        for name in self.users:
            if not CERTIFIED.fullmatch(name):
                raise InvalidConfig(
                    f"user {name!r}: with certificates=True a name has up to 64 letters, digits, . _ @ and -"
                )

    @property
    def kind(self) -> SecurityProtocol:
        return SecurityProtocol[self.protocol]

    @property
    def knows_users(self) -> bool:
        """Whether each client is one of the users."""
        return self.kind.has_login or self.certificates


class ClusterSecurity:
    """The security of one cluster: its listeners' settings, and those of its clients.

    Raises InvalidConfig if the package `cryptography` is missing, OSError.
    """

    def __init__(self, settings: Security, directory: str) -> None:
        self.settings = settings
        self._folder = folder = Path(directory) / FOLDER
        self._trusted = folder / "ca.pem"
        self._store = folder / "node.pem"
        if settings.kind.encrypts:
            self._make_certificates()
        has_tokens = settings.kind.has_login and find_spec("joserfc") is not None
        self._issuer = TokenIssuer(folder) if has_tokens else None

    def _make_certificates(self) -> None:
        authority = CertificateAuthority()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._trusted.write_bytes(authority.certificate)
        authority.issue(self._store, "kreplica node", is_local=True)
        for user in self.settings.users if self.settings.certificates else ():
            authority.issue(self._of_user(user), user)

    def _of_user(self, user: str) -> Path:
        return self._folder / f"user-{user}.pem"

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
        tls, principals = None, None
        if kind.encrypts:
            tls = TlsSettings(KeyStore(PEM, str(self._store)))
        if tls and self.settings.certificates:
            tls = replace(tls, client_auth="required", truststore=TrustStore(PEM, str(self._trusted)))
            principals = None if kind.has_login else SslPrincipalMapper(PRINCIPALS)
        return Listener(LISTENER, Scope.CLIENTS, kind, login, tls, principals)

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
        if self.settings.certificates:
            own = self._certificate(user, mechanism)
            found |= {"ssl.certificate.location": own, "ssl.key.location": own}
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
        if self.settings.certificates:
            own = self._certificate(user, mechanism)
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": own}
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

    def _certificate(self, user: str | None, mechanism: str) -> str:
        name, _ = self._user(user, mechanism)
        return str(self._of_user(name))

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
