"""ServerTls: the certificate of a listener, and TLS with it. ClientTls: whom a node trusts.

Changed files are read again. New connections use what the stores have then; connections that are there go on
as they are. New stores are tried first: by a handshake in memory, in which the certificates have to be valid
and to sign each other. For a listener of nodes, this node has to trust them as well. Stores that fail are
logged and counted once, and the previous ones stay. So does the previous certificate if the new one has
another name, or lacks one of its addresses, unless that is allowed. Thread rule: the loop of the listener.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Sequence

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.runtime.certificate import Certificate
from kreplica.runtime.cipher_suites import CipherSuites
from kreplica.runtime.key_store import KeyMaterial, KeyStore, TrustStore, file_of, pem_of
from kreplica.runtime.openssl import limit_chain

LOGGER = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
KEY, TRUST = "key", "trust"
# OpenSSL's flags of a verification: trust what is in the middle of a chain; ignore the time.
PARTIAL_CHAIN, NO_CHECK_TIME = 0x80000, 0x200000
FLIGHTS = 4
# The longest chain of a client; a whole handshake may have no more bytes (_core/tls_transport).
MOST_CHAIN_BYTES = 32 << 10


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

    `certificates`: those in use, by the kind of their store, KEY or TRUST. `refused`: how often changed
    stores were not used.
    """

    def __init__(self, keystore: KeyStore | None, truststore: TrustStore | None) -> None:
        self.keystore, self.truststore = keystore, truststore
        self.certificates: dict[str, tuple[bytes, ...]] = {}
        self.refused = 0
        self.paths = [each.location for each in (keystore, truststore) if each is not None and each.location]
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
                self.refused += 1
                LOGGER.warning("new connections use the previous certificate: %s", error)
            else:
                LOGGER.info("new connections use the certificates of %s", ", ".join(self.paths))
        return self._context

    def _stamp(self) -> list[tuple[int, int, int]] | None:
        try:
            found = [os.stat(path) for path in self.paths]
        except OSError:
            return None
        return [(each.st_mtime_ns, each.st_size, each.st_ino) for each in found]

    def _load(self) -> ssl.SSLContext:
        key, trusted = self.read()
        made = self._made(key, trusted)
        if key is not None:
            self._check_change(self.certificates.get(KEY, ()), key.certificates)
            self._try(key, trusted)
        found = {KEY: None if key is None else key.certificates, TRUST: trusted}
        self.certificates = {kind: each for kind, each in found.items() if each is not None}
        return made

    def read(self) -> tuple[KeyMaterial | None, tuple[bytes, ...] | None]:
        """Return what the stores have now. Raises InvalidConfig."""
        key = None if self.keystore is None else self.keystore.read()
        return key, None if self.truststore is None else self.truststore.read()

    def _made(self, key: KeyMaterial | None, trusted: Sequence[bytes] | None) -> ssl.SSLContext:
        raise NotImplementedError

    def _try(self, key: KeyMaterial, trusted: Sequence[bytes] | None) -> None:
        """Raise InvalidConfig if no handshake succeeds with what the stores have now."""

    def _check_change(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        """Raise InvalidConfig if the new certificate may not replace the old one."""


class ClientTls(StoreTls):
    """Makes TLS contexts for connections to other nodes."""

    def __init__(self, settings: TrustSettings) -> None:
        self._settings = settings
        super().__init__(settings.own, settings.truststore)

    def for_any_host(self) -> ssl.SSLContext:
        """Return a context of what the stores have now, which does not check hosts. Raises InvalidConfig."""
        made = self._made(*self.read())
        made.check_hostname = False
        return made

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
        self._nodes: ClientTls | None = None
        asks = settings.client_auth != "none"
        super().__init__(settings.keystore, settings.truststore if asks else None)

    def used_by(self, nodes: ClientTls) -> None:
        """Note how nodes connect to the listener: `nodes` has to accept new certificates, too.

        The stores of this node stand for those of the others.
        """
        self._nodes = nodes
        self.paths += nodes.paths
        self._seen = self._stamp()

    def _try(self, key: KeyMaterial, trusted: Sequence[bytes] | None) -> None:
        place = _place("key", self.keystore)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._settings.suites.limit(client)
        client.check_hostname = False
        client.verify_flags |= ssl.VerifyFlags(PARTIAL_CHAIN)
        if not self.certificates:
            # At the start a certificate that has ended is a warning only (CertificateWatch).
            client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        _trust(client, key.certificates[-1:], None)
        alone = self._made(key, trusted)
        alone.verify_mode = ssl.CERT_NONE
        _shake_hands(alone, client, f"{place}: its certificates cannot be used")
        if self._nodes is not None:
            why = f"{place}: this node itself would not connect to another one with these stores"
            _shake_hands(self._made(key, trusted), self._nodes.for_any_host(), why)

    def _made(self, key: KeyMaterial | None, trusted: Sequence[bytes] | None) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._settings.suites.limit(made)
        made.options |= ssl.OP_NO_RENEGOTIATION
        assert key is not None
        _load_key(made, key, self.keystore)
        made.verify_mode = CLIENT_AUTH[self._settings.client_auth]
        limit_chain(made, MOST_CHAIN_BYTES)
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


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, why: str) -> None:
    """Raise InvalidConfig, which begins with `why`, if the two complete no handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    try:
        for _ in range(FLIGHTS):
            for each in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    each.do_handshake()
        # With TLS 1.3 a client learns only behind the handshake that its certificate is refused.
        with contextlib.suppress(ssl.SSLWantReadError):
            ends[0].read(1)
    except ssl.SSLError as error:
        raise InvalidConfig(f"{why} ({error})") from None


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
