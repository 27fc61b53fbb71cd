"""FullDisk: what a member of the quorum does where the disk of its metadata log has no room.

A full disk is no failure: what there is no room for is not done, nobody is told that it was, and it is tried
again. So a vote that cannot be put on disk is not given, a follower fetches again what it could not append,
and a leader gives its epoch up, since another voter may have room. What was scheduled and not appended is
lost with the epoch, as whoever scheduled it is told. A disk that fails to flush what it has taken is another
matter: the log is offline then, and the member ends.

Thread rule: the client's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kreplica.common.errors import StorageFull
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.replicated_log import ReplicatedLog

LOGGER = logging.getLogger(__name__)
# Between two words about it, however often something is refused.
TELL_INTERVAL_MS = 30_000
# Most times that a member which had to give up an epoch waits twice as long before it tries to lead again.
MOST_DOUBLINGS = 6


class FullDisk:
    """Of the member `node_id`, which keeps `log`."""

    __slots__ = ("_config", "_given_up", "_log", "_node_id", "_now_ms", "_told_ms")

    def __init__(
        self, node_id: int, log: ReplicatedLog, config: RaftConfig, now_ms: Callable[[], int]
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._config = config
        self._now_ms = now_ms
        self._told_ms: int | None = None
        # The epochs in a row that this member led and could append nothing in.
        self._given_up = 0

    @property
    def retry_ms(self) -> int:
        """After how many ms what was refused is tried again."""
        return self._config.quorum_election_timeout_ms

    def refused(self, error: StorageFull) -> None:
        """There was no room for something. Raises the error where it is the end of the log, too."""
        if self._log.is_offline:
            raise error
        now_ms = self._now_ms()
        if self._told_ms is None or now_ms - self._told_ms >= TELL_INTERVAL_MS:
            self._told_ms = now_ms
            LOGGER.warning(
                "node %d: the disk of the metadata log is full, and the quorum waits for room or for another"
                " voter: %s",
                self._node_id,
                error,
            )

    def gave_up_an_epoch(self) -> int:
        """This member has led and had no room; for how many ms it should leave the next epochs to others."""
        self._given_up += 1
        return self._config.quorum_election_timeout_ms << min(self._given_up - 1, MOST_DOUBLINGS)

    def took_an_append(self) -> None:
        """What this member appended as the leader went through."""
        self._given_up = 0
