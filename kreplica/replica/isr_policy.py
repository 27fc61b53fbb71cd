"""When a follower counts as in sync: by time, as Kafka does since 0.9, or by messages, as it did before
(KIP-16).

A policy is immutable and may be shared by all partitions of a broker.
"""

from __future__ import annotations

from typing import Protocol

from kreplica.replica.replica import Replica
from kreplica.replica.replica_config import ReplicaConfig

LAG_MAX_MESSAGES = 4_000
LAG_TIME_MAX_MS = 30_000


class IsrPolicy(Protocol):
    """`replica_lag_time_max_ms`: the longest lag, in ms."""

    @property
    def replica_lag_time_max_ms(self) -> int: ...

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        """Whether the follower may stay in the ISR of a leader whose log ends at `leader_end_offset`."""
        ...


class LagByTime:
    """replica.lag.time.max.ms alone: in sync who had all of the log within that time (30 s since KIP-537)."""

    __slots__ = ("replica_lag_time_max_ms",)

    def __init__(self, replica_lag_time_max_ms: int = LAG_TIME_MAX_MS) -> None:
        self.replica_lag_time_max_ms = replica_lag_time_max_ms

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        return replica.is_caught_up(leader_end_offset, now_ms, self.replica_lag_time_max_ms)


class LagByMessages:
    """replica.lag.max.messages, and replica.lag.time.max.ms for a follower that has stopped fetching.

    Out is who lags by `replica_lag_max_messages` or more: a burst of so many throws every follower out.
    """

    __slots__ = ("replica_lag_max_messages", "replica_lag_time_max_ms")

    def __init__(
        self,
        replica_lag_max_messages: int = LAG_MAX_MESSAGES,
        replica_lag_time_max_ms: int = LAG_TIME_MAX_MS,
    ) -> None:
        self.replica_lag_max_messages = replica_lag_max_messages
        self.replica_lag_time_max_ms = replica_lag_time_max_ms

    def is_caught_up(self, replica: Replica, leader_end_offset: int, now_ms: int) -> bool:
        if replica.log_end_offset == leader_end_offset:
            return True
        # One that has not fetched in this epoch has told no offset; it has as long as one that stopped.
        heard_ms = max(replica.last_fetch_time_ms, replica.last_caught_up_time_ms)
        if now_ms - heard_ms > self.replica_lag_time_max_ms:
            return False
        return (
            replica.log_end_offset < 0
            or leader_end_offset - replica.log_end_offset < self.replica_lag_max_messages
        )


def isr_policy_of(config: ReplicaConfig) -> IsrPolicy:
    """The rule that the broker is configured for."""
    if config.replica_lag_max_messages is None:
        return LagByTime(config.replica_lag_time_max_ms)
    return LagByMessages(config.replica_lag_max_messages, config.replica_lag_time_max_ms)
