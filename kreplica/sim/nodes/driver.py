"""NodeDriver: whole nodes under random load and faults from one seed, with every invariant checked.

After the faults there must be a leader of the quorum, the same metadata on all nodes, partition leaders, full
ISRs, equal replicas, and no operation left waiting. At the end all records are read, and the clients' history
is checked. Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from kreplica.client.client_config import Isolation
from kreplica.client.fetcher import EARLIEST
from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import OffsetOutOfRange
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.controllers import AlterPartitionResponse
from kreplica.common.ports import Random
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.metadata.cluster_metadata import MetadataDelta
from kreplica.raft.epoch_state import EpochState
from kreplica.sim.driver import ReplicaDriver
from kreplica.sim.faults import CALM
from kreplica.sim.history import History, Operation, Poll, Polled, Send, Sent, check
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.rules import Invariant
from kreplica.sim.network import Message
from kreplica.sim.nodes.classic_members import SETTINGS as MIXED_SETTINGS
from kreplica.sim.nodes.classic_members import MixedMembers
from kreplica.sim.nodes.group_checker import GroupChecker
from kreplica.sim.nodes.group_members import SETTINGS as GROUP_SETTINGS
from kreplica.sim.nodes.group_members import ConsumerMembers, GroupMembers
from kreplica.sim.nodes.node_checker import NODE_INVARIANTS, NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_faults import COORDINATOR_FAULTS, FAULTS, NodeFaults
from kreplica.sim.nodes.node_load import PLAIN, NodeLoad, committed, polled
from kreplica.sim.nodes.share_members import ShareMembers
from kreplica.sim.nodes.streams_members import StreamsMembers
from kreplica.sim.nodes.transaction_checker import TransactionChecker
from kreplica.sim.nodes.transactional_clients import TransactionalClients, is_internal
from kreplica.sim.story import NodeStory, Story


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorkload:
    """Average intervals: `fault_every_ms` between faults, `operation_every_ms` between client operations.

    `controllers`: number of dedicated controllers; 0: brokers are controllers. `standbys`: additional
    controllers that are not voters at first. `settings`: of every node, by Kafka's names.
    `transactions`: whether the nodes coordinate transactions. `groups`: the kind of the group that has
    members, "" for none.
    """

    brokers: int
    controllers: int
    standbys: int
    settings: Mapping[str, object]
    operation_every_ms: int
    fault_every_ms: int
    transactions: bool = False
    groups: str = ""


def draw_node_workload(random: Random, *, transactions: bool = False, groups: str = "") -> NodeWorkload:
    """Draw a workload. `transactions`, `groups`: as in NodeWorkload."""

    def choice(*values: int) -> int:
        return values[random.randrange(len(values))]

    brokers, controllers = choice(3, 3, 3, 4), choice(0, 0, 0, 3)
    workload = NodeWorkload(
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
    if groups:
        return replace(
            workload,
            settings={
                **workload.settings,
                **GROUP_SETTINGS,
                **(MIXED_SETTINGS if groups == MIXED else {}),
                f"group.{KINDS[groups].kind}.assignment.interval.ms": choice(0, 150),
            },
            groups=groups,
            # Members send heartbeats all the time. The fewer other events, the longer is the run.
            operation_every_ms=choice(12, 20),
            fault_every_ms=choice(150, 300, 500),
        )
    if not transactions:
        return workload
    settings = {
        **workload.settings,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.segment.bytes": 1 << 20,
        "offsets.topic.num.partitions": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": choice(30, 100),
        "transaction.remove.expired.transaction.cleanup.interval.ms": 150,
        "transactional.id.expiration.ms": choice(604_800_000, 604_800_000, 600),
    }
    return replace(
        workload,
        settings=settings,
        transactions=True,
        # A transaction takes several requests, one after the other.
        operation_every_ms=choice(8, 12),
        fault_every_ms=choice(100, 200, 350),
    )


# One seed of this number has transactions that the nodes coordinate.
TRANSACTIONS_ONE_IN = 4
# One seed of GROUPS_ONE_IN, those with GROUPS_REMAINDER, has the members of a group, of each kind in turn.
GROUPS_ONE_IN, GROUPS_REMAINDER = 8, 6
# One seed of MIXED_ONE_IN has a group with members by both protocols of consumers.
MIXED, MIXED_ONE_IN, MIXED_REMAINDER = "mixed", 16, 10
KINDS: Mapping[str, type[GroupMembers]] = {
    "consumer": ConsumerMembers,
    "share": ShareMembers,
    "streams": StreamsMembers,
    MIXED: MixedMembers,
}
GROUP_KINDS = tuple(kind for kind in KINDS if kind != MIXED)


def groups_of(seed: int) -> str:
    """Return the kind of the group that has members in the run of the seed, "" for none."""
    if seed % MIXED_ONE_IN == MIXED_REMAINDER:
        return MIXED
    turn, remainder = divmod(seed, GROUPS_ONE_IN)
    return GROUP_KINDS[turn % len(GROUP_KINDS)] if remainder == GROUPS_REMAINDER else ""


# All runs together must show each of these, or they prove nothing.
EXPECTED = (
    *("acked", "sent plainly", "polled", "values promised to producers", "values given to consumers"),
    *("topics created", "topics deleted", "partitions added", "reassignments", "config changes"),
    *("records deleted", "voters added", "voters removed"),
    *("transactions committed", "transactions aborted", "read as committed", "aborted records left out"),
    *("producers initialized", "zombies made", "producers that died", "transactions that had to be aborted"),
    *("transaction version 0 finalized", "transaction version 1 finalized"),
    *("transaction version 2 finalized", "producer ids used up"),
    *("transactional offsets read", "offsets not stable or not there", "groups deleted"),
    *("group members started", "group members that left", "group members that died"),
    *("assignments taken", "subscriptions changed"),
    *("classic members started", "static classic members started", "assignments of classic members"),
    *("task assignments taken", "tasks taken"),
    *("share assignments taken", "records acquired by members", "acknowledgements of members"),
    *("offsets committed by members", "offsets read by members"),
    *("preferred elections", "unclean elections asked for", "reassignments cancelled"),
    *("leader changes", "ISR shrinks", "ISR expansions", "eligible though out of sync", "brokers fenced"),
    *("elections of the last leader", "unclean elections", "AlterPartition rejections", "truncations"),
    *("controllers elected", "pre-votes", "candidates", "resigned", "quorum truncations"),
    *("snapshots made", "snapshots installed", "logs begun anew", "records of metadata"),
    "coordinators that died behind a record",
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
        if what != "sent" or message.name != "AlterPartition":
            return
        body = message.body
        if isinstance(body, AlterPartitionResponse):
            answers = [partition for topic in body.topics for partition in topic.partitions]
            self._counts["AlterPartition rejections"] += sum(bool(each.error_code) for each in answers)

    def finish(self) -> None:
        """Add what other objects have counted."""
        promises = self._checker.promises
        if self._cluster.as_bytes:
            self._counts["messages as bytes"] += self._cluster.network.counts["sent"]
        self._counts["values promised to producers"] += promises.acknowledged
        self._counts["values given to consumers"] += promises.consumed
        self._counts["records of metadata"] += self._checker.quorum.committed_end


FIRST_TOPICS = 2
BOOT_MS = 10_000


class NodeDriver(ReplicaDriver):
    """One random run of whole nodes."""

    cluster: NodeCluster
    checker: NodeChecker
    load: NodeLoad
    faults: NodeFaults
    EXPECTED = EXPECTED
    # Several elections, sessions and a client's deadline in sequence.
    HEALED_WITHIN_MS = 10_000
    LOOK_MS = 50

    def __init__(
        self,
        seed: int,
        workload: NodeWorkload | None = None,
        invariants: Sequence[type[Invariant]] = NODE_INVARIANTS,
        *,
        without: Container[int] = (),
    ) -> None:
        super().__init__(seed, without)
        workload = workload or draw_node_workload(
            random.Random(f"{seed}/workload"),
            transactions=seed % TRANSACTIONS_ONE_IN == 0,
            groups=groups_of(seed),
        )
        self.operation_every_ms, self.fault_every_ms = workload.operation_every_ms, workload.fault_every_ms
        cluster = self.cluster = NodeCluster(
            workload.brokers,
            controllers=workload.controllers,
            standbys=workload.standbys,
            seed=seed,
            conditions=CALM,
            settings=workload.settings,
        )
        checker = self.checker = NodeChecker(cluster, invariants)
        self.observer = NodeObserver(cluster, checker, self.counts)
        weights = COORDINATOR_FAULTS if workload.transactions or workload.groups else FAULTS
        topic = TRANSACTION_STATE if workload.transactions else CONSUMER_OFFSETS
        self.faults = NodeFaults(cluster, checker, self.counts, self.actions.random, weights, topic)
        is_over = (lambda: not self.is_in_round) if workload.transactions else None
        self.load = NodeLoad(cluster, checker, self.counts, self.actions.random, is_over)
        self.transactions: TransactionChecker | None = None
        if self.load.clients is not None:
            self.transactions = TransactionChecker(cluster, checker, self.load.clients)
        self.groups: GroupChecker | None = None
        if workload.groups:
            members = KINDS[workload.groups](cluster, checker, self.counts)
            self.load.add_members(members)
            self.groups = GroupChecker(cluster, checker, members)
        cluster.on_fatal = self._died
        checker.is_harmed = self.faults.is_harmed

    def begin(self) -> None:
        self.cluster.boot(BOOT_MS)
        if self.load.clients is not None:
            self.load.clients.prepare()
        if self.load.members is not None:
            self.load.members.prepare()
        for _ in range(FIRST_TOPICS):
            self.load.create_topic(2)
        self.require_well()

    def ails(self) -> Iterator[str]:
        cluster = self.cluster
        if cluster.controller is None:
            yield "no controller is active"
        if not cluster.is_ready():
            yield "not every broker may lead"
        end = self.checker.quorum.committed_end
        for node in cluster.live():
            if node.loader.applied.offset != end:
                yield f"node {node.config.node_id} knows the metadata up to {node.loader.applied}, not {end}"
        yield from super().ails()
        yield from self._leftovers()
        if self.load.clients is not None and self.load.clients.pending:
            yield f"{self.load.clients.pending} transactional producers have not ended"
        if self.transactions is not None:
            yield from self.transactions.ails()
        if self.groups is not None:
            yield from self.groups.ails()

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

    def healed(self) -> None:
        super().healed()
        if self.transactions is not None:
            self.transactions.check_quiet()
        if self.groups is not None:
            self.groups.check_quiet()

    def finish(self) -> None:
        self.check_history()
        if self.load.clients is not None:
            self.check_transactions(self.load.clients)
        if self.transactions is not None:
            self.transactions.check_cleaning()
        self.observer.finish()

    def story(self) -> Story:
        return NodeStory(self.cluster)

    def _died(self, node_id: int, error: BaseException) -> None:
        """Handle a node's fatal error, which only its disk may cause."""
        if not self.faults.may_die(node_id):
            raise self.violation("Fatal", f"node {node_id} cannot go on: {error!r}") from error
        self.counts["nodes that gave up"] += 1
        self.faults.take_down(node_id)

    # ---- the history --------------------------------------------------------------------------------------

    def check_history(self) -> None:
        """Read all records, and check them against the clients' history."""
        views = self.checker.view.partitions
        # A late response makes a client repeat a topic's creation, perhaps after the topic was deleted.
        reused = self.checker.word.reused_names
        kept = {at for at, view in views.items() if view.unclean_epoch < 0 and at.topic not in reused}
        history, starts = History(), {}
        for at, view in sorted(views.items()):
            if is_internal(at):
                continue
            starts[at], history.final[at] = self._read(at)
            if at not in kept:
                history.add(promised(view))
            if view.unclean_epoch >= 0:
                self.counts["partitions kept past unclean elections"] += 1
        for operation in (*self.load.sends, *self.load.operations):
            if operation is None:
                raise self.violation("Liveness", "a send was never answered")
            history.add(_of(operation, kept))
        anomalies = check(history, log_starts=starts, may_duplicate=_is_plain)
        self.counts["operations in histories"] += len(history.operations)
        if anomalies:
            raise self.violation("History", "; ".join(map(str, anomalies[:5])))

    def check_transactions(self, clients: TransactionalClients) -> None:
        """Read all committed records and the groups' offsets, and check them against the transactions."""
        partitions = [at for at in sorted(self.checker.view.partitions) if not is_internal(at)]
        found = {}
        for at in partitions:
            start, records = self._read(at, "txn_committed")
            found[at] = start, [(each.offset, str(each.value)) for each in records]
        for group in clients.groups:
            if not clients.has_lost_offsets(group):
                self._read_offset(clients, group)
        clients.history.check_final(found)

    def _read_offset(self, clients: TransactionalClients, group: str) -> None:
        stop_ms = self.cluster.now_ms() + self.HEALED_WITHIN_MS
        while self.cluster.now_ms() < stop_ms:
            answer = clients.fetch_offset(group)
            if answer is not None:
                self.cluster.run_until(answer.done)
                # An error of the callback is raised here.
                self.checker.check()
                if clients.is_stable(answer):
                    return
            self.cluster.scheduler.run_for(self.LOOK_MS)
        raise self.violation("Liveness", f"the offsets of {group} do not become stable")

    def _read(self, at: TopicPartition, isolation: Isolation = "high_watermark") -> tuple[int, list[Polled]]:
        cluster, found = self.cluster, list[Polled]()
        offset = start = self._log_start(at)
        while True:
            try:
                fetched = cluster.result(cluster.client.fetcher.fetch(at, offset, isolation=isolation))
            except OffsetOutOfRange:
                # A leader that was deposed may have deleted more than its followers, and have been elected
                # again since its log start was asked for.
                if found or (start := self._log_start(at)) <= offset:
                    raise
                offset = start
                continue
            if isolation == "txn_committed":
                records, next_offset = committed(at, offset, fetched)
            else:
                records, next_offset = polled(at, offset, fetched)
            if next_offset == offset:
                return start, found
            found += records
            offset = next_offset

    def _log_start(self, at: TopicPartition) -> int:
        return self.cluster.result(self.cluster.client.fetcher.offset(at, EARLIEST))


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
