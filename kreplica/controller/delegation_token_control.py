"""DelegationTokenControl: makes, renews and removes delegation tokens (KIP-48), and describes them.

A token is a record of the metadata log, without its password, which `delegation.token.secret.key` makes of
its id. Owner, requester and renewers may renew it, up to its greatest age. Owned by the controller's loop;
`describe_tokens` reads only and may run anywhere.
"""

from __future__ import annotations

from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    DelegationTokenRequestNotAllowed,
    InvalidPrincipalType,
    KreplicaError,
    UnsupportedVersion,
)
from kreplica.common.message import replace
from kreplica.common.messages.users import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    TokenPrincipal,
)
from kreplica.common.ports import Clock, Random
from kreplica.common.types import INT64_MAX, Uuid
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.controller.feature_control import METADATA_VERSION
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from kreplica.metadata.serde import in_lowest_version
from kreplica.security.delegation_token import (
    DelegationTokenConfig,
    may_use_tokens,
    parse_principal,
    token_hmac,
)
from kreplica.security.peer import USER, KafkaPrincipal
from kreplica.security.sasl import Secret

# 3.6-IV2, the first with tokens.
FIRST_VERSION = 14
SHOWN = 80


class DelegationTokenControl:
    """Checks changes against `metadata` and returns the records to write."""

    def __init__(
        self, config: DelegationTokenConfig, metadata: ClusterMetadata, clock: Clock, random: Random
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._random = random

    def create(
        self, request: CreateDelegationTokenRequest, client: KafkaPrincipal
    ) -> ControllerResult[CreateDelegationTokenResponse]:
        """Handle CreateDelegationToken (38). Raises the errors that `refused_token` answers."""
        secret, config, now_ms = self._usable(client), self._config, self._clock.time_ms()
        owner = client
        if request.owner_principal_name:
            owner = KafkaPrincipal(request.owner_principal_type or USER, request.owner_principal_name)
        renewers = [KafkaPrincipal(each.principal_type, each.principal_name) for each in request.renewers]
        for each in (owner, *renewers):
            if each.type != USER:
                raise InvalidPrincipalType(f"the type of {str(each)[:SHOWN]!r} is not {USER}")
        lifetime_ms = config.delegation_token_max_lifetime_ms
        if request.max_lifetime > 0:
            lifetime_ms = min(lifetime_ms, request.max_lifetime)
        max_ms = _later(now_ms, lifetime_ms)
        expiry_ms = min(max_ms, _later(now_ms, config.delegation_token_expiry_time_ms))
        token_id = str(Uuid.generate(self._random))
        record = DelegationTokenRecord(
            owner=str(owner),
            requester=str(client),
            renewers=tuple(map(str, renewers)),
            issue_timestamp=now_ms,
            max_timestamp=max_ms,
            expiration_timestamp=expiry_ms,
            token_id=token_id,
        )
        answer = CreateDelegationTokenResponse(
            error_code=ErrorCode.none,
            principal_type=owner.type,
            principal_name=owner.name,
            token_requester_principal_type=client.type,
            token_requester_principal_name=client.name,
            issue_timestamp=now_ms,
            expiry_timestamp=expiry_ms,
            max_timestamp=max_ms,
            token_id=token_id,
            hmac=token_hmac(secret, token_id),
            throttle_time=NO_THROTTLE,
        )
        return ControllerResult((in_lowest_version(record),), answer)

    def renew(
        self, request: RenewDelegationTokenRequest, client: KafkaPrincipal
    ) -> ControllerResult[RenewDelegationTokenResponse]:
        """Handle RenewDelegationToken (39)."""
        token = self._token(request.hmac, client)
        period_ms = request.renew_period
        if period_ms < 0:
            period_ms = self._config.delegation_token_expiry_time_ms
        records, expiry_ms = self._until(token, period_ms)
        answer = RenewDelegationTokenResponse(
            error_code=ErrorCode.none, expiry_timestamp=expiry_ms, throttle_time=NO_THROTTLE
        )
        return ControllerResult(records, answer)

    def expire(
        self, request: ExpireDelegationTokenRequest, client: KafkaPrincipal
    ) -> ControllerResult[ExpireDelegationTokenResponse]:
        """Handle ExpireDelegationToken (40)."""
        token = self._token(request.hmac, client)
        if request.expiry_time_period < 0:
            records: Records = (_removal(token),)
            expiry_ms = self._clock.time_ms()
        else:
            records, expiry_ms = self._until(token, request.expiry_time_period)
        answer = ExpireDelegationTokenResponse(
            error_code=ErrorCode.none, expiry_timestamp=expiry_ms, throttle_time=NO_THROTTLE
        )
        return ControllerResult(records, answer)

    def remove_expired(self) -> ControllerResult[None]:
        """Remove the tokens that have expired."""
        now_ms = self._clock.time_ms()
        expired = [
            each for each in self._metadata.delegation_tokens.values() if each.expiration_timestamp < now_ms
        ]
        return ControllerResult(tuple(map(_removal, expired)), None)

    def _usable(self, client: KafkaPrincipal) -> Secret:
        """Return the secret of tokens. Raises if the client or the cluster cannot use them."""
        secret = usable_secret(self._config, client)
        level = self._metadata.features.get(METADATA_VERSION, 0)
        if level < FIRST_VERSION:
            raise UnsupportedVersion(f"tokens need {METADATA_VERSION}={FIRST_VERSION}; it is {level}")
        return secret

    def _token(self, password: bytes, client: KafkaPrincipal) -> DelegationTokenRecord:
        """Return the token with this password. Raises unless the client may change it."""
        import hmac

        secret = self._usable(client)
        found = [
            each
            for token_id, each in self._metadata.delegation_tokens.items()
            if hmac.compare_digest(token_hmac(secret, token_id), password)
        ]
        if not found:
            raise DelegationTokenNotFound
        if not is_known_to(found[0], client):
            raise DelegationTokenOwnerMismatch
        return found[0]

    def _until(self, token: DelegationTokenRecord, period_ms: int) -> tuple[Records, int]:
        """Return the record that lets a token expire after this time, and the moment of that."""
        now_ms = self._clock.time_ms()
        if min(token.max_timestamp, token.expiration_timestamp) < now_ms:
            raise DelegationTokenExpired
        expiry_ms = min(token.max_timestamp, _later(now_ms, period_ms))
        return (in_lowest_version(replace(token, expiration_timestamp=expiry_ms)),), expiry_ms


def usable_secret(config: DelegationTokenConfig, client: KafkaPrincipal) -> Secret:
    """Return the secret of tokens.

    Raises DelegationTokenRequestNotAllowed or DelegationTokenAuthDisabled.
    """
    if not may_use_tokens(client):
        raise DelegationTokenRequestNotAllowed
    if config.delegation_token_secret_key is None:
        raise DelegationTokenAuthDisabled
    return config.delegation_token_secret_key


def is_known_to(token: DelegationTokenRecord, client: KafkaPrincipal) -> bool:
    """Return whether the client may renew the token and see its password."""
    return str(client) in (token.owner, token.requester, *token.renewers)


def describe_tokens(
    request: DescribeDelegationTokenRequest,
    client: KafkaPrincipal,
    config: DelegationTokenConfig,
    metadata: ClusterMetadata,
) -> DescribeDelegationTokenResponse:
    """Handle DescribeDelegationToken (41): the tokens that an owner has or may renew.

    Which of them the client may see is decided by its rights.
    """
    try:
        secret = usable_secret(config, client)
    except KreplicaError as error:
        return refused_description(error)
    owners = request.owners
    asked = None if owners is None else {f"{each.principal_type}:{each.principal_name}" for each in owners}
    return DescribeDelegationTokenResponse(
        error_code=ErrorCode.none,
        tokens=tuple(
            _described(token, secret)
            for _, token in sorted(metadata.delegation_tokens.items())
            if asked is None or asked & {token.owner, token.requester, *token.renewers}
        ),
        throttle_time=NO_THROTTLE,
    )


def refused_description(error: KreplicaError) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(
        error_code=ErrorCode(error.code), tokens=(), throttle_time=NO_THROTTLE
    )


def refused_token(request: CreateDelegationTokenRequest, error: KreplicaError) -> Any:
    """Return the answer to a CreateDelegationToken that is refused."""
    return CreateDelegationTokenResponse(
        error_code=ErrorCode(error.code),
        principal_type=request.owner_principal_type or "",
        principal_name=request.owner_principal_name or "",
        issue_timestamp=-1,
        expiry_timestamp=-1,
        max_timestamp=-1,
        token_id="",
        hmac=b"",
        throttle_time=NO_THROTTLE,
    )


def _described(token: DelegationTokenRecord, secret: Secret) -> DescribedDelegationToken:
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=tuple(
            TokenPrincipal(principal_type=each.type, principal_name=each.name)
            for each in map(parse_principal, token.renewers)
        ),
    )


def _removal(token: DelegationTokenRecord) -> Any:
    return in_lowest_version(RemoveDelegationTokenRecord(token_id=token.token_id))


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, INT64_MAX)
