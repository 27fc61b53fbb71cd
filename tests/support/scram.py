"""The client's side of SCRAM, for tests: it also sends something else than it should."""

from __future__ import annotations

import base64
import hashlib
import hmac

from kreplica.security.sasl import Secret
from kreplica.security.scram import salted_password
from kreplica.security.scram_credential import ScramMechanism


class ScramClient:
    """Logs in as `user`. `authorization_id`: whom it wants to act as. `extensions`: with a comma before."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        authorization_id: str = "",
        extensions: str = "",
    ) -> None:
        self.mechanism = mechanism
        self.password = Secret(password)
        self.nonce = "abcdefghijklmnop"
        self.header = f"n,{f'a={_escaped(authorization_id)}' if authorization_id else ''},"
        self.bare = f"n={_escaped(user)},r={self.nonce}{extensions}"
        self.signature = ""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, answer: bytes, **changed: str) -> bytes:
        """Return the final message; `changed`: other values of its fields `nonce` and `header`."""
        parts = dict(each.split("=", 1) for each in answer.decode().split(","))
        header = changed.get("header", self.header)
        unsigned = f"c={base64.b64encode(header.encode()).decode()},r={changed.get('nonce', parts['r'])}"
        digest = self.mechanism.digest
        salt = base64.b64decode(parts["s"])
        salted = salted_password(self.mechanism, self.password, salt, int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", digest)
        signed = f"{self.bare},{answer.decode()},{unsigned}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", digest)
        self.signature = "v=" + base64.b64encode(hmac.digest(server_key, signed, digest)).decode()
        return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")
