"""ShareChecker: checks what becomes of the records of a share group, in a run of whole nodes.

A record that is never delivered again was accepted or rejected by a member, or acquired as often as the limit
allows. That must hold for what a partition's leader has in memory, and for what the share coordinator has
stored: an acknowledgement whose answer says that nothing was changed is in neither. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kreplica.common.error_code import ErrorCode
from kreplica.common.share_state import ACKNOWLEDGED, ARCHIVED, ARCHIVING, SharePartitionKey
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.invariants import group_rules as rules
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.network import Message
from kreplica.sim.nodes.group_members import Work
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.share_members import ACCEPT, DELIVERY_LIMIT, REJECT, SHARE_STATE, ShareMembers

FETCH = "ShareFetch"
# Errors that say that an acknowledgement has changed nothing.
WITHOUT_EFFECT = frozenset(
    {
        *(ErrorCode.invalid_record_state, ErrorCode.invalid_request, ErrorCode.share_session_not_found),
        ErrorCode.invalid_share_session_epoch,
    }
)
UNDELIVERED = frozenset({ACKNOWLEDGED, ARCHIVING, ARCHIVED})


class ShareChecker:
    """Checks the records that `members` get."""

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, members: ShareMembers) -> None:
        self._cluster = cluster
        self._checker = checker
        self._members = members
        # By partition and by request: the offsets that it accepts or rejects.
        self._settled: dict[Work, dict[int, set[int]]] = {}
        # The offsets that were acquired as often as possible.
        self._spent: dict[Work, set[int]] = {}
        checker.heard |= {FETCH}
        checker.message_listeners.append(self._heard)

    def _heard(self, what: str, message: Message) -> None:
        if message.name != FETCH or message.body is None:
            return
        if message.is_request:
            if what == "taken":
                self._note(message.number, message.body)
        elif what == "sent":
            self._answered(message.number, message.body)

    def _note(self, number: int, request: Any) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                offsets = {
                    offset
                    for batch in partition.acknowledgement_batches
                    for offset, kind in zip(
                        range(batch.first_offset, batch.last_offset + 1), batch.acknowledge_types, strict=True
                    )
                    if kind in (ACCEPT, REJECT)
                }
                if offsets:
                    at = Uuid(topic.topic_id.bytes), partition.partition_index
                    self._settled.setdefault(at, {})[number] = offsets

    def _answered(self, number: int, answer: Any) -> None:
        if answer.error_code in WITHOUT_EFFECT:
            for requests in self._settled.values():
                requests.pop(number, None)
        for topic in answer.responses:
            for partition in topic.partitions:
                if partition.acknowledge_error_code in WITHOUT_EFFECT:
                    at = Uuid(topic.topic_id.bytes), partition.partition_index
                    self._settled.get(at, {}).pop(number, None)

    def look(self, node_id: int) -> None:
        """Look at the share partitions that the node leads, after an event of theirs."""
        for at, leader in self._leaders(node_id):
            rules.check_20_locks(leader.share, at)
            rules.check_21_counts(leader.share, at)
            rules.check_25_window(leader.share, at)
            for batch in leader.share.batches():
                if batch.delivery_count >= DELIVERY_LIMIT:
                    offsets = range(batch.first_offset, batch.last_offset + 1)
                    self._spent.setdefault((at.topic_id, at.partition), set()).update(offsets)

    def ails(self) -> Iterator[str]:
        """Yield the share partitions with records that belong to members which are gone."""
        live = {each.name for each in self._members.live}
        for node_id in self._cluster.broker_ids:
            for at, leader in self._leaders(node_id):
                yield from rules.awaits_25_released(leader.share, at, live)

    def check_quiet(self) -> None:
        """26. Check memory and logs. Raises InvariantViolated."""
        for node_id in self._cluster.broker_ids:
            for at, leader in self._leaders(node_id):
                found = (
                    leader.share.start_offset,
                    [
                        (each.first_offset, each.last_offset)
                        for each in leader.share.batches()
                        if each.state in UNDELIVERED
                    ],
                )
                view = self._view(at)
                if view is not None and view.decided is not None and view.decided.leader == node_id:
                    self._check_26_caused(at, view, *found, f"its leader {node_id}")
            for at, state in self._states(node_id):
                found = (
                    state.start_offset,
                    [
                        (each.first_offset, each.last_offset)
                        for each in state.batches
                        if each.delivery_state in UNDELIVERED
                    ],
                )
                view = self._view(at)
                if view is not None:
                    self._check_26_caused(at, view, *found, f"its share coordinator {node_id}")

    def _check_26_caused(
        self,
        at: SharePartitionKey,
        view: PartitionView,
        start_offset: int,
        settled: Iterable[tuple[int, int]],
        where: str,
    ) -> None:
        work = at.topic_id, at.partition
        caused = self._spent.get(work, set()).union(*self._settled.get(work, {}).values())
        undelivered = {offset for first, last in settled for offset in range(first, last + 1)}
        lost = [
            offset
            for offset in self._members.records_of(view)
            if offset not in caused and (offset < start_offset or offset in undelivered)
        ]
        if lost:
            facts = f"{lost} of {at} are not delivered again, by {where}"
            raise rules.violated("26", f"{facts}, and no member has accepted or rejected them")

    # ---- what there is ------------------------------------------------------------------------------------

    def _leaders(self, node_id: int) -> Iterator[tuple[SharePartitionKey, Any]]:
        """Iterate over the share partitions whose state the node has read."""
        node = self._cluster.node(node_id)
        shares = None if node is None else node._shares
        for at, leader in {} if shares is None else shares.manager._leaders.items():
            if leader.share is not None:
                yield at, leader

    def _states(self, node_id: int) -> Iterator[tuple[SharePartitionKey, Any]]:
        """Iterate over what is committed at the share coordinator of the node."""
        node = self._cluster.node(node_id)
        publisher = None if node is None else node._share_publisher
        for shard in () if publisher is None else publisher._states.shards:
            view = self._checker.view.partitions.get(TopicPartition(SHARE_STATE, shard.partition))
            is_leader = view is not None and view.decided is not None and view.decided.leader == node_id
            if is_leader and shard.is_active and shard.is_current and shard.writer.is_idle:
                yield from shard.states.items()

    def _view(self, at: SharePartitionKey) -> PartitionView | None:
        """Return the partition, unless its records may be lost or it is deleted."""
        name = self._members.name_of(at.topic_id)
        view = None if name is None else self._checker.view.partitions.get(TopicPartition(name, at.partition))
        return None if view is None or view.leader is None or view.unclean_epoch >= 0 else view
