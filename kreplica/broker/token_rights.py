"""The rights that requests about delegation tokens need, as rows of the table. No state.

Owners and renewers need none for their tokens; the handlers know who they are.
"""

from __future__ import annotations

from typing import Any

from kreplica.broker.client_rights import ClientRights
from kreplica.broker.rights import DESCRIBE, Verdict
from kreplica.common.errors import DelegationTokenAuthorizationFailed
from kreplica.common.messages.users import CreateDelegationTokenRequest, DescribedDelegationToken
from kreplica.controller.delegation_token_control import refused_token
from kreplica.security.acl import AclOperation, ResourceType
from kreplica.security.delegation_token import may_use_tokens
from kreplica.security.peer import USER


def create_token(client: ClientRights, request: CreateDelegationTokenRequest) -> Verdict:
    """Let a client make tokens for itself, and for others as far as it may."""
    name = request.owner_principal_name
    owner = f"{request.owner_principal_type or USER}:{name}" if name else str(client.peer.principal)
    # The handler refuses a client that cannot use tokens, whatever it asks for.
    is_free = owner == str(client.peer.principal) or not may_use_tokens(client.peer.principal)
    if is_free or client.may(AclOperation.CREATE_TOKENS, ResourceType.USER, owner):
        return Verdict(request)
    return Verdict(None, answer=refused_token(request, DelegationTokenAuthorizationFailed()))


def shown_token(
    client: ClientRights, _: Any, token: DescribedDelegationToken
) -> DescribedDelegationToken | None:
    """Show a token to its owner, requester and renewers, and to those who may see it or its owner's."""
    owner = f"{token.principal_type}:{token.principal_name}"
    requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in token.renewers]
    if (
        str(client.peer.principal) in (owner, requester, *renewers)
        or client.sees(DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or client.sees(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, owner)
    ):
        return token
    return None
