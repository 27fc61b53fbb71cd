"""ScramSaslClient: the client's side of a login with SCRAM.

What the server sends is bounded: a hostile one cannot keep the client busy (CVE-2026-10143 of kafka-python).
Ownership: one login. Thread rule: one thread.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.common.ports import Random
from kreplica.security.sasl import Secret, text_of
from kreplica.security.scram import NONCE_BYTES, TOKEN_EXTENSION, decoded, salted_password
from kreplica.security.scram_credential import ScramMechanism

MOST_ITERATIONS = 1 << 20
MOST_BYTES = 4096
_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[^,]+),i=(?P<iterations>[0-9]{1,9})(?:,.*)?")
HEADER = "n,,"


class ScramSaslClient:
    """One login. `mechanism`: SASL's name of it. `is_token`: the user is the id of a delegation token."""

    def __init__(
        self, mechanism: str, user: str, password: Secret, random: Random, *, is_token: bool = False
    ) -> None:
        self._mechanism = ScramMechanism[mechanism.replace("-", "_")]
        self._password = password
        self._nonce = base64.b64encode(random.randbytes(NONCE_BYTES)).decode()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}" + (f",{TOKEN_EXTENSION}" if is_token else "")
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return (HEADER + self._bare).encode()

    def final(self, answer: bytes) -> bytes:
        """Return the final message, for the server's first one. Raises SaslAuthenticationFailed."""
        found = _FIRST.fullmatch(text_of(answer)) if len(answer) <= MOST_BYTES else None
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise SaslAuthenticationFailed("the first message of the server is not valid")
        iterations = int(found["iterations"])
        if not 0 < iterations <= MOST_ITERATIONS:
            raise SaslAuthenticationFailed(f"the server asks for {iterations} iterations")
        digest = self._mechanism.digest
        salted = salted_password(self._mechanism, self._password, decoded(found["salt"]), iterations)
        unsigned = f"c={base64.b64encode(HEADER.encode()).decode()},r={found['nonce']}"
        signed = f"{self._bare},{answer.decode()},{unsigned}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Check that the server knows the password, too. Raises SaslAuthenticationFailed."""
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(expected, answer):
            raise SaslAuthenticationFailed("the server does not know the password")
