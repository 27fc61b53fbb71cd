"""The properties with which the subcommands connect to a cluster: a file as Kafka's tools take it.

    security.protocol=SASL_PLAINTEXT
    sasl.mechanism=SCRAM-SHA-256
    sasl.jaas.config=MODULE required username="alice" password="sesame";

MODULE is Kafka's, such as org.apache.kafka.common.security.scram.ScramLoginModule. librdkafka's names
sasl.username and sasl.password do the same as sasl.jaas.config. Other properties go to the stock client as
they are. The file is chosen once for a process, by `--command-config`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed
from kreplica.common.messages.data import SaslAuthenticateRequest, SaslHandshakeRequest
from kreplica.common.wire import error_of
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kreplica.security.sasl import Secret

PLAINTEXT, SASL_PLAINTEXT = "PLAINTEXT", "SASL_PLAINTEXT"
PLAIN = "PLAIN"


class ClientLogin(NamedTuple):
    """How to log in."""

    mechanism: str
    user: str
    password: Secret

    def log_in(self, ask: Callable[[Any], Any]) -> None:
        """Log in by requests. Raises SaslAuthenticationFailed, and what `ask` raises."""
        answer = ask(SaslHandshakeRequest(mechanism=self.mechanism))
        if error_of(answer.error_code) is not None:
            raise SaslAuthenticationFailed(
                f"the broker has no mechanism {self.mechanism}, but {', '.join(answer.mechanisms) or 'none'}"
            )

        def exchange(token: bytes) -> bytes:
            found = ask(SaslAuthenticateRequest(auth_bytes=token))
            if error_of(found.error_code) is not None:
                raise SaslAuthenticationFailed(f"the login as {self.user} failed: {found.error_message}")
            return bytes(found.auth_bytes)

        if self.mechanism == PLAIN:
            exchange(f"\0{self.user}\0{self.password.value}".encode())
            return
        from kreplica.security.scram_client import ScramSaslClient

        client = ScramSaslClient(self.mechanism, self.user, self.password, random.SystemRandom())
        client.check(exchange(client.final(exchange(client.first()))))


class ClientConfig(NamedTuple):
    """`properties`: of the stock client. `login`: None without SASL."""

    properties: Mapping[str, str]
    login: ClientLogin | None = None


_NOTHING = ClientConfig({})
_chosen = _NOTHING


def use(path: str | None) -> None:
    """Let all connections of this process use the properties of that file; None: connect without a login.

    Raises InvalidConfig, InvalidFile, KafkaStorageError.
    """
    global _chosen
    from kreplica.runtime.kafka_config import read_config_file

    _chosen = _NOTHING if path is None else parse(read_config_file(path))


def chosen() -> ClientConfig:
    """Return what `use` has read."""
    return _chosen


def parse(properties: Mapping[str, object]) -> ClientConfig:
    """Return the configuration from properties of a client. Raises InvalidConfig."""
    found = {name: str(value) for name, value in properties.items()}
    protocol = found.get("security.protocol", PLAINTEXT)
    if protocol not in (PLAINTEXT, SASL_PLAINTEXT):
        raise InvalidConfig(f"security.protocol={protocol[:40]} must be {PLAINTEXT} or {SASL_PLAINTEXT}")
    text = found.pop("sasl.jaas.config", None)
    if protocol == PLAINTEXT:
        return ClientConfig(found)
    mechanism = found.get("sasl.mechanism", found.get("sasl.mechanisms", ""))
    user, password = found.get("sasl.username", ""), Secret(found.get("sasl.password", ""))
    if text is not None:
        jaas = parse_jaas("sasl.jaas.config", text)
        expected = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        if jaas.module != expected:
            raise InvalidConfig(f"sasl.jaas.config: the mechanism {mechanism} needs the module {expected}")
        user, password = (
            jaas.options.get("username", Secret("")).value,
            jaas.options.get("password", password),
        )
    from kreplica.runtime.listener import MECHANISMS

    if mechanism not in MECHANISMS:
        raise InvalidConfig(f"sasl.mechanism={mechanism[:40]} must be one of {', '.join(MECHANISMS)}")
    if not user or not password.value:
        raise InvalidConfig("the user or the password is missing: set sasl.jaas.config")
    found |= {"sasl.username": user, "sasl.password": password.value}
    return ClientConfig(found, ClientLogin(mechanism, user, password))
