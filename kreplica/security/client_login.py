"""ClientLogin: the client's side of a SASL login, of nodes and of the command line. No state."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from kreplica.common.errors import InvalidConfig, SaslAuthenticationFailed
from kreplica.common.future import Future, resolved, then
from kreplica.common.messages.data import SaslAuthenticateRequest, SaslHandshakeRequest
from kreplica.common.ports import Random
from kreplica.common.wire import error_of
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE, JaasLogin
from kreplica.security.oauthbearer import OAUTHBEARER, SEPARATOR, first_message
from kreplica.security.sasl import Secret

PLAIN = "PLAIN"
# Yields requests, and is sent their answers.
Steps = Generator[Any, Any, None]


class TokenSource(Protocol):
    """Where a client's tokens come from."""

    def fetch(self) -> Future[Secret]:
        """Return a token that has not expired. The future fails with SaslAuthenticationFailed."""
        ...


class ClientLogin(NamedTuple):
    """How to log in. `tokens`: gives what to log in with in place of the password; see `ready`.

    `is_delegated`: the user is the id of a delegation token, and the password is the token's.
    """

    mechanism: str
    user: str
    password: Secret
    tokens: TokenSource | None = None
    is_delegated: bool = False

    @classmethod
    def by_token(cls, tokens: TokenSource) -> ClientLogin:
        """Return the login by OAUTHBEARER."""
        return cls(OAUTHBEARER, "", Secret(""), tokens)

    def ready(self) -> Future[ClientLogin]:
        """Return the login with a token, if it needs one. The future fails with SaslAuthenticationFailed."""
        if self.tokens is None:
            return resolved(self)
        return then(self.tokens.fetch(), lambda token: self._replace(password=token))

    @classmethod
    def of(cls, name: str, mechanism: str, jaas: JaasLogin) -> ClientLogin:
        """Return the login of a property `name`. Raises InvalidConfig."""
        expected = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        if jaas.module != expected:
            raise InvalidConfig(f"{name}: the mechanism {mechanism} needs the module {expected}")
        user, password = (jaas.options.get(each, Secret("")) for each in ("username", "password"))
        if not user.value or not password.value:
            raise InvalidConfig(f"{name}: username or password is missing")
        is_delegated = jaas.options.get("tokenauth", Secret("")).value.lower() == "true"
        return cls(mechanism, user.value, password, is_delegated=is_delegated)

    def steps(self, random: Random) -> Steps:
        """Yield the requests of a login, and take their answers. Raises SaslAuthenticationFailed."""
        answer = yield SaslHandshakeRequest(mechanism=self.mechanism)
        if error_of(answer.error_code) is not None:
            raise SaslAuthenticationFailed(
                f"the broker has no mechanism {self.mechanism}, but {', '.join(answer.mechanisms) or 'none'}"
            )
        if self.mechanism == PLAIN:
            yield from self._exchange(f"\0{self.user}\0{self.password.value}".encode())
            return
        if self.mechanism == OAUTHBEARER:
            if (yield from self._exchange(first_message(self.password, {}))):
                # The answer says that the token is refused; the next one says why.
                yield from self._exchange(SEPARATOR.encode())
            return
        from kreplica.security.scram_client import ScramSaslClient

        client = ScramSaslClient(self.mechanism, self.user, self.password, random, is_token=self.is_delegated)
        first = yield from self._exchange(client.first())
        last = yield from self._exchange(client.final(first))
        client.check(last)

    def _exchange(self, token: bytes) -> Generator[Any, Any, bytes]:
        found = yield SaslAuthenticateRequest(auth_bytes=token)
        if error_of(found.error_code) is not None:
            who = "by a token" if self.mechanism == OAUTHBEARER else f"as {self.user}"
            raise SaslAuthenticationFailed(f"the login {who} failed: {found.error_message}")
        return bytes(found.auth_bytes)


def log_in(steps: Steps, ask: Callable[[Any], Any]) -> None:
    """Take the steps of a login with an `ask` that waits for each answer. Raises what both raise."""
    answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration:
            return
        answer = ask(request)
