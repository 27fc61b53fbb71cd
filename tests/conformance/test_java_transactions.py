"""Transactions of Kafka's Java client over three of our nodes, under both transaction versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.java_program import JavaProgram
from tests.support.node_processes import NodeProcesses

pytestmark = pytest.mark.conformance

SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 200,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
}
# The methods of java/Transactions.java that change no level.
CASES = [
    "readersSeeAllOfACommittedTransactionAndNothingOfAnAbortedOne",
    "anOpenTransactionHidesWhatIsBehindIt",
    "transactionsWithoutRecordsEnd",
    "recordsAndOffsetsAreCommittedTogether",
    "offsetsOfAnOldGenerationAreRefused",
    "aNewProducerFencesThePreviousOne",
    "aTransactionTimesOut",
    "aBatchAfterTheTimeoutIsRefused",
    "aRecordThatIsTooLargeCostsItsTransactionOnly",
    "aBatchThatExpiresCostsItsTransactionOnly",
    "transactionsAreDescribedAndListed",
    "anAdminFencesProducers",
    "anAdminAbortsATransactionOfAPartition",
    "transactionsOutliveLeadersAndCoordinators",
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("nodes"), 3, **SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def program(nodes: NodeProcesses) -> Iterator[JavaProgram]:
    with JavaProgram("Transactions", nodes, nodes.bootstrap) as started:
        yield started


@pytest.mark.parametrize("case", CASES)
def test_transaction_version_2(program: JavaProgram, case: str) -> None:
    program.run("useTransactionVersion", "2")
    program.run(case)


@pytest.mark.parametrize("case", CASES)
def test_transaction_version_1(program: JavaProgram, case: str) -> None:
    program.run("useTransactionVersion", "1")
    program.run(case)


def test_the_version_changes_under_a_producer(program: JavaProgram) -> None:
    program.run("levelsChangeBetweenTransactions")
