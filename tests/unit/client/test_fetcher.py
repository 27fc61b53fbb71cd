"""The fetcher over three simulated brokers."""

from __future__ import annotations

import pytest

from kreplica.client.fetcher import EARLIEST, LATEST
from kreplica.common import errors
from kreplica.common.future import Future
from kreplica.common.types import TopicPartition
from tests.support.clients import AT, Stage


@pytest.fixture
def stage():
    stage = Stage()
    stage.until_done(stage.produce_apart(b"a", b"b"), stage.produce(b"c"))
    return stage


def values(fetched):
    return [record.value for batch in fetched.batches() for record in batch]


def fetch(stage, offset, **options):
    future = stage.fetcher.fetch(AT, offset, **options)
    assert stage.cluster.scheduler.run_until(future.done, 10_000)
    return future.result()


def test_what_is_committed_is_read(stage):
    fetched = fetch(stage, 0)
    assert values(fetched) == [b"a", b"b", b"c"]
    assert (fetched.high_watermark, fetched.log_start_offset, fetched.aborted) == (3, 0, ())
    assert values(fetch(stage, 2, isolation="txn_committed")) == [b"c"]


def test_at_the_end_it_waits_as_long_as_it_may(stage):
    assert values(fetch(stage, 3)) == []
    future = stage.fetcher.fetch(AT, 3, max_wait_ms=1_000)
    stage.pass_time(300)
    assert not future.done()
    stage.until_done(stage.produce(b"d"))
    stage.pass_time(10)
    assert values(future.result()) == [b"d"]


def test_beyond_the_end(stage):
    with pytest.raises(errors.OffsetOutOfRange, match="offset 4 is below the log's start or above"):
        fetch(stage, 4)


def test_a_new_leader_is_found(stage):
    stage.pass_time(1_000)
    stage.cluster.kill(1)
    future = stage.fetcher.fetch(AT, 0)
    stage.pass_time(300)
    assert not future.done()
    stage.elect(3, isr=[2, 3])
    stage.pass_time(300)
    assert values(future.result()) == [b"a", b"b", b"c"]


def test_a_deposed_leader_is_not_believed(stage):
    stage.pass_time(1_000)
    stage.notify(stage.controller.elect(AT, 2, [2, 3]), to=[2, 3])
    stage.pass_time(100)
    # The old leader believes that it still leads, and answers no request of a later epoch.
    stage.metadata.refresh(AT.topic)
    stage.pass_time(10)
    assert stage.until_done(stage.produce(b"d")) == [3]
    assert values(fetch(stage, 3)) == [b"d"]


def test_a_fetch_times_out_if_no_broker_answers(stage):
    for broker_id in stage.ids:
        stage.cluster.kill(broker_id)
    with pytest.raises(errors.RequestTimedOut) as caught:
        fetch(stage, 0, timeout_ms=400)
    assert isinstance(caught.value.__cause__, errors.NetworkException)


def test_there_is_no_such_topic(stage):
    future = stage.fetcher.fetch(TopicPartition("nobodys", 0), 0, timeout_ms=200)
    stage.pass_time(500)
    assert isinstance(future.exception(), errors.RequestTimedOut)
    assert isinstance(future.exception().__cause__, errors.UnknownTopicOrPartition)
    assert "UnknownTopicOrPartition" in str(future.exception())


def test_where_a_partition_begins_and_ends(stage):
    offsets = [stage.fetcher.offset(AT, timestamp) for timestamp in (EARLIEST, LATEST, 2**60)]
    stage.pass_time(100)
    assert [offset.result() for offset in offsets] == [0, 3, -1]


def test_a_fetch_times_out_without_metadata(stage):
    stage.send = lambda *_, **__: Future()
    stage.metadata._topics.clear()
    future = stage.fetcher.fetch(AT, 0, timeout_ms=300)
    stage.pass_time(400)
    assert isinstance(future.exception(), errors.RequestTimedOut)
