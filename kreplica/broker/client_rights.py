"""ClientRights: what one client may do, by the rules of one moment. Belongs to one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.wire import topic_id_of
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.security.acl import CLUSTER_NAME, SUPPORTED, AclOperation, ResourceType
from kreplica.security.peer import Peer
from kreplica.security.standard_authorizer import StandardAuthorizer

_SUPPORTED_BITS = {kind: sum(1 << each for each in operations) for kind, operations in SUPPORTED.items()}


class Denial(NamedTuple):
    """What a client asked for and may not do."""

    operation: AclOperation
    kind: ResourceType
    name: str


class Holder(NamedTuple):
    """For whom, and by which rules, a fetch session was opened. No other client may use it."""

    rules: StandardAuthorizer
    peer: Peer


@dataclass(frozen=True, slots=True)
class VisibleTopics:
    """The topics that `peer` may describe by these rules: `visible(name)`."""

    rules: StandardAuthorizer
    peer: Peer

    def __call__(self, name: str) -> bool:
        return self.rules.authorize(self.peer, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


class ClientRights:
    """Asks the `rules` for `peer`, and keeps the denials.

    `sessions`, `share_sessions`: those of the broker, or empty. `api_version`: the request's.
    `creates_topics`: auto.create.topics.enable.
    """

    def __init__(
        self,
        rules: StandardAuthorizer,
        peer: Peer,
        metadata: ClusterMetadata,
        api_version: int,
        *,
        sessions: Mapping[int, Any],
        share_sessions: Mapping[tuple[str, str], Any],
        creates_topics: bool,
    ) -> None:
        self.rules = rules
        self.peer = peer
        self.metadata = metadata
        self.api_version = api_version
        self.sessions = sessions
        self.share_sessions = share_sessions
        self.creates_topics = creates_topics
        self.denials: list[Denial] = []

    @property
    def holder(self) -> Holder:
        """Who may use a session that this request opens."""
        return Holder(self.rules, self.peer)

    def may(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do that; it is a denial if not."""
        if self.rules.authorize(self.peer, operation, kind, name):
            return True
        self.denials.append(Denial(operation, kind, name))
        return False

    def sees(self, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Return the same for something that the client has not asked for by name: it is no denial."""
        return self.rules.authorize(self.peer, operation, kind, name)

    def topic(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, ResourceType.TOPIC, name)

    def group(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, ResourceType.GROUP, name)

    def cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def transactional_id(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def sees_topic(self, name: str) -> bool:
        return self.sees(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def may_create(self, topic: str) -> bool:
        """Return whether the client may create the topic."""
        if self.sees(AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            return True
        return self.topic(AclOperation.CREATE, topic)

    def may_write_idempotently(self) -> bool:
        """Return whether the client may have a producer id: all may who can write to any topic (KIP-679)."""
        return self.rules.authorize_by_resource_type(
            self.peer, AclOperation.WRITE, ResourceType.TOPIC
        ) or self.cluster(AclOperation.IDEMPOTENT_WRITE)

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return what the client may do: a bit for each operation's code, for an answer."""
        return self.rules.authorized_operations(self.peer, kind, name) & _SUPPORTED_BITS[kind]

    def name_of(self, asked: Any) -> str | None:
        """Return the name of a topic in a request, by its id if it has one; None for an unknown id."""
        if isinstance(asked, str):
            return asked
        topic_id = getattr(asked, "topic_id", None)
        if topic_id is not None:
            return self.metadata.topic_names.get(topic_id_of(topic_id))
        for field in ("name", "topic", "topic_name"):
            name = getattr(asked, field, None)
            if name is not None:
                return str(name)
        return None
