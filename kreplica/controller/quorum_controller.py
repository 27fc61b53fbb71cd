"""QuorumController: the cluster's controller on one node. It is active while its node leads the metadata
quorum.

Everything that happens is an event in its loop, one after the other: a request, a timer, a change of the
leader. The active controller decides by its context, which is ahead of the committed state. The records of an
event are appended atomically. A caller is answered when they are committed, or with NotController if the
leadership is lost first; they may still be committed then. An event that writes nothing waits for the records
that it has read.

A fail-over has the order of the ZooKeeper-era controller (see `_on_controller_failover`). All state of an
epoch is in its ControllerTerm, which a resignation drops as a whole.

The quorum calls `on_commit`, `on_leader_change` and `on_metadata_update` in its own loop. They only copy and
post. Any thread may call the methods that return futures.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kreplica.common.errors import KreplicaError, NotController, UnexpectedBaseOffset, UnknownServerError
from kreplica.common.future import Future
from kreplica.common.metrics import Meter, MetricRegistry
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop, Random
from kreplica.controller.configuration_control import CheckSettings, accept
from kreplica.controller.controller_broker_request_batch import ControllerResult
from kreplica.controller.controller_config import ControllerConfig
from kreplica.controller.controller_term import ControllerTerm, Quorum
from kreplica.controller.feature_control import bootstrap_records
from kreplica.controller.state_change_logger import StateChangeLogger
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.metadata_loader import LeaderAndEpoch
from kreplica.metadata.records import NoOpRecord, UserScramCredentialRecord
from kreplica.security.delegation_token import DelegationTokenConfig

LOGGER = logging.getLogger(__name__)
# The most attempts of an event. One fails if a record of the quorum itself was appended meanwhile.
ATTEMPTS = 8
# The delay before a fence that could not be written is tried again.
FENCE_RETRY_MS = 20
# How often partitions without a leader are logged, and how many of them are named.
REPORT_EVERY_MS = 60_000
MOST_NAMES = 3

T = TypeVar("T")
Operation = Callable[[ControllerTerm], T | ControllerResult[T]]


class Deferred(NamedTuple):
    """An answer that is given once the record at `offset` is committed."""

    offset: int
    future: Future[Any]
    result: Any


class QuorumController:
    """The controller of one node.

    `metadata()`: the committed metadata. `in_transaction()`: whether the log continues with records of a
    transaction that may still be aborted (KIP-868). Both are called in the quorum's loop.
    `unclean_leader_election_enable`: the node's setting, for topics without their own. `fixed_settings`:
    names of the settings that a node reads only from its file. `check_group_settings`: raises InvalidConfig
    unless a group can have these settings. `tokens`: the settings of delegation tokens.
    """

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
        check_group_settings: CheckSettings = accept,
        tokens: DelegationTokenConfig | None = None,
        credentials: Sequence[UserScramCredentialRecord] = (),
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
        self._check_group_settings = check_group_settings
        self._tokens = tokens or DelegationTokenConfig()
        self._credentials = credentials
        self._clock = clock
        self._random = random
        self._loop = loop
        # Owned by the loop:
        self._term: ControllerTerm | None = None
        self._leader_id: int | None = None
        self._former_leader_id: int | None = None  # the last leader that was another node
        self._committed = 0  # all records below this offset are committed
        self._deferred: deque[Deferred] = deque()
        self._timers: dict[str, Cancellable] = {}
        self._check_due_ns = 0
        self._written_at_ns = 0
        # When the last connection to each node was closed, whichever controller was active then.
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
        """Whether this is the active controller. The value may be slightly out of date."""
        return self._term is not None

    @property
    def leader_id(self) -> int | None:
        """The node of the active controller, or None if this node does not know it."""
        return self._leader_id

    def append_write_event(self, name: str, operation: Operation[T]) -> Future[T]:
        """Run `operation(term)` in the active controller. The future gets its result once that is committed.

        The future fails with the operation's KreplicaError if it raised one; nothing was written then. It
        fails with NotController if this is not the active controller, or stops being it before the commit:
        retry then.
        """
        future: Future[T] = Future()
        self._loop.post(partial(self._run_event, name, operation, future))
        return future

    def connection_lost(self, broker_id: int) -> None:
        """Note that the connection to a node was closed: its broker may have failed."""
        self._loop.post(partial(self._connection_lost, broker_id))

    def close(self) -> None:
        """Stop. All waiting callers get a NotController."""
        self._loop.post(self._close)

    # ---- from the quorum's loop ---------------------------------------------------------------------------

    def on_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Note a new leader or epoch of the quorum. The leader is notified after it has all earlier
        records.
        """
        if leader.leader_id == self.node_id:
            metadata, in_transaction = self._metadata().copy(), self._in_transaction()
            self._loop.post(partial(self._claim, leader.epoch, metadata, in_transaction))
        else:
            self._loop.post(partial(self._renounce, leader.leader_id))

    def on_commit(self, offset: int) -> None:
        """Answer the callers that wait for records below `offset`, before the records are replayed."""
        self._loop.post(partial(self._commit, offset))

    def on_metadata_update(
        self, _delta: MetadataDelta, _metadata: ClusterMetadata, applied: OffsetAndEpoch
    ) -> None:
        """Note that all records below `applied.offset` are committed, if `on_commit` has not yet."""
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
                # The quorum has another leader, which is reported next, or this node has resigned.
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
        # The state in memory is not trustworthy after such a failure. A new epoch reads it again.
        LOGGER.error(
            "controller %d: %s failed, so the controller resigns", self.node_id, name, exc_info=error
        )
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
        """Become the active controller, in the order of the ZooKeeper-era controller:

        1. the epoch, and the context from the committed metadata (later commits come as later events);
        2. the end of a transaction of the log that was left open;
        3. the states of replicas and then of partitions, which elects missing leaders;
        4. reassignments in progress;
        5. sessions, so that failed brokers are detected;
        6. timers.

        Deletions need nothing: brokers delete the logs of topics that the metadata lacks.
        """
        self._failovers.mark()
        term = ControllerTerm(
            self._config,
            epoch,
            metadata,
            cluster_id=self._cluster_id,
            unclean_leader_election_enable=self._unclean_leader_election_enable,
            fixed_settings=self._fixed_settings,
            check_group_settings=self._check_group_settings,
            quorum=self._quorum,
            state_change_logger=self.state_change_logger,
            clock=self._clock,
            random=self._random,
            tokens=self._tokens,
        )
        self._term = term
        self._written_at_ns = self._clock.monotonic_ns()
        if in_transaction:
            # Otherwise the records that follow would wait for the transaction's end or be undone with it
            # (KIP-868).
            self._require("abortTransaction", lambda term: term.abort_transaction("a new controller"))
        if not metadata.features:
            self._require("bootstrap", lambda _: ControllerResult(bootstrap_records(self._credentials), None))
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
            it_leads = "it no longer leads" if leader_id is None else f"node {leader_id} leads"
            self._on_controller_resignation(f"{it_leads} the quorum")

    def _on_controller_resignation(self, why: str) -> None:
        """Stop being the active controller: drop all state of the epoch and fail all waiting callers."""
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
        """Run an event of the controller itself, which is repeated later anyway. Returns its error, if
        any."""
        future: Future[Any] = Future()
        self._run_event(name, operation, future)
        error = future.exception() if future.done() else None
        # A term that has ended is no failure; the resignation has been logged.
        if error is not None and not isinstance(error, NotController):
            LOGGER.error("controller %d: %s failed: %r", self.node_id, name, error)
        return error

    def _require(self, name: str, operation: Operation[Any]) -> None:
        """Run an event that must succeed for this node to be the controller."""
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
        if self._tokens.delegation_token_secret_key is not None:
            self._every(
                "expireDelegationTokens",
                self._tokens.delegation_token_expiry_check_interval_ms,
                lambda term: term.delegation_tokens.remove_expired(),
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
        # This includes partitions without a replica on a live broker, which no broker reports.
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
        # Rounded up: a check before the end of a session would find nothing and be repeated at once.
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
        error = None
        if term.heartbeats.expired_brokers(self._clock.monotonic_ns()):
            error = self._internal("maybeFenceStaleBrokers", self._fence_stale_brokers)
        self._arm_session_check(0 if error is None else FENCE_RETRY_MS)

    def _fence_stale_brokers(self, term: ControllerTerm) -> None:
        fenced = term.cluster.fence_expired_brokers()
        if fenced:
            self._expired.mark(len(fenced))
            LOGGER.info("controller %d fenced brokers %s: their sessions have ended", self.node_id, fenced)
