"""SCRAM: who may log in, and what is refused."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import SaslAuthenticationFailed
from kreplica.security.peer import KafkaPrincipal
from kreplica.security.sasl import Secret
from kreplica.security.scram import ScramSaslServer, credential_of, salted_password
from kreplica.security.scram_credential import MIN_ITERATIONS, ScramCredential, ScramMechanism, UnknownUsers
from tests.support.scram import ScramClient

SALT = b"salt of the test"
MECHANISMS = list(ScramMechanism)
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\x00" not in name and "\ud800" not in name)


def credential(mechanism: ScramMechanism, password: str, iterations: int = 1) -> ScramCredential:
    salted = salted_password(mechanism, Secret(password), SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


def server(mechanism: ScramMechanism, users: dict[str, str]) -> ScramSaslServer:
    known = {user: credential(mechanism, password) for user, password in users.items()}
    return ScramSaslServer(mechanism, known.get, random.Random(1), b"secret")


@given(st.sampled_from(MECHANISMS), NAMES, st.text(min_size=1, max_size=20))
def test_a_user_with_the_right_password_logs_in(mechanism: ScramMechanism, user: str, password: str) -> None:
    side, client = server(mechanism, {user: password}), ScramClient(mechanism, user, password, user)
    answer = side.respond(client.first())
    assert side.respond(client.final(answer)).decode() == client.signature
    assert side.principal == KafkaPrincipal("User", user)


def test_the_exchange_of_rfc_7677() -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(mechanism, Secret("pencil"), salt, 4096)
    made = credential_of(mechanism, salted, salt, 4096)

    class Nonce(random.Random):
        def randbytes(self, n: int) -> bytes:
            return bytes(n)

    side = ScramSaslServer(mechanism, {"user": made}.get, Nonce(), b"")
    answer = side.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert answer.startswith(b"r=rOprNGfwEbeRWgbNEkqOAAAA")
    assert answer.endswith(b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    # The keys are those of the RFC's exchange: with its nonces this proof is right.
    login = side._login
    assert login is not None
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    side._login = login._replace(nonce=nonce, exchanged=first)
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert side.respond(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_takes_the_same_steps_as_a_wrong_password(mechanism: ScramMechanism) -> None:
    refusals = []
    for user in ("alice", "mallory"):
        side, client = server(mechanism, {"alice": "right"}), ScramClient(mechanism, user, "wrong")
        answer = side.respond(client.first())
        with pytest.raises(SaslAuthenticationFailed) as refused:
            side.respond(client.final(answer))
        refusals.append(str(refused.value))
        assert side.principal is None
    assert len(set(refusals)) == 1
    salts = [server(mechanism, {}).respond(ScramClient(mechanism, "mallory", "x").first()) for _ in range(2)]
    assert salts[0] == salts[1]
    assert f"i={MIN_ITERATIONS}".encode() in salts[0]


def test_no_user_acts_as_another_one() -> None:
    """CVE-2017-12610."""
    mechanism = ScramMechanism.SCRAM_SHA_256
    side = server(mechanism, {"alice": "a", "bob": "b"})
    with pytest.raises(SaslAuthenticationFailed, match="authorization id"):
        side.respond(ScramClient(mechanism, "alice", "a", authorization_id="bob").first())


@pytest.mark.parametrize("changed", [{"nonce": "abcdefghijklmnop"}, {"header": "y,,"}])
def test_the_final_message_repeats_the_nonce_and_the_header(changed: dict[str, str]) -> None:
    """CVE-2024-56128: a final message with another nonce is one of an earlier login."""
    mechanism = ScramMechanism.SCRAM_SHA_256
    side, client = server(mechanism, {"alice": "a"}), ScramClient(mechanism, "alice", "a")
    answer = side.respond(client.first())
    with pytest.raises(SaslAuthenticationFailed):
        side.respond(client.final(answer, **changed))


@pytest.mark.parametrize(
    "first",
    [
        *(b"", b"n,,", b"n,,n=,r=x", b"y,,n=a,r=x", b"p=tls-unique,,n=a,r=x", b"n,,m=x,n=a,r=x"),
        *(b"n,,n=a,r=x,m=x", b"n,,n=a=2Dx,r=x", b"n,,n=a,r=", b"n,,n=a,r=\xc3\xa9", b"\xff"),
    ],
)
def test_a_first_message_that_is_not_valid(first: bytes) -> None:
    with pytest.raises(SaslAuthenticationFailed):
        server(ScramMechanism.SCRAM_SHA_256, {"a": "b"}).respond(first)


@given(st.binary(max_size=80))
def test_no_noise_is_a_final_message(noise: bytes) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    side = server(mechanism, {"a": "b"})
    side.respond(ScramClient(mechanism, "a", "b").first())
    with pytest.raises(SaslAuthenticationFailed):
        side.respond(noise)


def first_answer(user: str, known: dict[str, ScramCredential], secret: bytes) -> tuple[bytes, int]:
    """The salt and the iterations that a node with this secret shows."""
    side = ScramSaslServer(
        ScramMechanism.SCRAM_SHA_256,
        known.get,
        random.Random(1),
        secret,
        unknown=lambda: UnknownUsers.like(known),
    )
    answer = side.respond(f"n,,n={user},r=x".encode()).decode()
    fields = dict(each.split("=", 1) for each in answer.split(","))
    return base64.b64decode(fields["s"]), int(fields["i"])


def test_a_user_who_does_not_exist_looks_the_same_on_every_node_and_like_one_who_does() -> None:
    known = {
        user: ScramCredential(bytes([number]) * size, b"", bytes([number]) * 32, iterations)
        for number, (user, size, iterations) in enumerate((("a", 25, 8192), ("b", 64, 4096), ("c", 64, 4096)))
    }
    shapes = set()
    for number in range(50):
        shown = {first_answer(f"unknown-{number}", known, secret) for secret in (b"one node", b"another")}
        assert len(shown) == 1
        salt, iterations = shown.pop()
        shapes.add((len(salt), iterations))
    assert shapes == {(25, 8192), (64, 4096)}
    assert len({first_answer(user, known, b"")[0] for user in ("a", "x", "y", "z")}) == 4
    # Other users who come change nothing.
    more = {**known, "d": ScramCredential(b"s" * 64, b"", b"k" * 32, 4096)}
    assert first_answer("x", more, b"") == first_answer("x", known, b"")


def test_a_login_shows_no_secrets() -> None:
    shown = repr((Secret("sesame"), credential(ScramMechanism.SCRAM_SHA_256, "sesame")))
    assert "sesame" not in shown
    assert "b'" not in shown
    with pytest.raises(TypeError, match="compare_digest"):
        Secret("a") == Secret("a")  # noqa: B015
