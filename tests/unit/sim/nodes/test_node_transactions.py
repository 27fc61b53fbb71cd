"""Transactions over whole nodes, by a scripted coordinator: who reads what is committed gets all of that."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest

from kreplica.common.types import TopicPartition
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_transactions import NodeTransactions
from tests.mutants.mutants import MUTANTS, built_in

AT = TopicPartition("t", 0)


def run(as_bytes: bool = False) -> Counter[str]:
    cluster = NodeCluster(seed=1, as_bytes=as_bytes)
    checker, counts = NodeChecker(cluster), Counter[str]()
    cluster.boot()
    transactions = NodeTransactions(
        cluster,
        checker,
        counts,
        Random(1),
        lambda future, told: future.add_done_callback(checker.watched(told)),
    )
    cluster.result(cluster.client.admin.create_topic("t", partitions=1))
    numbers = itertools.count()
    for _ in range(60):
        transactions.produce(AT, lambda: [b"t-%d" % next(numbers)])
        cluster.scheduler.run_for(20)
        transactions.read(AT)
        cluster.scheduler.run_for(10)
    checker.check()
    return counts


@pytest.mark.parametrize("as_bytes", [False, True])
def test_readers_get_what_is_committed(as_bytes):
    counts = run(as_bytes)
    told = ("transactions committed", "transactions aborted", "read as committed", "aborted records left out")
    assert [name for name in told if not counts[name]] == []


@pytest.mark.parametrize("mutant", ["show_open_transactions", "keep_quiet_about_aborts"])
def test_a_reader_who_is_given_anything_else_is_noticed(mutant):
    with built_in(MUTANTS[mutant]), pytest.raises(InvariantViolated, match="ReadCommitted"):
        run()
