"""Followers: how their logs come to equal their leader's, whatever happened before and happens meanwhile."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kreplica._core.fetch_steps import ANSWERS_A_STEP
from kreplica.common.types import TopicPartition, Uuid
from kreplica.replica.partition import Partition
from kreplica.replica.replica_config import ReplicaConfig
from kreplica.replica.replica_fetcher import ReplicaFetcher
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)


def append(at: Replicas, leader: int, *values: bytes, number: int = 0):
    return at.manager(leader).append(TopicPartition("t", number), batch(*values))


def same(at: Replicas, number: int = 0) -> list[bytes | None]:
    """The values that all replicas that run have."""
    running = [broker for broker in at.ids if at.cluster.brokers[broker].is_alive]
    first, *others = [at.values(broker, number) for broker in running]
    assert all(values == first for values in others)
    return first


def fetcher(at: Replicas, broker: int, number: int = 0):
    partition = TopicPartition("t", number)
    (found,) = (each for each in at.manager(broker).fetchers if each.state_of(partition) is not None)
    return found


def both_ways_of_truncation(function):
    configs = [ReplicaConfig(), ReplicaConfig(truncation_on_fetch=False)]
    return pytest.mark.parametrize("config", configs, ids=["by fetch", "by OffsetForLeaderEpoch"])(function)


# ---- truncation --------------------------------------------------------------------------------------------


@both_ways_of_truncation
def test_what_a_former_leader_had_alone_is_cut(config: ReplicaConfig) -> None:
    at = Replicas(config=config)
    append(at, 1, b"a")
    at.settle()
    at.cluster.cut(1, 2)
    at.cluster.cut(1, 3)
    append(at, 1, b"lost", b"lost too")
    at.settle()
    at.elect(2)
    append(at, 2, b"b")
    at.cluster.heal_all()
    at.pass_time(60_000)
    assert same(at) == [b"a", b"b"]


@both_ways_of_truncation
def test_epochs_that_the_leader_never_saw_are_cut_one_after_the_other(config: ReplicaConfig) -> None:
    at = Replicas(brokers=2, config=config, settings={"unclean.leader.election.enable": True})
    append(at, 1, b"common")
    at.settle()
    at.pass_time(100)
    # Each leads alone in turn, and what it writes the other never sees (KIP-279).
    at.cluster.kill(1)
    at.elect(2, (2,), unclean=True)
    append(at, 2, b"2a")
    at.settle()
    at.cluster.kill(2)
    at.cluster.start(1)
    at.elect(1, (1,), unclean=True)
    append(at, 1, b"1a", b"1b", b"1c")
    at.settle()
    at.cluster.kill(1)
    at.cluster.start(2)
    at.elect(2, (2,), unclean=True)
    append(at, 2, b"2b")
    at.settle()
    at.cluster.start(1)
    at.notify(at.controller.partitions[T0])
    at.pass_time(60_000)
    assert same(at) == [b"common", b"2a", b"2b"]


def test_a_log_without_epochs_keeps_what_is_committed() -> None:
    at = Replicas(brokers=2)
    append(at, 1, b"a")
    at.settle()
    at.pass_time(100)
    at.cluster.cut(1, 2)
    at.elect(2, (2,))
    log = at.partition(1).local_log
    log.epochs.clear()
    at.cluster.heal_all()
    at.elect(2, (2,))
    append(at, 2, b"b")
    at.pass_time(60_000)
    assert same(at) == [b"a", b"b"]


# ---- out of range ------------------------------------------------------------------------------------------


def test_a_follower_behind_the_leaders_start_begins_there() -> None:
    at = Replicas()
    append(at, 1, b"a")
    at.settle()
    at.cluster.kill(3)
    at.controller.fenced.add(3)
    at.notify(at.controller.decide(T0, isr=(1, 2)))
    for number in range(5):
        append(at, 1, b"%d" % number)
        at.partition(1).local_log.roll()
    at.settle()
    at.manager(1).delete_records({T0: 4})
    at.partition(1).local_log.delete_old_segments()
    at.cluster.start(3)
    at.notify(at.controller.partitions[T0], [3])
    at.pass_time(60_000)
    assert at.values(3) == at.values(1) == [b"3", b"4"]
    assert at.partition(3).log_start_offset == 4
    assert at.partition(3).high_watermark == 6


def test_a_follower_past_an_unclean_leaders_end_is_cut_to_it() -> None:
    at = Replicas(brokers=2, settings={"unclean.leader.election.enable": True})
    append(at, 1, b"a", b"b", b"c")
    at.settle()
    at.pass_time(100)
    at.cluster.kill(2)
    at.elect(1, (1,))
    append(at, 1, b"d")
    at.settle()
    at.cluster.kill(1)
    at.cluster.brokers[2].storage.remove_tree("/data/t-0")
    at.cluster.start(2)
    at.elect(2, (2,), unclean=True)
    append(at, 2, b"x")
    at.settle()
    at.cluster.start(1)
    at.notify(at.controller.partitions[T0])
    at.pass_time(60_000)
    assert same(at) == [b"x"]


def test_a_follower_that_lost_its_disk_fetches_everything() -> None:
    at = Replicas()
    for number in range(20):
        append(at, 1, b"%d" % number)
    at.settle()
    at.cluster.power_cut(3)
    append(at, 1, b"meanwhile")
    at.pass_time(60_000)
    at.cluster.start(3)
    at.notify(at.controller.partitions[T0], [3])
    at.pass_time(60_000)
    assert len(same(at)) == 21
    assert at.partition(1).isr == (1, 2, 3)


@both_ways_of_truncation
def test_a_follower_that_deleted_other_records_than_its_leader_has_fetches_all_of_them(
    config: ReplicaConfig,
) -> None:
    """Broker 1 goes on alone, and so does broker 3, which then deletes what it has: an unclean election makes
    that void. Were broker 3 only cut to the end of broker 1's log, it would be taken for in sync without one
    of the records there, and lose them as the next leader."""
    at = Replicas(config=config)
    append(at, 1, b"a")
    at.settle()
    for other in (2, 3):
        at.cluster.cut(1, other)
    at.cluster.kill(2)
    for value in (b"b", b"c", b"d"):
        append(at, 1, value)
    at.notify(at.controller.elect(T0, 3, (3,)), [3])
    for value in (b"void", b"void", b"void", b"void"):
        append(at, 3, value)
    at.manager(3).delete_records({T0: 5})
    assert at.partition(3).log_start_offset == 5
    at.notify(at.controller.elect(T0, 1, (1,), unclean=True))
    at.cluster.heal_all()
    at.pass_time(60_000)
    assert at.partition(1).isr == (1, 3)
    assert at.values(3) == at.values(1) == [b"a", b"b", b"c", b"d"]


def test_a_follower_without_records_begins_where_another_leaders_log_does() -> None:
    """No response can name where their histories part: it has no records, and knows no epochs."""
    at = Replicas()
    append(at, 1, b"a")
    at.settle()
    for other in (2, 3):
        at.cluster.cut(1, other)
    at.cluster.kill(2)
    for value in (b"b", b"c", b"d"):
        append(at, 1, value)
    at.partition(3).truncate_fully_and_start_at(3)
    at.notify(at.controller.elect(T0, 1, (1,), unclean=True))
    at.cluster.heal_all()
    at.pass_time(60_000)
    assert at.partition(1).isr == (1, 3)
    assert at.values(3) == at.values(1) == [b"a", b"b", b"c", b"d"]


def test_an_in_sync_follower_without_records_stays_where_it_is() -> None:
    """Its leader had what it has deleted; below the high watermark it must not fall."""
    at = Replicas()
    for value in (b"a", b"b", b"c"):
        append(at, 1, value)
    at.settle()
    at.pass_time(100)
    for other in (2, 3):
        at.partition(other).local_log.maybe_increment_log_start_offset(3)
    at.cluster.cut(1, 2)
    append(at, 1, b"lost")
    at.settle()
    assert at.partition(3).log_end_offset == 4
    at.cluster.cut(1, 3)
    at.elect(2, (2, 3))
    at.settle()
    assert at.partition(3).log_end_offset == at.partition(3).high_watermark == 3
    append(at, 2, b"d")
    at.pass_time(60_000)
    assert at.values(3) == at.values(2) == [b"d"]


@both_ways_of_truncation
def test_a_follower_whose_records_the_leader_has_deleted_keeps_none_of_them(config: ReplicaConfig) -> None:
    """The leader knows no epoch below its log start, so it cannot say which of the follower's records there
    were never committed. As the next leader the follower would serve them."""
    at = Replicas(config=config, settings={"unclean.leader.election.enable": True})
    append(at, 1, b"a")
    at.settle()
    for other in (2, 3):
        at.cluster.cut(1, other)
    for value in (b"void", b"void", b"void"):
        append(at, 1, value)
    at.notify(at.controller.elect(T0, 2, (2, 3), unclean=True), [2, 3])
    append(at, 2, b"b")
    at.settle()
    at.notify(at.controller.elect(T0, 2, (2, 3)), [2, 3])
    append(at, 2, b"c")
    at.settle()
    at.pass_time(100)
    at.manager(2).delete_records({T0: 2})
    assert at.partition(2).local_log.epochs.entries[0].epoch > 0
    ends: list[tuple[int, int]] = []
    at.cluster.scheduler.after_event = lambda _: ends.append(
        (at.partition(1).log_start_offset, at.partition(1).log_end_offset)
    )
    at.notify(at.controller.partitions[T0], [1])
    at.cluster.heal_all()
    at.pass_time(60_000)
    assert at.values(1) == at.values(2) == [b"c"]
    assert at.partition(2).isr == (2, 3, 1)
    if config.truncation_on_fetch:
        assert (2, 2) in ends
        assert (0, 2) not in ends


# ---- answers that come too late ----------------------------------------------------------------------------


def test_an_answer_from_before_a_change_of_role_is_dropped() -> None:
    at = Replicas()
    append(at, 1, b"a")
    at.settle()
    end = at.cluster.hold(lambda message: not message.is_request and message.receiver == 3)
    append(at, 1, b"b")
    at.settle()
    [held] = at.cluster.held()
    at.elect(2)
    end()
    append(at, 2, b"c")
    at.cluster.release(held)
    at.pass_time(60_000)
    assert same(at)[-1] == b"c"
    assert at.partition(3).leader == 2


def test_a_dropped_response_is_sent_again() -> None:
    """It was the first with the high watermark. The leader counts that as sent, and nothing more follows."""
    at = Replicas(brokers=2)
    append(at, 1, b"a")  # its answer is under way before anything is held
    end = at.cluster.hold(lambda message: not message.is_request and message.receiver == 2)
    at.settle()
    [mark] = at.cluster.held()
    assert (at.partition(1).high_watermark, at.partition(2).high_watermark) == (1, 0)
    at.elect(1)
    at.cluster.release(mark)
    end()
    at.pass_time(60_000)
    assert at.partition(2).high_watermark == 1


def test_a_leader_that_is_gone_is_not_asked_without_pause() -> None:
    at = Replicas()
    at.cluster.kill(1)
    before = fetcher(at, 2).metrics.request_rate.count
    at.pass_time(10_000)
    assert fetcher(at, 2).metrics.request_rate.count - before <= 12


def test_a_log_that_was_cut_behind_its_back_is_fetched_from_where_it_ends() -> None:
    at = Replicas(brokers=2)
    for number in range(5):
        append(at, 1, b"%d" % number)
        at.settle()
    at.partition(2).local_log.truncate_to(3)
    append(at, 1, b"5")
    at.pass_time(10_000)
    assert len(same(at)) == 6


# ---- many partitions ---------------------------------------------------------------------------------------


def test_no_partition_starves_where_all_are_busy() -> None:
    config = ReplicaConfig(replica_fetch_max_bytes=2_000, replica_fetch_response_max_bytes=3_000)
    at = Replicas(brokers=2, partitions=12, config=config)
    at.pass_time(1_000)
    end = at.cluster.hold(lambda message: message.is_request and message.receiver == 1)
    for _ in range(6):
        for number in range(12):
            append(at, 1, b"v" * 1_000, number=number)
    rounds = 0
    while any(at.partition(2, number).log_end_offset < 1 for number in range(12)):
        for message in at.cluster.held():
            at.cluster.release(message)
        at.settle()
        rounds += 1
        assert rounds < 60
    assert max(at.partition(2, number).log_end_offset for number in range(12)) <= 4
    end()
    for message in at.cluster.held():
        at.cluster.release(message)
    at.pass_time(10_000)
    assert all(len(same(at, number)) == 6 for number in range(12))


def test_an_answer_for_many_partitions_is_taken_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * ANSWERS_A_STEP + 3
    at = Replicas(brokers=2, partitions=count)
    steps: list[int] = []
    taken = ReplicaFetcher._take_answers
    fetched = ReplicaFetcher._maybe_fetch

    def counted(self: ReplicaFetcher, answers: list[Any], begin: int = 0) -> None:
        before = sum(at.partition(2, number).log_end_offset for number in range(count))
        taken(self, answers, begin)
        after = sum(at.partition(2, number).log_end_offset for number in range(count))
        if after > before:
            steps.append(after - before)

    def asked(self: ReplicaFetcher) -> bool:
        # Never before all that came is in the logs.
        assert sum(steps) in (0, count)
        return fetched(self)

    monkeypatch.setattr(ReplicaFetcher, "_take_answers", counted)
    monkeypatch.setattr(ReplicaFetcher, "_maybe_fetch", asked)
    end = at.cluster.hold(lambda message: message.is_request and message.receiver == 1)
    at.pass_time(1_000)
    for number in range(count):
        append(at, 1, b"v", number=number)
    end()
    for message in at.cluster.held():
        at.cluster.release(message)
    at.pass_time(1_000)
    assert steps == [ANSWERS_A_STEP, ANSWERS_A_STEP, 3]
    assert all(same(at, number) == [b"v"] for number in range(count))


def test_a_leaders_partitions_are_spread_over_its_fetchers() -> None:
    at = Replicas(partitions=12, config=ReplicaConfig(num_replica_fetchers=3))
    assert len(at.manager(2).fetchers) == 3
    assert sorted(len(each) for each in at.manager(2).fetchers) == [4, 4, 4]
    for number in range(12):
        append(at, 1, b"a", number=number)
    at.settle()
    assert all(same(at, number) == [b"a"] for number in range(12))


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_throttled_follower_waits_while_it_is_out_of_sync(role: str) -> None:
    rate = {f"{role}_replication_throttled_rate": 1_000}
    at = Replicas(
        config=ReplicaConfig(replica_fetch_max_bytes=20_000, **rate),
        settings={f"{role}.replication.throttled.replicas": "0:1,0:3"},
        partitions=2,
    )
    at.cluster.kill(3)
    at.controller.fenced.add(3)
    at.notify(at.controller.decide(T0, isr=(1, 2)))
    for _ in range(40):
        append(at, 1, b"v" * 10_000)
        append(at, 1, b"v" * 10_000, number=1)
    at.settle()
    at.cluster.start(3)
    for topic_partition in at.partitions:
        at.notify(at.controller.partitions[topic_partition], [3])
    at.pass_time(20_000)
    assert 0 < at.partition(3).log_end_offset < 40
    assert at.partition(1).isr == (1, 2)
    # Replicas in sync, and partitions that are not listed, go on.
    assert at.partition(2).log_end_offset == at.partition(3, 1).log_end_offset == 40
    at.pass_time(1_000_000)
    assert at.partition(3).log_end_offset == 40


def test_a_topic_that_is_throttled_no_longer_goes_on_at_once() -> None:
    at = Replicas(
        config=ReplicaConfig(replica_fetch_max_bytes=20_000, leader_replication_throttled_rate=1),
        settings={"leader.replication.throttled.replicas": "*"},
    )
    at.cluster.kill(3)
    at.controller.fenced.add(3)
    at.notify(at.controller.decide(T0, isr=(1, 2)))
    for _ in range(10):
        append(at, 1, b"v" * 10_000)
    at.settle()
    at.cluster.start(3)
    at.notify(at.controller.partitions[T0], [3])
    at.pass_time(20_000)
    assert at.partition(3).log_end_offset < 10
    at.manager(1).log_manager.configs.change({"t": None})
    at.pass_time(2_000)
    assert at.partition(3).log_end_offset == 10


@pytest.mark.parametrize("slots", [0, 1])
def test_a_follower_that_has_no_session_waits_for_news_all_the_same(slots: int) -> None:
    at = Replicas(partitions=3, config=ReplicaConfig(max_incremental_fetch_session_cache_slots=slots))
    append(at, 1, b"a")
    at.pass_time(1_000)
    before = [fetcher(at, follower).metrics.request_rate.count for follower in (2, 3)]
    at.pass_time(10_000)
    for follower, count in zip((2, 3), before, strict=True):
        assert fetcher(at, follower).metrics.request_rate.count - count <= 21
        assert at.partition(follower).high_watermark == 1
    append(at, 1, b"b")
    at.settle()
    assert [at.partition(each).high_watermark for each in at.ids] == [2, 2, 2]


def test_a_topic_that_is_created_again_is_another_one() -> None:
    """Otherwise the leader would answer each fetch at once that it no longer has the old topic."""
    at = Replicas(partitions=2)
    append(at, 1, b"old")
    at.pass_time(1_000)
    again = dataclasses.replace(at.controller.partitions[T0], topic_id=Uuid(bytes(range(16))))
    at.controller.partitions[T0] = again
    at.controller.topics["t"] = at.controller.topics["t"]._replace(topic_id=again.topic_id)
    for broker in (2, 3, 1):
        at.manager(broker).stop_replicas({T0: True})
        at.broker(broker).become_leader_or_follower([again], at.controller.epoch)
    rate = fetcher(at, 2, 1).metrics.request_rate
    before = rate.count
    while at.manager(1).fetches.now_ms() < 3_000 and rate.count - before < 50:
        at.cluster.scheduler.step()
    assert rate.count - before < 20
    append(at, 1, b"new")
    at.pass_time(1_000)
    assert same(at) == [b"new"]


def test_its_lag_is_a_plain_number() -> None:
    at = Replicas()
    append(at, 1, b"a")
    at.settle()
    tags = "clientId=ReplicaFetcherThread-0-1,partition=0,topic=t"
    name = f"kafka.server:type=FetcherLagMetrics,name=ConsumerLag,{tags}"
    assert at.broker(2).metrics.values()[name] == 0
    at.elect(2)
    assert name not in at.broker(2).metrics.values()
    at.manager(3).stop_replicas({T0: False})
    assert not any("ReplicaFetcherThread" in each for each in at.broker(3).metrics.values())


def test_a_fetcher_survives_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Replicas(partitions=2)
    update = Partition.update_follower_high_watermark

    def fail_once(*_: object) -> bool:
        monkeypatch.setattr(Partition, "update_follower_high_watermark", update)
        raise ZeroDivisionError

    monkeypatch.setattr(Partition, "update_follower_high_watermark", fail_once)
    append(at, 1, b"a")
    with pytest.raises(ZeroDivisionError):
        at.settle()
    append(at, 1, b"b", number=1)
    at.pass_time(5_000)
    assert same(at) == [b"a"]
    assert same(at, 1) == [b"b"]
