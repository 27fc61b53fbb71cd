"""Transactions of a program: all or nothing, one producer for each id, and a clear error for every misuse."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest

import kreplica
from kreplica.client import transactional_producer
from kreplica.cluster import transactions
from kreplica.cluster.transactions import ClusterTransactions, Transaction
from kreplica.common.errors import (
    ConcurrentTransactions,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KreplicaError,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    TransactionTimedOut,
    UnknownTopicOrPartition,
)
from kreplica.common.messages.administration import FeatureUpdateKey, UpdateFeaturesRequest


@pytest.fixture
def sim():
    with kreplica.Simulation(seed=11) as sim:
        sim.create_topic("t", 2, 3, {"min.insync.replicas": 2})
        yield sim


@pytest.fixture(params=[1, 2])
def versioned(sim, request):
    """A simulation with this level of transaction.version."""
    if request.param == 1:
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
        answer = sim._client.endpoint.send(
            sim.controller, UpdateFeaturesRequest(feature_updates=(update,)), timeout_ms=1_000
        )
        assert sim.run_until(answer.done)
        assert answer.result().error_code == 0
    sim.run_for(500)
    return sim


def values(sim, partition=0, isolation="txn_committed"):
    return [record.value for record in sim.read("t", partition, isolation=isolation)]


def starts(sim):
    """The number of InitProducerId requests for transactional ids, counted from now on."""
    seen = []
    network = sim._cluster.network

    def tap(step, message):
        if step == "sent" and message.is_request and message.name == "InitProducerId":
            seen.append(message)

    network.tap = tap
    return seen


def run(program, steps, **options):
    """Run the steps in a transaction."""
    with program.transaction("a", **options) as txn:
        steps(txn)


def run_in(txn):
    with txn:
        pass


def fail(_):
    raise ZeroDivisionError


class OtherProgram:
    """Another client of the cluster, with producers of its own."""

    def __init__(self, sim):
        client = sim._cluster.add_client()
        self.sim = sim
        self.transactions = ClusterTransactions(client, sim._newest, sim._transactions.pending)

    def transaction(self, name, timeout=60.0):
        steps = self.transactions.transaction(name, None, timeout)
        return Transaction(steps, partial(self.sim._ask, timeout=60.0), self.sim._append_in)


def test_a_transaction_counts_as_a_whole(versioned):
    with versioned.transaction("a") as txn:
        first = txn.append("t", [b"1", b"2"], partition=0)
        txn.append("t", [b"3"], partition=1)
        assert first.result().base_offset == 0
        assert values(versioned, 0) == values(versioned, 1) == []
    versioned.run_for(100)
    assert (values(versioned, 0), values(versioned, 1)) == ([b"1", b"2"], [b"3"])


def test_an_exception_aborts_and_is_raised(versioned):
    def steps(txn):
        assert txn.append("t", [b"1"], partition=0).result().base_offset == 0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(versioned, steps)
    with versioned.transaction("a") as txn:
        txn.append("t", [b"2"], partition=0)
    versioned.run_for(100)
    assert values(versioned) == [b"2"]
    assert values(versioned, isolation="high_watermark") == [b"1", b"2"]


def test_many_transactions_of_an_id_have_one_producer(versioned):
    asked = starts(versioned)
    for number in range(5):
        with versioned.transaction("a") as txn:
            for part in range(3):
                txn.append("t", [b"%d.%d" % (number, part)], partition=part % 2)
    assert len(asked) == 1
    versioned.run_for(100)
    assert values(versioned, 1) == [b"%d.1" % number for number in range(5)]
    assert len(values(versioned, 0)) == 10


def test_offsets_count_with_the_records(versioned):
    versioned.append("t", [b"%d" % number for number in range(10)], partition=0).result()
    with versioned.transaction("a") as txn:
        txn.append("t", [b"x"], partition=1)
        txn.commit_offsets("g", {("t", 0): 4})

    def steps(txn):
        txn.commit_offsets("g", {("t", 0): 8})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(versioned, steps)
    versioned.run_for(1_000)
    read = [each.value for each in versioned.consume(["t"], "g", timeout=2.0)]
    assert sorted(read) == [*(b"%d" % n for n in range(4, 10)), b"x"]


def test_a_program_that_runs_again_ends_what_it_left_open_before_it_reads_its_offsets(versioned):
    versioned.append("t", [b"%d" % number for number in range(5)], partition=0).result()
    died = versioned.transaction("a")
    died.__enter__()
    died.commit_offsets("g", {("t", 0): 2})
    reader = versioned.consume(["t"], "g", timeout=1.0)
    with pytest.raises(RequestTimedOut, match="transaction that commits some of them may be open"):
        next(reader)
    with OtherProgram(versioned).transaction("a"):
        pass
    assert len(list(versioned.consume(["t"], "g", timeout=1.0))) == 5


def test_an_empty_transaction_does_nothing(sim):
    with sim.transaction("a"):
        pass
    with pytest.raises(ZeroDivisionError):
        run(sim, fail)


def test_a_transaction_is_committed_or_aborted_within_its_block(sim):
    with sim.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
        txn.commit()
    with sim.transaction("a") as txn:
        txn.append("t", [b"2"], partition=0)
        txn.abort()
    sim.run_for(100)
    assert values(sim) == [b"1"]


@pytest.mark.parametrize("how", ["before", "behind", "in the next"])
def test_a_transaction_that_is_not_open_is_refused(sim, how):
    txn = sim.transaction("a")
    if how != "before":
        with txn:
            txn.append("t", [b"1"], partition=0)
    if how == "in the next":
        with sim.transaction("a"), pytest.raises(InvalidTxnState):
            txn.append("t", [b"2"], partition=0)
    with pytest.raises(InvalidTxnState):
        txn.append("t", [b"2"], partition=0)
    with pytest.raises(InvalidTxnState):
        txn.commit_offsets("g", {("t", 0): 1})
    with pytest.raises(InvalidTxnState):
        txn.commit()
    if how != "before":
        with pytest.raises(InvalidTxnState, match="begun before"), txn:
            pass
    assert values(sim, isolation="high_watermark") == ([] if how == "before" else [b"1"])


def test_a_transaction_that_is_begun_again_goes_on(sim):
    with sim.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
        with pytest.raises(InvalidTxnState, match="begun before"):
            run_in(txn)
        txn.append("t", [b"2"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"1", b"2"]


def test_one_transaction_of_an_id_is_open_at_a_time(sim):
    with sim.transaction("a") as outer:
        outer.append("t", [b"1"], partition=0)
        with pytest.raises(ConcurrentTransactions, match="open in this program"), sim.transaction("a"):
            pass
        with sim.transaction("b") as other:
            other.append("t", [b"2"], partition=0)
    sim.run_for(100)
    assert sorted(values(sim)) == [b"1", b"2"]


def test_a_transaction_waits_for_the_end_of_the_one_before(sim):
    first = sim._transactions.transaction("a", None, 60.0)
    second = sim._transactions.transaction("a", None, 60.0)
    third = sim._transactions.transaction("a", None, 60.0)
    sim._ask(first.begin, timeout=60.0)
    first.append("t", [b"1"], 0, None)
    ended = first.end(commit=True)
    began = second.begin()
    assert isinstance(third.begin().exception(), ConcurrentTransactions)
    assert sim.run_until(began.done)
    assert ended.done()
    second.append("t", [b"2"], 0, None)
    sim._ask(partial(second.end, commit=True), timeout=60.0)
    sim.run_for(100)
    assert values(sim) == [b"1", b"2"]


def test_a_commit_waits_for_offsets_that_are_being_committed(versioned):
    versioned.append("t", [b"%d" % number for number in range(10)], partition=0).result()
    steps = versioned._transactions.transaction("a", None, 60.0)
    versioned._ask(steps.begin, timeout=60.0)
    committed = steps.commit_offsets("g", {("t", 0): 4})
    committed.cancel()
    versioned._ask(partial(steps.end, commit=True), timeout=60.0)
    versioned.run_for(1_000)
    read = [each.value for each in versioned.consume(["t"], "g", timeout=2.0)]
    assert read == [b"%d" % number for number in range(4, 10)]


def test_a_transaction_of_no_offsets_is_committed(versioned):
    with versioned.transaction("a") as txn:
        txn.commit_offsets("g", {})
    with versioned.transaction("a") as txn:
        txn.commit_offsets("g", {})
        txn.append("t", [b"1"], partition=0)
    with versioned.transaction("a") as txn:
        txn.commit_offsets("g", {("t", 0): 1})
        txn.commit_offsets("g", {})
    versioned.run_for(1_000)
    assert values(versioned) == [b"1"]
    assert [each.value for each in versioned.consume(["t"], "g", timeout=2.0)] == []


def test_offsets_of_a_topic_that_was_deleted_meanwhile_no_longer_matter(versioned):
    versioned.create_topic("gone", partitions=1)
    versioned.append("gone", [b"1"], partition=0).result()
    consumer = versioned.consume(["gone"], "g", timeout=2.0, auto_commit=False)
    assert next(consumer).value == b"1"
    versioned.delete_topic("gone")
    versioned.run_for(100)
    with versioned.transaction("a") as txn:
        txn.commit_offsets(consumer)
    with versioned.transaction("a") as txn:
        txn.append("t", [b"2"], partition=0)
        txn.commit_offsets(consumer)
    consumer.close()
    versioned.run_for(1_000)
    assert values(versioned) == [b"2"]


@pytest.mark.parametrize("at", [("gone", 0), ("t", 2)])
def test_offsets_of_a_partition_that_does_not_exist_are_refused(versioned, at):
    with versioned.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
        with pytest.raises(UnknownTopicOrPartition, match=at[0]):
            txn.commit_offsets("g", {("t", 0): 1, at: 1})
    versioned.run_for(1_000)
    assert values(versioned) == [b"1"]
    # None of them was committed.
    assert [each.value for each in versioned.consume(["t"], "g", timeout=2.0)] == [b"1"]


def test_a_program_that_catches_the_error_of_an_unknown_topic_commits_the_rest(versioned):
    """As a stock client does: nothing was sent for the record that it refused."""
    with versioned.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
        with pytest.raises(UnknownTopicOrPartition):
            txn.append("gone", [b"2"])
    versioned.run_for(100)
    assert values(versioned) == [b"1"]


def test_wrong_arguments_are_refused(sim):
    with pytest.raises(TypeError, match="transactional id"):
        sim.transaction(7)
    with pytest.raises(ValueError, match="empty"):
        sim.transaction("")
    for bad, error in (("\u00fc" * 20_000, "at most 32767 bytes, not 40000"), ("a\ud800", "character 1 is")):
        with pytest.raises(ValueError, match=error):
            sim.transaction(bad)
    with pytest.raises(InvalidTransactionTimeout, match=r"a: .*86400000 ms.* transaction\.max\.timeout\.ms"):
        with sim.transaction("a", timeout=86_400):
            pass
    for timeout in (0, -1, 0.0004):
        with pytest.raises(
            InvalidTransactionTimeout, match=f"a: timeout={timeout} .* at least 0.001 seconds"
        ):
            sim.transaction("a", timeout=timeout)
    with sim.transaction("a") as txn:
        with pytest.raises(UnknownTopicOrPartition):
            txn.append("u", [b"1"])
        with pytest.raises(TypeError, match="group"):
            txn.commit_offsets(7, {("t", 0): 1})
        for group in ("g" * 40_000, "\ud800"):
            with pytest.raises(ValueError, match="a group's id"):
                txn.commit_offsets(group, {("t", 0): 1})
        for offset in (None, "1", 1.5, True):
            with pytest.raises(TypeError, match="an offset must be an int, not"):
                txn.commit_offsets("g", {("t", 0): offset})
        for offsets in ([("t", 0)], {"t": 1}, {("t", 0, 1): 1}):
            with pytest.raises(TypeError, match=r"by \(topic, partition\), not"):
                txn.commit_offsets("g", offsets)
        txn.append("t", [b"1"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"1"]


@pytest.mark.parametrize("bad", [bytes(2 << 20), 7])
def test_an_append_that_fails_fails_the_transaction(sim, bad):
    error = TypeError if bad == 7 else MessageTooLarge

    def steps(txn):
        txn.append("t", [b"1"], partition=0).result()
        failed = txn.append("t", [bad], partition=0)
        assert isinstance(failed.exception(), error)
        with pytest.raises(TransactionAbortable):
            txn.append("t", [b"2"], partition=1)
        with pytest.raises(TransactionAbortable):
            txn.commit_offsets("g", {("t", 0): 1})

    with pytest.raises(error):
        run(sim, steps)
    with sim.transaction("a") as txn:
        txn.append("t", [b"3"], partition=0)
    sim.run_for(100)
    assert (values(sim), values(sim, 1)) == ([b"3"], [])


@pytest.mark.parametrize("step", ["append", "commit", "commit of offsets"])
def test_a_zombie_is_fenced(versioned, step):
    other = OtherProgram(versioned)

    def steps(txn):
        txn.append("t", [b"zombie"], partition=0).result()
        with other.transaction("a") as successor:
            successor.append("t", [b"1"], partition=0)
        if step == "append":
            txn.append("t", [b"late"], partition=0).result()
        elif step == "commit of offsets":
            txn.commit_offsets("g", {("t", 0): 1})

    with pytest.raises(ProducerFenced):
        run(versioned, steps)
    with other.transaction("a") as successor:
        successor.append("t", [b"2"], partition=0)
    versioned.run_for(100)
    assert values(versioned) == [b"1", b"2"]


def test_after_being_fenced_the_program_may_take_the_id_back(sim):
    other = OtherProgram(sim)

    def steps(txn):
        txn.append("t", [b"zombie"], partition=0).result()
        with other.transaction("a"):
            pass

    with pytest.raises(ProducerFenced):
        run(sim, steps)
    with sim.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
    with pytest.raises(ProducerFenced), other.transaction("a") as successor:
        successor.append("t", [b"zombie"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"1"]


@pytest.mark.parametrize("step", ["append", "commit"])
def test_a_transaction_that_takes_too_long_is_aborted_and_the_id_goes_on(sim, step):
    def steps(txn):
        txn.append("t", [b"1"], partition=0).result()
        sim.run_for(1_500)
        if step == "append":
            txn.append("t", [b"2"], partition=0).result()

    with pytest.raises(TransactionTimedOut, match="its timeout is 500 ms"):
        run(sim, steps, timeout=0.5)
    asked = starts(sim)
    with sim.transaction("a", timeout=0.5) as txn:
        txn.append("t", [b"3"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"3"]
    # It has named the producer that it was, or would have fenced one that had taken over.
    assert all(message.body.producer_id >= 0 for message in asked)


def test_a_zombie_that_has_timed_out_does_not_fence_its_successor(sim):
    other = OtherProgram(sim)

    def steps(txn):
        txn.append("t", [b"1"], partition=0).result()
        sim.run_for(1_500)
        with other.transaction("a") as successor:
            successor.append("t", [b"2"], partition=0)

    with pytest.raises(TransactionTimedOut):
        run(sim, steps, timeout=0.5)
    with pytest.raises(ProducerFenced), sim.transaction("a", timeout=0.5):
        pass
    with other.transaction("a") as successor:
        successor.append("t", [b"3"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"2", b"3"]


def test_a_commit_survives_the_coordinator_and_the_leaders(versioned):
    for number in range(6):
        with versioned.transaction("a") as txn:
            for part in range(4):
                txn.append("t", [b"%d.%d" % (number, part)], partition=part % 2)
            victim = 1 + number % 3
            versioned.kill(victim)
            versioned.run_for(number * 7)
        versioned.start(victim)
    versioned.run_for(1_000)
    for part in (0, 1):
        assert values(versioned, part) == [b"%d.%d" % (n, p) for n in range(6) for p in (part, part + 2)]


def test_a_transaction_whose_beginning_is_interrupted_is_given_up(sim):
    def interrupted(_):
        raise KeyboardInterrupt

    steps = sim._transactions.transaction("a", None, 60.0)
    txn = Transaction(steps, lambda ask: interrupted(ask()), sim._append_in)
    with pytest.raises(KeyboardInterrupt):
        run_in(txn)
    # The next one begins behind it, and one that is interrupted while it waits for that makes room as well.
    following = Transaction(
        sim._transactions.transaction("a", None, 60.0), lambda ask: interrupted(ask()), sim._append_in
    )
    with pytest.raises(KeyboardInterrupt):
        run_in(following)
    run(sim, lambda txn: txn.append("t", [b"1"], partition=0))
    sim.run_for(100)
    assert values(sim) == [b"1"]


def test_producers_of_idle_ids_are_forgotten(sim, monkeypatch):
    monkeypatch.setattr(transactions, "MOST_IDS", 2)
    with sim.transaction("open") as outer:
        outer.append("t", [b"0"], partition=0)
        for number in range(1, 6):
            with sim.transaction(f"id-{number}") as txn:
                txn.append("t", [b"%d" % number], partition=0)
                txn.commit_offsets(f"group-{number}", {("t", 0): number})
        assert len(sim._transactions._held) <= 2
    sim.run_for(100)
    assert sorted(values(sim)) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("step", ["append", "commit of offsets"])
def test_an_id_that_the_cluster_has_forgotten_meanwhile_goes_on(monkeypatch, step):
    monkeypatch.setattr(transactional_producer, "IDLE_MS", 1_000)
    config = {
        "transactional.id.expiration.ms": 600,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    }
    with kreplica.Simulation(seed=11, brokers=1, config=config) as sim:
        sim.create_topic("t", 1, 1)
        for number in range(2):
            with sim.transaction("a") as txn:
                txn.append("t", [b"%d" % number])
            sim.run_for(2_000)
        with sim.transaction("a") as txn:
            if step == "append":
                txn.append("t", [b"2"])
            else:
                txn.commit_offsets("g", {("t", 0): 2})
        sim.run_for(100)
        assert values(sim) == [b"0", b"1", *([b"2"] if step == "append" else [])]


def test_an_idle_producer_does_not_fence_its_successor(sim, monkeypatch):
    monkeypatch.setattr(transactional_producer, "IDLE_MS", 1_000)
    with sim.transaction("a") as txn:
        txn.append("t", [b"1"], partition=0)
    other = OtherProgram(sim)
    with other.transaction("a") as txn:
        txn.append("t", [b"2"], partition=0)
    sim.run_for(2_000)
    with pytest.raises(ProducerFenced), sim.transaction("a"):
        pass
    with other.transaction("a") as txn:
        txn.append("t", [b"3"], partition=0)
    sim.run_for(100)
    assert values(sim) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", range(4))
def test_one_consumer_processes_each_record_once_whatever_fails(seed):
    """Blocks fail at their beginning and end, and brokers die within them; the same consumer goes on."""
    chance, killed = random.Random(seed), set()
    with kreplica.Simulation(seed=seed) as sim:
        for topic in ("t", "copies"):
            sim.create_topic(topic, 2, 3, {"min.insync.replicas": 2})
        for number in range(30):
            sim.append("t", [b"%d" % number], partition=number % 2).result()

        def copy(record):
            with sim.transaction("a", source=source) as txn:
                if chance.random() < 0.3:
                    raise ZeroDivisionError
                txn.append("copies", [record.value], partition=0)
                if chance.random() < 0.2:
                    killed.add(chance.randint(1, 3))
                    sim.kill(max(killed))
                if chance.random() < 0.3:
                    raise ZeroDivisionError

        source = sim.consume("t", "copiers", isolation="read_committed", auto_commit=False, timeout=10)
        for record in source:
            with suppress(ZeroDivisionError, KreplicaError):
                copy(record)
            while killed:
                sim.start(killed.pop())
        sim.run_for(1_000)
        copies = [record.value for record in sim.read("copies", 0, isolation="txn_committed")]
        assert sorted(copies, key=int) == [b"%d" % number for number in range(30)]
