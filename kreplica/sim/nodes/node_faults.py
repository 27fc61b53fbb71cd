"""NodeFaults: the faults of a random run of whole nodes.

Besides the faults that all clusters have: nodes are stopped cleanly, and the active controller or most of the
voters are killed. All disks may be full at once. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.sim.faults import ReplicaFaults
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster

# Longer than any session, so a node that the operator stops gets fenced.
STOPPED_MS = 2_500
# When a disk fills up, all disks do so with this chance.
ALL_FULL_ONE_IN = 4
# The weights of the kinds of faults.
FAULTS: Mapping[str, int] = {
    "kill": 6,
    "power cut": 6,
    "shutdown": 3,
    "kill of the controller": 3,
    "kill of most voters": 1,
    "power cut of all": 1,
    "pause": 3,
    "cut": 4,
    "isolation": 3,
    "slow link": 2,
    "bad network": 2,
    "broken connections": 2,
    "date jump": 2,
    "slow disk": 2,
    "full disk": 2,
    "broken disk": 1,
    "rot": 8,
    "written pages": 3,
    "retention": 2,
}


class NodeFaults(ReplicaFaults):
    """The faults of `cluster`; `checker` has what its metadata log has committed."""

    CONDITIONS = LinkConditions(delay_us=(100, 3_000), loss=0.003, duplication=0.003)
    _cluster: NodeCluster

    def __init__(
        self,
        cluster: NodeCluster,
        checker: NodeChecker,
        counts: Counter[str],
        random: Random,
        weights: Mapping[str, int] = FAULTS,
    ) -> None:
        self._views = checker.view.partitions
        self._word = checker.word
        super().__init__(cluster, counts, random, weights, self._replicas_of, self._decisions)
        # The nodes whose disk was full in this life or the previous one, and those on whose disks something
        # has rotted since the last recovery.
        self.short_of_room: set[int] = set()
        self.struck: set[int] = set()
        self.kinds |= {
            "kill of the controller": self._kill_controller,
            "kill of most voters": self._kill_most_voters,
            "cut": self._cut,
            "isolation": self._isolate,
            "slow link": self._slow_link,
            "rot": self.rot,
        }

    def may_die(self, node_id: int) -> bool:
        """Return whether the node's disk justifies a fatal error; a full disk does not."""
        return node_id in self.failing

    def is_harmed(self, node_id: int) -> bool:
        """Return whether the node's disk justifies that it does not do everything it should."""
        return self._refuses(node_id) or node_id in self.struck

    def take_down(self, node_id: int) -> None:
        """Restart a node with a fatal error after a while."""
        self._power_cut(node_id)

    def healed(self) -> None:
        super().healed()
        self.struck.clear()

    def _replicas_of(self, at: TopicPartition) -> Sequence[int]:
        known = self._word.registration(at)
        return () if known is None else known.replicas

    def _decisions(self) -> list[LeaderAndIsr]:
        return [view.decided for view in self._views.values() if view.decided is not None]

    def _refuses(self, node_id: int) -> bool:
        return node_id in self.failing or node_id in self.short_of_room

    # ---- life cycle ---------------------------------------------------------------------------------------

    def _started(self, node_id: int) -> None:
        if not self._cluster.brokers[node_id].storage.full:
            self.short_of_room.discard(node_id)

    def _kill_controller(self, _: int) -> None:
        active = self._cluster.controller
        if active is not None and not self._cluster.brokers[active].is_paused:
            self._counts["active controllers killed"] += 1
            self._random.choice((self._kill, self._power_cut))(active)

    def _kill_most_voters(self, _: int) -> None:
        self._counts["majorities killed"] += 1
        voters = self._cluster.voters()
        self._random.shuffle(voters)
        for voter in voters[: len(voters) // 2 + 1]:
            if self._cluster.brokers[voter].is_alive:
                self._kill(voter)

    # ---- disks --------------------------------------------------------------------------------------------

    def _fill_disk(self, node_id: int) -> None:
        """Make the node's disk full for a while, or all disks."""
        filled = [node_id]
        if not self._random.randrange(ALL_FULL_ONE_IN):
            self._counts["no room anywhere"] += 1
            filled = self._ids
        for each in filled:
            self.short_of_room.add(each)
            super()._fill_disk(each)

    def _retain(self, node_id: int) -> None:
        node = self._cluster.node(node_id)
        if node is not None and node.broker is not None and not self._refuses(node_id):
            super()._retain(node_id)

    def rot(self, node_id: int) -> None:
        """Flip a bit in one of the node's logs where that can be repaired, if its disk works."""
        if self._refuses(node_id):
            return
        self._bits.forget_healed()
        partitions = list(self._views)
        self._random.shuffle(partitions)
        for at in partitions:
            replicas = self._replicas_of(at)
            if node_id in replicas and self._are_flushed(at, replicas) and self._bits.rot_in(node_id, at):
                self.struck.add(node_id)
                return

    def _are_flushed(self, at: TopicPartition, replicas: Sequence[int]) -> bool:
        """Flush the logs of all replicas, and return whether that succeeded: only old data rots."""
        machines = [self._cluster.brokers[each] for each in replicas]
        if not all(machine.is_alive for machine in machines) or any(map(self._refuses, replicas)):
            return False
        for machine in machines:
            log = machine.program.log_manager.get_log(at)
            if log is None or not log.is_writable:
                return False
            log.flush()
        return True

    def _elect_past_rot(self, state: LeaderAndIsr) -> None:
        """Allow an unclean election, and stop the leader until it has taken place."""
        machine = self._cluster.brokers[state.leader]
        if machine.is_paused or not set(state.replicas) - {state.leader}:
            return
        self._counts["elections past rot"] += 1
        allowed = {"unclean.leader.election.enable": "true"}
        self._cluster.client.admin.alter_config(state.topic_partition.topic, allowed)
        machine.pause()
        self._cluster.scheduler.add(
            "fault",
            f"resume {state.leader}",
            partial(self._cluster.resume, state.leader),
            delay_ns=STOPPED_MS * NANOSECONDS_PER_MS,
        )

    # ---- links --------------------------------------------------------------------------------------------

    def _cut(self, node_id: int) -> None:
        self.cut_link(node_id, self._random.choice(self._others(node_id)), 300)

    def _isolate(self, node_id: int) -> None:
        """Cut a node off from the others; clients may still reach it, or not."""
        others = self._others(node_id)
        if self._random.randrange(2):
            others += [client.client_id for client in self._cluster.clients]
        self._cut_off(node_id, others, 500)

    def _slow_link(self, node_id: int) -> None:
        self._slow_links(node_id, self._ids)
