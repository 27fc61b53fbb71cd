"""Messages of administrators about users: their SCRAM credentials."""

from __future__ import annotations

from kreplica.common.message import Duration32, Error, Int8, Int32, Message


class UserName(Message):
    name: str


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible=0):
    """Describe these users; all if None or empty."""

    users: tuple[UserName, ...] | None


class CredentialInfo(Message):
    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResult(Message):
    user: str
    error_code: Error
    error_message: str | None
    credential_infos: tuple[CredentialInfo, ...]


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    error_code: Error
    error_message: str | None
    results: tuple[DescribeUserScramCredentialsResult, ...]


class ScramCredentialDeletion(Message):
    name: str
    mechanism: Int8


class ScramCredentialUpsertion(Message):
    """A credential to set. The client has computed the salted password."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible=0):
    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


class AlterUserScramCredentialsResult(Message):
    user: str
    error_code: Error
    error_message: str | None


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible=0):
    throttle_time: Duration32
    results: tuple[AlterUserScramCredentialsResult, ...]
