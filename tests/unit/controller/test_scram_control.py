"""Credentials of users: set, removed and described, each user with a result of its own."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kreplica.controller.scram_control import ScramControl, describe_credentials
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from kreplica.security.sasl import Secret
from kreplica.security.scram import credential_of, salted_password
from kreplica.security.scram_credential import ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SALT = b"salt"
SALTED = salted_password(SHA_256, Secret("sesame"), SALT, 4096)
MADE = credential_of(SHA_256, SALTED, SALT, 4096)


@pytest.fixture
def metadata() -> ClusterMetadata:
    """The metadata of a cluster where alice has a credential for SCRAM-SHA-256."""
    made = ClusterMetadata()
    made.scram_credentials["alice", 1] = UserScramCredentialRecord(
        name="alice", mechanism=1, **MADE._asdict()
    )
    return made


def upsertion(name: str, **changes: Any) -> ScramCredentialUpsertion:
    fields = {"mechanism": 1, "iterations": 4096, "salt": SALT, "salted_password": SALTED, **changes}
    return ScramCredentialUpsertion(name=name, **fields)


def alter(metadata: ClusterMetadata, *changes: Any) -> tuple[list[Any], dict[str, ErrorCode]]:
    """The records to write, and the result of each user."""
    deletions = tuple(each for each in changes if isinstance(each, ScramCredentialDeletion))
    upsertions = tuple(each for each in changes if isinstance(each, ScramCredentialUpsertion))
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    result = ScramControl(metadata).alter(request)
    codes = {each.user: each.error_code for each in result.response.results}
    return [each.message for each in result.records], codes


def test_credentials_are_set_and_removed(metadata: ClusterMetadata) -> None:
    deletion = ScramCredentialDeletion(name="alice", mechanism=1)
    records, codes = alter(metadata, upsertion("bob"), deletion)
    assert codes == {"alice": ErrorCode.none, "bob": ErrorCode.none}
    assert records == [
        RemoveUserScramCredentialRecord(name="alice", mechanism=1),
        UserScramCredentialRecord(name="bob", mechanism=1, **MADE._asdict()),
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion("", mechanism=1), ErrorCode.unacceptable_credential),
        (upsertion("bob", iterations=4095), ErrorCode.unacceptable_credential),
        (upsertion("bob", iterations=16385), ErrorCode.unacceptable_credential),
        (upsertion("bob", salt=b""), ErrorCode.unacceptable_credential),
        (upsertion("bob", mechanism=2), ErrorCode.unacceptable_credential),
        (upsertion("bob", mechanism=3), ErrorCode.unsupported_sasl_mechanism),
        (ScramCredentialDeletion(name="bob", mechanism=0), ErrorCode.unsupported_sasl_mechanism),
        (ScramCredentialDeletion(name="bob", mechanism=1), ErrorCode.resource_not_found),
        (ScramCredentialDeletion(name="alice", mechanism=2), ErrorCode.resource_not_found),
    ],
)
def test_one_that_is_refused_leaves_the_others(
    metadata: ClusterMetadata, change: Any, code: ErrorCode
) -> None:
    records, codes = alter(metadata, change, upsertion("carol"))
    assert codes == {change.name: code, "carol": ErrorCode.none}
    assert [each.name for each in records] == ["carol"]


def test_a_user_is_changed_once_in_a_request(metadata: ClusterMetadata) -> None:
    records, codes = alter(metadata, upsertion("bob"), upsertion("bob", mechanism=2), upsertion("carol"))
    assert codes == {"bob": ErrorCode.duplicate_resource, "carol": ErrorCode.none}
    assert [each.name for each in records] == ["carol"]


@pytest.mark.parametrize("users", [None, ()])
def test_all_users_are_described_without_anything_secret(metadata: ClusterMetadata, users: Any) -> None:
    answer = describe_credentials(DescribeUserScramCredentialsRequest(users=users), metadata)
    [result] = answer.results
    assert (result.user, result.error_code) == ("alice", ErrorCode.none)
    assert [(each.mechanism, each.iterations) for each in result.credential_infos] == [(1, 4096)]


def test_users_are_described_by_name(metadata: ClusterMetadata) -> None:
    users = tuple(UserName(name=name) for name in ("alice", "alice", "bob"))
    answer = describe_credentials(DescribeUserScramCredentialsRequest(users=users), metadata)
    assert {each.user: each.error_code for each in answer.results} == {
        "alice": ErrorCode.duplicate_resource,
        "bob": ErrorCode.resource_not_found,
    }
