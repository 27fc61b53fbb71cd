"""SocketServerConfig: the limits of a node's listeners, named as Kafka's with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass

from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import Settings, int32, int64, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketServerConfig(Settings):
    """Times are in ms, sizes in bytes. Most of these have no limit by default in Kafka.

    `queued_max_request_bytes`: see MemoryPool. Raises InvalidConfig.
    """

    socket_request_max_bytes: int = setting(100 << 20, int32(1), "Maximum size of a request.")
    max_connections: int = setting(1_000, int32(1), "Maximum number of connections of a listener.")
    max_connections_per_ip: int = setting(500, int32(1), "Maximum number of connections from one address.")
    queued_max_request_bytes: int = setting(
        256 << 20, int64(1), "Maximum memory for the requests of all connections of a listener."
    )
    connections_max_idle_ms: int = setting(
        600_000,
        int64(1),
        "Close a connection after this long without a request, with an incomplete request, or with an answer"
        " that is not read.",
    )
    max_in_flight_requests: int = setting(
        64,
        int32(1),
        "Maximum number of requests in flight of a connection; then it is not read.",
        is_ours=True,
    )
    max_in_flight_bytes: int = setting(
        16 << 20,
        int64(1),
        "Maximum size of requests in flight of a connection; then it is not read.",
        is_ours=True,
    )
    max_unsent_bytes: int = setting(
        1 << 20,
        int64(1),
        "Maximum size of unread answers of a connection; then it is not read.",
        is_ours=True,
    )

    def check_together(self) -> None:
        """Raise InvalidConfig if one request may take more memory than all together."""
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes={self.queued_max_request_bytes} is below"
                f" socket.request.max.bytes={self.socket_request_max_bytes}: one request may take that much"
            )
