"""TransactionalClients: the transactional producers of a random run, with the answers to them and to readers.

A process finds its coordinator, begins with InitProducerId, and runs transactions as a stock client does:
batches to several partitions, offsets of a group, a commit or an abort. Half of the processes follow
transaction version 1 (AddPartitionsToTxn 3, EndTxn 4). The others follow version 2 (Produce 12,
TxnOffsetCommit and EndTxn 5) while the cluster has it. A process may die at any step. Several processes may
have the same transactional id, so the last one to begin makes zombies of the others.

In some runs, processes are members of the group whose offsets they commit. A member joins again now and then
while its transaction is open, and has then committed offsets in a generation that is over.

In some runs __transaction_state has transactional ids from before the run, whose epochs are near their end,
and one whose transaction was prepared for two-phase commit.

TransactionHistory has all transactions with the answers to them, and checks what readers get: nothing of
another than a committed transaction, all of it or nothing, in its order, and with its offsets. Thread rule:
one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, NamedTuple

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.encoded_request import VersionedRequest
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.data import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kreplica.common.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kreplica.common.types import INT16_MAX, AppendOrigin, TopicPartition
from kreplica.controller.feature_control import TRANSACTION_VERSION
from kreplica.coordinator.group_store import CONSUMER_OFFSETS
from kreplica.coordinator.shard_store import partition_for
from kreplica.coordinator.transaction_coordinator import TRANSACTION_STATE
from kreplica.coordinator.transaction_metadata import (
    COMPLETE_COMMIT,
    LAST_EPOCH,
    NO_TIMEOUT_MS,
    ONGOING,
    TransactionMetadata,
)
from kreplica.coordinator.transaction_records import TransactionLogKey, encode_key, encode_value
from kreplica.sim.invariants.cluster_view import PartitionView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster, SimClient
from kreplica.sim.scheduler import SimLoop

# The names of the rules in reports.
READ_COMMITTED, ATOMICITY, FENCING = "ReadCommitted", "Atomicity", "Fencing"
OFFSETS, PRODUCER_IDS = "TransactionalOffsets", "ProducerIds"

# Few keys, so that most records have a later one of their key: cleaning drops them.
KEYS = (b"a", b"b", b"c")
IDS = ("alpha", "beta", "gamma", "delta")
# Processes that live at the same time.
MOST_PROCESSES = 5
# A process is started beside another one of its id with this chance.
ZOMBIE_ONE_IN = 6
REQUEST_TIMEOUT_MS = 200
PRODUCE_TIMEOUT_MS = 150
RETRY_BACKOFF_MS = 20
# A process gives up a step after this time.
PATIENCE_MS = 800
# Of the coordinator, before it aborts.
TIMEOUTS_MS = (200, 500, 1_500)
MOST_BATCHES = 4
# The topic of the offsets that transactions commit; it is never deleted.
INPUTS = "inputs"
# In one run of this number, the epochs of the ids are near their end, with fewer than FEW_EPOCHS left.
OLD_ONE_IN = 2
FEW_EPOCHS = 5
# The id of a transaction that no producer of the run has begun, and the age of that transaction.
PREPARED_ID = "prepared"
PREPARED_MS = 2 * NO_TIMEOUT_MS
# In one run of this number, power cuts may take what the coordinators have stored, and little can be checked.
VOLATILE_ONE_IN = 6
# A process looks for the cluster's transaction version after one transaction of this number.
LOOKS_ONE_IN = 3
SECOND = 2
MILLISECOND = timedelta(milliseconds=1)
GROUP, TRANSACTION = 0, 1
# In one run of this number, processes are members of their groups.
MEMBERS_ONE_IN = 4
# A member joins its group again in one transaction of this number, before it commits offsets.
REJOINS_ONE_IN = 4
SESSION_MS, REBALANCE_MS = 300, 100
PROTOCOL_TYPE, PROTOCOL = "consumer", "range"

NONE = ErrorCode.none
# What a stock client sends again, with another leader or coordinator if there is one.
RETRIABLE = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.concurrent_transactions,
        ErrorCode.kafka_storage_error,
    }
)
# What a process is refused with that is no member of its group in that generation any longer.
NO_MEMBER = frozenset(
    {ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress}
)
# What ends a producer: it cannot go on with its transactional id.
FATAL = frozenset(
    {
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
        ErrorCode.transactional_id_authorization_failed,
    }
)
# What no request of these clients may be answered.
WRONG = frozenset({ErrorCode.unknown_server_error, ErrorCode.invalid_request, ErrorCode.invalid_record})

Steps = Generator[Any, Any, Any]


class ProducerIdentity(NamedTuple):
    """What InitProducerId answered. `sent`, `answered`: the order of its request and answer among all."""

    producer_id: int
    epoch: int
    sent: int = 0
    answered: int = 0

    def fences(self, other: ProducerIdentity) -> bool:
        """Whether `other` may do nothing any longer. Epochs order requests in flight at once."""
        if self.producer_id == other.producer_id:
            return self.epoch > other.epoch
        return self.sent > other.answered


class Member(NamedTuple):
    """A member of a group in one generation."""

    generation_id: int
    member_id: str


class Transaction:
    """A transaction of a process. `number`: of all transactions; also the offset that it commits.

    `member`: the process as a member of its group, if it was one when the transaction began.

    `values`: by partition, in the order in which they were sent; `acked`: those that were acknowledged.
    `may_commit`: EndTxn with a commit was sent. `outcome`: what an EndTxn that was answered 0 asked for.
    `is_seen`, `is_skipped`: a reader of committed records was given records of it, or none where it has some.
    """

    __slots__ = (
        *("acked", "group", "identity", "is_seen", "is_skipped", "may_commit", "member", "number"),
        *("offset_acked", "outcome", "transactional_id", "values"),
    )

    def __init__(self, transactional_id: str, identity: ProducerIdentity, number: int) -> None:
        self.transactional_id = transactional_id
        self.identity = identity
        self.number = number
        self.values: dict[TopicPartition, list[str]] = {}
        self.acked: set[str] = set()
        self.group: str | None = None
        self.member: Member | None = None
        self.offset_acked = False
        self.may_commit = False
        self.outcome: bool | None = None
        self.is_seen = False
        self.is_skipped = False

    def __str__(self) -> str:
        asked = "a commit was asked for" if self.may_commit else "no commit was asked for"
        outcome = {None: "no end is known", True: "committed", False: "aborted"}[self.outcome]
        return f"transaction {self.number} of {self.transactional_id} {self.identity}: {asked}, {outcome}"


class TransactionHistory:
    """All transactions of a run, and the checks of what clients and readers get.

    `is_void(at)`: whether the partition has lost committed records as it may, or is another topic's now; it
    is not checked then. `has_lost_outcomes()`: the same for a partition of __transaction_state; nothing is
    checked then.
    """

    def __init__(
        self,
        is_void: Callable[[TopicPartition], bool],
        has_lost_outcomes: Callable[[], bool],
        counts: Counter[str],
    ) -> None:
        self.transactions: list[Transaction] = []
        self.by_value: dict[str, Transaction] = {}
        # By transactional id: the answers to InitProducerId, in their order.
        self.identities: dict[str, list[ProducerIdentity]] = {}
        self._owners: dict[int, str] = {}  # by producer id
        self._offsets: dict[str, int] = {}  # by group: the greatest offset that a reader has got
        # By group: how many requests to delete it were sent or answered, how many may be carried out still,
        # and the number of transactions that had begun by the last answer.
        self.deletions: Counter[str] = Counter()
        self._deleting: Counter[str] = Counter()
        self._deleted: Counter[str] = Counter()
        self._is_void = is_void
        self._has_lost_outcomes = has_lost_outcomes
        self._counts = counts
        self._orders = 0

    def _violated(self, name: str, facts: str) -> None:
        if not self._has_lost_outcomes():
            raise InvariantViolated(name, facts)

    # ---- producers ----------------------------------------------------------------------------------------

    def begin(self, transactional_id: str, identity: ProducerIdentity) -> Transaction:
        """Note a new transaction."""
        transaction = Transaction(transactional_id, identity, len(self.transactions) + 1)
        self.transactions.append(transaction)
        return transaction

    def sent(self) -> int:
        """Return the order of a request that is about to be sent."""
        self._orders += 1
        return self._orders

    def initialized(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        sent: int,
        expected: ProducerIdentity | None,
    ) -> ProducerIdentity:
        """Note an answer of InitProducerId: the same identity is never given twice, but to a repetition.

        `sent`: the order of the request. `expected`: the identity that it named.
        """
        self.check_identity(transactional_id, producer_id, epoch)
        known = self.identities.setdefault(transactional_id, [])
        for each in known:
            if each[:2] == (producer_id, epoch) and expected is None:
                facts = f"{transactional_id} gets producer {producer_id}, epoch {epoch} a second time"
                self._violated(PRODUCER_IDS, facts)
            if each.producer_id == producer_id and each.epoch > epoch and each.answered < sent:
                facts = f"{transactional_id} gets epoch {epoch} of producer {producer_id} after {each}"
                self._violated(PRODUCER_IDS, facts)
        identity = ProducerIdentity(producer_id, epoch, sent, self.sent())
        known.append(identity)
        return identity

    def check_identity(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """Check that a client may get this identity: the greatest epoch is for markers only, and a producer
        id for one transactional id."""
        if producer_id < 0 or not 0 <= epoch < INT16_MAX:
            self._violated(PRODUCER_IDS, f"a client gets producer {producer_id}, epoch {epoch}")
        owner = self._owners.setdefault(producer_id, transactional_id)
        if owner != transactional_id:
            facts = f"{transactional_id} gets producer id {producer_id}, which {owner} has"
            self._violated(PRODUCER_IDS, facts)

    def is_fenced(self, transactional_id: str, identity: ProducerIdentity) -> bool:
        """Whether another process has got the transactional id."""
        return any(each.fences(identity) for each in self.identities[transactional_id])

    def succeeded(
        self, what: str, transactional_id: str, identity: ProducerIdentity, was_fenced: bool
    ) -> None:
        """Check that a request may have succeeded. `was_fenced`: another process had got the id already when
        the request was sent."""
        if was_fenced:
            self._violated(FENCING, f"{what} of {transactional_id} succeeded after it was fenced: {identity}")

    def ended(self, transaction: Transaction, *, commit: bool) -> None:
        """Note that EndTxn was answered 0: this outcome holds for ever."""
        if transaction.outcome not in (None, commit):
            self._violated(ATOMICITY, f"commit={commit} succeeds for {transaction}")
        transaction.outcome = commit
        self._counts["transactions committed" if commit else "transactions aborted"] += 1
        self._check(transaction)

    # ---- readers ------------------------------------------------------------------------------------------

    def check(
        self, view: PartitionView, offset: int, next_offset: int, given: Mapping[int, bytes | None]
    ) -> None:
        """Check what a reader of committed records got from these offsets of a partition."""
        for value in given.values():
            transaction = self._of(value)
            if transaction is not None:
                transaction.is_seen = True
                self._check(transaction)
        for at, cell in enumerate(view.committed[offset:next_offset], offset):
            transaction = None if at in given or cell is None else self._of(cell.value)
            if transaction is not None:
                transaction.is_skipped = True
                self._counts["aborted records left out"] += 1
                self._check(transaction)

    def _of(self, value: bytes | None) -> Transaction | None:
        # The values of markers begin with a byte that is not alphanumeric.
        if value is None or not value[:1].isalnum():
            return None
        return self.by_value.get(value.decode())

    def _check(self, transaction: Transaction) -> None:
        if transaction.is_seen and (not transaction.may_commit or transaction.outcome is False):
            self._violated(READ_COMMITTED, f"a reader got records of {transaction}")
        if transaction.is_skipped and transaction.outcome is True:
            self._violated(READ_COMMITTED, f"a reader was not given records of {transaction}")
        if transaction.is_seen and transaction.is_skipped:
            self._violated(ATOMICITY, f"a reader got some records of {transaction}, and others not")

    def members(self) -> dict[int, Member]:
        """Return the members that began transactions, by the offset that the transaction may commit."""
        return {each.number: each.member for each in self.transactions if each.member is not None}

    def committed_before(self, group: str) -> int:
        """Return the greatest offset of the group whose commit is answered."""
        return max(
            (
                each.number
                for each in self.transactions
                if each.group == group
                and each.outcome is True
                and each.offset_acked
                and each.number > self._deleted[group]
            ),
            default=-1,
        )

    def begin_deletion(self, group: str) -> None:
        """Take note of a request to delete the group with its offsets."""
        self.deletions[group] += 1
        self._deleting[group] += 1

    def end_deletion(self, group: str) -> None:
        """Take note of its answer, whether the group is deleted or not."""
        self.deletions[group] += 1
        self._deleting[group] -= 1
        self._deleted[group] = len(self.transactions)
        self._offsets.pop(group, None)

    def read_offset(self, group: str, offset: int, least: int, deletions: int) -> None:
        """Check an offset that OffsetFetch returned. `least`, `deletions`: `committed_before` and
        `deletions` of the group when it was sent."""
        known = self._offsets.get(group, -1)
        if not self._deleting[group] and deletions == self.deletions[group]:
            if offset < max(least, known):
                facts = f"the offset of {group} is {offset}, after {known} was read and {least} committed"
                self._violated(OFFSETS, facts)
            self._offsets[group] = max(known, offset)
        if offset < 0:
            return
        transaction = self.transactions[offset - 1]
        if transaction.group != group:
            self._violated(OFFSETS, f"the offset of {group} is {offset} of {transaction}")
        transaction.is_seen = True
        self._counts["transactional offsets read"] += 1
        self._check(transaction)

    def check_final(self, records: Mapping[TopicPartition, tuple[int, Sequence[tuple[int, str]]]]) -> None:
        """Check all committed records at the end: (log start, [(offset, value)]) by partition.

        Raises InvariantViolated.
        """
        found: dict[TopicPartition, dict[str, int]] = {}
        for at, (_, values) in records.items():
            places = found[at] = {}
            for offset, value in values:
                if value in places and value in self.by_value:
                    facts = f"{value} is at {places[value]} and {offset} of {at}: {self.by_value[value]}"
                    self._violated(ATOMICITY, facts)
                places[value] = offset
        for transaction in self.transactions:
            self._check_final(transaction, found, {at: start for at, (start, _) in records.items()})

    def _check_final(
        self,
        transaction: Transaction,
        found: Mapping[TopicPartition, Mapping[str, int]],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        missing = list[str]()
        for at, values in transaction.values.items():
            if at not in found or self._is_void(at):
                continue
            offsets = [found[at][value] for value in values if value in found[at]]
            if offsets:
                transaction.is_seen = True
            if offsets != sorted(offsets):
                self._violated(ATOMICITY, f"{at} has {values} at {offsets}: {transaction}")
            if not starts[at]:
                # Retention has removed nothing there.
                missing += [each for each in values if each in transaction.acked and each not in found[at]]
        if missing and (transaction.is_seen or transaction.outcome is True):
            self._violated(ATOMICITY, f"{missing} cannot be read at the end: {transaction}")
        self._check(transaction)


class _Abortable(Exception):
    """The transaction cannot commit; the producer goes on after an abort."""


class _Ends(Exception):
    """The process ends: it is fenced, or has no patience left."""


class Process:
    """A transactional producer. `is_second`: it follows transaction version 2 now."""

    def __init__(
        self, clients: TransactionalClients, client: SimClient, transactional_id: str, random: Random
    ) -> None:
        self.transactional_id = transactional_id
        self._knows_second = random.randrange(2) == 0
        self.is_second = self._knows_second and clients.level() >= SECOND
        self.is_dead = False
        self._clients = clients
        self._history = clients.history
        self._client = client
        self._loop = clients.loop(client)
        self._random = random
        self._timeout_ms = random.choice(TIMEOUTS_MS)
        self._member: Member | None = None
        self._coordinators: dict[int, int] = {}  # by type of key
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: Counter[TopicPartition] = Counter()
        # Of the open transaction: the partitions that were added, and whether anything was.
        self._added: set[TopicPartition] = set()
        self._has_added = False

    # ---- steps --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with InitProducerId."""
        self._resume(self._run(), None)

    def _resume(self, steps: Steps, value: Any) -> None:
        if self.is_dead:
            return
        try:
            waits_for = steps.send(value)
        except (StopIteration, _Ends):
            self._clients.ended(self)
            return
        if isinstance(waits_for, Future):
            waits_for.add_done_callback(self._clients.watched(partial(self._resume, steps)))
        else:
            again = self._clients.watched(lambda _: self._resume(steps, None))
            self._loop.post_later(lambda: again(None), waits_for)

    def _run(self) -> Steps:
        yield from self._init(None)
        while not self._clients.is_over():
            yield from self._transaction()
            yield self._random.randrange(5)
            if self._knows_second and self._random.randrange(LOOKS_ONE_IN) == 0:
                yield from self._follow(self._clients.level() >= SECOND)

    def _follow(self, is_second: bool) -> Steps:
        """Follow another transaction version from the next transaction on; see KIP-890."""
        was_second, self.is_second = self.is_second, is_second
        if is_second and not was_second:
            yield from self._init(self._identity)

    def _until(self) -> int:
        return self._clients.now_ms() + PATIENCE_MS

    def _answer(self, node_id: int, request: Any) -> Steps:
        """Send a request; return the answer, or None without one."""
        done: Future[Any] = yield self._client.endpoint.send(node_id, request, timeout_ms=REQUEST_TIMEOUT_MS)
        error = done.exception()
        assert error is None or isinstance(error, KreplicaError), error
        return None if error is not None else done.result()

    def _coordinated(self, key_type: int, request: Any, code_of: Callable[[Any], ErrorCode]) -> Steps:
        """Send a request to a coordinator until it is not refused for a while; return the answer.

        Raises _Ends if that takes too long.
        """
        until_ms = self._until()
        while self._clients.now_ms() < until_ms:
            coordinator = self._coordinators.get(key_type)
            if coordinator is None:
                yield from self._find(key_type)
            else:
                answer = yield from self._answer(coordinator, request)
                code = None if answer is None else code_of(answer)
                if code is not None and code not in RETRIABLE:
                    if code in WRONG:
                        raise InvariantViolated("Answer", f"{request} is answered {answer}")
                    return answer
                if code is not ErrorCode.concurrent_transactions:
                    self._coordinators.pop(key_type, None)
            yield RETRY_BACKOFF_MS
        raise _Ends

    def _find(self, key_type: int) -> Steps:
        key = self.transactional_id if key_type == TRANSACTION else self._group
        answer = yield from self._answer(
            self._random.choice(self._clients.broker_ids),
            FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,)),
        )
        if answer is not None and answer.coordinators[0].error_code is NONE:
            self._coordinators[key_type] = answer.coordinators[0].node_id

    @property
    def _group(self) -> str:
        return group_of(self.transactional_id)

    def _is_fenced(self) -> bool:
        return self._history.is_fenced(self.transactional_id, self._identity)

    def _init(self, expected: ProducerIdentity | None) -> Steps:
        """Get an epoch; `expected`: the identity to raise the epoch of (KIP-360)."""
        was_fenced = expected is not None and self._is_fenced()
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=self._timeout_ms * MILLISECOND,
            producer_id=-1 if expected is None else expected.producer_id,
            producer_epoch=-1 if expected is None else expected.epoch,
        )
        sent = self._history.sent()
        answer = yield from self._coordinated(TRANSACTION, request, lambda each: each.error_code)
        if answer.error_code is not NONE:
            raise _Ends
        if expected is not None:
            self._history.succeeded("InitProducerId", self.transactional_id, expected, was_fenced)
        self._identity = self._history.initialized(
            self.transactional_id, answer.producer_id, answer.producer_epoch, sent, expected
        )
        self._sequences.clear()
        self._clients.counts["producers initialized"] += 1

    # ---- a transaction ------------------------------------------------------------------------------------

    def _transaction(self) -> Steps:
        chance, clients = self._random, self._clients
        partitions = clients.some_partitions(chance)
        if not partitions:
            return
        if clients.has_members and self._member is None:
            yield from self._join()
        transaction = self._history.begin(self.transactional_id, self._identity)
        transaction.member = self._member
        self._added.clear()
        self._has_added = self.is_second
        commit = chance.randrange(5) > 0
        must_init = False
        try:
            for _ in range(1 + chance.randrange(MOST_BATCHES)):
                yield from self._produce(transaction, chance.choice(partitions), 1 + chance.randrange(2))
                if chance.randrange(8) == 0:
                    yield chance.randrange(30)
            if clients.has_members and chance.randrange(REJOINS_ONE_IN) == 0:
                # Its consumer is in a later generation then than the transaction.
                yield from self._join()
            if chance.randrange(2):
                yield from self._commit_offsets(transaction)
        except _Abortable:
            clients.counts["transactions that had to be aborted"] += 1
            commit, must_init = False, not self.is_second
        if chance.randrange(20) == 0:
            # Long enough that the coordinator may abort it.
            yield chance.randrange(2 * self._timeout_ms)
        yield from self._end(transaction, commit=commit)
        if must_init:
            yield from self._init(self._identity)

    def _add(self, at: TopicPartition) -> Steps:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=at.topic, partitions=(at.partition,)),),
        )
        was_fenced = self._is_fenced()
        answer = yield from self._coordinated(TRANSACTION, VersionedRequest(request, 3), _code_of_added)
        self._require(_code_of_added(answer), "AddPartitionsToTxn", was_fenced)
        self._added.add(at)
        self._has_added = True

    def _require(self, code: ErrorCode, what: str, was_fenced: bool) -> None:
        if code in FATAL:
            raise _Ends
        if code is not NONE:
            self._clients.counts[f"{what} refused with {code.name}"] += 1
            raise _Abortable
        self._history.succeeded(what, self.transactional_id, self._identity, was_fenced)

    def _produce(self, transaction: Transaction, at: TopicPartition, count: int) -> Steps:
        """Send batches to a partition at once, and again until each is acknowledged."""
        if not self.is_second and at not in self._added:
            yield from self._add(at)
        sent = list[tuple[Any, list[str]]]()
        for _ in range(count):
            values = self._clients.new_values("t-")
            transaction.values.setdefault(at, []).extend(values)
            for value in values:
                self._history.by_value[value] = transaction
            sent.append((self._batch(at, values), values))
        until_ms, was_fenced = self._until(), self._is_fenced()
        while sent:
            leader = self._clients.leader(at)
            if leader is None:
                yield RETRY_BACKOFF_MS
                if self._clients.now_ms() >= until_ms:
                    raise _Abortable
                continue
            replies = [
                self._client.endpoint.send(leader, request, timeout_ms=REQUEST_TIMEOUT_MS)
                for request, _ in sent
            ]
            left = list[tuple[Any, list[str]]]()
            for (request, values), reply in zip(sent, replies, strict=True):
                done: Future[Any] = yield reply
                code = ErrorCode.network_exception if done.exception() else _code_of_produced(done.result())
                is_late = code is ErrorCode.out_of_order_sequence_number and bool(left)
                if code in RETRIABLE or is_late:
                    # A batch behind one that failed cannot be in its sequence.
                    left.append((request, values))
                    continue
                self._require(code, "Produce", was_fenced)
                transaction.acked.update(values)
            sent = left
            if sent:
                yield RETRY_BACKOFF_MS
                if self._clients.now_ms() >= until_ms:
                    raise _Abortable

    def _batch(self, at: TopicPartition, values: Sequence[str]) -> Any:
        builder = BatchBuilder()
        builder.transactional = True
        builder.producer_id, builder.producer_epoch = self._identity.producer_id, self._identity.epoch
        builder.base_sequence = self._sequences[at]
        self._sequences[at] += len(values)
        records = [(self._random.choice(KEYS), each.encode()) for each in values]
        batch = builder.build(records, now_ms=self._client.clock.time_ms())
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout=PRODUCE_TIMEOUT_MS * MILLISECOND,
            topic_data=(
                TopicProduceData(
                    name=at.topic,
                    partition_data=(PartitionProduceData(index=at.partition, records=bytes(batch)),),
                ),
            ),
        )
        return VersionedRequest(request, 12 if self.is_second else 11)

    def _join(self) -> Steps:
        """Join the group, again with the same member id, unless another rebalance begins meanwhile."""
        member_id = "" if self._member is None else self._member.member_id
        self._member = None
        while self._member is None:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout=SESSION_MS * MILLISECOND,
                rebalance_timeout=REBALANCE_MS * MILLISECOND,
                member_id=member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=(JoinGroupRequestProtocol(name=PROTOCOL, metadata=b""),),
            )
            joined = yield from self._coordinated(GROUP, request, lambda each: each.error_code)
            if joined.error_code is ErrorCode.member_id_required:
                member_id = joined.member_id
                continue
            if joined.error_code is not NONE:
                # The next transaction begins as a new member.
                return
            members = joined.members if joined.leader == joined.member_id else ()
            sync = SyncGroupRequest(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=tuple(
                    SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"") for each in members
                ),
            )
            synced = yield from self._coordinated(GROUP, sync, lambda each: each.error_code)
            if synced.error_code is not NONE:
                return
            self._member = Member(joined.generation_id, joined.member_id)
            self._clients.counts["members joined"] += 1

    def _commit_offsets(self, transaction: Transaction) -> Steps:
        transaction.group = self._group
        was_fenced = self._is_fenced()
        if not self.is_second:
            answer = yield from self._coordinated(
                TRANSACTION,
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=self._identity.producer_id,
                    producer_epoch=self._identity.epoch,
                    group_id=self._group,
                ),
                lambda each: each.error_code,
            )
            self._require(answer.error_code, "AddOffsetsToTxn", was_fenced)
            self._has_added = True
        committed = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=transaction.number, committed_metadata=""
        )
        member = transaction.member or Member(-1, "")
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self._group,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            topics=(TxnOffsetCommitRequestTopic(name=INPUTS, partitions=(committed,)),),
        )
        versioned = VersionedRequest(request, 5 if self.is_second else 4)
        was_fenced = self._is_fenced()
        answer = yield from self._coordinated(GROUP, versioned, _code_of_offsets)
        if _code_of_offsets(answer) in NO_MEMBER and self._member == transaction.member:
            self._member = None
        self._require(_code_of_offsets(answer), "TxnOffsetCommit", was_fenced)
        if transaction.member is not None:
            self._clients.counts["offsets committed by members"] += 1
        transaction.offset_acked = True

    def _end(self, transaction: Transaction, *, commit: bool) -> Steps:
        if not self._has_added:
            return
        transaction.may_commit = commit
        was_fenced = self._is_fenced()
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=commit,
        )
        versioned = VersionedRequest(request, 5 if self.is_second else 4)
        answer = yield from self._coordinated(TRANSACTION, versioned, lambda each: each.error_code)
        if answer.error_code is not NONE:
            self._clients.counts[f"EndTxn refused with {answer.error_code.name}"] += 1
            raise _Ends
        self._history.succeeded("EndTxn", self.transactional_id, self._identity, was_fenced)
        self._history.ended(transaction, commit=commit)
        if self.is_second:
            self._history.check_identity(self.transactional_id, answer.producer_id, answer.producer_epoch)
            if answer.producer_id != self._identity.producer_id:
                self._clients.counts["producer ids used up"] += 1
            self._identity = self._identity._replace(
                producer_id=answer.producer_id, epoch=answer.producer_epoch
            )
            self._sequences.clear()


def _code_of_added(answer: Any) -> ErrorCode:
    [topic] = answer.results_by_topic_v3_and_below
    code: ErrorCode = topic.results_by_partition[0].partition_error_code
    return code


def _code_of_produced(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def _code_of_offsets(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


class TransactionalClients:
    """The processes of a run, and the readers of the offsets that they commit.

    `is_over()`: whether processes are to end after their transaction. `new_values(prefix)`: returns values
    that no other batch has.
    """

    def __init__(
        self,
        cluster: NodeCluster,
        checker: NodeChecker,
        counts: Counter[str],
        *,
        is_over: Callable[[], bool],
        new_values: Callable[[str], list[str]],
    ) -> None:
        self.counts = counts
        self.is_over = is_over
        self.new_values = new_values
        self.watched = checker.watched
        self.broker_ids = cluster.broker_ids
        self.history = TransactionHistory(self.is_void, self.has_lost_outcomes, counts)
        self.has_members = Random(f"{cluster.seed}/membership").randrange(MEMBERS_ONE_IN) == 0
        self.processes: list[Process] = []
        self._cluster = cluster
        self._checker = checker
        self._started = 0
        self._clients = [cluster.add_client() for _ in range(MOST_PROCESSES)]
        self._reader = cluster.add_client()

    @property
    def pending(self) -> int:
        """The number of processes that have not ended."""
        return len(self.processes)

    def prepare(self) -> None:
        """Let the cluster create the topics of the coordinators."""
        cluster = self._cluster
        cluster.result(cluster.client.admin.create_topic(INPUTS, partitions=1, replication_factor=3))
        for key_type, key in ((TRANSACTION, IDS[0]), (GROUP, "group")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
            while True:
                sent = self._reader.endpoint.send(
                    cluster.broker_ids[0], request, timeout_ms=REQUEST_TIMEOUT_MS
                )
                if cluster.result(sent).coordinators[0].error_code is NONE:
                    break
                cluster.scheduler.run_for(RETRY_BACKOFF_MS)
        if Random(f"{cluster.seed}/durability").randrange(VOLATILE_ONE_IN):
            for topic in (TRANSACTION_STATE, CONSUMER_OFFSETS, INPUTS):
                cluster.result(cluster.client.admin.alter_config(topic, {"durability": "fsync_quorum"}))
        self._store_old_ids(Random(f"{cluster.seed}/old ids"))

    def _store_old_ids(self, random: Random) -> None:
        """Store transactional ids as an earlier life of the cluster has left them, in some runs."""
        if random.randrange(OLD_ONE_IN):
            return
        now_ms = self._cluster.brokers[self.broker_ids[0]].clock.time_ms()
        prepared = TransactionMetadata(
            transactional_id=PREPARED_ID,
            producer_id=self._new_producer_id(),
            producer_epoch=0,
            timeout_ms=NO_TIMEOUT_MS,
            state=ONGOING,
            partitions=frozenset({TopicPartition(INPUTS, 0)}),
            start_ms=now_ms - PREPARED_MS,
            last_update_ms=now_ms - PREPARED_MS,
            version=SECOND,
        )
        old = [
            TransactionMetadata(
                transactional_id=each,
                producer_id=self._new_producer_id(),
                producer_epoch=LAST_EPOCH - random.randrange(FEW_EPOCHS),
                timeout_ms=TIMEOUTS_MS[0],
                state=COMPLETE_COMMIT,
                start_ms=now_ms,
                last_update_ms=now_ms,
            )
            for each in IDS
        ]
        for metadata in (prepared, *old):
            self._store(metadata)

    def _new_producer_id(self) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout=0 * MILLISECOND)
        while True:
            sent = self._reader.endpoint.send(self.broker_ids[0], request, timeout_ms=REQUEST_TIMEOUT_MS)
            answer = self._cluster.result(sent)
            if answer.error_code is NONE:
                producer_id: int = answer.producer_id
                return producer_id
            self._cluster.scheduler.run_for(RETRY_BACKOFF_MS)

    def _store(self, metadata: TransactionMetadata) -> None:
        """Append the state to __transaction_state, and let its coordinator load the partition again."""
        cluster, name = self._cluster, metadata.transactional_id
        count = sum(at.topic == TRANSACTION_STATE for at in self._checker.view.partitions)
        at = TopicPartition(TRANSACTION_STATE, partition_for(name, count))
        leader = self.leader(at)
        node = None if leader is None else cluster.node(leader)
        assert node is not None
        assert node.broker is not None
        assert node.transaction_coordinator is not None
        key = encode_key(TransactionLogKey(transactional_id=name))
        batch = BatchBuilder().build(
            [(key, encode_value(metadata.record(1), 1))], now_ms=metadata.last_update_ms
        )
        replicas = node.broker.replica_manager
        stored = replicas.append(at, batch, timeout_ms=PATIENCE_MS, origin=AppendOrigin.COORDINATOR)
        assert cluster.result(stored).error is None
        hosted = replicas.partitions.get_or_error(at)
        node.transaction_coordinator.resign(at.partition)
        node.transaction_coordinator.elect(at.partition, hosted.leader_epoch)

    # ---- operations ---------------------------------------------------------------------------------------

    def start(self, random: Random) -> None:
        """Start a process, perhaps beside another one with the same transactional id."""
        used = {process._client for process in self.processes}
        free = [client for client in self._clients if client not in used]
        if not free:
            return
        self._started += 1
        running = {each.transactional_id for each in self.processes}
        idle = [each for each in IDS if each not in running]
        transactional_id = random.choice(idle if idle and random.randrange(ZOMBIE_ONE_IN) else IDS)
        if transactional_id in running:
            self.counts["zombies made"] += 1
        process = Process(
            self, free[0], transactional_id, Random(f"{self._cluster.seed}/process {self._started}")
        )
        self.processes.append(process)
        process.start()

    def kill(self, random: Random) -> None:
        """Let a process die where it is."""
        if self.processes:
            process = random.choice(self.processes)
            process.is_dead = True
            self.processes.remove(process)
            self.counts["producers that died"] += 1

    def ended(self, process: Process) -> None:
        """Take note that the process has ended."""
        self.processes.remove(process)

    @property
    def groups(self) -> list[str]:
        """The groups whose offsets transactions commit."""
        return [group_of(each) for each in IDS]

    def fetch_offset(self, group: str) -> Future[Any] | None:
        """Read and check the offset of a group from its coordinator, if there is one."""
        node_id = self._group_coordinator(group)
        if node_id is None:
            return None
        least, deletions = self.history.committed_before(group), self.history.deletions[group]
        asked = OffsetFetchRequestGroup(
            group_id=group, topics=(OffsetFetchRequestTopics(name=INPUTS, partition_indexes=(0,)),)
        )
        request = OffsetFetchRequest(groups=(asked,), require_stable=True)
        answer = self._reader.endpoint.send(node_id, request, timeout_ms=REQUEST_TIMEOUT_MS)
        answer.add_done_callback(self.watched(partial(self._got_offset, group, least, deletions)))
        return answer

    def is_stable(self, answer: Future[Any]) -> bool:
        """Whether the answer to `fetch_offset` has an offset."""
        if answer.exception() is not None:
            return False
        [found] = answer.result().groups
        return found.error_code is NONE and found.topics[0].partitions[0].error_code is NONE

    def _got_offset(self, group: str, least: int, deletions: int, answer: Future[Any]) -> None:
        if not self.is_stable(answer):
            self.counts["offsets not stable or not there"] += 1
            return
        [found] = answer.result().groups
        if not self.has_lost_offsets(group):
            offset = found.topics[0].partitions[0].committed_offset
            self.history.read_offset(group, offset, least, deletions)

    def delete_group(self, group: str) -> Future[Any] | None:
        """Delete a group with its offsets, if it has a coordinator."""
        node_id = self._group_coordinator(group)
        if node_id is None:
            return None
        request = DeleteGroupsRequest(groups_names=(group,))
        self.history.begin_deletion(group)
        answer = self._reader.endpoint.send(node_id, request, timeout_ms=REQUEST_TIMEOUT_MS)
        answer.add_done_callback(self.watched(partial(self._deleted, group)))
        return answer

    def _deleted(self, group: str, answer: Future[Any]) -> None:
        # Without an answer it may be carried out at any time.
        if answer.exception() is None:
            self.history.end_deletion(group)
            [found] = answer.result().results
            self.counts["groups deleted" if found.error_code is NONE else "groups not deleted"] += 1

    # ---- what processes need ------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._cluster.now_ms()

    def level(self) -> int:
        """Return the finalized level of transaction.version."""
        return self._checker.word.now.features.get(TRANSACTION_VERSION, 0)

    def loop(self, client: SimClient) -> SimLoop:
        """Return a loop for the events of a process on that client."""
        return self._cluster.scheduler.loop(client.life, "client")

    def leader(self, at: TopicPartition) -> int | None:
        """Return the leader of the partition by the controller."""
        view = self._checker.view.partitions.get(at)
        decided = None if view is None else view.decided
        return None if decided is None or decided.leader == NO_LEADER else decided.leader

    def some_partitions(self, random: Random) -> list[TopicPartition]:
        """Return up to three partitions for a transaction."""
        partitions = [at for at in self._checker.view.partitions if not is_internal(at)]
        random.shuffle(partitions)
        return partitions[: 1 + random.randrange(3)]

    def _group_coordinator(self, group: str) -> int | None:
        partitions = self._offsets_partitions(group)
        return self.leader(partitions[0]) if partitions else None

    def _offsets_partitions(self, group: str) -> list[TopicPartition]:
        count = sum(at.topic == CONSUMER_OFFSETS for at in self._checker.view.partitions)
        return [TopicPartition(CONSUMER_OFFSETS, partition_for(group, count))] if count else []

    def has_lost_outcomes(self) -> bool:
        """Whether a partition of __transaction_state may have lost committed records."""
        partitions = self._checker.view.partitions
        return any(self.is_void(at) for at in partitions if at.topic == TRANSACTION_STATE)

    def has_lost_offsets(self, group: str) -> bool:
        """Whether the group's offsets, or the outcome of a transaction, may be lost."""
        return self.has_lost_outcomes() or any(self.is_void(at) for at in self._offsets_partitions(group))

    def is_void(self, at: TopicPartition) -> bool:
        """Whether the partition may have lost committed records, or is another topic's now."""
        view = self._checker.view.partitions.get(at)
        return view is None or view.unclean_epoch >= 0 or at.topic in self._checker.word.reused_names


def is_internal(at: TopicPartition) -> bool:
    """Whether the partition is a coordinator's."""
    return at.topic.startswith("__")


def group_of(transactional_id: str) -> str:
    """Return the group whose offsets the producers with that id commit."""
    return f"group-{transactional_id}"
