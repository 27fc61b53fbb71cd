"""CipherSuites: the encryption that TLS may use, by Java's names of cipher suites. No state.

    ssl.cipher.suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_AES_256_GCM_SHA384,...

OpenSSL has other names for the suites of TLS 1.2. Those of TLS 1.3 can only be enabled all together: Python's
ssl has no means to choose among them. A version of TLS without a suite is not spoken.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from kreplica.common.errors import InvalidConfig

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OF_TLS_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
OF_TLS_1_2 = re.compile(
    "TLS_(?P<exchange>ECDHE_ECDSA|ECDHE_RSA|DHE_RSA|RSA)_WITH_"
    "(?:AES_(?P<bits>128|256)_(?P<mode>GCM|CBC)_(?P<hash>SHA|SHA256|SHA384)|CHACHA20_POLY1305_SHA256)"
)


class CipherSuites(NamedTuple):
    """`versions`: the versions of TLS that are spoken; `ciphers`: OpenSSL's list for TLS 1.2, "" for all."""

    versions: tuple[str, ...] = tuple(VERSIONS)
    ciphers: str = ""

    @classmethod
    def of(cls, versions: Sequence[str], names: Sequence[str]) -> CipherSuites:
        """Return what `ssl.enabled.protocols` and `ssl.cipher.suites` allow. Raises InvalidConfig."""
        for each in versions:
            if each not in VERSIONS:
                raise InvalidConfig(f"ssl.enabled.protocols: {each[:40]} is not one of {', '.join(VERSIONS)}")
        if not names:
            return cls(tuple(versions))
        newer = OF_TLS_1_3.intersection(names)
        if newer and newer != OF_TLS_1_3:
            missing = ", ".join(sorted(OF_TLS_1_3 - newer))
            raise InvalidConfig(
                f"ssl.cipher.suites: the suites of TLS 1.3 can only be enabled together; {missing} is missing"
            )
        older = [_openssl_name(each) for each in names if each not in OF_TLS_1_3]
        usable = {"TLSv1.2": bool(older), "TLSv1.3": bool(newer)}
        spoken = tuple(each for each in versions if usable[each])
        if not spoken:
            raise InvalidConfig(
                f"ssl.cipher.suites has no suite for ssl.enabled.protocols={','.join(versions)}"
            )
        return cls(spoken, ":".join(older))

    def limit(self, context: ssl.SSLContext) -> None:
        """Let the context use nothing else."""
        versions = [VERSIONS[each] for each in self.versions]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        if self.ciphers:
            context.set_ciphers(self.ciphers)


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2. Raises InvalidConfig."""
    found = OF_TLS_1_2.fullmatch(name)
    if found is None:
        raise InvalidConfig(
            f"ssl.cipher.suites: {name[:80]!r} is not Java's name of a suite of TLS 1.2 or 1.3"
        )
    exchange = "" if found["exchange"] == "RSA" else found["exchange"].replace("_", "-") + "-"
    if found["bits"] is None:
        cipher = "CHACHA20-POLY1305"
    else:
        mode = "-GCM" if found["mode"] == "GCM" else ""
        cipher = f"AES{found['bits']}{mode}-{found['hash']}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(exchange + cipher)
    except ssl.SSLError:
        raise InvalidConfig(f"ssl.cipher.suites: OpenSSL has no {name}") from None
    return exchange + cipher
