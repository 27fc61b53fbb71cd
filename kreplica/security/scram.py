"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802): a login in which no password is sent.

    client                                         server
      n,,n=alice,r=NONCE                        ──▶
                                                ◀──  r=NONCE+MORE,s=SALT,i=ITERATIONS
      c=biws,r=NONCE+MORE,p=PROOF               ──▶
                                                ◀──  v=SIGNATURE

The server stores no password, but a salt and two keys made of it; a login costs it two HMACs and a hash.
Stricter than Kafka's server: a user who does not exist takes the same steps as one with a wrong password, the
final message must repeat the header of the first one, and the reserved extension m= is refused.

Ownership: one login each. Thread rule: one thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.common.ports import Random
from kreplica.security.peer import USER, KafkaPrincipal
from kreplica.security.sasl import Secret, check_authorization_id, text_of
from kreplica.security.scram_credential import MIN_ITERATIONS, ScramCredential, ScramMechanism, UnknownUsers

SALT_BYTES = NONCE_BYTES = 18
# With it a client logs in by a delegation token (KIP-48).
TOKEN_EXTENSION = "tokenauth=true"
GENERIC = "authentication failed: the user or the password is wrong"

_NONCE = r"r=(?P<nonce>[!-+\--~]+)"
_FIRST = re.compile(rf"n,(?:a=(?P<authzid>[^,]*))?,(?P<bare>n=(?P<name>[^,]+),{_NONCE}(?P<more>,.*)?)")
_FINAL = re.compile(rf"(?P<unsigned>c=(?P<header>[^,]*),{_NONCE}(?P<more>,.*)?),p=(?P<proof>[^,]*)")


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return what a server stores of a salted password, which a client has computed."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored = hashlib.new(mechanism.digest, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", mechanism.digest)
    return ScramCredential(salt, stored, server_key, iterations)


def salted_password(mechanism: ScramMechanism, password: Secret, salt: bytes, iterations: int) -> bytes:
    """Return the salted password: a slow function of the password, PBKDF2."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.value.encode(), salt, iterations)


class Token(Protocol):
    """A delegation token. `expires_ms`: since 1970."""

    @property
    def credential(self) -> ScramCredential: ...
    @property
    def principal(self) -> KafkaPrincipal: ...
    @property
    def expires_ms(self) -> int: ...


class ScramSaslServer:
    """One login with SCRAM. `credential(user)`: the user's, or None.

    `unknown()`: what users look like who do not exist; None while there are no users, and `secret` replaces
    it. `token(id)`: a delegation token, which logs in as its owner until it expires. `now_ms()`: since 1970.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential: Callable[[str], ScramCredential | None],
        random: Random,
        secret: bytes,
        token: Callable[[str], Token | None] = lambda _: None,
        now_ms: Callable[[], int] = lambda: 0,
        unknown: Callable[[], UnknownUsers | None] = lambda: None,
    ) -> None:
        self._mechanism = mechanism
        self._credential = credential
        self._random = random
        self._secret = secret
        self._unknown = unknown
        self._token = token
        self._now_ms = now_ms
        self._login: _Login | None = None
        self.user = ""
        self.principal: KafkaPrincipal | None = None
        self.lifetime_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        """Answer the client's first or final message. Raises SaslAuthenticationFailed."""
        text = text_of(token)
        if self.principal is not None:
            raise SaslAuthenticationFailed("the login is complete")
        return (self._first(text) if self._login is None else self._final(text, self._login)).encode()

    def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None or _is_reserved(found["more"]):
            raise SaslAuthenticationFailed("the first message of SCRAM is not valid")
        user = _unescaped(found["name"])
        credential, principal, expires_ms = self._known(user, found["more"])
        if credential is not None:
            self.user = principal.name
        check_authorization_id(_unescaped(found["authzid"] or ""), user)
        shown = credential or self._made_up(user)
        nonce = found["nonce"] + base64.b64encode(self._random.randbytes(NONCE_BYTES)).decode()
        answer = f"r={nonce},s={base64.b64encode(shown.salt).decode()},i={shown.iterations}"
        header = text.removesuffix(found["bare"])
        exchanged = f"{found['bare']},{answer}"
        self._login = _Login(principal, expires_ms, shown, credential is not None, header, nonce, exchanged)
        return answer

    def _known(
        self, user: str, extensions: str | None
    ) -> tuple[ScramCredential | None, KafkaPrincipal, int | None]:
        """Return the credential of a user or of a token, as whom it logs in, and until when."""
        if TOKEN_EXTENSION not in (extensions or "").split(","):
            return self._credential(user), KafkaPrincipal(USER, user), None
        token = self._token(user)
        if token is None or token.expires_ms <= self._now_ms():
            return None, KafkaPrincipal(USER, user), None
        return token.credential, token.principal, token.expires_ms

    def _made_up(self, user: str) -> ScramCredential:
        unknown = self._unknown() or UnknownUsers(self._secret, ((SALT_BYTES, MIN_ITERATIONS),))
        return unknown.credential(self._mechanism, user)

    def _final(self, text: str, login: _Login) -> str:
        digest, credential = self._mechanism.digest, login.credential
        found = _FINAL.fullmatch(text)
        if found is None or _is_reserved(found["more"]):
            raise SaslAuthenticationFailed("the final message of SCRAM is not valid")
        header, proof = decoded(found["header"]), decoded(found["proof"])
        is_same = hmac.compare_digest(found["nonce"], login.nonce)  # CVE-2024-56128
        is_same &= hmac.compare_digest(header, login.header.encode())
        signed = f"{login.exchanged},{found['unsigned']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        if len(proof) != len(signature) or not is_same:
            raise SaslAuthenticationFailed(GENERIC)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        if not is_right or not login.exists:
            raise SaslAuthenticationFailed(GENERIC)
        if login.expires_ms is not None:
            self.lifetime_ms = max(login.expires_ms - self._now_ms(), 0)
        self.principal = login.principal
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest)).decode()


class _Login(NamedTuple):
    """What a server remembers between the two messages. `exchanged`: the first messages of both sides."""

    principal: KafkaPrincipal
    expires_ms: int | None
    credential: ScramCredential
    exists: bool
    header: str
    nonce: str
    exchanged: str


def _is_reserved(extensions: str | None) -> bool:
    """Whether a mandatory extension is asked for, which RFC 5802 reserves."""
    return any(each.startswith("m=") for each in (extensions or "").split(","))


def _unescaped(name: str) -> str:
    if re.search("=(?!2C|3D)", name):
        raise SaslAuthenticationFailed("a name in a message of SCRAM is not valid")
    return name.replace("=2C", ",").replace("=3D", "=")


def decoded(text: str) -> bytes:
    """Return what base64 text means. Raises SaslAuthenticationFailed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslAuthenticationFailed("a message of SCRAM has invalid base64") from None
