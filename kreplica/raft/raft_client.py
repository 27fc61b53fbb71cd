"""The ports of the quorum's client: the calls that a listener gets and the values in them.

A listener is called in the client's loop and must not block. An exception from it stops the node, because a
metadata image that misses a record is useless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kreplica.raft.batch_reader import BatchReader
    from kreplica.raft.snapshot_reader import RecordsSnapshotReader


class LeaderAndEpoch(NamedTuple):
    """The leader of an epoch, as far as this node knows."""

    leader_id: int | None
    epoch: int


class RaftListener(Protocol):
    """Receives the committed log, in order."""

    def handle_commit(self, reader: BatchReader) -> None:
        """Take committed batches, in order, each once."""
        ...

    def handle_load_snapshot(self, reader: RecordsSnapshotReader) -> None:
        """Replace everything received so far by a snapshot."""
        ...

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Note a new leader or epoch. The leader itself is notified after its listener got all earlier
        records.
        """
        ...

    def begin_shutdown(self) -> None:
        """Note that the client is closing: no further calls follow."""
        ...
