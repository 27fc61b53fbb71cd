"""ServerTls: the certificate of a listener, and TLS with it. ClientTls: whom a node trusts.

Changed files are read again. New connections use what the stores have then; connections that are there go on
as they are. New stores are tried first: by a handshake in memory, in which the certificates have to be valid
and to sign each other. A listener of nodes is renewed together with how this node connects to others: new and
previous stores have to accept each other in both directions, because other nodes may have either. Trust
stores and key stores are taken over one after the other. One that fails is logged and counted once, and the
previous one stays. So does the previous certificate if the new one has another name, or lacks one of its
addresses, unless that is allowed. Thread rule: the loop of the listener.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.runtime.certificate import Certificate
from kreplica.runtime.cipher_suites import CipherSuites
from kreplica.runtime.key_store import KeyMaterial, KeyStore, TrustStore, file_of, pem_of
from kreplica.runtime.openssl import limit_chain

LOGGER = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
KEY, TRUST = "key", "trust"
KINDS = (TRUST, KEY)
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


class Material(NamedTuple):
    """What stores have: a key with its certificates, and trusted certificates; None without that store."""

    key: KeyMaterial | None = None
    trusted: tuple[bytes, ...] | None = None


class StoreTls:
    """A TLS context from stores, made anew when a file changes. Raises InvalidConfig at the start.

    `material`: what the context was made of. `refused`: how often changed stores were not used. `group`:
    those whose stores have to fit together, this one first; only the first one looks at the files.
    """

    def __init__(self, keystore: KeyStore | None, truststore: TrustStore | None) -> None:
        self.keystore, self.truststore = keystore, truststore
        self.refused = 0
        self.group: tuple[StoreTls, ...] = (self,)
        # Stores that have changed and were not used: they may fit what others have later.
        self._waiting: set[str] = set()
        self._seen = self._stamps()
        self.material = Material()
        self._use(self._read(TRUST, self._read(KEY, self.material)))

    @property
    def certificates(self) -> dict[str, tuple[bytes, ...]]:
        """The certificates in use, by the kind of their store, KEY or TRUST."""
        key, trusted = self.material
        found = {KEY: None if key is None else key.certificates, TRUST: trusted}
        return {kind: each for kind, each in found.items() if each is not None}

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        self.group[0].look()
        return self._context

    def look(self) -> None:
        """Use what the stores have now. The trust stores come first: a new key may need them."""
        stamps = self._stamps()
        changed = {kind for kind in KINDS if stamps[kind] != self._seen[kind]}
        if not changed:
            return
        self._seen = stamps
        self._waiting |= changed
        for kind in KINDS:
            if kind in self._waiting:
                self._renew(kind)

    def _renew(self, kind: str) -> None:
        places = ", ".join(self._paths(kind))
        try:
            found = [each._read(kind, each.material) for each in self.group]
            made = [each._checked(material) for each, material in zip(self.group, found, strict=True)]
            self._check_group(found)
        except InvalidConfig as error:
            self.refused += 1
            LOGGER.warning("new connections use the previous certificate: %s", error)
            return
        self._waiting.discard(kind)
        for each, material, context in zip(self.group, found, made, strict=True):
            each.material, each._context = material, context
        LOGGER.info("new connections use the certificates of %s", places)

    def _use(self, material: Material) -> None:
        context = self._checked(material)
        self.material, self._context = material, context

    def _paths(self, kind: str) -> list[str]:
        """Return the files of the stores of that kind."""
        stores = [each.keystore if kind == KEY else each.truststore for each in self.group]
        return list(dict.fromkeys(each.location for each in stores if each is not None and each.location))

    def _stamps(self) -> dict[str, list[tuple[int, int, int] | None]]:
        return {kind: [_stamp(path) for path in self._paths(kind)] for kind in KINDS}

    def _read(self, kind: str, before: Material) -> Material:
        """Return the material with what the store of that kind has now. Raises InvalidConfig."""
        if kind == KEY:
            return before._replace(key=None if self.keystore is None else self.keystore.read())
        return before._replace(trusted=None if self.truststore is None else self.truststore.read())

    def _checked(self, material: Material) -> ssl.SSLContext:
        """Return a context of this material. Raises InvalidConfig if it may not be used."""
        return self.made_of(material)

    def made_of(self, material: Material) -> ssl.SSLContext:
        """Return a context of this material. Raises InvalidConfig."""
        raise NotImplementedError

    def _check_group(self, found: Sequence[Material]) -> None:
        """Raise InvalidConfig if what the stores of the group have now does not fit together."""


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class ClientTls(StoreTls):
    """Makes TLS contexts for connections to other nodes."""

    def __init__(self, settings: TrustSettings) -> None:
        self._settings = settings
        super().__init__(settings.own, settings.truststore)

    @property
    def checks_host(self) -> bool:
        return self._settings.checks_host

    def made_of(self, material: Material) -> ssl.SSLContext:
        """Return a context of this material. Raises InvalidConfig."""
        key, trusted = material
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

    def used_by(self, nodes: ClientTls, host: str = "") -> None:
        """Note how nodes connect to the listener: from now on both are renewed together.

        The stores of this node stand for those of the others. `host`: by which they connect to this node; "":
        unknown. Logs if they could not connect.
        """
        self._nodes = nodes
        self.group = nodes.group = (self, nodes)
        self._seen = self._stamps()
        client = nodes.made_of(nodes.material)
        # A certificate that has ended is logged by CertificateWatch.
        client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        client.check_hostname = nodes.checks_host and bool(host)
        try:
            _shake_hands(self._context, client, "other nodes with these stores cannot connect", host or None)
        except InvalidConfig as error:
            LOGGER.warning("%s: %s", _place("key", self.keystore), error)

    def _checked(self, material: Material) -> ssl.SSLContext:
        key = material.key
        assert key is not None
        made = self.made_of(material)
        before = self.material.key
        if before is not None:
            self._check_change(before.certificates[0], key.certificates[0])
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._settings.suites.limit(client)
        client.check_hostname = False
        client.verify_flags |= ssl.VerifyFlags(PARTIAL_CHAIN)
        if before is None:
            # At the start a certificate that has ended is a warning only (CertificateWatch).
            client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        _trust(client, key.certificates[-1:], None)
        alone = self.made_of(material)
        alone.verify_mode = ssl.CERT_NONE
        _shake_hands(alone, client, f"{_place('key', self.keystore)}: its certificates cannot be used")
        return made

    def made_of(self, material: Material) -> ssl.SSLContext:
        """Return a context of this material. Raises InvalidConfig."""
        key, trusted = material
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

    def _check_group(self, found: Sequence[Material]) -> None:
        nodes = self._nodes
        if nodes is None:
            return
        ours, theirs = found
        for server, client, why in (
            (ours, theirs, "this node itself would not connect to another one with these stores"),
            (ours, nodes.material, "nodes that have the previous stores would not connect to this one"),
            (
                self.material,
                theirs,
                "this node would not connect to those that have the previous stores",
            ),
        ):
            connecting = nodes.made_of(client)
            connecting.check_hostname = False
            _shake_hands(self.made_of(server), connecting, f"{', '.join(self._group_places())}: {why}")

    def _group_places(self) -> list[str]:
        places = [_place("key", self.keystore)]
        trust = self.truststore or (None if self._nodes is None else self._nodes.truststore)
        return places if trust is None else [*places, _place("trust", trust)]

    def _check_change(self, old: bytes, new: bytes) -> None:
        """Raise InvalidConfig if the new certificate may not replace the old one."""
        settings = self._settings
        if settings.allow_dn_changes and settings.allow_san_changes:
            return
        before, after = Certificate.of(old), Certificate.of(new)
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


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, why: str, host: str | None = None) -> None:
    """Raise InvalidConfig, which begins with `why`, if the two complete no handshake.

    `host`: what the server's certificate has to name if the client checks that.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
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
