"""NodeLoad: the clients of a random run of whole nodes: producers, consumers, administrators.

In some runs the nodes coordinate transactions (TransactionalClients); in the others a scripted coordinator
ends those of one partition. The responses to producers and consumers form a History, which is checked at the
end of the run. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from kreplica.client.fetcher import EARLIEST
from kreplica.common.errors import CorruptMessage, OffsetOutOfRange
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import FeatureUpdateKey, UpdateFeaturesRequest
from kreplica.common.messages.data import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kreplica.common.messages.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of, uuid_of
from kreplica.controller.feature_control import SAFE_DOWNGRADE, TRANSACTION_VERSION, UPGRADE
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.sim import client
from kreplica.sim.cluster import CLUSTER_ID
from kreplica.sim.history import Assign, Operation, Poll, Polled, Send, Sent, Status
from kreplica.sim.load import PRODUCE_TIMEOUT_MS, Load
from kreplica.sim.nodes.group_members import GroupMembers
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient
from kreplica.sim.nodes.share_members import SHARE_STATE
from kreplica.sim.nodes.transactional_clients import INPUTS, TransactionalClients, is_internal

TIMEOUT_MS = 500
# A quorum of one is tried only now and then.
FEWEST_VOTERS = 2


class VoterChanges:
    """The voter changes of `cluster`, requested by `client`."""

    def __init__(self, cluster: NodeCluster, client: SimClient, random: Random) -> None:
        self._cluster = cluster
        self._client = client
        self._random = random
        self._is_asked = False

    def ask(self) -> tuple[str, Future[Any]] | None:
        """Request a change; return its name and its future, None if none is possible now."""
        active = self._cluster.controller
        node = None if active is None else self._cluster.node(active)
        if self._is_asked or active is None or node is None:
            return None
        voters = set(node.raft.voters.voters)
        outside = [each for each in self._cluster.controllers if each not in voters]
        request: Any
        if outside and (len(voters) <= FEWEST_VOTERS or self._random.randrange(3)):
            what, chosen = "voters added", self._random.choice(outside)
            request = AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout=timedelta(milliseconds=TIMEOUT_MS),
                voter_id=chosen,
                voter_directory_id=uuid_of(self._cluster.directory_ids[chosen]),
                listeners=(),
            )
        elif len(voters) > 1:
            what, chosen = "voters removed", self._random.choice(sorted(voters))
            request = RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=chosen,
                voter_directory_id=uuid_of(self._cluster.directory_ids[chosen]),
            )
        else:
            return None
        self._is_asked = True
        answer = self._client.endpoint.send(active, request, timeout_ms=2 * TIMEOUT_MS)
        return what, answer

    def answered(self, answer: Future[Any]) -> bool:
        """Return whether the change was made, from its completed future."""
        self._is_asked = False
        return answer.exception() is None and error_of(answer.result().error_code) is None


PRODUCERS = 2
CONSUMERS = 2
# Appends that a producer makes to one partition at once.
MOST_AT_ONCE = 4
MOST_TOPICS = 5
MOST_PARTITIONS = 4
# A deletion of records completes when all replicas have learned of it, or after this time.
DELETION_MS = 400
# The prefix of values from producers without a producer id: they may be duplicated.
PLAIN = "plain-"
# The topics that are not deleted or changed.
KEPT_TOPICS = frozenset({CONSUMER_OFFSETS, SHARE_STATE, TRANSACTION_STATE, INPUTS})
# The levels of transaction.version that administrators set; most clusters have the last one.
TRANSACTION_LEVELS = (0, 1, 2, 2)
# The settings of topics that administrators change; None resets a setting.
SETTINGS: tuple[tuple[str, tuple[object | None, ...]], ...] = (
    ("min.insync.replicas", (1, 2, 2, 3, None)),
    ("retention.bytes", (-1, 6_000)),
    ("unclean.leader.election.enable", ("true", "false", "false")),
)


class Consumer:
    """A process that reads partitions from its positions on; `busy`: those with a poll in flight."""

    def __init__(self, name: str, client: SimClient) -> None:
        self.name = name
        self.client = client
        self.positions: dict[TopicPartition, int] = {}
        self.busy: set[TopicPartition] = set()


class NodeLoad(Load):
    """Runs random client operations. `operations` and `sends` are their history."""

    def __init__(
        self,
        cluster: NodeCluster,
        checker: NodeChecker,
        counts: Counter[str],
        random: Random,
        is_over: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(checker.watched, counts, random)
        self.operations: list[Operation] = []
        # Sends in the order they were made; responses may come in another order.
        self.sends: list[Send | None] = []
        self._cluster = cluster
        self._checker = checker
        self._values = 0
        self._topics = 0
        self._producers = [cluster.add_client() for _ in range(PRODUCERS)]
        self._consumers = [Consumer(f"consumer {n}", cluster.add_client()) for n in range(CONSUMERS)]
        administrator = cluster.add_client()
        self._admin, self._endpoint = administrator.admin, administrator.endpoint
        self._voters = VoterChanges(cluster, administrator, random)
        self._committed_client = cluster.add_client()
        # The position from which committed records of each partition are read next.
        self._committed: Counter[TopicPartition] = Counter()
        self.kinds = {
            self._produce_once: 36,
            self._produce_several: 8,
            self._produce_plainly: 12,
            self._consume: 34,
            self._produce_in_transaction: 10,
            self._read_committed: 10,
            self._create_topic: 2,
            self._delete_topic: 1,
            self._add_partitions: 1,
            self._reassign: 3,
            self._elect: 2,
            self._configure: 2,
            self._delete_records: 2,
            self._change_voters: 1,
        }
        # The producers whose transactions the nodes coordinate, instead of the scripted ones.
        self.clients: TransactionalClients | None = None
        # The members of a group.
        self.members: GroupMembers | None = None
        if is_over is not None:
            self.clients = TransactionalClients(
                cluster, checker, counts, is_over=is_over, new_values=self._new_values
            )
            self.kinds = {
                **self.kinds,
                self._produce_once: 10,
                self._produce_several: 3,
                self._produce_plainly: 3,
                self._consume: 10,
                self._produce_in_transaction: 0,
                self._read_committed: 20,
                self._start_process: 16,
                self._kill_process: 1,
                self._fetch_offsets: 6,
                self._delete_group: 3,
                self._change_transaction_version: 1,
            }

    def add_members(self, members: GroupMembers) -> None:
        """Let members of a group come and go, beside fewer other clients."""
        self.members = members
        self.kinds = {
            **self.kinds,
            self._produce_once: 14,
            self._produce_several: 4,
            self._produce_plainly: 4,
            self._consume: 8,
            self._produce_in_transaction: 4,
            self._read_committed: 4,
            partial(members.change, self._random): 30,
        }

    # ---- topics -------------------------------------------------------------------------------------------

    @property
    def _topic_names(self) -> list[str]:
        return [name for name in self._checker.word.now.topics if name not in KEPT_TOPICS]

    def _any_partition(self, *, or_internal: bool = False) -> TopicPartition | None:
        partitions = [at for at in self._checker.view.partitions if or_internal or not is_internal(at)]
        return self._random.choice(partitions) if partitions else None

    # ---- producers ----------------------------------------------------------------------------------------

    def _new_values(self, prefix: str) -> list[str]:
        count = 1 + self._random.randrange(3)
        self._values += count
        return [f"{prefix}{value}" for value in range(self._values - count, self._values)]

    def _produce_once(self) -> None:
        self._send(-1, self._new_values(""))

    def _produce_several(self) -> None:
        """Make several appends at once, which the producer sends as one batch."""
        at, process = self._any_partition(), self._random.randrange(PRODUCERS)
        for _ in range(2 + self._random.randrange(MOST_AT_ONCE - 1)):
            self._send(-1, self._new_values(""), at, process)

    def _produce_plainly(self) -> None:
        self._send(self._random.choice((1, 1, 0)), self._new_values(PLAIN))

    def _send(
        self, acks: int, values: list[str], at: TopicPartition | None = None, process: int | None = None
    ) -> None:
        at = at or self._any_partition()
        if at is None:
            return
        if process is None:
            process = self._random.randrange(PRODUCERS)
        records = [value.encode() for value in values]
        answer = self._producers[process].producer.send(at, records, acks=acks)
        self.sends.append(None)
        place = len(self.sends) - 1
        self._await(answer, partial(self._sent, at, f"producer {process}", acks, values, place))

    def _sent(
        self, at: TopicPartition, process: str, acks: int, values: list[str], place: int, answer: Future[Any]
    ) -> None:
        base_offset, status = -1, "info"
        if answer.exception() is not None:
            self._counts["sends that failed"] += 1
        else:
            base_offset = answer.result().base_offset
            self._counts["acked" if acks == -1 else "sent plainly"] += 1
            # Without acks=all, a value may be lost with the leader.
            status = "ok" if acks == -1 else "info"
        sent = [
            Sent(at, value, base_offset + number if base_offset >= 0 else None)
            for number, value in enumerate(values)
        ]
        known: Status = "ok" if status == "ok" else "info"
        self.sends[place] = Send(process, known, sent)

    def _produce_in_transaction(self) -> None:
        """Send the next batch of a partition's transaction, or its end, or a retry; or begin a transaction.

        Nodes have no transaction coordinator, so the methods of the partition's leader carry the request out.
        """
        at = self._any_partition()
        decided = None if at is None else self._checker.view.partitions[at].decided
        if at is None or decided is None or decided.leader == NO_LEADER:
            return
        now_ms = self._cluster.brokers[decided.leader].clock.time_ms()
        request = self._transactions.next_request(at, self._new_transactional_values, now_ms)
        endpoint = self._committed_client.endpoint
        answer = endpoint.send(decided.leader, request, timeout_ms=2 * PRODUCE_TIMEOUT_MS)
        self._await(answer, partial(self._produced, request))

    def _new_transactional_values(self) -> list[bytes]:
        return [value.encode() for value in self._new_values("t-")]

    def _produced(self, request: client.ProduceRequest, answer: Future[Any]) -> None:
        if client.produced(answer).error is None:
            self._transactions.acknowledged(request)

    def _start_process(self) -> None:
        assert self.clients is not None
        self.clients.start(self._random)

    def _kill_process(self) -> None:
        assert self.clients is not None
        self.clients.kill(self._random)

    def _fetch_offsets(self) -> None:
        assert self.clients is not None
        answer = self.clients.fetch_offset(self._random.choice(self.clients.groups))
        if answer is not None:
            self._await(answer, lambda _: None)

    def _delete_group(self) -> None:
        assert self.clients is not None
        answer = self.clients.delete_group(self._random.choice(self.clients.groups))
        if answer is not None:
            self._await(answer, lambda _: None)

    def _change_transaction_version(self) -> None:
        active = self._cluster.controller
        if active is None or self.clients is None:
            return
        level, kind = self._random.choice(TRANSACTION_LEVELS), UPGRADE
        if level < self.clients.level():
            kind = SAFE_DOWNGRADE
        update = FeatureUpdateKey(
            feature=TRANSACTION_VERSION,
            max_version_level=level,
            upgrade_type=kind,
        )
        answer = self._endpoint.send(
            active, UpdateFeaturesRequest(feature_updates=(update,)), timeout_ms=TIMEOUT_MS
        )
        self._await(answer, partial(self._changed_transaction_version, level))

    def _changed_transaction_version(self, level: int, answer: Future[Any]) -> None:
        if answer.exception() is None and error_of(answer.result().error_code) is None:
            self._counts[f"transaction version {level} finalized"] += 1

    # ---- consumers ----------------------------------------------------------------------------------------

    def _consume(self) -> None:
        at = self._any_partition()
        consumer = self._random.choice(self._consumers)
        if at is None or at in consumer.busy:
            return
        consumer.busy.add(at)
        offset = consumer.positions.get(at, 0)
        answer = consumer.client.fetcher.fetch(at, offset, max_wait_ms=self._random.choice((0, 30)))
        self._await(answer, partial(self._polled, consumer, at, offset))

    def _polled(self, consumer: Consumer, at: TopicPartition, offset: int, answer: Future[Any]) -> None:
        consumer.busy.discard(at)
        error = answer.exception()
        if isinstance(error, OffsetOutOfRange):
            self._reset(consumer, at)
            return
        if error is not None:
            self._counts["polls that failed"] += 1
            return
        try:
            records, next_offset = polled(at, offset, answer.result())
        except CorruptMessage:
            if self._cluster.as_bytes:
                raise
            # The response shares memory with the leader, where a bit has flipped since.
            self._counts["polls that failed"] += 1
            return
        consumer.positions[at] = next_offset
        if records:
            self._counts["polled"] += len(records)
            self.operations.append(Poll(consumer.name, records))
            if self._random.random() < 0.1:
                # Now and then start again at the beginning.
                consumer.positions[at] = 0
                self.operations.append(Assign(consumer.name, [at]))

    def _read_committed(self) -> None:
        at = self._any_partition()
        if at is not None:
            offset = self._committed[at]
            answer = self._committed_client.fetcher.fetch(at, offset, isolation="txn_committed")
            self._await(answer, partial(self._got_committed, at, offset))

    def _got_committed(self, at: TopicPartition, offset: int, answer: Future[Any]) -> None:
        view = self._checker.view.partitions.get(at)
        if answer.exception() is not None or view is None:
            leader = None if view is None else view.leader
            self._committed[at] = 0 if leader is None else leader.log_start
            return
        try:
            records, next_offset = committed(at, offset, answer.result())
        except CorruptMessage:
            if self._cluster.as_bytes:
                raise
            # The response shares memory with the leader, where a bit has flipped since.
            return
        # After an unclean election, an earlier leader may return records that it voided. With a reused topic
        # name, a leader of the deleted topic may return that topic's records.
        if view.unclean_epoch < 0 and at.topic not in self._checker.word.reused_names:
            given = {each.offset: str(each.value).encode() for each in records if each.offset is not None}
            history = self._transactions if self.clients is None else self.clients.history
            history.check(view, offset, next_offset, given)
        self._counts["read as committed"] += len(records)
        # Now and then start again at the beginning.
        self._committed[at] = 0 if self._random.random() < 0.1 else next_offset

    def _reset(self, consumer: Consumer, at: TopicPartition) -> None:
        self._counts["polls out of range"] += 1
        consumer.busy.add(at)
        answer = consumer.client.fetcher.offset(at, EARLIEST)
        self._await(answer, partial(self._found_start, consumer, at))

    def _found_start(self, consumer: Consumer, at: TopicPartition, answer: Future[Any]) -> None:
        consumer.busy.discard(at)
        if answer.exception() is None:
            consumer.positions[at] = answer.result()
            self.operations.append(Assign(consumer.name, [at]))

    # ---- administrators -----------------------------------------------------------------------------------

    def _ask(self, what: str, answer: Future[Any]) -> None:
        self._await(answer, partial(self._answered, what))

    def _answered(self, what: str, answer: Future[Any]) -> None:
        self._counts[what if answer.exception() is None else f"{what}, refused"] += 1

    def create_topic(self, partitions: int) -> None:
        """Create a topic with a new name."""
        self._topics += 1
        factor = self._random.choice((2, 3, 3, 3))
        created = self._admin.create_topic(
            f"topic-{self._topics}",
            partitions=partitions,
            replication_factor=min(factor, len(self._cluster.broker_ids)),
            config=draw_topic_settings(self._random),
        )
        self._ask("topics created", created)

    def _create_topic(self) -> None:
        if len(self._topic_names) < MOST_TOPICS:
            self.create_topic(1 + self._random.randrange(2))

    def _delete_topic(self) -> None:
        names = self._topic_names
        if len(names) > 1:
            self._ask("topics deleted", self._admin.delete_topic(self._random.choice(names)))

    def _add_partitions(self) -> None:
        names = self._topic_names
        if names:
            name = self._random.choice(names)
            count = len(self._checker.word.now.topics[name].partitions) + 1
            if count <= MOST_PARTITIONS:
                self._ask("partitions added", self._admin.create_partitions(name, count))

    def _reassign(self) -> None:
        at = self._any_partition(or_internal=True)
        if at is None:
            return
        if self._random.randrange(5) == 0:
            self._ask("reassignments cancelled", self._admin.reassign(at, None))
            return
        brokers = list(self._cluster.broker_ids)
        self._random.shuffle(brokers)
        wanted = brokers[: self._random.choice((2, 3, 3))]
        self._ask("reassignments", self._admin.reassign(at, wanted))

    def _elect(self) -> None:
        at = self._any_partition(or_internal=True)
        if at is None:
            return
        if self._random.randrange(8) == 0 and not is_internal(at):
            self._checker.word.unclean_topics.add(at.topic)
            self._ask("unclean elections asked for", self._admin.elect_leader(at, "unclean"))
        else:
            self._ask("preferred elections", self._admin.elect_leader(at))

    def _configure(self) -> None:
        names = self._topic_names
        if not names:
            return
        setting, values = self._random.choice(SETTINGS)
        changes = {setting: self._random.choice(values)}
        self._ask("config changes", self._admin.alter_config(self._random.choice(names), changes))

    def _delete_records(self) -> None:
        at = self._any_partition()
        leader = None if at is None else self._checker.view.partitions[at].leader
        if at is None or leader is None or leader.high_watermark <= leader.log_start:
            return
        ahead = leader.high_watermark - leader.log_start
        offset = -1 if self._random.randrange(4) == 0 else leader.log_start + self._random.randrange(ahead)
        answer = self._endpoint.send(
            leader.broker_id, _delete_request(at, offset), timeout_ms=2 * DELETION_MS
        )
        self._await(answer, self._deleted)

    def _deleted(self, answer: Future[Any]) -> None:
        if answer.exception() is None and not answer.result().topics[0].partitions[0].error_code:
            self._counts["records deleted"] += 1

    def _change_voters(self) -> None:
        asked = self._voters.ask()
        if asked is not None:
            what, answer = asked
            self._await(answer, partial(self._changed_voters, what))

    def _changed_voters(self, what: str, answer: Future[Any]) -> None:
        was_made = self._voters.answered(answer)
        self._counts[what if was_made else f"{what}, refused"] += 1


def draw_topic_settings(random: Random) -> dict[str, object]:
    """Draw the settings of a new topic."""
    durability = ("page_cache", "page_cache", "fsync", "fsync_quorum")[random.randrange(4)]
    return {
        "min.insync.replicas": (1, 2, 2, 3)[random.randrange(4)],
        "unclean.leader.election.enable": "true" if random.randrange(6) == 0 else "false",
        "durability": durability,
        # A power cut may remove the end of a segment and leave the next segment, which counts as damage.
        "segment.bytes": 2_048 if durability == "fsync_quorum" else 65_536,
        "retention.bytes": (-1, 6_000)[random.randrange(2)],
        # An append fits, several together do not.
        "max.message.bytes": (1_048_588, 1_048_588, 120)[random.randrange(3)],
    }


def _delete_request(at: TopicPartition, offset: int) -> DeleteRecordsRequest:
    wanted = DeleteRecordsPartition(partition_index=at.partition, offset=offset)
    return DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=at.topic, partitions=(wanted,)),),
        timeout=timedelta(milliseconds=DELETION_MS),
    )


def polled(at: TopicPartition, offset: int, fetched: Any) -> tuple[list[Polled], int]:
    """Return the records from `offset` on in a fetch's response, and the offset that follows them."""
    records = list[Polled]()
    for batch in fetched.batches():
        if not batch.is_control:
            records += [
                Polled(at, record.offset, bytes(record.value).decode())
                for record in batch
                if record.offset is not None and record.offset >= offset
            ]
        offset = batch.next_offset
    return records, offset


def committed(at: TopicPartition, offset: int, fetched: Any) -> tuple[list[Polled], int]:
    """As `polled`, for the response to a reader of committed records."""
    aborted = [(first, producer_id) for producer_id, first in fetched.aborted]
    records, next_offset = client.records_in(fetched.records, offset, aborted)
    return [Polled(at, where, bytes(value or b"").decode()) for where, _, value in records], next_offset
