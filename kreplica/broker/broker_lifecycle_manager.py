"""BrokerLifecycleManager: registers a broker at the controller and keeps its registration alive.

    NOT_RUNNING ─▶ STARTING ─▶ RECOVERY ─▶ RUNNING ─▶ PENDING_CONTROLLED_SHUTDOWN ─▶ SHUTTING_DOWN
                  registered   caught up   unfenced   leaders move away              may stop

It registers the broker under a new incarnation id and gets its epoch. Then it sends heartbeats, one at a
time, to the leader of the quorum. The answers move it to the next state. If the controller knows another
epoch, it registers again. Callers that wait for a state get a future. Only the controller decides that a
session has ended; the broker learns it from its next answer (`is_fenced`).

Thread rule: any thread may call the methods, which post; the rest runs in the loop, which owns the state. Any
thread may read `broker_epoch()`, `is_fenced` and `state`, which may be slightly out of date.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from kreplica.broker.node_config import BrokerConfig
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import (
    InconsistentClusterId,
    InvalidRequest,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.messages.controllers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop, Transport
from kreplica.common.types import Uuid
from kreplica.common.wire import error_of, uuid_of
from kreplica.metadata.records import Endpoint, SupportedFeature

NO_BROKER_EPOCH = -1
# When to send the next heartbeat while its answer may bring a state that is waited for.
STEP_INTERVAL_MS = 10
# The longest pause before a heartbeat that has news: metadata that was applied since the last one. Topic
# deletions and controlled shutdowns of other brokers wait for it.
NEWS_INTERVAL_MS = 100
# The longest timeout of an answer after some came too late, unless broker.heartbeat.timeout.ms is longer.
LONGEST_PATIENCE_MS = 1_600
# Errors that a retry cannot fix: a different cluster, a missing feature, directories of another broker.
FATAL = (InconsistentClusterId, UnsupportedVersion, InvalidRequest)


class BrokerState(enum.Enum):
    """Kafka's states of a broker, with their numbers."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerLifecycleManager:
    """Registration, heartbeats and shutdown of one broker.

    `controller()`: the leader of the quorum, None if unknown. `metadata_offset()`: the last record of the
    metadata log that this broker has applied, or -1. `previous_broker_epoch`: the epoch in which its log
    directories were closed cleanly, -1 if they were not (KIP-966). `directories`: ids of the working ones.
    """

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        *,
        cluster_id: str,
        incarnation_id: Uuid,
        directories: Sequence[Uuid],
        controller: Callable[[], int | None],
        metadata_offset: Callable[[], int],
        transport: Transport,
        clock: Clock,
        loop: Loop,
        endpoints: Sequence[Endpoint] = (),
        features: Sequence[SupportedFeature] = (),
        previous_broker_epoch: int = NO_BROKER_EPOCH,
    ) -> None:
        self.state = BrokerState.NOT_RUNNING
        self.is_fenced = True
        # Resolved when the broker is first registered, has caught up, is unfenced, may shut down.
        self.registered: Future[int] = Future()
        self.caught_up: Future[None] = Future()
        self.unfenced: Future[None] = Future()
        self.may_shut_down: Future[None] = Future()
        self._config = config
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._directories = list(directories)
        self._endpoints = tuple(endpoints)
        self._features = tuple(features)
        self._previous_broker_epoch = previous_broker_epoch
        self._controller = controller
        self._metadata_offset = metadata_offset
        self._transport = transport
        self._clock = clock
        self._loop = loop
        # Owned by the loop:
        self._epoch = NO_BROKER_EPOCH
        self._is_registered = False
        self._is_ready = False
        self._offline: dict[Uuid, None] = {}
        self._exchange = 0  # the current exchange; answers to older ones are dropped
        self._is_in_flight = False
        self._patience_ms = config.broker_heartbeat_timeout_ms
        self._timer: Cancellable | None = None
        self._due_ns = 0  # when the timer fires
        self._heartbeat_ns = 0  # when the last heartbeat was sent
        self._reported_offset = -1  # its metadata offset
        self._deadline: Cancellable | None = None
        self._is_closed = False

    # ---- methods for any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Register, and keep the registration alive.

        `registered` fails with RequestTimedOut if that takes longer than
        `initial.broker.registration.timeout.ms`.
        """
        self._loop.post(self._start)

    def set_ready_to_unfence(self) -> None:
        """Ask the controller to unfence the broker, which can serve now."""
        self._loop.post(self._set_ready)

    def propagate_directory_failure(self, directory_id: Uuid) -> None:
        """Report a failed log directory to the controller, with each heartbeat from now on."""
        self._loop.post(lambda: self._directory_failed(directory_id))

    def metadata_applied(self) -> None:
        """Report soon that this broker has applied new metadata, rather than with the next due heartbeat."""
        self._loop.post(self._report_soon)

    def connection_lost(self, node_id: int) -> None:
        """Send a heartbeat at once if it is the controller that closed its last connection.

        The controller may have seen the loss as well, and cut this broker's session short.
        """
        if node_id == self._controller():
            self._loop.post(self._prove_alive)

    def begin_controlled_shutdown(self) -> Future[None]:
        """Ask the controller to move the leaders away. The future is done when the broker may stop.

        A broker that is fenced leads nothing and may stop at once.
        """
        self._loop.post(self._begin_shutdown)
        return self.may_shut_down

    def close(self) -> None:
        """Send nothing from now on. The controller notices when the session ends."""
        self._loop.post(self._close)

    def broker_epoch(self) -> int:
        """Return the epoch of the registration; NO_BROKER_EPOCH before it."""
        return self._epoch

    # ---- in the loop: steps -------------------------------------------------------------------------------

    def _start(self) -> None:
        self.state = BrokerState.STARTING
        timeout_ms = self._config.initial_broker_registration_timeout_ms
        self._deadline = self._loop.post_later(self._give_up, timeout_ms)
        self._communicate_now()

    def _give_up(self) -> None:
        if not self.registered.done():
            timeout_ms = self._config.initial_broker_registration_timeout_ms
            self._close()
            self.registered.set_exception(
                RequestTimedOut(
                    f"broker {self._broker_id} could not register at a controller within {timeout_ms} ms:"
                    " check the quorum"
                )
            )

    def _set_ready(self) -> None:
        self._is_ready = True
        self._communicate_now()

    def _directory_failed(self, directory_id: Uuid) -> None:
        if directory_id not in self._offline:
            self._offline[directory_id] = None
            self._communicate_now()

    def _report_soon(self) -> None:
        # The answer to a heartbeat in flight looks for news as well.
        if not self._is_registered or self._is_in_flight or self._is_closed:
            return
        delay_ms = min(NEWS_INTERVAL_MS, self._config.broker_heartbeat_interval_ms)
        due_ns = self._heartbeat_ns + delay_ms * NANOSECONDS_PER_MS
        if due_ns < self._due_ns:
            self._communicate_after(max(due_ns - self._clock.monotonic_ns(), 0) // NANOSECONDS_PER_MS)

    def _prove_alive(self) -> None:
        # A request in flight has failed with its connection, and is retried.
        if not self._is_in_flight:
            self._communicate_now()

    def _begin_shutdown(self) -> None:
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._communicate_now()
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._shut_down()

    def _shut_down(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        if not self.may_shut_down.done():
            self.may_shut_down.set_result(None)

    def _close(self) -> None:
        self._is_closed = True
        self.state = BrokerState.NOT_RUNNING
        self._exchange += 1
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()

    # ---- in the loop: exchanges with the controller -------------------------------------------------------

    def _communicate_now(self) -> None:
        if self.state is BrokerState.NOT_RUNNING:
            return
        self._exchange += 1
        self._is_in_flight = False
        self._patience_ms = self._config.broker_heartbeat_timeout_ms
        self._communicate()

    def _communicate_after(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ns = self._clock.monotonic_ns() + delay_ms * NANOSECONDS_PER_MS
        self._timer = self._loop.post_later(self._communicate, delay_ms)

    def _communicate(self) -> None:
        # A broker that may shut down is fenced. Another heartbeat would ask to be unfenced.
        if self._is_closed or self._is_in_flight or self.state is BrokerState.SHUTTING_DOWN:
            return
        controller = self._controller()
        if controller is None:
            self._communicate_after(min(STEP_INTERVAL_MS, self._config.broker_heartbeat_interval_ms))
            return
        self._is_in_flight = True
        self._exchange += 1
        exchange, sent_ns = self._exchange, self._clock.monotonic_ns()
        request = self._heartbeat() if self._is_registered else self._registration()
        answered = self._heartbeat_answered if self._is_registered else self._registration_answered
        reply = self._transport.send(controller, request, timeout_ms=self._patience_ms)
        reply.add_done_callback(
            lambda done: self._loop.post(lambda: self._settle(exchange, sent_ns, done, answered))
        )

    def _settle(
        self, exchange: int, sent_ns: int, reply: Future[Any], answered: Callable[[Any, int], None]
    ) -> None:
        if self._is_closed or exchange != self._exchange:
            return
        self._is_in_flight = False
        self._adapt_patience((self._clock.monotonic_ns() - sent_ns) // NANOSECONDS_PER_MS)
        if reply.cancelled() or reply.exception() is not None:
            self._retry()
            return
        answered(reply.result(), sent_ns)

    def _adapt_patience(self, taken_ms: int) -> None:
        # On a slow network answers take a while, and those that wait for a commit take longer. With a fixed
        # timeout all answers to a registration could come just too late.
        shortest_ms = self._config.broker_heartbeat_timeout_ms
        self._patience_ms = max(min(2 * taken_ms, LONGEST_PATIENCE_MS), shortest_ms)

    def _retry(self) -> None:
        config = self._config
        self._communicate_after(
            min(config.broker_registration_retry_backoff_ms, config.broker_heartbeat_interval_ms)
        )

    # ---- in the loop: registration ------------------------------------------------------------------------

    def _registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=uuid_of(self._incarnation_id),
            listeners=tuple(
                Listener(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in self._endpoints
            ),
            features=tuple(
                Feature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in self._features
            ),
            rack=self._config.broker_rack,
            log_dirs=tuple(uuid_of(each) for each in self._directories if each not in self._offline),
            previous_broker_epoch=self._previous_broker_epoch,
        )

    def _registration_answered(self, response: BrokerRegistrationResponse, _sent_ns: int) -> None:
        error = error_of(response.error_code)
        if error is not None:
            if not self.registered.done() and isinstance(error, FATAL):
                self._close()
                self.registered.set_exception(
                    type(error)(f"the controller rejected broker {self._broker_id}: {error}")
                )
                return
            self._retry()
            return
        self._epoch = response.broker_epoch
        self._is_registered = True
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.registered.done():
            self.registered.set_result(self._epoch)
        self._communicate()

    # ---- in the loop: heartbeats --------------------------------------------------------------------------

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        self._heartbeat_ns = self._clock.monotonic_ns()
        self._reported_offset = self._metadata_offset()
        return BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self._epoch,
            current_metadata_offset=self._reported_offset,
            want_fence=not self._is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=tuple(uuid_of(each) for each in self._offline),
        )

    def _heartbeat_answered(self, response: BrokerHeartbeatResponse, sent_ns: int) -> None:
        if response.error_code is not ErrorCode.none:
            if int(response.error_code) == StaleBrokerEpoch.code:
                # The broker was unregistered, or the controller knows another incarnation of it.
                self._is_registered = False
                self.is_fenced = True
            self._retry()
            return
        self.is_fenced = response.is_fenced
        if response.is_caught_up and self.state is BrokerState.STARTING:
            self.state = BrokerState.RECOVERY
            self.caught_up.set_result(None)
        if not response.is_fenced and self.state is BrokerState.RECOVERY:
            self.state = BrokerState.RUNNING
            self.unfenced.set_result(None)
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and response.should_shut_down:
            self._shut_down()
        self._next_heartbeat(sent_ns)

    def _next_heartbeat(self, sent_ns: int) -> None:
        interval_ms = self._config.broker_heartbeat_interval_ms
        is_waiting = self.state in (BrokerState.STARTING, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        if is_waiting or (self._is_ready and self.is_fenced):
            interval_ms = min(interval_ms, STEP_INTERVAL_MS)
        elif self._metadata_offset() > self._reported_offset:
            interval_ms = min(interval_ms, NEWS_INTERVAL_MS)
        # Counted from the last heartbeat, so that slow answers do not make heartbeats rarer.
        passed_ms = (self._clock.monotonic_ns() - sent_ns) // NANOSECONDS_PER_MS
        self._communicate_after(max(interval_ms - passed_ms, 0))
