"""Messages of administrators about users: their SCRAM credentials and delegation tokens (KIP-48)."""

from __future__ import annotations

from typing import Annotated

from kreplica.common.message import Duration32, Error, Int8, Int32, Int64, Message, Since


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


class TokenPrincipal(Message):
    """An owner or a renewer of tokens."""

    principal_type: str
    principal_name: str


class CreateDelegationTokenRequest(Message, api_key=38, versions=(1, 3), flexible=2):
    """Make a token. `max_lifetime`: in ms; below 1 for that of the cluster.

    Timestamps of tokens are ms since 1970.
    """

    owner_principal_type: Annotated[str | None, Since(3)] = None
    owner_principal_name: Annotated[str | None, Since(3)] = None
    renewers: tuple[TokenPrincipal, ...]
    max_lifetime: Int64


class CreateDelegationTokenResponse(Message, api_key=38, versions=(1, 3), flexible=2):
    error_code: Error
    principal_type: str
    principal_name: str
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    throttle_time: Duration32


class RenewDelegationTokenRequest(Message, api_key=39, versions=(1, 2), flexible=2):
    """`renew_period`: in ms; below 0 for that of the cluster."""

    hmac: bytes
    renew_period: Int64


class RenewDelegationTokenResponse(Message, api_key=39, versions=(1, 2), flexible=2):
    error_code: Error
    expiry_timestamp: Int64
    throttle_time: Duration32


class ExpireDelegationTokenRequest(Message, api_key=40, versions=(1, 2), flexible=2):
    """`expiry_time_period`: in ms; below 0 to remove the token at once."""

    hmac: bytes
    expiry_time_period: Int64


class ExpireDelegationTokenResponse(Message, api_key=40, versions=(1, 2), flexible=2):
    error_code: Error
    expiry_timestamp: Int64
    throttle_time: Duration32


class DescribeDelegationTokenRequest(Message, api_key=41, versions=(1, 3), flexible=2):
    """Describe the tokens of these owners; those of all if None."""

    owners: tuple[TokenPrincipal, ...] | None


class DescribedDelegationToken(Message):
    principal_type: str
    principal_name: str
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    renewers: tuple[TokenPrincipal, ...]


class DescribeDelegationTokenResponse(Message, api_key=41, versions=(1, 3), flexible=2):
    error_code: Error
    tokens: tuple[DescribedDelegationToken, ...]
    throttle_time: Duration32
