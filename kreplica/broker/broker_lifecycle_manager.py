"""BrokerLifecycleManager: one life of a broker as the controller sees it.

    NOT_RUNNING ─▶ STARTING ─▶ RECOVERY ─▶ RUNNING ─▶ PENDING_CONTROLLED_SHUTDOWN ─▶ SHUTTING_DOWN
                  registered   caught up   unfenced   leaders move away              may stop

It registers the broker under a new incarnation id and gets its epoch; then it sends heartbeats, one at a
time, to whom the quorum knows as its leader. The answers move it along. A controller that knows another epoch
makes it register again. Whoever waits for a step gets a future. Nobody is told to stop: that a session has
ended is the controller's to say, and a broker learns it from its next answer (`is_fenced`).

Thread rule: the methods may be called from any thread and post; the rest runs in the loop, which owns the
state. `broker_epoch()`, `is_fenced` and `state` may be read anywhere, and may be a moment old.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v1.response import BrokerHeartbeatResponse
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.errors import ErrorCode

from kreplica.broker.broker_config import BrokerConfig
from kreplica.common.errors import (
    BY_CODE,
    InconsistentClusterId,
    InvalidRequest,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnknownServerError,
    UnsupportedVersion,
)
from kreplica.common.future import Future
from kreplica.common.ports import NANOSECONDS_PER_MS, Cancellable, Clock, Loop, Transport
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.records import Endpoint, SupportedFeature

NO_BROKER_EPOCH = -1
# How soon the next heartbeat follows while something is waited for that the next answer may bring.
STEP_INTERVAL_MS = 10
# How long an answer is waited for once some came too late, where broker.heartbeat.timeout.ms is not longer.
LONGEST_PATIENCE_MS = 1_600
# Refusals that no retry can mend: another cluster, a feature that is missing, directories that are taken.
FATAL = (InconsistentClusterId, UnsupportedVersion, InvalidRequest)


class BrokerState(enum.Enum):
    """Kafka's states of a broker, with its numbers."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerLifecycleManager:
    """See the module.

    `controller()`: the node that leads the quorum, None where it is not known. `metadata_offset()`: the last
    record of the metadata log that this broker has applied, -1 of none. `previous_broker_epoch`: the epoch in
    which its log directories were closed in order, -1 if they were not (KIP-966). `directories`: the ids of
    those that work.
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
        # Resolved when it is registered for the first time, has caught up, is unfenced, may shut down.
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
        # The loop's own:
        self._epoch = NO_BROKER_EPOCH
        self._is_registered = False
        self._is_ready = False
        self._offline: dict[Uuid, None] = {}
        self._exchange = 0  # the number of the exchange whose answer counts; an older one is too late
        self._is_in_flight = False
        self._patience_ms = config.broker_heartbeat_timeout_ms
        self._timer: Cancellable | None = None
        self._deadline: Cancellable | None = None
        self._is_closed = False

    # ---- what others ask for ------------------------------------------------------------------------------

    def start(self) -> None:
        """Register, and keep the registration alive. Fails `registered` with RequestTimedOut if nobody takes
        it within `initial.broker.registration.timeout.ms`."""
        self._loop.post(self._start)

    def set_ready_to_unfence(self) -> None:
        """The broker can serve: ask the controller to let it lead."""
        self._loop.post(self._set_ready)

    def propagate_directory_failure(self, directory_id: Uuid) -> None:
        """A log directory of this broker has failed: tell the controller with each heartbeat from now on."""
        self._loop.post(lambda: self._directory_failed(directory_id))

    def begin_controlled_shutdown(self) -> Future[None]:
        """Ask the controller to move the leaders away; the future is done when the broker may stop.

        One that is not unfenced leads nothing, and may stop at once.
        """
        self._loop.post(self._begin_shutdown)
        return self.may_shut_down

    def close(self) -> None:
        """Send nothing any more; the controller will notice by itself."""
        self._loop.post(self._close)

    def broker_epoch(self) -> int:
        """The epoch in which the broker is registered; NO_BROKER_EPOCH before that."""
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
                    f"broker {self._broker_id}: no controller registered it within {timeout_ms} ms"
                )
            )

    def _set_ready(self) -> None:
        self._is_ready = True
        self._communicate_now()

    def _directory_failed(self, directory_id: Uuid) -> None:
        if directory_id not in self._offline:
            self._offline[directory_id] = None
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
        self._timer = self._loop.post_later(self._communicate, delay_ms)

    def _communicate(self) -> None:
        # One that may shut down is fenced: another heartbeat would ask to lead again.
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
        # Over a slow network an answer takes a while, and one that waits for a commit longer still: with the
        # same patience each time, all answers to a registration could come just too late.
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
        if response.error_code is not ErrorCode.none:
            error = BY_CODE.get(int(response.error_code), UnknownServerError)
            if not self.registered.done() and error in FATAL:
                self._close()
                self.registered.set_exception(error(f"broker {self._broker_id} was refused: {error.__doc__}"))
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
        return BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self._epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=tuple(uuid_of(each) for each in self._offline),
        )

    def _heartbeat_answered(self, response: BrokerHeartbeatResponse, sent_ns: int) -> None:
        if response.error_code is not ErrorCode.none:
            if int(response.error_code) == StaleBrokerEpoch.code:
                # It was taken out, or knows another life of this broker.
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
        # From the last one on, so that a slow answer does not make them rarer.
        passed_ms = (self._clock.monotonic_ns() - sent_ns) // NANOSECONDS_PER_MS
        self._communicate_after(max(interval_ms - passed_ms, 0))
