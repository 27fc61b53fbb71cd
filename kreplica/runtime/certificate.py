"""Certificate: what a certificate says about its owner, and how long it is valid. No state.

Read by the package `cryptography`; without it a certificate is unknown.
"""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from typing import NamedTuple

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed
from kreplica.security.distinguished_name import name_text


class Certificate(NamedTuple):
    """`subject`: its name as in RFC 2253. `addresses`: the hosts and addresses that it is for.

    `parts`: of the name, with the types of their attributes; neither case nor the kind of string is left.
    """

    subject: str
    parts: tuple[frozenset[tuple[str, str]], ...]
    addresses: frozenset[str]
    not_before: datetime
    not_after: datetime

    @classmethod
    def of(cls, der: bytes) -> Certificate | None:
        """Return what the certificate says; None without the package. Raises InvalidConfig."""
        if find_spec("cryptography") is None:
            return None
        from cryptography import x509

        try:
            found = x509.load_der_x509_certificate(der)
            subject = name_text(found.subject.public_bytes())
            parts = tuple(
                frozenset((each.oid.dotted_string, _normal(each.value)) for each in part)
                for part in found.subject.rdns
            )
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            addresses: frozenset[str] = frozenset()
        except (ValueError, SaslAuthenticationFailed) as error:
            raise InvalidConfig(f"a certificate cannot be read: {error}") from None
        else:
            addresses = frozenset(str(each.value) for each in names)
        return cls(subject, parts, addresses, found.not_valid_before_utc, found.not_valid_after_utc)

    def has_name_of(self, other: Certificate) -> bool:
        """Return whether both have one subject; as in X.501, case and the kind of string do not matter."""
        return self.parts == other.parts


def _normal(value: str | bytes) -> str:
    return " ".join(str(value).split()).lower()
