"""ServerTls: the certificate of a listener, and TLS with it. ClientTls: whom a node trusts.

Changed files are read again.

The key and the certificates are in one file, as PEM: the key may be encrypted, the listener's own certificate
comes before those that signed it. New connections use what the file has; connections that are there go on as
they are. A file that cannot be used is logged once, and the listener keeps what it had. Thread rule: the loop
of the listener.
"""

from __future__ import annotations

import logging
import os
import ssl

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.security.sasl import Secret

LOGGER = logging.getLogger(__name__)

CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Where the key and the certificates are, and which versions of TLS are spoken, by Kafka's names.

    `client_auth`: none, requested or required: whether clients have certificates, which `truststore` signs.
    """

    keystore: str
    key_password: Secret | None = None
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    client_auth: str = "none"
    truststore: str = ""


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Whose certificates a node trusts when it connects to others, and which versions of TLS it speaks.

    `truststore`: a file of certificates in PEM; "": those that the system trusts. `checks_host`: whether the
    certificate has to name the host that the node connects to. `own`: the node's own key and certificate, for
    a listener that asks for them; None: it has none.
    """

    truststore: str = ""
    checks_host: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    own: TlsSettings | None = None


class _FileTls:
    """A TLS context from files, made anew when one changes. Raises InvalidConfig at the start."""

    def __init__(self, *paths: str) -> None:
        self._paths = [path for path in paths if path]
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
        raise NotImplementedError


class ClientTls(_FileTls):
    """Makes TLS contexts for connections to other nodes."""

    def __init__(self, settings: TrustSettings) -> None:
        self._settings = settings
        super().__init__(settings.truststore, "" if settings.own is None else settings.own.keystore)

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        try:
            made = ssl.create_default_context(cafile=settings.truststore or None)
        except OSError as error:
            raise InvalidConfig(
                f"ssl.truststore.location={settings.truststore}: no certificates in PEM ({error})"
            ) from None
        versions = [VERSIONS[each] for each in settings.versions]
        made.minimum_version, made.maximum_version = min(versions), max(versions)
        made.check_hostname = settings.checks_host
        if settings.own is not None:
            _load_key(made, settings.own)
        return made


class ServerTls(_FileTls):
    """Makes TLS contexts for the connections of a listener."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        super().__init__(settings.keystore, settings.truststore if settings.client_auth != "none" else "")

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = [VERSIONS[each] for each in settings.versions]
        made.minimum_version, made.maximum_version = min(versions), max(versions)
        made.options |= ssl.OP_NO_RENEGOTIATION
        _load_key(made, settings)
        if settings.client_auth != "none":
            made.verify_mode = CLIENT_AUTH[settings.client_auth]
            try:
                made.load_verify_locations(settings.truststore)
            except OSError as error:
                raise InvalidConfig(
                    f"ssl.truststore.location={settings.truststore}: no certificates in PEM ({error})"
                ) from None
        return made


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    # Without a password an encrypted key must fail, and not ask for one on the terminal.
    password = b"" if settings.key_password is None else settings.key_password.value.encode()
    try:
        context.load_cert_chain(settings.keystore, password=password)
    except (OSError, ValueError) as error:
        # ssl.SSLError is an OSError; its text has no part of the key.
        why = f"{type(error).__name__}: {error}"
        raise InvalidConfig(
            f"ssl.keystore.location={settings.keystore}: no key and certificates in PEM that fit each"
            f" other, or another password ({why})"
        ) from None
