"""KeyStore and TrustStore: keys and certificates in PEM or PKCS12, from files or from the properties.

A key store has one private key and the certificates that go with it, a trust store has certificates alone.
Both are read to one form: the key as PEM, certificates as DER. PKCS12 is read by the package `cryptography`.
OpenSSL takes keys from files only, so PEM that is in memory goes through a file that only this process sees
(`file_of`). No state; any thread.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig
from kreplica.security.sasl import Secret

PEM, PKCS12 = "PEM", "PKCS12"
JAVA_TYPES = ("JKS", "JCEKS")
# The first bytes of Java's own formats.
JAVA_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
MAX_BYTES = 4 << 20
LINE = 64
BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
# `base64` in legacy keys comes after lines such as "DEK-Info: ...".
HEADER = re.compile(r"^[A-Za-z-]+:", re.MULTILINE)

Get = Callable[[str], Any]


class KeyMaterial(NamedTuple):
    """What a key store has. `pem`: the key and the certificates; `password`: of the key, if encrypted.

    `certificates`: DER, the one of the key first.
    """

    pem: Secret
    password: Secret | None
    certificates: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Where a private key and its certificates are.

    `location`: a file of that `type`; "" if `key` and `chain` are the PEM itself. `password`: of a PKCS12
    file. `key_password`: of an encrypted key in PEM.
    """

    type: str
    location: str = ""
    password: Secret | None = None
    key_password: Secret | None = None
    key: Secret | None = None
    chain: str = ""

    def read(self) -> KeyMaterial:
        """Return the key and the certificates. Raises InvalidConfig."""
        if self.key is not None:
            # Each property has its own PEM; a certificate beside the key would be ignored by Kafka as well.
            keys, chain = _keys(_blocks(self.key.value)), _certificates(_blocks(self.chain))
            return _material(keys, chain, self.key_password, "ssl.keystore.key")
        what = f"ssl.keystore.location={self.location}"
        data = _file(what, self.location)
        if self.type == PKCS12:
            return _pkcs12_material(data, self.password, what)
        blocks = _blocks(data.decode("latin-1"))
        return _material(_keys(blocks), _certificates(blocks), self.key_password, what)


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Where trusted certificates are: in a file of that `type`, or in `certificates`, as PEM."""

    type: str
    location: str = ""
    password: Secret | None = None
    certificates: str = ""

    def read(self) -> tuple[bytes, ...]:
        """Return the certificates. Raises InvalidConfig."""
        if not self.location:
            found = _certificates(_blocks(self.certificates))
            if not found:
                raise InvalidConfig("ssl.truststore.certificates: no certificates in PEM")
            return tuple(found)
        what = f"ssl.truststore.location={self.location}"
        data = _file(what, self.location)
        if self.type == PKCS12:
            found = _pkcs12(data, self.password, what)[1]
        else:
            found = _certificates(_blocks(data.decode("latin-1")))
        if not found:
            raise InvalidConfig(f"{what}: no certificates in {self.type}")
        return tuple(found)


# ---- properties --------------------------------------------------------------------------------------------


def key_store_of(get: Get, owner: str) -> KeyStore | None:
    """Return the key store that Kafka's properties name; None if they name none.

    `get(name)`: the value of a property, or None. `owner`: whose properties they are, for messages. Raises
    InvalidConfig for properties that contradict each other.
    """
    location, key, chain = (
        _text(get(f"ssl.keystore.{name}")) for name in ("location", "key", "certificate.chain")
    )
    kind = _text(get("ssl.keystore.type")).upper()
    if not (location or key or chain or kind):
        return None
    _check_type("ssl.keystore.type", kind, owner)
    password, key_password = _secret(get("ssl.keystore.password")), _secret(get("ssl.key.password"))
    if key or chain:
        _check_inline(kind, location, key, chain, password, owner)
        return KeyStore(kind, key_password=key_password, key=Secret(key), chain=chain)
    if not location:
        raise InvalidConfig(f"ssl.keystore.location is missing for {owner}")
    if kind == PEM and password is not None:
        raise InvalidConfig(
            f"ssl.keystore.password for {owner}: a file in PEM has none; the password of a key is"
            " ssl.key.password"
        )
    if kind == PKCS12:
        if password is None:
            raise InvalidConfig(f"ssl.keystore.password is missing for {owner}, for a key store in PKCS12")
        if key_password is not None and not hmac.compare_digest(
            key_password.value.encode(), password.value.encode()
        ):
            raise InvalidConfig(
                f"ssl.key.password for {owner} differs from ssl.keystore.password: the key of a PKCS12 store"
                " has the store's password"
            )
        require_cryptography("a store in PKCS12")
    return KeyStore(kind, location, password, key_password)


def _check_inline(
    kind: str, location: str, key: str, chain: str, password: Secret | None, owner: str
) -> None:
    if kind != PEM:
        raise InvalidConfig(f"ssl.keystore.type={kind} for {owner} must be PEM, for ssl.keystore.key")
    if not key or not chain:
        raise InvalidConfig(
            f"ssl.keystore.key and ssl.keystore.certificate.chain for {owner} belong together: one is missing"
        )
    if location or password is not None:
        raise InvalidConfig(
            f"ssl.keystore.key for {owner} excludes ssl.keystore.location and ssl.keystore.password"
        )


def trust_store_of(get: Get, owner: str) -> TrustStore | None:
    """Return the trust store that Kafka's properties name, as `key_store_of`. PEM is the default type."""
    location, certificates = _text(get("ssl.truststore.location")), _text(get("ssl.truststore.certificates"))
    kind = _text(get("ssl.truststore.type")).upper() or PEM
    _check_type("ssl.truststore.type", kind, owner)
    password = _secret(get("ssl.truststore.password"))
    if certificates and (kind != PEM or location or password is not None):
        raise InvalidConfig(
            f"ssl.truststore.certificates for {owner} needs ssl.truststore.type=PEM, and excludes"
            " ssl.truststore.location and ssl.truststore.password"
        )
    if kind == PEM and password is not None:
        raise InvalidConfig(f"ssl.truststore.password for {owner}: certificates in PEM have no password")
    if kind == PKCS12:
        require_cryptography("a store in PKCS12")
    return TrustStore(kind, location, password, certificates) if location or certificates else None


def _check_type(name: str, kind: str, owner: str) -> None:
    if kind in (PEM, PKCS12):
        return
    given = f"{name}={kind[:40]}" if kind else f"{name} (JKS, if it is not given)"
    raise InvalidConfig(f"{given} for {owner} must be PEM or PKCS12. {CONVERT}")


CONVERT = (
    "Convert a JKS with `keytool -importkeystore -srckeystore store.jks -destkeystore store.p12"
    " -deststoretype PKCS12`."
)


def require_cryptography(what: str) -> None:
    """Raise InvalidConfig if the package that reads certificates is missing; `what` needs it."""
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise InvalidConfig(
            f"{what} needs cryptography, which is not installed: pip install 'kreplica[security]'"
        )


def _text(value: object) -> str:
    return str(value or "").strip()


def _secret(value: object) -> Secret | None:
    return None if value is None else Secret(str(value))


# ---- PEM ---------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    label: str
    body: str


def _blocks(text: str) -> list[_Block]:
    """Return the entries of a text in PEM; there may be other text around them."""
    return [_Block(label, body) for label, body in BLOCK.findall(text)]


def _keys(blocks: Sequence[_Block]) -> list[str]:
    return [_pem(each) for each in blocks if each.label.endswith("PRIVATE KEY")]


def _pem(block: _Block) -> str:
    """Return the entry with lines that OpenSSL reads: a property may have it all in one line."""
    has_header = HEADER.search(block.body) is not None
    body = block.body if has_header else f"\n{_wrapped(''.join(block.body.split()))}\n"
    return f"-----BEGIN {block.label}-----{body}-----END {block.label}-----\n"


def _wrapped(text: str) -> str:
    return "\n".join(text[at : at + LINE] for at in range(0, len(text), LINE))


def _certificates(blocks: Sequence[_Block]) -> list[bytes]:
    """Return the certificates as DER. Raises InvalidConfig."""
    found = []
    for each in blocks:
        if each.label in ("CERTIFICATE", "X509 CERTIFICATE"):
            try:
                found.append(base64.b64decode("".join(each.body.split()), validate=True))
            except binascii.Error as error:
                raise InvalidConfig(f"a certificate in PEM cannot be read: {error}") from None
    return found


def pem_of(certificates: Sequence[bytes]) -> str:
    """Return certificates as PEM."""
    return "".join(_pem(_Block("CERTIFICATE", base64.b64encode(each).decode())) for each in certificates)


def _material(keys: list[str], certificates: list[bytes], password: Secret | None, what: str) -> KeyMaterial:
    if len(keys) != 1 or not certificates:
        raise InvalidConfig(
            f"{what}: no key and certificates in PEM, but {len(keys)} keys and {len(certificates)}"
            " certificates; one key is needed, and its certificate"
        )
    return KeyMaterial(Secret(keys[0] + pem_of(certificates)), password, tuple(certificates))


# ---- PKCS12 ------------------------------------------------------------------------------------------------


def _file(what: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(f"{what}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InvalidConfig(f"{what} has more than {MAX_BYTES} bytes")
    if data.startswith(JAVA_MAGIC):
        raise InvalidConfig(f"{what} is a JKS. {CONVERT}")
    return data


def _pkcs12(data: bytes, password: Secret | None, what: str) -> tuple[Any, list[bytes]]:
    """Return the key of a PKCS12 store, or None, and its certificates, that of the key first."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        found = pkcs12.load_pkcs12(data, None if password is None else password.value.encode())
    except ValueError as error:
        raise InvalidConfig(f"{what}: no PKCS12 store, or another password ({error})") from None
    chain = ([] if found.cert is None else [found.cert]) + list(found.additional_certs)
    return found.key, [each.certificate.public_bytes(Encoding.DER) for each in chain]


def _pkcs12_material(data: bytes, password: Secret | None, what: str) -> KeyMaterial:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, certificates = _pkcs12(data, password, what)
    if key is None or not certificates:
        raise InvalidConfig(f"{what}: no private key with a certificate in PKCS12")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    ordered = _in_order(certificates)
    return KeyMaterial(Secret(pem + pem_of(ordered)), None, ordered)


def _in_order(certificates: list[bytes]) -> tuple[bytes, ...]:
    """Return the first certificate, the one that signed it, and so on; the store keeps no order."""
    from cryptography.x509 import load_der_x509_certificate

    parsed = [load_der_x509_certificate(each) for each in certificates]
    chain, left = [0], set(range(1, len(parsed)))
    while True:
        issuer = parsed[chain[-1]].issuer
        signer = next((each for each in sorted(left) if parsed[each].subject == issuer), None)
        if signer is None:
            return tuple(certificates[each] for each in chain)
        left.remove(signer)
        chain.append(signer)


# ---- files -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def file_of(secret: Secret) -> Iterator[str]:
    """Make a file with the text for a while, which no other user can read; yields its path.

    On Linux it is in memory only.
    """
    with _private_file() as file:
        file.write(secret.value.encode("latin-1"))
        file.flush()
        yield f"/proc/self/fd/{file.name}" if isinstance(file.name, int) else file.name


def _private_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("key", os.MFD_CLOEXEC), "wb")
    return tempfile.NamedTemporaryFile()  # mode 0600


_held = contextlib.ExitStack()
atexit.register(_held.close)
_paths: dict[bytes, str] = {}


def held_file(secret: Secret) -> str:
    """Return the path of such a file that stays until the process ends; equal texts share one."""
    digest = hashlib.sha256(secret.value.encode()).digest()
    if digest not in _paths:
        _paths[digest] = _held.enter_context(file_of(secret))
    return _paths[digest]
