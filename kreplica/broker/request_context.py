"""RequestContext: the client of a request and the request's version. No state; any thread may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kreplica.security.peer import THIS_PROCESS, KafkaPrincipal, Peer

NEWEST_VERSION = (1 << 15) - 1


class FetchQuota(Protocol):
    """What the client of a fetch may still read; RequestQuota implements it."""

    @property
    def most_fetched(self) -> int | None: ...

    def take_fetched(self, size: int) -> bool: ...


class RequestContext(NamedTuple):
    """Where a request came from.

    `peer`: the client, or the client of the node that has forwarded the request.

    `may_create_topic`: asks for the right to create a topic; None: this client may.

    `sees_topic`: asks for the right to describe a topic, now and later; None: this client may describe all.

    `connection`: any object that stands for the connection, whose requests keep their order; None if unknown.

    `quota`: limits what a fetch returns; None for no limit.

    `is_retried`: the request is sent to the next active controller if this node is not, or no longer, the
    active one. Then the handler's future fails with NotController, and is no answer.
    """

    api_version: int
    client_id: str
    peer: Peer
    connection: object = None
    may_create_topic: Callable[[str], bool] | None = None
    quota: FetchQuota | None = None
    sees_topic: Callable[[str], bool] | None = None
    is_retried: bool = False

    @property
    def client_host(self) -> str:
        """The client's address after a slash, as Kafka shows it; "" for callers in this process."""
        return self.peer.host

    @property
    def principal(self) -> KafkaPrincipal:
        return self.peer.principal


IN_PROCESS = RequestContext(NEWEST_VERSION, "consumer", THIS_PROCESS)
