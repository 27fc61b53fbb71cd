"""RequestContext: who asked, and in which version of the request. No state; any thread may look."""

from __future__ import annotations

from typing import NamedTuple

NEWEST_VERSION = (1 << 15) - 1


class RequestContext(NamedTuple):
    """`client_host`: its address after a slash, as Kafka shows it; "" for who asks from this process.

    `connection`: any object that stands for the connection, whose requests stay in their order; None where
    it is not known.
    """

    api_version: int
    client_id: str
    client_host: str
    connection: object = None


IN_PROCESS = RequestContext(NEWEST_VERSION, "consumer", "")
