"""Controllers register with the active one, each of their lives once."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from kreplica.broker.controller_registration_manager import RETRY_MS, ControllerRegistrationManager
from kreplica.cluster import Cluster
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NetworkException
from kreplica.common.future import Future, failed, resolved
from kreplica.common.messages.controllers import ControllerRegistrationRequest, ControllerRegistrationResponse
from kreplica.common.types import Uuid
from kreplica.common.wire import uuid_of
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta, difference
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import Endpoint, FeatureLevelRecord, RegisterControllerRecord
from kreplica.sim.scheduler import Incarnation, SimScheduler, VirtualTime

OWN, OTHER = Uuid(b"o" * 16), Uuid(b"p" * 16)
HERE = Endpoint(name="CONTROLLER", host="localhost", port=9093, security_protocol=0)
DONE = ControllerRegistrationResponse(
    throttle_time=timedelta(0), error_code=ErrorCode.none, error_message=None
)


class Stage:
    """The controller 3 in a cluster whose metadata the test writes; node 1 is the active controller."""

    def __init__(self, endpoints: tuple[Endpoint, ...] | None = (HERE,)) -> None:
        self.scheduler = SimScheduler(VirtualTime(), random.Random(1))
        self.metadata = ClusterMetadata()
        self.answers: list[Future[Any]] = []
        self.sent: list[ControllerRegistrationRequest] = []
        self.manager = ControllerRegistrationManager(
            3,
            incarnation_id=OWN,
            endpoints=endpoints,
            controller=lambda: 1,
            transport=self,  # type: ignore[arg-type]
            loop=self.scheduler.loop(Incarnation(3), "registration"),
        )

    def send(self, node_id: int, request: ControllerRegistrationRequest, *, timeout_ms: int) -> Future[Any]:
        assert (node_id, timeout_ms) == (1, 2_000)
        self.sent.append(request)
        return self.answers.pop(0) if self.answers else resolved(DONE)

    def version(self, level: int) -> None:
        self.replay(FeatureLevelRecord(name="metadata.version", feature_level=level))

    def registered(self, incarnation_id: Uuid, *endpoints: Endpoint) -> None:
        self.replay(
            RegisterControllerRecord(
                controller_id=3,
                incarnation_id=incarnation_id,
                zk_migration_ready=False,
                end_points=endpoints,
                features=(),
            )
        )

    def replay(self, record: FeatureLevelRecord | RegisterControllerRecord) -> None:
        self.metadata.replay(record)
        delta: MetadataDelta = difference(ClusterMetadata(), self.metadata)
        self.manager.on_metadata_update(delta, self.metadata.copy(), OffsetAndEpoch(1, 1))
        self.scheduler.run_for(RETRY_MS // 2)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_controller_registers_its_listeners_once(stage: Stage) -> None:
    stage.version(25)
    stage.registered(OWN)
    stage.scheduler.run_for(10 * RETRY_MS)
    (request,) = stage.sent
    assert (request.controller_id, request.incarnation_id) == (3, uuid_of(OWN))
    (listener,) = request.listeners
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "localhost", 9093)
    assert "metadata.version" in {each.name for each in request.features}


def test_a_version_without_such_records_has_none(stage: Stage) -> None:
    stage.version(14)
    assert stage.sent == []
    stage.version(15)
    assert len(stage.sent) == 1


def test_another_life_registers_anew(stage: Stage) -> None:
    stage.registered(OTHER)
    stage.version(25)
    assert len(stage.sent) == 1
    stage.registered(OWN)
    # Another process has taken this node's id meanwhile, or an old request came late.
    stage.registered(OTHER)
    assert len(stage.sent) == 2


def test_what_fails_is_tried_again(stage: Stage) -> None:
    refused = ControllerRegistrationResponse(
        throttle_time=timedelta(0), error_code=ErrorCode.not_controller, error_message=None
    )
    stage.answers = [failed(NetworkException("gone")), resolved(refused)]
    stage.version(25)
    stage.scheduler.run_for(10 * RETRY_MS)
    assert len(stage.sent) == 3


def test_one_that_is_known_before_it_could_ask_does_not(stage: Stage) -> None:
    stage.answers = [failed(NetworkException("the answer was lost"))]
    stage.version(25)
    stage.registered(OWN)
    stage.scheduler.run_for(10 * RETRY_MS)
    assert len(stage.sent) == 1


def test_a_node_that_is_no_controller_any_longer_takes_its_listeners_back() -> None:
    stage = Stage(endpoints=None)
    stage.version(25)
    assert stage.sent == []
    stage.registered(OTHER, HERE)
    (request,) = stage.sent
    assert (request.controller_id, request.listeners) == (3, ())
    stage.registered(OWN)
    stage.scheduler.run_for(10 * RETRY_MS)
    assert len(stage.sent) == 1


def test_every_controller_of_a_cluster_is_registered(tmp_path: Any) -> None:
    with Cluster(2, tmp_path, controllers=3) as cluster:

        def known() -> dict[int, Uuid]:
            found = cluster.node(1).loader.published.controllers
            return {node_id: record.incarnation_id for node_id, record in found.items()}

        cluster._wait(lambda: known().keys() == {1001, 1002, 1003}, 30, "registrations")
        before = known()
        cluster.stop(1003)
        cluster.start(1003)
        cluster._wait(lambda: known()[1003] != before[1003], 30, "another registration")
        assert known()[1001] == before[1001]
        assert cluster.failures == []
