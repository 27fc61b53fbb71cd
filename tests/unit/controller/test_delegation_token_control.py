"""Delegation tokens are made, renewed and removed by those who may do that (KIP-48)."""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    InvalidConfig,
    InvalidPrincipalType,
    UnsupportedVersion,
)
from kreplica.common.messages.users import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from kreplica.common.types import INT64_MAX
from kreplica.controller.delegation_token_control import DelegationTokenControl, describe_tokens
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.security.delegation_token import DelegationTokenConfig
from kreplica.security.peer import ANONYMOUS, KafkaPrincipal
from tests.support.virtual import VirtualMachine

DAY_MS = 86_400_000
SECRET = "cluster-secret"
ON = DelegationTokenConfig(delegation_token_secret_key=SECRET)
ALICE, BOB, CAROL = (KafkaPrincipal("User", name) for name in ("alice", "bob", "carol"))
BY_TOKEN = ALICE._replace(token_authenticated=True)


def principal(text: str) -> TokenPrincipal:
    kind, _, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name)


class Stage:
    """A controller's tokens, whose records are applied at once."""

    def __init__(self, config: DelegationTokenConfig = ON, level: int = 25) -> None:
        self.machine = VirtualMachine()
        self.metadata = ClusterMetadata()
        self.metadata.features["metadata.version"] = level
        self.control = DelegationTokenControl(config, self.metadata, self.machine.clock, random.Random(1))
        self.config = config

    @property
    def now_ms(self) -> int:
        return self.machine.clock.time_ms()

    def done(self, result: Any) -> Any:
        for record in result.records:
            self.metadata.replay(record.message)
        return result.response

    def create(self, client: KafkaPrincipal = ALICE, **changes: Any) -> Any:
        fields = {"renewers": (), "max_lifetime": -1, **changes}
        return self.done(self.control.create(CreateDelegationTokenRequest(**fields), client))

    def renew(self, password: bytes, period_ms: int = -1, client: KafkaPrincipal = ALICE) -> int:
        request = RenewDelegationTokenRequest(hmac=password, renew_period=period_ms)
        answer = self.done(self.control.renew(request, client))
        return int(answer.expiry_timestamp)

    def expire(self, password: bytes, period_ms: int = -1, client: KafkaPrincipal = ALICE) -> int:
        request = ExpireDelegationTokenRequest(hmac=password, expiry_time_period=period_ms)
        answer = self.done(self.control.expire(request, client))
        return int(answer.expiry_timestamp)

    def described(self, *owners: str, client: KafkaPrincipal = ALICE) -> Any:
        asked = tuple(map(principal, owners)) or None
        return describe_tokens(
            DescribeDelegationTokenRequest(owners=asked), client, self.config, self.metadata
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_token_has_its_password_and_times(stage: Stage) -> None:
    made = stage.create(renewers=(principal("User:bob"),))
    assert made.hmac == hmac.digest(SECRET.encode(), made.token_id.encode(), hashlib.sha512)
    assert (made.principal_name, made.token_requester_principal_name) == ("alice", "alice")
    assert made.expiry_timestamp == stage.now_ms + DAY_MS
    assert made.max_timestamp == stage.now_ms + 7 * DAY_MS
    [described] = stage.described().tokens
    assert (described.token_id, described.hmac) == (made.token_id, made.hmac)
    assert [each.principal_name for each in described.renewers] == ["bob"]
    # The password is not in the metadata log.
    [record] = stage.metadata.delegation_tokens.values()
    assert made.hmac.hex() not in repr(record)


def test_the_greatest_age_is_the_lesser_of_both(stage: Stage) -> None:
    made = stage.create(max_lifetime=1_000)
    assert made.expiry_timestamp == made.max_timestamp == stage.now_ms + 1_000
    made = stage.create(max_lifetime=INT64_MAX)
    assert made.max_timestamp == stage.now_ms + 7 * DAY_MS


def test_a_token_may_be_made_for_another_user(stage: Stage) -> None:
    made = stage.create(owner_principal_type="User", owner_principal_name="bob")
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    for owner, count in (("User:bob", 1), ("User:alice", 1), ("User:carol", 0), ("Group:bob", 0)):
        assert len(stage.described(owner).tokens) == count
    assert stage.renew(made.hmac, client=BOB) == stage.renew(made.hmac, client=ALICE)


@pytest.mark.parametrize(
    "changes",
    [{"owner_principal_type": "Group", "owner_principal_name": "a"}, {"renewers": (principal("Group:a"),)}],
)
def test_owners_and_renewers_are_users(stage: Stage, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidPrincipalType):
        stage.create(**changes)


def test_owner_requester_and_renewers_change_a_token_and_no_others(stage: Stage) -> None:
    password = stage.create(renewers=(principal("User:bob"),)).hmac
    for change in (stage.renew, stage.expire):
        with pytest.raises(DelegationTokenOwnerMismatch):
            change(password, 1, client=CAROL)
        with pytest.raises(DelegationTokenNotFound):
            change(b"other", 1)
        with pytest.raises(DelegationTokenNotFound):
            change(b"", 1)
    assert stage.renew(password, 5, client=BOB) == stage.now_ms + 5
    assert stage.renew(password) == stage.now_ms + DAY_MS
    assert stage.renew(password, INT64_MAX) == stage.now_ms + 7 * DAY_MS
    assert stage.expire(password, 0, client=BOB) == stage.now_ms
    assert stage.expire(password, client=BOB) == stage.now_ms
    assert not stage.metadata.delegation_tokens


def test_an_expired_token_is_not_renewed_and_can_be_removed(stage: Stage) -> None:
    password = stage.create().hmac
    stage.machine.pass_time(DAY_MS + 1)
    for change in (stage.renew, stage.expire):
        with pytest.raises(DelegationTokenExpired):
            change(password, 1)
    stage.expire(password)
    assert not stage.metadata.delegation_tokens


def test_the_controller_removes_expired_tokens(stage: Stage) -> None:
    stage.create(max_lifetime=1_000)
    later = stage.create(max_lifetime=2_000)
    for passed_ms, left in ((1_000, 2), (1, 1), (1_000, 0)):
        stage.machine.pass_time(passed_ms)
        stage.done(stage.control.remove_expired())
        assert len(stage.metadata.delegation_tokens) == left
    with pytest.raises(DelegationTokenNotFound):
        stage.renew(later.hmac)


@pytest.mark.parametrize("client", [ANONYMOUS, BY_TOKEN, KafkaPrincipal("Process", "")])
def test_who_is_anonymous_or_came_by_a_token_has_no_use_of_tokens(
    stage: Stage, client: KafkaPrincipal
) -> None:
    password = stage.create().hmac
    for attempt in (
        lambda: stage.create(client),
        lambda: stage.renew(password, client=client),
        lambda: stage.expire(password, client=client),
    ):
        with pytest.raises(DelegationTokenRequestNotAllowed):
            attempt()
    answer = stage.described(client=client)
    assert (answer.error_code, answer.tokens) == (ErrorCode.delegation_token_request_not_allowed, ())


def test_without_a_secret_there_are_no_tokens() -> None:
    stage = Stage(DelegationTokenConfig())
    for attempt in (stage.create, lambda: stage.renew(b"a"), lambda: stage.expire(b"a")):
        with pytest.raises(DelegationTokenAuthDisabled):
            attempt()
    assert stage.described().error_code == ErrorCode.delegation_token_auth_disabled


def test_an_old_cluster_has_no_tokens() -> None:
    assert Stage(level=14).create().token_id
    with pytest.raises(UnsupportedVersion, match=r"metadata.version=14"):
        Stage(level=13).create()


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(ON)
    assert SECRET not in str(ON.properties())
    with pytest.raises(InvalidConfig, match=r"delegation.token.secret.key"):
        DelegationTokenConfig(delegation_token_secret_key="")
