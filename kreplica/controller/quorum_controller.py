"""QuorumController: the cluster's controller on one node; active while its node leads the metadata quorum.

Everything that happens to it is an event in its loop, one after the other: a request, a timer, a change of
the leader. An event of the active controller decides by its context, which is ahead of what is committed, and
its records are appended at once or not at all. Whoever asked is answered when they are committed, or with
NotController when leadership is lost first; then they may be committed nevertheless. An event that writes
nothing waits for what it saw.

A fail-over goes in the ZooKeeper-era controller's order (see `_on_controller_failover`). What belongs to an
epoch is its ControllerTerm, which a resignation gives up whole.

The quorum's side calls `on_commit`, `on_leader_change` and `on_metadata_update` in its own loop; they only
copy and post.
Any thread may call the methods that return futures.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from kreplica.common.errors import KreplicaError, NotController, UnexpectedBaseOffset, UnknownServerError
from kreplica.common.future import Future
from kreplica.common.metrics import Meter, MetricRegistry
from kreplica.common.ports import Cancellable, Clock, Loop, Random
from kreplica.controller.controller_config import ControllerConfig
from kreplica.controller.controller_result import ControllerResult
from kreplica.controller.controller_term import ControllerTerm, Quorum
from kreplica.controller.feature_control import bootstrap_records
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.cluster_metadata import ClusterMetadata
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.metadata_delta import MetadataDelta
from kreplica.metadata.records import NoOpRecord

LOGGER = logging.getLogger(__name__)
NANOSECONDS_PER_MS = 1_000_000
# How often an event is done anew since the quorum has written a record of its own.
ATTEMPTS = 8
# How soon a fence that could not be written is tried again.
FENCE_RETRY_MS = 20
# How often a warning tells of partitions without a leader, and how many it names.
REPORT_EVERY_MS = 60_000
MOST_NAMES = 3

T = TypeVar("T")
Operation = Callable[[ControllerTerm], T | ControllerResult[T]]


class LeaderAndEpoch(Protocol):
    """Who leads the quorum, None if nobody is known to, and in which epoch."""

    @property
    def leader_id(self) -> int | None: ...

    @property
    def epoch(self) -> int: ...


class Deferred(NamedTuple):
    """An answer that is given once the record at `offset` is committed."""

    offset: int
    future: Future[Any]
    result: Any


class QuorumController:
    """See the module. `metadata()`: the committed metadata. `in_transaction()`: whether records follow it in
    the log that may be undone yet (KIP-868). Both are asked in the quorum's loop.
    `unclean_leader_election_enable`: as the node is configured, for topics without a setting.
    `fixed_settings`: the names of the settings that a node takes from its file alone."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        node_id: int,
        cluster_id: str,
        quorum: Quorum,
        metadata: Callable[[], ClusterMetadata],
        in_transaction: Callable[[], bool],
        unclean_leader_election_enable: bool = False,
        fixed_settings: Collection[str] = (),
        clock: Clock,
        random: Random,
        loop: Loop,
        metrics: MetricRegistry | None = None,
    ) -> None:
        self.node_id = node_id
        self.state_change_logger = StateChangeLogger(node_id)
        self._config = config
        self._cluster_id = cluster_id
        self._quorum = quorum
        self._metadata = metadata
        self._in_transaction = in_transaction
        self._unclean_leader_election_enable = unclean_leader_election_enable
        self._fixed_settings = fixed_settings
        self._clock = clock
        self._random = random
        self._loop = loop
        # The loop's own:
        self._term: ControllerTerm | None = None
        self._leader_id: int | None = None
        self._former_leader_id: int | None = None  # the last one that was another node
        self._committed = 0  # all records below are
        self._deferred: deque[Deferred] = deque()
        self._timers: dict[str, Cancellable] = {}
        self._check_due_ns = 0
        self._written_at_ns = 0
        # When the connection to a node was last seen to break, whoever was the active controller then.
        self._lost_connections: dict[int, int] = {}
        self._add_metrics(metrics or MetricRegistry())

    def _add_metrics(self, metrics: MetricRegistry) -> None:
        self._failovers = metrics.meter("KafkaController", "ControllerFailoversPerSec")
        self._event_time = metrics.duration("ControllerEventManager", "EventQueueProcessingTimeMs")
        self._expired = Meter()
        metrics.gauge("KafkaController", "TimedOutBrokerHeartbeatCount", lambda: self._expired.count)
        metrics.gauge("KafkaController", "ActiveControllerCount", lambda: float(self.is_active))
        metrics.gauge("KafkaController", "OfflinePartitionsCount", self._count_offline_partitions)
        metrics.gauge("KafkaController", "FencedBrokerCount", lambda: self._count_brokers(is_fenced=True))
        metrics.gauge("KafkaController", "ActiveBrokerCount", lambda: self._count_brokers(is_fenced=False))

    def _count_offline_partitions(self) -> float:
        term = self._term
        return 0.0 if term is None else float(len(term.context.partitions_not_online))

    def _count_brokers(self, *, is_fenced: bool) -> float:
        term = self._term
        brokers = () if term is None else list(term.context.metadata.brokers.values())
        return float(sum(broker.fenced == is_fenced for broker in brokers))

    # ---- from any thread ----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this is the active controller; may be a moment old."""
        return self._term is not None

    @property
    def fenced_count(self) -> int:
        """How many brokers this controller has fenced since it started, for they were not heard."""
        return self._expired.count

    @property
    def leader_id(self) -> int | None:
        """The node of the active controller as far as this one knows, None if it knows of none."""
        return self._leader_id

    def append_write_event(self, name: str, operation: Operation[T]) -> Future[T]:
        """Let the active controller do `operation(term)`; the future gets its result once that is committed.

        It fails with the operation's KreplicaError, then nothing was written; and with NotController where
        this is not the active controller, or is no more before the commit: the same may be asked again.
        """
        future: Future[T] = Future()
        self._loop.post(partial(self._run_event, name, operation, future))
        return future

    def connection_lost(self, broker_id: int) -> None:
        """The connection to a node was closed: its broker may be dead."""
        self._loop.post(partial(self._connection_lost, broker_id))

    def close(self) -> None:
        """Do nothing any more; whoever waits gets a NotController."""
        self._loop.post(self._close)

    # ---- from the quorum's loop ---------------------------------------------------------------------------

    def on_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Another leader or epoch of the quorum; to its leader itself once it has all from before."""
        if leader.leader_id == self.node_id:
            metadata, in_transaction = self._metadata().copy(), self._in_transaction()
            self._loop.post(partial(self._claim, leader.epoch, metadata, in_transaction))
        else:
            self._loop.post(partial(self._renounce, leader.leader_id))

    def on_commit(self, offset: int) -> None:
        """All records below `offset` are committed: whoever asked for them is answered, before anybody
        replays them."""
        self._loop.post(partial(self._commit, offset))

    def on_metadata_update(
        self, _delta: MetadataDelta, _metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """All records below `applied.offset` are committed, which `on_commit` may have told before."""
        if applied.offset > self._committed:
            self._loop.post(partial(self._commit, applied.offset))

    # ---- events -------------------------------------------------------------------------------------------

    def _run_event(self, name: str, operation: Operation[Any], future: Future[Any]) -> None:
        term = self._term
        if term is None:
            future.set_exception(self._not_controller())
            return
        begun_ns = self._clock.monotonic_ns()
        try:
            result = self._attempt(term, operation)
        except Exception as error:
            if term.is_lost:
                # The quorum has another leader, which is told next; or this node has resigned.
                self._leader_id = None
                self._on_controller_resignation(str(error))
                future.set_exception(self._not_controller())
            elif isinstance(error, KreplicaError):
                future.set_exception(error)
            else:
                self._fault(name, error, term.epoch)
                future.set_exception(UnknownServerError(f"{name} failed: {error!r}"))
            return
        self._event_time.update((self._clock.monotonic_ns() - begun_ns) / NANOSECONDS_PER_MS)
        self._answer(term, future, result)

    def _attempt(self, term: ControllerTerm, operation: Operation[Any]) -> Any:
        before = term.last_offset
        for attempt in range(ATTEMPTS):
            try:
                result = term.run(operation)
            except UnexpectedBaseOffset:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            if term.last_offset != before:
                self._written_at_ns = self._clock.monotonic_ns()
            return result
        raise AssertionError("unreachable")

    def _answer(self, term: ControllerTerm, future: Future[Any], result: Any) -> None:
        if term.last_offset < self._committed:
            future.set_result(result)
        else:
            self._deferred.append(Deferred(term.last_offset, future, result))

    def _commit(self, offset: int) -> None:
        self._committed = max(self._committed, offset)
        while self._deferred and self._deferred[0].offset < self._committed:
            _, future, result = self._deferred.popleft()
            future.set_result(result)

    def _fault(self, name: str, error: Exception, epoch: int) -> None:
        # What an event that failed so has left in memory is not to be trusted; a new epoch reads it anew.
        LOGGER.error("controller %d: %s failed, it resigns", self.node_id, name, exc_info=error)
        if self._term is not None:
            self._on_controller_resignation(f"{name} failed: {error!r}")
        self._leader_id = None
        self._quorum.resign(epoch)

    def _not_controller(self) -> NotController:
        known = "unknown" if self._leader_id is None else f"node {self._leader_id}"
        return NotController(f"node {self.node_id} is not the active controller, which is {known}")

    # ---- fail-over ----------------------------------------------------------------------------------------

    def _claim(self, epoch: int, metadata: ClusterMetadata, in_transaction: bool) -> None:
        if self._term is not None:
            self._on_controller_resignation("a new epoch")
        self._leader_id = self.node_id
        try:
            self._on_controller_failover(epoch, metadata, in_transaction)
        except Exception as error:
            self._fault("onControllerFailover", error, epoch)

    def _on_controller_failover(self, epoch: int, metadata: ClusterMetadata, in_transaction: bool) -> None:
        """Become the active controller, in the ZooKeeper-era controller's order.

        Its epoch; the context, from what is committed (each later commit comes as an event behind this one);
        the end of a transaction of the log that was left open; the
        replicas' states, then the partitions', which elects leaders where there are none; reassignments that
        were under way; sessions, so that brokers are told from dead ones; the timers. A deletion needs
        nothing: brokers delete what the metadata lacks.
        """
        self._failovers.mark()
        term = ControllerTerm(
            self._config,
            epoch,
            metadata,
            cluster_id=self._cluster_id,
            unclean_leader_election_enable=self._unclean_leader_election_enable,
            fixed_settings=self._fixed_settings,
            quorum=self._quorum,
            state_change_logger=self.state_change_logger,
            clock=self._clock,
            random=self._random,
        )
        self._term = term
        self._written_at_ns = self._clock.monotonic_ns()
        if in_transaction:
            # Else what follows would wait, or be undone, with what nobody is going to end (KIP-868).
            self._require("abortTransaction", lambda term: term.abort_transaction("a new controller"))
        if not metadata.features:
            self._require("bootstrap", lambda _: ControllerResult(bootstrap_records(), None))
        self._require("startup", lambda term: term.machines.startup())
        self._require("sessions", self._begin_sessions)
        self._start_timers()

    def _begin_sessions(self, term: ControllerTerm) -> None:
        term.cluster.activate(self._former_leader_id)
        now_ns = self._clock.monotonic_ns()
        longest_ns = self._config.broker_session_timeout_ms * NANOSECONDS_PER_MS
        for broker_id, lost_ns in self._lost_connections.items():
            if now_ns - lost_ns < longest_ns:
                term.heartbeats.connection_lost(broker_id, now_ns)

    def _renounce(self, leader_id: int | None) -> None:
        self._leader_id = leader_id
        if leader_id is not None:
            self._former_leader_id = leader_id
        if self._term is not None:
            self._on_controller_resignation("another node leads the quorum")

    def _on_controller_resignation(self, why: str) -> None:
        """Be the active controller no more: all that belongs to the epoch goes, and whoever waits is told."""
        term, self._term = self._term, None
        assert term is not None
        term.is_lost = True
        LOGGER.info("controller %d resigns from epoch %d: %s", self.node_id, term.epoch, why)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        waiting, self._deferred = self._deferred, deque()
        for deferred in waiting:
            deferred.future.set_exception(self._not_controller())

    def _close(self) -> None:
        self._leader_id = None
        if self._term is not None:
            self._on_controller_resignation("the node shuts down")

    # ---- timed events -------------------------------------------------------------------------------------

    def _internal(self, name: str, operation: Operation[Any]) -> BaseException | None:
        """An event of the controller's own, within this one; what it failed with. It comes again anyway."""
        future: Future[Any] = Future()
        self._run_event(name, operation, future)
        error = future.exception() if future.done() else None
        if error is not None:
            LOGGER.error("controller %d: %s failed: %r", self.node_id, name, error)
        return error

    def _require(self, name: str, operation: Operation[Any]) -> None:
        """An event without which this cannot be the controller."""
        error = self._internal(name, operation)
        if error is not None:
            raise error

    def _start_timers(self) -> None:
        config = self._config
        self._arm_session_check()
        if config.auto_leader_rebalance_enable:
            self._every(
                "maybeBalancePartitionLeaders",
                config.leader_imbalance_check_interval_seconds * 1_000,
                lambda term: term.machines.preferred_election.balance(),
            )
        self._every(
            "maybeElectUncleanly",
            config.unclean_leader_election_interval_ms,
            lambda term: term.machines.partitions.trigger_online_partition_state_change(),
        )
        self._every("writeNoOpRecord", config.metadata_max_idle_interval_ms, self._write_no_op_record)
        self._every("reportOfflinePartitions", REPORT_EVERY_MS, self._report_offline_partitions)

    def _every(self, name: str, period_ms: int, operation: Operation[Any]) -> None:
        term = self._term
        if term is None or not period_ms:
            return

        def run() -> None:
            if self._term is term:
                self._internal(name, operation)
                self._every(name, period_ms, operation)

        self._timers[name] = self._loop.post_later(run, period_ms)

    def _write_no_op_record(self, term: ControllerTerm) -> None:
        passed_ns = self._clock.monotonic_ns() - self._written_at_ns
        if passed_ns >= self._config.metadata_max_idle_interval_ms * NANOSECONDS_PER_MS:
            term.add(NoOpRecord())

    def _report_offline_partitions(self, term: ControllerTerm) -> None:
        # Also those that no live broker has a replica of, which no broker would tell of.
        names = sorted(str(each.topic_partition) for each in term.context.partitions_not_online)
        if names:
            others = ", ..." if len(names) > MOST_NAMES else ""
            LOGGER.warning(
                "controller %d: %d partitions of the cluster have no leader: %s%s",
                *(self.node_id, len(names), ", ".join(names[:MOST_NAMES]), others),
            )

    # ---- sessions -----------------------------------------------------------------------------------------

    def _connection_lost(self, broker_id: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._lost_connections[broker_id] = now_ns
        if self._term is not None:
            self._term.heartbeats.connection_lost(broker_id, now_ns)
            self._arm_session_check()

    def _arm_session_check(self, least_ms: int = 0) -> None:
        term = self._term
        if term is None:
            return
        timer = self._timers.pop("maybeFenceStaleBrokers", None)
        if timer is not None:
            timer.cancel()
        now_ns = self._clock.monotonic_ns()
        # Rounded up: a look before the end of a session would find nothing and come again at once.
        delay_ms = -(-(term.heartbeats.next_check_ns(now_ns) - now_ns) // NANOSECONDS_PER_MS)
        delay_ms = max(delay_ms, least_ms)
        self._check_due_ns = now_ns + delay_ms * NANOSECONDS_PER_MS
        self._timers["maybeFenceStaleBrokers"] = self._loop.post_later(
            partial(self._maybe_fence_stale_brokers, term), delay_ms
        )

    def _maybe_fence_stale_brokers(self, term: ControllerTerm) -> None:
        if self._term is not term:
            return
        late_ns = self._clock.monotonic_ns() - self._check_due_ns
        if late_ns > 0:
            term.heartbeats.controller_stalled(late_ns)
        error = self._internal("maybeFenceStaleBrokers", self._fence_stale_brokers)
        self._arm_session_check(0 if error is None else FENCE_RETRY_MS)

    def _fence_stale_brokers(self, term: ControllerTerm) -> None:
        fenced = term.cluster.fence_expired_brokers()
        if fenced:
            self._expired.mark(len(fenced))
            LOGGER.info("controller %d fences brokers %s: their sessions have ended", self.node_id, fenced)
