"""FullDisk: how a member of the quorum handles a metadata log whose disk is full.

A full disk is not a failure: the operation is not done, its caller is notified, and it is retried later. A
vote that cannot be written is not granted. A follower fetches again what it could not append. A leader
resigns, since another voter may have room; records that were scheduled but not appended are lost with the
epoch, and their callers are notified. A disk that fails to flush is a different case: the log goes offline
and the member stops.

Thread rule: the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kreplica.common.errors import StorageFull
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.raft_config import RaftConfig

LOGGER = logging.getLogger(__name__)
# Least time between two log lines about a full disk.
LOG_INTERVAL_MS = 30_000
# How often at most the wait of a member that had to resign is doubled before it tries to lead again.
MOST_DOUBLINGS = 6


class FullDisk:
    """Tracks the full disk of the member `node_id`, whose metadata log is `log`."""

    def __init__(
        self, node_id: int, log: KafkaMetadataLog, config: RaftConfig, now_ms: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._config = config
        self._now_ms = now_ms
        self._logged_ms: int | None = None
        # How many epochs in a row this member has led without being able to append.
        self._given_up = 0

    @property
    def retry_ms(self) -> int:
        """The delay in ms after which an operation that found no room is retried."""
        return self._config.quorum_election_timeout_ms

    def refused(self, error: StorageFull) -> None:
        """Log that an operation found no room. Raises the error again if the log has gone offline."""
        if self._log.is_offline:
            raise error
        now_ms = self._now_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= LOG_INTERVAL_MS:
            self._logged_ms = now_ms
            LOGGER.warning(
                "node %d: the disk of the metadata log is full. The quorum goes on when the disk has"
                " room or another voter leads: %s",
                self._node_id,
                error,
            )

    def gave_up_an_epoch(self) -> int:
        """Count a leadership that ended without room. Returns for how many ms this member should not be
        elected.
        """
        self._given_up += 1
        return self._config.quorum_election_timeout_ms << min(self._given_up - 1, MOST_DOUBLINGS)

    def took_an_append(self) -> None:
        """Note that this member has appended as the leader: the disk has room again."""
        self._given_up = 0
