"""franz-go and kafkajs against three of our nodes, each a process: plain records, groups, transactions.

The cases are written in the clients' languages, in `go/` and `js/`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.foreign_clients import FRANZ_GO, KAFKAJS, Program
from tests.support.node_processes import NodeProcesses

pytestmark = pytest.mark.conformance

PLAIN = ["records", "groups", "administration"]
TRANSACTIONS = [
    *("commits-and-aborts", "many-in-a-row", "without-records", "several-batches", "open-transactions"),
    *("copies-with-offsets", "fenced", "timed-out", "message-too-large"),
]
OF_FRANZ_GO = [*TRANSACTIONS, "unknown-topic", "described", "markers-of-an-administrator"]
# Groups of the newer protocols.
GROUPS_OF_FRANZ_GO = ["consumer-groups", "patterns", "share-groups"]
OF_KAFKAJS = [*TRANSACTIONS, "beside-transactions"]
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 200,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "group_consumer_min_heartbeat_interval_ms": 300,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_consumer_assignment_interval_ms": 100,
    "share_coordinator_state_topic_num_partitions": 3,
    "default_replication_factor": 3,
    "min_insync_replicas": 2,
}


@pytest.fixture(scope="session", autouse=True)
def _kafka() -> None:
    """Kafka itself is not needed here."""


@pytest.fixture(scope="module")
def franz_go() -> Program:
    if reason := FRANZ_GO.missing():
        pytest.skip(reason)
    return FRANZ_GO


@pytest.fixture(scope="module")
def kafkajs() -> Program:
    if reason := KAFKAJS.missing():
        pytest.skip(reason)
    return KAFKAJS


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), 3, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def older_nodes(franz_go: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    """Nodes of a cluster with transaction.version=1."""
    with NodeProcesses(tmp_path_factory.mktemp("older-nodes"), 3, **SETTINGS) as started:
        franz_go.run(started.bootstrap, "transaction-version-1")
        yield started


@pytest.mark.parametrize("case", [*PLAIN, *GROUPS_OF_FRANZ_GO, *OF_FRANZ_GO])
def test_franz_go(nodes: NodeProcesses, franz_go: Program, case: str) -> None:
    franz_go.run(nodes.bootstrap, case)


@pytest.mark.parametrize("case", [*PLAIN, *OF_KAFKAJS])
def test_kafkajs(nodes: NodeProcesses, kafkajs: Program, case: str) -> None:
    kafkajs.run(nodes.bootstrap, case)


@pytest.mark.parametrize("case", OF_FRANZ_GO)
def test_franz_go_with_transaction_version_1(
    older_nodes: NodeProcesses, franz_go: Program, case: str
) -> None:
    franz_go.run(older_nodes.bootstrap, case)


def test_transactions_of_franz_go_outlive_nodes(nodes: NodeProcesses, franz_go: Program) -> None:
    outlive(nodes, franz_go)


def test_transactions_of_kafkajs_outlive_nodes(nodes: NodeProcesses, kafkajs: Program) -> None:
    outlive(nodes, kafkajs)


def test_transactions_of_franz_go_with_transaction_version_1_outlive_nodes(
    older_nodes: NodeProcesses, franz_go: Program
) -> None:
    outlive(older_nodes, franz_go)


def outlive(nodes: NodeProcesses, program: Program) -> None:
    """Kill each node in turn in the middle of a transaction, and start it two transactions later."""

    def before_step(number: int) -> None:
        node_id = number // 8 % 3 + 1
        if number % 8 == 4:
            nodes.kill(node_id)
        elif number % 8 == 6:
            nodes.start(node_id)

    program.run(nodes.bootstrap, "outlives-nodes", before_step)
