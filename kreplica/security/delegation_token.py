"""Delegation tokens (KIP-48): passwords for a while, which a user makes for programs that act as the user.

A token's password is the HMAC of its id by a secret that all nodes have, so nodes store no passwords. It logs
in by SCRAM, with the token's id as the user and the extension tokenauth=true. No state, but TokenCredentials;
any thread may call.
"""

from __future__ import annotations

import base64
from typing import NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.settings import Kind, Settings, int64, optional, setting
from kreplica.security.peer import ANONYMOUS, USER, KafkaPrincipal
from kreplica.security.sasl import Secret
from kreplica.security.scram_credential import MIN_ITERATIONS, ScramCredential, ScramMechanism

DAY_MS = 86_400_000
SALT_BYTES = 18
# Credentials are kept ready for this many tokens that log in.
MOST_READY = 1_000


def _secret(value: object) -> Secret:
    found = value if isinstance(value, Secret) else Secret(value if isinstance(value, str) else "")
    if not found.value:
        raise ValueError("is not text, or is empty")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenConfig(Settings):
    """The settings of delegation tokens, the same on all nodes. Raises InvalidConfig."""

    delegation_token_secret_key: Secret | None = setting(
        None,
        optional(Kind("password", "any text", _secret)),
        "The secret that makes passwords of tokens, the same on all nodes. Without it there are no tokens.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        7 * DAY_MS, int64(1), "A token cannot be renewed beyond this age."
    )
    delegation_token_expiry_time_ms: int = setting(
        DAY_MS, int64(1), "A token expires after this long, unless it is renewed."
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        3_600_000, int64(1), "How often the controller removes expired tokens."
    )


def token_hmac(secret: Secret, token_id: str) -> bytes:
    """Return the password of a token, as bytes."""
    return _digest(secret, token_id)


def _digest(secret: Secret, text: str) -> bytes:
    # A node without tokens starts without it.
    import hmac

    return hmac.digest(secret.value.encode(), text.encode(), "sha512")


def may_use_tokens(principal: KafkaPrincipal) -> bool:
    """Return whether a client may make and describe tokens: one that is known, and not by a token itself.

    Over PLAINTEXT, and over SSL without a certificate, clients are anonymous.
    """
    return bool(principal.name) and principal != ANONYMOUS and not principal.token_authenticated


def parse_principal(text: str) -> KafkaPrincipal:
    """Return the principal of a text such as User:alice, from a record."""
    kind, _, name = text.partition(":")
    return KafkaPrincipal(kind or USER, name)


class TokenLogin(NamedTuple):
    """How a token logs in, as whom, and until when, in ms since 1970."""

    credential: ScramCredential
    principal: KafkaPrincipal
    expires_ms: int


class TokenCredentials:
    """Makes SCRAM credentials of tokens, which takes some ms, and keeps those of the last ones.

    Thread rule: any thread; two may make the same credential.
    """

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._ready: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """Return the credential of a token that exists."""
        found = self._ready.get((token_id, mechanism))
        if found is None:
            from kreplica.security.scram import credential_of, salted_password

            password = Secret(base64.b64encode(token_hmac(self._secret, token_id)).decode())
            # Another use of the secret than for passwords.
            salt = _digest(self._secret, f"salt of {token_id}")[:SALT_BYTES]
            salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
            found = credential_of(mechanism, salted, salt, MIN_ITERATIONS)
            if len(self._ready) >= MOST_READY:
                self._ready = {}
            self._ready[token_id, mechanism] = found
        return found
