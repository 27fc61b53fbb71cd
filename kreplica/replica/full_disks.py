"""FullDisks: tells whoever operates a broker that a disk of it is full.

A full disk fails nothing here: what there is no room for is tried again. So nobody would hear of it but by
writers that wait. Thread rule: any thread may call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kreplica.common.errors import StorageFull
from kreplica.common.types import TopicPartition

LOGGER = logging.getLogger(__name__)
# Between two words about one directory, whose logs are all refused again and again.
TELL_INTERVAL_MS = 30_000


class FullDisks:
    """See the module. `now_ms()`: a clock that never goes back."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._told_at: dict[str, int] = {}

    def refused(self, directory: str, topic_partition: TopicPartition, error: StorageFull) -> None:
        """There was no room in the log directory for what was to be written for the partition."""
        now_ms = self._now_ms()
        told_at = self._told_at.get(directory)
        if told_at is None or now_ms - told_at >= TELL_INTERVAL_MS:
            self._told_at[directory] = now_ms
            LOGGER.warning("%s is full, and writers wait: %s: %s", directory, topic_partition, error)
