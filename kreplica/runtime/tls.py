"""ServerTls: the certificate of a listener, and TLS with it. ClientTls: whom a node trusts.

Changed files are read again. New connections use what the stores have then; connections that are there go on
as they are. A store that cannot be used is logged once, and the previous one stays. So does the previous
certificate if the new one has another name, or lacks one of its addresses, unless that is allowed. Thread
rule: the loop of the listener.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.runtime.certificate import Certificate
from kreplica.runtime.cipher_suites import CipherSuites
from kreplica.runtime.key_store import KeyMaterial, KeyStore, TrustStore, file_of, pem_of

LOGGER = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
KEY, TRUST = "key", "trust"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The key and the certificates of a listener, and which encryption it speaks, by Kafka's names.

    `client_auth`: none, requested or required: whether clients have certificates, which `truststore` signs.
    `allow_dn_changes`, `allow_san_changes`: whether a renewed certificate may have another name, or lack an
    address of the previous one.
    """

    keystore: KeyStore
    client_auth: str = "none"
    truststore: TrustStore | None = None
    suites: CipherSuites = CipherSuites()
    allow_dn_changes: bool = False
    allow_san_changes: bool = False


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Whose certificates a node trusts when it connects to others, and which encryption it speaks.

    `truststore`: None for the certificates that the system trusts. `checks_host`: whether the certificate has
    to name the host that the node connects to. `own`: the node's own key and certificate, for a listener that
    asks for them; None: it has none.
    """

    truststore: TrustStore | None = None
    checks_host: bool = True
    suites: CipherSuites = CipherSuites()
    own: KeyStore | None = None


class StoreTls:
    """A TLS context from stores, made anew when a file changes. Raises InvalidConfig at the start.

    `certificates`: those in use, by the kind of their store, KEY or TRUST.
    """

    def __init__(self, keystore: KeyStore | None, truststore: TrustStore | None) -> None:
        self.keystore, self.truststore = keystore, truststore
        self.certificates: dict[str, tuple[bytes, ...]] = {}
        self._paths = [each.location for each in (keystore, truststore) if each is not None and each.location]
        self._seen = self._stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._context = self._load()
            except InvalidConfig as error:
                LOGGER.warning("new connections use the previous certificate: %s", error)
            else:
                LOGGER.info("new connections use the certificates of %s", ", ".join(self._paths))
        return self._context

    def _stamp(self) -> list[tuple[int, int, int]] | None:
        try:
            found = [os.stat(path) for path in self._paths]
        except OSError:
            return None
        return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in found]

    def _load(self) -> ssl.SSLContext:
        key = None if self.keystore is None else self.keystore.read()
        trusted = None if self.truststore is None else self.truststore.read()
        made = self._made(key, trusted)
        if key is not None:
            self._check_change(self.certificates.get(KEY, ()), key.certificates)
        found = {KEY: None if key is None else key.certificates, TRUST: trusted}
        self.certificates = {kind: each for kind, each in found.items() if each is not None}
        return made

    def _made(self, key: KeyMaterial | None, trusted: Sequence[bytes] | None) -> ssl.SSLContext:
        raise NotImplementedError

    def _check_change(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        """Raise InvalidConfig if the new certificate may not replace the old one."""


class ClientTls(StoreTls):
    """Makes TLS contexts for connections to other nodes."""

    def __init__(self, settings: TrustSettings) -> None:
        self._settings = settings
        super().__init__(settings.own, settings.truststore)

    def _made(self, key: KeyMaterial | None, trusted: Sequence[bytes] | None) -> ssl.SSLContext:
        if trusted is None:
            made = ssl.create_default_context()
        else:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _trust(made, trusted, self.truststore)
        self._settings.suites.limit(made)
        made.check_hostname = self._settings.checks_host
        if key is not None:
            _load_key(made, key, self.keystore)
        return made


class ServerTls(StoreTls):
    """Makes TLS contexts for the connections of a listener."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        asks = settings.client_auth != "none"
        super().__init__(settings.keystore, settings.truststore if asks else None)

    def _made(self, key: KeyMaterial | None, trusted: Sequence[bytes] | None) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._settings.suites.limit(made)
        made.options |= ssl.OP_NO_RENEGOTIATION
        assert key is not None
        _load_key(made, key, self.keystore)
        made.verify_mode = CLIENT_AUTH[self._settings.client_auth]
        if trusted is not None:
            _trust(made, trusted, self.truststore)
        return made

    def _check_change(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        settings = self._settings
        if not old or (settings.allow_dn_changes and settings.allow_san_changes):
            return
        before, after = Certificate.of(old[0]), Certificate.of(new[0])
        if before is None or after is None:
            return  # they cannot be read without the package `cryptography`
        if not settings.allow_dn_changes and not after.has_name_of(before):
            raise InvalidConfig(
                f"the certificate names {after.subject} and the previous one {before.subject}: set"
                " ssl.allow.dn.changes=true to allow that"
            )
        missing = sorted(before.addresses - after.addresses)
        if not settings.allow_san_changes and missing:
            raise InvalidConfig(
                f"the certificate is not for {', '.join(missing)}, as the previous one is: set"
                " ssl.allow.san.changes=true to allow that"
            )


def _trust(context: ssl.SSLContext, certificates: Sequence[bytes], store: TrustStore | None) -> None:
    try:
        context.load_verify_locations(cadata=pem_of(certificates))
    except ssl.SSLError as error:
        raise InvalidConfig(f"{_place('trust', store)}: a certificate cannot be read ({error})") from None


def _load_key(context: ssl.SSLContext, key: KeyMaterial, store: KeyStore | None) -> None:
    # Without a password an encrypted key must fail, and not ask for one on the terminal.
    password = b"" if key.password is None else key.password.value.encode()
    try:
        with file_of(key.pem) as path:
            context.load_cert_chain(path, password=password)
    except (OSError, ValueError) as error:
        # ssl.SSLError is an OSError; its text has no part of the key.
        why = f"{type(error).__name__}: {error}"
        raise InvalidConfig(
            f"{_place('key', store)}: no key and certificates that fit each other, or another password of"
            f" the key ({why})"
        ) from None


def _place(kind: str, store: KeyStore | TrustStore | None) -> str:
    """Return the property with a store, for messages."""
    location = "" if store is None else store.location
    return f"ssl.{kind}store.location={location}" if location else f"ssl.{kind}store"
