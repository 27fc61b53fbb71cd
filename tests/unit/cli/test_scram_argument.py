"""The argument of `kreplica format --add-scram`: Kafka's syntax, and no error that shows a password."""

from __future__ import annotations

import base64
import random

import pytest

from kreplica.cli.scram_argument import parse_credentials
from kreplica.common.errors import InvalidConfig
from kreplica.metadata.records import UserScramCredentialRecord
from kreplica.security.sasl import Secret
from kreplica.security.scram import credential_of, salted_password
from kreplica.security.scram_credential import ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = b"of the salt"
SALT_TEXT = base64.b64encode(SALT).decode()


def parse(*arguments: str) -> list[UserScramCredentialRecord]:
    return parse_credentials(arguments, random.Random(1))


def keys(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    salted = salted_password(mechanism, Secret(password), salt, iterations)
    made = credential_of(mechanism, salted, salt, iterations)
    return made.stored_key, made.server_key


def test_a_password_is_salted() -> None:
    [found] = parse("SCRAM-SHA-256=[name=alice,password=sesame,iterations=8192]")
    assert (found.name, found.mechanism, found.iterations) == ("alice", 1, 8192)
    assert (found.stored_key, found.server_key) == keys(SHA_256, "sesame", found.salt, 8192)
    [other] = parse("SCRAM-SHA-512=[ password=sesame , name=alice ]")
    assert (other.mechanism, other.iterations) == (2, 4096)
    assert other.salt
    [given] = parse(f"scram-sha-256=[name=alice,password=sesame,salt={SALT_TEXT}]")
    assert given.salt == SALT


def test_a_value_in_quotes_may_have_commas_and_blanks() -> None:
    [found] = parse('SCRAM-SHA-256=[name="alice, of course",password="a,b]=c",iterations="4096"]')
    assert found.name == "alice, of course"
    assert (found.stored_key, found.server_key) == keys(SHA_256, "a,b]=c", found.salt, 4096)


def test_a_salted_password_comes_with_its_salt() -> None:
    salted = base64.b64encode(salted_password(SHA_512, Secret("sesame"), SALT, 4096)).decode()
    [found] = parse(f"SCRAM-SHA-512=[name=alice,salt={SALT_TEXT},saltedpassword={salted}]")
    assert (found.stored_key, found.server_key) == keys(SHA_512, "sesame", SALT, 4096)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("name=alice,password=sesame", "must be MECHANISM=\\[name=NAME,password=PASSWORD\\]"),
        ("PLAIN=[name=alice,password=sesame]", "must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[password=sesame]", "the name of the user is missing"),
        ("SCRAM-SHA-256=[name=,password=sesame]", "the name of the user is missing"),
        ("SCRAM-SHA-256=[name=alice]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=alice,password=]", "the password is empty"),
        ("SCRAM-SHA-256=[name=alice,password=se,same=x]", "there is an unknown key"),
        ("SCRAM-SHA-256=[name=alice,password=se,same]", "there must be KEY=VALUE"),
        ("SCRAM-SHA-256=[name=alice,name=bob,password=sesame]", "name is repeated"),
        ("SCRAM-SHA-256=[name=alice,password=sesame,iterations=4095]", "iterations must be 4096 to 16384"),
        ("SCRAM-SHA-256=[name=alice,password=sesame,iterations=16385]", "iterations must be 4096 to 16384"),
        ("SCRAM-SHA-256=[name=alice,password=sesame,iterations=many]", "iterations must be 4096 to 16384"),
        ("SCRAM-SHA-256=[name=alice,password=sesame,salt=?]", "salt must be base64"),
        ("SCRAM-SHA-256=[name=alice,saltedpassword=sesame]", "needs the salt"),
        (f"SCRAM-SHA-256=[name=alice,saltedpassword=c2VzYW1l,salt={SALT_TEXT}]", "makes 32"),
        (
            f"SCRAM-SHA-256=[name=alice,password=sesame,saltedpassword=c2VzYW1l,salt={SALT_TEXT}]",
            "either password or saltedpassword",
        ),
    ],
)
def test_what_is_no_credential_is_refused(argument: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        parse(argument)
    assert not any(secret in str(refused.value) for secret in ("sesame", "same", "c2VzYW1l"))


def test_a_user_has_one_password_for_a_mechanism() -> None:
    one, other = (f"SCRAM-SHA-256=[name=alice,password={each}]" for each in ("a", "b"))
    with pytest.raises(InvalidConfig, match="a user twice for one mechanism"):
        parse(one, other)
    assert len(parse(one, other.replace("256", "512"))) == 2
