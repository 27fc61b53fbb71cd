"""RequestContext: the client of a request and the request's version. No state; any thread may read."""

from __future__ import annotations

from typing import NamedTuple

NEWEST_VERSION = (1 << 15) - 1


class RequestContext(NamedTuple):
    """Where a request came from.

    `client_host`: the client's address after a slash, as Kafka shows it; "" for callers in this process.

    `connection`: any object that stands for the connection, whose requests keep their order; None if unknown.
    """

    api_version: int
    client_id: str
    client_host: str
    connection: object = None


IN_PROCESS = RequestContext(NEWEST_VERSION, "consumer", "")
