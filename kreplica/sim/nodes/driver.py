"""NodeDriver: whole nodes under random load and faults from one seed, with every invariant checked.

A run has rounds of faults. After each, all faults are repaired, and within a bounded time the cluster must be
healthy: a leader of the quorum, the same metadata on all nodes, partition leaders, full ISRs, equal replicas,
and no operation left waiting. At the end all records are read, and the clients' history is checked. Thread
rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kio.schema.alter_partition.v3.response import AlterPartitionResponse

from kreplica.client.fetcher import EARLIEST
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.ports import NANOSECONDS_PER_MS, Random
from kreplica.common.rare_collections import rare_collections
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import MetadataDelta
from kreplica.raft.epoch_state import EpochState
from kreplica.sim.actions import Actions
from kreplica.sim.history import History, Operation, Poll, Polled, Send, Sent, check
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.rules import Invariant
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_checker import NODE_INVARIANTS, NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_faults import CALM, NodeFaults
from kreplica.sim.nodes.node_load import PLAIN, NodeLoad, polled


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorkload:
    """Average intervals: `fault_every_ms` between faults, `operation_every_ms` between client operations.

    `controllers`: number of dedicated controllers; 0: brokers are controllers. `standbys`: additional
    controllers that are not voters at first. `settings`: of every node, by Kafka's names.
    """

    brokers: int
    controllers: int
    standbys: int
    settings: Mapping[str, object]
    operation_every_ms: int
    fault_every_ms: int


def draw_node_workload(random: Random) -> NodeWorkload:
    """Draw a workload."""

    def choice(*values: int) -> int:
        return values[random.randrange(len(values))]

    brokers, controllers = choice(3, 3, 3, 4), choice(0, 0, 0, 3)
    return NodeWorkload(
        brokers=brokers,
        controllers=controllers,
        standbys=1 if controllers else 0,
        settings={
            "replica.fetch.max.bytes": choice(1 << 20, 512),
            "num.replica.fetchers": choice(1, 1, 2),
            "replica.high.watermark.checkpoint.interval.ms": choice(50, 300),
            "controller.quorum.append.linger.ms": choice(0, 5),
            "metadata.log.max.record.bytes.between.snapshots": choice(1_000, 3_000),
        },
        operation_every_ms=choice(4, 8),
        fault_every_ms=choice(60, 120, 250),
    )


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


ROUNDS = 2
FIRST_TOPICS = 2
BOOT_MS = 10_000
# Several elections, sessions and a client's deadline in sequence.
HEALED_WITHIN_MS = 10_000
LOOK_MS = 50


class NodeDriver:
    """One random run. `counts` has what happened in it; many runs together must show all of
    node_observer.EXPECTED.

    `without`: the numbers of the actions to leave out.
    """

    def __init__(
        self,
        seed: int,
        workload: NodeWorkload | None = None,
        invariants: Sequence[type[Invariant]] = NODE_INVARIANTS,
        *,
        without: Container[int] = (),
    ) -> None:
        self.actions = Actions(seed, without)
        self.workload = workload or draw_node_workload(random.Random(f"{seed}/workload"))
        self.counts: Counter[str] = Counter()
        self.cluster = NodeCluster(
            self.workload.brokers,
            controllers=self.workload.controllers,
            standbys=self.workload.standbys,
            seed=seed,
            conditions=CALM,
            settings=self.workload.settings,
        )
        self.checker = NodeChecker(self.cluster, invariants)
        self.observer = NodeObserver(self.cluster, self.checker, self.counts)
        self.faults = NodeFaults(self.cluster, self.checker, self.counts, self.actions.random)
        self.load = NodeLoad(self.cluster, self.checker, self.counts, self.actions.random)
        # The times at which the rounds of faults ended, so far.
        self.round_ends_ns: list[int] = []
        self.is_in_round = False
        self.cluster.on_fatal = self._died
        self.checker.is_harmed = self.faults.is_harmed

    @rare_collections()
    def run(self, events: int = 2_000, *, round_ends_ns: Sequence[int] = ()) -> None:
        """Run this number of events, and check that the cluster recovers. Raises InvariantViolated.

        `round_ends_ns`: end the rounds of faults at these virtual times instead.
        """
        self.cluster.boot(BOOT_MS)
        for _ in range(FIRST_TOPICS):
            self.load.create_topic(2)
        self._require_well()
        for number in range(len(round_ends_ns) or ROUNDS):
            self.faults.begin()
            self.is_in_round = True
            self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
            self._later(self.workload.fault_every_ms, "fault", "fault", self._strike)
            if round_ends_ns:
                self._pass_time(round_ends_ns[number])
            else:
                self._pass_events(events * (number + 1) // ROUNDS)
            self.round_ends_ns.append(self.cluster.time.now_ns)
            self.is_in_round = False
            self._heal()
        self._check_history()
        self.observer.finish()

    # ---- internals ----------------------------------------------------------------------------------------

    def _pass_events(self, until: int) -> None:
        while self.cluster.scheduler.events < until:
            if self.cluster.scheduler.step() is None:
                raise AssertionError("nothing is left to happen")
        # Finish the current moment, so that a run limited by time is the same run.
        self._pass_time(self.cluster.time.now_ns)

    def _pass_time(self, until_ns: int) -> None:
        while self.cluster.scheduler.step(until_ns) is not None:
            pass

    def _operate(self) -> None:
        if not self.faults.is_calm:
            self._later(self.workload.operation_every_ms, "client", "operation", self._operate)
            self.actions.run(self.load.operate)

    def _strike(self) -> None:
        if not self.faults.is_calm:
            self._later(self.workload.fault_every_ms, "fault", "fault", self._strike)
            self.actions.run(self.faults.strike)

    def _later(self, mean_ms: int, kind: str, summary: str, action: Callable[[], None]) -> None:
        delay_ms = self.actions.delay_ms(mean_ms)
        self.cluster.scheduler.add(kind, summary, action, delay_ns=int(delay_ms * NANOSECONDS_PER_MS))

    def _died(self, node_id: int, error: BaseException) -> None:
        """Handle a node's fatal error, which only its disk may cause."""
        if not self.faults.may_die(node_id):
            raise self._violation("Fatal", f"node {node_id} cannot go on: {error!r}") from error
        self.counts["nodes that gave up"] += 1
        self.faults.take_down(node_id)

    # ---- after the faults ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        # Run it as an event, so that every invariant is checked after it.
        scheduler = self.cluster.scheduler
        scheduler.add("fault", "heal", self.faults.heal)
        scheduler.run_until(lambda: self.faults.is_calm)
        self._require_well()
        for view in self.checker.view.partitions.values():
            self._compare(view)
        self.faults.healed()
        self.observer.healed()

    def _require_well(self) -> None:
        scheduler = self.cluster.scheduler
        stop_ms = self.cluster.now_ms() + HEALED_WITHIN_MS
        while self.cluster.now_ms() < stop_ms:
            scheduler.run_for(LOOK_MS)
            # A node may just have been shutting down.
            self.faults.start_dead()
            if next(self._ails(), None) is None:
                return
        why = "; ".join(self._ails())
        raise self._violation("Liveness", f"{HEALED_WITHIN_MS} ms after all faults: {why}")

    def _ails(self) -> Iterator[str]:
        """Yield what is wrong with the cluster; nothing if it is healthy."""
        cluster = self.cluster
        if cluster.controller is None:
            yield "no controller is active"
        if not cluster.is_ready():
            yield "not every broker may lead"
        end = self.checker.quorum.committed_end
        for node in cluster.live():
            if node.loader.applied.offset != end:
                yield f"node {node.config.node_id} knows the metadata up to {node.loader.applied}, not {end}"
        if self.load.pending:
            yield f"{self.load.pending} clients wait"
        yield from self._waiting()
        for view in self.checker.view.partitions.values():
            ailment = self._what_ails(view)
            if ailment is not None:
                yield ailment
        yield from self._leftovers()

    def _waiting(self) -> Iterator[str]:
        """Yield the operations in purgatories, without followers' fetches, which always wait."""
        for node in self.cluster.live():
            if node.broker is None:
                continue
            delayed = node.broker.replica_manager.delayed
            for purgatory in (delayed.produce, delayed.delete_records):
                if purgatory.delayed:
                    yield f"{purgatory.delayed} operations wait at node {node.config.node_id}"

    def _leftovers(self) -> Iterator[str]:
        """Yield replicas on nodes to which they are not assigned."""
        for node in self.cluster.live():
            if node.broker is None:
                continue
            for partition in node.broker.replica_manager.partitions:
                at = partition.topic_partition
                known = self.checker.word.registration(at)
                if known is None or node.config.node_id not in known.replicas:
                    yield f"node {node.config.node_id} has {at}, and is no replica of it"

    def _what_ails(self, view: PartitionView) -> str | None:
        """Return what is wrong with the partition, None if it is healthy."""
        leader, known = view.leader, self.checker.word.registration(view.topic_partition)
        if leader is None or known is None:
            return f"no leader: {known}; {view}"
        if len(known.isr) < len(known.replicas) or known.elr:
            return f"the ISR is not full: {known}, {leader.partition.state}; {view}"
        if known.is_reassigning:
            return f"a reassignment is under way: {known}; {view}"
        if leader.partition.state.is_inflight:
            return f"an AlterPartition is under way; {view}"
        replicas = [view.replicas[each] for each in known.replicas]
        if {(each.log_end, each.high_watermark) for each in replicas} != {(leader.log_end, leader.log_end)}:
            return f"the replicas do not end together; {view}"
        # Records that another replica has deleted can no longer be fetched, but a leader's readers need them.
        start = max(each.log_start for each in replicas)
        for each in replicas:
            needed = leader.log_start if each is leader else start
            if any(damage.stop_offset > needed for damage in each.damages):
                return f"a range is damaged; {view}"
        if any(each.is_excused for each in replicas):
            return f"a replica has not come back to the committed log; {view}"
        return None

    def _compare(self, view: PartitionView) -> None:
        logs = [replica.log for replica in view.replicas.values() if replica.log is not None]
        start = max(log.log_start_offset for log in logs)
        # A batch that begins earlier may have been removed with deleted records.
        first, *others = (
            [bytes(batch) for batch in log.batches(start) if batch.base_offset >= start] for log in logs
        )
        if any(other != first for other in others):
            raise self._violation("Equal", f"the replicas are not byte-equal from {start} on; {view}")

    # ---- the history --------------------------------------------------------------------------------------

    def _check_history(self) -> None:
        """Read all records, and check them against the clients' history."""
        views = self.checker.view.partitions
        # A late response makes a client repeat a topic's creation, perhaps after the topic was deleted.
        reused = self.checker.word.reused_names
        kept = {at for at, view in views.items() if view.unclean_epoch < 0 and at.topic not in reused}
        history, starts = History(), {}
        for at, view in sorted(views.items()):
            starts[at], history.final[at] = self._read(at)
            if at not in kept:
                history.add(promised(view))
            if view.unclean_epoch >= 0:
                self.counts["partitions kept past unclean elections"] += 1
        for operation in (*self.load.sends, *self.load.operations):
            if operation is None:
                raise self._violation("Liveness", "a send was never answered")
            history.add(_of(operation, kept))
        anomalies = check(history, log_starts=starts, may_duplicate=_is_plain)
        self.counts["operations in histories"] += len(history.operations)
        if anomalies:
            raise self._violation("History", "; ".join(map(str, anomalies[:5])))

    def _read(self, at: TopicPartition) -> tuple[int, list[Polled]]:
        cluster, found = self.cluster, list[Polled]()
        start = cluster.result(cluster.client.fetcher.offset(at, EARLIEST))
        offset = start
        while True:
            fetched = cluster.result(cluster.client.fetcher.fetch(at, offset))
            records, next_offset = polled(at, offset, fetched)
            if next_offset == offset:
                return start, found
            found += records
            offset = next_offset

    def _violation(self, name: str, facts: str) -> InvariantViolated:
        error = InvariantViolated(name, facts)
        error.add_note(f"{self.cluster.scheduler.name}after event {self.cluster.scheduler.steps}")
        return error


def _of(operation: Operation, kept: Container[TopicPartition]) -> Operation:
    """Return the operation without partitions that are not in `kept`."""
    if isinstance(operation, Send):
        return replace(operation, values=[each for each in operation.values if each.partition in kept])
    if isinstance(operation, Poll):
        return replace(operation, records=[each for each in operation.records if each.partition in kept])
    return operation


def promised(view: PartitionView) -> Send:
    """Return the acknowledged values that must exist, as a send.

    They come from leaders since the topic's last unclean election, or from before it if that election's
    winner held them.
    """
    values_at = {offset: cell.value for offset, cell in view.consumed.items()} | view.acked
    values = [
        Sent(view.topic_partition, value.decode(), offset)
        for offset, value in sorted(values_at.items())
        if value is not None
    ]
    return Send("promises", "ok", values)


def _is_plain(value: object) -> bool:
    return str(value).startswith(PLAIN)
