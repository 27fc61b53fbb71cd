"""Reading, processing and writing in transactions: each record once, whatever is killed on the way."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from contextlib import aclosing, suppress

import pytest

from kreplica import aio
from kreplica.cluster import Cluster
from kreplica.common.errors import (
    ClusterClosed,
    ConcurrentTransactions,
    IllegalGeneration,
    InvalidRequest,
    KreplicaError,
    MessageTooLarge,
    ProducerFenced,
    UseAfterFork,
)
from kreplica.common.future import all_of

PATIENCE = 30
CONFIG = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "min.insync.replicas": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}
PARTITIONS = 3


@pytest.fixture
def cluster(tmp_path):
    with Cluster(3, tmp_path / "data", config=CONFIG) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        cluster.create_topic("invoices", PARTITIONS)
        yield cluster
        assert cluster.failures == []


def put(cluster, count):
    sent = [cluster.append("orders", [b"%d" % n], partition=n % PARTITIONS) for n in range(count)]
    all_of(sent).result(PATIENCE)


def invoices(cluster):
    return sorted(
        int(record.value)
        for number in range(PARTITIONS)
        for record in cluster.read("invoices", number, isolation="read_committed")
    )


def orders(cluster, **options):
    return cluster.consume(
        "orders", "billing", isolation="read_committed", auto_commit=False, **{"timeout": 2.0, **options}
    )


def bill(cluster, name, wanted, is_done):
    """Write an invoice for each order, in transactions, until all are written or `is_done`."""
    while len(invoices(cluster)) < wanted and not is_done.is_set():
        source = orders(cluster)
        try:
            for records in source.batches():
                with cluster.transaction(name, timeout=5) as txn:
                    for record in records:
                        txn.append("invoices", [(record.value, record.value)])
                    txn.commit_offsets(source)
        except ProducerFenced:
            raise
        except KreplicaError:
            continue  # from the committed offsets on
        finally:
            source.close()


def test_the_invoices_of_all_orders_are_written_once(cluster):
    put(cluster, 500)
    bill(cluster, "billing-1", 500, threading.Event())
    assert invoices(cluster) == list(range(500))


def test_each_record_is_processed_once_whichever_broker_dies(cluster):
    count, is_done, failures = 3_000, threading.Event(), []

    def work(name):
        try:
            bill(cluster, name, count, is_done)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(f"billing-{number}",)) for number in range(2)]
    put(cluster, 300)
    for worker in workers:
        worker.start()
    for number in range(300, count, 300):
        victim = 1 + number // 300 % 3
        cluster.kill(victim)
        sent = [
            cluster.append("orders", [b"%d" % n], partition=n % PARTITIONS)
            for n in range(number, number + 300)
        ]
        cluster.start(victim)
        all_of(sent).result(PATIENCE)
    for worker in workers:
        worker.join(PATIENCE)
    is_done.set()
    assert failures == []
    assert invoices(cluster) == list(range(count))


def test_a_consumer_that_lost_its_partitions_commits_nothing(cluster):
    put(cluster, 30)
    # By the classic protocol a rebalance takes all partitions; by the other one it may leave this one.
    first = orders(cluster, protocol="classic")
    next(first)
    second = orders(cluster, protocol="classic")
    reader = threading.Thread(target=lambda: next(second))
    reader.start()
    until_lost = threading.Event()
    while all(each.is_owned for each in first.consuming._given.values()):
        until_lost.wait(0.01)

    def steps():
        with cluster.transaction("billing-1") as txn:
            txn.append("invoices", [b"0"])
            txn.commit_offsets(first)

    with pytest.raises(IllegalGeneration):
        steps()
    assert invoices(cluster) == []
    first.close()
    reader.join(PATIENCE)
    second.close()


def test_a_consumer_that_commits_by_itself_is_refused(cluster):
    put(cluster, 3)
    source = cluster.consume("orders", "billing", timeout=1)
    next(source)
    with cluster.transaction("billing-1") as txn, pytest.raises(InvalidRequest, match="auto_commit=False"):
        txn.commit_offsets(source)
    source.close()


def test_a_consumer_that_has_given_out_nothing_commits_nothing(cluster):
    source = orders(cluster)
    with cluster.transaction("billing-1") as txn:
        txn.commit_offsets(source)
        with pytest.raises(TypeError, match="knows its offsets"):
            txn.commit_offsets(source, {("orders", 0): 1})
        with pytest.raises(TypeError, match="no offsets of its own"):
            txn.commit_offsets("billing")
    source.close()


# ---- the same consumer goes on after a failure -------------------------------------------------------------


class Failed(Exception):
    pass


calls = itertools.count(1)


def fails_sometimes():
    if next(calls) % 3 == 0:
        raise Failed


def one(record):
    return [(record.value, record.value)]


def test_a_block_that_fails_gets_its_records_again(cluster):
    put(cluster, 200)
    with orders(cluster, timeout=1.0) as source:
        for records in source.batches():
            with suppress(Failed), cluster.transaction("billing-1", source=source) as txn:
                fails_sometimes()
                for record in records:
                    txn.append("invoices", one(record))
                fails_sometimes()
        assert invoices(cluster) == list(range(200))


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_block_for_each_record_gets_it_again(cluster, protocol):
    put(cluster, 40)
    with orders(cluster, protocol=protocol, timeout=1.0) as source:
        for record in source:
            with suppress(Failed), cluster.transaction("billing-1", source=source) as txn:
                fails_sometimes()
                txn.append("invoices", one(record))
                fails_sometimes()
        assert invoices(cluster) == list(range(40))


def test_records_whose_offsets_an_abort_takes_back_come_again(cluster):
    put(cluster, 9)
    with orders(cluster, timeout=1.0) as source:
        for number, records in enumerate(source.batches()):
            with cluster.transaction("billing-1") as txn:
                for record in records:
                    txn.append("invoices", one(record))
                txn.commit_offsets(source)
                if number < 3:
                    txn.abort()
        assert invoices(cluster) == list(range(9))


def test_a_commit_that_fails_leaves_its_records_to_the_next(cluster):
    put(cluster, 9)
    with orders(cluster, timeout=1.0) as source:
        for number, records in enumerate(source.batches()):
            with suppress(MessageTooLarge), cluster.transaction("billing-1", source=source) as txn:
                for record in records:
                    txn.append("invoices", one(record))
                if number < 3:
                    txn.append("invoices", [bytes(2 << 20)])
        assert invoices(cluster) == list(range(9))


def test_a_group_that_begins_at_the_latest_offset_begins_there_again(cluster):
    put(cluster, 9)
    with orders(cluster, config={"auto.offset.reset": "latest"}, timeout=None) as source:
        reading = source.batches()
        found = []
        reader = threading.Thread(target=lambda: found.append(next(reading)))
        reader.start()
        while len(source.consuming._consumer.assignment) < PARTITIONS:
            threading.Event().wait(0.01)
        cluster.append("orders", [b"100"], partition=0).result(PATIENCE)
        reader.join(PATIENCE)
        with pytest.raises(Failed), cluster.transaction("billing-1", source=source):
            raise Failed
        assert [record.value for record in next(reading)] == [b"100"]


def test_a_transaction_takes_only_a_consumer_that_leaves_commits_to_it(cluster):
    with cluster.consume("orders", "billing", timeout=1) as source:
        with pytest.raises(InvalidRequest, match="auto_commit=False"):
            cluster.transaction("billing-1", source=source)
    with pytest.raises(TypeError, match="source must be a consumer, from consume"):
        cluster.transaction("billing-1", source="billing")


def test_threads_share_a_transaction_and_not_its_id(cluster):
    errors = []

    def begin():
        try:
            with cluster.transaction("a"):
                pass
        except KreplicaError as error:
            errors.append(error)

    with cluster.transaction("a") as txn:

        def append():
            for number in range(100):
                txn.append("invoices", [b"%d" % number], partition=0)

        threads = [threading.Thread(target=call) for call in (append, append, begin)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert [type(error) for error in errors] == [ConcurrentTransactions]
    found = cluster.read("invoices", 0, 0, 200, follow=True, isolation="read_committed")
    assert sorted(int(record.value) for record in found) == sorted([*range(100)] * 2)


def test_a_forked_child_neither_commits_nor_aborts_the_transaction_of_its_parent(cluster):
    with cluster.transaction("a") as txn:
        txn.append("invoices", [b"7"], partition=0).result(PATIENCE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                txn.append("invoices", [b"8"], partition=0)
            except UseAfterFork:
                try:
                    txn.__exit__(None, None, None)
                except UseAfterFork:
                    txn.__exit__(ValueError, ValueError(), None)
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    [record] = cluster.read("invoices", 0, 0, 1, follow=True, isolation="read_committed")
    assert record.value == b"7"


def test_closing_the_cluster_ends_a_transaction_that_waits(tmp_path):
    cluster = Cluster(3, tmp_path / "data", config=CONFIG)
    cluster.create_topic("t")
    txn = cluster.transaction("a")
    with txn:
        cluster.kill(1)
        cluster.kill(2)
        waiting = txn.append("t", [b"1"], partition=0)
        closing = threading.Timer(0.2, cluster.close)
        closing.start()
        with pytest.raises(ClusterClosed):
            txn.commit()
        assert isinstance(waiting.exception(PATIENCE), ClusterClosed)
    closing.join(PATIENCE)
    with pytest.raises(ClusterClosed):
        cluster.transaction("a")


def test_a_program_of_asyncio_processes_each_record_once(tmp_path):
    async def run():
        async with await aio.Cluster.open(3, tmp_path / "data", config=CONFIG) as cluster:
            await cluster.create_topic("orders", PARTITIONS)
            await cluster.create_topic("invoices", PARTITIONS)
            await asyncio.gather(*(cluster.append("orders", [b"%d" % n]) for n in range(100)))
            source = cluster.consume("orders", "billing", auto_commit=False, timeout=1.0)
            async with aclosing(source):
                async for records in source.batches():
                    async with cluster.transaction("billing-1") as txn:
                        for record in records:
                            txn.append("invoices", [(record.value, record.value)])
                        await txn.commit_offsets(source)
            assert invoices(cluster.cluster) == list(range(100))

            await asyncio.gather(*(cluster.append("orders", [b"%d" % n]) for n in range(100, 110)))
            async with cluster.consume("orders", "billing", auto_commit=False, timeout=1.0) as source:
                async for record in source:
                    with suppress(Failed):
                        async with cluster.transaction("billing-1", source=source) as txn:
                            fails_sometimes()
                            txn.append("invoices", one(record))
                            fails_sometimes()
            assert invoices(cluster.cluster) == list(range(110))

            async def fail():
                async with cluster.transaction("billing-1") as txn:
                    await txn.append("invoices", [b"1001"])
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()

            async def hang():
                async with cluster.transaction("billing-1") as txn:
                    await txn.append("invoices", [b"1002"])
                    await asyncio.Event().wait()

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(), 0.2)
            beginning = asyncio.ensure_future(cluster.transaction("billing-1").__aenter__())
            await asyncio.sleep(0)
            beginning.cancel()
            while True:
                try:
                    async with cluster.transaction("billing-1") as txn:
                        txn.append("invoices", [b"110"], partition=0)
                        await txn.commit()
                    break
                except ConcurrentTransactions:
                    await asyncio.sleep(0)  # until what was cancelled is aborted
            reading = cluster.read("invoices", 0, follow=True, isolation="read_committed")
            async with aclosing(reading):
                async for record in reading:
                    if record.value == b"110":
                        break
            assert invoices(cluster.cluster) == list(range(111))

    asyncio.run(run())
