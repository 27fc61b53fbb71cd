"""GroupMembers: the members of one modern group in a random run, and what they are given.

A member finds its coordinator and sends heartbeats, as a stock client does. It gives work up and takes it as
the answers say, and joins anew when it is fenced. Members come, leave, die silently, sleep, and come back
with an old epoch. ConsumerMembers are those of a consumer group (KIP-848): some are static, they change their
subscriptions, and they commit and read offsets with their epochs.

The checks are the invariants `Groups-N`. What a coordinator that was replaced answers does not count: it may
not know yet, and a heartbeat that changes nothing waits for no replica. Thread rule: one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, ClassVar

from kreplica.common.dataclass import dataclass
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from kreplica.common.messages.groups import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of, uuid_of
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient

GROUP = "readers"
# Members that live at the same time, beside one that is leaving.
MOST_MEMBERS = 4
REQUEST_TIMEOUT_MS = 100
HEARTBEAT_MS = 40
SESSION_MS = 250
# Longer than a session: members give up partitions with their next heartbeats.
REBALANCE_MS = 2 * SESSION_MS
# Of the records that members of share groups have acquired.
LOCK_MS = 1_000
MILLISECOND = timedelta(milliseconds=1)
NONE = ErrorCode.none
FENCED = frozenset(
    {
        *(ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found),
        ErrorCode.fenced_instance_id,
    }
)
# Answers that no member may get for a request that is in order.
WRONG = frozenset({ErrorCode.unknown_server_error, ErrorCode.invalid_request, ErrorCode.unsupported_version})
NOT_COORDINATOR = frozenset(
    {
        *(ErrorCode.network_exception, ErrorCode.not_coordinator, ErrorCode.coordinator_not_available),
        ErrorCode.coordinator_load_in_progress,
    }
)
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
INSTANCES = ("one", "two")
# The version of OffsetCommit and OffsetFetch with a member's epoch.
OFFSETS_VERSION = 9
# Of all kinds of groups; times are short, so that they expire within few events.
SETTINGS = {
    f"group.{kind}.{least}{name}.ms": value
    for kind in ("consumer", "share", "streams")
    for least in ("min.", "")
    for name, value in (("session.timeout", SESSION_MS), ("heartbeat.interval", HEARTBEAT_MS))
} | {
    "offsets.topic.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 2,
    "group.streams.initial.rebalance.delay.ms": SESSION_MS // 4,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.min.record.lock.duration.ms": LOCK_MS,
}

# A partition of a topic by its id.
Work = tuple[Uuid, int]
# What a member does: it waits for the futures that it yields, or for a time in ms.
Steps = Generator[Any, Any, Any]


class GroupMember(ABC):
    """A member. `owned`: what it may work on until `valid_ms`. `epoch`: 0 until it has joined.

    `is_careless`: it does not notice by its own clock that its session is over. `leaves`: the epoch with
    which it leaves, 0 while it stays. `sleep_ms`: how long it is about to sleep.
    """

    def __init__(self, members: GroupMembers, client: SimClient, name: str, random: Random) -> None:
        self.name = name
        self.client = client
        self.owned: frozenset[Work] = frozenset()
        self.valid_ms = 0
        self.epoch = 0
        self.is_dead = False
        self.leaves = 0
        self.sleep_ms = 0
        # Requests without an answer since the last one.
        self.lost = 0
        self.is_careless = random.randrange(2) == 0
        self._members = members
        self._random = random
        self._coordinator: int | None = None
        self._loop = members.cluster.scheduler.loop(client.life, "client")

    def __repr__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, valid until {self.valid_ms} ms)"

    @property
    def is_valid(self) -> bool:
        """Whether it may count on what it owns."""
        return not self.is_dead and self._members.now_ms() < self.valid_ms

    @abstractmethod
    def heartbeat(self) -> Any:
        """Return the request of the next heartbeat."""

    @abstractmethod
    def take(self, answer: Any) -> None:
        """Take over what the answer assigns."""

    def work(self) -> Steps:
        """Do what members do between two heartbeats."""
        yield from ()

    def give_up(self) -> None:
        """Stop all work, and join anew."""
        self.owned, self.epoch, self.valid_ms, self.lost = frozenset(), JOIN_EPOCH, 0, 0

    # ---- steps --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._resume(self._run(), None)

    def _resume(self, steps: Steps, value: Any) -> None:
        if self.is_dead:
            return
        try:
            waits_for = steps.send(value)
        except StopIteration:
            self.is_dead = True
            return
        watched = self._members.checker.watched
        if isinstance(waits_for, Future):
            waits_for.add_done_callback(watched(partial(self._resume, steps)))
        else:
            again = watched(lambda _: self._resume(steps, None))
            self._loop.post_later(lambda: again(None), waits_for)

    def _run(self) -> Steps:
        while True:
            if self._coordinator is None:
                yield from self._find()
            elif (yield from self._beat()):
                return
            if self.sleep_ms:
                sleep_ms, self.sleep_ms = self.sleep_ms, 0
                yield sleep_ms
            if self.epoch and self._coordinator is not None and (self.is_careless or self.is_valid):
                yield from self.work()
            yield HEARTBEAT_MS // 2 + self._random.randrange(HEARTBEAT_MS)

    def ask(self, node_id: int, request: Any, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Steps:
        """Send a request; return the answer, or None without one."""
        done: Future[Any] = yield self.client.endpoint.send(node_id, request, timeout_ms=timeout_ms)
        error = done.exception()
        assert error is None or isinstance(error, KreplicaError), error
        return None if error is not None else done.result()

    def ask_coordinator(self, request: Any, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Steps:
        """As `ask`, but None also for an answer of one that was replaced."""
        node_id = self._coordinator
        assert node_id is not None
        answer = yield from self.ask(node_id, request, timeout_ms)
        return answer if self._members.coordinator() == node_id else None

    def _find(self) -> Steps:
        members = self._members
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=(members.group_id,))
        answer = yield from self.ask(self._random.choice(members.cluster.broker_ids), request)
        if answer is not None and answer.coordinators[0].error_code is NONE:
            self._coordinator = answer.coordinators[0].node_id

    def _beat(self) -> Steps:
        """Send a heartbeat; return whether the member has left."""
        members, sent_ms = self._members, self._members.now_ms()
        if self.epoch and not self.is_careless and sent_ms >= self.valid_ms:
            self.give_up()
        leaves = self.leaves
        if leaves:
            self.owned = frozenset()
        request = self.heartbeat()
        answer = yield from self.ask_coordinator(request)
        code = ErrorCode.network_exception if answer is None else answer.error_code
        if leaves and (code is NONE or code in FENCED):
            return True
        if code in WRONG:
            raise InvariantViolated("Answer", f"{self} is answered {answer} to {request}")
        if code is NONE:
            self._answered(sent_ms, answer)
            return False
        self.lost += 1
        if code in FENCED:
            members.fenced(self, code)
            self.give_up()
        elif code in NOT_COORDINATOR:
            self._coordinator = None
        return False

    def _answered(self, sent_ms: int, answer: Any) -> None:
        if answer.member_epoch < self.epoch:
            self._members.violated("2", f"{self} gets the epoch {answer.member_epoch}")
        self.epoch, self.lost = answer.member_epoch, 0
        self.valid_ms = sent_ms + SESSION_MS
        self.take(answer)


class GroupMembers(ABC):
    """The members of the group `group_id`. `kind`: of the group, in names of settings."""

    kind: ClassVar[str]
    group_id: ClassVar[str] = GROUP

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        self.cluster = cluster
        self.checker = checker
        self.counts = counts
        self.members: list[GroupMember] = []
        self._clients = [cluster.add_client() for _ in range(MOST_MEMBERS)]
        self._started = 0

    @abstractmethod
    def new_member(self, client: SimClient, name: str, random: Random) -> GroupMember:
        """Return a new member."""

    @abstractmethod
    def ails(self) -> Iterator[str]:
        """Yield what is wrong with the members when all is quiet."""

    def prepare(self) -> None:
        """Let the cluster create the coordinators' topic, which power cuts do not harm."""
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=(self.group_id,))
        self.make_topic(CONSUMER_OFFSETS, request)

    def make_topic(self, name: str, request: FindCoordinatorRequest) -> None:
        """Let the cluster create the topic of a coordinator, which power cuts do not harm."""
        client, cluster = self._clients[0], self.cluster
        while True:
            sent = client.endpoint.send(cluster.broker_ids[0], request, timeout_ms=REQUEST_TIMEOUT_MS)
            if cluster.result(sent).coordinators[0].error_code is NONE:
                break
            cluster.scheduler.run_for(HEARTBEAT_MS)
        cluster.result(cluster.client.admin.alter_config(name, {"durability": "fsync_quorum"}))

    # ---- operations ---------------------------------------------------------------------------------------

    @property
    def live(self) -> list[GroupMember]:
        """The members that have not died or left."""
        self.members = [each for each in self.members if not each.is_dead]
        return self.members

    def change(self, random: Random) -> None:
        """Let a member come, leave, die silently, or sleep."""
        live = self.live
        used = [each.client for each in live]
        free = [each for each in self._clients if each not in used]
        if free and random.randrange(2):
            self._started += 1
            name = f"member-{self._started}"
            member = self.new_member(free[0], name, Random(f"{self.cluster.seed}/{name}"))
            self.members.append(member)
            self.counts["group members started"] += 1
            member.start()
        elif live:
            self.disturb(random.choice(live), random)

    def disturb(self, member: GroupMember, random: Random) -> None:
        """Let something happen to the member."""
        match random.randrange(4):
            case 0:
                member.leaves = self.leave_epoch(member, random)
                self.counts["group members that left"] += 1
            case 1:
                member.is_dead = True
                self.counts["group members that died"] += 1
            case _:
                member.sleep_ms = random.randrange(3 * SESSION_MS)

    def leave_epoch(self, _member: GroupMember, _random: Random) -> int:
        """Return the epoch with which the member leaves."""
        return LEAVE_EPOCH

    # ---- what members need --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.cluster.now_ms()

    def partition(self) -> TopicPartition | None:
        """Return the partition of __consumer_offsets that has the group."""
        count = sum(at.topic == CONSUMER_OFFSETS for at in self.checker.view.partitions)
        return TopicPartition(CONSUMER_OFFSETS, partition_for(self.group_id, count)) if count else None

    def coordinator(self) -> int | None:
        """Return the group's coordinator by the controller."""
        at = self.partition()
        view = None if at is None else self.checker.view.partitions.get(at)
        return None if view is None or view.decided is None else view.decided.leader

    def is_void(self) -> bool:
        """Whether the group's state may be lost."""
        views = self.checker.view.partitions
        return any(view.unclean_epoch >= 0 for at, view in views.items() if is_coordinators(at))

    def topic_names(self) -> list[str]:
        """Return the names of the topics that the group may read, in their order."""
        return sorted(name for name in self.checker.word.now.topics if not name.startswith("__"))

    def name_of(self, topic_id: Uuid) -> str | None:
        """Return the name of a topic that exists and has the only topic of that name in the run."""
        word = self.checker.word
        name = word.topic_name(topic_id)
        return None if name in word.reused_names else name

    def violated(self, number: str, facts: str) -> None:
        """Raise InvariantViolated, unless the group's state may be lost."""
        if not self.is_void():
            raise InvariantViolated(f"Groups-{number}", facts)

    def fenced(self, member: GroupMember, code: ErrorCode) -> None:
        """7. A member is not fenced within its session, also if an answer was lost.

        After two lost answers its epoch may be too old.
        """
        self.counts["group members fenced"] += 1
        if member.epoch and not member.leaves and member.is_valid and member.lost <= 2:
            self.violated("7", f"{member} gets {code.name} at {self.now_ms()}")


def is_coordinators(at: TopicPartition) -> bool:
    """Whether the partition has the state of groups."""
    return at.topic.startswith("__")


# ---- consumer groups ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Commit:
    """An offset that a member commits. `status`: "acked", "refused", or "unknown"."""

    member: ConsumerMember
    value: int
    status: str = "unknown"


class ConsumerMember(GroupMember):
    """A member of a consumer group.

    `subscription`: names of topics, or a regular expression. `instance_id`: of a static member.
    """

    _members: ConsumerMembers

    def __init__(
        self, members: ConsumerMembers, client: SimClient, name: str, random: Random, instance_id: str | None
    ) -> None:
        super().__init__(members, client, name, random)
        self.instance_id = instance_id
        self.topics: tuple[str, ...] | None = None
        self.regex: str | None = None
        self._is_declared = False
        # What it was assigned last. Some members take a heartbeat longer to give partitions up.
        self._target: frozenset[Work] = frozenset()
        self._is_slow = random.randrange(4) == 0
        self._is_late = False
        self.subscribe(random)

    def subscribe(self, random: Random) -> None:
        """Subscribe to other topics."""
        self._is_declared = False
        names = self._members.topic_names()
        if random.randrange(4) == 0:
            self.topics, self.regex = (), f".*[{random.randrange(10)}-9]"
        elif random.randrange(2):
            self.topics, self.regex = tuple(names), ""
        else:
            self.topics, self.regex = tuple(each for each in names if random.randrange(3)), ""

    def give_up(self) -> None:
        super().give_up()
        self._target = frozenset()

    def heartbeat(self) -> Any:
        is_full = self.epoch == JOIN_EPOCH or self.lost > 0 or not self._is_declared
        self._is_declared = True
        if self.leaves:
            self._target = frozenset()
        elif self.owned <= self._target:
            self._own_target()
        elif self._is_late or not self._is_slow:
            self.owned &= self._target
            self._is_late = False
        else:
            self._is_late = True
        return ConsumerGroupHeartbeatRequest(
            group_id=self._members.group_id,
            member_id=self.name,
            member_epoch=self.leaves or self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout=REBALANCE_MS * MILLISECOND if is_full else -1 * MILLISECOND,
            subscribed_topic_names=self.topics if is_full else None,
            subscribed_topic_regex=self.regex if is_full else None,
            topic_partitions=partitions_of(self.owned),
        )

    def take(self, answer: Any) -> None:
        if answer.assignment is None or self.leaves:
            return
        self._members.counts["assignments taken"] += 1
        self._target = work_of(answer.assignment.topic_partitions)
        if self.owned <= self._target:
            self._own_target()

    def _own_target(self) -> None:
        self.owned = self._target
        self._members.took(self)

    def work(self) -> Steps:
        """Commit and read offsets of partitions, now and then."""
        while self.owned and self._random.randrange(3):
            topic_id, number = at = self._random.choice(sorted(self.owned))
            name = self._members.name_of(topic_id)
            if name is None:
                return
            if self._random.randrange(2):
                yield from self._commit(at, name, number)
            else:
                yield from self._fetch(at, name, number)

    def _commit(self, at: Work, name: str, number: int) -> Steps:
        members = self._members
        owner = members.owners.get(at)
        commit = members.begin_commit(self, at)
        committed = OffsetCommitRequestPartition(
            partition_index=number, committed_offset=commit.value, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=members.group_id,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.name,
            group_instance_id=self.instance_id,
            topics=(OffsetCommitRequestTopic(name=name, partitions=(committed,)),),
        )
        answer = yield from self.ask_coordinator(VersionedRequest(request, OFFSETS_VERSION))
        if answer is None:
            return
        code = answer.topics[0].partitions[0].error_code
        if code in WRONG:
            raise InvariantViolated("Answer", f"{self} is answered {answer} to {request}")
        if code is not NONE:
            members.counts[f"commits refused with {code.name}"] += 1
            return
        commit.status = "acked"
        members.counts["offsets committed by members"] += 1
        if owner is not None and owner is not self:
            members.violated("8", f"{self} commits {at}, which {owner} has taken before")

    def _fetch(self, at: Work, name: str, number: int) -> Steps:
        members = self._members
        least = members.last_acked(at)
        topic = OffsetFetchRequestTopics(name=name, partition_indexes=(number,))
        group = OffsetFetchRequestGroup(
            group_id=members.group_id, member_id=self.name, member_epoch=self.epoch, topics=(topic,)
        )
        request = OffsetFetchRequest(groups=(group,), require_stable=True)
        answer = yield from self.ask_coordinator(VersionedRequest(request, OFFSETS_VERSION))
        if answer is None or answer.groups[0].error_code is not NONE:
            return
        found = answer.groups[0].topics[0].partitions[0]
        if found.error_code is NONE and members.name_of(at[0]) == name:
            members.counts["offsets read by members"] += 1
            members.read(at, found.committed_offset, least)


class ConsumerMembers(GroupMembers):
    """The members of a consumer group, and the offsets that they commit.

    `owners`: the last member that has taken a partition within its session.
    """

    kind: ClassVar[str] = "consumer"

    def __init__(self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str]) -> None:
        super().__init__(cluster, checker, counts)
        self.owners: dict[Work, ConsumerMember] = {}
        # The commits of each partition in their order. Values rise over all of them.
        self._commits: dict[Work, list[Commit]] = {}
        self._values = 0
        # By instance id: the last process with it.
        self._statics: dict[str, ConsumerMember] = {}

    def new_member(self, client: SimClient, name: str, random: Random) -> ConsumerMember:
        return self.identified(ConsumerMember, client, name, random)

    def identified(
        self, kind: type[ConsumerMember], client: SimClient, name: str, random: Random
    ) -> ConsumerMember:
        """Return a new member of this kind, which is static or dynamic."""
        instance_id = None
        if random.randrange(2):
            wanted = random.choice(INSTANCES)
            if wanted not in self._statics or self._statics[wanted].is_dead:
                instance_id = wanted
        member = kind(self, client, name, random, instance_id)
        if instance_id is not None:
            self._statics[instance_id] = member
        return member

    def leave_epoch(self, member: GroupMember, random: Random) -> int:
        assert isinstance(member, ConsumerMember)
        is_back = member.instance_id is not None and random.randrange(3) > 0
        return LEAVE_STATIC_EPOCH if is_back else LEAVE_EPOCH

    def disturb(self, member: GroupMember, random: Random) -> None:
        assert isinstance(member, ConsumerMember)
        if random.randrange(4) == 0:
            member.subscribe(random)
            self.counts["subscriptions changed"] += 1
        else:
            super().disturb(member, random)

    def took(self, member: ConsumerMember) -> None:
        """1. A partition has one owner."""
        for other in self.members:
            both = other.owned & member.owned
            if other is not member and both and other.is_valid and member.is_valid:
                self.violated("1", f"{both} belong to {other} and {member}")
        if member.is_valid:
            self.owners.update(dict.fromkeys(member.owned, member))

    # ---- offsets ------------------------------------------------------------------------------------------

    def begin_commit(self, member: ConsumerMember, at: Work) -> Commit:
        self._values += 1
        commit = Commit(member, self._values)
        self._commits.setdefault(at, []).append(commit)
        return commit

    def last_acked(self, at: Work) -> Commit | None:
        """Return the last commit of the partition that was acknowledged."""
        return next((each for each in reversed(self._commits.get(at, ())) if each.status == "acked"), None)

    def read(self, at: Work, value: int, least: Commit | None) -> None:
        """8, 9. The offset is of `least` or a later commit, and none that was never sent.

        `least`: the last one that was acknowledged or read before.
        """
        commits = self._commits.get(at, ())
        found = next((each for each in commits if each.value == value), None)
        if found is None and value != -1:
            self.violated("9", f"the offset of {at} is {value}, which no member has committed")
        if found is not None:
            found.status = "acked"  # what was read once never goes
        if least is None or value >= least.value:
            return
        # A request that was given up may arrive behind the next one of the same member.
        if found is None or found.member is not least.member or found.status == "acked":
            self.violated("9", f"the offset of {at} is {value}, but {least.value} was committed: {commits}")

    def ails(self) -> Iterator[str]:
        owned = Counter(at for each in self.live for at in each.owned)
        if any(count > 1 for count in owned.values()):
            yield f"several members own {[at for at, count in owned.items() if count > 1]}"


def partitions_of(work: frozenset[Work]) -> tuple[TopicPartitions, ...]:
    """Return the partitions as heartbeats have them."""
    topics: dict[Uuid, list[int]] = {}
    for topic_id, number in sorted(work):
        topics.setdefault(topic_id, []).append(number)
    return tuple(
        TopicPartitions(topic_id=uuid_of(topic_id), partitions=tuple(found))
        for topic_id, found in topics.items()
    )


def work_of(topics: Any) -> frozenset[Work]:
    """Return the partitions of a heartbeat's answer."""
    return frozenset((topic_id_of(each.topic_id), number) for each in topics for number in each.partitions)
