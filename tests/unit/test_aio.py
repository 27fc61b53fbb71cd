"""kreplica.aio: a log and a cluster of an asyncio program, beside other tasks of the same loop."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing, suppress

import pytest

from kreplica import aio, errors


def test_a_log(tmp_path):
    async def run():
        async with await aio.Log.open(tmp_path / "orders-0") as log:
            infos = await asyncio.gather(*(log.append([b"%d" % n, b"again"]) for n in range(50)))
            assert sorted(info.base_offset for info in infos) == list(range(0, 100, 2))
            assert [record.offset async for record in log.read(start=3, stop=7)] == [3, 4, 5, 6]
            assert await log.flush() == 100
            with pytest.raises(errors.OffsetOutOfRange):
                await anext(log.read(start=101))
        with pytest.raises(errors.LogClosed):
            await log.append([b"late"])

    asyncio.run(run())


def test_what_is_opened_may_be_awaited_entered_or_given_to_a_task(tmp_path):
    async def run():
        async with aio.Log.open(tmp_path / "orders-0") as log:
            await log.append_one(b"0")
        opening = asyncio.create_task(aio.Log.open(tmp_path / "orders-0"))
        async with await opening as log:
            assert [each.value async for each in log.read()] == [b"0"]
        with pytest.raises(errors.InvalidConfig, match="segment_bytes"):
            async with aio.Log.open(tmp_path / "orders-0", segment_byte=1):
                raise AssertionError("the log is open")
        async with aio.Cluster.open(brokers=1, directory=tmp_path / "cluster") as cluster:
            await cluster.create_topic("orders")
            assert (await cluster.append_one("orders", b"0", key=b"k", partition=0)).base_offset == 0
            assert repr(cluster).startswith("aio.Cluster(")
        with pytest.raises(errors.ClusterClosed):
            await cluster.create_topic("late")

    asyncio.run(run())


def test_a_read_that_follows_waits_for_what_comes(tmp_path):
    async def program():
        async with await aio.Log.open(tmp_path / "t-0") as log:
            await log.append_one(b"0", key=b"k")

            async def later():
                await log.append([b"1", b"2"])

            found = []
            async for record in log.read(follow=True, stop=3):
                if not found:
                    task = asyncio.create_task(later())
                found.append(record.value)
            await task
            assert found == [b"0", b"1", b"2"]
            assert [each.value async for each in log.read(2, follow=True, timeout=0.01)] == [b"2"]
            with pytest.raises(ValueError, match="follow=True"):
                await anext(log.read(timeout=1))

    asyncio.run(program())


def test_appends_to_a_cluster_keep_the_order_of_their_calls(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=3, directory=tmp_path) as cluster:
            await cluster.create_topic("orders", config={"min.insync.replicas": 2})
            sent = [cluster.append("orders", [b"%d" % n], partition=0) for n in range(200)]
            found = await asyncio.gather(*sent)
            assert [each.base_offset for each in found] == list(range(200))
            values = [record.value async for record in cluster.read("orders", 0, start=190)]
            assert values == [b"%d" % n for n in range(190, 200)]
            await cluster.kill(cluster.partition("orders").leader)
            assert (await cluster.append("orders", [b"after"], partition=0)).base_offset == 200

    asyncio.run(run())


def test_appends_that_fail_or_are_cancelled_disturb_no_other(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            sent = [cluster.append("orders", [b"%d" % n], partition=0) for n in range(50)]
            bad = cluster.append("orders", [bytes(2 << 20)], partition=0)
            dropped = [cluster.append("orders", [b"dropped"], partition=0) for _ in range(10)]
            for each in dropped:
                each.cancel()
            with pytest.raises(errors.MessageTooLarge):
                await bad
            assert [each.base_offset for each in await asyncio.gather(*sent)] == list(range(50))
            assert all(each.cancelled() for each in dropped)
            assert (await cluster.append("orders", [b"last"], partition=0)).base_offset == 60
            late = cluster.append("orders", [b"late"], partition=0)
        await late
        with pytest.raises(errors.ClusterClosed):
            await cluster.append("orders", [b"too late"], partition=0)

    asyncio.run(run())


def test_the_loop_turns_while_a_reader_follows(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            seen = []

            async def follow():
                async with aclosing(cluster.read("orders", 0, follow=True)) as records:
                    async for record in records:
                        seen.append(record.value)
                        if record.value == b"end":
                            return

            reader = asyncio.create_task(follow())
            for value in (b"a", b"b", b"end"):
                await cluster.append("orders", [value], partition=0)
            await asyncio.wait_for(reader, 20)
            assert seen == [b"a", b"b", b"end"]

    asyncio.run(run())


def test_a_reader_that_is_cancelled_lets_the_cluster_close(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            waiting = asyncio.create_task(anext(cluster.read("orders", 0, follow=True)))
            await cluster.append("orders", [b"wakes it"], partition=0)
            assert (await asyncio.wait_for(waiting, 20)).value == b"wakes it"
            waiting = asyncio.create_task(anext(cluster.read("orders", 0, start=1, follow=True)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())


def test_members_of_a_group(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            await cluster.append("orders", [b"a", b"b", b"c"], partition=0)
            async with aclosing(cluster.consume("orders", "billing", timeout=5)) as records:
                async for record in records:
                    if record.value == b"b":
                        break
            again = [record.value async for record in cluster.consume("orders", "billing", timeout=1)]
            assert again == [b"b", b"c"]  # b was not dealt with: the next one was not asked for

    asyncio.run(run())


def test_a_task_that_is_cancelled_in_its_loop_leaves_the_group(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            await cluster.append("orders", [b"a", b"b"], partition=0)
            for read, group in ((cluster.consume, "readers"), (cluster.share, "workers")):
                began = asyncio.Event()

                async def work(read=read, group=group, began=began):
                    async for _ in read("orders", group):
                        began.set()
                        await asyncio.Event().wait()

                cancelled = asyncio.create_task(work())
                await asyncio.wait_for(began.wait(), 20)
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
                # What it has read and not processed comes again at once; nothing is held until a collection.
                again = read("orders", group, timeout=20)
                # (A share group promises no order: it may take over what the other releases one by one.)
                assert sorted([(await anext(again)).value for _ in range(2)]) == [b"a", b"b"]
                await again.aclose()

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_group_is_left_while_another_task_waits_for_its_records(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            for read in (cluster.consume, cluster.share):
                async with read("orders", f"of {read.__name__}") as source:
                    waiting = asyncio.create_task(anext(source))
                    await asyncio.sleep(0)
                    assert not waiting.done()
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(waiting, 20)

    asyncio.run(run())


def test_a_wait_that_times_out_leaves_its_reader_usable(tmp_path):
    async def in_a_moment(reader):
        """Wait for too short a time again and again, then for long enough."""
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.001)
        await cluster.append("orders", [b"a", b"b"], partition=0)
        return await asyncio.wait_for(anext(reader), 20)

    async def run():
        nonlocal cluster
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            for read in (cluster.consume, cluster.share):
                async with read("orders", f"one by one of {read.__name__}") as one_by_one:
                    first = await in_a_moment(one_by_one)
                    assert (first.value, (await anext(one_by_one)).value) == (b"a", b"b")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            async for _ in one_by_one:
                                pytest.fail("there is no third record")
                    await cluster.append("orders", [b"c"], partition=0)
                    async for record in one_by_one:
                        assert record.value == b"c"
                        break
                await cluster.delete_topic("orders")
                await cluster.create_topic("orders")
                batches = read("orders", f"lists of {read.__name__}").batches()
                found = [each.value for each in await in_a_moment(batches)]
                while len(found) < 2:
                    found += [each.value for each in await anext(batches)]
                assert found == [b"a", b"b"]
                del batches
                await cluster.delete_topic("orders")
                await cluster.create_topic("orders")

    cluster = None
    asyncio.run(run())


def test_two_tasks_cannot_wait_for_one_reader(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            async with cluster.consume("orders", "billing") as source:
                waiting = asyncio.create_task(anext(source))
                await asyncio.sleep(0)
                with pytest.raises(RuntimeError, match="another task waits"):
                    await anext(source)
                await cluster.append("orders", [b"a"], partition=0)
                assert (await asyncio.wait_for(waiting, 20)).value == b"a"

    asyncio.run(run())


def test_a_member_goes_on_in_another_event_loop(tmp_path):
    async def first(consumer):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.01)

    async def second(cluster, consumer):
        await cluster.append("orders", [b"a"], partition=0)
        return (await asyncio.wait_for(anext(consumer), 20)).value

    async def opened():
        cluster = await aio.Cluster.open(brokers=1, directory=tmp_path)
        await cluster.create_topic("orders")
        return cluster

    cluster = asyncio.run(opened())
    consumer = cluster.consume("orders", "billing")
    asyncio.run(first(consumer))
    assert asyncio.run(second(cluster, consumer)) == b"a"
    del consumer  # in no loop: it leaves all the same
    again = cluster.cluster.consume("orders", "billing", timeout=20)
    assert next(again).value == b"a"
    again.close()
    asyncio.run(cluster.close())


def test_what_is_left_of_loops_when_the_cluster_closes_raises_nothing(tmp_path):
    async def run():
        logged = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            await cluster.append("orders", [b"a", b"b"], partition=0)
            open_loops = [cluster.consume("orders", "c"), cluster.share("orders", "s")]
            for each in open_loops:
                assert (await anext(each)).value == b"a"
        for each in open_loops:
            await each.aclose()
        assert logged == []

    asyncio.run(run())


def test_an_aborted_transaction_logs_no_append_that_nothing_waited_for(tmp_path):
    async def run():
        logged = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            await cluster.create_topic("orders")
            async with cluster.transaction("a") as txn:
                txn.append("orders", [b"1"])
                await txn.abort()
            async with cluster.transaction("a") as txn:
                awaited = txn.append("orders", [7])
                with pytest.raises(TypeError):
                    await awaited
                await txn.abort()
            del awaited
            gc.collect()
        assert logged == []

    asyncio.run(run())


def test_errors_are_those_of_the_cluster(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            with pytest.raises(errors.UnknownTopicOrPartition):
                cluster.append("nowhere", [b"v"], partition=0)
            with pytest.raises(errors.InvalidPartitions):
                await cluster.create_topic("orders", partitions=0)

    asyncio.run(run())


def test_a_watch_waits_without_holding_up_the_loop(tmp_path):
    async def run():
        async with await aio.Cluster.open(brokers=1, directory=tmp_path) as cluster:
            async with cluster.watch("/brokers/topics", timeout=20) as watch:
                waiting = asyncio.create_task(anext(watch))
                await cluster.create_topic("orders")
                assert (await waiting).path == "/brokers/topics/orders"
                assert (await anext(watch)).new["isr"] == [1]
                abandoned = asyncio.create_task(anext(watch))
                await asyncio.sleep(0)
                abandoned.cancel()
                await cluster.create_topic("payments")
                assert (await anext(watch)).path == "/brokers/topics/payments"
            assert [change async for change in watch] == []
            silent = cluster.watch("/features", timeout=0.01)
            assert [change async for change in silent] == []
        with pytest.raises(errors.ClusterClosed):
            await anext(silent)

    asyncio.run(run())
