"""Replication inside a program of your own: brokers, the controller that directs them, and their transport.

    with LocalNetwork() as network, Controller("data/controller", network) as controller:
        nodes = [ReplicaNode(n, f"data/{n}", network, controller=controller) for n in (1, 2, 3)]
        controller.create_topic("orders", replicas=[1, 2, 3])
        nodes[0].append("orders", [b"first"]).result(timeout=20)
        for node in nodes:
            node.close()

A `ReplicaNode` is one broker: its logs, and the ReplicaManager and Partitions that replicate them. The
`Controller` keeps which broker leads each partition and which replicas are in sync; the program makes the
decisions (a topic, a failed broker, an election), the controller checks and keeps them. Nodes of one process
share a LocalNetwork; nodes of several need a Transport, for which FrameTransport asks for one function.
docs/EMBEDDING.md has the examples. `kreplica.Cluster` makes these decisions itself.

Safe by default: a record counts as committed only when every in-sync replica has it, a topic requires a
majority of its replicas to be in sync, and only in-sync replicas are elected.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from kreplica._core.record import Record
from kreplica.broker.broker import Broker
from kreplica.common.config import LogConfig
from kreplica.common.dataclass import dataclass, replace
from kreplica.common.errors import (
    EligibleLeadersNotAvailable,
    InvalidFile,
    InvalidReplicaAssignment,
    KreplicaError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr, LeaderRecoveryState
from kreplica.common.locks import RLock
from kreplica.common.metrics import MetricRegistry
from kreplica.common.ports import Transport
from kreplica.common.types import ACKS_ALL, TopicPartition, Uuid, check_topic_name
from kreplica.controller.manual_controller import CONTROLLER_ID, ManualController, Topic
from kreplica.log.unified_log import TimestampOffset
from kreplica.replica.append_manager import PRODUCE_TIMEOUT_MS
from kreplica.replica.delayed_requests import DeleteRecordsResult, PartitionResponse
from kreplica.replica.partition import Partition as Replica
from kreplica.replica.partition_state import IsrHistory, LogReadInfo, OutOfIsr
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_manager import ReplicaManager as Replicas
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.frame_transport import FrameTransport
from kreplica.runtime.local_network import LocalNetwork
from kreplica.runtime.scheduler import ThreadWorkers
from kreplica.runtime.storage import FileStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.batch_builder import _RecordList as RecordList

__all__ = [
    "CONTROLLER_ID",
    "ClusterState",
    "Controller",
    "FrameTransport",
    "LeaderAndIsr",
    "LocalNetwork",
    "Partition",
    "PartitionResponse",
    "ReplicaManager",
    "ReplicaNode",
    "TopicPartition",
    "Transport",
]

CLUSTER_ID = "kreplica-embedded-----"
STATE_FILE = "controller.json"
ACKS = {"all": -1, 1: 1}

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that a controller has decided, at one moment. Immutable; it can be pickled and sent to brokers.

    `version` grows with each change. `broker_epochs`: the epoch of each registered broker that runs.
    `topics`: id and log configuration by name.
    """

    version: int
    controller_epoch: int
    broker_epochs: Mapping[int, int]
    topics: Mapping[str, Topic]
    partitions: Mapping[TopicPartition, LeaderAndIsr]


NO_STATE = ClusterState(0, 0, {}, {}, {})


class Controller:
    """Keeps the decisions about brokers and partitions, and answers leaders that change an ISR.

    `directory`: where the decisions are kept, flushed before they take effect. Use the same one at each start
    of the program. Without it they are lost at the end, and a later controller is refused by the brokers'
    logs. `network`: where it answers requests, as node CONTROLLER_ID; with a transport of your own call
    `transport.serve(controller.handle)`. A program has one controller; nothing elects another if it dies, and
    appends go on meanwhile, with leaders and ISRs as they are.

    Raises InvalidFile if the directory holds no valid state, KafkaStorageError if it cannot be read or
    written. Every method that changes something raises KafkaStorageError as well. Thread rule: any thread.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, network: LocalNetwork | None = None
    ) -> None:
        self._storage = FileStorage()
        self._path = None if directory is None else os.path.join(os.fspath(directory), STATE_FILE)
        self._decisions = ManualController(lambda _: self._publish())
        # The decisions' own lock, so that an ISR change cannot come between reading a state and deciding.
        self._lock = self._decisions.lock
        # Guarded by _lock:
        self._listeners: list[Callable[[ClusterState], object]] = []
        self._state = NO_STATE
        if self._path is not None:
            self._storage.make_directory(os.path.dirname(self._path))
            if self._storage.exists(self._path):
                self._restore(self._storage.read_file(self._path))
        self._network, self._endpoint = network, None
        if network is not None:
            self._endpoint = network.join(CONTROLLER_ID)
            network.register(self._endpoint, self.handle)

    def handle(self, request: Any) -> Future[Any]:
        """Answer an AlterPartition request; the future fails with UnsupportedVersion for any other."""
        return self._decisions.handle(request)

    def close(self) -> None:
        """Leave the network. The decisions stay in the directory."""
        if self._network is not None and self._endpoint is not None:
            self._network.leave(self._endpoint)
            self._endpoint = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> ClusterState:
        """The present decisions."""
        return self._state

    def subscribe(self, listener: Callable[[ClusterState], object]) -> None:
        """Call `listener(state)` now and after each change, in the thread that made it.

        States may arrive out of order; `ReplicaNode.apply` ignores an older one.
        """
        with self._lock:
            self._listeners.append(listener)
        listener(self._state)

    def unsubscribe(self, listener: Callable[[ClusterState], object]) -> None:
        """Stop calling the listener."""
        with self._lock:
            self._listeners.remove(listener)

    # ---- decisions ----------------------------------------------------------------------------------------

    def add_broker(self, broker_id: int) -> None:
        """Register a broker that has started, and let it lead partitions without a leader that it may lead.

        Call it at each start. The new broker epoch makes messages of the broker's former run recognizable.
        """
        with self._lock:
            self._decisions.register(broker_id)
            self._elect_missing_leaders()
        self._publish()

    def remove_broker(self, broker_id: int) -> None:
        """Note that a broker has failed or stops: take it out of ISRs and elect other leaders.

        A partition's only in-sync replica stays in its ISR. The partition then has no leader until that
        broker is back.
        """
        with self._lock:
            self._decisions.fenced.add(broker_id)
            for at, state in list(self._decisions.partitions.items()):
                isr = tuple(each for each in state.isr if each != broker_id) or state.isr
                if state.leader == broker_id:
                    self._decide_leader(at, self._first_alive(isr), isr)
                elif isr != state.isr:
                    self._decisions.decide(at, isr=isr)
        self._publish()

    def create_topic(
        self,
        name: str,
        replicas: Sequence[int],
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic whose partitions are on the brokers `replicas`, which take turns as first leader.

        `config`: Kafka's topic properties. min.insync.replicas is a majority of the replicas by default, so
        that an acknowledged record survives the loss of a minority. Raises InvalidTopic, TopicAlreadyExists,
        InvalidConfig, and InvalidReplicaAssignment unless `replicas` names different registered brokers.
        """
        majority = {"min.insync.replicas": len(replicas) // 2 + 1}
        logs = LogConfig.parse({**majority, **(config or {})})
        with self._lock:
            if check_topic_name(name) in self._decisions.topics:
                raise TopicAlreadyExists(f"topic {name!r} exists already")
            unknown = [each for each in replicas if not self._is_alive(each)]
            if not replicas or unknown or len(set(replicas)) < len(replicas) or partitions < 1:
                raise InvalidReplicaAssignment(
                    f"topic {name!r} has partitions={partitions} and replicas={list(replicas)}; {unknown}"
                    " do not run: name at least 1 partition, and different brokers that run"
                )
            self._decisions.topics[name] = Topic(Uuid.generate(random.SystemRandom()), logs)
            for number in range(partitions):
                turn = number % len(replicas)
                self._decisions.create(TopicPartition(name, number), [*replicas[turn:], *replicas[:turn]])
        self._publish()

    def elect(self, topic: str, leader: int, *, partition: int = 0, unclean: bool = False) -> None:
        """Let the broker lead the partition in the next leader epoch.

        `unclean`: also if it is not in sync, which loses the records that it lacks. Raises
        UnknownTopicOrPartition, and EligibleLeadersNotAvailable if the broker may not lead.
        """
        at = TopicPartition(topic, partition)
        with self._lock:
            state = self._decisions.partitions.get(at)
            if state is None:
                raise UnknownTopicOrPartition(f"there is no partition {at}")
            allowed = state.replicas if unclean else state.isr
            if leader not in allowed or not self._is_alive(leader):
                raise EligibleLeadersNotAvailable(
                    f"{at}: broker {leader} may not lead; in sync are {list(state.isr)}, and it must run"
                )
            is_unclean = leader not in state.isr
            self._decide_leader(at, leader, (leader,) if is_unclean else state.isr, unclean=is_unclean)
        self._publish()

    # ---- internals ----------------------------------------------------------------------------------------

    def _is_alive(self, broker_id: int) -> bool:
        return self._decisions.get_alive_broker_epoch(broker_id) is not None

    def _first_alive(self, brokers: Sequence[int]) -> int:
        return next(filter(self._is_alive, brokers), NO_LEADER)

    def _elect_missing_leaders(self) -> None:
        for at, state in list(self._decisions.partitions.items()):
            leader = self._first_alive([each for each in state.replicas if each in state.isr])
            if state.leader == NO_LEADER and leader != NO_LEADER:
                self._decide_leader(at, leader, state.isr)

    def _decide_leader(
        self, at: TopicPartition, leader: int, isr: tuple[int, ...], *, unclean: bool = False
    ) -> None:
        assert leader == NO_LEADER or leader in isr
        self._decisions.elect(at, leader, isr, unclean=unclean)

    def _publish(self) -> None:
        """Write the present decisions to the directory, then pass them to the listeners."""
        decisions = self._decisions
        with self._lock:
            alive = {each: epoch for each, epoch in decisions.broker_epochs.items() if self._is_alive(each)}
            state = ClusterState(
                self._state.version + 1,
                decisions.epoch,
                alive,
                dict(decisions.topics),
                dict(decisions.partitions),
            )
            if self._path is not None:
                self._storage.write_file_atomically(self._path, _to_json(state, decisions.broker_epochs))
            self._state = state
            listeners = list(self._listeners)
        for listener in listeners:
            listener(state)

    def _restore(self, data: bytes) -> None:
        """Take over the decisions in `data`, in the next controller epoch. Raises InvalidFile."""
        assert self._path is not None
        decisions = self._decisions
        try:
            held = json.loads(data)
            for name, (topic_id, config) in held["topics"].items():
                decisions.topics[name] = Topic(Uuid.parse(topic_id), LogConfig.parse(config))
            for topic, number, *rest in held["partitions"]:
                at = TopicPartition(topic, number)
                decisions.partitions[at] = _partition_of(at, decisions.topics[topic].topic_id, *rest)
            decisions.restore(
                held["epoch"] + 1, {int(each): epoch for each, epoch in held["brokers"].items()}
            )
            self._state = replace(NO_STATE, version=int(held["version"]))
        except (ValueError, KeyError, TypeError, AttributeError, KreplicaError) as error:
            raise InvalidFile(f"{self._path} is not the state of a controller: {error}") from error
        # No broker is registered yet, so none leads.
        for at, state in list(decisions.partitions.items()):
            self._decide_leader(at, NO_LEADER, state.isr)
        self._publish()


class Partition(Protocol):
    """What a program may ask a replica of `topic_partition`. All its answers may be a moment old."""

    topic_partition: TopicPartition
    isr_history: IsrHistory

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader(self) -> int:
        """The leader's broker id, or -1."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas that the controller has committed, as far as this broker knows."""
        ...

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned brokers, in their order."""
        ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and a replica is out of sync."""
        ...

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this broker leads with fewer replicas in sync than min.insync.replicas."""
        ...

    @property
    def is_damaged(self) -> bool:
        """Whether a range of the log cannot be read."""
        ...

    def why_not_in_isr(self, broker_id: int) -> OutOfIsr | None:
        """Return why the replica left the ISR and what keeps it out now; None if it is in the ISR.

        Raises NotLeaderOrFollower if this broker does not lead, ReplicaNotAvailable if the other is not a
        replica.
        """
        ...

    def fetch_records(
        self,
        fetch_offset: int,
        max_bytes: int,
        *,
        isolation: str = "high_watermark",
        only_leader: bool = True,
    ) -> LogReadInfo:
        """Return whole batches from the one that holds `fetch_offset` on, as a pinned slice.

        `isolation`: log_end, high_watermark or txn_committed. Raises NotLeaderOrFollower, OffsetOutOfRange,
        DamagedLog.
        """
        ...

    def fetch_offset_for_timestamp(
        self, timestamp: int, isolation: str = "high_watermark"
    ) -> TimestampOffset:
        """Return the first visible record at or after `timestamp` (ms); offset -1 if no record matches.

        Raises NotLeaderOrFollower, OffsetNotAvailable.
        """
        ...


class ReplicaManager(Protocol):
    """What a program may ask of all replicas of one broker. Thread rule: any thread."""

    broker_id: int
    # Its `values()` are the numbers, by the names that Kafka gives them.
    metrics: MetricRegistry

    @property
    def partitions(self) -> Iterable[Partition]:
        """The partitions that this broker replicates and whose disk has not failed."""
        ...

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        required_acks: int = ACKS_ALL,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
    ) -> Future[PartitionResponse]:
        """Append one encoded batch in Kafka's format v2, as a producer sends it.

        The future fails as that of `ReplicaNode.append`.
        """
        ...

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int = PRODUCE_TIMEOUT_MS
    ) -> Future[dict[TopicPartition, DeleteRecordsResult]]:
        """Delete the records below these offsets (-1: the high watermark) on all replicas.

        This broker must lead the partitions. Each result has the new low watermark, or an error.
        """
        ...


class ReplicaNode:
    """One broker of your program: the replicas in `directory`, and the parts that replicate them.

    `network`: the LocalNetwork that it shares with the other nodes of the process, or a Transport to nodes
    elsewhere, which must pass the requests that arrive to `handle`. `controller`: a Controller of the same
    process, whose decisions the node follows; otherwise bring them to `apply`. `config`: Kafka's properties
    of replication, such as {"replica.lag.time.max.ms": 10_000}.

    Raises InvalidConfig, LogDirLocked, KafkaStorageError, InconsistentClusterId. Thread rule: any thread.
    """

    def __init__(
        self,
        broker_id: int,
        directory: str | os.PathLike[str],
        network: LocalNetwork | Transport,
        *,
        controller: Controller | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._view = view = _View()
        # One state is applied at a time. Reentrant, because a role that ends resolves futures, and a callback
        # of one may make the controller decide again.
        self._lock = RLock()
        # The broker epoch: of the last state in which the broker was registered.
        self._epoch = -1
        self._controller = controller
        # With a transport of the program, a network of its own runs this node's tasks and timers.
        self._owns_network = not isinstance(network, LocalNetwork)
        self._network = network if isinstance(network, LocalNetwork) else LocalNetwork()
        if self._owns_network:
            self._network.start()
        self._endpoint = endpoint = self._network.join(broker_id)
        try:
            self._broker = Broker(
                broker_id,
                [os.path.abspath(os.fspath(directory))],
                cluster_id=CLUSTER_ID,
                storage=FileStorage(),
                clock=SystemClock(),
                scheduler=endpoint,
                workers=ThreadWorkers(),
                random=random.SystemRandom(),
                transport=endpoint if isinstance(network, LocalNetwork) else network,
                new_loop=endpoint.loop,
                metadata_cache=view,
                broker_epoch=lambda: self._epoch,
                controller=lambda: CONTROLLER_ID,
                replica_config=ReplicaConfig.parse(config or {}),
            )
            self._broker.startup()
        except BaseException:
            self._leave()
            raise
        self._network.register(endpoint, self._broker.handle)
        if controller is not None:
            controller.add_broker(broker_id)
            controller.subscribe(self.apply)

    @property
    def manager(self) -> ReplicaManager:
        """All replicas of this broker: metrics, batches that producers encoded, the deletion of records."""
        return self._replicas

    @property
    def _replicas(self) -> Replicas:
        return self._broker.replica_manager

    def partition(self, topic: str, partition: int = 0) -> Partition:
        """Return a Partition that this broker replicates.

        Raises UnknownTopicOrPartition, NotLeaderOrFollower if other brokers have it, KafkaStorageError if its
        disk failed.
        """
        return self._replica(topic, partition)

    def _replica(self, topic: str, partition: int) -> Replica:
        return self._replicas.partitions.get_or_error(TopicPartition(topic, partition))

    def append(
        self,
        topic: str,
        records: RecordList,
        *,
        partition: int = 0,
        acks: str | int = "all",
        timeout: float = 30.0,
    ) -> Future[PartitionResponse]:
        """Append records as one batch to a partition that this broker leads.

        With acks="all" the future is done when every in-sync replica has them, with acks=1 at once. It fails
        with NotLeaderOrFollower or NotEnoughReplicas, and nothing is appended; with RequestTimedOut after
        `timeout` seconds, NotEnoughReplicasAfterAppend or NotLeaderOrFollower after the append, and the
        records may still become committed. Nothing is retried. Raises ValueError for other `acks`.
        """
        if acks not in ACKS or isinstance(acks, bool):
            raise ValueError(f'acks must be "all" or 1, not {acks!r}')
        with self._network.draining():
            return self._replicas.append_values(
                TopicPartition(topic, partition),
                records,
                required_acks=ACKS[acks],
                timeout_ms=int(timeout * 1000),
            )

    def read(self, topic: str, start: int | None = None, *, partition: int = 0) -> Iterator[Record]:
        """Iterate over this replica's committed records from offset `start`, by default the log start.

        Ends at the high watermark. On a follower that may lie a moment behind the leader's. Raises as
        `partition`; while iterating OffsetOutOfRange, CorruptMessage, DamagedLog.
        """
        log = self._replica(topic, partition).local_log
        first = log.log_start_offset if start is None else start
        end = log.high_watermark
        for batch in log.batches(first, end, isolation="high_watermark"):
            for record in batch:
                if record.offset is not None and first <= record.offset < end:
                    yield record

    def handle(self, request: Any) -> Future[Any]:
        """Answer another node's request."""
        return self._broker.handle(request)

    def apply(self, state: ClusterState) -> dict[TopicPartition, KreplicaError]:
        """Take the roles that the controller has decided on; an older state changes nothing.

        Returns the error of each partition whose role could not be taken. They are logged too.
        """
        with self._lock:
            if state.version <= self._view.state.version:
                return {}
            self._view.state = state
            self._epoch = state.broker_epochs.get(self.broker_id, self._epoch)
            configs = {name: topic.config for name, topic in state.topics.items()}
            self._broker.log_manager.configs.change(configs)
            hosted = self._replicas.partitions
            mine = [
                each
                for at, each in state.partitions.items()
                if self.broker_id in each.replicas or hosted.get(at) is not None
            ]
            taken = self._broker.become_leader_or_follower(mine, state.controller_epoch)
        self._replicas.brokers_changed()
        errors = {at: error for at, error in taken.items() if error is not None}
        for at, error in errors.items():
            LOGGER.error("broker %d cannot take its role in %s: %r", self.broker_id, at, error)
        return errors

    def close(self) -> None:
        """Hand over the leaderships if the node knows its controller, and close the logs."""
        if not self._endpoint.is_alive:
            return
        try:
            if self._controller is not None:
                self._controller.remove_broker(self.broker_id)
                self._controller.unsubscribe(self.apply)
        finally:
            self._broker.shutdown()
            self._leave()

    def _leave(self) -> None:
        self._network.leave(self._endpoint)
        if self._owns_network:
            self._network.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _View:
    """Implements kreplica.replica.metadata_cache.MetadataCache over the newest ClusterState."""

    def __init__(self) -> None:
        self.state = NO_STATE

    def contains(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.state.partitions

    def leader(self, topic_partition: TopicPartition) -> int | None:
        state = self.state.partitions.get(topic_partition)
        return None if state is None or state.leader == NO_LEADER else state.leader

    def topic_name(self, topic_id: Uuid) -> str | None:
        topics = self.state.topics.items()
        return next((name for name, topic in topics if topic.topic_id == topic_id), None)

    def topic_id(self, topic: str) -> Uuid | None:
        known = self.state.topics.get(topic)
        return None if known is None else known.topic_id

    def is_broker_fenced(self, broker_id: int) -> bool:
        return broker_id not in self.state.broker_epochs

    def is_broker_shutting_down(self, broker_id: int) -> bool:  # noqa: ARG002
        return False

    def rack(self, broker_id: int) -> str | None:  # noqa: ARG002
        return None

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return f"broker-{broker_id}", 0

    def get_alive_broker_epoch(self, broker_id: int) -> int | None:
        return self.state.broker_epochs.get(broker_id)


def _to_json(state: ClusterState, broker_epochs: Mapping[int, int]) -> bytes:
    partitions = [
        [
            *each.topic_partition,
            *(each.leader_epoch, each.isr, each.partition_epoch, each.replicas),
            int(each.leader_recovery_state),
        ]
        for each in state.partitions.values()
    ]
    topics = {name: (str(each.topic_id), each.config.properties()) for name, each in state.topics.items()}
    held = {
        "version": state.version,
        "epoch": state.controller_epoch,
        "brokers": dict(broker_epochs),
        "topics": topics,
        "partitions": partitions,
    }
    return json.dumps(held).encode()


def _partition_of(
    at: TopicPartition,
    topic_id: Uuid,
    leader_epoch: int,
    isr: Sequence[int],
    partition_epoch: int,
    replicas: Sequence[int],
    recovery: int,
) -> LeaderAndIsr:
    return LeaderAndIsr(
        topic_partition=at,
        topic_id=topic_id,
        leader=NO_LEADER,
        leader_epoch=leader_epoch,
        isr=tuple(isr),
        partition_epoch=partition_epoch,
        replicas=tuple(replicas),
        leader_recovery_state=LeaderRecoveryState(recovery),
    )
