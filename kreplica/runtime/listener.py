"""Listener: a node's listener, and how its clients log in; read from properties.

`listener.name.<name in lower case>.<property>` applies to one listener only and comes before the plain
property, as in Kafka. No state; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import checked, int32, int64
from kreplica.runtime.tls import CLIENT_AUTH, VERSIONS, TlsSettings, TrustSettings
from kreplica.security.client_login import ClientLogin
from kreplica.security.distinguished_name import require_cryptography
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kreplica.security.protocol import SecurityProtocol
from kreplica.security.sasl import Secret
from kreplica.security.scram_credential import ScramMechanism
from kreplica.security.ssl_principal_mapper import SslPrincipalMapper

PREFIX = "listener.name."
PLAIN = "PLAIN"
SCRAM_MECHANISMS = {each.sasl_name: each for each in ScramMechanism}
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS)
# Kafka allows 512 KiB, which a token of GSSAPI may need. The largest token here has a few hundred bytes.
MAX_RECEIVE_BYTES = 64 << 10
FAILURE_DELAY_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How clients of a listener log in. `passwords`: those of PLAIN, by user. Times: see SaslPolicy."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, Secret] = field(default_factory=dict)
    max_reauth_ms: int = 0
    failure_delay_ms: int = FAILURE_DELAY_MS
    max_receive_bytes: int = MAX_RECEIVE_BYTES


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener. `login`: None if its clients do not log in. `tls`: None if it does not encrypt.

    `principals`: makes principals of the names in clients' certificates; None if these do not count.
    """

    name: str
    scope: Scope
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    login: Login | None = None
    tls: TlsSettings | None = None
    principals: SslPrincipalMapper | None = None


class ListenerProperties:
    """The properties of one listener, by their plain names."""

    def __init__(self, name: str, properties: Mapping[str, Any]) -> None:
        self._prefix = f"{PREFIX}{name.lower()}."
        self._properties = properties
        self.name = name

    def full_name(self, name: str) -> str:
        """Return the name under which the property is given, or else the plain one."""
        own = self._prefix + name
        return own if own in self._properties else name

    def get(self, name: str) -> Any:
        return self._properties.get(self.full_name(name))

    def login(self) -> Login:
        """Return how clients log in. Raises InvalidConfig."""
        mechanisms = self._words("sasl.enabled.mechanisms")
        for each in mechanisms or ("",):
            if each not in MECHANISMS:
                raise InvalidConfig(
                    f"sasl.enabled.mechanisms: {each[:40] or 'nothing'} for listener {self.name}; it takes"
                    f" {', '.join(MECHANISMS)}. GSSAPI, the default of Kafka, is not supported."
                )
        return Login(
            mechanisms=mechanisms,
            passwords=self._passwords() if PLAIN in mechanisms else {},
            max_reauth_ms=self._number("connections.max.reauth.ms", 0, int64(0)),
            failure_delay_ms=self._number(
                "connection.failed.authentication.delay.ms", FAILURE_DELAY_MS, int32(0)
            ),
            max_receive_bytes=self._number("sasl.server.max.receive.size", MAX_RECEIVE_BYTES, int32(1024)),
        )

    def login_of_node(self, mechanism_name: str) -> ClientLogin:
        """Return how nodes log in to this listener. `mechanism_name`: the property with the mechanism.

        Raises InvalidConfig.
        """
        mechanism = str(self._properties.get(mechanism_name) or "").strip()
        enabled = self._words("sasl.enabled.mechanisms")
        if mechanism not in enabled:
            raise InvalidConfig(
                f"{mechanism_name}={mechanism[:40]} must be one of sasl.enabled.mechanisms of listener"
                f" {self.name}, {', '.join(enabled)}: nodes log in by it"
            )
        name = f"{self._prefix}{mechanism.lower()}.sasl.jaas.config"
        text = self._properties.get(name)
        if text is None:
            raise InvalidConfig(f"{name} is missing: it has the username and password of this node")
        return ClientLogin.of(name, mechanism, parse_jaas(name, str(text)))

    def trust(self) -> TrustSettings:
        """Return whose certificates nodes trust when they connect to this listener. Raises InvalidConfig."""
        kind = self._text("ssl.truststore.type") or "PEM"
        if kind != "PEM":
            raise InvalidConfig(f"ssl.truststore.type={kind[:40]} for listener {self.name} must be PEM")
        algorithm = self.get("ssl.endpoint.identification.algorithm")
        if algorithm not in (None, "", "https"):
            text = str(algorithm)[:40]
            raise InvalidConfig(
                f"ssl.endpoint.identification.algorithm={text} must be https, or empty for off"
            )
        own = self.tls(has_login=False) if self._text("ssl.keystore.location") else None
        return TrustSettings(self._text("ssl.truststore.location"), algorithm != "", self._versions(), own)

    def principals(self) -> SslPrincipalMapper:
        """Return how names in certificates become principals. Raises InvalidConfig."""
        require_cryptography()
        return SslPrincipalMapper(self._text("ssl.principal.mapping.rules"))

    def tls(self, *, has_login: bool) -> TlsSettings:
        """Return how connections are encrypted. Raises InvalidConfig.

        `has_login`: clients log in by SASL, too. Then only a value with the listener's prefix asks for their
        certificates (KIP-684).
        """
        kind = self._text("ssl.keystore.type")
        if kind != "PEM":
            found = kind[:40] or "JKS"
            raise InvalidConfig(
                f"ssl.keystore.type={found} for listener {self.name} must be PEM: convert a JKS with `keytool"
                " -importkeystore -deststoretype pkcs12`, and that with `openssl pkcs12 -nodes`"
            )
        location = self._text("ssl.keystore.location")
        if not location:
            raise InvalidConfig(f"ssl.keystore.location is missing for listener {self.name}")
        own = self._properties.get(f"{self._prefix}ssl.client.auth")
        auth = str(own or "none").strip() if has_login else self._text("ssl.client.auth") or "none"
        trusted = self._text("ssl.truststore.location")
        if auth not in CLIENT_AUTH:
            raise InvalidConfig(f"ssl.client.auth={auth[:40]} must be one of {', '.join(CLIENT_AUTH)}")
        if auth != "none" and not trusted:
            raise InvalidConfig(
                f"ssl.truststore.location is missing for listener {self.name}, for ssl.client.auth={auth}"
            )
        password = self.get("ssl.key.password")
        key_password = None if password is None else Secret(str(password))
        return TlsSettings(location, key_password, self._versions(), auth, trusted)

    def _versions(self) -> tuple[str, ...]:
        versions = self._words("ssl.enabled.protocols") or tuple(VERSIONS)
        for each in versions:
            if each not in VERSIONS:
                raise InvalidConfig(f"ssl.enabled.protocols: {each[:40]} is not one of {', '.join(VERSIONS)}")
        return versions

    def _words(self, name: str) -> tuple[str, ...]:
        given = self.get(name)
        words = given if isinstance(given, list) else str(given or "").split(",")
        return tuple(dict.fromkeys(word for each in words if (word := str(each).strip())))

    def _text(self, name: str) -> str:
        return str(self.get(name) or "").strip()

    def _passwords(self) -> dict[str, Secret]:
        name = f"{self._prefix}plain.sasl.jaas.config"
        text = self._properties.get(name)
        if text is None:
            raise InvalidConfig(
                f"{name} is missing: PLAIN needs users, as options user_NAME of {PLAIN_MODULE}"
            )
        login = parse_jaas(name, str(text))
        if login.module != PLAIN_MODULE:
            raise InvalidConfig(f"{name}: PLAIN needs the module {PLAIN_MODULE}")
        return login.passwords

    def check(self) -> None:
        """Raise InvalidConfig for a property with this listener's prefix that is not known."""
        for name, value in self._properties.items():
            own = name.removeprefix(self._prefix)
            if own == name:
                continue
            if own not in PER_LISTENER:
                known = ", ".join(PER_LISTENER)
                raise InvalidConfig(f"{name} is not a property of a listener: there are {known}")
            if own.startswith("scram-") and parse_jaas(name, str(value)).module != SCRAM_MODULE:
                raise InvalidConfig(f"{name}: SCRAM needs the module {SCRAM_MODULE}")

    def _number(self, name: str, default: int, kind: Any) -> int:
        value = self.get(name)
        return default if value is None else int(checked(self.full_name(name), value, kind))


# The properties that may have a listener's prefix.
PER_LISTENER = (
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.endpoint.identification.algorithm",
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "plain.sasl.jaas.config",
    *(f"{name.lower()}.sasl.jaas.config" for name in SCRAM_MECHANISMS),
)
