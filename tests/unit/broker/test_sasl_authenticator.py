"""What a client may ask before it has logged in, in which order, and what ends its session."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from kreplica.broker import audit
from kreplica.broker.request_channel import RequestChannel
from kreplica.broker.sasl_authenticator import SaslAuthenticator, SaslPolicy
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    BrokerNotAvailable,
    IllegalSaslState,
    InvalidRequest,
    KreplicaError,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)
from kreplica.common.future import Future, failed
from kreplica.common.message import at
from kreplica.common.messages import data
from kreplica.common.messages.data import ApiVersionsRequest, MetadataRequest
from kreplica.common.types import Uuid
from kreplica.security.jwt import OAuthBearerToken
from kreplica.security.oauthbearer import OAuthBearerSaslServer
from kreplica.security.peer import ANONYMOUS, KafkaPrincipal, Peer
from kreplica.security.plain import PlainSaslServer
from kreplica.security.sasl import Secret
from kreplica.security.scram import ScramSaslServer, credential_of, salted_password
from kreplica.security.scram_credential import ScramMechanism
from tests.support.requests import frame_of, response_of
from tests.support.scram import ScramClient

PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-512"
TOKEN = "OAUTHBEARER"
RIGHT, WRONG = b"\0alice\0right", b"\0alice\0wrong"
DELAY_MS = 100
VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")


class Node:
    """Handles nothing: no request may reach it."""

    def handle(self, request: Any, _context: object) -> Future[Any]:
        return failed(AssertionError(request))

    def topic_id(self, _topic: str) -> Uuid | None:
        return None


class Connection:
    """A connection of a client, with the time of its loop."""

    def __init__(self, max_reauth_ms: int = 0, *, credential: Any = None, **reauth_ms_of: int) -> None:
        self.peer = Peer("/10.0.0.1", listener="CLIENTS")
        # How long the next token is good for.
        self.token_ms = 5_000
        self.is_open = False
        self.now_ms = 5_000
        self.tasks: list[tuple[int, Callable[[], object]]] = []
        mechanism = ScramMechanism.SCRAM_SHA_512
        salted = salted_password(mechanism, Secret("right"), b"salt", 1)
        known = {"alice": credential_of(mechanism, salted, b"salt", 1)}
        policy = SaslPolicy(
            mechanisms={
                TOKEN: lambda: OAuthBearerSaslServer(self.validated, lambda: self.now_ms),
                PLAIN: lambda: PlainSaslServer({"alice": Secret("right"), "bob": Secret("b")}),
                SCRAM: lambda: ScramSaslServer(
                    mechanism, credential or known.get, random.Random(1), b"secret"
                ),
            },
            failure_delay_ms=DELAY_MS,
            max_reauth_ms=max_reauth_ms,
            reauth_ms_of=reauth_ms_of,
        )
        node = Node()
        self.authenticator = SaslAuthenticator(
            policy,
            RequestChannel(node.handle, node),
            self,
            later=lambda task, delay_ms: self.tasks.append((self.now_ms + delay_ms, task)),
            now_ms=lambda: self.now_ms,
        )

    def validated(self, token: str) -> OAuthBearerToken:
        if token == "wrong":
            raise SaslAuthenticationFailed("the token has expired")
        return OAuthBearerToken(token, frozenset(), self.now_ms + self.token_ms)

    def logged_in(self) -> None:
        self.is_open = True

    def session_ended(self) -> None:
        self.is_open = False

    def pass_time(self, time_ms: int) -> None:
        self.now_ms += time_ms
        due = [each for each in self.tasks if each[0] <= self.now_ms]
        self.tasks = [each for each in self.tasks if each not in due]
        for _, task in due:
            task()

    def ask_bytes(self, frame: bytes) -> tuple[bytes | None, KreplicaError | None]:
        """The answer's frame without its size, and the error that closes the connection."""
        found: list[tuple[Any, Any]] = []
        self.authenticator.take(memoryview(frame), lambda buffers, error: found.append((buffers, error)))
        if not found:
            self.pass_time(DELAY_MS - 1)
            assert not found
            self.pass_time(1)
        [(buffers, error)] = found
        return None if buffers is None else b"".join(buffers)[4:], error

    def ask(self, kind: str, version: int, **fields: Any) -> tuple[Any, KreplicaError | None]:
        request = at(getattr(data, f"{kind}Request"), version)(**fields)
        answer, error = self.ask_bytes(frame_of(request, 7))
        assert answer is not None
        return response_of(at(getattr(data, f"{kind}Response"), version), answer, 7), error

    def handshake(self, mechanism: str = PLAIN, version: int = 1) -> tuple[ErrorCode, bool]:
        """The answer's error, and whether the connection is closed."""
        answer, error = self.ask("SaslHandshake", version, mechanism=mechanism)
        assert answer.mechanisms == (TOKEN, PLAIN, SCRAM)
        return answer.error_code, error is not None

    def authenticate(self, token: bytes, version: int = 2) -> tuple[ErrorCode, bool]:
        self.answer, error = self.ask("SaslAuthenticate", version, auth_bytes=token)
        return self.answer.error_code, error is not None


OK = (ErrorCode.none, False)


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_logs_in_by_a_handshake_and_tokens(connection: Connection, version: int) -> None:
    assert connection.ask_bytes(frame_of(VERSIONS, 1))[1] is None
    assert connection.handshake() == OK
    assert not connection.is_open
    assert connection.authenticate(RIGHT, version) == OK
    assert connection.is_open
    assert connection.peer == Peer("/10.0.0.1", KafkaPrincipal("User", "alice"), "CLIENTS")
    # The login is over: no other session has been agreed on.
    assert connection.handshake() == (ErrorCode.illegal_sasl_state, False)
    assert connection.authenticate(RIGHT) == (ErrorCode.illegal_sasl_state, False)
    assert connection.is_open


def test_tokens_after_an_early_handshake_have_no_header(connection: Connection) -> None:
    client = ScramClient(ScramMechanism.SCRAM_SHA_512, "alice", "right")
    assert connection.handshake(SCRAM, version=0) == OK
    answer, error = connection.ask_bytes(client.first())
    assert error is None
    assert answer is not None
    assert connection.ask_bytes(client.final(answer)) == (client.signature.encode(), None)
    assert connection.is_open


def test_a_failed_login_is_answered_late_and_ends_the_connection(connection: Connection) -> None:
    """KAFKA-10798."""
    connection.handshake()
    assert connection.authenticate(WRONG) == (ErrorCode.sasl_authentication_failed, True)
    assert connection.answer.error_message == "the user or the password is wrong"
    assert (connection.is_open, connection.peer.principal) == (False, ANONYMOUS)
    with pytest.raises(KreplicaError):
        connection.ask_bytes(frame_of(VERSIONS, 1))


def test_a_failed_token_without_header_just_ends_the_connection(connection: Connection) -> None:
    connection.handshake(version=0)
    answer, error = connection.ask_bytes(WRONG)
    assert answer is None
    assert error is not None


def test_an_unknown_mechanism_is_answered_with_those_that_there_are(connection: Connection) -> None:
    assert connection.handshake("GSSAPI") == (ErrorCode.unsupported_sasl_mechanism, True)


def test_versions_of_the_future_may_be_asked_for_once(connection: Connection) -> None:
    future = bytearray(frame_of(VERSIONS, 1))
    future[2:4] = (99).to_bytes(2, "big")
    assert connection.ask_bytes(bytes(future))[1] is None
    assert connection.ask_bytes(frame_of(VERSIONS, 1))[1] is None
    with pytest.raises(IllegalSaslState):
        connection.ask_bytes(frame_of(VERSIONS, 1))


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The log. What other tests were refused is not repeated in it."""
    monkeypatch.setattr(audit, "_REFUSALS", audit.Refusals())
    return caplog


def test_a_login_at_a_node_that_is_still_starting_closes_the_connection_and_is_no_failed_one(
    audited: pytest.LogCaptureFixture,
) -> None:
    """A node knows its users only once it is open, and clients do not repeat a login that failed."""

    def starting(_: object) -> None:
        raise BrokerNotAvailable("node 1 is still starting")

    connection = Connection(credential=starting)
    connection.handshake(SCRAM)
    with pytest.raises(BrokerNotAvailable):
        connection.authenticate(b"n,,n=alice,r=x")
    assert "login failed" not in audited.text


@pytest.mark.parametrize(
    ("mechanism", "token", "user"),
    [
        (PLAIN, b"\0alice\0wrong", "alice"),
        (PLAIN, b"bob\0alice\0right", "alice"),
        # It may be a password in the wrong place.
        (PLAIN, b"\0se-sa-me\0alice", ""),
        (SCRAM, b"n,a=bob,n=alice,r=x", "alice"),
        (SCRAM, b"n,a=bob,n=se-sa-me,r=x", ""),
    ],
)
def test_a_failed_login_names_the_user_if_there_is_one(
    mechanism: str, token: bytes, user: str, audited: pytest.LogCaptureFixture
) -> None:
    connection = Connection()
    connection.handshake(mechanism)
    assert connection.authenticate(token)[0] == ErrorCode.sasl_authentication_failed
    (message,) = audited.messages
    assert json.loads(message)["user"] == user
    assert "se-sa-me" not in audited.text


def test_a_token_without_a_handshake_is_refused_by_words_that_fit(connection: Connection) -> None:
    connection.authenticate(RIGHT)
    assert connection.answer.error_message == "SaslHandshake has to come before SaslAuthenticate"


@pytest.mark.parametrize("knows_versions", [False, True])
def test_no_other_request_is_read_before_the_login(connection: Connection, knows_versions: bool) -> None:
    if knows_versions:
        connection.ask_bytes(frame_of(VERSIONS, 1))
    metadata = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    with pytest.raises(IllegalSaslState, match="API key 3 before the login"):
        connection.ask_bytes(frame_of(metadata, 1))
    assert connection.authenticate(RIGHT) == (ErrorCode.illegal_sasl_state, True)


@pytest.mark.parametrize(
    "frame", [b"", b"\0", b"\0\x11\0\1\0\0\0\1\xff\xff\x7f\xff", b"\0\x24\0\x63\0\0\0\1"]
)
def test_noise_ends_the_connection(connection: Connection, frame: bytes) -> None:
    with pytest.raises((InvalidRequest, UnsupportedVersion)):
        connection.ask_bytes(frame)


# ---- sessions that end (KIP-368) ---------------------------------------------------------------------------


def logged_in() -> Connection:
    made = Connection(max_reauth_ms=10_000)
    made.handshake()
    assert made.authenticate(RIGHT) == OK
    assert made.answer.session_lifetime.total_seconds() == 10
    return made


def test_a_session_ends_unless_the_client_logs_in_again() -> None:
    connection = logged_in()
    connection.pass_time(9_000)
    assert connection.handshake() == OK
    assert connection.authenticate(RIGHT) == OK
    connection.pass_time(9_999)
    assert connection.is_open
    connection.pass_time(1)
    assert not connection.is_open
    with pytest.raises(IllegalSaslState):
        connection.ask_bytes(frame_of(VERSIONS, 1))
    # Kafka's clients may begin just then.
    assert connection.handshake() == OK
    assert connection.authenticate(RIGHT) == OK
    assert connection.is_open


def test_the_next_login_is_of_the_same_user_by_the_same_mechanism_and_not_at_once() -> None:
    connection = logged_in()
    assert connection.handshake() == (ErrorCode.illegal_sasl_state, False)
    connection.pass_time(1_000)
    assert connection.handshake(SCRAM) == (ErrorCode.illegal_sasl_state, False)
    assert connection.handshake() == OK
    assert connection.authenticate(b"\0bob\0b") == (ErrorCode.sasl_authentication_failed, True)
    assert not connection.is_open


# ---- tokens that expire ------------------------------------------------------------------------------------


def bearer(token: str = "alice") -> bytes:
    return f"n,,\1auth=Bearer {token}\1\1".encode()


@pytest.mark.parametrize(
    ("max_reauth_ms", "token_ms", "lasts_ms"),
    [(0, 1_000, 1_000), (10_000, 1_000, 1_000), (10_000, 60_000, 10_000), (0, 0, 0), (0, -5_000, 0)],
)
@pytest.mark.parametrize("version", [0, 1])
def test_a_session_ends_with_its_token(
    max_reauth_ms: int, token_ms: int, lasts_ms: int, version: int
) -> None:
    """KAFKA-9241 and KAFKA-13848: by tokens without a header, too, and if the token has expired already."""
    connection = Connection(max_reauth_ms)
    connection.token_ms = token_ms
    assert connection.handshake(TOKEN, version) == OK
    if version == 0:
        assert connection.ask_bytes(bearer()) == (b"", None)
    else:
        assert connection.authenticate(bearer()) == OK
        # 0 would mean that the session has no end.
        assert connection.answer.session_lifetime.total_seconds() * 1000 == max(lasts_ms, 1)
    if lasts_ms:
        connection.pass_time(lasts_ms - 1)
        assert connection.is_open
        connection.pass_time(1)
    else:
        connection.pass_time(0)
    assert not connection.is_open
    with pytest.raises(IllegalSaslState):
        connection.ask_bytes(frame_of(VERSIONS, 1))


@pytest.mark.parametrize(("own_ms", "lasts_ms"), [(3_000, 3_000), (20_000, 20_000), (0, 0)])
def test_a_mechanism_may_have_its_own_end_of_sessions(own_ms: int, lasts_ms: int) -> None:
    connection = Connection(10_000, PLAIN=own_ms, OTHER=1)
    connection.handshake(PLAIN)
    assert connection.authenticate(b"\0alice\0right") == OK
    assert connection.answer.session_lifetime.total_seconds() * 1000 == lasts_ms


def test_a_newer_token_prolongs_the_session() -> None:
    connection = Connection()
    connection.handshake(TOKEN)
    assert connection.authenticate(bearer()) == OK
    for _ in range(3):
        connection.pass_time(4_500)
        assert connection.handshake(TOKEN) == OK
        assert connection.authenticate(bearer()) == OK
        assert connection.is_open
    connection.pass_time(5_000)
    assert not connection.is_open


def test_a_session_goes_on_as_the_same_user_and_in_frames_of_kafka() -> None:
    connection = Connection()
    connection.handshake(TOKEN)
    assert connection.authenticate(bearer()) == OK
    connection.pass_time(2_000)
    assert connection.handshake(PLAIN) == (ErrorCode.illegal_sasl_state, False)
    # A bare token looks like a request that is in progress.
    assert connection.handshake(TOKEN, version=0) == (ErrorCode.illegal_sasl_state, False)
    assert connection.handshake(TOKEN) == OK
    assert connection.authenticate(bearer("bob")) == (ErrorCode.sasl_authentication_failed, True)
    assert not connection.is_open


def test_a_refused_token_is_answered_twice() -> None:
    connection = Connection()
    connection.handshake(TOKEN)
    assert connection.authenticate(bearer("wrong")) == OK
    assert connection.answer.auth_bytes == b'{"status":"invalid_token"}'
    assert connection.answer.session_lifetime.total_seconds() == 0
    assert not connection.is_open
    assert connection.authenticate(b"\1") == (ErrorCode.sasl_authentication_failed, True)
    assert connection.answer.error_message == "the token has expired"
    assert not connection.is_open


def test_a_session_that_is_refused_again_ends() -> None:
    connection = Connection()
    connection.handshake(TOKEN)
    assert connection.authenticate(bearer()) == OK
    connection.pass_time(2_000)
    connection.handshake(TOKEN)
    assert connection.authenticate(bearer("wrong")) == OK
    assert connection.authenticate(b"\1") == (ErrorCode.sasl_authentication_failed, True)
    assert not connection.is_open
