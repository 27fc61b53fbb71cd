"""Listener: a node's listener, and how its clients log in; read from properties.

`listener.name.<name in lower case>.<property>` applies to one listener only and comes before the plain
property, as in Kafka. No state; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kreplica.broker.api_versions import Scope
from kreplica.common.connection_limits import KINDS, OF_LISTENERS
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import BOOLEAN, checked, int32, int64, nearest
from kreplica.runtime.cipher_suites import VERSIONS, CipherSuites
from kreplica.runtime.key_store import key_store_of, require_cryptography, trust_store_of
from kreplica.runtime.oauth import OF_LISTENER, OAuthBearerSettings, TokenFetcher
from kreplica.runtime.tcp_transport import Address
from kreplica.runtime.tls import CLIENT_AUTH, TlsSettings, TrustSettings
from kreplica.security.client_login import ClientLogin
from kreplica.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, JaasLogin, parse_jaas
from kreplica.security.oauthbearer import OAUTHBEARER
from kreplica.security.protocol import SecurityProtocol
from kreplica.security.sasl import Secret
from kreplica.security.scram_credential import ScramMechanism
from kreplica.security.ssl_principal_mapper import SslPrincipalMapper

PREFIX = "listener.name."
PLAIN = "PLAIN"
SCRAM_MECHANISMS = {each.sasl_name: each for each in ScramMechanism}
# Those by a password, and all.
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS)
ALL_MECHANISMS = (*MECHANISMS, OAUTHBEARER)
# With TLS a connection then costs less than 64 KiB. Kafka allows 512 KiB, which a token of GSSAPI may need.
# The largest here is a JWT of a few KiB.
MAX_RECEIVE_BYTES = 32 << 10
FAILURE_DELAY_MS = 100
MAX_REAUTH, JAAS = "connections.max.reauth.ms", ".sasl.jaas.config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How clients of a listener log in. `passwords`: those of PLAIN, by user. Times: see SaslPolicy.

    `tokens`: the tokens of OAUTHBEARER; None without that mechanism.
    """

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, Secret] = field(default_factory=dict)
    max_reauth_ms: int = 0
    reauth_ms_of: Mapping[str, int] = field(default_factory=dict)
    failure_delay_ms: int = FAILURE_DELAY_MS
    max_receive_bytes: int = MAX_RECEIVE_BYTES
    tokens: OAuthBearerSettings | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener. `login`: None if its clients do not log in. `tls`: None if it does not encrypt.

    `principals`: makes principals of the names in clients' certificates; None if these do not count.
    `address`: where it listens; the host "" means all interfaces, the port 0 a free one. `starts_early`: it
    opens before the node knows the access rules. `limits`: its own limits of connections, by the names
    without its prefix.
    """

    name: str
    scope: Scope
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    login: Login | None = None
    tls: TlsSettings | None = None
    principals: SslPrincipalMapper | None = None
    address: Address = ("", 0)
    starts_early: bool = True
    limits: Mapping[str, int] = field(default_factory=dict)


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
            if each not in ALL_MECHANISMS:
                raise InvalidConfig(
                    f"sasl.enabled.mechanisms: {each[:40] or 'nothing'} for listener {self.name}; it takes"
                    f" {', '.join(ALL_MECHANISMS)}. GSSAPI, the default of Kafka, is not supported."
                )
        tokens = None
        if OAUTHBEARER in mechanisms:
            tokens = OAuthBearerSettings.read(self.get, self._oauthbearer_jaas())
        return Login(
            mechanisms=mechanisms,
            passwords=self._passwords() if PLAIN in mechanisms else {},
            max_reauth_ms=self._number(MAX_REAUTH, 0, int64(0)),
            reauth_ms_of=self._reauth_ms_of(mechanisms),
            failure_delay_ms=self._number(
                "connection.failed.authentication.delay.ms", FAILURE_DELAY_MS, int32(0)
            ),
            max_receive_bytes=self._number("sasl.server.max.receive.size", MAX_RECEIVE_BYTES, int32(1024)),
            tokens=tokens,
        )

    def _reauth_ms_of(self, mechanisms: Sequence[str]) -> dict[str, int]:
        found = {}
        for each in ALL_MECHANISMS:
            name = f"{self._prefix}{each.lower()}.{MAX_REAUTH}"
            if name in self._properties:
                found[each] = int(checked(name, self._properties[name], int64(0)))
        return {each: value for each, value in found.items() if each in mechanisms}

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
        if mechanism == OAUTHBEARER:
            return ClientLogin.by_token(TokenFetcher.read(self.get, self._oauthbearer_jaas()))
        name = f"{self._prefix}{mechanism.lower()}.sasl.jaas.config"
        text = self._properties.get(name)
        if text is None:
            raise InvalidConfig(f"{name} is missing: it has the username and password of this node")
        return ClientLogin.of(name, mechanism, parse_jaas(name, str(text)))

    def trust(self) -> TrustSettings:
        """Return whose certificates nodes trust when they connect to this listener. Raises InvalidConfig."""
        algorithm = self.get("ssl.endpoint.identification.algorithm")
        if algorithm not in (None, "", "https"):
            text = str(algorithm)[:40]
            raise InvalidConfig(
                f"ssl.endpoint.identification.algorithm={text} must be https, or empty for off"
            )
        owner = f"listener {self.name}"
        return TrustSettings(
            trust_store_of(self.get, owner),
            algorithm != "",
            self._suites(),
            key_store_of(self.get, owner),
        )

    def principals(self) -> SslPrincipalMapper:
        """Return how names in certificates become principals. Raises InvalidConfig."""
        require_cryptography("ssl.client.auth")
        return SslPrincipalMapper(self._text("ssl.principal.mapping.rules"))

    def tls(self, *, has_login: bool) -> TlsSettings:
        """Return how connections are encrypted. Raises InvalidConfig.

        `has_login`: clients log in by SASL, too. Then only a value with the listener's prefix asks for their
        certificates (KIP-684).
        """
        owner = f"listener {self.name}"
        keystore = key_store_of(self.get, owner)
        if keystore is None:
            raise InvalidConfig(f"ssl.keystore.location is missing for {owner}")
        own = self._properties.get(f"{self._prefix}ssl.client.auth")
        auth = str(own or "none").strip() if has_login else self._text("ssl.client.auth") or "none"
        trusted = trust_store_of(self.get, owner)
        if auth not in CLIENT_AUTH:
            raise InvalidConfig(f"ssl.client.auth={auth[:40]} must be one of {', '.join(CLIENT_AUTH)}")
        if auth != "none" and trusted is None:
            raise InvalidConfig(
                f"ssl.truststore.location is missing for listener {self.name}, for ssl.client.auth={auth}"
            )
        return TlsSettings(
            keystore,
            auth,
            trusted,
            self._suites(),
            self._flag("ssl.allow.dn.changes"),
            self._flag("ssl.allow.san.changes"),
        )

    @property
    def ignores_client_auth(self) -> bool:
        """Whether the plain property asks for certificates, which does not count where clients log in."""
        own = self._properties.get(f"{self._prefix}ssl.client.auth")
        return own is None and self._text("ssl.client.auth") not in ("", "none")

    def _suites(self) -> CipherSuites:
        versions = self._words("ssl.enabled.protocols") or tuple(VERSIONS)
        return CipherSuites.of(versions, self._words("ssl.cipher.suites"))

    def _flag(self, name: str) -> bool:
        value = self.get(name)
        return False if value is None else bool(checked(self.full_name(name), value, BOOLEAN))

    def _words(self, name: str) -> tuple[str, ...]:
        given = self.get(name)
        words = given if isinstance(given, list) else str(given or "").split(",")
        return tuple(dict.fromkeys(word for each in words if (word := str(each).strip())))

    def _text(self, name: str) -> str:
        return str(self.get(name) or "").strip()

    def _oauthbearer_jaas(self) -> JaasLogin | None:
        """Return the login module of OAUTHBEARER, which may be left out. Raises InvalidConfig."""
        name = f"{self._prefix}oauthbearer.sasl.jaas.config"
        text = self._properties.get(name)
        login = None if text is None else parse_jaas(name, str(text))
        if login is not None and login.module != OAUTHBEARER_MODULE:
            raise InvalidConfig(f"{name}: OAUTHBEARER needs the module {OAUTHBEARER_MODULE}")
        return login

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
        for user, password in login.passwords.items():
            if not password.value:
                raise InvalidConfig(f"{name}: user {user[:80]!r} has no password")
        return login.passwords

    def check(self) -> None:
        """Raise InvalidConfig for a property with this listener's prefix that is not known."""
        for name, value in self._properties.items():
            own = name.removeprefix(self._prefix)
            if own == name:
                continue
            if own not in PER_LISTENER:
                near = nearest(own, PER_LISTENER)
                known = f"is it {self._prefix}{near[0]}?" if near else f"there are {', '.join(PER_LISTENER)}"
                raise InvalidConfig(f"{name} is not a property of a listener: {known}")
            if (
                own.startswith("scram-")
                and own.endswith(JAAS)
                and parse_jaas(name, str(value)).module != SCRAM_MODULE
            ):
                raise InvalidConfig(f"{name}: SCRAM needs the module {SCRAM_MODULE}")

    def limits(self) -> dict[str, int]:
        """Return the listener's own limits of connections. Raises InvalidConfig."""
        found = {}
        for name in OF_LISTENERS:
            value = self._properties.get(self._prefix + name)
            if value is not None:
                found[name] = int(checked(self._prefix + name, value, KINDS[name]))
        return found

    def _number(self, name: str, default: int, kind: Any) -> int:
        value = self.get(name)
        return default if value is None else int(checked(self.full_name(name), value, kind))


# The properties that may have a listener's prefix.
PER_LISTENER = (
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.endpoint.identification.algorithm",
    MAX_REAUTH,
    *(f"{name.lower()}.{MAX_REAUTH}" for name in ALL_MECHANISMS),
    *OF_LISTENERS,
    "sasl.server.max.receive.size",
    "sasl.enabled.mechanisms",
    "plain.sasl.jaas.config",
    *(f"{name.lower()}.sasl.jaas.config" for name in SCRAM_MECHANISMS),
    "oauthbearer.sasl.jaas.config",
    *OF_LISTENER,
)
