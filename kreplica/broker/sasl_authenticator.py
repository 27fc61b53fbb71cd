"""SaslAuthenticator: lets the clients of one listener log in before any other request is served.

    begun ──ApiVersions──▶ knows the versions ──SaslHandshake──▶ authenticating ──SaslAuthenticate──▶ complete
      └────────────SaslHandshake───────────────────▲                  │                                │   ▲
                                                                failed ◀──────SaslHandshake again──────┘   │
                                                                                     └─────────────────────┘

After SaslHandshake 0 the tokens come without a header of Kafka's. Any other request closes the connection
unread. A failure is answered after `failure_delay_ms`, and then the connection is closed. With
`max_reauth_ms`, or when a token expires, a session ends unless the client logs in again on the same
connection, as the same principal (KIP-368).

Ownership: one connection each, SaslPolicy all of a listener. Thread rule: the loop of the connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from kreplica.broker.api_versions import API_VERSIONS, request_type
from kreplica.broker.audit import audit
from kreplica.broker.request_channel import Answered, RequestChannel, answer_frame, client_id_of
from kreplica.common.dataclass import dataclass, field
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    IllegalSaslState,
    KreplicaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from kreplica.common.message import Message, schema_of
from kreplica.common.message_reader import MessageReader
from kreplica.common.messages.data import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kreplica.security.peer import KafkaPrincipal, Peer
from kreplica.security.sasl import SaslMechanism

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
# A client that logs in again earlier than this is refused.
MIN_REAUTH_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslPolicy:
    """How clients of a listener log in. `mechanisms`: make the server's side of a login, by name.

    `max_reauth_ms`: how long a session lasts; 0: as long as the connection. `reauth_ms_of`: the same, of
    single mechanisms.
    """

    mechanisms: Mapping[str, Callable[[], SaslMechanism]]
    failure_delay_ms: int = 100
    max_reauth_ms: int = 0
    reauth_ms_of: Mapping[str, int] = field(default_factory=dict)


class Authenticated(Protocol):
    """The connection that logs in."""

    peer: Peer

    def logged_in(self) -> None:
        """Serve the client's requests."""

    def session_ended(self) -> None:
        """Serve no request before another login."""


class _State(enum.Enum):
    BEGUN = enum.auto()
    KNOWS_VERSIONS = enum.auto()
    AUTHENTICATING = enum.auto()
    COMPLETE = enum.auto()
    FAILED = enum.auto()


class SaslAuthenticator:
    """Takes the frames of one connection until its client has logged in, and later those that log in again.

    `later(task, delay_ms)` runs a task later in the loop; `now_ms()`: the monotonic time.
    """

    def __init__(
        self,
        policy: SaslPolicy,
        channel: RequestChannel,
        connection: Authenticated,
        *,
        later: Callable[[Callable[[], object], int], object],
        now_ms: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._channel = channel
        self._connection = connection
        self._later = later
        self._now_ms = now_ms
        self._state = _State.BEGUN
        self._mechanism: SaslMechanism | None = None
        self._mechanism_name = ""
        # The tokens of this login have no header.
        self._is_raw = False
        self._principal: KafkaPrincipal | None = None
        self._logged_in_ms = 0
        # How long the session lasts; None: as long as the connection.
        self._session_ms: int | None = None
        # The number of logins: the timer of an earlier session ends nothing.
        self._logins = 0

    def take(self, frame: memoryview, answered: Answered) -> None:
        """Answer a frame. Raises InvalidRequest, UnsupportedVersion or IllegalSaslState, after which the
        connection is to be closed."""
        if self._state is _State.FAILED:
            raise SaslAuthenticationFailed("the login has failed")
        if self._state is _State.AUTHENTICATING and self._is_raw:
            self._take_token(bytes(frame), answered, _raw_frame, lambda _: None)
            return
        reader = MessageReader(frame)
        api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        if api_key == API_VERSIONS and self._state is _State.BEGUN:
            if self._channel.reads(api_key, version):
                self._state = _State.KNOWS_VERSIONS
            self._channel.serve_declined(frame, self._connection.peer, answered)
        elif api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            kind: type[Message] = request_type(api_key, version)
            schema = schema_of(kind, version)
            client_id_of(reader, schema.is_flexible)
            request = reader.read(schema)
            reply = partial(answer_frame, correlation_id, version=version)
            if api_key == SASL_HANDSHAKE:
                self._handshake(request, version, answered, reply)
            else:
                self._authenticate(request, answered, reply)
        else:
            raise IllegalSaslState(f"a request with API key {api_key} before the login")

    # ---- steps --------------------------------------------------------------------------------------------

    def _handshake(
        self, request: SaslHandshakeRequest, version: int, answered: Answered, reply: Callable[[Any], Any]
    ) -> None:
        error = self._why_no_handshake(request, version)
        enabled = tuple(self._policy.mechanisms)
        code = ErrorCode.none if error is None else ErrorCode(error.code)
        answer = reply(SaslHandshakeResponse(error_code=code, mechanisms=enabled))
        if error is None:
            self._mechanism_name = request.mechanism
            self._mechanism = self._policy.mechanisms[request.mechanism]()
            self._is_raw = version == 0
            self._state = _State.AUTHENTICATING
            answered(answer, None)
        elif self._state is _State.COMPLETE:
            answered(answer, None)
        else:
            self._fail(answered, answer, error)

    def _why_no_handshake(self, request: SaslHandshakeRequest, version: int) -> KreplicaError | None:
        if self._principal is not None:
            is_early = self._now_ms() - self._logged_in_ms < MIN_REAUTH_MS
            has_end = self._session_ms is not None
            # Tokens without a header look like requests that are in progress.
            if not has_end or is_early or request.mechanism != self._mechanism_name or version == 0:
                return IllegalSaslState(
                    "a client may log in again by the same mechanism, after a second, if its session ends"
                )
        elif self._state is _State.AUTHENTICATING:
            return IllegalSaslState("the login has begun already")
        if request.mechanism not in self._policy.mechanisms:
            return UnsupportedSaslMechanism(f"the listener has no mechanism {request.mechanism[:80]!r}")
        return None

    def _authenticate(
        self, request: SaslAuthenticateRequest, answered: Answered, reply: Callable[[Any], Any]
    ) -> None:
        if self._state is _State.AUTHENTICATING:
            write = partial(self._answer, reply)
            self._take_token(request.auth_bytes, answered, write, partial(_refusal, reply))
            return
        error = IllegalSaslState("SaslHandshake has to come before SaslAuthenticate")
        if self._state is _State.COMPLETE:
            answered(_refusal(reply, error), None)
        else:
            self._fail(answered, _refusal(reply, error), error)

    def _answer(self, reply: Callable[[Any], Any], token: bytes) -> Any:
        # On the wire 0 means that the session has no end.
        lifetime_ms = 0
        if self._state is _State.COMPLETE and self._session_ms is not None:
            lifetime_ms = max(self._session_ms, 1)
        return reply(
            SaslAuthenticateResponse(
                error_code=ErrorCode.none,
                error_message=None,
                auth_bytes=token,
                session_lifetime=timedelta(milliseconds=lifetime_ms),
            )
        )

    def _take_token(
        self,
        token: bytes,
        answered: Answered,
        write: Callable[[bytes], Any],
        refuse: Callable[[KreplicaError], Any],
    ) -> None:
        mechanism = self._mechanism
        assert mechanism is not None
        try:
            answer = mechanism.respond(token)
            if mechanism.principal is not None:
                self._complete(mechanism.principal, mechanism.lifetime_ms)
        except SaslAuthenticationFailed as error:
            self._fail(answered, refuse(error), error)
            return
        answered(write(answer), None)

    # ---- the end of a login -------------------------------------------------------------------------------

    def _complete(self, principal: KafkaPrincipal, credential_ms: int | None) -> None:
        """Raises SaslAuthenticationFailed if the client has logged in as somebody else before."""
        if self._principal not in (None, principal):
            raise SaslAuthenticationFailed("the principal of a connection cannot change")
        connection = self._connection
        self._principal = principal
        self._mechanism = None
        self._state = _State.COMPLETE
        self._logins += 1
        self._logged_in_ms = self._now_ms()
        connection.peer = connection.peer._replace(principal=principal)
        connection.logged_in()
        most_ms = self._policy.reauth_ms_of.get(self._mechanism_name, self._policy.max_reauth_ms)
        ends = [each for each in (most_ms or None, credential_ms) if each is not None]
        self._session_ms = min(ends, default=None)
        if self._session_ms is not None:
            self._later(partial(self._expire, self._logins), self._session_ms)

    def _expire(self, login: int) -> None:
        # The next request closes the connection, unless it begins another login.
        if login == self._logins:
            self._connection.session_ended()

    def _fail(self, answered: Answered, buffers: Any, error: KreplicaError) -> None:
        self._state = _State.FAILED
        audit(
            "login failed",
            self._connection.peer,
            is_refused=True,
            mechanism=self._mechanism_name,
            user="" if self._mechanism is None else self._mechanism.user,
            why=str(error),
        )
        self._connection.session_ended()
        self._later(partial(answered, buffers, error), self._policy.failure_delay_ms)


def _raw_frame(token: bytes) -> list[bytes]:
    return [len(token).to_bytes(4, "big"), token]


def _refusal(reply: Callable[[Any], Any], error: KreplicaError) -> Any:
    return reply(
        SaslAuthenticateResponse(error_code=ErrorCode(error.code), error_message=str(error), auth_bytes=b"")
    )
