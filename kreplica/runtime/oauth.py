"""OAUTHBEARER by Kafka's properties: which tokens a listener takes, and how nodes and commands get theirs.

    sasl.oauthbearer.jwks.endpoint.url=https://id.example.org/keys
    sasl.oauthbearer.allowed.urls=https://id.example.org/keys
    sasl.oauthbearer.expected.issuer=https://id.example.org
    sasl.oauthbearer.expected.audience=kafka

A URL has to be in the list of allowed ones, as Kafka demands by a property of Java's. Issuer and audience
have to be named unless others are allowed by name, which Kafka demands from 4.4 on. No state of its own.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import SplitResult, quote_plus, urlencode

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, InvalidFile, KreplicaError, SaslAuthenticationFailed
from kreplica.common.future import Future, resolved
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, Loop
from kreplica.common.settings import BOOLEAN, Kind, checked, int32, int64
from kreplica.runtime.http_fetch import fetch, in_background, parse_url
from kreplica.runtime.key_store import trust_store_of
from kreplica.runtime.tls import ClientTls, TrustSettings
from kreplica.security.jaas import JaasLogin
from kreplica.security.jwks_cache import JwksCache, JwksTimes, unsecured
from kreplica.security.jwt import MOST_BYTES_OF_KEYS, MOST_BYTES_OF_TOKEN, TokenRules, require_joserfc
from kreplica.security.oauthbearer import Validate
from kreplica.security.sasl import Secret

PREFIX = "sasl.oauthbearer."
JWKS_URL, TOKEN_URL = f"{PREFIX}jwks.endpoint.url", f"{PREFIX}token.endpoint.url"
ALLOWED_URLS = f"{PREFIX}allowed.urls"
ISSUER, AUDIENCE = f"{PREFIX}expected.issuer", f"{PREFIX}expected.audience"
ANY_ISSUER, ANY_AUDIENCE = f"{PREFIX}any.issuer.enable", f"{PREFIX}any.audience.enable"
UNSECURED = f"{PREFIX}unsecured.tokens.enable"
CLIENT_ID, CLIENT_SECRET = (
    f"{PREFIX}client.credentials.client.id",
    f"{PREFIX}client.credentials.client.secret",
)
SCOPE = f"{PREFIX}scope"

# The properties of a listener, and of what logs in to it.
OF_LISTENER = (
    JWKS_URL,
    *(f"{PREFIX}jwks.endpoint.{each}.ms" for each in ("refresh", "retry.backoff", "retry.backoff.max")),
    *(ISSUER, AUDIENCE, ANY_ISSUER, ANY_AUDIENCE, UNSECURED, ALLOWED_URLS),
    *(f"{PREFIX}{each}" for each in ("scope.claim.name", "sub.claim.name", "clock.skew.seconds")),
    *(TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE),
)

Get = Callable[[str], Any]


def _value(get: Get, name: str, kind: Kind, default: Any) -> Any:
    value = get(name)
    return default if value is None else checked(name, value, kind)


def _text(get: Get, name: str) -> str:
    return str(get(name) or "").strip()


def _words(get: Get, name: str) -> tuple[str, ...]:
    value = get(name)
    words = value if isinstance(value, list) else str(value or "").split(",")
    return tuple(word for each in words if (word := str(each).strip()))


def _allowed_url(get: Get, name: str) -> SplitResult:
    """Return the URL in a property. Raises InvalidConfig unless it is allowed."""
    text = _text(get, name)
    url = parse_url(name, text)
    if text not in _words(get, ALLOWED_URLS):
        raise InvalidConfig(f"{name}={text[:120]} is not in {ALLOWED_URLS}: add it if it is the right one")
    return url


def _trust(jaas: JaasLogin | None) -> Callable[[], ssl.SSLContext]:
    """Return the TLS for a provider, whose certificates the login module's options may name."""
    options = {} if jaas is None else {name: each.value for name, each in jaas.options.items()}
    return ClientTls(TrustSettings(trust_store_of(options.get, "OAUTHBEARER"))).context


# ---- a listener -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearerSettings:
    """Which tokens a listener takes. `url`: of the keys; None: unsecured tokens, for tests."""

    rules: TokenRules
    url: SplitResult | None
    times: JwksTimes
    jaas: JaasLogin | None = None

    @classmethod
    def read(cls, get: Get, jaas: JaasLogin | None) -> OAuthBearerSettings:
        """Return the settings from a listener's properties. Raises InvalidConfig."""
        allows_unsecured = _value(get, UNSECURED, BOOLEAN, False)
        if not allows_unsecured and not _text(get, JWKS_URL):
            raise InvalidConfig(f"{JWKS_URL} is missing: without keys no token can be checked")
        if allows_unsecured and _text(get, JWKS_URL):
            raise InvalidConfig(f"{UNSECURED} and {JWKS_URL} exclude each other")
        issuer, audiences = _text(get, ISSUER), _words(get, AUDIENCE)
        for given, name, switch in ((issuer, ISSUER, ANY_ISSUER), (audiences, AUDIENCE, ANY_AUDIENCE)):
            is_off = _value(get, switch, BOOLEAN, False)
            if given and is_off:
                raise InvalidConfig(f"{name} and {switch}=true exclude each other")
            if not given and not is_off and not allows_unsecured:
                raise InvalidConfig(f"{name} is missing: set it, or {switch}=true to take tokens of any")
        rules = TokenRules(
            issuer=issuer or None,
            audiences=audiences,
            sub_claim=_text(get, f"{PREFIX}sub.claim.name") or "sub",
            scope_claim=_text(get, f"{PREFIX}scope.claim.name") or "scope",
            clock_skew_ms=1000 * _value(get, f"{PREFIX}clock.skew.seconds", int32(0), 30),
            allows_unsecured=allows_unsecured,
        )
        usual = JwksTimes()
        times = JwksTimes(
            refresh_ms=_value(get, f"{PREFIX}jwks.endpoint.refresh.ms", int64(1), usual.refresh_ms),
            retry_ms=_value(get, f"{PREFIX}jwks.endpoint.retry.backoff.ms", int64(1), usual.retry_ms),
            retry_max_ms=_value(
                get, f"{PREFIX}jwks.endpoint.retry.backoff.max.ms", int64(1), usual.retry_max_ms
            ),
        )
        require_joserfc()
        url = None if allows_unsecured else _allowed_url(get, JWKS_URL)
        return cls(rules=rules, url=url, times=times, jaas=jaas)


class JwksEndpoint:
    """Fetches keys; implements `kreplica.security.jwks_cache.JwksSource`."""

    def __init__(self, url: SplitResult, tls: Callable[[], ssl.SSLContext]) -> None:
        self._fetch = partial(fetch, url, MOST_BYTES_OF_KEYS, tls)

    def fetch(self) -> Future[bytes]:
        return in_background("kreplica-jwks", self._fetch)


def validator(settings: OAuthBearerSettings, loop: Loop, clock: Clock) -> tuple[Validate, Callable[[], None]]:
    """Return what checks the tokens of a listener in `loop`, and what has to be called before the first one.

    That call fetches the keys; it raises InvalidConfig if it finds no keys.
    """
    url = settings.url
    if url is None:
        return unsecured(settings.rules, clock), lambda: None
    source = JwksEndpoint(url, _trust(settings.jaas))
    cache = JwksCache(url.geturl(), source, settings.rules, settings.times, loop=loop, clock=clock)

    def prepare() -> None:
        try:
            cache.open(source.fetch().result())
        except KreplicaError as error:
            raise InvalidConfig(f"{JWKS_URL}: there are no keys to check tokens with: {error}") from error

    return cache.validate, prepare


# ---- a client ---------------------------------------------------------------------------------------------

# A token is renewed when this part of its life is over, as Kafka's clients do.
RENEWED_AFTER = 0.8


class TokenFetcher:
    """Gets the tokens of one client, and keeps the newest for most of its life. Any thread may call."""

    def __init__(
        self, url: SplitResult, tls: Callable[[], ssl.SSLContext], credentials: tuple[str, Secret], scope: str
    ) -> None:
        self._url = url
        self._tls = tls
        self._credentials = credentials
        self._scope = scope
        self._lock = Lock()
        # Guarded by the lock:
        self._token: Secret | None = None
        self._renewed_at_s = 0.0
        self.expires_at_s = 0.0

    @classmethod
    def read(cls, get: Get, jaas: JaasLogin | None) -> TokenFetcher:
        """Return the fetcher of a client's properties. Raises InvalidConfig."""
        if not _text(get, TOKEN_URL):
            raise InvalidConfig(f"{TOKEN_URL} is missing: the endpoint, or a file URL of a token")
        url = _allowed_url(get, TOKEN_URL)
        options = {} if jaas is None else jaas.options
        # The options of the module are Kafka's older names.
        client_id = _text(get, CLIENT_ID) or options.get("clientId", Secret("")).value
        secret = _text(get, CLIENT_SECRET) or options.get("clientSecret", Secret("")).value
        if url.scheme != "file" and not (client_id and secret):
            raise InvalidConfig(f"{CLIENT_ID} or {CLIENT_SECRET} is missing")
        scope = _text(get, SCOPE) or options.get("scope", Secret("")).value
        return cls(url, _trust(jaas), (client_id, Secret(secret)), scope)

    def fetch(self) -> Future[Secret]:
        """Return the token, at once if it is at hand. The future fails with SaslAuthenticationFailed."""
        with self._lock:
            if self._token is not None and time.time() < self._renewed_at_s:
                return resolved(self._token)
        return in_background("kreplica-token", self._fetch)

    def _fetch(self) -> Secret:
        try:
            data = self._ask()
            token, expires_at_s = _token_in_file(data) if self._url.scheme == "file" else _token_in(data)
        except KreplicaError as error:
            raise SaslAuthenticationFailed(f"there is no token to log in with: {error}") from error
        with self._lock:
            now_s = time.time()
            self._token = token
            self.expires_at_s = expires_at_s
            self._renewed_at_s = now_s + RENEWED_AFTER * (expires_at_s - now_s)
        return token

    def _ask(self) -> bytes:
        if self._url.scheme == "file":
            return fetch(self._url, MOST_BYTES_OF_TOKEN, self._tls)
        client_id, secret = self._credentials
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # RFC 6749, 2.3.1: both are encoded as in a form.
        pair = f"{quote_plus(client_id)}:{quote_plus(secret.value)}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode()
        return fetch(self._url, MOST_BYTES_OF_TOKEN, self._tls, body=body, headers=headers)


def _token_in_file(data: bytes) -> tuple[Secret, float]:
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise InvalidFile("the file has no token") from None
    return Secret(text), _expiry_s(text)


def _token_in(data: bytes) -> tuple[Secret, float]:
    """Return the token in the answer of an endpoint (RFC 6749, 5.1). Raises InvalidFile."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    token = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(token, str) or not token:
        raise InvalidFile("the answer of the endpoint has no access_token")
    return Secret(token), _expiry_s(token)


def _expiry_s(token: str) -> float:
    """Return when a JWT expires, in seconds since 1970, as it says itself. Raises InvalidFile."""
    try:
        claims = token.split(".")[1]
        expires_at_s = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        return float(expires_at_s)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError):
        raise InvalidFile("the token is no JWT with an expiry") from None
