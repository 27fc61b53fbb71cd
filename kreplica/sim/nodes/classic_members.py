"""MixedMembers: members of one group by the classic protocol and by the consumer protocol (KIP-848).

The group is converted while it has members: to a consumer group when the first member by the consumer
protocol joins, and to a classic group when the last one of them has gone. A ClassicMember gives up all its
partitions before it joins again; as the leader of a classic group it assigns ranges.

The checks are the invariants `Groups-N`, beside those of GroupChecker. Thread rule: one thread.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kreplica.client.group_messages import (
    NO_GENERATION,
    Membership,
    assign_ranges,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kreplica.common.consumer_protocol import decode_assignment, partitions_in, subscribed_topics
from kreplica.common.error_code import ErrorCode
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.group_members import (
    FENCED,
    JOIN_EPOCH,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_MS,
    SESSION_MS,
    WRONG,
    ConsumerMember,
    ConsumerMembers,
    Steps,
    Work,
)
from kreplica.sim.nodes.node_cluster import SimClient

# A member waits for the others for the rebalance timeout at most, and then for the log.
PATIENCE_MS = 3 * REBALANCE_MS
# Beside those of all groups.
SETTINGS = {"group.min.session.timeout.ms": SESSION_MS, "group.initial.rebalance.delay.ms": SESSION_MS // 4}


class ClassicMember(ConsumerMember):
    """A member by the classic protocol. `epoch`: its generation, 0 while it joins; `name`: its member id."""

    _members: MixedMembers

    def __init__(self, members: MixedMembers, client: SimClient, name: str, random: Random) -> None:
        super().__init__(members, client, name, random, None)
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
        return Membership(self._members.group_id, generation, self._member_id, None)

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
        if not self._member_id:
            return True
        answer = yield from self.ask_coordinator(leave_request(self.identity(NO_GENERATION)))
        code = ErrorCode.network_exception if answer is None else answer.error_code
        self._refused(code, answer)
        return code is NONE

    def _join(self) -> Steps:
        self.owned, self._target, self.epoch = frozenset(), frozenset(), JOIN_EPOCH
        self._is_declared = True
        request = join_request(
            self.identity(NO_GENERATION),
            self.topics or (),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        answer = yield from self.ask_coordinator(request, PATIENCE_MS)
        code = ErrorCode.network_exception if answer is None else answer.error_code
        if code in (NONE, ErrorCode.member_id_required):
            self._member_id = self.name = answer.member_id
        if code is NONE and not self.leaves:
            if answer.generation_id < self._stored:
                self._members.violated("14", f"{self} joins generation {answer.generation_id}")
            before, self._generation = self._generation, answer.generation_id
            if 0 < before < self._generation and self._random.randrange(2):
                # A request of the generation before that comes late; GroupChecker looks at its answer.
                yield from self.ask_coordinator(sync_request(self.identity(before), {}))
            yield from self._sync(answer)
        self._refused(code, answer)

    def _sync(self, joined: Any) -> Steps:
        members, sent_ms, assigned = self._members, self._members.now_ms(), {}
        if joined.leader == self._member_id and joined.members:
            subscriptions = {each.member_id: subscribed_topics(each.metadata) for each in joined.members}
            assigned = assign_ranges(subscriptions, members.partition_counts())
        identity = self.identity(joined.generation_id)
        answer = yield from self.ask_coordinator(sync_request(identity, assigned), PATIENCE_MS)
        code = ErrorCode.network_exception if answer is None else answer.error_code
        self._refused(code, answer)
        if code is NONE and not self.leaves:
            found = partitions_in(decode_assignment(answer.assignment).assigned_partitions)
            self.epoch, self.valid_ms, self.lost = joined.generation_id, sent_ms + SESSION_MS, 0
            self._stored = joined.generation_id
            self._target = members.work_named(found)
            members.counts["assignments of classic members"] += 1
            self._own_target()

    def _refused(self, code: ErrorCode, answer: Any) -> None:
        """Take note of an error."""
        if code in WRONG:
            raise InvariantViolated("Answer", f"{self} is answered {answer}")
        self.lost += code is not NONE and code is not ErrorCode.rebalance_in_progress
        if code in FENCED:
            self._members.fenced(self, code)
            self.give_up()
        elif code is ErrorCode.illegal_generation:
            self.epoch = JOIN_EPOCH
        elif code in NOT_COORDINATOR:
            self._coordinator = None


class MixedMembers(ConsumerMembers):
    """The members of a group by both protocols."""

    def new_member(self, client: SimClient, name: str, random: Random) -> ConsumerMember:
        if random.randrange(2):
            self.counts["classic members started"] += 1
            return ClassicMember(self, client, name, random)
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

    def known(self, work: frozenset[Work]) -> frozenset[Work]:
        """Return the work without that in topics which cannot be known by their names."""
        return frozenset(at for at in work if self.name_of(at[0]) is not None)

    def has_modern(self) -> bool:
        """Whether a live member uses the consumer protocol."""
        return not all(isinstance(each, ClassicMember) for each in self.live)
