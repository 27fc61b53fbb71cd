"""Gatekeeper: lets a client's request pass to its handler as far as the cluster's ACLs allow it.

    RequestChannel ──▶ Node.handle ──▶ Gatekeeper ──what is allowed──▶ handler
                                            └◀──── answer, completed ──────┘

The rules are a snapshot that never changes. A change of the metadata makes another one, after all records of
a batch, so no request sees half of a change (KAFKA-14214). This process itself is above the rules. Requests
of others are refused until the metadata has been read for the first time, but for super users: the nodes of
the quorum have to be among them, since without a quorum nothing can be read.

What a connection's client was allowed to write and read is noted in its Grants, for the native lanes.
Ownership: the node's. Thread rule: any thread; the publisher's methods belong to the quorum's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kreplica._core.grants import Grants
from kreplica._core.produce_lane import wire_name
from kreplica._core.server_connection import ServerConnection
from kreplica.broker.audit import audit
from kreplica.broker.client_rights import ClientRights, Denial, VisibleTopics
from kreplica.broker.node_config import AuthorizerConfig
from kreplica.broker.request_context import RequestContext
from kreplica.broker.rights_table import ROWS
from kreplica.common.errors import BrokerNotAvailable, ClusterAuthorizationFailed, KreplicaError
from kreplica.common.future import Future, failed, resolved, then
from kreplica.common.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kreplica.common.messages.data import FetchRequest, ProduceRequest
from kreplica.common.messages.streams_groups import StreamsGroupHeartbeatRequest
from kreplica.common.wire import topic_id_of
from kreplica.controller.acl_control import binding_of
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import AccessControlEntryRecord
from kreplica.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from kreplica.security.peer import THIS_PROCESS, Peer
from kreplica.security.standard_authorizer import StandardAuthorizer

# The bytes behind a topic's name in `wire_name`.
PARTITION_BYTES = 5
MOST_DENIALS_LOGGED = 10

Handle = Callable[[Any, RequestContext], Future[Any]]


class Gatekeeper:
    """The gatekeeper of one node. Implements `kreplica.metadata.metadata_loader.MetadataPublisher`.

    `metadata()`: what the node knows. `sessions`, `share_sessions`: those of its broker, set by the node.
    """

    def __init__(
        self, config: AuthorizerConfig, metadata: Callable[[], ClusterMetadata], *, creates_topics: bool
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._creates_topics = creates_topics
        self._acls: Mapping[Any, AccessControlEntryRecord] | None = None
        self.sessions: Mapping[int, Any] = {}
        self.share_sessions: Mapping[tuple[str, str], Any] = {}
        self.rules = self._made(())
        # Resolved with the first rules of the metadata.
        self.knows_rules: Future[None] = Future()

    # ---- rules --------------------------------------------------------------------------------------------

    def on_metadata_update(
        self,
        delta: MetadataDelta,  # noqa: ARG002
        metadata: ClusterMetadata,
        applied: OffsetAndEpoch,  # noqa: ARG002
    ) -> None:
        """Take over changed ACLs."""
        if metadata.acls is not self._acls:
            self.rules = self._made(tuple(metadata.acls.values()))
            self._acls = metadata.acls
        if not self.knows_rules.done():
            self.knows_rules.set_result(None)

    def on_leader_change(self, leader: Any) -> None:
        """Do nothing: rights do not depend on the leader of the quorum."""

    def _made(self, records: tuple[AccessControlEntryRecord, ...]) -> StandardAuthorizer:
        return StandardAuthorizer(
            map(binding_of, records),
            self._config.principals_above_rules,
            allow_everyone_if_no_acl_found=self._config.allow_everyone_if_no_acl_found,
        )

    # ---- requests -----------------------------------------------------------------------------------------

    def may_act_as_node(self, peer: Peer) -> bool:
        """Return whether the client may do what nodes do, such as forwarding the requests of others."""
        return peer is THIS_PROCESS or self.rules.authorize(
            peer, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def admit(self, request: Any, context: RequestContext, handle: Handle) -> Future[Any]:
        """Pass the request, or what is allowed of it, to `handle`; return the completed answer.

        The future fails with BrokerNotAvailable before the rules are known.
        """
        peer = context.peer
        if self._acls is None and not self.may_act_as_node(peer):
            return failed(BrokerNotAvailable("the access rules have not been read yet"))
        row = ROWS.get(type(request))
        if row is None:
            return failed(ClusterAuthorizationFailed(f"no right is known for {type(request).__name__}"))
        client = ClientRights(
            self.rules,
            peer,
            self._metadata(),
            context.api_version,
            sessions=self.sessions,
            share_sessions=self.share_sessions,
            creates_topics=self._creates_topics,
        )
        try:
            verdict = row(client, request)
        except KreplicaError as error:
            return failed(error)
        finally:
            if client.denials:
                _log_denials(peer, request, client.denials)
        if verdict.request is None:
            return resolved(verdict.answer)
        if not client.denials:
            self._grant(context.connection, client.rules, request)
        if type(request) is StreamsGroupHeartbeatRequest:
            context = context._replace(may_create_topic=client.may_create)
        elif type(request) is ConsumerGroupHeartbeatRequest and peer is not THIS_PROCESS:
            context = context._replace(sees_topic=VisibleTopics(client.rules, peer))
        made = handle(verdict.request, context)
        return made if verdict.finish is None else then(made, verdict.finish)

    def _grant(self, connection: object, rules: StandardAuthorizer, request: Any) -> None:
        """Note what was allowed, for the native lanes."""
        kind = type(request)
        if kind not in (ProduceRequest, FetchRequest) or not isinstance(connection, ServerConnection):
            return
        grants = connection.grants
        if grants is None or grants.rules is not rules:
            grants = connection.grants = Grants(rules)
        if kind is ProduceRequest:
            for topic in request.topic_data:
                grants.add(grants.writable, _wire_name(topic.name))
            if request.transactional_id is not None:
                grants.add(grants.transactional_ids, request.transactional_id.encode())
        elif request.replica_state.replica_id >= 0:
            grants.is_node = True
        else:
            names = self._metadata().topic_names
            for topic in request.topics:
                topic_id = topic_id_of(topic.topic_id)
                if topic_id in names:
                    grants.add(grants.readable, topic_id.raw)
                    grants.add(grants.readable, _wire_name(names[topic_id]))


def _wire_name(topic: str) -> bytes:
    return wire_name(topic, 0)[:-PARTITION_BYTES]


def _log_denials(peer: Peer, request: Any, denials: list[Denial]) -> None:
    different = list(dict.fromkeys(denials))
    denied = [
        f"{each.operation.name} {each.kind.name}:{each.name[:80]}" for each in different[:MOST_DENIALS_LOGGED]
    ]
    name = type(request).__name__.removesuffix("Request")
    audit("denied", peer, is_refused=True, request=name, denied=denied, count=len(different))
