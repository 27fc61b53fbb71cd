"""The argument of `kreplica format --add-scram`, in the syntax of Kafka's `kafka-storage format`.

    SCRAM-SHA-256=[name=alice,password=sesame,iterations=8192]
    SCRAM-SHA-512=[name="a,b",salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5Y3V4M2VpZWs=",saltedpassword="..."]

A value in quotes may contain commas. The salt and the salted password are base64. No error shows a value but
the name of a key. No state.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from kreplica.common.errors import InvalidConfig
from kreplica.common.ports import Random
from kreplica.metadata.records import UserScramCredentialRecord
from kreplica.security.sasl import Secret
from kreplica.security.scram import SALT_BYTES, credential_of, salted_password
from kreplica.security.scram_credential import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism

WHAT = "--add-scram"
MECHANISMS = {each.sasl_name: each for each in ScramMechanism}
KEYS = ("name", "password", "iterations", "salt", "saltedpassword")
_ARGUMENT = re.compile(r"\s*(?P<mechanism>[^=\s]*)\s*=\s*\[(?P<pairs>.*)\]\s*", re.DOTALL)
_PAIR = re.compile(r"\s*(?P<key>[^=,\s\"]*)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<bare>[^,\"]*))\s*(?:,|\Z)")


def parse_credentials(arguments: Sequence[str], random: Random) -> list[UserScramCredentialRecord]:
    """Return the records of these arguments. Raises InvalidConfig, also for a user with two passwords."""
    found = [_parse(each, random) for each in arguments]
    if len({(each.name, each.mechanism) for each in found}) < len(found):
        raise InvalidConfig(f"{WHAT} names a user twice for one mechanism")
    return found


def _parse(argument: str, random: Random) -> UserScramCredentialRecord:
    found = _ARGUMENT.fullmatch(argument)
    if found is None:
        raise InvalidConfig(f"{WHAT} must be MECHANISM=[name=NAME,password=PASSWORD]")
    mechanism = MECHANISMS.get(found["mechanism"].upper())
    if mechanism is None:
        raise InvalidConfig(f"{WHAT}: the mechanism must be one of {', '.join(MECHANISMS)}")
    values = _values(found["pairs"])
    name = values.get("name", "")
    if not name:
        raise InvalidConfig(f"{WHAT}: the name of the user is missing")
    iterations = _iterations(values.get("iterations", str(MIN_ITERATIONS)))
    salt = _decoded("salt", values["salt"]) if "salt" in values else random.randbytes(SALT_BYTES)
    made = credential_of(mechanism, _salted(mechanism, values, salt, iterations), salt, iterations)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.value,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )


def _values(text: str) -> dict[str, str]:
    """Return the pairs between the brackets."""
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise InvalidConfig(f"{WHAT}: between the brackets there must be KEY=VALUE, separated by commas")
        key = pair["key"]
        if key not in KEYS:
            # What follows a comma in a password without quotes looks like a key, so the key is not shown.
            raise InvalidConfig(
                f"{WHAT}: there is an unknown key; the keys are {', '.join(KEYS)}, and a value with a comma"
                " needs quotes"
            )
        if key in values:
            raise InvalidConfig(f"{WHAT}: {key} is repeated")
        values[key] = pair["bare"].strip() if pair["quoted"] is None else pair["quoted"]
        at = pair.end()
    return values


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and MIN_ITERATIONS <= int(text[:9]) <= MAX_ITERATIONS):
        raise InvalidConfig(f"{WHAT}: iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text[:9])


def _salted(mechanism: ScramMechanism, values: dict[str, str], salt: bytes, iterations: int) -> bytes:
    if ("password" in values) == ("saltedpassword" in values):
        raise InvalidConfig(f"{WHAT}: give either password or saltedpassword")
    if "password" in values:
        if not values["password"]:
            raise InvalidConfig(f"{WHAT}: the password is empty")
        return salted_password(mechanism, Secret(values["password"]), salt, iterations)
    if "salt" not in values:
        raise InvalidConfig(f"{WHAT}: saltedpassword needs the salt that it was made with")
    salted = _decoded("saltedpassword", values["saltedpassword"])
    if len(salted) != mechanism.digest_bytes:
        raise InvalidConfig(
            f"{WHAT}: saltedpassword has {len(salted)} bytes, and {mechanism.sasl_name} makes"
            f" {mechanism.digest_bytes}"
        )
    return salted


def _decoded(key: str, text: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        found = b""
    if not found:
        raise InvalidConfig(f"{WHAT}: {key} must be base64")
    return found
