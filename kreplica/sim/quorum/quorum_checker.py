"""QuorumChecker: checks the invariants of a quorum alone, and of its listeners' notifications, after every
event. QuorumObserver also counts what happens in a random run, and knows the pending appends.

Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kreplica.common.dataclass import dataclass
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import EpochState, LeaderState
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message
from kreplica.sim.quorum.quorum_log_checker import NodeView, QuorumLogChecker, touches_quorum
from kreplica.sim.quorum.sim_quorum import QuorumNode, SimQuorum, Witness
from kreplica.sim.scheduler import SimEvent

# How much later than it should a leader may resign, because a slow disk delays it.
SLACK_MS = 700


class QuorumChecker(QuorumLogChecker, Witness):
    """Checks `quorum`: its scheduler's events, its network, its listeners."""

    def __init__(self, quorum: SimQuorum) -> None:
        super().__init__(quorum.machines)
        self.quorum = quorum
        # Committed values by offset, and those of them that were acknowledged.
        self.values: dict[int, str] = {}
        self.acked: dict[int, str] = {}
        quorum.witness = self
        self._failure: Exception | None = None
        # When a node last fetched from a leader: (leader, node) -> ms.
        self._fetched_at: dict[tuple[int, int], int] = {}
        # By leader: its voters, and since when it leads them without a pause.
        self._leads_since: dict[int, tuple[set[int], int]] = {}
        quorum.network.tap = self._heard
        quorum.scheduler.after_event = self._after

    def _after(self, event: SimEvent) -> None:
        if not touches_quorum(event):
            if self._failure is not None:
                raise self._failure
        elif event.node_id in self.views:
            self.check((event.node_id,))
        else:
            self.check()

    def check(self, node_ids: Iterable[int] | None = None) -> None:
        """Check these members, or all, and the messages heard. Raises InvariantViolated."""
        if self._failure is not None:
            raise self._failure
        super().check(node_ids)
        for node_id in self.quorum.machines if node_ids is None else node_ids:
            self._check_quorum(node_id)

    def _check_quorum(self, node_id: int) -> None:
        """Check that a leader resigns if a majority does not fetch for too long (KAFKA-15489).

        It must have the role of a controller, and so must all voters that were added.
        """
        machine = self.quorum.machines[node_id]
        state = self.quorum.client(node_id).quorum.state if machine.is_alive else None
        if not isinstance(state, LeaderState) or machine.is_paused:
            # A paused node notices nothing, and gets its time when it resumes.
            self._leads_since.pop(node_id, None)
            return
        now_ms = self.quorum.now_ms()
        voters = set(state.voters)
        added = voters - self.quorum.setup.voters.voter_ids
        without = self.quorum.setup.brokers & {node_id, *added}
        self._require(
            not without,
            "RoleOfController",
            f"node {node_id} leads the voters {sorted(voters)}, but {sorted(without)} are not controllers",
        )
        of, since = self._leads_since.get(node_id, (voters, now_ms))
        if of != voters:
            # The voters have changed, and have a whole timeout to fetch.
            since = now_ms
        self._leads_since[node_id] = voters, since
        heard = sorted(max(self._fetched_at.get((node_id, each), 0), since) for each in voters - {node_id})
        # The number of fetching voters needed for a majority; a leader that is a voter counts itself.
        wanted = len(voters) // 2 + 1 - (node_id in voters)
        if wanted == 0:
            return
        silent_ms = now_ms - heard[-wanted]
        self._require(
            silent_ms <= self.quorum.setup.config.check_quorum_timeout_ms + SLACK_MS,
            "CheckQuorum",
            f"node {node_id} leads epoch {state.epoch}, and no majority fetches for {silent_ms} ms",
        )

    def _heard(self, what: str, message: Message) -> None:
        if what == "taken" and message.is_request and message.name == "Fetch":
            self._fetched_at[message.receiver, message.sender_id] = self.quorum.now_ms()
        # The sender would take an exception raised here for its own, so it is raised after the event.
        try:
            self.heard(what, message)
        except InvariantViolated as violated:
            self._failure = self._failure or violated

    # ---- listeners ----------------------------------------------------------------------------------------

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None:
        """Check a committed value that a listener received."""
        known = self.values.setdefault(offset, value)
        self._require(
            known == value,
            "ConsistentCommittedData",
            f"node {node.node_id} applies {value!r} of epoch {epoch} at {offset}, others {known!r}",
        )

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None:
        """Check a snapshot that a listener has loaded: it must hold what is committed below its end."""
        expected = [self.values[at] for at in sorted(self.values) if at < snapshot_id.offset]
        self._require(
            values == expected,
            "ConsistentCommittedData",
            f"the snapshot {snapshot_id} of node {node.node_id} holds {values[-5:]}, not {expected[-5:]}",
        )

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None:
        """Check a leader that a listener was notified of."""
        if leader.leader_id is None:
            return
        self._claim(node.node_id, leader.leader_id, leader.epoch)
        if leader.leader_id == node.node_id:
            state = node.client.quorum.state
            self._require(
                isinstance(state, LeaderState) and state.epoch == leader.epoch,
                "NoIllegalState",
                f"node {node.node_id} announces that it leads epoch {leader.epoch}, and is {state!r}",
            )
            assert isinstance(state, LeaderState)
            self._require(
                node.applied.offset > state.epoch_start_offset,
                "LeaderCompleteness",
                f"node {node.node_id} is notified that it leads before it has all earlier records",
            )

    # ---- at the end ---------------------------------------------------------------------------------------

    def missing(self, node_ids: Iterable[int]) -> list[str]:
        """Return what these members lack of what is committed, as sentences."""
        expected = [self.values[at] for at in sorted(self.values)]
        said = []
        for node_id in node_ids:
            node = self.views[node_id].node
            if node is None:
                said.append(f"node {node_id} is down")
                continue
            assert isinstance(node, QuorumNode)
            if node.values != expected:
                said.append(f"node {node_id} has {len(node.values)} of {len(expected)} values")
        lost = [value for offset, value in self.acked.items() if self.values.get(offset) != value]
        if lost:
            said.append(f"acknowledged and lost: {lost[:5]}")
        return said


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
        """The values of pending appends. One of a node that ended since may be committed or not."""
        machines = self.quorum.machines
        return [
            each.value for each in self._pending.values() if machines[each.node.node_id].program is each.node
        ]

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
