"""BrokerLifecycleManager: a broker registers, keeps its session, is unfenced, and leaves in order."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.broker_lifecycle_manager import BrokerLifecycleManager, BrokerState
from kreplica.broker.node_config import BrokerConfig
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InconsistentClusterId, InvalidConfig, NetworkException, RequestTimedOut
from kreplica.common.messages.controllers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kreplica.common.types import Uuid
from tests.support.virtual import AnsweringTransport, VirtualMachine

CONFIG = BrokerConfig(
    broker_heartbeat_interval_ms=40,
    broker_heartbeat_timeout_ms=100,
    broker_registration_retry_backoff_ms=20,
    initial_broker_registration_timeout_ms=1_000,
)
RARE = dataclasses.replace(CONFIG, broker_heartbeat_interval_ms=1_000)
DIRECTORY, OTHER_DIRECTORY = Uuid(bytes(15) + b"\x11"), Uuid(bytes(15) + b"\x12")


class Stage(VirtualMachine):
    """Broker 1, the controllers that it may know (`leader`), and what the test answers for them."""

    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        super().__init__()
        self.leader: int | None = 100
        self.metadata_offset = -1
        self.transport = AnsweringTransport()
        self.manager = BrokerLifecycleManager(
            config,
            1,
            cluster_id="c",
            incarnation_id=Uuid(bytes(15) + b"\x01"),
            directories=[DIRECTORY, OTHER_DIRECTORY],
            controller=lambda: self.leader,
            metadata_offset=lambda: self.metadata_offset,
            transport=self.transport,
            clock=self.clock,
            loop=self.loop,
            previous_broker_epoch=7,
        )
        self.manager.start()
        self.settle()

    def next(self) -> Any:
        """The next request, as it was sent."""
        return self.transport.sent[0][1]

    def take(self, kind: type[Any]) -> Any:
        """The next request, which is of this kind."""
        assert isinstance(self.next(), kind)
        return self.next()

    def answer(self, response: Any) -> None:
        _, _, future = self.transport.sent.pop(0)
        future.set_result(response)
        self.settle()

    def fail(self) -> None:
        _, _, future = self.transport.sent.pop(0)
        future.set_exception(NetworkException())
        self.settle()

    def register(self, epoch: int = 10) -> None:
        self.take(BrokerRegistrationRequest)
        self.answer(registered(epoch))

    def heartbeat(self, **answer: bool) -> BrokerHeartbeatRequest:
        """Wait for the next heartbeat and answer it; the request."""
        if not self.transport.sent:
            self.pass_time(CONFIG.broker_heartbeat_interval_ms)
        request: BrokerHeartbeatRequest = self.take(BrokerHeartbeatRequest)
        self.answer(heard(**answer))
        return request

    def run(self) -> None:
        """Let it become unfenced."""
        self.register()
        self.manager.set_ready_to_unfence()
        self.settle()
        while self.transport.sent:
            self.answer(heard(is_caught_up=True, is_fenced=False))
        assert self.manager.state is BrokerState.RUNNING


def registered(epoch: int, error: ErrorCode = ErrorCode.none) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(
        throttle_time=timedelta(0),  # type: ignore[arg-type]
        error_code=error,
        broker_epoch=epoch,  # type: ignore[arg-type]
    )


def heard(error: ErrorCode = ErrorCode.none, **flags: bool) -> BrokerHeartbeatResponse:
    known = {"is_caught_up": False, "is_fenced": True, "should_shut_down": False, **flags}
    return BrokerHeartbeatResponse(throttle_time=timedelta(0), error_code=error, **known)  # type: ignore[arg-type]


@pytest.fixture
def stage() -> Stage:
    return Stage()


# ---- registration ----------------------------------------------------------------------------------------


def test_it_registers_with_the_leader_of_the_quorum(stage: Stage) -> None:
    request = stage.take(BrokerRegistrationRequest)
    assert stage.transport.sent[0][0] == 100
    assert (request.broker_id, request.cluster_id, request.previous_broker_epoch) == (1, "c", 7)
    assert [each.bytes for each in request.log_dirs] == [DIRECTORY.raw, OTHER_DIRECTORY.raw]
    stage.register(epoch=10)
    assert stage.manager.registered.result(timeout=0) == 10
    assert stage.manager.broker_epoch() == 10


def test_without_a_leader_it_waits_for_one() -> None:
    stage = Stage()
    stage.fail()
    stage.leader = None
    stage.pass_time(100)
    assert not stage.transport.sent
    stage.leader = 101
    stage.pass_time(20)
    assert stage.transport.sent[0][0] == 101


@pytest.mark.parametrize(
    "error", [ErrorCode.duplicate_broker_registration, ErrorCode.not_controller], ids=lambda each: each.name
)
def test_a_refusal_that_may_pass_is_met_with_another_try(stage: Stage, error: ErrorCode) -> None:
    stage.answer(registered(-1, error))
    assert not stage.transport.sent
    stage.pass_time(CONFIG.broker_registration_retry_backoff_ms)
    stage.register(epoch=12)
    assert stage.manager.broker_epoch() == 12


def test_another_cluster_is_the_end(stage: Stage) -> None:
    stage.answer(registered(-1, ErrorCode.inconsistent_cluster_id))
    with pytest.raises(InconsistentClusterId):
        stage.manager.registered.result(timeout=0)
    stage.pass_time(10_000)
    assert not stage.transport.sent


def test_a_broker_that_is_not_registered_in_time_gives_up(stage: Stage) -> None:
    while not stage.manager.registered.done():
        if stage.transport.sent:
            stage.fail()
        stage.pass_time(10)
    with pytest.raises(RequestTimedOut):
        stage.manager.registered.result(timeout=0)
    assert stage.clock.monotonic_ns() == 1_000 * 1_000_000
    assert stage.manager.state is BrokerState.NOT_RUNNING


# ---- heartbeats ------------------------------------------------------------------------------------------


def test_it_asks_to_be_unfenced_only_when_it_can_serve(stage: Stage) -> None:
    stage.register()
    assert stage.heartbeat().want_fence
    stage.metadata_offset = 10
    assert stage.heartbeat(is_caught_up=True).current_metadata_offset == 10
    assert stage.manager.caught_up.done()
    assert stage.manager.state is BrokerState.RECOVERY
    stage.manager.set_ready_to_unfence()
    stage.settle()
    assert not stage.heartbeat(is_caught_up=True, is_fenced=False).want_fence
    assert stage.manager.unfenced.done()
    assert stage.manager.state is BrokerState.RUNNING
    assert not stage.manager.is_fenced


def test_heartbeats_come_at_their_interval_however_long_answers_take(stage: Stage) -> None:
    stage.run()
    stage.pass_time(40)
    stage.pass_time(25)
    stage.answer(heard(is_caught_up=True, is_fenced=False))
    stage.pass_time(14)
    assert not stage.transport.sent
    stage.pass_time(1)
    assert stage.transport.sent


def test_applied_metadata_is_reported_soon_and_nothing_else_hurries_a_heartbeat() -> None:
    stage = Stage(RARE)
    stage.run()
    stage.pass_time(30)
    stage.metadata_offset = 20
    stage.manager.metadata_applied()
    stage.pass_time(69)
    assert not stage.transport.sent
    stage.pass_time(1)
    assert stage.heartbeat(is_caught_up=True, is_fenced=False).current_metadata_offset == 20
    stage.pass_time(999)
    assert not stage.transport.sent
    stage.pass_time(1)
    assert stage.transport.sent


def test_metadata_applied_while_a_heartbeat_is_under_way_is_reported_soon() -> None:
    stage = Stage(RARE)
    stage.run()
    stage.pass_time(1_000)
    stage.metadata_offset = 20
    stage.manager.metadata_applied()
    stage.settle()
    stage.answer(heard(is_caught_up=True, is_fenced=False))
    stage.pass_time(100)
    assert stage.heartbeat(is_caught_up=True, is_fenced=False).current_metadata_offset == 20


def test_a_controller_that_closed_its_connections_gets_a_heartbeat_at_once() -> None:
    stage = Stage(RARE)
    stage.run()
    stage.manager.connection_lost(101)
    stage.settle()
    assert not stage.transport.sent
    stage.manager.connection_lost(100)
    stage.settle()
    stage.heartbeat(is_caught_up=True, is_fenced=False)


def test_one_heartbeat_is_under_way_at_a_time(stage: Stage) -> None:
    stage.run()
    stage.pass_time(1_000)
    assert len(stage.transport.sent) == 1


def test_a_lost_heartbeat_is_sent_again_to_the_leader_of_that_time(stage: Stage) -> None:
    stage.run()
    stage.pass_time(40)
    stage.leader = 101
    stage.fail()
    stage.pass_time(CONFIG.broker_registration_retry_backoff_ms)
    assert stage.transport.sent[0][0] == 101


def test_what_the_former_leader_answers_counts_for_nothing(stage: Stage) -> None:
    stage.run()
    stage.pass_time(40)
    stage.leader = 101
    stage.manager.set_ready_to_unfence()
    stage.settle()
    assert [sent[0] for sent in stage.transport.sent] == [100, 101]
    # What the old one answers counts for nothing.
    stage.answer(heard(is_fenced=True))
    assert not stage.manager.is_fenced


def test_a_controller_that_knows_another_epoch_makes_it_register_again(stage: Stage) -> None:
    stage.run()
    stage.pass_time(40)
    stage.answer(heard(error=ErrorCode.stale_broker_epoch))
    assert stage.manager.is_fenced
    stage.pass_time(CONFIG.broker_registration_retry_backoff_ms)
    stage.register(epoch=20)
    assert stage.manager.broker_epoch() == 20
    assert stage.next().broker_epoch == 20
    assert not stage.next().want_fence


def test_a_fenced_broker_goes_on_asking(stage: Stage) -> None:
    stage.run()
    stage.heartbeat(is_caught_up=True, is_fenced=True)
    assert stage.manager.is_fenced
    stage.pass_time(10)
    stage.heartbeat(is_caught_up=True, is_fenced=False)
    assert not stage.manager.is_fenced


def test_a_failed_directory_is_reported_at_once_and_in_each_later_heartbeat(stage: Stage) -> None:
    stage.run()
    stage.manager.propagate_directory_failure(DIRECTORY)
    stage.settle()
    for _ in range(2):
        request = stage.heartbeat(is_caught_up=True, is_fenced=False)
        assert [each.bytes for each in request.offline_log_dirs if each] == [DIRECTORY.raw]


# ---- the end ---------------------------------------------------------------------------------------------


def test_it_leaves_when_the_controller_says_so(stage: Stage) -> None:
    stage.run()
    done = stage.manager.begin_controlled_shutdown()
    stage.settle()
    assert stage.heartbeat(is_caught_up=True, is_fenced=False).want_shut_down
    assert not done.done()
    stage.pass_time(10)
    stage.heartbeat(is_caught_up=True, is_fenced=True, should_shut_down=True)
    assert done.done()
    assert stage.manager.state is BrokerState.SHUTTING_DOWN


def test_one_that_may_leave_does_not_ask_to_lead_again(stage: Stage) -> None:
    stage.run()
    stage.manager.begin_controlled_shutdown()
    stage.settle()
    stage.heartbeat(is_caught_up=True, is_fenced=True, should_shut_down=True)
    stage.manager.set_ready_to_unfence()
    stage.pass_time(10_000)
    assert not stage.transport.sent


def test_one_that_leads_nothing_yet_may_leave_at_once(stage: Stage) -> None:
    stage.register()
    done = stage.manager.begin_controlled_shutdown()
    stage.settle()
    assert done.done()


def test_a_closed_manager_sends_nothing_more(stage: Stage) -> None:
    stage.run()
    stage.pass_time(40)
    stage.manager.close()
    stage.settle()
    stage.answer(heard(is_caught_up=True, is_fenced=True))
    stage.pass_time(10_000)
    assert not stage.transport.sent
    assert not stage.manager.is_fenced


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        BrokerConfig(broker_heartbeat_interval_ms=0)


def test_a_controller_that_answers_late_is_given_more_time(stage: Stage) -> None:
    # Answers take 150 ms: the first is not waited for, the second is; a fast one makes it impatient again.
    stage.pass_time(CONFIG.broker_heartbeat_timeout_ms)
    stage.fail()
    stage.pass_time(CONFIG.broker_registration_retry_backoff_ms)
    stage.pass_time(150)
    stage.register()
    stage.heartbeat()
    stage.heartbeat()
    assert stage.transport.timeouts_ms[:4] == [100, 200, 300, 100]


def test_another_controller_is_given_no_more_time_than_any(stage: Stage) -> None:
    stage.register()
    for _ in range(8):
        stage.pass_time(stage.transport.timeouts_ms[-1])
        stage.fail()
        stage.pass_time(CONFIG.broker_registration_retry_backoff_ms)
    assert stage.transport.timeouts_ms[-1] == 1_600
    stage.leader = 101
    stage.manager.set_ready_to_unfence()
    stage.settle()
    assert stage.transport.timeouts_ms[-1] == CONFIG.broker_heartbeat_timeout_ms
