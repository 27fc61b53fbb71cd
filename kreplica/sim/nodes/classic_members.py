"""MixedMembers: members of one group by the classic protocol and by the consumer protocol (KIP-848).

The group is converted while it has members: to a consumer group when the first member by the consumer
protocol joins, and to a classic group when the last one of them has gone. In some runs a ClassicMember gives
up all its partitions before it joins again (eager), in others it keeps those that it is still assigned, and
joins once more when it has given up the others (cooperative, KIP-429). Some are static (KIP-345). As the
leader of a classic group it assigns ranges.

The checks are the invariants `Groups-N`, beside those of GroupChecker. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kreplica.client.group_messages import (
    NO_GENERATION,
    RANGE,
    Membership,
    assign_ranges,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kreplica.common.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_cooperative_subscription,
    partitions_in,
)
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import replace
from kreplica.common.messages.groups import JoinGroupRequestProtocol
from kreplica.common.types import TopicPartition
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.group_members import (
    FENCED,
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_MS,
    WRONG,
    ConsumerMember,
    ConsumerMembers,
    Steps,
    Work,
)
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient

# A member waits for the others for the rebalance timeout at most, and then for the log.
PATIENCE_MS = 3 * REBALANCE_MS
# Beside those of all groups.
SETTINGS = {"group.min.session.timeout.ms": SESSION_MS, "group.initial.rebalance.delay.ms": SESSION_MS // 4}
COOPERATIVE = "cooperative-ranges"


def assign_ranges_cooperatively(
    subscriptions: Mapping[str, ConsumerProtocolSubscription], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member, without those that another one has to give up first.

    A member that has missed a generation may still believe to own what is another's now.
    """
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for member_id, each in subscriptions.items():
        for at in partitions_in(each.owned_partitions):
            owners[at] = max(owners.get(at, (NO_GENERATION, "")), (each.generation_id, member_id))
    topics = {member_id: each.topics for member_id, each in subscriptions.items()}
    return {
        member_id: [at for at in assigned if owners.get(at, (NO_GENERATION, member_id))[1] == member_id]
        for member_id, assigned in assign_ranges(topics, partition_counts).items()
    }


class ClassicMember(ConsumerMember):
    """A member by the classic protocol. `epoch`: its generation, 0 while it joins; `name`: its member id."""

    _members: MixedMembers

    def __init__(
        self, members: MixedMembers, client: SimClient, name: str, random: Random, instance_id: str | None
    ) -> None:
        super().__init__(members, client, name, random, instance_id)
        self._member_id = ""
        self._generation = 0  # the last one that it joined
        # The last one that has assigned it something. One that has not is not stored: after a fail-over its
        # number comes again.
        self._stored = 0

    def subscribe(self, random: Random) -> None:
        """Subscribe to other topics."""
        self._is_declared = False
        names = self._members.topic_names()
        self.topics, self.regex = tuple(each for each in names if random.randrange(3)), ""

    def give_up(self) -> None:
        super().give_up()
        self._member_id, self._generation, self._stored = "", 0, 0

    def identity(self, generation: int) -> Membership:
        """Return what the requests of the generation name."""
        return Membership(self._members.group_id, generation, self._member_id, self.instance_id)

    # ---- steps --------------------------------------------------------------------------------------------

    def _beat(self) -> Steps:
        """Send a heartbeat, join or leave; return whether the member has left."""
        sent_ms = self._members.now_ms()
        if self.leaves:
            return (yield from self._leave())
        if self.epoch and not self.is_careless and sent_ms >= self.valid_ms:
            self.give_up()
        if not self.epoch or not self._is_declared:
            yield from self._join()
            return False
        answer = yield from self.ask_coordinator(heartbeat_request(self.identity(self.epoch)))
        code = ErrorCode.network_exception if answer is None else answer.error_code
        if code in (NONE, ErrorCode.rebalance_in_progress):
            self.valid_ms, self.lost = sent_ms + SESSION_MS, 0
        if code is ErrorCode.rebalance_in_progress:
            self.epoch = JOIN_EPOCH
        self._refused(code, answer)
        return False

    def _leave(self) -> Steps:
        self.owned = frozenset()
        if not self._member_id or self.leaves == LEAVE_STATIC_EPOCH:
            return True  # a static member comes back without notice
        answer = yield from self.ask_coordinator(leave_request(self.identity(NO_GENERATION)))
        code = ErrorCode.network_exception if answer is None else answer.error_code
        self._refused(code, answer)
        return code is NONE

    def _join(self) -> Steps:
        if not self._members.is_cooperative:
            self.owned = self._target = frozenset()
        self.epoch, self._is_declared = JOIN_EPOCH, True
        # A group that all members have left is forgotten when one of the other protocol joins. Its numbers
        # begin again, also for a member that was cut off meanwhile and takes itself for one.
        is_member = self._members.now_ms() + REQUEST_TIMEOUT_MS <= self.valid_ms
        answer = yield from self.ask_coordinator(self._join_request(), PATIENCE_MS)
        code = ErrorCode.network_exception if answer is None else answer.error_code
        if code in (NONE, ErrorCode.member_id_required):
            self._member_id = self.name = answer.member_id
        if code is NONE and not self.leaves:
            if is_member and answer.generation_id < self._stored:
                self._members.violated("14", f"{self} joins generation {answer.generation_id}")
            before, self._generation = self._generation, answer.generation_id
            if 0 < before < self._generation and self._random.randrange(2):
                # A request of the generation before that comes late; GroupChecker looks at its answer.
                yield from self.ask_coordinator(sync_request(self.identity(before), {}))
            yield from self._sync(answer)
        self._refused(code, answer)

    def _join_request(self) -> Any:
        topics = self.topics or ()
        request = join_request(
            self.identity(NO_GENERATION),
            topics,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        if not self._members.is_cooperative:
            return request
        metadata = encode_cooperative_subscription(
            topics, self._members.named(self.owned), self._generation or NO_GENERATION
        )
        protocol = JoinGroupRequestProtocol(name=COOPERATIVE, metadata=metadata)
        return replace(request, protocols=(protocol,))

    def _sync(self, joined: Any) -> Steps:
        members, sent_ms, assigned = self._members, self._members.now_ms(), {}
        if joined.leader == self._member_id and not joined.skip_assignment:
            subscriptions = {each.member_id: decode_subscription(each.metadata) for each in joined.members}
            # An eager member owns nothing when it joins.
            assigned = assign_ranges_cooperatively(subscriptions, members.partition_counts())
        identity = self.identity(joined.generation_id)
        request = replace(sync_request(identity, assigned), protocol_name=members.protocol)
        answer = yield from self.ask_coordinator(request, PATIENCE_MS)
        code = ErrorCode.network_exception if answer is None else answer.error_code
        self._refused(code, answer)
        if code is NONE and not self.leaves:
            found = partitions_in(decode_assignment(answer.assignment).assigned_partitions)
            self.epoch, self.valid_ms, self.lost = joined.generation_id, sent_ms + SESSION_MS, 0
            self._stored = joined.generation_id
            self._target = members.work_named(found)
            members.counts["assignments of classic members"] += 1
            gives_up = members.is_cooperative and not self.owned <= self._target
            self._own_target()
            if gives_up:
                # Others get it in the next generation.
                self._is_declared = False
                members.counts["partitions given up cooperatively"] += 1

    def _refused(self, code: ErrorCode, answer: Any) -> None:
        """Take note of an error."""
        if code in WRONG:
            raise InvariantViolated("Answer", f"{self} is answered {answer}")
        self.lost += code is not NONE and code is not ErrorCode.rebalance_in_progress
        if code in FENCED:
            self._members.fenced(self, code)
            self.give_up()
        elif code is ErrorCode.illegal_generation:
            self.owned, self.epoch = frozenset(), JOIN_EPOCH
        elif code in NOT_COORDINATOR:
            self._coordinator = None


class MixedMembers(ConsumerMembers):
    """The members of a group by both protocols. `protocol`: the assignor of those by the classic one."""

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        super().__init__(cluster, checker, counts)
        self.is_cooperative = Random(f"{cluster.seed}/cooperative").randrange(2) == 0
        self.protocol = COOPERATIVE if self.is_cooperative else RANGE

    def new_member(self, client: SimClient, name: str, random: Random) -> ConsumerMember:
        if random.randrange(2):
            self.counts["classic members started"] += 1
            member = self.identified(ClassicMember, client, name, random)
            self.counts["static classic members started"] += member.instance_id is not None
            return member
        return super().new_member(client, name, random)

    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has that the group may read."""
        topics = self.checker.word.now.topics
        return {name: len(topics[name].partitions) for name in self.topic_names()}

    def work_named(self, partitions: Any) -> frozenset[Work]:
        """Return partitions by their topics' ids, without those whose topic cannot be known by its name."""
        topics = self.checker.word.now.topics
        return self.known(
            frozenset((topics[at.topic].topic_id, at.partition) for at in partitions if at.topic in topics)
        )

    def named(self, work: frozenset[Work]) -> Sequence[TopicPartition]:
        """Return partitions by their topics' names, without those whose topic cannot be known by it."""
        names = ((self.name_of(topic_id), number) for topic_id, number in sorted(work))
        return [TopicPartition(name, number) for name, number in names if name is not None]

    def known(self, work: frozenset[Work]) -> frozenset[Work]:
        """Return the work without that in topics which cannot be known by their names."""
        return frozenset(at for at in work if self.name_of(at[0]) is not None)

    def has_modern(self) -> bool:
        """Whether a live member uses the consumer protocol."""
        return not all(isinstance(each, ClassicMember) for each in self.live)
