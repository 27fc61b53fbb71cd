"""NodeFaults: the faults of a random run of whole nodes, and their repair after a while.

Nodes are killed, lose power, are stopped cleanly and paused: one, the active controller, most of the voters,
or all. Disks become slow or full, or fail, and bits rot on them. Links are cut, in one direction or both, or
become slow or lossy; connections break; dates jump. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kreplica.common.errors import KreplicaError, StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.sim.faults import RotFaults
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster

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


CONDITIONS = LinkConditions(delay_us=(100, 3_000), loss=0.003, duplication=0.003)
CALM = LinkConditions(delay_us=(100, 1_000))
REPAIR_MS = 300
RETRY_MS = 100
SHUTDOWN_MS = 1_000
# When a disk fills up, all disks do so with this chance.
ALL_FULL_ONE_IN = 4
CHANGES = ("create", "write", "rename", "remove", "make_directory")
FLUSHES = ("flush", "sync_directory")


class NodeFaults:
    """The faults of `cluster`; `counts` has what happened."""

    def __init__(
        self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str], random: Random
    ) -> None:
        self.is_calm = True
        self._cluster = cluster
        self._rot = NodeRot(cluster, checker, counts, random, self._refuses)
        self._counts = counts
        self._random = random
        # The nodes whose disk failed in this life or the previous one, and those whose disk was full.
        self.failing: set[int] = set()
        self.short_of_room: set[int] = set()
        # How often each fault is drawn, relative to the sum of all.
        self._kinds: tuple[tuple[int, Callable[[int], None]], ...] = (
            (6, self._kill),
            (6, self._power_cut),
            (3, self._shut_down),
            (3, self._kill_controller),
            (1, self._kill_most_voters),
            (1, self._power_cut_all),
            (3, self._pause),
            (4, self._cut),
            (3, self._isolate),
            (2, self._slow_link),
            (2, self._worsen_network),
            (2, self._disconnect),
            (2, self._jump_date),
            (2, self._slow_disk),
            (2, self._fill_disk),
            (1, self._break_disk),
            (8, self._rot_bit),
            (3, self._write_back),
            (2, self._retain),
        )

    def begin(self) -> None:
        """Start the faults."""
        self.is_calm = False
        self._cluster.network.set_conditions(CONDITIONS)

    def strike(self) -> None:
        """Inject one fault, on a random node."""
        node_id = self._random.choice(list(self._cluster.configs))
        machine = self._cluster.brokers[node_id]
        if not machine.is_alive or machine.is_paused:
            return
        drawn = self._random.randrange(sum(weight for weight, _ in self._kinds))
        for weight, kind in self._kinds:
            drawn -= weight
            if drawn < 0:
                kind(node_id)
                return

    def heal(self) -> None:
        """Stop the faults, and repair everything now."""
        self.is_calm = True
        self._cluster.network.set_conditions(CALM)
        for node_id, machine in self._cluster.brokers.items():
            machine.flush_us = 0
            self._make_room(node_id)
            if machine.is_alive and machine.is_paused:
                machine.resume()
            if machine.is_alive and node_id in self.failing:
                self._cluster.power_cut(node_id, self._random)
            self._cluster.network.disconnect(node_id)
        self.start_dead()
        self._rot.heal()

    def healed(self) -> None:
        """Start over after the cluster has recovered."""
        self._rot.healed()

    def start_dead(self) -> None:
        """Start every node that is down, including those that have just shut down cleanly."""
        for node_id, machine in self._cluster.brokers.items():
            if not machine.is_alive:
                self._start(node_id)

    def may_die(self, node_id: int) -> bool:
        """Return whether the node's disk justifies a fatal error; a full disk does not."""
        return node_id in self.failing

    def is_harmed(self, node_id: int) -> bool:
        """Return whether the node's disk justifies that it does not do everything it should."""
        return self._refuses(node_id) or node_id in self._rot.struck

    def _refuses(self, node_id: int) -> bool:
        return node_id in self.failing or node_id in self.short_of_room

    def take_down(self, node_id: int) -> None:
        """Restart a node with a fatal error after a while."""
        self._power_cut(node_id)

    # ---- life cycle ---------------------------------------------------------------------------------------

    def _down(self, node_id: int) -> None:
        self._later(REPAIR_MS, f"start {node_id}", partial(self._start, node_id))

    def _start(self, node_id: int) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.is_alive:
            return
        machine.disk_fault = None
        try:
            self._cluster.start(node_id)
        except KreplicaError:
            if not machine.storage.full:
                raise
            self._counts["starts without room"] += 1
            self._later(RETRY_MS, f"start {node_id}", partial(self._start, node_id))
            return
        self.failing.discard(node_id)
        if not machine.storage.full:
            self.short_of_room.discard(node_id)

    def _kill(self, node_id: int) -> None:
        if node_id in self.failing:
            # A process started afterwards would read from memory what the disk has lost.
            self._power_cut(node_id)
            return
        self._counts["kills"] += 1
        self._cluster.kill(node_id)
        self._down(node_id)

    def _power_cut(self, node_id: int) -> None:
        self._counts["power cuts"] += 1
        self._cluster.power_cut(node_id, self._random)
        storage = self._cluster.brokers[node_id].storage
        self._counts["lost pages"] += storage.lost_pages
        self._counts["torn pages"] += storage.torn_pages
        self._down(node_id)

    def _shut_down(self, node_id: int) -> None:
        if node_id in self.failing:
            return
        self._counts["shutdowns in order"] += 1
        self._cluster.shut_down(node_id, SHUTDOWN_MS)
        self._later(2 * REPAIR_MS, f"start {node_id}", partial(self._start_or_wait, node_id))

    def _start_or_wait(self, node_id: int) -> None:
        if self.is_calm:
            return
        if self._cluster.brokers[node_id].is_alive:
            self._later(RETRY_MS, f"start {node_id}", partial(self._start_or_wait, node_id))
        else:
            self._start(node_id)

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

    def _power_cut_all(self, _: int) -> None:
        self._counts["outages of all"] += 1
        for node_id, machine in self._cluster.brokers.items():
            if machine.is_alive:
                self._power_cut(node_id)

    def _pause(self, node_id: int) -> None:
        self._counts["pauses"] += 1
        machine = self._cluster.brokers[node_id]
        machine.pause()
        self._later(REPAIR_MS, f"resume {node_id}", partial(self._resume, node_id, machine.life))

    def _resume(self, node_id: int, life: object) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.life is life and machine.is_alive and machine.is_paused:
            machine.resume()

    # ---- disks --------------------------------------------------------------------------------------------

    def _slow_disk(self, node_id: int) -> None:
        self._counts["slow disks"] += 1
        self._cluster.brokers[node_id].flush_us = self._random.choice((0, 500, 10_000))

    def _fill_disk(self, node_id: int) -> None:
        """Make the node's disk full for a while, or all disks."""
        if self._random.randrange(ALL_FULL_ONE_IN):
            self._fill(node_id)
            return
        self._counts["no room anywhere"] += 1
        for each in self._cluster.configs:
            self._fill(each)

    def _fill(self, node_id: int) -> None:
        self._counts["full disks"] += 1
        self.short_of_room.add(node_id)
        self._cluster.brokers[node_id].storage.full = True
        self._later(REPAIR_MS, f"room for {node_id}", partial(self._make_room, node_id))

    def _make_room(self, node_id: int) -> None:
        self._cluster.brokers[node_id].storage.full = False

    def _break_disk(self, node_id: int) -> None:
        """Break the disk. The node continues as far as it can until its machine is taken down."""
        self._counts["broken disks"] += 1
        self.failing.add(node_id)
        refused = CHANGES if self._random.randrange(2) else (*CHANGES, *FLUSHES)
        machine = self._cluster.brokers[node_id]
        machine.disk_fault = partial(_refuse, refused)
        self._later(
            REPAIR_MS, f"another disk for {node_id}", partial(self._replace_disk, node_id, machine.life)
        )

    def _replace_disk(self, node_id: int, life: object) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.life is life and machine.is_alive and not self.is_calm:
            self._power_cut(node_id)

    def _rot_bit(self, node_id: int) -> None:
        if not self._refuses(node_id):
            self._rot.strike(node_id)

    def _write_back(self, node_id: int) -> None:
        self._counts["pages written back"] += 1
        self._cluster.brokers[node_id].storage.write_back(self._random)

    def _retain(self, node_id: int) -> None:
        """Apply the topics' retention on the broker."""
        node = self._cluster.node(node_id)
        if node is not None and node.broker is not None and not self._refuses(node_id):
            self._counts["retention rounds"] += 1
            node.broker.log_manager.delete_old_segments()

    # ---- links and dates ----------------------------------------------------------------------------------

    def _cut(self, node_id: int) -> None:
        other = self._random.choice([each for each in self._cluster.configs if each != node_id])
        both_ways = self._random.random() < 0.5
        self._counts["two-way cuts" if both_ways else "one-way cuts"] += 1
        network = self._cluster.network
        network.cut(node_id, other, both_ways=both_ways)
        self._later(300, f"heal {node_id} {other}", partial(network.heal, node_id, other))

    def _isolate(self, node_id: int) -> None:
        """Cut a node off from the others; clients may still reach it, or not."""
        self._counts["isolations"] += 1
        network = self._cluster.network
        others = [each for each in self._cluster.configs if each != node_id]
        if self._random.randrange(2):
            others += [client.client_id for client in self._cluster.clients]
        for other in others:
            network.cut(node_id, other)
            self._later(500, f"heal {node_id} {other}", partial(network.heal, node_id, other))

    def _slow_link(self, node_id: int) -> None:
        """Slow the node's links: messages take long, and arrive in any order."""
        self._counts["slow links"] += 1
        network = self._cluster.network
        for other in self._cluster.configs:
            for way in ((node_id, other), (other, node_id)):
                network.change_link(*way, delay_us=(1_000, 80_000), in_order=False)
                self._later(200, f"quicken {way}", partial(self._quicken, way))

    def _quicken(self, way: tuple[int, int]) -> None:
        if not self.is_calm:
            conditions = self._cluster.network.conditions(*way)
            self._cluster.network.change_link(
                *way, delay_us=CONDITIONS.delay_us, in_order=True, is_cut=conditions.is_cut
            )

    def _worsen_network(self, _: int) -> None:
        self._counts["bad networks"] += 1
        self._cluster.network.set_conditions(
            LinkConditions(
                delay_us=(100, self._random.choice((1_000, 10_000, 60_000))),
                loss=self._random.choice((0.0, 0.02, 0.1)),
                duplication=self._random.choice((0.0, 0.02, 0.1)),
                in_order=self._random.random() < 0.5,
            )
        )
        self._later(200, "a better network", self._improve_network)

    def _improve_network(self) -> None:
        if not self.is_calm:
            self._cluster.network.set_conditions(CONDITIONS)

    def _disconnect(self, node_id: int) -> None:
        self._counts["connections broken"] += 1
        self._cluster.disconnect(node_id)

    def _jump_date(self, node_id: int) -> None:
        self._counts["date jumps"] += 1
        self._cluster.jump_date(node_id, self._random.choice((-3_600_000, -10_000, 10_000, 3_600_000)))

    # ---- internals ----------------------------------------------------------------------------------------

    def _later(self, mean_ms: int, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self._random.expovariate(1 / mean_ms)
        self._cluster.scheduler.add("fault", summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))


def _refuse(refused: tuple[str, ...], operation: str, path: str) -> None:
    if operation in refused:
        raise StorageIOError(f"{operation} of {path}")
