"""The rights that requests need: one table, with a row for each API.

A row gets the client's rights and a request. It returns the part of the request that is allowed, which the
handler gets, and what has to be added to the handler's answer; or the whole answer, if nothing is left. So
handlers know nothing of rights. An API without a row is denied. Rights come before existence: to a client
without rights a topic that exists looks like one that does not. Facts: Kafka's KafkaApis and ControllerApis.

No state; any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kreplica.broker.api_versions import response_type
from kreplica.broker.blank_answers import blank, refused_element, refused_whole
from kreplica.broker.client_rights import ClientRights
from kreplica.broker.controller_apis import REFUSALS
from kreplica.common.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KreplicaError,
    TopicAuthorizationFailed,
)
from kreplica.common.message import replace, structure_of
from kreplica.security.acl import AclOperation, ResourceType

READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DELETE, ALTER, DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

Finish = Callable[[Any], Any]
Error = type[KreplicaError]


class Verdict(NamedTuple):
    """What is left of a request, and what completes the handler's answer. `answer`: if nothing is left."""

    request: Any
    finish: Finish | None = None
    answer: Any = None


Row = Callable[[ClientRights, Any], Verdict]
# Whether a client may have this element of a request.
May = Callable[[ClientRights, Any], bool]


# ---- kinds of rows -----------------------------------------------------------------------------------------


def free(_: ClientRights, request: Any) -> Verdict:
    """The row of a request that everyone may send."""
    return Verdict(request)


def whole(may: May, error: Error) -> Row:
    """Return the row of a request that is allowed or refused as a whole."""

    def row(client: ClientRights, request: Any) -> Verdict:
        if may(client, request):
            return Verdict(request)
        refuse: Callable[[Any, KreplicaError], Any] = REFUSALS.get(type(request)) or refused_whole
        return Verdict(None, answer=refuse(request, error()))

    return row


def each(asked: str, may: May, error: Error, answers: str) -> Row:
    """Return the row of a request whose elements are allowed one by one.

    `asked`, `answers`: the lists in the request and in the answer.
    """

    def row(client: ClientRights, request: Any) -> Verdict:
        elements = getattr(request, asked)
        if elements is None:
            return Verdict(request)
        refused = [element for element in elements if not may(client, element)]
        kind = structure_of(response_of(request), answers)
        return without(request, asked, refused, answers, [_refused(kind, each, error()) for each in refused])

    return row


def without(request: Any, asked: str, refused: list[Any], answers: str, refusals: list[Any]) -> Verdict:
    """Return the verdict on a request from which these elements are taken, with the answers to them."""
    if not refused:
        return Verdict(request)
    gone = set(map(id, refused))
    left = tuple(element for element in getattr(request, asked) if id(element) not in gone)
    if not left:
        # An empty list may mean everything.
        return Verdict(None, answer=blank(response_of(request), **{answers: tuple(refusals)}))
    return Verdict(replace(request, **{asked: left}), partial(_with_more, answers, refusals))


def _with_more(field: str, more: Iterable[Any], response: Any) -> Any:
    return replace(response, **{field: (*getattr(response, field), *more)})


def all_of(*rows: Row) -> Row:
    """Return the row that asks these one after the other."""

    def row(client: ClientRights, request: Any) -> Verdict:
        finishes: list[Finish] = []
        for one in rows:
            verdict = one(client, request)
            if verdict.request is None:
                return Verdict(None, answer=_finished(finishes, verdict.answer))
            request = verdict.request
            if verdict.finish is not None:
                finishes.insert(0, verdict.finish)
        return Verdict(request, partial(_finished, finishes) if finishes else None)

    return row


def _finished(finishes: Iterable[Finish], response: Any) -> Any:
    for finish in finishes:
        response = finish(response)
    return response


def shown(answers: str, show: Callable[[ClientRights, Any, Any], Any]) -> Row:
    """Return the row that shows a client some elements of an answer only.

    `show(client, request, element)` returns the element as the client may see it, or None.
    """

    def row(client: ClientRights, request: Any) -> Verdict:
        def finish(response: Any) -> Any:
            found = (show(client, request, element) for element in getattr(response, answers) or ())
            return replace(response, **{answers: tuple(each for each in found if each is not None)})

        return Verdict(request, finish)

    return row


def response_of(request: Any) -> type[Any]:
    """Return the class of the answer to a request."""
    return response_type(request.__api_key__, request.__version__)


def _refused(kind: type[Any], asked: Any, error: KreplicaError) -> Any:
    if not isinstance(asked, str):
        return refused_element(kind, asked, error)
    refusal = refused_element(kind, None, error)
    name = "transactional_id" if hasattr(refusal, "transactional_id") else "group_id"
    return replace(refusal, **{name: asked})


# ---- who may have an element -------------------------------------------------------------------------------


def topic(operation: AclOperation) -> May:
    """A topic, by its name or id. An unknown id is no secret: the handler refuses it."""

    def may(client: ClientRights, asked: Any) -> bool:
        name = client.name_of(asked)
        return name is None or client.topic(operation, name)

    return may


def group(operation: AclOperation) -> May:
    """A group: a string, or what has a field `group_id`."""
    return lambda client, asked: client.group(
        operation, asked if isinstance(asked, str) else asked.group_id or ""
    )


def cluster(operation: AclOperation) -> May:
    return lambda client, _: client.cluster(operation)


def transactional_id(operation: AclOperation) -> May:
    """A transactional id: a string, or what has a field `transactional_id`."""
    return lambda client, asked: client.transactional_id(
        operation, asked if isinstance(asked, str) else asked.transactional_id or ""
    )


def topics(operation: AclOperation, asked: str = "topics", answers: str = "topics") -> Row:
    """The row of a request that is allowed topic by topic."""
    return each(asked, topic(operation), TopicAuthorizationFailed, answers)


def of_group(operation: AclOperation) -> Row:
    """The row of a request about one group."""
    return whole(group(operation), GroupAuthorizationFailed)


def of_groups(operation: AclOperation, asked: str, answers: str) -> Row:
    return each(asked, group(operation), GroupAuthorizationFailed, answers)


def of_cluster(operation: AclOperation) -> Row:
    return whole(cluster(operation), ClusterAuthorizationFailed)


def with_operations(kind: ResourceType, id_field: str) -> Callable[[ClientRights, Any, Any], Any]:
    """Show a client what it may do with each group, if it asks."""

    def show(client: ClientRights, request: Any, element: Any) -> Any:
        if not request.include_authorized_operations or element.error_code:
            return element
        return replace(element, authorized_operations=client.operations(kind, getattr(element, id_field)))

    return show
