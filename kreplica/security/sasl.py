"""The parts of SASL that mechanisms have in common. No state; any thread may call.

A mechanism is made anew for each login. It gets the client's tokens one after the other, and answers each
with a token of its own.
"""

from __future__ import annotations

from typing import Protocol

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.peer import KafkaPrincipal


class SaslMechanism(Protocol):
    """The server's side of one login."""

    @property
    def principal(self) -> KafkaPrincipal | None:
        """Who has logged in; None while the login goes on."""
        ...

    @property
    def user(self) -> str:
        """The user as whom the client tries to log in; "" for one that does not exist, or is not known yet.

        What is no user may be a password in the wrong place, and must not be logged.
        """
        ...

    @property
    def lifetime_ms(self) -> int | None:
        """How long what the client has logged in with is still good for; None if it does not expire."""
        ...

    def respond(self, token: bytes) -> bytes:
        """Return the answer to the client's next token. Raises SaslAuthenticationFailed."""
        ...


class Secret:
    """A secret text, which no log, error or representation shows. `value`: the text itself."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        raise TypeError("compare secrets with hmac.compare_digest")

    __hash__ = None  # type: ignore[assignment]


def text_of(token: bytes) -> str:
    """Return a token as text. Raises SaslAuthenticationFailed if it is not UTF-8."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise SaslAuthenticationFailed("the token is not UTF-8") from None


def check_authorization_id(authorization_id: str, user: str) -> None:
    """Raise SaslAuthenticationFailed if a client wants to act as another user (CVE-2017-12610)."""
    if authorization_id not in ("", user):
        raise SaslAuthenticationFailed("the authorization id must be empty or the name of the user")
