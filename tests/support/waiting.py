"""The minimum of a broker that waiting produce requests need."""

from __future__ import annotations

from typing import Any

from kreplica._core.leader_state import LeaderState, Term
from kreplica._core.purgatory import Watermark
from kreplica.common.metrics import MetricRegistry
from kreplica.common.types import TopicPartition
from kreplica.replica.delayed_requests import DelayedRequests
from kreplica.runtime.clock import SystemClock


class Led(LeaderState):
    """The minimum of a partition that waiting produce requests need: it leads, with enough replicas in
    sync."""

    is_leader = has_enough_in_sync = True
    is_offline = False

    def __init__(self, key: int) -> None:
        self.key = key
        self.topic_partition = TopicPartition("t", key)
        self.watermark = Watermark()
        self.term = Term(1, 0, watermark=self.watermark)
        self.fetch_waiters = {}


class NoLoop:
    """A loop in which no deadline ever expires."""

    def post(self, task: object) -> None: ...

    def post_later(self, task: object, delay_ms: int) -> Any: ...

    def about_to_wait(self) -> None: ...


def delayed_requests() -> DelayedRequests:
    """Return requests that wait until they are completed or failed."""
    return DelayedRequests(SystemClock(), NoLoop(), MetricRegistry())
