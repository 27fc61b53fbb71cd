"""The settings of a client, under Kafka's names with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Times in ms, sizes in bytes. The back-off is below Kafka's 100 ms, for leaders come back sooner here.

    `request_timeout_ms`: so long one answer is waited for. `delivery_timeout_ms`, `default_api_timeout_ms`:
    so long a batch, anything else is tried again. `leader_check_ms`: after so long without an answer it is
    asked whether another broker leads by now; one that hangs closes no connection. `max_in_flight`: batches
    of one partition on their way at once; a broker remembers the last five of a producer.
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
