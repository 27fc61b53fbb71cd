"""SASL OAUTHBEARER (RFC 7628): a login by a token of an identity provider.

    client                                         server
      n,,^Aauth=Bearer TOKEN^A^A                ──▶
                                                ◀──  nothing, and the client is logged in
                                                     or {"status":"invalid_token"}
      ^A                                        ──▶
                                                ◀──  the login has failed

^A is the byte 1. The session ends when the token expires (KIP-368). Extensions of the client (KIP-342) are
read and have no effect.

Ownership: one login each. Thread rule: one thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.jwt import OAuthBearerToken
from kreplica.security.peer import USER, KafkaPrincipal
from kreplica.security.sasl import Secret, check_authorization_id, text_of

OAUTHBEARER = "OAUTHBEARER"
SEPARATOR = "\1"
MOST_BYTES_OF_MESSAGE = 64 << 10
_FIRST = re.compile(r"n,(?:a=(?P<authzid>(?:[^,=\x01]|=2C|=3D)*))?,\x01(?P<pairs>(?:[^\x01]+\x01)*)\x01")
_PAIR = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[!-~ \t\r\n]*)")
_AUTH = re.compile(r"(?i:bearer) +(?P<token>[-_.A-Za-z0-9]+)")
REFUSED = json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode()

# Returns what a token says, or raises SaslAuthenticationFailed.
Validate = Callable[[str], OAuthBearerToken]


class OAuthBearerSaslServer:
    """One login. `now_ms()`: the time in ms since 1970."""

    user = ""  # a token that is refused proves none

    def __init__(self, validate: Validate, now_ms: Callable[[], int]) -> None:
        self._validate = validate
        self._now_ms = now_ms
        self._refusal: SaslAuthenticationFailed | None = None
        self.principal: KafkaPrincipal | None = None
        self.lifetime_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        """Answer the client's message. Raises SaslAuthenticationFailed."""
        if len(token) > MOST_BYTES_OF_MESSAGE:
            raise SaslAuthenticationFailed(
                f"a message of OAUTHBEARER has at most {MOST_BYTES_OF_MESSAGE} bytes"
            )
        if self._refusal is not None:
            raise self._refusal
        if self.principal is not None:
            raise SaslAuthenticationFailed("the login is complete")
        authorization_id, bearer = parse_first(text_of(token))
        try:
            found = self._validate(bearer.value)
        except SaslAuthenticationFailed as refusal:
            # The client gets this as an answer, and answers it before the login fails.
            self._refusal = refusal
            return REFUSED
        check_authorization_id(authorization_id, found.user)
        self.lifetime_ms = max(found.expires_ms - self._now_ms(), 0)
        self.principal = KafkaPrincipal(USER, found.user)
        return b""


def parse_first(text: str) -> tuple[str, Secret]:
    """Return the authorization id in a client's first message, and its token.

    Raises SaslAuthenticationFailed.
    """
    found = _FIRST.fullmatch(text)
    pairs: dict[str, str] = {}
    for each in "" if found is None else found["pairs"].split(SEPARATOR)[:-1]:
        pair = _PAIR.fullmatch(each)
        if pair is None or pair["key"] in pairs:
            raise SaslAuthenticationFailed(
                "a pair in the message of OAUTHBEARER is not valid, or is repeated"
            )
        pairs[pair["key"]] = pair["value"]
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if found is None or auth is None:
        raise SaslAuthenticationFailed("the message of OAUTHBEARER is not valid, or has no bearer token")
    authorization_id = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authorization_id, Secret(auth["token"])


def first_message(token: Secret, extensions: Mapping[str, str]) -> bytes:
    """Return the message with which a client logs in. Raises SaslAuthenticationFailed."""
    pairs = {"auth": f"Bearer {token.value}", **extensions}
    text = "".join(f"{key}={value}{SEPARATOR}" for key, value in pairs.items())
    message = f"n,,{SEPARATOR}{text}{SEPARATOR}"
    parse_first(message)
    return message.encode()
