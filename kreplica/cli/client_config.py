"""The properties with which the subcommands connect to a cluster: a file as Kafka's tools take it.

    security.protocol=SASL_PLAINTEXT
    sasl.mechanism=SCRAM-SHA-256
    sasl.jaas.config=MODULE required username="alice" password="sesame";

MODULE is Kafka's, such as org.apache.kafka.common.security.scram.ScramLoginModule. librdkafka's names
sasl.username and sasl.password do the same as sasl.jaas.config. With OAUTHBEARER the properties are those of
a node: sasl.oauthbearer.token.endpoint.url with an endpoint for client credentials or the file URL of a
token, sasl.oauthbearer.allowed.urls, and so on. Other properties go to the stock client as they are. Key
stores and trust stores are those of Kafka's clients, in PEM or PKCS12. The file is chosen once for a process,
by `--command-config`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kreplica.common.errors import InvalidConfig
from kreplica.runtime.cipher_suites import VERSIONS, CipherSuites
from kreplica.runtime.key_store import (
    PEM,
    KeyStore,
    TrustStore,
    held_file,
    key_store_of,
    pem_of,
    trust_store_of,
)
from kreplica.runtime.tls import ClientTls, TrustSettings
from kreplica.security.client_login import ClientLogin
from kreplica.security.jaas import parse_jaas
from kreplica.security.oauthbearer import OAUTHBEARER
from kreplica.security.protocol import SecurityProtocol
from kreplica.security.sasl import Secret

# Properties of Kafka's own clients that the stock client does not know.
OF_JAVA = ("ssl.keystore.", "ssl.truststore.", "ssl.enabled.protocols", "ssl.cipher.suites")


class ClientConfig(NamedTuple):
    """`properties`: of the stock client. `login`: None without SASL. `tls`: None without encryption."""

    properties: Mapping[str, Any]
    login: ClientLogin | None = None
    tls: ssl.SSLContext | None = None


_NOTHING = ClientConfig({})
_chosen = _NOTHING
# The file, until it is read.
_pending: str | None = None


def use(path: str | None) -> None:
    """Let all connections of this process use the properties of that file; None: connect without a login.

    Raises InvalidConfig, InvalidFile, KafkaStorageError.
    """
    use_later(path)
    chosen()


def use_later(path: str | None) -> None:
    """Do the same as `use`, but read the file only for the first connection."""
    global _chosen, _pending
    _chosen, _pending = _NOTHING, path


def chosen() -> ClientConfig:
    """Return what the chosen file has. Raises as `use`."""
    global _chosen, _pending
    if _pending is not None:
        from kreplica.runtime.kafka_config import read_config_file

        _chosen, _pending = parse(read_config_file(_pending)), None
    return _chosen


def parse(properties: Mapping[str, object]) -> ClientConfig:
    """Return the configuration from properties of a client. Raises InvalidConfig."""
    found = {name: str(value) for name, value in properties.items()}
    name = found.get("security.protocol", SecurityProtocol.PLAINTEXT.name)
    if name not in SecurityProtocol.__members__:
        known = ", ".join(SecurityProtocol.__members__)
        raise InvalidConfig(f"security.protocol={name[:40]} must be one of {known}")
    protocol = SecurityProtocol[name]
    tls = None
    if protocol.encrypts:
        tls = _tls(found)
    else:
        _remove_java_names(found)
    mechanism = found.get("sasl.mechanism", found.get("sasl.mechanisms", ""))
    if protocol.has_login and mechanism == OAUTHBEARER:
        return _by_token(found, tls)
    return ClientConfig(found, _login(found) if protocol.has_login else None, tls)


def _by_token(found: dict[str, str], tls: ssl.SSLContext | None) -> ClientConfig:
    """Return the login by tokens, which the stock client asks for by its callback."""
    from kreplica.runtime.oauth import PREFIX, TokenFetcher

    text = found.pop("sasl.jaas.config", None)
    tokens = TokenFetcher.read(found.get, None if text is None else parse_jaas("sasl.jaas.config", text))
    of_java = (PREFIX, "sasl.login.")
    own = {name: value for name, value in found.items() if not name.startswith(of_java)}

    def callback(_: str) -> tuple[str, float]:
        return tokens.fetch().result().value, tokens.expires_at_s

    return ClientConfig({**own, "oauth_cb": callback}, ClientLogin.by_token(tokens), tls)


def _tls(found: dict[str, str]) -> ssl.SSLContext:
    """Return the context of our own connections; give the stock client its names of properties."""
    trusted = found.pop("ssl.ca.location", None)
    if trusted is not None:
        found.setdefault("ssl.truststore.location", trusted)
    truststore, own = trust_store_of(found.get, "the client"), key_store_of(found.get, "the client")
    algorithm = found.get("ssl.endpoint.identification.algorithm", "https")
    versions = _words(found, "ssl.enabled.protocols") or VERSIONS
    suites = CipherSuites.of(tuple(versions), _words(found, "ssl.cipher.suites"))
    made = ClientTls(TrustSettings(truststore, algorithm not in ("", "none"), suites, own)).context()
    _remove_java_names(found)
    if suites.ciphers:
        found["ssl.cipher.suites"] = suites.ciphers
    if not made.check_hostname:
        found["ssl.endpoint.identification.algorithm"] = "none"
    if truststore is not None:
        found["ssl.ca.location"] = _path(truststore, lambda: Secret(pem_of(truststore.read())))
    if own is not None:
        path = _path(own, lambda: own.read().pem)
        found |= {"ssl.certificate.location": path, "ssl.key.location": path}
    elif "ssl.certificate.location" in found:
        _load_own(made, found)
    return made


def _remove_java_names(found: dict[str, str]) -> None:
    """Remove the properties that the stock client does not take by these names."""
    for name in [each for each in found if each.startswith(OF_JAVA)]:
        del found[name]


def _words(found: Mapping[str, str], name: str) -> list[str]:
    return [word for each in found.get(name, "").split(",") if (word := each.strip())]


def _path(store: KeyStore | TrustStore, pem: Callable[[], Secret]) -> str:
    """Return a file of the store in PEM, which is the only format that the stock client reads from files."""
    return store.location if store.type == PEM and store.location else held_file(pem())


def _load_own(context: ssl.SSLContext, found: Mapping[str, str]) -> None:
    """Use the key that librdkafka's own properties name."""
    path = found["ssl.certificate.location"]
    try:
        context.load_cert_chain(path, found.get("ssl.key.location"), found.get("ssl.key.password", ""))
    except OSError as error:
        raise InvalidConfig(
            f"ssl.certificate.location={path}: no certificate and key that fit each other ({error})"
        ) from None


def _login(found: dict[str, str]) -> ClientLogin:
    text = found.pop("sasl.jaas.config", None)
    mechanism = found.get("sasl.mechanism", found.get("sasl.mechanisms", ""))
    from kreplica.runtime.listener import ALL_MECHANISMS

    if mechanism not in ALL_MECHANISMS:
        raise InvalidConfig(f"sasl.mechanism={mechanism[:40]} must be one of {', '.join(ALL_MECHANISMS)}")
    login = ClientLogin(mechanism, found.get("sasl.username", ""), Secret(found.get("sasl.password", "")))
    if text is not None:
        login = ClientLogin.of("sasl.jaas.config", mechanism, parse_jaas("sasl.jaas.config", text))
    if not login.user or not login.password.value:
        raise InvalidConfig("the user or the password is missing: set sasl.jaas.config")
    found |= {"sasl.username": login.user, "sasl.password": login.password.value}
    return login
