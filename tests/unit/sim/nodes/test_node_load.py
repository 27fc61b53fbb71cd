"""The clients of a run of whole nodes: transactions, and administrators that change the voters."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kreplica.common.types import TopicPartition
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.node_load import NodeLoad, VoterChanges
from tests.mutants.mutants import MUTANTS, built_in

AT = TopicPartition("t", 0)


def run(as_bytes: bool = False) -> Counter[str]:
    cluster = NodeCluster(seed=1, as_bytes=as_bytes)
    checker, counts = NodeChecker(cluster), Counter[str]()
    cluster.boot()
    load = NodeLoad(cluster, checker, counts, Random(1))
    cluster.result(cluster.client.admin.create_topic("t", partitions=1))
    for _ in range(60):
        load._produce_in_transaction()
        cluster.scheduler.run_for(20)
        load._read_committed()
        cluster.scheduler.run_for(10)
    checker.check()
    return counts


@pytest.mark.parametrize("as_bytes", [False, True])
def test_readers_get_what_is_committed(as_bytes):
    counts = run(as_bytes)
    names = (
        "transactions committed",
        "transactions aborted",
        "read as committed",
        "aborted records left out",
    )
    assert [name for name in names if not counts[name]] == []


@pytest.mark.parametrize("mutant", ["show_open_transactions", "keep_quiet_about_aborts"])
def test_a_reader_that_gets_anything_else_is_noticed(mutant):
    with built_in(MUTANTS[mutant]), pytest.raises(InvariantViolated, match="ReadCommitted"):
        run()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_voters_come_and_go(as_bytes):
    cluster = NodeCluster(1, controllers=2, standbys=1, as_bytes=as_bytes)
    NodeChecker(cluster)
    changes = VoterChanges(cluster, cluster.client, Random(1))
    cluster.boot()
    assert cluster.controllers == [1001, 1002, 1003]
    assert cluster.voters() == [1001, 1002]
    made, sizes = [], [2]
    while len(made) < 6:
        asked = changes.ask()
        if asked is None:
            # The active controller has gone, and the next one is not there yet.
            cluster.scheduler.run_for(100)
            continue
        what, answer = asked
        assert changes.ask() is None, "one change at a time"
        assert cluster.run_until(answer.done)
        cluster.scheduler.run_for(200)
        if changes.answered(answer):
            made.append(what)
            sizes.append(len(cluster.voters()))
            assert sizes[-1] - sizes[-2] == (1 if what == "voters added" else -1)
    assert set(made) == {"voters added", "voters removed"}
    killed = cluster.controller
    cluster.kill(killed)
    cluster.start(killed)
    assert cluster.run_until(lambda: cluster.controller is not None)


def test_no_voter_change_is_asked_for_without_a_leader():
    cluster = NodeCluster(1, controllers=1)
    changes = VoterChanges(cluster, cluster.client, Random(1))
    assert changes.ask() is None
    cluster.boot()
    # The only voter stays.
    assert changes.ask() is None
