"""`kreplica user`: manage the users of any Kafka-compatible cluster who log in by SCRAM.

The requests go over connections of our own: librdkafka 2.16 ends its process if a cluster refuses to describe
users.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kreplica.cli.kafka_connection import KafkaConnection, any_broker, check
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.common.errors import InvalidConfig
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kreplica.security.sasl import Secret
from kreplica.security.scram import SALT_BYTES, salted_password
from kreplica.security.scram_credential import ScramMechanism

VERSIONS = range(1)
MECHANISMS = {each.sasl_name: each for each in ScramMechanism}


def list_users(bootstrap: str, as_json: bool) -> int:
    """Print the users and their mechanisms; returns the exit code."""
    with any_broker(bootstrap) as broker:
        described = _described(broker, None)
    facts: list[Fact] = [
        {"user": user, "mechanism": mechanism.sasl_name, "iterations": iterations}
        for user, mechanism, iterations in sorted(described, key=lambda each: (each[0], each[1].value))
    ]
    print_facts("users", ("user", "mechanism", "iterations"), facts, as_json)
    return 0


def add(bootstrap: str, user: str, password: Secret, mechanism: str, iterations: int, as_json: bool) -> int:
    """Add a user, or change the password. Raises InvalidConfig, UnacceptableCredential."""
    if not password.value:
        raise InvalidConfig("the password is empty")
    chosen, salt = MECHANISMS[mechanism], random.SystemRandom().randbytes(SALT_BYTES)
    change = ScramCredentialUpsertion(
        name=user,
        mechanism=chosen.value,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(chosen, password, salt, iterations),
    )
    with any_broker(bootstrap) as broker:
        _alter(broker, AlterUserScramCredentialsRequest(deletions=(), upsertions=(change,)))
    _print({"user": user, "mechanism": mechanism, "iterations": iterations}, as_json)
    return 0


def remove(bootstrap: str, user: str, mechanisms: Sequence[str], as_json: bool) -> int:
    """Remove the user's credentials for these mechanisms, or for all if none is given.

    Connections that are logged in stay. Raises ResourceNotFound.
    """
    with any_broker(bootstrap) as broker:
        chosen = [MECHANISMS[each] for each in mechanisms]
        for mechanism in chosen or [each for _, each, _ in _described(broker, user)]:
            change = ScramCredentialDeletion(name=user, mechanism=mechanism.value)
            # A request may change a user only once.
            _alter(broker, AlterUserScramCredentialsRequest(deletions=(change,), upsertions=()))
            _print({"user": user, "removed": mechanism.sasl_name}, as_json)
    return 0


def _described(broker: KafkaConnection, user: str | None) -> list[tuple[str, ScramMechanism, int]]:
    """Return the credentials of a user, or of all: user, mechanism and iterations of each."""
    users = None if user is None else (UserName(name=user),)
    answer = broker.ask_newest(DescribeUserScramCredentialsRequest(users=users), VERSIONS)
    check(answer)
    for result in answer.results:
        check(result)
    return [
        (result.user, ScramMechanism(info.mechanism), info.iterations)
        for result in answer.results
        for info in result.credential_infos
    ]


def _alter(broker: KafkaConnection, request: AlterUserScramCredentialsRequest) -> None:
    for result in broker.ask_newest(request, VERSIONS).results:
        check(result)


def _print(fact: Fact, as_json: bool) -> None:
    if as_json:
        print_json(fact)
    else:
        say(", ".join(f"{name} {value}" for name, value in fact.items()))
