"""Simulation: a whole cluster under a virtual clock, with injected faults, for programs and their tests.

It runs the same code as `Cluster`: nodes with their quorum, controller, brokers, logs in Kafka's files and
the native core. Only the clock, the disks and the network are objects driven by a seed and by the caller
(kreplica.sim). A call that has to wait advances virtual time until it is done; a virtual second takes a few
tenths of a real one. The same seed and the same calls give the same events in any process, which `event_hash`
shows.

Ownership: everything is in memory and freed with the object. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from kreplica._core.record import Record
from kreplica.broker.node import CONTROLLED_SHUTDOWN_MS, Node
from kreplica.client.admin import Admin
from kreplica.client.client_config import Isolation, Protocol
from kreplica.client.producer import Acks, AppendResult, TopicProducer, acks_of
from kreplica.cluster.administration import TIMEOUT, ClusterAdministration
from kreplica.cluster.faults import require_delay, require_link, require_number
from kreplica.cluster.pending_futures import PendingFutures
from kreplica.cluster.promises import SETTLE_TIMEOUT, BrokenPromise, Promises
from kreplica.cluster.records import (
    JOIN_TIMEOUT_MS,
    ClusterRecords,
    Consumer,
    read,
)
from kreplica.cluster.share import Message, Messages, Sharing
from kreplica.cluster.transactions import (
    TRANSACTION_TIMEOUT,
    ClusterTransactions,
    Transacting,
    Transaction,
)
from kreplica.cluster.views import ClusterWatch, describe_topics
from kreplica.common.errors import (
    ClusterClosed,
    InvalidRequest,
    KreplicaError,
    RequestTimedOut,
    StorageFull,
    StorageIOError,
)
from kreplica.common.future import Future, pass_on
from kreplica.common.types import TopicPartition, integer
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import ROOT
from kreplica.metadata.watches import MAX_PENDING, Watches
from kreplica.runtime.clock import SystemClock
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import CONSUMER_CONFIG, NodeCluster
from kreplica.sim.reduction import RandomRun, reduced, round_ends_ns, run_seed

if TYPE_CHECKING:
    from kreplica._core.batch_builder import _RecordList as RecordList

T = TypeVar("T")

# Virtual seconds.
DELIVERY_TIMEOUT = 120.0
# Interval between two checks while the cluster settles.
LOOK_MS = 20
DISKS: Mapping[str, type[KreplicaError] | None] = {
    "well": None,
    "full": StorageFull,
    "broken": StorageIOError,
}


class VirtualFuture(Future[T]):
    """A future whose `result` and `exception` advance virtual time, up to `timeout` virtual seconds."""

    __slots__ = ("_pass_time",)

    def __init__(self, source: Future[T], pass_time: Callable[[Callable[[], bool], int], bool]) -> None:
        super().__init__()
        self._pass_time = pass_time
        source.add_done_callback(partial(pass_on, self))

    def _wait(self, timeout: float | None) -> None:
        limit = DELIVERY_TIMEOUT + 1 if timeout is None else timeout
        if not self._pass_time(self.done, _ms(limit)):
            raise TimeoutError


class Simulation(ClusterAdministration):
    """A simulated cluster of `brokers` brokers on empty disks, driven by `seed`; ready once constructed.

    `controllers`: the number of dedicated controllers (ids from 1001); with 0 the first three brokers are
    controllers too (one if there are fewer than three). `config`: Kafka's properties for every node and, as
    defaults, for topics. Timeouts are short, logs and snapshots small, so that much happens in little time.

    The invariants of docs/SIMULATOR.md are checked after every event: any call that advances time raises
    InvariantViolated if one is violated. Times are virtual: `timeout` in seconds, as with Cluster; names that
    end in `_ms` in milliseconds. Raises InvalidConfig, TypeError.
    """

    def __init__(
        self,
        seed: int = 1,
        brokers: int = 3,
        *,
        controllers: int = 0,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.seed = integer("seed", seed)
        self._is_closed = False
        # Nodes whose disks were made to fail, and which may therefore die.
        self._failing: set[int] = set()
        self._watches = Watches()
        self._cluster = NodeCluster(
            brokers, controllers=controllers, seed=seed, settings=config, watches=self._watches
        )
        self._checker = NodeChecker(self._cluster)
        self._checker.is_harmed = self._failing.__contains__
        self._client = self._cluster.client
        pending = PendingFutures(f"the simulation of seed {seed}")
        self._producer = TopicProducer(self._client.producer, self._newest, pending)
        self._records = ClusterRecords(self._client, self._newest, pending, CONSUMER_CONFIG)
        self._transactions = ClusterTransactions(self._client, self._newest, pending)
        self._promises = Promises()
        # What `_unclean_epochs()` returned when promises were last made void.
        self._voided: dict[TopicPartition, int] = {}
        self._cluster.boot()

    # ---- records ------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: RecordList,
        *,
        partition: int | None = None,
        acks: Acks = "all",
        timeout: float = DELIVERY_TIMEOUT,
    ) -> Future[AppendResult]:
        """Append as Cluster.append does, without advancing time; the future's `result` and `run_for` do that.

        Raises UnknownTopicOrPartition, InvalidRequiredAcks.
        """
        sent = self._producer.append(topic, records, partition, acks, timeout)
        if acks_of(acks) == acks_of("all"):
            self._promise(sent)
        return VirtualFuture(sent, self._cluster.run_until)

    def _append_in(self, steps: Transacting, *arguments: Any) -> Future[AppendResult]:
        sent = steps.append(*arguments)
        self._promise(sent)
        return VirtualFuture(sent, self._cluster.run_until)

    def _promise(self, sent: Future[AppendResult]) -> None:
        elections = self._unclean_epochs()
        sent.add_done_callback(partial(self._record_promise, elections))

    def transaction(
        self, transactional_id: str, *, source: Consumer | None = None, timeout: float = TRANSACTION_TIMEOUT
    ) -> Transaction:
        """Return a transaction as Cluster.transaction does. Its beginning and end advance time."""
        steps = self._transactions.transaction(transactional_id, source, timeout)
        return Transaction(steps, partial(self._ask, timeout=DELIVERY_TIMEOUT), self._append_in)

    def read(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation: Isolation = "high_watermark",
        timeout: float = TIMEOUT,
    ) -> Iterator[Record]:
        """Iterate over the committed records with offsets in [start, stop), in order, read from the leader.

        Starts at the log start by default, and stops at the current high watermark. `timeout` applies to each
        request to the leader. Raises UnknownTopicOrPartition; while iterating OffsetOutOfRange,
        RequestTimedOut, CorruptMessage.
        """
        reading = self._records.reading(topic, partition, start, stop, isolation, timeout=timeout)
        return read(reading, partial(self._ask, timeout=timeout))

    def consume(
        self,
        topics: str | Sequence[str] = (),
        group: str = "",
        *,
        pattern: str | None = None,
        instance_id: str | None = None,
        protocol: Protocol | None = None,
        isolation: Isolation | None = None,
        auto_commit: bool = True,
        timeout: float = 1.0,
        config: Mapping[str, object] | None = None,
    ) -> Consumer:
        """Iterate over records as Cluster.consume does, until `timeout` virtual seconds pass without one.

        Sessions are short. Raises InvalidConfig, and while iterating what Cluster.consume raises.
        """
        consuming = self._records.consuming(
            topics,
            group,
            timeout,
            config,
            isolation,
            auto_commit=auto_commit,
            pattern=pattern,
            protocol=protocol,
            instance_id=instance_id,
        )
        return Consumer(consuming, partial(self._ask, timeout=timeout + JOIN_TIMEOUT_MS / 1000))

    def share(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] | None = "earliest",
        max_records: int | None = None,
        auto_accept: bool = True,
        timeout: float = 1.0,
    ) -> Messages:
        """Take messages as Cluster.share does, until `timeout` virtual seconds pass without one.

        The futures of the messages' methods advance time.
        """
        prepare = self._records.share_start(group, start)
        consumer = self._records.share_consumer(topics, group, max_records)
        track = partial(VirtualFuture[None], pass_time=self._cluster.run_until)
        sharing = Sharing(consumer, track, Message, _ms(timeout), auto_accept=auto_accept, prepare=prepare)
        return Messages(sharing, partial(self._ask, timeout=timeout + JOIN_TIMEOUT_MS / 1000))

    def watch(
        self,
        path: str = ROOT,
        *,
        timeout: float = TIMEOUT,
        initial: bool = False,
        max_pending: int = MAX_PENDING,
    ) -> ClusterWatch:
        """Observe the cluster as Cluster.watch does.

        The iterator advances time; it ends when `timeout` virtual seconds have passed without a change.
        """
        watch = self._watches.watch(path, initial=initial, max_pending=max_pending)
        return ClusterWatch(watch, lambda ready: self._cluster.run_until(ready.done, _ms(timeout)))

    # ---- partitions ---------------------------------------------------------------------------------------

    def elect(
        self,
        topic: str,
        partition: int = 0,
        kind: Literal["preferred", "unclean"] = "preferred",
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        """Elect a leader as Cluster.elect does.

        Raises PreferredLeaderNotAvailable, EligibleLeadersNotAvailable, UnknownTopicOrPartition,
        RequestTimedOut.
        """
        if kind == "unclean":
            self._checker.word.unclean_topics.add(topic)
        super().elect(topic, partition, kind, timeout=timeout)

    # ---- nodes --------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes, including dead ones."""
        return list(self._cluster.configs)

    @property
    def controller(self) -> int | None:
        """The node that is the active controller, or None if no node is now."""
        return self._cluster.controller

    def is_running(self, node_id: int) -> bool:
        """Return whether the node runs, also if it is paused. Raises InvalidRequest for an unknown id."""
        self._require_node(node_id)
        return self._cluster.brokers[node_id].is_alive

    def node(self, node_id: int) -> Node:
        """Return the node object, to inspect its internals. Raises InvalidRequest if it does not run."""
        self._require_running(node_id)
        node = self._cluster.node(node_id)
        assert node is not None
        return node

    def start(self, node_id: int, *, wait: bool = True, timeout: float = TIMEOUT) -> None:
        """Start a node again on its disk; returns when its broker is able to lead, or at once without `wait`.

        Raises InvalidRequest if it runs already or there is no such node, RequestTimedOut, and the error of a
        damaged disk.
        """
        self._require_open()
        if self.is_running(node_id):
            raise InvalidRequest(f"node {node_id} is running already")
        self._cluster.start(node_id)
        if wait:
            self._result(self.node(node_id).ready, timeout)

    def stop(self, node_id: int, *, timeout: float = CONTROLLED_SHUTDOWN_MS / 1000) -> None:
        """Shut a node down cleanly; it first hands over its leaderships. Raises InvalidRequest."""
        self._require_running(node_id)
        self._result(self._cluster.shut_down(node_id, _ms(timeout)), 3 * timeout + 1)

    def kill(self, node_id: int) -> None:
        """Kill a node, as kill -9 would: its written data stays. Raises InvalidRequest if it does not run."""
        self._require_running(node_id)
        self._cluster.kill(node_id)

    def power_cut(self, node_id: int, *, torn: bool = False) -> None:
        """Cut a node's machine from power, which loses unflushed data.

        With `torn` only some of the unflushed pages are lost, drawn from the seed. Other nodes notice only by
        timeouts. Raises InvalidRequest if the node does not run.
        """
        self._require_running(node_id)
        self._cluster.power_cut(node_id, self._cluster.random if torn else None)
        self._failing.discard(node_id)

    def pause(self, node_id: int) -> None:
        """Stall a node, as SIGSTOP would. Raises InvalidRequest if it does not run."""
        self._require_running(node_id)
        self._cluster.pause(node_id)

    def resume(self, node_id: int) -> None:
        """Resume a paused node. Raises InvalidRequest if it does not run."""
        self._require_running(node_id)
        if self._cluster.brokers[node_id].is_paused:
            self._cluster.resume(node_id)

    def set_disk(self, node_id: int, state: Literal["well", "full", "broken"]) -> None:
        """Make the node's disk full, broken (it refuses every change and flush), or well again.

        The node may die of it, as its process would. Raises InvalidRequest.
        """
        self._require_open()
        self._require_node(node_id)
        if state not in DISKS:
            raise InvalidRequest(f"state={state!r} is unknown: use one of {', '.join(DISKS)}")
        error = DISKS[state]
        self._cluster.set_disk_fault(node_id, None if error is None else partial(_refuse, error))
        if error is not None:
            self._failing.add(node_id)

    def jump_date(self, node_id: int, by_ms: int) -> None:
        """Set the wall clock of a node's machine forward or back. Raises InvalidRequest."""
        self._require_open()
        self._require_node(node_id)
        self._cluster.jump_date(node_id, by_ms)

    # ---- the network --------------------------------------------------------------------------------------

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Cut the network from `one` to `other`, and with `both_ways` also from `other` to `one`.

        Raises InvalidRequest if there is no such node.
        """
        self._require_link(one, other)
        self._cluster.cut(one, other, both_ways=both_ways)

    def heal(self, one: int | None = None, other: int | None = None, *, both_ways: bool = True) -> None:
        """Reconnect `one` to `other`, and with `both_ways` also `other` to `one`; without nodes, all of them.

        Raises InvalidRequest if there is no such node.
        """
        self._require_open()
        if one is None or other is None:
            self._cluster.heal_all()
        else:
            self._require_link(one, other)
            self._cluster.heal(one, other, both_ways=both_ways)

    def is_cut(self, one: int, other: int) -> bool:
        """Return whether messages from `one` to `other` are lost. Raises InvalidRequest for unknown nodes."""
        self._require_link(one, other)
        return self._cluster.network.conditions(one, other).is_cut

    def _require_link(self, one: int, other: int) -> None:
        self._require_open()
        require_link(one, other, self.nodes)

    def add_delay(self, delay_ms: float) -> None:
        """Let each message take `delay_ms` longer than now, or less long if it is negative.

        This is added to the times of `set_network`. Raises TypeError, and ValueError if the delay would be
        too long.
        """
        self._require_open()
        require_number(delay_ms, "delay_ms")
        added_ms = max(0, self._cluster.network.added_us / 1000 + delay_ms)
        require_delay(added_ms)
        self._cluster.network.added_us = round(added_ms * 1000)

    def set_network(
        self,
        *,
        delay_ms: tuple[float, float] = (0.1, 1.0),
        loss: float = 0.0,
        duplication: float = 0.0,
        in_order: bool = True,
    ) -> None:
        """Set the conditions of every link, and reconnect cut ones.

        Each message takes a random time within `delay_ms`; `loss` and `duplication` are probabilities. Raises
        InvalidRequest for an invalid time or probability.
        """
        self._require_open()
        least, most = delay_ms
        if not (0 <= least <= most and 0 <= loss <= 1 and 0 <= duplication <= 1):
            raise InvalidRequest(
                f"delay_ms={delay_ms}, loss={loss}, duplication={duplication}: the delay must be"
                " (least, most) in ms, the others must be from 0 to 1"
            )
        delay_us = (int(least * 1000), int(most * 1000))
        self._cluster.network.set_conditions(LinkConditions(delay_us, loss, duplication, in_order))

    # ---- time ---------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The virtual time since the start, in ms."""
        return self._cluster.now_ms()

    @property
    def events(self) -> int:
        """The number of events so far, without timers: messages, disk and client operations, faults."""
        return self._cluster.scheduler.events

    @property
    def event_hash(self) -> str:
        """A hash of all events so far; equal for equal seeds and calls."""
        return self._cluster.scheduler.event_hash

    def run_for(self, duration_ms: int) -> None:
        """Advance virtual time by `duration_ms`, with all events in it. Raises TypeError, ValueError."""
        self._require_open()
        self._cluster.pass_time(integer("duration_ms", duration_ms, 0))

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> bool:
        """Run events until the condition, checked after each one, holds; False if not within `limit_ms`."""
        self._require_open()
        return self._cluster.run_until(condition, limit_ms)

    @classmethod
    def run(
        cls, seed: int = 1, *, events: int = 2_000, minutes: float | None = None, reduce_for: float = 0.0
    ) -> RandomRun:
        """Run a random scenario of the seed on a new cluster: clients, faults, then all repaired, twice.

        `events`: the number of events; `minutes`: virtual minutes instead. The result has the event hash and
        counters. `violation` is None if all invariants held; else `story` describes the run, reduced for up
        to `reduce_for` real seconds to the actions that are needed.
        """
        ends = round_ends_ns(minutes) if minutes is not None else ()
        ran = run_seed("nodes", seed, events, round_ends_ns=ends)
        if ran.violation is None:
            return ran
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + int(reduce_for * 1e9)
        return reduced(ran, lambda: clock.monotonic_ns() >= deadline_ns)

    # ---- checks -------------------------------------------------------------------------------------------

    def check(self, timeout: float = SETTLE_TIMEOUT) -> None:
        """Reconnect and resume running nodes, let the cluster settle, and verify all invariants.

        Acknowledged records must exist, replicas must be equal, and all nodes must have the same metadata. An
        unclean election that was allowed may lose what was acknowledged before it. Dead nodes stay dead;
        without a majority of the quorum nothing can settle, and nothing is checked. Raises BrokenPromise if
        an invariant does not hold within `timeout` virtual seconds.
        """
        self._require_open()
        died = [f"node {n}: {error!r}" for n, error in self._cluster.fatal if n not in self._failing]
        if died:
            raise BrokenPromise("\n".join(died))
        self.set_network()
        for node_id, machine in self._cluster.brokers.items():
            if machine.is_alive and machine.is_paused:
                self.resume(node_id)
        alive = sum(self.is_running(voter) for voter in self._cluster.controllers)
        if alive <= len(self._cluster.controllers) // 2:
            return
        deadline_ms = self.now_ms + _ms(timeout)
        while problems := self._problems():
            if self.now_ms >= deadline_ms:
                raise BrokenPromise("\n".join(problems))
            self.run_for(LOOK_MS)

    def _unclean_epochs(self) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last unclean election of each partition that had one."""
        views = self._checker.view.partitions.items()
        return {at: view.unclean_epoch for at, view in views if view.unclean_epoch >= 0}

    def _void_promises(self) -> None:
        now = self._unclean_epochs()
        for at in now:
            if now[at] != self._voided.get(at):
                self._promises.void(at)
        self._voided = now

    def _record_promise(self, elections: dict[TopicPartition, int], sent: Future[Any]) -> None:
        """Record what the cluster has acknowledged, except in partitions with an unclean election meanwhile.

        The leader before such an election may have acknowledged the records, and the new one may lack them.
        `elections`: `_unclean_epochs()` when the records were sent.
        """
        self._void_promises()
        self._promises.note(sent)
        for at, epoch in self._voided.items():
            if epoch != elections.get(at):
                self._promises.void(at)

    def _problems(self) -> list[str]:
        self._void_promises()
        running = {node.config.node_id: node for node in self._cluster.live()}
        return self._promises.problems(self._newest(), running)

    def describe(self) -> dict[str, Any]:
        """Return the cluster's nodes and topics as JSON-compatible values."""
        metadata = self._newest()
        return {
            "seed": self.seed,
            "now_ms": self.now_ms,
            "controller": self.controller,
            "nodes": {n: {"is_alive": self.is_running(n)} for n in self.nodes},
            "topics": describe_topics(metadata),
        }

    def close(self) -> None:
        """Kill all nodes; every later call raises ClusterClosed. Their data is freed with the object."""
        for node_id in self.nodes:
            if self.is_running(node_id):
                self._cluster.kill(node_id)
        self._is_closed = True
        self._watches.close(ClusterClosed(f"the simulation of seed {self.seed} was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        alive = [node_id for node_id in self.nodes if self.is_running(node_id)]
        return f"Simulation(seed={self.seed}, at {self.now_ms} ms, nodes {alive} of {self.nodes} run)"

    # ---- internals ----------------------------------------------------------------------------------------

    @property
    def _admin(self) -> Admin:
        return self._client.admin

    def _ask(self, ask: Callable[[], Future[T]], timeout: float) -> T:
        self._require_open()
        return self._result(ask(), timeout)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClusterClosed(f"the simulation of seed {self.seed} is closed")

    def _newest_node(self) -> Node:
        self._require_open()
        live = self._cluster.live()
        if not live:
            raise InvalidRequest("no node of the simulation is running")
        return max(live, key=lambda node: node.loader.applied.offset)

    def _known(self) -> list[ClusterMetadata]:
        machines = self._cluster.brokers
        live = [node for node in self._cluster.live() if not machines[node.config.node_id].is_paused]
        return [node.loader.published for node in live]

    def _node(self, node_id: int) -> Node | None:
        return self._cluster.node(node_id)

    def _require_node(self, node_id: int) -> None:
        if node_id not in self._cluster.brokers:
            raise InvalidRequest(f"there is no node {node_id!r}: the nodes are {self.nodes}")

    def _require_running(self, node_id: int) -> None:
        self._require_open()
        if not self.is_running(node_id):
            raise InvalidRequest(f"node {node_id} is not running: start it first")

    def _result(self, future: Future[T], timeout: float) -> T:
        # The client enforces the timeout; allow a little more for what follows.
        return self._cluster.result(future, _ms(timeout) + 1_000)

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        if not self._cluster.run_until(condition, _ms(timeout)):
            raise RequestTimedOut(f"{what}: not reached within {timeout} virtual seconds")


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 0)


def _refuse(error: type[KreplicaError], operation: str, path: str) -> None:
    raise error(f"{operation} of {path}")
