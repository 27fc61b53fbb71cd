"""The audit log: who failed to log in, was denied something, or changed what. One JSON object for each event.

    {"event": "login failed", "principal": "User:ANONYMOUS", "host": "10.0.0.9", "listener": "CLIENTS",
     "mechanism": "PLAIN", "user": "alice", "why": "the user or the password is wrong"}
    {"event": "denied", "principal": "User:alice", "host": "10.0.0.9", "listener": "CLIENTS",
     "request": "Produce", "denied": ["WRITE TOPIC:orders"], "count": 1}
    {"event": "change", "principal": "User:admin", "host": "10.0.0.9", "listener": "CLIENTS",
     "request": "CreateTopics", "about": ["orders"], "count": 1, "errors": []}

The logger is `kreplica.audit`: refusals are warnings, the rest is information. Nothing secret is written: a
change is named by its request and what it is about, and never by its values. A request that a node forwards
is logged by the controller, under the client that sent it.

A client that is refused the same thing in a loop must not fill the disk. The first refusal of each kind is
logged at once. Those that follow within a minute are counted, and logged once more with the field `repeated`.
A client that is refused more than MOST_KINDS different things in a minute gets one line for the others:

    {"event": "more refusals", "principal": "User:alice", "host": "10.0.0.9", "repeated": 4711}

Any thread may call.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.locks import process_lock
from kreplica.common.message import Message, fields_of
from kreplica.common.messages.administration import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from kreplica.common.messages.data import DeleteRecordsRequest
from kreplica.common.messages.groups import DeleteGroupsRequest
from kreplica.common.messages.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest
from kreplica.common.messages.quotas import AlterClientQuotasRequest
from kreplica.common.messages.users import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kreplica.security.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from kreplica.security.peer import Peer

LOGGER = logging.getLogger("kreplica.audit")

# The most things that an event lists, and the longest name of one.
MOST_LISTED, LONGEST_NAME = 20, 120


# How long refusals are counted, the different ones of one client in that time, and of all clients.
SPAN_S, MOST_KINDS, MOST_OF_ALL = 60.0, 100, 10_000


def audit(event: str, peer: Peer, *, is_refused: bool = False, **facts: object) -> None:
    """Log one event of the client `peer`; `facts` are text, numbers and lists of these."""
    level = logging.WARNING if is_refused else logging.INFO
    if not LOGGER.isEnabledFor(level):
        return
    client = {"principal": str(peer.principal), "host": peer.host.removeprefix("/")}
    fact = {"event": event, **client, "listener": peer.listener, **facts}
    if not is_refused:
        LOGGER.log(level, "%s", json.dumps(fact))
        return
    for line in _REFUSALS.take(fact, client, _now_s()):
        LOGGER.log(level, "%s", line)


def report_repeated() -> None:
    """Log how often refusals were repeated, if their minute is over."""
    for line in _REFUSALS.end_span(_now_s()):
        LOGGER.warning("%s", line)


def _now_s() -> float:
    # The time that a line of the log has.
    return LOGGER.makeRecord(LOGGER.name, logging.WARNING, "", 0, "", (), None).created


class Refusals:
    """The refusals of the current minute, and how often each was repeated.

    Thread rule: any thread; `_lock` guards all fields.
    """

    def __init__(self) -> None:
        self._lock = process_lock(self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew, and report nothing of what was counted."""
        self._begin_s = 0.0
        # By the text of the event: how often it came after the first time.
        self._repeated: Counter[str] = Counter()
        # By client: the number of different events.
        self._kinds: Counter[str] = Counter()

    def take(self, fact: Mapping[str, object], client: Mapping[str, str], now_s: float) -> list[str]:
        """Return the lines to log for a refusal: itself if it is new, and those that are due."""
        lines = self.end_span(now_s)
        kind, who = json.dumps(fact), json.dumps(client)
        with self._lock:
            if kind in self._repeated:
                self._repeated[kind] += 1
            elif self._kinds[who] < MOST_KINDS and len(self._repeated) < MOST_OF_ALL:
                self._kinds[who] += 1
                self._repeated[kind] = 0
                lines.append(kind)
            else:
                others = client if self._kinds[who] else {}
                self._repeated[json.dumps({"event": "more refusals", **others})] += 1
        return lines

    def end_span(self, now_s: float) -> list[str]:
        """Begin another minute if it is time; return the lines about what was repeated in the last one."""
        with self._lock:
            if 0 <= now_s - self._begin_s < SPAN_S:
                return []
            ended = self._repeated
            self.forget()
            self._begin_s = now_s
        return [json.dumps({**json.loads(kind), "repeated": count}) for kind, count in ended.items() if count]


_REFUSALS = Refusals()


# ---- changes ---------------------------------------------------------------------------------------------

Subjects = Callable[[Any], Iterator[str]]


def _named(field: str, name: str) -> Subjects:
    return lambda request: (str(getattr(each, name)) for each in getattr(request, field) or ())


def _topics_to_delete(request: DeleteTopicsRequest) -> Iterator[str]:
    return (str(each.name or each.topic_id) for each in request.topics)


def _acls(request: CreateAclsRequest) -> Iterator[str]:
    for each in request.creations:
        what = _rule(each.permission_type, each.operation, each.resource_type, each.resource_pattern_type)
        yield f"{what.format(each.resource_name)} for {each.principal} from {each.host}"


def _acl_filters(request: DeleteAclsRequest) -> Iterator[str]:
    for each in request.filters:
        kinds = (each.resource_type_filter, each.pattern_type_filter)
        what = _rule(each.permission_type, each.operation, *kinds)
        name, whose, host = each.resource_name_filter, each.principal_filter, each.host_filter
        yield f"{what.format(name or 'ANY')} for {whose or 'ANY'} from {host or 'ANY'}"


def _rule(permission: int, operation: int, resource: int, pattern: int) -> str:
    """Return what a rule says, with {} for the name of the resource."""
    is_prefix = pattern == PatternType.PREFIXED
    names = [
        _code(AclPermissionType, permission),
        _code(AclOperation, operation),
        _code(ResourceType, resource),
    ]
    return f"{' '.join(names)}:{{}}{' and what it begins' if is_prefix else ''}"


def _code(kind: type[IntEnum], code: int) -> str:
    return next((each.name for each in kind if each == code), f"code {code}")


def _users(request: AlterUserScramCredentialsRequest) -> Iterator[str]:
    yield from (each.name for each in request.deletions)
    yield from (each.name for each in request.upsertions)


def _quotas(request: AlterClientQuotasRequest) -> Iterator[str]:
    for entry in request.entries:
        yield ", ".join(f"{each.entity_type} {each.entity_name or '<default>'}" for each in entry.entity)


def _token_owner(request: CreateDelegationTokenRequest) -> Iterator[str]:
    if request.owner_principal_name:
        yield f"{request.owner_principal_type}:{request.owner_principal_name}"


def _no_subject(_: Any) -> Iterator[str]:
    """The request names a token only by its password."""
    return iter(())


# The requests that change something, and what each of them is about.
CHANGES: Mapping[type[Any], Subjects] = {
    CreateTopicsRequest: _named("topics", "name"),
    DeleteTopicsRequest: _topics_to_delete,
    CreatePartitionsRequest: _named("topics", "name"),
    DeleteRecordsRequest: _named("topics", "name"),
    AlterConfigsRequest: _named("resources", "resource_name"),
    IncrementalAlterConfigsRequest: _named("resources", "resource_name"),
    AlterPartitionReassignmentsRequest: _named("topics", "name"),
    ElectLeadersRequest: _named("topic_partitions", "topic"),
    UpdateFeaturesRequest: _named("feature_updates", "feature"),
    DeleteGroupsRequest: lambda request: iter(request.groups_names),
    UnregisterBrokerRequest: lambda request: iter([str(request.broker_id)]),
    AddRaftVoterRequest: lambda request: iter([str(request.voter_id)]),
    RemoveRaftVoterRequest: lambda request: iter([str(request.voter_id)]),
    AlterUserScramCredentialsRequest: _users,
    CreateDelegationTokenRequest: _token_owner,
    RenewDelegationTokenRequest: _no_subject,
    ExpireDelegationTokenRequest: _no_subject,
    CreateAclsRequest: _acls,
    DeleteAclsRequest: _acl_filters,
    AlterClientQuotasRequest: _quotas,
}


def audited(request: Any, peer: Peer, done: Future[Any]) -> Future[Any]:
    """Log the change when it is done; returns `done`."""
    if LOGGER.isEnabledFor(logging.INFO) and not getattr(request, "validate_only", False):
        done.add_done_callback(partial(_log_change, request, peer))
    return done


def _log_change(request: Any, peer: Peer, done: Future[Any]) -> None:
    if done.cancelled() or done.exception() is not None:
        return
    errors = sorted({code.name for code in _codes_in(done.result())} - {ErrorCode.none.name})
    # The node that forwards it gets another answer from the controller.
    if errors == [ErrorCode.not_controller.name]:
        return
    about = [each[:LONGEST_NAME] for each in CHANGES[type(request)](request)]
    name = type(request).__name__.removesuffix("Request")
    audit("change", peer, request=name, about=about[:MOST_LISTED], count=len(about), errors=errors)


def _codes_in(message: Any) -> Iterator[ErrorCode]:
    if isinstance(message, ErrorCode):
        yield message
    elif isinstance(message, tuple):
        for each in message:
            yield from _codes_in(each)
    elif isinstance(message, Message):
        for field in fields_of(type(message)):
            yield from _codes_in(getattr(message, field.name))
