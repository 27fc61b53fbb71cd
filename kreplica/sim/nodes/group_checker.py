"""GroupChecker: checks the invariants of modern groups (group_rules) in a run of whole nodes.

After an event of a coordinator: its groups in memory, or the states of share partitions; ShareChecker checks
the records of share groups. After an answer to a heartbeat: that its epoch is below the high watermark, or
that a member which has to join again owns nothing. When all is quiet after a round of faults: memory and log.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kreplica._core.records import batches
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import DamagedLog, InvalidCrc
from kreplica.common.share_state import SharePartitionKey
from kreplica.common.types import TopicPartition
from kreplica.coordinator.classic_group import ClassicGroup
from kreplica.coordinator.consumer_group import ConsumerGroup
from kreplica.coordinator.group_coordinator import GroupCoordinator
from kreplica.coordinator.group_store import GroupShard
from kreplica.coordinator.modern_group import ModernGroup, ReconciledGroup
from kreplica.coordinator.share_group import ShareGroup
from kreplica.coordinator.share_group_offset import ShareGroupOffset
from kreplica.coordinator.streams_group import StreamsGroup
from kreplica.sim.invariants import group_rules as rules
from kreplica.sim.network import Message
from kreplica.sim.nodes.classic_members import ClassicMember, MixedMembers
from kreplica.sim.nodes.group_members import FENCED, ConsumerMembers, GroupMembers
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.share_checker import ShareChecker
from kreplica.sim.nodes.share_members import SHARE_STATE, ShareMembers
from kreplica.sim.nodes.streams_members import StreamsMember, StreamsMembers
from kreplica.sim.scheduler import SimEvent

# The loops of group coordinators, of the leaders of share partitions, and of share coordinators.
COORDINATOR_LOOP, SHARE_LOOP, STATE_LOOP = "groups", "share-partitions", "share-coordinator"
HEARTBEATS = frozenset({"ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"})
SYNC = "SyncGroup"


class CommittedEpochs:
    """The epochs of members in the committed part of the group's partition, read up to `offset`."""

    def __init__(self) -> None:
        self.offset = 0
        self.known: set[tuple[str, str, int]] = set()

    def read(self, log: Any) -> bool:
        """Read on up to the log's high watermark; return False if what is next has rotted."""
        try:
            while self.offset < log.high_watermark:
                read = log.read(self.offset, rules.READ_BYTES, isolation="high_watermark")
                found = list(batches(read.records))
                for batch in found:
                    self.known.update(rules.epochs_in(batch))
                    self.offset = batch.next_offset
                if not found:
                    break
        except (DamagedLog, InvalidCrc):
            return False
        return True


class GroupChecker:
    """Checks `cluster` from now on, beside its `checker`."""

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, members: GroupMembers) -> None:
        self._cluster = cluster
        self._checker = checker
        self._members = members
        self._asked: dict[int, Any] = {}  # requests by their number
        self._answered: list[partial[None]] = []
        self._committed = CommittedEpochs()
        self._states: dict[SharePartitionKey, ShareGroupOffset] = {}
        self._shares: ShareChecker | None = None
        if isinstance(members, ShareMembers):
            self._shares = ShareChecker(cluster, checker, members)
        checker.heard |= HEARTBEATS | {SYNC}
        checker.message_listeners.append(self._heard)
        checker.event_listeners.append(self._after)

    # ---- after an event -----------------------------------------------------------------------------------

    def _after(self, event: SimEvent | None) -> None:
        answered, self._answered = self._answered, []
        if self._members.is_void():
            return
        for check in answered:
            check()
        if event is not None and event.summary == COORDINATOR_LOOP:
            coordinator = self._coordinator(event.node_id)
            for shard in () if coordinator is None else coordinator.shards:
                if shard.is_current:
                    self._check_groups(coordinator, shard)
        elif event is not None and event.summary == SHARE_LOOP and self._shares is not None:
            self._shares.look(event.node_id)
        elif event is not None and event.summary == STATE_LOOP:
            self._check_states(event.node_id)

    def _check_groups(self, coordinator: Any, shard: GroupShard) -> None:
        for groups in coordinator._kinds:
            for group in groups.groups_of(shard):
                is_reconciled = isinstance(group, ReconciledGroup)
                rules.check_6_members(group)
                rules.check_2_epochs(group)
                rules.check_11_timers(groups.timers_of(shard), group, is_reconciled=is_reconciled)
                if isinstance(group, ConsumerGroup):
                    rules.check_1_owners(group)
                    rules.check_3_states(group, groups._topics.name_of)
                    rules.check_10_instances(group)
                    rules.check_12_regexes(group)
                    rules.check_13_targets(group)
                elif isinstance(group, StreamsGroup):
                    rules.check_28_tasks(group)
                elif isinstance(group, ShareGroup):
                    rules.check_27_initialized(group, groups._topics.name_of)

    def _check_states(self, node_id: int) -> None:
        """Compare what is committed at a share coordinator with what was so before."""
        node = self._cluster.node(node_id)
        publisher = None if node is None else node._share_publisher
        views = self._checker.view.partitions
        for shard in () if publisher is None else publisher._states.shards:
            view = views.get(TopicPartition(SHARE_STATE, shard.partition))
            is_leader = view is not None and view.decided is not None and view.decided.leader == node_id
            if not (is_leader and shard.is_active and shard.is_current and shard.writer.is_idle):
                continue
            for at, state in shard.states.items():
                before = self._states.get(at)
                if before is not None:
                    rules.check_24_states(before, state, at)
                self._states[at] = state

    def _heard(self, what: str, message: Message) -> None:
        if message.name not in HEARTBEATS and message.name != SYNC:
            return
        if message.is_request:
            if what == "taken":
                self._asked[message.number] = message.body
        elif what == "sent":
            asked, answer = self._asked.get(message.number), message.body
            if asked is None or answer is None:
                return
            if message.name == SYNC:
                if answer.error_code is ErrorCode.none:
                    key = asked.group_id, asked.member_id, asked.generation_id
                    self._answered += [
                        partial(check, message.sender_id, key)
                        for check in (self._check_19_generation, self._check_4_committed)
                    ]
                return
            if answer.error_code in FENCED and asked.member_epoch > 0:
                self._answered.append(
                    partial(self._check_18_fenced, message.sender_id, asked, answer.error_code.name)
                )
            elif answer.error_code is ErrorCode.none and answer.member_epoch > 0:
                key = asked.group_id, answer.member_id, answer.member_epoch
                self._answered.append(partial(self._check_4_committed, message.sender_id, key))

    def _check_19_generation(self, node_id: int, member: tuple[str, str, int]) -> None:
        """19. No assignment of a generation is given once the next one was started."""
        group_id, _, generation = member
        coordinator = self._coordinator(node_id)
        for shard in () if coordinator is None else coordinator.shards:
            group = shard.groups.get(group_id)
            if isinstance(group, ClassicGroup) and generation != group.generation_id:
                facts = f"node {node_id} gives an assignment to {member} in generation {group.generation_id}"
                raise rules.violated("19", facts)

    def _check_18_fenced(self, node_id: int, asked: Any, answer: str) -> None:
        coordinator = self._coordinator(node_id)
        for shard in () if coordinator is None else coordinator.shards:
            group = shard.groups.get(asked.group_id)
            if isinstance(group, ConsumerGroup):
                rules.check_18_fenced(group, asked.member_id, asked.member_epoch, answer)

    def _check_4_committed(self, node_id: int, key: tuple[str, str, int]) -> None:
        """4. No answer leaves before its records are below the high watermark."""
        at, node = self._members.partition(), self._cluster.node(node_id)
        if node is None or node.broker is None or at is None or node_id != self._members.coordinator():
            return
        hosted = node.broker.replica_manager.partitions.get(at)
        if hosted is None or hosted.log is None or not hosted.is_leader:
            return
        if self._committed.read(hosted.log) and key not in self._committed.known:
            raise rules.violated("4", f"node {node_id} answers {key}, which is not below the high watermark")

    def _coordinator(self, node_id: int) -> GroupCoordinator | None:
        node = self._cluster.node(node_id)
        return None if node is None else node.group_coordinator

    def _shard(self) -> GroupShard | None:
        """Return the loaded partition of the group."""
        at, leader = self._members.partition(), self._members.coordinator()
        coordinator = None if leader is None else self._coordinator(leader)
        if coordinator is None or at is None:
            return None
        return next((each for each in coordinator.shards if each.partition == at.partition), None)

    # ---- when all is quiet --------------------------------------------------------------------------------

    def ails(self) -> Iterator[str]:
        """Yield what is not at rest yet."""
        members = self._members
        if members.is_void():
            return
        shard = self._shard()
        if shard is None or not shard.writer.is_idle:
            yield f"16: the coordinator of {members.group_id} is not loaded or writes"
            return
        if any(each.leaves or not each.epoch for each in members.live):
            yield f"16: some of {members.live} have not joined or left"
        yield from members.ails()
        if self._shares is not None:
            yield from self._shares.ails()
        group = shard.groups.get(members.group_id)
        if isinstance(members, ConsumerMembers) and isinstance(group, ConsumerGroup):
            yield from rules.awaits_16_stable(group, {each.name for each in members.live})
            for each in members.live:
                held = rules.work_of(group.current.get(each.name))
                if isinstance(members, MixedMembers) and isinstance(each, ClassicMember):
                    held = members.known(held)
                if each.owned != held:
                    yield f"16: {each} owns {each.owned}, not {held}"
        if isinstance(members, MixedMembers) and isinstance(group, ClassicGroup):
            yield from rules.awaits_16_classic(group, {each.name: each.epoch for each in members.live})
        if isinstance(members, StreamsMembers) and isinstance(group, StreamsGroup) and members.is_readable():
            yield from rules.awaits_16_stable(group, {each.name for each in members.live})
            for each in members.live:
                assert isinstance(each, StreamsMember)
                tasks = rules.tasks_of(group.current.get(each.name))
                if each.tasks != tasks:
                    yield f"16: {each} has the tasks {each.tasks}, not {tasks}"

    def check_quiet(self) -> None:
        """Check memory and logs. Raises InvariantViolated."""
        shard = self._shard()
        if shard is None or self._members.is_void():
            return
        node = self._cluster.node(self._members.coordinator() or 0)
        assert node is not None
        assert node.broker is not None
        at = self._members.partition()
        assert at is not None
        hosted = node.broker.replica_manager.partitions.get_or_error(at)
        rules.check_5_memory(shard, hosted.log, self._cluster.now_ms())
        if self._shares is not None:
            self._shares.check_quiet()
        group = shard.groups.get(self._members.group_id)
        if isinstance(self._members, MixedMembers):
            is_classic = bool(self._members.live) and not self._members.has_modern()
            if isinstance(group, ClassicGroup) and (is_classic or not self._members.live):
                return
            if is_classic:
                raise rules.violated("14", f"{group} has only members by the classic protocol")
        if group is not None and not isinstance(group, ModernGroup):
            raise rules.violated("15", f"{self._members.group_id} is a {type(group).__name__}")
