"""Which tokens are taken, and which keys of a set can verify them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey

from kreplica.common.errors import InvalidFile, SaslAuthenticationFailed
from kreplica.security.jwt import (
    MOST_KEYS,
    OAuthBearerToken,
    TokenRules,
    VerifyingKeys,
    checked_token,
    parse_token,
)
from tests.support.tokens import AUDIENCE, ISSUER, Issuer, base64url, signed, with_shared_secret

RULES = TokenRules(issuer=ISSUER, audiences=("other", AUDIENCE))
ANY = TokenRules(issuer=None, audiences=())
ISSUERS = {kind: Issuer(kind) for kind in ("EC", "RSA")}


def check(text: str, issuer: Issuer, rules: TokenRules = RULES, *, after_s: float = 0) -> OAuthBearerToken:
    parsed, keys = parse_token(text), VerifyingKeys.parse(issuer.jwks())
    key = keys.fitting(parsed.kid, parsed.algorithm)
    return checked_token(parsed, key, rules, int((time.time() + after_s) * 1000))


@pytest.fixture(params=["EC", "RSA"])
def issuer(request: pytest.FixtureRequest) -> Issuer:
    return ISSUERS[request.param]


def test_a_token_names_its_user_scope_and_expiry(issuer: Issuer) -> None:
    expires = int(time.time()) + 60
    found = check(issuer.token("bob", scope="read  write", exp=expires), issuer)
    assert found == OAuthBearerToken("bob", frozenset({"read", "write"}), expires * 1000)
    assert check(issuer.token(scope=["a"]), issuer).scope == {"a"}
    assert check(issuer.token(), issuer).scope == frozenset()
    assert check(issuer.token(aud=["x", AUDIENCE]), issuer).user == "alice"


def test_claims_have_the_names_that_are_set() -> None:
    issuer = ISSUERS["EC"]
    rules = TokenRules(issuer=ISSUER, audiences=(), sub_claim="client", scope_claim="scp")
    found = check(issuer.token(client="c", scp="s", sub=None), issuer, rules)
    assert (found.user, found.scope) == ("c", {"s"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"sub": None}, "sub"),
        ({"sub": "  "}, "sub"),
        ({"sub": 7}, "sub"),
        ({"iss": None}, "issuer"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"aud": None}, "audience"),
        ({"aud": "others"}, "audience"),
        ({"aud": [1]}, "aud"),
        ({"aud": {}}, "aud"),
        ({"exp": 1}, "has expired"),
        ({"exp": True}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": float("nan")}, "exp"),
        ({"exp": 10**4000}, "exp"),
        ({"exp": -1}, "exp"),
        ({"nbf": 9_999_999_999}, "not valid yet, by its claim nbf"),
        ({"iat": 9_999_999_999}, "not valid yet, by its claim iat"),
        ({"scope": "a a"}, "duplicates"),
        ({"scope": ["a", 1]}, "scope"),
        ({"scope": {"a": 1}}, "scope"),
    ],
)
def test_a_wrong_claim_is_refused(changes: dict[str, Any], why: str) -> None:
    issuer = ISSUERS["EC"]
    with pytest.raises(SaslAuthenticationFailed, match=why):
        check(issuer.token(**changes), issuer)


def test_clocks_may_differ_by_the_skew() -> None:
    issuer = ISSUERS["EC"]
    token = issuer.token(exp=int(time.time()) + 100)
    assert check(token, issuer, after_s=125)
    with pytest.raises(SaslAuthenticationFailed, match="has expired"):
        check(token, issuer, after_s=131)
    late = issuer.token(iat=int(time.time()) + 20)
    assert check(late, issuer)


FORGERIES: dict[str, Callable[[Issuer], str]] = {
    "another key": lambda issuer: signed(
        {"alg": "ES256", "kid": issuer.keys[-1].kid}, issuer.claims(), ECKey.generate_key("P-256")
    ),
    "no signature": lambda issuer: issuer.token().rpartition(".")[0] + ".",
    "the algorithm none": lambda issuer: _with_header(issuer.token(), {"alg": "none"}, ""),
    "none in other letters": lambda issuer: _with_header(issuer.token(), {"alg": "nOnE"}, ""),
    "a public key as the secret": with_shared_secret,
    "other claims": lambda issuer: _with_claims(issuer.token(), issuer.claims("root")),
    "a key of its own": lambda issuer: _with_own_key(issuer),
    "an unknown key": lambda issuer: issuer.token(header={"kid": "other"}),
}


def _encoded(found: object) -> str:
    return base64url(json.dumps(found).encode())


def _with_header(token: str, header: object, signature: str) -> str:
    return f"{_encoded(header)}.{token.split('.')[1]}.{signature}"


def _with_claims(token: str, claims: object) -> str:
    header, _, signature = token.split(".")
    return f"{header}.{_encoded(claims)}.{signature}"


def _with_own_key(issuer: Issuer) -> str:
    key = ECKey.generate_key("P-256")
    header = {"alg": "ES256", "jwk": key.as_dict(private=False), "kid": "mine"}
    return signed(header, issuer.claims(), key)


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("rules", [RULES, ANY])
def test_a_forgery_is_refused(forgery: str, rules: TokenRules) -> None:
    """CVE-2026-33557 and CVE-2026-110985."""
    issuer = Issuer()
    with pytest.raises(SaslAuthenticationFailed):
        check(FORGERIES[forgery](issuer), issuer, rules)


def test_a_key_serves_its_own_algorithm_only() -> None:
    issuer = Issuer("RSA")
    key = issuer.keys[-1]
    found = json.loads(issuer.jwks())
    found["keys"][0]["alg"] = "RS256"
    keys = VerifyingKeys.parse(json.dumps(found).encode())
    assert keys.fitting(key.kid, "RS256") is not None
    assert keys.fitting(key.kid, "PS256") is None
    assert keys.fitting(key.kid, "ES256") is None


def test_a_token_without_a_key_id_needs_the_only_key_that_fits() -> None:
    issuer = Issuer()
    assert check(issuer.token(header={"kid": None}), issuer).user == "alice"
    issuer.rotate()
    with pytest.raises(SaslAuthenticationFailed, match="no key"):
        check(issuer.token(header={"kid": None}), issuer)


def test_curves_of_edwards_verify_by_both_names() -> None:
    key = OKPKey.generate_key("Ed25519", {"kid": "e"})
    keys = VerifyingKeys.parse(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
    parsed = parse_token(signed({"alg": "Ed25519", "kid": "e"}, Issuer().claims(), key))
    for algorithm in ("Ed25519", "EdDSA"):
        renamed = parsed._replace(algorithm=algorithm)
        found = keys.fitting("e", algorithm)
        assert found is not None
        assert checked_token(renamed, found, RULES, int(time.time() * 1000)).user == "alice"


def jwk(**changes: Any) -> dict[str, Any]:
    found = json.loads(ISSUERS["EC"].jwks())["keys"][0]
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    "useless",
    [
        jwk(use="enc"),
        jwk(key_ops=["sign"]),
        jwk(key_ops="verify"),
        jwk(kid=7),
        jwk(crv="P-1"),
        jwk(x="AA"),
        jwk(x=7),
        jwk(kty="oct", k="c2VjcmV0"),
        jwk(kty="new"),
        jwk(kty="RSA"),
        jwk(kty="RSA", n="!", e="AQAB"),
        jwk(kty="RSA", n="A" * 40_000, e="AQAB"),
        jwk(alg="HS256"),
        jwk(alg=[]),
        {},
        "key",
        None,
    ],
)
def test_a_key_that_cannot_verify_is_left_out(useless: object) -> None:
    keys = VerifyingKeys.parse(json.dumps({"keys": [useless, jwk()]}).encode())
    assert len(keys) == 1
    with pytest.raises(InvalidFile, match="no key that can verify"):
        VerifyingKeys.parse(json.dumps({"keys": [useless]}).encode())


def test_a_short_rsa_key_is_left_out() -> None:
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()
    short = {"kty": "RSA", "n": base64url(numbers.n.to_bytes(128, "big")), "e": "AQAB"}
    with pytest.raises(InvalidFile, match="no key that can verify"):
        VerifyingKeys.parse(json.dumps({"keys": [short]}).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"keys": 1}', b"[" * 100_000, b"\xff", b'{"keys": []}', b" " * (1 << 20)],
)
def test_what_is_no_set_of_keys_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidFile):
        VerifyingKeys.parse(data)


def test_a_set_has_a_limit_of_keys() -> None:
    assert len(VerifyingKeys.parse(json.dumps({"keys": [jwk()] * MOST_KEYS}).encode())) == MOST_KEYS
    with pytest.raises(InvalidFile, match="at most 100"):
        VerifyingKeys.parse(json.dumps({"keys": [jwk()] * (MOST_KEYS + 1)}).encode())


PIECES = st.sampled_from(["", ".", "..", "e30", "bnVsbA", "W10", "eyJhbGciOiJFUzI1NiJ9", "=", "\u00e9", "\0"])


@given(st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join))
def test_noise_is_refused(text: str) -> None:
    with pytest.raises(SaslAuthenticationFailed):
        check(text, ISSUERS["EC"])


def test_a_bomb_of_brackets_and_a_large_token_are_refused() -> None:
    bomb = base64url(b"[" * 20_000)
    for text in (f"{bomb}.{bomb}.", "a" * (1 << 20), "." * (1 << 16), ".".join(["e30"] * 5)):
        with pytest.raises(SaslAuthenticationFailed):
            parse_token(text)


def test_an_extension_that_is_critical_is_refused() -> None:
    token = _with_header(ISSUERS["EC"].token(), {"alg": "ES256", "crit": ["b64"], "b64": False}, "AA")
    with pytest.raises(SaslAuthenticationFailed, match="critical"):
        parse_token(token)


def test_unsecured_tokens_are_taken_only_where_they_are_allowed() -> None:
    issuer = ISSUERS["EC"]
    token = _with_header(issuer.token(iat=None, iss=None, aud=None), {"alg": "none"}, "")
    rules = TokenRules(issuer=None, audiences=(), allows_unsecured=True)
    assert check(token, issuer, rules).user == "alice"
    with pytest.raises(SaslAuthenticationFailed, match="'none'"):
        check(token, issuer, ANY)
    with pytest.raises(SaslAuthenticationFailed, match="has a signature"):
        check(_with_header(token, {"alg": "none"}, "AAAA"), issuer, rules)
    with pytest.raises(SaslAuthenticationFailed, match="exp"):
        check(_with_header(issuer.token(exp=None), {"alg": "none"}, ""), issuer, rules)
