"""Checks signed JSON Web Tokens (RFC 7519), by the keys of a JSON Web Key Set (RFC 7517).

The algorithms are a fixed list of asymmetric ones: a token cannot choose `none`, nor HMAC with a public key
as its secret (CVE-2026-33557). A key of the set that cannot verify by one of them is left out. The checks of
the claims are stricter than Kafka's: issuer and audience are expected by default, and `nbf` and an `iat` in
the future count. Needs joserfc, which is imported with the first set of keys.

No state; any thread may call.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidConfig, InvalidFile, SaslAuthenticationFailed

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
# EdDSA is the older name of Ed25519, of the curves that RFC 8037 allows for it.
_SAME = {"EdDSA": "Ed25519"}
MOST_KEYS, MOST_BYTES_OF_KEYS = 100, 256 << 10
# Verifying takes the longer the larger an RSA key is.
LEAST_RSA_BITS, MOST_RSA_BITS = 2048, 8192
MOST_BYTES_OF_TOKEN = 48 << 10
SHOWN = 80


def require_joserfc() -> None:
    """Raise InvalidConfig unless the package joserfc is installed."""
    try:
        import joserfc  # noqa: F401
    except ImportError as error:
        text = "OAUTHBEARER needs joserfc, which is not installed: pip install 'kreplica[security]'"
        raise InvalidConfig(text) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token has to say. `issuer`: None for any. `audiences`: one of them; empty for any.

    `allows_unsecured`: take tokens without a signature, which everyone can make. Only for tests.
    """

    issuer: str | None
    audiences: tuple[str, ...]
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_ms: int = 30_000
    allows_unsecured: bool = False


class OAuthBearerToken(NamedTuple):
    """What a valid token says. `user`: the name of its principal. Times are ms since 1970."""

    user: str
    scope: frozenset[str]
    expires_ms: int


# ---- keys -------------------------------------------------------------------------------------------------


class VerifyingKey(NamedTuple):
    """A public key. `kid`: its id in tokens; None if it has none. `algorithms`: those that it fits."""

    kid: str | None
    algorithms: frozenset[str]
    key: Any


class VerifyingKeys:
    """The keys of one set, which never change."""

    def __init__(self, keys: tuple[VerifyingKey, ...] = ()) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, data: bytes) -> VerifyingKeys:
        """Return the keys of a JWKS that can verify tokens.

        Raises InvalidFile if it is no JWKS, is too large, or has no such key.
        """
        if len(data) > MOST_BYTES_OF_KEYS:
            raise InvalidFile(f"the set of keys is larger than {MOST_BYTES_OF_KEYS} bytes")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidFile("the set of keys is not JSON") from None
        keys = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(keys, list):
            raise InvalidFile("the set of keys has no list of keys")
        if len(keys) > MOST_KEYS:
            raise InvalidFile(f"the set has {len(keys)} keys; at most {MOST_KEYS} are allowed")
        made = [key for each in keys if (key := _verifying_key(each)) is not None]
        if not made:
            raise InvalidFile("the set has no key that can verify tokens")
        return cls(tuple(made))

    def has(self, kid: str) -> bool:
        """Return whether a key has this id."""
        return any(each.kid == kid for each in self._keys)

    def fitting(self, kid: str | None, algorithm: str) -> VerifyingKey | None:
        """Return the key for a token: that of its id or, if it has no id, the only one that fits."""
        fitting = [each for each in self._keys if algorithm in each.algorithms]
        if kid is not None:
            return next((each for each in fitting if each.kid == kid), None)
        return fitting[0] if len(fitting) == 1 else None


def _verifying_key(found: object) -> VerifyingKey | None:
    """Return the key in a JWKS as far as it can verify tokens; None if it cannot, or cannot be read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    # Symmetric keys have no place in a public set.
    if not isinstance(found, dict) or found.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    usage, operations = found.get("use", "sig"), found.get("key_ops", ["verify"])
    if usage != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    kid = found.get("kid")
    algorithm = found.get("alg")
    if kid is not None and not isinstance(kid, str):
        return None
    if found["kty"] == "RSA" and not LEAST_RSA_BITS <= _bits(found.get("n")) <= MOST_RSA_BITS:
        return None
    try:
        # Without its other fields, such as certificates.
        key = JWKRegistry.import_key({name: found[name] for name in _PARTS if name in found})
        fitting = frozenset(each for each in ALGORITHMS if _fits(key, each))
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, RecursionError):
        return None
    if algorithm is not None:
        fitting &= {algorithm} if isinstance(algorithm, str) else set()
    return VerifyingKey(kid, fitting, key) if fitting else None


# Of a public key, by RFC 7518 and RFC 8037.
_PARTS = ("kty", "n", "e", "crv", "x", "y")


def _bits(number: object) -> int:
    """Return the size of a number in a key; 0 if it cannot be read."""
    try:
        return int.from_bytes(_decoded(number), "big").bit_length() if isinstance(number, str) else 0
    except SaslAuthenticationFailed:
        return 0


def _fits(key: Any, algorithm: str) -> bool:
    from joserfc.errors import JoseError

    try:
        _models()[algorithm].check_key(key)
    except JoseError:
        return False
    return True


@lru_cache(None)
def _models() -> Mapping[str, Any]:
    from joserfc.jws import JWSRegistry

    return {name: JWSRegistry.algorithms[_SAME.get(name, name)] for name in ALGORITHMS}


# ---- tokens -----------------------------------------------------------------------------------------------


class Parsed(NamedTuple):
    """A token that is not checked yet. `signed`: the bytes that its signature covers."""

    algorithm: str
    kid: str | None
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes


def parse_token(text: str) -> Parsed:
    """Return the parts of a token. Raises SaslAuthenticationFailed."""
    parts = text.split(".")
    if len(text) > MOST_BYTES_OF_TOKEN or len(parts) != 3:
        raise SaslAuthenticationFailed("the token is no signed JWT")
    header, claims = _object(parts[0], "header"), _object(parts[1], "claims")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(kid, str | None):
        raise SaslAuthenticationFailed("the header of the token is not valid")
    if "crit" in header:
        raise SaslAuthenticationFailed("the header of the token has extensions that are critical")
    return Parsed(algorithm, kid, claims, f"{parts[0]}.{parts[1]}".encode(), _decoded(parts[2]))


def checked_token(
    parsed: Parsed, key: VerifyingKey | None, rules: TokenRules, now_ms: int
) -> OAuthBearerToken:
    """Return what the token says, if `key` has signed it and the claims are as they have to be.

    Raises SaslAuthenticationFailed.
    """
    is_unsecured = rules.allows_unsecured and parsed.algorithm == "none"
    if is_unsecured:
        if parsed.signature:
            raise SaslAuthenticationFailed("the token has a signature and the algorithm none")
    elif parsed.algorithm not in ALGORITHMS:
        raise SaslAuthenticationFailed(f"tokens signed by {parsed.algorithm[:SHOWN]!r} are not accepted")
    elif key is None:
        raise SaslAuthenticationFailed("no key is known for the token")
    elif not _is_signed(parsed, key):
        raise SaslAuthenticationFailed("the signature of the token is wrong")
    return _checked_claims(parsed.claims, rules, now_ms, is_unsecured=is_unsecured)


def _is_signed(parsed: Parsed, key: VerifyingKey) -> bool:
    if parsed.algorithm not in key.algorithms:
        return False
    try:
        return bool(_models()[parsed.algorithm].verify(parsed.signed, parsed.signature, key.key))
    except ValueError:
        # A signature that cannot be one of this key.
        return False


def _checked_claims(
    claims: Mapping[str, Any], rules: TokenRules, now_ms: int, *, is_unsecured: bool
) -> OAuthBearerToken:
    expires_ms = _time_ms(claims, "exp", is_required=True)
    issued_ms = _time_ms(claims, "iat", is_required=not is_unsecured)
    begins_ms = _time_ms(claims, "nbf", is_required=False)
    assert expires_ms is not None
    if expires_ms + rules.clock_skew_ms <= now_ms:
        raise SaslAuthenticationFailed("the token has expired")
    for claim, begin_ms in (("nbf", begins_ms), ("iat", issued_ms)):
        if begin_ms is not None and begin_ms - rules.clock_skew_ms > now_ms:
            raise SaslAuthenticationFailed(f"the token is not valid yet, by its claim {claim}")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise SaslAuthenticationFailed("the token is of another issuer")
    if rules.audiences and not _texts(claims, "aud") & set(rules.audiences):
        raise SaslAuthenticationFailed("the token is for another audience")
    user = claims.get(rules.sub_claim)
    if not isinstance(user, str) or not user.strip():
        raise SaslAuthenticationFailed(f"the claim {rules.sub_claim} of the token names no user")
    return OAuthBearerToken(user.strip(), _scope(claims, rules.scope_claim), expires_ms)


def _time_ms(claims: Mapping[str, Any], claim: str, *, is_required: bool) -> int | None:
    value = claims.get(claim)
    if value is None and not is_required:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Within the years that a time can have. Infinity and NaN are not.
    if value is None or not is_number or not 0 <= value < 1 << 40:
        raise SaslAuthenticationFailed(f"the claim {claim} of the token is missing, or is no time")
    return int(value * 1000)


def _texts(claims: Mapping[str, Any], claim: str) -> set[str]:
    """Return a claim that is a string or a list of strings."""
    value = claims.get(claim, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise SaslAuthenticationFailed(f"the claim {claim} of the token is not valid")
    return set(found)


def _scope(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    value = claims.get(claim, [])
    words = value.split() if isinstance(value, str) else value
    found = _texts({claim: words}, claim)
    if len(found) != len(words):
        raise SaslAuthenticationFailed(f"the claim {claim} of the token has duplicates")
    return frozenset(found)


def _object(text: str, what: str) -> Mapping[str, Any]:
    try:
        found = json.loads(_decoded(text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SaslAuthenticationFailed(f"the {what} of the token is not a JSON object")
    return found


def _decoded(text: str) -> bytes:
    """Return what base64url without padding means. Raises SaslAuthenticationFailed."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        raise SaslAuthenticationFailed("the token has invalid base64") from None
