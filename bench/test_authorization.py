"""Access rights with 10,000 rules and 1,000 topics, timed beside the same without rules, or with ten.

Kafka read all rules along the prefixes of a name for each topic of a Metadata answer (KAFKA-20667).
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.grants import Grants
from kreplica._core.produce_lane import ProduceLane
from kreplica._core.server_connection import LaneGate, Processor, RequestMemory, ServerConnection
from kreplica._core.task_queue import TaskQueue
from kreplica.broker.gatekeeper import Gatekeeper
from kreplica.broker.node_config import STANDARD_AUTHORIZER, AuthorizerConfig
from kreplica.broker.request_context import RequestContext
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future, resolved
from kreplica.common.messages.data import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kreplica.common.types import Uuid
from kreplica.common.wire import NO_THROTTLE
from kreplica.metadata.cluster_metadata import ClusterMetadata, MetadataDelta
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.metadata.records import AccessControlEntryRecord
from kreplica.security.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from kreplica.security.peer import KafkaPrincipal, Peer
from tests.support.waiting import delayed_requests

RULES, FEW_RULES, TOPICS = 10_000, 10, 1_000
DECISIONS, REQUESTS = 10_000, 20_000
ALICE = Peer("/10.0.0.1", KafkaPrincipal("User", "alice"), "CLIENTS")


def gatekeeper(count: int) -> Gatekeeper:
    """Half of the rules name topics, the other half their prefixes; alice may read those that exist."""
    metadata = ClusterMetadata()
    for number in range(count):
        is_prefix = number % 2 == 1
        metadata.replay(
            AccessControlEntryRecord(
                id=Uuid(uuid.UUID(int=number + 1).bytes),
                resource_type=int(ResourceType.TOPIC),
                resource_name=f"team-{number}-" if is_prefix else f"topic-{number // 2}",
                pattern_type=int(PatternType.PREFIXED if is_prefix else PatternType.LITERAL),
                principal="User:alice",
                host="*",
                operation=int(AclOperation.READ),
                permission_type=int(AclPermissionType.ALLOW),
            )
        )
    made = Gatekeeper(
        AuthorizerConfig(authorizer_class_name=STANDARD_AUTHORIZER), lambda: metadata, creates_topics=False
    )
    made.on_metadata_update(MetadataDelta(), metadata, OffsetAndEpoch(1, 1))
    return made


@pytest.fixture(scope="module")
def many() -> Gatekeeper:
    return gatekeeper(RULES)


@pytest.fixture(scope="module")
def few() -> Gatekeeper:
    return gatekeeper(FEW_RULES)


def test_decision(row: Any, many: Gatekeeper, few: Gatekeeper) -> None:
    """access rights: one decision among 10,000 rules, in Python"""

    def decide(keeper: Gatekeeper) -> None:
        authorize = keeper.rules.authorize
        for number in range(DECISIONS):
            authorize(ALICE, AclOperation.READ, ResourceType.TOPIC, f"topic-{number % TOPICS}")

    row.time(decide, DECISIONS, lambda: (many,))
    row.beside("ten rules", decide, DECISIONS, lambda: (few,))


def test_metadata(row: Any, many: Gatekeeper) -> None:
    """access rights: Metadata of 1,000 topics, 10,000 rules, per topic"""
    found = [
        MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=f"topic-{number}",
            topic_id=None,
            is_internal=False,
            partitions=(),
        )
        for number in range(TOPICS)
    ]
    answer = MetadataResponse(throttle_time=NO_THROTTLE, brokers=(), controller_id=1, topics=tuple(found))
    request = MetadataRequest(topics=None)
    context = RequestContext(12, "bench", ALICE)

    def handle(_request: Any, _context: RequestContext) -> Future[Any]:
        return resolved(answer)

    def ask(keeper: Gatekeeper) -> None:
        assert len(keeper.admit(request, context, handle).result(0).topics) == TOPICS

    row.time(ask, TOPICS, lambda: (many,))
    names = {each.name for each in found}
    row.beside("a set of names", lambda: [each for each in found if each.name in names], TOPICS)


def produce_frame() -> bytes:
    """A Produce request, version 11, of one batch for `topic-1`, partition 0."""
    topic = b"\x02\x08topic-1\x02" + bytes(4) + b"\x02x\0\0"
    return b"\0\0\0\x0b\0\0\0\1\0\5bench\0" + b"\0" + b"\0\1\0\0\x75\x30" + topic + b"\0"


def test_hot_path(row: Any, many: Gatekeeper) -> None:
    """access rights: a Produce whose right is kept, up to the look for its partition"""
    owner = SimpleNamespace(is_stopped=False, unsubmitted=[], begin_transaction=None)
    lane = ProduceLane({}, owner, None, None, None, None, None, delayed_requests())
    frame = produce_frame()

    def gate_of(rules: Any) -> tuple[LaneGate, ServerConnection]:
        lanes = SimpleNamespace(produce_lane=lane, fetch_lane=None, rules=rules)
        gate = LaneGate(lanes, produces=True, fetches=True)
        processor = Processor(
            None,
            TaskQueue(),
            gate,
            RequestMemory(1 << 20),
            ReceiveBuffer(),
            min_frame_bytes=8,
            max_frame_bytes=1 << 20,
            max_in_flight_requests=5,
            max_in_flight_bytes=1 << 20,
        )
        client = ServerConnection(processor)
        if rules is not None:
            client.grants = Grants(rules)
            client.grants.add(client.grants.writable, b"\x08topic-1")
        return gate, client

    def ask(gate: LaneGate, client: ServerConnection) -> None:
        for _ in range(REQUESTS):
            gate.take(frame, None, client)

    unknown = 5
    before = lane.declined(unknown)
    row.time(ask, REQUESTS, lambda: gate_of(many.rules))
    row.beside("without an authorizer", ask, REQUESTS, lambda: gate_of(None))
    # All of them came to the partition, which is not there.
    assert lane.declined(unknown) - before == sum(lane.declined(each) for each in range(10)) - before
