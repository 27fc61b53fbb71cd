"""Share groups of Kafka's Java client over three of our nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.java_program import JavaProgram
from tests.support.node_processes import NodeProcesses

pytestmark = pytest.mark.conformance

SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "share_coordinator_state_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
}
# Methods of java/ShareGroups.java.
CASES = [
    "implicitAcknowledgement",
    "releasedRecordsComeAgainAndRejectedOnesDoNot",
    "aRecordIsDeliveredAtMostFiveTimes",
    "twoMembersShareARecordEach",
    "aMemberThatLeavesFreesItsRecords",
    "aRenewedRecordStaysWithItsMember",
    "aBatchIsDividedWhereRecordsAreLimited",
    "transactionsAreReadAsTheGroupWants",
    "recordsOutliveALeader",
    "recordsOutliveEachNode",
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), 3, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def program(nodes: NodeProcesses) -> Iterator[JavaProgram]:
    with JavaProgram("ShareGroups", nodes, nodes.bootstrap) as started:
        yield started


@pytest.mark.parametrize("case", CASES)
def test_share_groups_of_the_java_client(program: JavaProgram, case: str) -> None:
    program.run(case)
