"""NodeLoad: the clients of a random run of whole nodes: producers, consumers, administrators.

The responses to producers and consumers form a History, which is checked at the end of the run. Thread rule:
one thread.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

from kreplica.client.fetcher import EARLIEST
from kreplica.common.errors import CorruptMessage, OffsetOutOfRange
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from kreplica.sim.history import Assign, Operation, Poll, Polled, Send, Sent, Status
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_transactions import NodeTransactions
from kreplica.sim.nodes.node_workload import draw_topic_settings
from kreplica.sim.nodes.sim_client import SimClient
from kreplica.sim.nodes.voter_changes import VoterChanges

PRODUCERS = 2
CONSUMERS = 2
MOST_TOPICS = 5
MOST_PARTITIONS = 4
# A deletion of records completes when all replicas have learned of it, or after this time.
DELETION_MS = 400
# The prefix of values from producers without a producer id: they may be duplicated.
PLAIN = "plain-"
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


class NodeLoad:
    """Runs random client operations. `pending`: the number without a response yet."""

    def __init__(
        self, cluster: NodeCluster, checker: NodeChecker, counts: Counter[str], random: Random
    ) -> None:
        self.pending = 0
        self.operations: list[Operation] = []
        # Sends in the order they were made; responses may come in another order.
        self.sends: list[Send | None] = []
        self._cluster = cluster
        self._checker = checker
        self._counts = counts
        self._random = random
        self._values = 0
        self._topics = 0
        self._producers = [cluster.add_client() for _ in range(PRODUCERS)]
        self._consumers = [Consumer(f"consumer {n}", cluster.add_client()) for n in range(CONSUMERS)]
        administrator = cluster.add_client()
        self._admin, self._endpoint = administrator.admin, administrator.endpoint
        self._voters = VoterChanges(cluster, administrator, random)
        self._transactions = NodeTransactions(cluster, checker, counts, random, self._await)
        self._kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (44, self._produce_once),
            (12, self._produce_plainly),
            (34, self._consume),
            (10, self._produce_in_transaction),
            (10, self._read_committed),
            (2, self._create_topic),
            (1, self._delete_topic),
            (1, self._add_partitions),
            (3, self._reassign),
            (2, self._elect),
            (2, self._configure),
            (2, self._delete_records),
            (1, self._change_voters),
        )

    def operate(self) -> None:
        """Run one operation of a random client."""
        drawn = self._random.randrange(sum(weight for weight, _ in self._kinds))
        for weight, kind in self._kinds:
            drawn -= weight
            if drawn < 0:
                kind()
                return

    # ---- topics -------------------------------------------------------------------------------------------

    @property
    def _topic_names(self) -> list[str]:
        return list(self._checker.word.now.topics)

    def _any_partition(self) -> TopicPartition | None:
        partitions = list(self._checker.view.partitions)
        return self._random.choice(partitions) if partitions else None

    def _await(self, future: Future[Any], callback: Callable[[Future[Any]], None]) -> None:
        self.pending += 1

        def done(answer: Future[Any]) -> None:
            self.pending -= 1
            callback(answer)

        future.add_done_callback(self._checker.watched(done))

    # ---- producers ----------------------------------------------------------------------------------------

    def _new_values(self, prefix: str) -> list[str]:
        count = 1 + self._random.randrange(3)
        self._values += count
        return [f"{prefix}{value}" for value in range(self._values - count, self._values)]

    def _produce_once(self) -> None:
        self._send(-1, self._new_values(""))

    def _produce_plainly(self) -> None:
        self._send(self._random.choice((1, 1, 0)), self._new_values(PLAIN))

    def _send(self, acks: int, values: list[str]) -> None:
        at = self._any_partition()
        if at is None:
            return
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
        at = self._any_partition()
        if at is not None:
            self._transactions.produce(at, lambda: [value.encode() for value in self._new_values("t-")])

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
            self._transactions.read(at)

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
        at = self._any_partition()
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
        at = self._any_partition()
        if at is None:
            return
        if self._random.randrange(8) == 0:
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
