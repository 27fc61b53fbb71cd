"""`kreplica token`: make, renew and end delegation tokens of any Kafka-compatible cluster (KIP-48).

The stock client lacks these requests, so they go over connections of our own.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from kreplica.cli.kafka_connection import any_broker
from kreplica.cli.output import Fact, moment, print_facts, print_json, say
from kreplica.common.errors import InvalidConfig
from kreplica.common.messages.users import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from kreplica.common.wire import error_of
from kreplica.security.peer import USER
from kreplica.security.sasl import Secret

DAY_MS = 86_400_000
AT_ONCE = -1


def create(
    bootstrap: str, owner: str | None, renewers: Sequence[str], max_days: float | None, as_json: bool
) -> int:
    """Make a token, and print it with its password. Returns the exit code."""
    whose = None if owner is None else _principal(owner)
    request = CreateDelegationTokenRequest(
        owner_principal_type=None if whose is None else whose.principal_type,
        owner_principal_name=None if whose is None else whose.principal_name,
        renewers=tuple(map(_principal, renewers)),
        max_lifetime=-1 if max_days is None else int(max_days * DAY_MS),
    )
    # Before version 3 a token is always the client's own.
    answer = _ask(bootstrap, request, (1, 2, 3) if owner is None else (3,))
    fact: Fact = {
        "token": answer.token_id,
        "password": base64.b64encode(answer.hmac).decode(),
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "expires": answer.expiry_timestamp,
        "latest": answer.max_timestamp,
    }
    if as_json:
        print_json(fact)
    else:
        say(f"token {fact['token']} of {fact['owner']}")
        say(f"password {fact['password']}")
        say(f"expires {moment(answer.expiry_timestamp)}, at the latest {moment(answer.max_timestamp)}")
    return 0


def renew(bootstrap: str, password: Secret, days: float | None, as_json: bool) -> int:
    """Let a token expire later."""
    period_ms = -1 if days is None else int(days * DAY_MS)
    request = RenewDelegationTokenRequest(hmac=_bytes(password), renew_period=period_ms)
    return _print_expiry(_ask(bootstrap, request, (1, 2)), as_json)


def expire(bootstrap: str, password: Secret, days: float | None, as_json: bool) -> int:
    """Let a token expire then, or remove it at once."""
    period_ms = AT_ONCE if days is None else int(days * DAY_MS)
    request = ExpireDelegationTokenRequest(hmac=_bytes(password), expiry_time_period=period_ms)
    return _print_expiry(_ask(bootstrap, request, (1, 2)), as_json)


def list_tokens(bootstrap: str, owners: Sequence[str], as_json: bool) -> int:
    """Print the tokens of these owners, or all that the client may see, without their passwords."""
    asked = tuple(map(_principal, owners)) or None
    answer = _ask(bootstrap, DescribeDelegationTokenRequest(owners=asked), (1, 2, 3))
    facts: list[Fact] = [
        {
            "token": each.token_id,
            "owner": f"{each.principal_type}:{each.principal_name}",
            "renewers": [f"{one.principal_type}:{one.principal_name}" for one in each.renewers],
            "issued": each.issue_timestamp if as_json else moment(each.issue_timestamp),
            "expires": each.expiry_timestamp if as_json else moment(each.expiry_timestamp),
            "latest": each.max_timestamp if as_json else moment(each.max_timestamp),
        }
        for each in answer.tokens
    ]
    print_facts("tokens", ("token", "owner", "renewers", "issued", "expires", "latest"), facts, as_json)
    return 0


def _ask(bootstrap: str, request: Any, versions: Sequence[int]) -> Any:
    """Return the answer. Raises its error."""
    with any_broker(bootstrap) as connection:
        answer = connection.ask_newest(request, versions)
    error = error_of(answer.error_code)
    if error is not None:
        raise error
    return answer


def _print_expiry(answer: Any, as_json: bool) -> int:
    if as_json:
        print_json({"expires": answer.expiry_timestamp})
    else:
        say(f"the token expires {moment(answer.expiry_timestamp)}")
    return 0


def _principal(text: str) -> TokenPrincipal:
    kind, colon, name = text.partition(":")
    return TokenPrincipal(principal_type=kind if colon else USER, principal_name=name if colon else text)


def _bytes(password: Secret) -> bytes:
    try:
        return base64.b64decode(password.value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidConfig("the password of a token must be base64") from None
