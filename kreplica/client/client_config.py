"""Settings of a client, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Times in ms, sizes in bytes. The back-off is below Kafka's 100 ms, because failover is faster here.

    `request_timeout_ms`: how long to wait for one response. `delivery_timeout_ms`, `default_api_timeout_ms`:
    how long to retry a batch, or anything else. `leader_check_ms`: after this long without a response, ask
    whether another broker leads by now; a hanging leader closes no connection. `max_in_flight`: concurrent
    batches for one partition; a broker remembers a producer's last five.
    """

    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 20
    leader_check_ms: int = 200
    max_in_flight: int = 5
    max_request_size: int = 1 << 20
    fetch_max_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
