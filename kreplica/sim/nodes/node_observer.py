"""NodeObserver: counts what happens in a random run of whole nodes, from messages and committed metadata.

It only observes. The counts show whether runs exercise what they are meant to. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter

from kio.schema.alter_partition.v3.response import AlterPartitionResponse

from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.metadata.metadata_delta import MetadataDelta
from kreplica.raft.epoch_state import EpochState
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster

# All runs together must show each of these, or they prove nothing.
EXPECTED = (
    *("acked", "sent plainly", "polled", "values promised to producers", "values given to consumers"),
    *("topics created", "topics deleted", "partitions added", "reassignments", "config changes"),
    *("records deleted", "voters added", "voters removed"),
    *("transactions committed", "transactions aborted", "read as committed", "aborted records left out"),
    *("preferred elections", "unclean elections asked for", "reassignments cancelled"),
    *("leader changes", "ISR shrinks", "ISR expansions", "eligible though out of sync", "brokers fenced"),
    *("elections of the last leader", "unclean elections", "AlterPartition rejections", "truncations"),
    *("controllers elected", "pre-votes", "candidates", "resigned", "quorum truncations"),
    *("snapshots made", "snapshots installed", "logs begun anew", "records of metadata"),
    *("kills", "power cuts", "shutdowns in order", "active controllers killed", "majorities killed"),
    *("outages of all", "pauses", "one-way cuts", "two-way cuts", "isolations", "slow links"),
    *("bad networks", "connections broken", "date jumps", "slow disks", "full disks", "broken disks"),
    "no room anywhere",
    *("pages written back", "retention rounds", "torn pages", "lost pages"),
    *("rotten bits", "rotten ranges made whole"),
    *("messages lost", "messages duplicated", "messages cut", "messages as bytes"),
    *("operations in histories", "partitions kept past unclean elections"),
)


class NodeObserver:
    """Counts in `counts`, with names from EXPECTED."""

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._checker = checker
        self._counts = counts
        self._states: dict[int, EpochState] = {}
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._snapshots: dict[int, int] = {}
        checker.listeners.append(self.look)
        checker.message_listeners.append(self._heard)

    def look(self, node_id: int) -> None:
        """Look at the node after an event."""
        for batch in self._checker.word.untold:
            self._count_decisions(batch.delta)
        view = self._checker.quorum.views[node_id]
        node = view.node
        if node is None:
            return
        if view.end < self._ends.get(node_id, 0):
            self._counts["quorum truncations"] += 1
        if view.start > self._starts.get(node_id, 0):
            self._counts["logs begun anew"] += 1
        self._ends[node_id], self._starts[node_id] = view.end, view.start
        if view.snapshot is not None and view.snapshot[0] > self._snapshots.get(node_id, 0):
            # A node's own snapshot lies within its log; a received one makes the log start anew.
            self._counts["snapshots installed" if view.start == view.snapshot[0] else "snapshots made"] += 1
            self._snapshots[node_id] = view.snapshot[0]
        state = node.client.quorum.state
        if self._states.get(node_id) is not state:
            self._states[node_id] = state
            names = {"leader": "controllers elected", "prospective": "pre-votes", "candidate": "candidates"}
            self._counts[names.get(state.NAME, state.NAME)] += 1

    def _count_decisions(self, delta: MetadataDelta) -> None:
        counts = self._counts
        for broker in delta.brokers.values():
            if broker.old is not None and broker.new is not None and broker.new.fenced > broker.old.fenced:
                counts["brokers fenced"] += 1
        for change in delta.partitions:
            old, new = change.old, change.new
            if old is None or new is None:
                continue
            counts["ISR shrinks"] += len(set(old.isr) - set(new.isr))
            counts["ISR expansions"] += len(set(new.isr) - set(old.isr))
            counts["eligible though out of sync"] += len(set(new.elr) - set(old.elr))
            if new.leader_epoch > old.leader_epoch and new.leader not in (NO_LEADER, old.leader):
                counts["leader changes"] += 1
            if new.leader != NO_LEADER and new.leader not in (*old.isr, *old.elr):
                is_last = old.last_known_elr == (new.leader,)
                counts["elections of the last leader" if is_last else "unclean elections"] += 1

    def _heard(self, what: str, message: Message) -> None:
        if what != "sent":
            return
        body = message.body
        if isinstance(body, AlterPartitionResponse):
            answers = [partition for topic in body.topics for partition in topic.partitions]
            self._counts["AlterPartition rejections"] += sum(bool(each.error_code) for each in answers)

    def healed(self) -> None:
        """Count at the end of a round of faults."""
        for view in self._checker.view.partitions.values():
            for replica in view.replicas.values():
                self._counts["truncations"] += replica.truncations
                replica.truncations = 0

    def finish(self) -> None:
        """Add what other objects have counted."""
        network, promises = self._cluster.network.counts, self._checker.promises
        for name in ("lost", "duplicated", "cut"):
            self._counts[f"messages {name}"] += network[name]
        if self._cluster.as_bytes:
            self._counts["messages as bytes"] += network["sent"]
        self._counts["values promised to producers"] += promises.acknowledged
        self._counts["values given to consumers"] += promises.consumed
        self._counts["records of metadata"] += self._checker.quorum.committed_end
