"""Faults: the faults of a random run, drawn from its seed, and their repair after a while.

Machines are killed, lose power, are paused: one or all. Their disks become slow or full, or fail; bits rot.
Links are cut, in one direction or both, or become slow or lossy; dates jump. A failing disk refuses changes;
the machine is restarted with a working disk, without what was not flushed. Each kind of cluster adds faults
of its own, and has a table of how often each is drawn. Thread rule: one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, ClassVar, TypeVar

from kreplica._core.records import batches
from kreplica.common.errors import CorruptMessage, KreplicaError, StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.common.types import TopicPartition
from kreplica.log.file_names import LOG_SUFFIX
from kreplica.sim.machines import DIRECTORY, SimBroker, SimMachines
from kreplica.sim.network import LinkConditions
from kreplica.sim.storage import SimStorage

T = TypeVar("T")

CALM = LinkConditions(delay_us=(100, 1_000))
# The time after the faults until an operator looks at what does not recover without help.
OPERATOR_MS = 1_500
CHANGES = ("create", "write", "rename", "remove", "make_directory")
FLUSHES = ("flush", "sync_directory")


def weighted(random: Random, weights: Mapping[T, int]) -> T:
    """Draw one of the keys, each as often as its weight says."""
    drawn = random.randrange(sum(weights.values()))
    for kind, weight in weights.items():
        drawn -= weight
        if drawn < 0:
            return kind
    raise AssertionError(f"{drawn} of {weights}")


class Faults:
    """The faults of `cluster`, each drawn as often as `weights` says; `counts` has what happened.

    A fault's method gets the random node that it is meant for; most kinds need no more than that.
    """

    # The links during faults.
    CONDITIONS: ClassVar[LinkConditions]
    CALM: ClassVar[LinkConditions] = CALM
    # The average times until a node is repaired, and until a start that found no room is tried again.
    REPAIR_MS: ClassVar[int] = 300
    RETRY_MS: ClassVar[int] = 100
    # The time for which a node hands over before it stops.
    SHUTDOWN_MS: ClassVar[int] = 1_000
    SLOW_FLUSHES_US: ClassVar[Sequence[int]] = (0, 500, 10_000)
    DATE_JUMPS_MS: ClassVar[Sequence[int]] = (-3_600_000, -10_000, 10_000, 3_600_000)
    # A bad network has one of these latencies, and loses and duplicates messages with one of these chances.
    WORST_DELAYS_US: ClassVar[Sequence[int]] = (1_000, 10_000, 60_000)
    CHANCES: ClassVar[Sequence[float]] = (0.0, 0.02, 0.1)
    BAD_FOR_MS: ClassVar[int] = 200

    def __init__(
        self, cluster: SimMachines, counts: Counter[str], random: Random, weights: Mapping[str, int]
    ) -> None:
        self.is_calm = True
        # The nodes whose disk failed in this life or the previous one.
        self.failing: set[int] = set()
        self._cluster = cluster
        self._counts = counts
        self._random = random
        self._weights = weights
        self.kinds: dict[str, Callable[[int], None]] = {
            "kill": self._kill,
            "power cut": self._power_cut,
            "shutdown": self._shut_down,
            "power cut of all": self._power_cut_all,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "full disk": self._fill_disk,
            "broken disk": self._break_disk,
            "written pages": self._write_back,
            "bad network": self._worsen_network,
            "broken connections": self._disconnect,
            "date jump": self._jump_date,
        }

    def begin(self) -> None:
        """Start the faults."""
        self.is_calm = False
        self._cluster.network.set_conditions(self.CONDITIONS)

    def strike(self) -> None:
        """Inject one fault, on a random node."""
        node_id = self._random.choice(self._ids)
        machine = self._cluster.brokers[node_id]
        if machine.is_alive and not machine.is_paused:
            self.kinds[self._drawn()](node_id)

    def heal(self) -> None:
        """Stop the faults, and repair everything now."""
        self.is_calm = True
        self._cluster.network.set_conditions(self.CALM)
        for node_id, machine in self._cluster.brokers.items():
            machine.flush_us = 0
            machine.storage.full = False
            if machine.is_alive and machine.is_paused:
                machine.resume()
            if machine.is_alive and node_id in self.failing:
                self._cluster.power_cut(node_id, self._random)
            self._cluster.network.disconnect(node_id)
        self.start_dead()

    def healed(self) -> None:
        """Start over after the cluster has recovered."""

    def start_dead(self) -> None:
        """Start every node that is down, including those that have just shut down cleanly."""
        for node_id, machine in self._cluster.brokers.items():
            if not machine.is_alive:
                self._start(node_id)

    # ---- life cycle ---------------------------------------------------------------------------------------

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
            # Its directory is still full, and the recovered logs' checkpoints have no room.
            self._counts["starts without room"] += 1
            self.later(self.RETRY_MS, f"start {node_id}", partial(self._start, node_id))
            return
        self.failing.discard(node_id)
        self._started(node_id)

    def _started(self, node_id: int) -> None:
        """Take in that a node has started."""

    def _gone(self, node_id: int) -> None:
        """Take in that a node was killed or paused."""

    def _lost_power(self, node_id: int) -> None:
        """Take in that a node has lost power."""

    def _start_later(self, node_id: int) -> None:
        self.later(self.REPAIR_MS, f"start {node_id}", partial(self._start, node_id))

    def _kill(self, node_id: int) -> None:
        if node_id in self.failing:
            # A process started afterwards would read from memory what the disk has lost.
            self._power_cut(node_id)
            return
        self._counts["kills"] += 1
        self._cluster.kill(node_id)
        self._gone(node_id)
        self._start_later(node_id)

    def _power_cut(self, node_id: int) -> None:
        self._counts["power cuts"] += 1
        self._cluster.power_cut(node_id, self._random)
        storage = self._cluster.brokers[node_id].storage
        self._counts["lost pages"] += storage.lost_pages
        self._counts["torn pages"] += storage.torn_pages
        self._lost_power(node_id)
        self._start_later(node_id)

    def _shut_down(self, node_id: int) -> None:
        if node_id in self.failing:
            return
        self._counts["shutdowns in order"] += 1
        self._cluster.shut_down(node_id, self.SHUTDOWN_MS)
        self.later(2 * self.REPAIR_MS, f"start {node_id}", partial(self._start_or_wait, node_id))

    def _start_or_wait(self, node_id: int) -> None:
        if self.is_calm:
            return
        if self._cluster.brokers[node_id].is_alive:
            self.later(self.RETRY_MS, f"start {node_id}", partial(self._start_or_wait, node_id))
        else:
            self._start(node_id)

    def _power_cut_all(self, _: int) -> None:
        self._counts["outages of all"] += 1
        for node_id, machine in self._cluster.brokers.items():
            if machine.is_alive:
                self._power_cut(node_id)

    def _pause(self, node_id: int) -> None:
        self._counts["pauses"] += 1
        machine = self._cluster.brokers[node_id]
        machine.pause()
        self._gone(node_id)
        self.later(self.REPAIR_MS, f"resume {node_id}", partial(self._resume, node_id, machine.life))

    def _resume(self, node_id: int, life: object) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.life is life and machine.is_alive and machine.is_paused:
            machine.resume()

    # ---- disks --------------------------------------------------------------------------------------------

    def _slow_disk(self, node_id: int) -> None:
        self._counts["slow disks"] += 1
        self._cluster.brokers[node_id].flush_us = self._random.choice(self.SLOW_FLUSHES_US)

    def _fill_disk(self, node_id: int) -> None:
        """Make the disk full for a while: no file can grow. The node must then continue without help."""
        self._counts["full disks"] += 1
        self._cluster.brokers[node_id].storage.full = True
        self.later(self.REPAIR_MS, f"room for {node_id}", partial(self._make_room, node_id))

    def _make_room(self, node_id: int) -> None:
        self._cluster.brokers[node_id].storage.full = False

    def _break_disk(self, node_id: int) -> None:
        """Make the disk refuse all changes, in some runs flushes as well.

        The node continues as far as it can until its machine is taken down.
        """
        self._counts["broken disks"] += 1
        refused = CHANGES if self._random.randrange(2) else (*CHANGES, *FLUSHES)
        self._fail(node_id, partial(_refuse, refused))

    def _fail(self, node_id: int, fault: Callable[[str, str], None]) -> None:
        """Let the disk fail as `fault` says, and replace it later."""
        self.failing.add(node_id)
        self._cluster.brokers[node_id].disk_fault = fault
        self._replace_later(node_id)

    def _replace_later(self, node_id: int) -> None:
        replace = partial(self._replace_disk, node_id, self._cluster.brokers[node_id].life)
        self.later(self.REPAIR_MS, f"another disk for {node_id}", replace)

    def _replace_disk(self, node_id: int, life: object) -> None:
        machine = self._cluster.brokers[node_id]
        if machine.life is life and machine.is_alive and not self.is_calm:
            self._power_cut(node_id)

    def _write_back(self, node_id: int) -> None:
        self._counts["pages written back"] += 1
        self._cluster.brokers[node_id].storage.write_back(self._random)

    # ---- links and dates ----------------------------------------------------------------------------------

    def cut_link(self, one: int, other: int, mean_ms: int) -> None:
        """Cut the link between two nodes in one direction or both, and restore it later."""
        both_ways = self._random.random() < 0.5
        self._counts["two-way cuts" if both_ways else "one-way cuts"] += 1
        self._cluster.network.cut(one, other, both_ways=both_ways)
        self.later(mean_ms, f"heal {one} {other}", partial(self._cluster.network.heal, one, other))

    def _cut_off(self, node_id: int, others: Iterable[int], mean_ms: int) -> None:
        """Cut a node off from the others, in both directions."""
        self._counts["isolations"] += 1
        network = self._cluster.network
        for other in others:
            network.cut(node_id, other)
            self.later(mean_ms, f"heal {node_id} {other}", partial(network.heal, node_id, other))

    def _slow_links(self, node_id: int, others: Iterable[int]) -> None:
        """Slow a node's links: messages take long, and arrive in any order."""
        self._counts["slow links"] += 1
        for other in others:
            for way in ((node_id, other), (other, node_id)):
                self._cluster.network.change_link(*way, delay_us=(1_000, 80_000), in_order=False)
                self.later(200, f"quicken {way}", partial(self.quicken, *way))

    def quicken(self, sender: int, receiver: int) -> None:
        if not self.is_calm:
            delay_us, in_order = self.CONDITIONS.delay_us, self.CONDITIONS.in_order
            self._cluster.network.change_link(sender, receiver, delay_us=delay_us, in_order=in_order)

    def _worsen_network(self, _: int) -> None:
        self._counts["bad networks"] += 1
        self._cluster.network.set_conditions(
            LinkConditions(
                delay_us=(100, self._random.choice(self.WORST_DELAYS_US)),
                loss=self._random.choice(self.CHANCES),
                duplication=self._random.choice(self.CHANCES),
                in_order=self._random.random() < 0.5,
            )
        )
        self.later(self.BAD_FOR_MS, "a better network", self._improve_network)

    def _improve_network(self) -> None:
        if not self.is_calm:
            self._cluster.network.set_conditions(self.CONDITIONS)

    def _disconnect(self, node_id: int) -> None:
        self._counts["connections broken"] += 1
        self._cluster.disconnect(node_id)

    def _jump_date(self, node_id: int) -> None:
        self._counts["date jumps"] += 1
        self._cluster.jump_date(node_id, self._random.choice(self.DATE_JUMPS_MS))

    # ---- for subclasses -----------------------------------------------------------------------------------

    @property
    def _ids(self) -> list[int]:
        return list(self._cluster.brokers)

    def _others(self, node_id: int) -> list[int]:
        return [each for each in self._cluster.brokers if each != node_id]

    def _drawn(self) -> str:
        return weighted(self._random, self._weights)

    def later(self, mean_ms: int, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self._random.expovariate(1 / mean_ms)
        self._cluster.scheduler.add("fault", summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))


class ReplicaFaults(Faults, ABC):
    """Faults of a cluster with replicated partitions: bits also rot, in a place that can be repaired."""

    def __init__(
        self,
        cluster: SimMachines,
        counts: Counter[str],
        random: Random,
        weights: Mapping[str, int],
        replicas_of: Callable[[TopicPartition], Sequence[int]],
        decided: Callable[[], Iterable[LeaderAndIsr]],
    ) -> None:
        super().__init__(cluster, counts, random, weights)
        self._bits = RotFaults(cluster.brokers, replicas_of, counts, random)
        self._decided = decided
        self.kinds |= {"retention": self._retain}

    def heal(self) -> None:
        super().heal()
        self._expect_an_operator()

    def healed(self) -> None:
        self._bits.forget_healed()

    def _retain(self, node_id: int) -> None:
        """Apply the topics' retention on the broker."""
        self._counts["retention rounds"] += 1
        self._cluster.program(node_id).log_manager.delete_old_segments()

    def _expect_an_operator(self) -> None:
        """Let the brokers detect what has rotted; an operator looks later at what they cannot repair."""
        self._bits.look()
        delay_ns = OPERATOR_MS * NANOSECONDS_PER_MS
        self._cluster.scheduler.add("fault", "an operator looks", self._look_for_loss, delay_ns=delay_ns)

    def _look_for_loss(self) -> None:
        """Act as an operator, who has to choose where rot destroyed what no replica can provide.

        A log whose recovery stopped at the rot cannot lead. If it is alone in the ISR, another replica is
        elected uncleanly. If the leader runs, and is the only one that had not deleted the range, its records
        are deleted up to there.
        """
        for state in list(self._decided()):
            if self._bits.cannot_lead(state):
                self._elect_past_rot(state)
            elif (offset := self._bits.lost_before(state)) >= 0:
                self._counts["deletions past rot"] += 1
                leader = self._cluster.program(state.leader)
                leader.replica_manager.delete_records({state.topic_partition: offset})

    @abstractmethod
    def _elect_past_rot(self, state: LeaderAndIsr) -> None:
        """Let another replica lead, uncleanly."""


def _refuse(refused: tuple[str, ...], operation: str, path: str) -> None:
    if operation in refused:
        raise StorageIOError(f"{operation} of {path}")


class PassingFault:
    """A disk fault that refuses `times` of the operations on paths that contain `where` and end in `suffix`.

    What a refused flush has lost stays lost.
    """

    def __init__(self, refused: tuple[str, ...], where: str, times: int, suffix: str = "") -> None:
        self._refused = refused
        self._where = where
        self._times = times
        self._suffix = suffix

    def __call__(self, operation: str, path: str) -> None:
        is_meant = operation in self._refused and self._where in path and path.endswith(self._suffix)
        if is_meant and self._times > 0:
            self._times -= 1
            _refuse(self._refused, operation, path)


def flip_a_bit(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Flip the lowest bit of the last value in the batch with the offset; returns False if it is missing."""
    path, data, batch, end = _batch_at(storage, root, topic_partition, offset)
    if batch is None:
        return False
    # The last byte is the last record's number of headers, which is zero here.
    storage.write_at(path, end - 2, bytes([data[end - 2] ^ 1]))
    return True


def is_rotten(storage: Any, root: str, topic_partition: TopicPartition, offset: int) -> bool:
    """Return whether the batch with the offset is damaged.

    Also True if it may be, because a power cut has torn earlier data, which the broker detects at its start.
    """
    try:
        _, _, batch, _ = _batch_at(storage, root, topic_partition, offset)
    except CorruptMessage:
        return True
    return batch is not None and not batch.crc_valid


def _batch_at(
    storage: Any, root: str, topic_partition: TopicPartition, offset: int
) -> tuple[str, bytes, Any, int]:
    # Returns the file, its contents, the batch, and the position of the batch's end.
    directory = f"{root}/{topic_partition}"
    if not storage.is_directory(directory):
        return "", b"", None, 0
    names = [name for name in storage.list_directory(directory) if name.endswith(LOG_SUFFIX)]
    held = [name for name in names if int(name.removesuffix(LOG_SUFFIX)) <= offset]
    if not held:
        return "", b"", None, 0
    path, position = f"{directory}/{max(held)}", 0
    data = storage.read_file(path)
    for batch in batches(data, partial=True):
        position += batch.size
        if batch.last_offset >= offset:
            return path, data, batch, position
    return path, data, None, 0


class RotFaults:
    """The rot on the disks of `machines`; `replicas_of(partition)`: the replicas with its log.

    A bit rots in one replica's log at a time, where the others have the range on disk, so that it can be
    repaired. Until it is, nothing else of the partition rots.
    """

    def __init__(
        self,
        machines: Mapping[int, SimBroker],
        replicas_of: Callable[[TopicPartition], Sequence[int]],
        counts: Counter[str],
        random: Random,
    ) -> None:
        self._machines = machines
        self._replicas_of = replicas_of
        self._counts = counts
        self._random = random
        # The partitions with a possibly rotten range, and the range.
        self._rotten: dict[TopicPartition, tuple[int, int]] = {}

    def rot(self, broker_id: int) -> bool:
        """Flip a bit in a log of the broker where that can be repaired; return whether one was flipped."""
        self.forget_healed()
        partitions = self._machines[broker_id].program.replica_manager.partitions
        return any(self.rot_in(broker_id, partition.topic_partition) for partition in partitions)

    def rot_in(self, broker_id: int, at: TopicPartition) -> bool:
        """Flip a bit in the broker's log of this partition, if it can be repaired; return whether it was
        flipped."""
        offset = self._offset_to_rot(broker_id, at)
        if offset is None:
            return False
        # Old data rots, so the fact that it was flushed must be on disk as well: otherwise a power cut would
        # make the damage look like an incomplete end.
        self._log(broker_id, at).flush_state()
        if not flip_a_bit(self._storage(broker_id), DIRECTORY, at, offset):
            return False
        self._counts["rotten bits"] += 1
        self._rotten[at] = broker_id, offset
        return True

    def look(self) -> None:
        """Let the brokers detect what has rotted and was not read since."""
        for at, (broker_id, offset) in self._rotten.items():
            log = self._log(broker_id, at)
            # Includes a batch that begins below the log start and ends above it.
            if log is not None and log.is_writable and offset < log.log_end_offset:
                index = log.local.segments.index_for(offset)
                if index >= 0:
                    log.search_damage(log.local.segments[index], offset)

    def forget_healed(self) -> None:
        """Count the rotten ranges that are repaired, and allow new rot there."""
        for at, (broker_id, offset) in list(self._rotten.items()):
            if not is_rotten(self._storage(broker_id), DIRECTORY, at, offset):
                self._counts["rotten ranges made whole"] += 1
                del self._rotten[at]

    def cannot_lead(self, state: LeaderAndIsr) -> bool:
        """Return whether the only replica in sync has stopped its recovery at a rotten range.

        False if another replica knows the range to be committed, has not deleted it, and has the same batch
        behind it: without that the range may be of another history, after an unclean election.
        """
        at = state.topic_partition
        log = self._log(state.leader, at)
        if log is None or log.stopped_at is None or state.isr != (state.leader,):
            return False
        first, stop = log.stopped_at.first_offset, log.stopped_at.stop_offset
        behind = self._bytes_at(state.leader, at, stop)
        return not any(
            other.log_start_offset <= first
            and stop <= other.high_watermark
            and behind in (b"", self._bytes_at(other_id, at, stop))
            for other_id, other in self._others(state).items()
        )

    def lost_before(self, state: LeaderAndIsr) -> int:
        """Return the end of the last rotten range in the leader's log that no other replica has; -1 for
        none."""
        log = self._log(state.leader, state.topic_partition)
        if log is None or log.stopped_at is not None:
            return -1
        lost = [
            damage.stop_offset
            for damage in log.damages
            if log.log_start_offset < damage.stop_offset <= log.high_watermark
            and not any(
                other.log_start_offset < damage.stop_offset and damage.first_offset < other.log_end_offset
                for other in self._others(state).values()
            )
        ]
        return max(lost, default=-1)

    def _others(self, state: LeaderAndIsr) -> dict[int, Any]:
        """Return the logs of the other replicas, by their brokers."""
        logs = {
            each: self._log(each, state.topic_partition) for each in state.replicas if each != state.leader
        }
        return {each: log for each, log in logs.items() if log is not None}

    def _bytes_at(self, broker_id: int, at: TopicPartition, offset: int) -> bytes:
        """Return the batch with the offset in the replica's file; b"" without one, or behind torn data."""
        try:
            _, data, batch, end = _batch_at(self._storage(broker_id), DIRECTORY, at, offset)
        except CorruptMessage:
            return b""
        return b"" if batch is None else data[end - batch.size : end]

    def end_of(self, broker_id: int, at: TopicPartition) -> tuple[int, int]:
        """Return the last leader epoch of a replica's log, and its end."""
        log = self._log(broker_id, at)
        if log is None or log.stopped_at is not None:
            return -1, -1
        return log.leader_epoch, log.log_end_offset

    def _log(self, broker_id: int, at: TopicPartition) -> Any:
        machine = self._machines.get(broker_id)
        return None if machine is None or machine.program is None else machine.program.log_manager.get_log(at)

    def _storage(self, broker_id: int) -> SimStorage:
        return self._machines[broker_id].storage

    def _offset_to_rot(self, broker_id: int, at: TopicPartition) -> int | None:
        replicas = self._replicas_of(at)
        if at in self._rotten or broker_id not in replicas:
            return None
        logs = []
        for each in replicas:
            log = self._log(each, at)
            if log is None or log.damages or not log.is_writable:
                return None
            logs.append(log)
        start = max(log.log_start_offset for log in logs)
        end = min(min(log.flush_offset, log.high_watermark) for log in logs)
        return None if end <= start else start + self._random.randrange(end - start)
