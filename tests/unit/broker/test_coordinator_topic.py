"""Who coordinates a group or a transactional id, and how the topic of the coordinators comes to be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.broker.consumer_group_apis import ConsumerGroupApis
from kreplica.broker.coordinator_topic import CoordinatorTopic, InternalTopic
from kreplica.broker.group_apis import GROUP_KEY, SHARE_KEY, TRANSACTION_KEY, GroupApis
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import NetworkException
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.groups import FindCoordinatorRequest
from tests.support.virtual import AnsweringTransport, VirtualMachine

OK, AWAY = ErrorCode.none, ErrorCode.coordinator_not_available
# The partition of each of these ids among 50: of Java's hash codes of the strings.
PARTITIONS = {"a": 97 % 50, "id": 3355 % 50, "polygenelubricants": 0}


class Stage(VirtualMachine):
    """Broker 1's view of a cluster: brokers 1 to 3, and the topic once `leaders` has its partitions' leaders.

    Controller 9 is active.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transport = AnsweringTransport()
        self.leaders: list[int] = []
        self.controller: int | None = 9
        self.addresses = {"": ("host", 9092)}
        self.brokers = {
            number: SimpleNamespace(broker_id=number, fenced=False, address=self.addresses.get)
            for number in (1, 2, 3)
        }
        cache: Any = SimpleNamespace(metadata=self)
        topic = InternalTopic("__transaction_state", 50, 3, 2, {"cleanup.policy": "compact"})
        self.topic = CoordinatorTopic(
            topic,
            cache,
            controller=lambda: self.controller,
            transport=self.transport,
            loop=self.loop,
        )
        coordinator: Any = None
        topics = dict.fromkeys((GROUP_KEY, TRANSACTION_KEY, SHARE_KEY), self.topic)
        self.apis = GroupApis(coordinator, topics, cache, (ConsumerGroupApis(coordinator, cache),))

    @property
    def topics(self) -> dict[str, Any]:
        return {"__transaction_state": SimpleNamespace(partitions=self.leaders)} if self.leaders else {}

    def partition(self, at: Any) -> Any:
        assert at.topic == "__transaction_state"
        return SimpleNamespace(leader=self.leaders[at.partition])

    def find(self, *keys: str, kind: int = TRANSACTION_KEY) -> list[tuple[str, int, ErrorCode]]:
        answer = self.apis.handle_find_coordinator(
            FindCoordinatorRequest(key="", key_type=kind, coordinator_keys=keys)  # type: ignore[arg-type]
        )
        self.settle()
        return [(each.key, each.node_id, each.error_code) for each in answer.result(0).coordinators]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_leader_of_an_ids_partition_coordinates_it(stage: Stage) -> None:
    stage.leaders = [1] * 50
    stage.leaders[PARTITIONS["a"]] = 2
    stage.leaders[PARTITIONS["polygenelubricants"]] = 3
    assert stage.find(*PARTITIONS) == [("a", 2, OK), ("id", 1, OK), ("polygenelubricants", 3, OK)]


def test_no_live_leader_no_coordinator(stage: Stage) -> None:
    stage.leaders = [1] * 50
    stage.leaders[PARTITIONS["a"]] = NO_LEADER
    stage.leaders[PARTITIONS["polygenelubricants"]] = 3
    stage.brokers[3].fenced = True
    assert stage.find(*PARTITIONS) == [("a", -1, AWAY), ("id", 1, OK), ("polygenelubricants", -1, AWAY)]


def test_a_share_partition_has_a_coordinator(stage: Stage) -> None:
    stage.leaders = [1] * 50
    for key in ("group:AAECAwQFBgcICQoLDA0ODw:0", "with:colons:AAECAwQFBgcICQoLDA0ODw:12"):
        assert stage.find(key, kind=SHARE_KEY) == [(key, 1, OK)]


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        (TRANSACTION_KEY, "", ErrorCode.invalid_request),
        (GROUP_KEY, "", ErrorCode.invalid_group_id),
        (SHARE_KEY, "", ErrorCode.invalid_request),
        (SHARE_KEY, "id", ErrorCode.invalid_request),
        (SHARE_KEY, "group:AAECAwQFBgcICQoLDA0ODw:x", ErrorCode.invalid_request),
        (SHARE_KEY, "group:AAECAwQFBgcICQoLDA0ODw:-1", ErrorCode.invalid_request),
        (SHARE_KEY, "group:topic:0", ErrorCode.invalid_request),
        (SHARE_KEY, ":AAECAwQFBgcICQoLDA0ODw:0", ErrorCode.invalid_request),
        (3, "id", ErrorCode.invalid_request),
        (-1, "id", ErrorCode.invalid_request),
    ],
)
def test_a_key_without_any_coordinator(stage: Stage, kind: int, key: str, code: ErrorCode) -> None:
    stage.leaders = [1] * 50
    assert stage.find(key, kind=kind) == [(key, -1, code)]


def test_the_topic_is_created_when_an_id_is_first_looked_for(stage: Stage) -> None:
    assert stage.find("a", "id") == [("a", -1, AWAY), ("id", -1, AWAY)]
    [(receiver, request, answer)] = stage.transport.sent
    [topic] = request.topics
    settings = {each.name: each.value for each in topic.configs}
    assert (receiver, topic.name, topic.num_partitions, topic.replication_factor) == (
        *(9, "__transaction_state", 50, 3),
    )
    assert settings == {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    # A failure is tried again by the next request.
    answer.set_exception(NetworkException("gone"))
    stage.settle()
    stage.find("a")
    assert len(stage.transport.sent) == 2


def test_a_small_cluster_creates_the_topic_with_the_replicas_it_has(stage: Stage) -> None:
    del stage.brokers[2], stage.brokers[3]
    stage.find("a")
    [(_, request, _)] = stage.transport.sent
    [topic] = request.topics
    settings = {each.name: each.value for each in topic.configs}
    assert (topic.replication_factor, settings["min.insync.replicas"]) == (1, "1")


def test_without_a_controller_the_topic_waits(stage: Stage) -> None:
    stage.controller = None
    assert stage.find("a") == [("a", -1, AWAY)]
    assert stage.transport.sent == []
