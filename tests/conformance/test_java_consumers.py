"""Consumers of the Java client in groups of both protocols, against three of our nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.java_program import JavaProgram
from tests.support.node_processes import NodeProcesses

pytestmark = pytest.mark.conformance

SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
    "group_consumer_min_session_timeout_ms": 6000,
    "group_consumer_session_timeout_ms": 6000,
    "group_consumer_min_heartbeat_interval_ms": 300,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_consumer_assignment_interval_ms": 100,
}
# Methods of java/Consumers.java.
CASES = [
    "listenersHearOfRevocationsFirst",
    "commitsAreReadBack",
    "aStaticMemberComesBackWithoutARebalance",
    "aConsumerSaysWhetherItLeaves",
    "aGroupOutlivesItsCoordinator",
]
CASES_OF_THE_CONSUMER_PROTOCOL = ["theServerAssignsAsItIsAsked", "aPatternFindsNewTopics"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), 3, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def program(nodes: NodeProcesses) -> Iterator[JavaProgram]:
    with JavaProgram("Consumers", nodes, nodes.bootstrap, "3") as started:
        yield started


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize("case", CASES)
def test_consumers_of_the_java_client(program: JavaProgram, case: str, protocol: str) -> None:
    program.run(case, protocol)


@pytest.mark.parametrize("case", CASES_OF_THE_CONSUMER_PROTOCOL)
def test_consumers_of_the_consumer_protocol(program: JavaProgram, case: str) -> None:
    program.run(case, "consumer")
