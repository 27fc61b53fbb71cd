"""Three nodes as processes, each in a rack of its own, which the clients of one test run share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_processes import NodeProcesses
from tests.support.secured import librdkafka

NODES = 3
TIMEOUT_S = 60.0
# Small, and without the wait for further members; sessions long enough for a machine that is loaded.
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "share_coordinator_state_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 100,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "group_consumer_min_session_timeout_ms": 6000,
    "group_consumer_session_timeout_ms": 6000,
    "group_consumer_min_heartbeat_interval_ms": 300,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_consumer_assignment_interval_ms": 100,
    "replica_selector_class": "RackAwareReplicaSelector",
}


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    racks = {node_id: {"broker.rack": rack_of(node_id)} for node_id in range(1, NODES + 1)}
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), NODES, of_nodes=racks, **SETTINGS) as started:
        yield started


def rack_of(node_id: int) -> str:
    return f"rack-{node_id}"


@pytest.fixture(scope="session")
def admin(nodes: NodeProcesses) -> AdminClient:
    return AdminClient(librdkafka(nodes.bootstrap))


_left_open: list[Consumer] = []


def closed_later(consumer: Consumer) -> Consumer:
    """Return the consumer, which is closed at the end of the test if the test has not done that.

    A consumer of librdkafka that is in a group and collected as garbage can wait for ever.
    """
    _left_open.append(consumer)
    return consumer


@pytest.fixture(autouse=True)
def consumers_are_closed() -> Iterator[None]:
    yield
    while _left_open:
        _left_open.pop().close()


_numbers = itertools.count(1)


@pytest.fixture
def new_topic(admin: AdminClient) -> Callable[..., str]:
    """Creates a topic on all nodes, with a name of its own unless it is given, and returns the name."""

    def create(partitions: int = 1, name: str | None = None, **settings: object) -> str:
        name = name or f"topic-{next(_numbers)}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, partitions, NODES, config={"min.insync.replicas": "2", **config})
        admin.create_topics([topic])[name].result(TIMEOUT_S)
        return name

    return create
