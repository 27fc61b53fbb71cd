"""When the keys of an issuer are fetched, and which tokens they verify meanwhile."""

from __future__ import annotations

import time

import pytest

from kreplica.common.errors import InvalidFile, NetworkException, SaslAuthenticationFailed
from kreplica.common.future import Future
from kreplica.security.jwks_cache import EARLY_PAUSE_MS, MISSING_MS, JwksCache, JwksTimes
from kreplica.security.jwt import TokenRules
from tests.support.tokens import AUDIENCE, ISSUER, Issuer
from tests.support.virtual import VirtualMachine

TIMES = JwksTimes(refresh_ms=3_600_000, retry_ms=100, retry_max_ms=10_000)


class Stage:
    """A cache whose fetches the test answers, under a virtual clock."""

    def __init__(self) -> None:
        self.machine = VirtualMachine()
        self.issuer = Issuer()
        self.fetches: list[Future[bytes]] = []
        rules = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
        self.cache = JwksCache("keys", self, rules, TIMES, loop=self.machine.loop, clock=self.machine.clock)
        self.cache.open(self.issuer.jwks())
        self.machine.settle()

    def fetch(self) -> Future[bytes]:
        self.fetches.append(Future())
        return self.fetches[-1]

    def token(self, **header: str) -> str:
        now = self.machine.clock.time_ms() // 1000
        return self.issuer.token(header=header, iat=now, exp=now + 3600)

    def is_taken(self, token: str) -> bool:
        try:
            self.cache.validate(token)
        except SaslAuthenticationFailed:
            return False
        finally:
            self.machine.settle()
        return True

    def answer(self, data: bytes | None = None) -> None:
        """End the fetch under way: with these keys, those of the issuer, or b"" for an error."""
        future = self.fetches[-1]
        if data == b"":
            future.set_exception(NetworkException("no route"))
        else:
            future.set_result(self.issuer.jwks() if data is None else data)
        self.machine.settle()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_keys_are_fetched_again_regularly(stage: Stage) -> None:
    assert stage.is_taken(stage.token())
    assert not stage.fetches
    for number in (1, 2):
        stage.machine.pass_time(TIMES.refresh_ms)
        assert len(stage.fetches) == number
        stage.machine.pass_time(2 * TIMES.refresh_ms)  # the fetch takes long, and is the only one
        assert len(stage.fetches) == number
        stage.answer()
    assert stage.is_taken(stage.token())


def test_a_key_that_is_no_longer_in_the_set_is_forgotten(stage: Stage) -> None:
    old = stage.token()
    stage.issuer.rotate()
    stage.issuer.forget()
    stage.machine.pass_time(TIMES.refresh_ms)
    assert stage.is_taken(old)
    stage.answer()
    assert not stage.is_taken(old)


def test_a_new_key_is_fetched_by_the_login_that_needs_it(stage: Stage) -> None:
    stage.machine.pass_time(EARLY_PAUSE_MS)
    stage.issuer.rotate()
    assert not stage.is_taken(stage.token())
    assert len(stage.fetches) == 1
    assert not stage.is_taken(stage.token())
    stage.answer()
    assert stage.is_taken(stage.token())
    assert len(stage.fetches) == 1


def test_an_unknown_key_starts_one_fetch_and_is_remembered(stage: Stage) -> None:
    stage.machine.pass_time(EARLY_PAUSE_MS)
    for number in (1, 2):
        assert not stage.is_taken(stage.token(kid="unknown"))
        assert len(stage.fetches) == number
        stage.answer()
        stage.machine.pass_time(MISSING_MS - 1)
        assert not stage.is_taken(stage.token(kid="unknown"))
        assert len(stage.fetches) == number
        stage.machine.pass_time(1)


def test_many_unknown_keys_fetch_no_more_than_once_a_second(stage: Stage) -> None:
    stage.machine.pass_time(EARLY_PAUSE_MS)
    for number in range(100):
        assert not stage.is_taken(stage.token(kid=f"unknown-{number}"))
        if not stage.fetches[-1].done():
            stage.answer()
        stage.machine.pass_time(100)
    assert len(stage.fetches) == 10
    assert len(stage.cache._missing) <= 16
    # And a true one is found among them.
    stage.machine.pass_time(EARLY_PAUSE_MS)
    stage.issuer.rotate()
    assert not stage.is_taken(stage.token())
    stage.answer()
    assert stage.is_taken(stage.token())


def test_an_endless_key_id_starts_no_fetch(stage: Stage) -> None:
    stage.machine.pass_time(EARLY_PAUSE_MS)
    assert not stage.is_taken(stage.token(kid="k" * 1001))
    assert not stage.fetches


@pytest.mark.parametrize("data", [b"", b"[]", b'{"keys": []}'])
def test_known_keys_go_on_while_the_provider_fails(stage: Stage, data: bytes) -> None:
    stage.machine.pass_time(TIMES.refresh_ms)
    for delay_ms in (100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000):
        fetches = len(stage.fetches)
        stage.answer(data)
        assert stage.is_taken(stage.token())
        # Its failures are not made worse by strangers.
        assert not stage.is_taken(stage.token(kid="unknown"))
        stage.machine.pass_time(delay_ms - 1)
        assert len(stage.fetches) == fetches
        stage.machine.pass_time(1)
        assert len(stage.fetches) == fetches + 1
    stage.answer()
    stage.machine.pass_time(TIMES.refresh_ms - 1)
    assert len(stage.fetches) == 10


def test_a_start_without_keys_is_refused() -> None:
    stage = Stage()
    with pytest.raises(InvalidFile):
        stage.cache.open(b'{"keys": []}')


def test_the_time_of_tokens_is_that_of_the_wall(stage: Stage) -> None:
    token = stage.issuer.token()
    assert stage.is_taken(token) == (abs(stage.machine.clock.time_ms() / 1000 - time.time()) < 30)
