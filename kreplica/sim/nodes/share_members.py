"""ShareMembers: the members of a share group (KIP-932) in a random run, and the records that they get.

A member sends heartbeats to the group's coordinator. From each partition that it is assigned it fetches
records of the leader, and accepts, releases or rejects them with its next fetch there, or holds them until
their lock times out. The group begins with the earliest records.

The checks: a record belongs to one member within its lock, is not delivered again once an acceptance was
confirmed, and not more often than the limit. In the end each record was delivered. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

from kreplica.common.dataclass import dataclass
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.groups import FindCoordinatorRequest
from kreplica.common.messages.share_groups import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import uuid_of
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.group_members import (
    FENCED,
    JOIN_EPOCH,
    LOCK_MS,
    NONE,
    WRONG,
    GroupMember,
    GroupMembers,
    Steps,
    Work,
    work_of,
)
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient

SHARE_STATE = "__share_group_state"
SHARE = 2
DELIVERY_LIMIT = 2
MOST_RECORDS = 20
# The least that a group may have.
MOST_LOCKS = 100
ACCEPT, RELEASE, REJECT = 1, 2, 3
NO_TIME = timedelta(0)


@dataclass(slots=True)
class Delivery:
    """Records that a member has acquired from a leader of an epoch, None if unknown, until `until_ms`."""

    member: ShareMember
    leader: tuple[int, int] | None
    offsets: range
    until_ms: int


class ShareMember(GroupMember):
    """A member of a share group. It fetches from a partition by a session of its own with the leader."""

    _members: ShareMembers

    def __init__(self, members: ShareMembers, client: SimClient, name: str, random: Random) -> None:
        super().__init__(members, client, name, random)
        # A member that joins has to name a topic, whether it exists or not.
        self.topics = tuple(members.topic_names()) or ("missing",)
        self._is_declared = False
        # By leader: the epoch of the next request of its session. By partition: what is to be acknowledged.
        self._sessions: Counter[int] = Counter()
        self._acquired: dict[Work, Delivery] = {}

    def heartbeat(self) -> Any:
        is_full = self.epoch == JOIN_EPOCH or self.lost > 0 or not self._is_declared
        self._is_declared = True
        return ShareGroupHeartbeatRequest(
            group_id=self._members.group_id,
            member_id=self.name,
            member_epoch=self.leaves or self.epoch,
            subscribed_topic_names=self.topics if is_full else None,
        )

    def take(self, answer: Any) -> None:
        if answer.assignment is not None and not self.leaves:
            self._members.counts["share assignments taken"] += 1
            self.owned = work_of(answer.assignment.topic_partitions)

    def work(self) -> Steps:
        """Fetch from a partition, and acknowledge what came before from there."""
        if not self.owned:
            return
        at = self._random.choice(sorted(self.owned))
        leader = self._members.leader(at)
        if leader is None:
            return
        acknowledged = self._acquired.pop(at, None)
        kinds = self._kinds(acknowledged)
        is_open = self._sessions[leader[0]] > 0
        if acknowledged is not None and kinds and is_open and acknowledged.leader == leader:
            batch = AcknowledgementBatch(
                first_offset=acknowledged.offsets.start,
                last_offset=acknowledged.offsets.stop - 1,
                acknowledge_types=kinds,
            )
            batches: tuple[AcknowledgementBatch, ...] = (batch,)
            if RELEASE in kinds:
                self._members.release(at, acknowledged)
        else:
            batches = ()
        sent_ms, node_id = self._members.now_ms(), leader[0]
        # The answer may have records of all partitions of the session.
        leaders = {each: self._members.leader(each) for each in self.owned}
        answer = yield from self.ask(node_id, self._fetch(at, self._sessions[node_id], batches))
        if answer is None or answer.error_code is not NONE:
            self._session_failed(node_id, answer)
            return
        self._sessions[node_id] += 1
        for topic in answer.responses:
            for found in topic.partitions:
                where = Uuid(topic.topic_id.bytes), found.partition_index
                if where == at and batches and found.acknowledge_error_code is NONE:
                    self._members.acknowledged(at, batches[0])
                if found.error_code is NONE:
                    self._got(where, leaders.get(where), found.acquired_records, sent_ms)

    def _kinds(self, acknowledged: Delivery | None) -> tuple[int, ...]:
        if acknowledged is None or self._random.randrange(8) == 0:
            return ()
        kinds = (ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT)
        return tuple(self._random.choice(kinds) for _ in acknowledged.offsets)

    def _fetch(self, at: Work, epoch: int, batches: tuple[AcknowledgementBatch, ...]) -> ShareFetchRequest:
        partition = ShareFetchPartition(partition_index=at[1], acknowledgement_batches=batches)
        return ShareFetchRequest(
            group_id=self._members.group_id,
            member_id=self.name,
            share_session_epoch=epoch,
            max_wait=NO_TIME,
            min_bytes=0,
            max_records=MOST_RECORDS,
            batch_size=MOST_RECORDS,
            topics=(ShareFetchTopic(topic_id=uuid_of(at[0]), partitions=(partition,)),),
            forgotten_topics_data=(),
        )

    def _session_failed(self, node_id: int, answer: Any) -> None:
        """Begin another session there; the leader may have released what the member has."""
        code = ErrorCode.network_exception if answer is None else answer.error_code
        if code in WRONG:
            raise InvariantViolated("Answer", f"{self} is answered {answer}")
        if code in FENCED:
            return
        self._sessions[node_id] = 0
        self._members.forget(self)
        self._acquired.clear()

    def _got(self, at: Work, leader: tuple[int, int] | None, acquired: Any, sent_ms: int) -> None:
        for each in acquired:
            offsets = range(each.first_offset, each.last_offset + 1)
            delivery = Delivery(self, leader, offsets, sent_ms + LOCK_MS)
            self._members.delivered(at, delivery, each.delivery_count)
            self._acquired[at] = delivery


class ShareMembers(GroupMembers):
    """The members of a share group."""

    kind: ClassVar[str] = "share"

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        super().__init__(cluster, checker, counts)
        self._held: dict[Work, list[Delivery]] = {}
        self._accepted: dict[Work, set[int]] = {}
        self._delivered: dict[Work, set[int]] = {}

    def prepare(self) -> None:
        super().prepare()
        key = f"{self.group_id}:{Uuid(bytes(15) + bytes([7]))}:0"
        self.make_topic(SHARE_STATE, FindCoordinatorRequest(key_type=SHARE, coordinator_keys=(key,)))
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(DELIVERY_LIMIT),
            "share.partition.max.record.locks": str(MOST_LOCKS),
        }
        self.cluster.result(self.cluster.client.admin.alter_config(self.group_id, settings, kind="group"))

    def new_member(self, client: SimClient, name: str, random: Random) -> ShareMember:
        return ShareMember(self, client, name, random)

    def leader(self, at: Work) -> tuple[int, int] | None:
        """Return the leader of the partition and its epoch by the controller."""
        name = self.name_of(at[0])
        view = None if name is None else self.checker.view.partitions.get(TopicPartition(name, at[1]))
        if view is None or view.decided is None or view.decided.leader < 0 or view.unclean_epoch >= 0:
            return None
        return view.decided.leader, view.decided.leader_epoch

    def delivered(self, at: Work, delivery: Delivery, count: int) -> None:
        """20, 21, 22. Check records that a member has acquired."""
        self.counts["records acquired by members"] += len(delivery.offsets)
        new, now_ms = set(delivery.offsets), self.now_ms()
        self._delivered.setdefault(at, set()).update(new)
        if delivery.leader is None or self.leader(at) != delivery.leader:
            return
        again = new & self._accepted.get(at, set())
        if again:
            self.violated("22", f"{delivery.member} gets {sorted(again)} of {at}, which were accepted")
        if count > DELIVERY_LIMIT:
            self.violated("21", f"{delivery.member} gets {delivery.offsets} of {at} for the {count}th time")
        held = [each for each in self._held.get(at, ()) if each.until_ms > now_ms]
        for each in held:
            both = new & set(each.offsets)
            if both and each.member is not delivery.member and each.leader == delivery.leader:
                self.violated("20", f"{sorted(both)} of {at} belong to {each.member} and {delivery.member}")
        self._held[at] = [*held, delivery]

    def release(self, at: Work, delivery: Delivery) -> None:
        """Let others have the records, or some of them."""
        self._held[at] = [each for each in self._held.get(at, ()) if each is not delivery]

    def forget(self, member: ShareMember) -> None:
        """Take note that leaders may have released what the member has."""
        for at, held in self._held.items():
            self._held[at] = [each for each in held if each.member is not member]

    def acknowledged(self, at: Work, batch: AcknowledgementBatch) -> None:
        """Take note that an acknowledgement was confirmed."""
        kinds = zip(range(batch.first_offset, batch.last_offset + 1), batch.acknowledge_types, strict=True)
        accepted = {offset for offset, kind in kinds if kind in (ACCEPT, REJECT)}
        self._accepted.setdefault(at, set()).update(accepted)
        self.counts["acknowledgements of members"] += 1

    def records_of(self, view: PartitionView) -> Iterator[int]:
        """Iterate over the offsets of the committed records of a partition that has a leader."""
        assert view.leader is not None
        for offset in range(view.leader.log_start, len(view.committed)):
            cell = view.committed[offset]
            # The values of markers begin with a byte that is not alphanumeric.
            if cell is not None and (cell.value or b"")[:1].isalnum():
                yield offset

    def ails(self) -> Iterator[str]:
        """Yield the partitions with records that were not delivered."""
        for at in sorted({at for each in self.live for at in each.owned}):
            name = self.name_of(at[0])
            view = None if name is None else self.checker.view.partitions.get(TopicPartition(name, at[1]))
            if view is None or view.leader is None or view.unclean_epoch >= 0:
                continue
            delivered = self._delivered.get(at, ())
            missing = [offset for offset in self.records_of(view) if offset not in delivered]
            if missing:
                yield f"22: {missing} of {at} were not delivered"
