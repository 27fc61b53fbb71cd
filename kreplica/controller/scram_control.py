"""ScramControl: changes the SCRAM credentials of users, and describes them.

The credentials are records of the metadata log. A change of several users is one atomic batch, and each user
has a result of its own. Owned by the controller's loop; `describe` reads only and may run anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    DuplicateResource,
    KreplicaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kreplica.common.wire import NO_THROTTLE
from kreplica.controller.controller_broker_request_batch import ControllerResult, Records
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from kreplica.metadata.serde import in_lowest_version
from kreplica.security.scram_credential import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism


class ScramControl:
    """Checks changes against `metadata` and returns the records to write."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def alter(
        self, request: AlterUserScramCredentialsRequest
    ) -> ControllerResult[AlterUserScramCredentialsResponse]:
        """Handle AlterUserScramCredentials (51): remove and set credentials (KIP-554)."""
        changes: Sequence[ScramCredentialDeletion | ScramCredentialUpsertion] = (
            *request.deletions,
            *request.upsertions,
        )
        times = Counter(each.name for each in changes)
        records: Records = ()
        results = {}
        for change in changes:
            error: KreplicaError | None = None
            try:
                if times[change.name] > 1:
                    raise DuplicateResource(f"the request changes user {change.name[:80]!r} twice")
                records += (in_lowest_version(self._record(change)),)
            except KreplicaError as raised:
                error = raised
            results[change.name] = AlterUserScramCredentialsResult(
                user=change.name,
                error_code=ErrorCode.none if error is None else ErrorCode(error.code),
                error_message=None if error is None else str(error),
            )
        response = AlterUserScramCredentialsResponse(
            throttle_time=NO_THROTTLE, results=tuple(results.values())
        )
        return ControllerResult(records, response)

    def _record(
        self, change: ScramCredentialDeletion | ScramCredentialUpsertion
    ) -> UserScramCredentialRecord | RemoveUserScramCredentialRecord:
        mechanism = _mechanism(change.mechanism)
        if not change.name:
            raise UnacceptableCredential("the name of the user is empty")
        if isinstance(change, ScramCredentialUpsertion):
            return set_credential(change, mechanism)
        if (change.name, mechanism.value) not in self._metadata.scram_credentials:
            raise ResourceNotFound(f"user {change.name[:80]!r} has no credential for {mechanism.sasl_name}")
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=mechanism.value)


def set_credential(change: ScramCredentialUpsertion, mechanism: ScramMechanism) -> UserScramCredentialRecord:
    """Return the record of a credential. Raises UnacceptableCredential."""
    from kreplica.security.scram import credential_of

    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        raise UnacceptableCredential(
            f"iterations={change.iterations} must be {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    if not change.salt or len(change.salted_password) != mechanism.digest_bytes:
        raise UnacceptableCredential("the salt is empty, or the salted password has another length")
    made = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
    return UserScramCredentialRecord(
        name=change.name,
        mechanism=mechanism.value,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )


def describe_credentials(
    request: DescribeUserScramCredentialsRequest, metadata: ClusterMetadata
) -> DescribeUserScramCredentialsResponse:
    """Handle DescribeUserScramCredentials (50): which mechanisms users have, and nothing secret."""
    found: dict[str, list[CredentialInfo]] = {}
    for (user, number), record in sorted(metadata.scram_credentials.items()):
        info = CredentialInfo(mechanism=number, iterations=record.iterations)
        found.setdefault(user, []).append(info)
    times = Counter(each.name for each in request.users or ())
    return DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_described(user, found, times[user]) for user in times or found),
    )


def _described(
    user: str, found: dict[str, list[CredentialInfo]], times: int
) -> DescribeUserScramCredentialsResult:
    error: KreplicaError | None = None
    if times > 1:
        error = DuplicateResource(f"the request names user {user[:80]!r} twice")
    elif user not in found:
        error = ResourceNotFound(f"user {user[:80]!r} has no SCRAM credentials")
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=ErrorCode.none if error is None else ErrorCode(error.code),
        error_message=None if error is None else str(error),
        credential_infos=tuple(found[user]) if error is None else (),
    )


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise UnsupportedSaslMechanism(f"there is no SCRAM mechanism {number}") from None
