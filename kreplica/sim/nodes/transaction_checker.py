"""TransactionChecker: checks the invariants of transactions (transaction_rules) in a run of whole nodes.

After an event: what its node's coordinator does, and what it has confirmed to clients and other nodes. When
all is quiet after a round of faults: logs and memory of all nodes. A partition that may have lost committed
records, by an unclean election or more power cuts than it survives, is left out. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kreplica._core.offset_map import OffsetMap
from kreplica.common.error_code import ErrorCode
from kreplica.common.types import TopicPartition
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.log.cleaner import compact
from kreplica.sim.invariants import transaction_rules as rules
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.group_rules import OpenOffsets
from kreplica.sim.invariants.replica_view import ReplicaView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.network import Message
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.transactional_clients import TransactionalClients
from kreplica.sim.scheduler import SimEvent

COORDINATOR_LOOP, GROUPS_LOOP = "transactions", "groups"
# A coordinator sends markers, a client asks for an end, a broker for producer ids.
HEARD = frozenset({"EndTxn", "WriteTxnMarkers", "AllocateProducerIds"})
# Of the cleaner. The first cleaning begins the time for which markers are kept, the second one ends it.
OFFSET_MAP_BYTES, STEP_BYTES, CLEANINGS = 1 << 16, 1 << 20, 3


class TransactionChecker:
    """Checks `cluster` from now on, beside its `checker`."""

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, clients: TransactionalClients) -> None:
        self._cluster = cluster
        self._checker = checker
        self._clients = clients
        self._asked: dict[int, Any] = {}  # requests by their number
        self._confirmed: list[partial[None]] = []
        self._senders: dict[tuple[int, int], int] = {}  # by producer id and coordinator epoch
        self._blocks: set[range] = set()  # of producer ids
        self._open_offsets: dict[int, OpenOffsets] = {}  # by node
        checker.add_invariant(rules.StableOffset())
        checker.heard |= HEARD
        checker.message_listeners.append(self._heard)
        checker.event_listeners.append(self._after)

    # ---- after an event -----------------------------------------------------------------------------------

    def _after(self, event: SimEvent | None) -> None:
        confirmed, self._confirmed = self._confirmed, []
        if not self._clients.has_lost_outcomes():
            for check in confirmed:
                check()
        if event is not None and event.summary == COORDINATOR_LOOP:
            for shard in self._shards(event.node_id):
                rules.check_16_markers_are_sent(shard)
        if event is not None and event.summary == GROUPS_LOOP:
            for each in self._groups(event.node_id):
                self._open_offsets.setdefault(event.node_id, OpenOffsets()).check(each)

    def _groups(self, node_id: int) -> Sequence[Any]:
        node = self._cluster.node(node_id)
        groups = None if node is None else node.group_coordinator
        return () if groups is None else groups.shards

    def _shards(self, node_id: int) -> Sequence[Any]:
        node = self._cluster.node(node_id)
        coordinator = None if node is None else node.transaction_coordinator
        return () if coordinator is None else coordinator.shards

    def _heard(self, what: str, message: Message) -> None:
        if message.name not in HEARD:
            return
        if message.is_request:
            if what == "taken":
                self._asked[message.number] = message.body
            elif message.name == "WriteTxnMarkers":
                self._check_sender(message)
        elif what == "sent":
            asked = self._asked.pop(message.number, None)
            if asked is not None and message.body is not None:
                if message.name == "EndTxn":
                    self._end_confirmed(asked, message.body)
                elif message.name == "AllocateProducerIds":
                    self._check_block(message.body)
                else:
                    self._markers_confirmed(message.sender_id, message.body)

    def _check_sender(self, message: Message) -> None:
        """1. One coordinator sends markers in a coordinator epoch."""
        for marker in message.body.markers:
            key = marker.producer_id, marker.coordinator_epoch
            known = self._senders.setdefault(key, message.sender_id)
            if known != message.sender_id:
                facts = f"{marker} is sent by node {message.sender_id}, and was by {known}"
                raise InvariantViolated("Transactions-1", facts)

    def _check_block(self, answer: Any) -> None:
        """12. No two blocks of producer ids overlap."""
        if answer.error_code is not ErrorCode.none:
            return
        first = answer.producer_id_start
        block = range(first, first + answer.producer_id_len)
        for each in self._blocks:
            if max(each.start, block.start) < min(each.stop, block.stop):
                raise InvariantViolated("Transactions-12", f"{block} is given to a broker, as {each} was")
        self._blocks.add(block)

    def _end_confirmed(self, asked: Any, answer: Any) -> None:
        if answer.error_code is not ErrorCode.none:
            return
        at = self._coordinating(asked.transactional_id)
        view = self._checker.view.partitions.get(at)
        if view is not None and self._is_checked(view):
            self._confirmed.append(
                partial(
                    rules.check_3_decided,
                    reversed(view.committed),
                    asked.producer_id,
                    asked.producer_epoch,
                    commit=asked.committed,
                    at=at,
                )
            )

    def _markers_confirmed(self, node_id: int, answer: Any) -> None:
        node = self._cluster.node(node_id)
        if node is None or node.broker is None:
            return
        for marker in answer.markers:
            for topic in marker.topics:
                for each in topic.partitions:
                    at = TopicPartition(topic.name, each.partition_index)
                    hosted = node.broker.replica_manager.partitions.get(at)
                    if each.error_code is ErrorCode.none and hosted is not None and hosted.is_leader:
                        check = partial(
                            rules.check_24_marker_is_replicated, hosted.log, at, marker.producer_id
                        )
                        self._confirmed.append(check)

    def _coordinating(self, transactional_id: str) -> TopicPartition:
        count = sum(at.topic == TRANSACTION_STATE for at in self._checker.view.partitions)
        return TopicPartition(TRANSACTION_STATE, partition_for(transactional_id, count))

    # ---- when all is quiet --------------------------------------------------------------------------------

    def ails(self) -> Iterator[str]:
        """Yield what is not at rest yet."""
        if self._clients.has_lost_outcomes():
            return
        for replica in self._leaders():
            yield from rules.awaits_5_no_open_transaction(replica)
            yield from rules.awaits_7_stable(replica)
        loaded = set[int]()
        for node in self._cluster.live():
            for shard in self._shards(node.config.node_id):
                loaded.add(shard.partition)
                yield from rules.awaits_15_rest(shard)
            for each in self._groups(node.config.node_id):
                yield from rules.awaits_23_no_open_offsets(each)
        missing = {
            at.partition for at in self._checker.view.partitions if at.topic == TRANSACTION_STATE
        } - loaded
        if missing:
            yield f"15: the coordinators of partitions {missing} are not loaded"

    def check_quiet(self) -> None:
        """Check logs and memory. Raises InvariantViolated."""
        if self._clients.has_lost_outcomes():
            return
        states = self._check_states()
        producers = {
            record.state.producer_id
            for records in states.values()
            for record in records
            if record.state is not None
        }
        for replica in self._leaders():
            at, log = replica.topic_partition, replica.log
            if at.topic == TRANSACTION_STATE or log.damages:
                continue
            if at.topic == CONSUMER_OFFSETS:
                rules.check_29_members_commit(at, log, self._clients.history.members())
            facts = rules.batch_facts(log)
            rules.check_2_one_decision(at, [each for each in facts if each.producer_id in producers], states)
            rules.check_14_coordinator_epochs(at, facts)
            rules.check_17_abort_index(at, log, facts)
            rules.check_19_sequences(at, facts, producers)
            rules.check_20_verified(at, facts, states)
            for each in self._checker.view.partitions[at].replicas.values():
                if each.is_running and each.log is not None and each.log_end == log.log_end_offset:
                    rules.check_18_producers(each, facts)

    def check_cleaning(self) -> None:
        """Clean the leaders' logs, then again when markers may be dropped. Raises InvariantViolated.

        Nothing of the cluster can be checked afterwards.
        """
        offsets = OffsetMap(OFFSET_MAP_BYTES, bytes(16))
        for replica in self._leaders():
            at, log = replica.topic_partition, replica.log
            if log.damages or log.stopped_at is not None:
                continue
            log.roll()
            for _ in range(CLEANINGS):
                rules.check_25_cleaning(at, log, partial(compact, log, offsets, STEP_BYTES))
                self._cluster.jump_date(replica.broker_id, 2 * log.config.delete_retention_ms)

    def _check_states(self) -> dict[str, list[rules.StateRecord]]:
        states: dict[str, list[rules.StateRecord]] = {}
        logs = {
            replica.topic_partition.partition: rules.state_log(replica.log)
            for replica in self._leaders()
            if replica.topic_partition.topic == TRANSACTION_STATE
        }
        for found in logs.values():
            for records in found.values():
                for check in rules.OF_STATES:
                    check(records)
            states.update(found)
        for node in self._cluster.live():
            for shard in self._shards(node.config.node_id):
                rules.check_21_memory(shard, logs[shard.partition])
        return states

    def _leaders(self) -> Iterator[ReplicaView]:
        for view in self._checker.view.partitions.values():
            leader = view.leader
            if leader is not None and leader.log is not None and self._is_checked(view):
                yield leader

    def _is_checked(self, view: PartitionView) -> bool:
        return not self._clients.is_void(view.topic_partition)
