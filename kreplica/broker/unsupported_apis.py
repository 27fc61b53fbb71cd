"""Answers requests for what a cluster does not have: SASL after a login, and ACLs without an authorizer.

The answers contain an error of Kafka's after which clients stop asking. No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    IllegalSaslState,
    KreplicaError,
    SecurityDisabled,
)
from kreplica.common.future import Future, resolved
from kreplica.common.messages.administration import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kreplica.common.messages.data import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kreplica.common.wire import NO_THROTTLE


def _code(kind: type[KreplicaError]) -> ErrorCode:
    return ErrorCode(kind.code)


def _text(kind: type[KreplicaError]) -> str:
    return str(kind())


_NO_RULES: dict[str, Any] = {"error_code": _code(SecurityDisabled), "error_message": _text(SecurityDisabled)}

# ---- security ----------------------------------------------------------------------------------------------


def _create_acls(request: CreateAclsRequest) -> CreateAclsResponse:
    refused = AclCreationResult(**_NO_RULES)
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(refused,) * len(request.creations))


def _delete_acls(request: DeleteAclsRequest) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(matching_acls=(), **_NO_RULES)
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(refused,) * len(request.filters))


# The answers that are the same for every request.
_FIXED: Mapping[type[Any], Any] = {
    SaslHandshakeRequest: SaslHandshakeResponse(error_code=_code(IllegalSaslState), mechanisms=()),
    SaslAuthenticateRequest: SaslAuthenticateResponse(
        error_code=_code(IllegalSaslState), error_message=_text(IllegalSaslState), auth_bytes=b""
    ),
    DescribeAclsRequest: DescribeAclsResponse(throttle_time=NO_THROTTLE, resources=(), **_NO_RULES),
}
# The answers that list what the request lists.
_MADE: Mapping[type[Any], Callable[[Any], Any]] = {
    CreateAclsRequest: _create_acls,
    DeleteAclsRequest: _delete_acls,
}


def _handler(answer: Callable[[Any], Any]) -> Callable[[Any], Future[Any]]:
    return lambda request: resolved(answer(request))


def _handler_of_fixed(answer: Any) -> Callable[[Any], Future[Any]]:
    return lambda _: resolved(answer)


_SASL = (SaslHandshakeRequest, SaslAuthenticateRequest)
HANDLERS: Mapping[type[Any], Callable[[Any], Future[Any]]] = {
    **{kind: _handler_of_fixed(answer) for kind, answer in _FIXED.items()},
    **{kind: _handler(answer) for kind, answer in _MADE.items()},
}
# Those of a cluster that has ACLs.
HANDLERS_WITH_ACLS: Mapping[type[Any], Callable[[Any], Future[Any]]] = {
    kind: HANDLERS[kind] for kind in _SASL
}
