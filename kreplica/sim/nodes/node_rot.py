"""NodeRot: bits that rot in logs of whole nodes, and the operator who helps where no replica can.

Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.rot_faults import RotFaults
from kreplica.sim.scheduler import NANOSECONDS_PER_MS

# After the faults, until somebody looks at what does not become well by itself.
OPERATOR_MS = 1_500
# Longer than any session: whom the operator stops is fenced.
STOPPED_MS = 2_500


class NodeRot:
    """Of `cluster`; `counts` tells what has happened. `is_failing(node)`: whether its disk refuses
    something."""

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
        # The nodes on whose disks something has rotted since all was well.
        self.struck: set[int] = set()

    def _replicas_of(self, at: TopicPartition) -> Sequence[int]:
        known = self._checker.word.registration(at)
        return () if known is None else known.replicas

    def strike(self, node_id: int) -> None:
        """A bit flips in one of the node's logs, where that can be healed; the node runs, and its disk is
        well."""
        self._bits.forget_healed()
        partitions = list(self._checker.view.partitions)
        self._random.shuffle(partitions)
        for at in partitions:
            replicas = self._replicas_of(at)
            if node_id in replicas and self._are_flushed(at, replicas) and self._bits.rot_in(node_id, at):
                self.struck.add(node_id)
                return

    def _are_flushed(self, at: TopicPartition, replicas: Sequence[int]) -> bool:
        """Whether all replicas have their logs on their disks, from now on: what rots is old."""
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
        """All nodes run: they see what has rotted; later an operator looks what is left of it."""
        self._bits.look()
        delay_ns = OPERATOR_MS * NANOSECONDS_PER_MS
        self._cluster.scheduler.add("fault", "an operator looks", self._look_for_loss, delay_ns=delay_ns)

    def healed(self) -> None:
        """All is well again."""
        self._bits.forget_healed()
        self.struck.clear()

    def _look_for_loss(self) -> None:
        """An operator has to choose where rot took what no replica can give any more.

        A log whose recovery stopped there cannot lead: where it is alone in the ISR, another one is to be
        elected uncleanly. A leader that runs, and is the only one that had not deleted the range, has its
        records deleted up to there.
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
        """Allow an unclean election, and stop the leader until there was one."""
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
