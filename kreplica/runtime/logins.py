"""How the clients of a TCP listener log in, made from its settings. No state."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.sasl_authenticator import SaslAuthenticator, SaslPolicy
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.event_loop import EventLoopThread, NodeLoops
from kreplica.runtime.listener import PLAIN, SCRAM_MECHANISMS, Login
from kreplica.runtime.oauth import validator
from kreplica.runtime.tcp_server import ConnectionLogin
from kreplica.security.delegation_token import TokenLogin
from kreplica.security.oauthbearer import OAUTHBEARER, OAuthBearerSaslServer
from kreplica.security.plain import PlainSaslServer
from kreplica.security.sasl import SaslMechanism
from kreplica.security.scram import ScramSaslServer
from kreplica.security.scram_credential import ScramCredential, ScramMechanism, UnknownUsers

# Of the secret from which the salts of unknown users are made.
SECRET_BYTES = 32
# Returns a user's credential, or None.
Credential = Callable[[ScramMechanism, str], ScramCredential | None]
# Returns what users look like who do not exist, or None.
Unknown = Callable[[ScramMechanism], UnknownUsers | None]
# Returns how a delegation token logs in, or None.
FindToken = Callable[[ScramMechanism, str], TokenLogin | None]


def connection_login(
    login: Login,
    thread: EventLoopThread,
    channel: Callable[[], RequestChannel],
    credential: Credential,
    unknown: Unknown,
    find_token: FindToken,
) -> ConnectionLogin:
    """Return how the connections of a listener log in, in the loop of `thread`.

    `channel()`: where a connection's requests go, also those before its login. Raises InvalidConfig.
    """
    clock = SystemClock()
    secret = random.SystemRandom().randbytes(SECRET_BYTES)

    def scram(mechanism: ScramMechanism) -> ScramSaslServer:
        return ScramSaslServer(
            mechanism,
            partial(credential, mechanism),
            random.SystemRandom(),
            secret,
            partial(find_token, mechanism),
            clock.time_ms,
            partial(unknown, mechanism),
        )

    makers: dict[str, Callable[[], SaslMechanism]] = {PLAIN: partial(PlainSaslServer, login.passwords)} | {
        name: partial(scram, mechanism) for name, mechanism in SCRAM_MECHANISMS.items()
    }
    prepare = None
    if login.tokens is not None:
        validate, prepare = validator(login.tokens, NodeLoops(thread).loop("jwks"), clock)
        makers[OAUTHBEARER] = partial(OAuthBearerSaslServer, validate, clock.time_ms)
    policy = SaslPolicy(
        mechanisms={name: makers[name] for name in login.mechanisms},
        failure_delay_ms=login.failure_delay_ms,
        max_reauth_ms=login.max_reauth_ms,
        reauth_ms_of=login.reauth_ms_of,
    )

    def later(task: Callable[[], object], delay_ms: int) -> object:
        return thread.loop.call_later(delay_ms / 1000, task)

    def now_ms() -> int:
        return int(thread.loop.time() * 1000)

    def authenticator(connection: object) -> SaslAuthenticator:
        return SaslAuthenticator(policy, channel(), connection, later=later, now_ms=now_ms)  # type: ignore[arg-type]

    return ConnectionLogin(authenticator, login.max_receive_bytes, prepare)
