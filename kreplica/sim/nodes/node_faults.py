"""NodeFaults: the faults of a random run of whole nodes.

Besides the faults that all clusters have: nodes are stopped cleanly, and the active controller or most of the
voters are killed. All disks may be full at once. In runs with transactions or groups, a coordinator dies
right behind a record that it has stored. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.sim.faults import ReplicaFaults
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.scheduler import SimEvent

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
# In runs with transactions or groups.
BEHIND_A_RECORD = "death behind a record"
COORDINATOR_FAULTS: Mapping[str, int] = {**FAULTS, BEHIND_A_RECORD: 20}
# A transaction over several partitions has about this number of records in __transaction_state.
RECORDS_OF_A_TRANSACTION = 6


class DeathBehindARecord:
    """Lets a coordinator die right behind a record that it appends to its topic, `topic`.

    The record is in its own log then. No other replica has it, no answer has been sent, and no later record
    is appended. `die(node_id, power_cut)`: kills the node, or cuts its power.
    """

    def __init__(
        self,
        cluster: NodeCluster,
        checker: NodeChecker,
        die: Callable[[int, bool], None],
        topic: str = TRANSACTION_STATE,
    ) -> None:
        self._topic = topic
        self._cluster = cluster
        self._views = checker.view.partitions
        self._die = die
        self._left = 0
        self._power_cut = False
        self._ends: dict[tuple[int, TopicPartition], int] = {}
        checker.event_listeners.append(self._look)

    @property
    def is_armed(self) -> bool:
        """Whether a coordinator is going to die."""
        return self._left > 0

    def arm(self, number: int, *, power_cut: bool) -> None:
        """Let the coordinator die that appends the record with this number, counted from now on, at 1."""
        self._left, self._power_cut = number, power_cut
        self._ends = {
            (node_id, at): end for node_id in self._cluster.broker_ids for at, end in self._led_by(node_id)
        }

    def disarm(self) -> None:
        """Let no coordinator die."""
        self._left = 0

    def _look(self, event: SimEvent | None) -> None:
        if not self._left or event is None or event.node_id not in self._cluster.configs:
            return
        node_id = event.node_id
        for at, end in self._led_by(node_id):
            before = self._ends.get((node_id, at), end)
            self._ends[node_id, at] = end
            if end > before:
                self._left = max(self._left - (end - before), 0)
                if not self._left:
                    self._die(node_id, self._power_cut)
                    return

    def _led_by(self, node_id: int) -> list[tuple[TopicPartition, int]]:
        """Return the partitions of the topic that the node leads, with the ends of their logs."""
        node = self._cluster.node(node_id)
        if node is None or node.broker is None:
            return []
        found = []
        for at in self._views:
            hosted = None
            if at.topic == self._topic:
                hosted = node.broker.replica_manager.partitions.get(at)
            if hosted is not None and hosted.is_leader and hosted.log is not None:
                found.append((at, hosted.log.log_end_offset))
        return found


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
        coordinators_topic: str = TRANSACTION_STATE,
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
        self.death: DeathBehindARecord | None = None
        if BEHIND_A_RECORD in weights:
            self.death = DeathBehindARecord(cluster, checker, self._die_behind_a_record, coordinators_topic)
            self.kinds[BEHIND_A_RECORD] = self._arm

    def may_die(self, node_id: int) -> bool:
        """Return whether the node's disk justifies a fatal error; a full disk does not."""
        return node_id in self.failing

    def is_harmed(self, node_id: int) -> bool:
        """Return whether the node's disk justifies that it does not do everything it should."""
        return self._refuses(node_id) or node_id in self.struck

    def take_down(self, node_id: int) -> None:
        """Restart a node with a fatal error after a while."""
        self._power_cut(node_id)

    def heal(self) -> None:
        if self.death is not None:
            self.death.disarm()
        super().heal()

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

    def _arm(self, _: int) -> None:
        assert self.death is not None
        if not self.death.is_armed:
            number = 1 + self._random.randrange(RECORDS_OF_A_TRANSACTION)
            self.death.arm(number, power_cut=self._random.randrange(2) == 0)

    def _die_behind_a_record(self, node_id: int, power_cut: bool) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.is_alive and not machine.is_paused:
            self._counts["coordinators that died behind a record"] += 1
            (self._power_cut if power_cut else self._kill)(node_id)

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
