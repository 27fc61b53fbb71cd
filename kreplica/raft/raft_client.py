"""The ports of the quorum's client: what it tells a listener, and what a listener reads.

A listener is called in the client's loop and must not block. What it raises stops the node: a metadata image
that has missed a record is worth nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kreplica.raft.batch_reader import BatchReader
    from kreplica.raft.snapshot_reader import RecordsSnapshotReader


class LeaderAndEpoch(NamedTuple):
    """Who leads in an epoch, as far as this node knows."""

    leader_id: int | None
    epoch: int

    def is_leader(self, node_id: int) -> bool:
        return self.leader_id == node_id


class RaftListener(Protocol):
    """Follows the committed log; see the module."""

    def handle_commit(self, reader: BatchReader) -> None:
        """Committed batches, in order, each once."""
        ...

    def handle_load_snapshot(self, reader: RecordsSnapshotReader) -> None:
        """A snapshot takes the place of all that came before it."""
        ...

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Another leader or epoch. To the leader itself only once its listener has all from before."""
        ...

    def begin_shutdown(self) -> None:
        """The client is closing: nothing more will come."""
        ...
