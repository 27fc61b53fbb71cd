"""NodeRot: rotting bits in logs of whole nodes, and the operator who helps where no replica can.

Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.rot_faults import RotFaults

# The time after the faults until an operator looks at what does not recover without help.
OPERATOR_MS = 1_500
# Longer than any session, so a node that the operator stops gets fenced.
STOPPED_MS = 2_500


class NodeRot:
    """The rot of `cluster`; `counts` has what happened. `is_failing(node)`: whether its disk refuses
    operations."""

    def __init__(
        self,
        cluster: NodeCluster,
        checker: NodeChecker,
        counts: Counter[str],
        random: Random,
        is_failing: Callable[[int], bool],
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._is_failing = is_failing
        self._checker = checker
        self._counts = counts
        self._bits = RotFaults(cluster.brokers, self._replicas_of, counts, random)
        # The nodes on whose disks something has rotted since the last recovery.
        self.struck: set[int] = set()

    def _replicas_of(self, at: TopicPartition) -> Sequence[int]:
        known = self._checker.word.registration(at)
        return () if known is None else known.replicas

    def strike(self, node_id: int) -> None:
        """Flip a bit in one of the node's logs where that can be repaired; the node runs, with a working
        disk."""
        self._bits.forget_healed()
        partitions = list(self._checker.view.partitions)
        self._random.shuffle(partitions)
        for at in partitions:
            replicas = self._replicas_of(at)
            if node_id in replicas and self._are_flushed(at, replicas) and self._bits.rot_in(node_id, at):
                self.struck.add(node_id)
                return

    def _are_flushed(self, at: TopicPartition, replicas: Sequence[int]) -> bool:
        """Flush the logs of all replicas, and return whether that succeeded: only old data rots."""
        machines = [self._cluster.brokers[each] for each in replicas]
        if not all(machine.is_alive for machine in machines) or any(map(self._is_failing, replicas)):
            return False
        for machine in machines:
            log = machine.program.log_manager.get_log(at)
            if log is None or not log.is_writable:
                return False
            log.flush()
        return True

    def heal(self) -> None:
        """Let all nodes, which run, detect what has rotted; schedule an operator for what cannot be
        repaired."""
        self._bits.look()
        delay_ns = OPERATOR_MS * NANOSECONDS_PER_MS
        self._cluster.scheduler.add("fault", "an operator looks", self._look_for_loss, delay_ns=delay_ns)

    def healed(self) -> None:
        """Start over after the cluster has recovered."""
        self._bits.forget_healed()
        self.struck.clear()

    def _look_for_loss(self) -> None:
        """Act as an operator, who has to choose where rot destroyed what no replica can provide.

        A log whose recovery stopped at the rot cannot lead. If it is alone in the ISR, another replica is to
        be elected uncleanly. If the leader runs, and is the only one that had not deleted the range, its
        records are deleted up to there.
        """
        for view in list(self._checker.view.partitions.values()):
            state = view.decided
            if state is None:
                continue
            if self._bits.cannot_lead(state):
                self._elect_another(state)
            elif (offset := self._bits.lost_before(state)) >= 0:
                self._counts["deletions past rot"] += 1
                leader = self._cluster.program(state.leader)
                leader.replica_manager.delete_records({state.topic_partition: offset})

    def _elect_another(self, state: LeaderAndIsr) -> None:
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
