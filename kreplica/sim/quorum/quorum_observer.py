"""QuorumObserver: the checker of a random run, which also counts events and knows the pending appends.

Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import EpochState
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.sim.quorum.node_view import NodeView
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.quorum_node import QuorumNode
from kreplica.sim.quorum.sim_quorum import SimQuorum

# The name to count when a member enters a state, by the state's name.
ENTERED = {"leader": "elected", "prospective": "pre-votes", "candidate": "candidates"}


@dataclass(frozen=True, slots=True)
class _Pending:
    """A pending append: the node's life and the epoch in which it was made."""

    node: QuorumNode
    epoch: int
    offset: int
    value: str


class QuorumObserver(QuorumChecker):
    """Checks and counts a run, in `counts`."""

    def __init__(self, quorum: SimQuorum, counts: Counter[str]) -> None:
        self.counts = counts
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._entered: dict[int, EpochState] = {}
        self._ends: dict[int, int] = {}
        super().__init__(quorum)

    # ---- appends ------------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[str]:
        """The values of pending appends."""
        return [waiting.value for waiting in self._pending.values()]

    def appended(self, node: QuorumNode, epoch: int, offset: int, value: str) -> None:
        """Record that a leader has accepted a value."""
        self._pending[node.node_id, offset] = _Pending(node, epoch, offset, value)

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None:
        super().committed(node, offset, epoch, value)
        waiting = self._pending.pop((node.node_id, offset), None)
        if waiting is None or waiting.node is not node:
            return
        if (waiting.epoch, waiting.value) == (epoch, value):
            self.acked[offset] = value
            self.counts["acknowledged"] += 1
        else:
            self.counts["rejected"] += 1

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None:
        super().leader_told(node, leader)
        for key, waiting in list(self._pending.items()):
            if waiting.node is node and leader.epoch > waiting.epoch:
                del self._pending[key]
                self.counts["rejected"] += 1

    def forget(self, node_id: int) -> None:
        """Drop the node's pending appends: it is about to end, so they may be committed or not."""
        for key in [key for key in self._pending if key[0] == node_id]:
            del self._pending[key]

    # ---- counts -------------------------------------------------------------------------------------------

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None:
        super().loaded(node, snapshot_id, values)
        self.counts["snapshots installed"] += 1

    def _check_state(self, view: NodeView) -> None:
        super()._check_state(view)
        assert view.node is not None
        self.counts["truncations"] += view.end < self._ends.get(view.node_id, 0)
        self._ends[view.node_id] = view.end
        if view.start > 0 and not self.counts["logs begun anew"]:
            self.counts["logs begun anew"] += 1
        state = view.node.client.quorum.state
        if self._entered.get(view.node_id) is not state:
            self._entered[view.node_id] = state
            self.counts[ENTERED.get(state.NAME, state.NAME)] += 1
