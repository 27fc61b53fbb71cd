"""CertificateAuthority: signs the certificates of a cluster in this process, to test TLS with."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from kreplica.common.errors import InvalidConfig

NAME = "kreplica test authority"
# Long enough for every test, short enough that none of these serves elsewhere for long.
VALID_DAYS = 30


class CertificateAuthority:
    """An authority with a key of its own. Raises InvalidConfig if the package `cryptography` is missing."""

    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise InvalidConfig(
                "security with TLS needs cryptography, which is not installed:"
                " pip install 'kreplica[security]'"
            ) from error
        self._x509 = x509

        def new_key() -> ec.EllipticCurvePrivateKey:
            return ec.generate_private_key(ec.SECP256R1())

        self._new_key = new_key
        self._key = self._new_key()
        usages = dict.fromkeys(
            (
                "digital_signature",
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        self.certificate: bytes = self._sign(
            NAME,
            self._key,
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
            (x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usages), True),
        )

    def issue(self, file: Path, name: str, *, is_local: bool = False) -> None:
        """Write a key and its certificate in PEM, which only the user of this process can read.

        `name`: the common name. `is_local`: it is valid for 127.0.0.1 and localhost.
        """
        from cryptography.hazmat.primitives import serialization

        x509, key = self._x509, self._new_key()
        extensions: list[tuple[Any, bool]] = [
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
        ]
        if is_local:
            address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
            extensions.append((x509.SubjectAlternativeName([address, x509.DNSName("localhost")]), False))
        own = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as made:
            made.write(own + self._sign(name, key, *extensions))

    def _sign(self, name: str, key: Any, *extensions: tuple[Any, bool]) -> bytes:
        """Return a certificate in PEM with these extensions and whether each is critical."""
        from cryptography.hazmat.primitives import hashes, serialization

        x509, now = self._x509, datetime.datetime.now(datetime.UTC)
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, NAME)]
        made = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        )
        for extension, is_critical in extensions:
            made = made.add_extension(extension, critical=is_critical)
        found: bytes = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return found
