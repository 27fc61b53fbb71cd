"""SASL PLAIN (RFC 4616): a name and a password in one token. Only the listener's encryption hides them.

Ownership: one login. Thread rule: one thread.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.peer import USER, KafkaPrincipal
from kreplica.security.sasl import Secret, check_authorization_id, text_of

PARTS = 3


class PlainSaslServer:
    """One login with PLAIN. `passwords`: by user."""

    lifetime_ms: int | None = None
    user = ""

    def __init__(self, passwords: Mapping[str, Secret]) -> None:
        self._passwords = passwords
        self.principal: KafkaPrincipal | None = None

    def respond(self, token: bytes) -> bytes:
        """Check the only token. Raises SaslAuthenticationFailed."""
        parts = text_of(token).split("\0")
        if len(parts) != PARTS or self.principal is not None:
            raise SaslAuthenticationFailed("a token of PLAIN has three parts, separated by NUL")
        authorization_id, user, password = parts
        if not user or not password:
            raise SaslAuthenticationFailed("the user or the password is empty")
        known = self._passwords.get(user)
        if known is not None:
            self.user = user
        check_authorization_id(authorization_id, user)
        # An unknown user takes as long as a wrong password.
        expected = "" if known is None else known.value
        if not hmac.compare_digest(expected.encode(), password.encode()) or known is None:
            raise SaslAuthenticationFailed("the user or the password is wrong")
        self.principal = KafkaPrincipal(USER, user)
        return b""
