"""`kreplica user`: manage the users of any Kafka-compatible cluster who log in by SCRAM."""

from __future__ import annotations

from collections.abc import Sequence

from kreplica.cli import stock_client
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.security.sasl import Secret

TIMEOUT_S = 15.0
ITERATIONS = 4096


def list_users(bootstrap: str, as_json: bool) -> int:
    """Print the users and their mechanisms; returns the exit code."""
    connected = stock_client.connect("AdminClient", bootstrap)
    described = stock_client.result(connected.client.describe_user_scram_credentials())
    facts: list[Fact] = [
        {"user": user, "mechanism": _name(info.mechanism), "iterations": info.iterations}
        for user, found in sorted(described.items())
        for info in found.scram_credential_infos
    ]
    print_facts("users", ("user", "mechanism", "iterations"), facts, as_json)
    return 0


def add(bootstrap: str, user: str, password: Secret, mechanism: str, iterations: int, as_json: bool) -> int:
    """Add a user, or change the password."""
    module = stock_client.admin_module()
    info = module.ScramCredentialInfo(_mechanism(mechanism), iterations)
    change = module.UserScramCredentialUpsertion(user, info, password.value.encode())
    return _alter(
        bootstrap, change, {"user": user, "mechanism": mechanism, "iterations": iterations}, as_json
    )


def remove(bootstrap: str, user: str, mechanisms: Sequence[str], as_json: bool) -> int:
    """Remove the user's credentials for these mechanisms, or for all if none is given.

    Connections that are logged in stay. Raises ResourceNotFound.
    """
    module = stock_client.admin_module()
    if not mechanisms:
        admin = stock_client.connect("AdminClient", bootstrap).client
        found = stock_client.result(admin.describe_user_scram_credentials([user])[user])
        mechanisms = [_name(info.mechanism) for info in found.scram_credential_infos]
    for mechanism in mechanisms:
        change = module.UserScramCredentialDeletion(user, _mechanism(mechanism))
        _alter(bootstrap, change, {"user": user, "removed": mechanism}, as_json)
    return 0


def _alter(bootstrap: str, change: object, fact: Fact, as_json: bool) -> int:
    connected = stock_client.connect("AdminClient", bootstrap)
    with stock_client.errors():
        futures = connected.client.alter_user_scram_credentials([change], request_timeout=TIMEOUT_S)
    for future in futures.values():
        stock_client.result(future)
    if as_json:
        print_json(fact)
    else:
        say(f"{connected.cluster}: " + ", ".join(f"{name} {value}" for name, value in fact.items()))
    return 0


def _mechanism(name: str) -> object:
    return stock_client.admin_module().ScramMechanism[name.replace("-", "_")]


def _name(mechanism: object) -> str:
    return str(getattr(mechanism, "name", mechanism)).replace("_", "-")
