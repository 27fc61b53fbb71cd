"""Consumers of a group in a simulated cluster: they share, die, come back, and nothing is left unread."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import pytest

from kreplica.client.group_consumer import _fetch_error
from kreplica.client.transaction_manager import no_member
from kreplica.common import errors
from kreplica.common.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kreplica.common.types import TopicPartition
from kreplica.coordinator.shard_store import partition_for
from kreplica.sim.nodes.node_cluster import CONSUMER_CONFIG, NodeCluster

PARTITIONS = 4


CLASSIC = dataclasses.replace(CONSUMER_CONFIG, group_protocol="classic")
CONSUMER = dataclasses.replace(CONSUMER_CONFIG, group_protocol="consumer")


def booted(seed, **options):
    cluster = NodeCluster(seed=seed, **options)
    cluster.boot()
    create = cluster.client.admin.create_topic
    cluster.result(create("t", partitions=PARTITIONS, config={"min.insync.replicas": 2}))
    return cluster


@pytest.fixture(params=[False, True], ids=["objects", "bytes"])
def cluster(request):
    return booted(3, as_bytes=request.param)


@pytest.fixture(params=[CLASSIC, CONSUMER], ids=["classic", "consumer"])
def config(request):
    return request.param


class Reader:
    """A consumer on a machine of its own, which reads all the time."""

    def __init__(self, cluster, config=CLASSIC, topics=("t",)):
        self.cluster = cluster
        self.client = cluster.add_client()
        self.consumer = self.client.consumer("g", topics, config)
        self.values = []
        self.error = None
        self._poll()

    def _poll(self):
        self.consumer.poll(200).add_done_callback(self._polled)

    def _polled(self, done):
        self.error = done.exception()
        if self.error is None and self.client.life.is_alive:
            for chunk in done.result():
                if chunk.owned.may_read:
                    self.values += [record.value for record in chunk.records]
                    chunk.owned.marked = chunk.next_offset
                chunk.owned.done += 1
            self._poll()

    @property
    def assignment(self):
        return [at.partition for at in self.consumer.assignment]

    @property
    def generation_id(self):
        return self.consumer.member.identity.generation_id

    def die(self):
        self.client.life.is_alive = False


def produce(cluster, *values):
    for number, value in enumerate(values):
        at = TopicPartition("t", number % PARTITIONS)
        cluster.result(cluster.client.producer.send(at, [value], timeout_ms=5_000))


def until(cluster, condition, limit_ms=20_000):
    assert cluster.run_until(condition, limit_ms)


def settled(*readers):
    """Each partition has one of these readers, and each of them its share."""
    owned = sorted(number for reader in readers for number in reader.assignment)
    return owned == list(range(PARTITIONS)) and all(reader.assignment for reader in readers)


def names(start, stop):
    return [b"%d" % number for number in range(start, stop)]


def coordinator(cluster):
    at = TopicPartition("__consumer_offsets", partition_for("g", 4))
    return cluster.metadata().partition(at).leader


def test_one_reads_all_and_goes_on_where_it_stopped(cluster, config):
    produce(cluster, *names(0, 20))
    reader = Reader(cluster, config)
    until(cluster, lambda: len(reader.values) == 20)
    cluster.result(reader.consumer.close())
    produce(cluster, *names(20, 24))
    again = Reader(cluster, config)
    until(cluster, lambda: len(again.values) == 4)
    assert sorted(reader.values + again.values) == sorted(names(0, 24))


def test_two_share_and_one_that_dies_is_replaced(cluster, config):
    first, second = Reader(cluster, config), Reader(cluster, config)
    until(cluster, lambda: settled(first, second))
    assert first.assignment in ([0, 1], [2, 3])
    produce(cluster, *names(0, 20))
    until(cluster, lambda: len(first.values + second.values) == 20)
    second.die()
    until(cluster, lambda: settled(first))
    produce(cluster, *names(20, 40))
    until(cluster, lambda: set(first.values + second.values) == set(names(0, 40)))


def test_one_that_leaves_is_replaced_at_once(cluster, config):
    first, second = Reader(cluster, config), Reader(cluster, config)
    until(cluster, lambda: settled(first, second))
    produce(cluster, *names(0, 8))
    until(cluster, lambda: len(first.values + second.values) == 8)
    cluster.result(second.consumer.close())
    until(cluster, lambda: settled(first), CONSUMER_CONFIG.session_timeout_ms // 2)
    produce(cluster, *names(8, 16))
    until(cluster, lambda: len(first.values + second.values) == 16)
    # Records that the departed consumer has committed are not read again.
    assert sorted(first.values + second.values) == sorted(names(0, 16))


def test_a_static_member_comes_back_to_its_partitions(cluster):
    config = [dataclasses.replace(CLASSIC, group_instance_id=name) for name in "ab"]
    first, second = Reader(cluster, config[0]), Reader(cluster, config[1])
    until(cluster, lambda: settled(first, second))
    had, generation = second.assignment, first.generation_id
    second.die()
    again = Reader(cluster, config[1])
    until(cluster, lambda: again.assignment == had)
    assert first.generation_id == again.generation_id == generation
    produce(cluster, *names(0, 8))
    until(cluster, lambda: len(first.values + again.values) == 8)


def test_of_two_with_one_instance_the_older_is_fenced(cluster):
    config = dataclasses.replace(CLASSIC, group_instance_id="a")
    first = Reader(cluster, config)
    until(cluster, lambda: settled(first))
    second = Reader(cluster, config)
    until(cluster, lambda: settled(second) and first.error is not None)
    assert isinstance(first.error, errors.FencedInstanceId)
    assert first.assignment == []


def test_a_killed_coordinator_is_replaced_and_knows_the_offsets(cluster, config):
    first, second = Reader(cluster, config), Reader(cluster, config)
    produce(cluster, *names(0, 20))
    until(cluster, lambda: settled(first, second) and len(first.values + second.values) == 20)
    cluster.result(first.consumer.commit())
    cluster.result(second.consumer.commit())
    generation = first.generation_id
    killed = coordinator(cluster)
    cluster.kill(killed)
    produce(cluster, *names(20, 40))
    until(cluster, lambda: len(first.values + second.values) == 40)
    until(cluster, lambda: coordinator(cluster) not in (-1, killed))
    cluster.pass_time(2_000)
    # The group went on: its generation is in the log, too.
    assert settled(first, second)
    assert first.generation_id == generation
    assert not cluster.fatal
    for reader in (first, second):
        cluster.result(reader.consumer.close())
    third = Reader(cluster, config)
    produce(cluster, *names(40, 44))
    until(cluster, lambda: len(third.values) == 4)
    assert sorted(third.values) == names(40, 44)


def test_every_broker_may_die_in_turn(cluster, config):
    reader = Reader(cluster, config)
    written = 0
    for node_id in (1, 2, 3):
        cluster.kill(node_id)
        produce(cluster, *names(written, written + 8))
        written += 8
        until(cluster, lambda: set(reader.values) == set(names(0, written)))  # noqa: B023
        cluster.start(node_id)
        until(
            cluster,
            lambda: cluster.is_ready() and all(len(cluster.partition("t", n).isr) == 3 for n in range(4)),
        )
    assert not cluster.fatal


@pytest.mark.parametrize("seed", [8, 11])
def test_nothing_is_left_unread_whatever_dies(seed, config):
    chance = random.Random(seed)
    cluster = booted(seed)
    readers, gone, written = [Reader(cluster, config) for _ in range(3)], [], 0
    for _ in range(25):
        what = chance.randrange(6)
        down = [node_id for node_id in (1, 2, 3) if not cluster.brokers[node_id].is_alive]
        if what < 2:
            produce(cluster, *names(written, written + 4))
            written += 4
        elif what == 2 and down:
            cluster.start(down[0])
        elif what == 2:
            cluster.kill(chance.choice((1, 2, 3)))
        elif what == 3 and len(readers) > 1:
            gone.append(readers.pop(chance.randrange(len(readers))))
            if chance.random() < 0.5:
                gone[-1].die()
            else:
                gone[-1].consumer.close()
        elif what == 4 and len(readers) < PARTITIONS:
            readers.append(Reader(cluster, config))
        cluster.pass_time(chance.randrange(400))
    for node_id in (1, 2, 3):
        if not cluster.brokers[node_id].is_alive:
            cluster.start(node_id)

    def read_by_all():
        return {value for reader in (*readers, *gone) for value in reader.values}

    until(cluster, lambda: settled(*readers) and read_by_all() == set(names(0, written)))
    assert [reader.error for reader in readers] == [None] * len(readers)
    assert not cluster.fatal


def test_a_commit_of_an_old_generation_is_fenced(cluster):
    first = Reader(cluster)
    until(cluster, lambda: settled(first))
    member_id, generation = (
        first.consumer.member.identity.member_id,
        first.generation_id,
    )
    second = Reader(cluster)
    until(cluster, lambda: settled(first, second))

    def commit(generation_id):
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=77, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            topics=(OffsetCommitRequestTopic(name="t", partitions=(partition,)),),
        )
        reply = cluster.client.endpoint.send(coordinator(cluster), request, timeout_ms=1_000)
        return cluster.result(reply).topics[0].partitions[0].error_code

    assert commit(generation) == errors.IllegalGeneration.code
    assert commit(first.generation_id) == 0


def test_partitions_that_stay_are_read_during_a_rebalance(cluster):
    first = Reader(cluster, CONSUMER)
    until(cluster, lambda: settled(first))
    owned = dict(first.consumer._owned)
    second = Reader(cluster, CONSUMER)
    until(cluster, lambda: settled(first, second))
    stayed = [owned[at] for at in first.consumer.assignment]
    assert len(stayed) == PARTITIONS // 2
    assert all(each.may_read for each in stayed)
    assert all(first.consumer._owned[each.at] is each for each in stayed)
    assert [each.may_read for each in owned.values()].count(False) == PARTITIONS // 2


def test_a_static_member_of_the_consumer_protocol_gets_its_partitions_when_its_session_has_ended(cluster):
    config = [dataclasses.replace(CONSUMER, group_instance_id=name) for name in "ab"]
    first, second = Reader(cluster, config[0]), Reader(cluster, config[1])
    until(cluster, lambda: settled(first, second))
    second.die()
    again = Reader(cluster, config[1])
    until(cluster, lambda: settled(first, again))
    assert again.error is None
    cluster.result(again.consumer.close())  # it will be back: its partitions are kept
    cluster.pass_time(CONSUMER_CONFIG.session_timeout_ms // 2)
    assert len(first.assignment) == PARTITIONS // 2


def test_new_partitions_are_read(cluster, config):
    reader = Reader(cluster, config)
    until(cluster, lambda: settled(reader))
    cluster.result(cluster.client.admin.create_partitions("t", PARTITIONS + 2))
    until(cluster, lambda: reader.assignment == list(range(PARTITIONS + 2)))


def test_a_topic_may_come_later(cluster, config):
    reader = Reader(cluster, config, topics=("later",))
    until(cluster, lambda: reader.generation_id > 0)
    assert reader.assignment == []
    cluster.result(cluster.client.admin.create_topic("later"))
    until(cluster, lambda: reader.assignment == [0])


def test_a_consumer_that_stops_polling_loses_its_partitions(cluster, config):
    first, second = Reader(cluster, config), Reader(cluster, config)
    until(cluster, lambda: settled(first, second))
    first._poll = lambda: None
    until(cluster, lambda: settled(second))
    del first._poll
    first._poll()
    until(cluster, lambda: settled(first, second))


def test_a_group_that_cannot_be(cluster):
    reader = Reader(cluster, dataclasses.replace(CLASSIC, session_timeout_ms=51))
    until(cluster, lambda: reader.error is not None)
    assert isinstance(reader.error, errors.InvalidSessionTimeout)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_ms": 500},
        {"session_timeout_ms": 0},
        {"auto_offset_reset": "none"},
    ],
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(errors.InvalidConfig):
        dataclasses.replace(CLASSIC, **wrong)


def test_a_mark_of_an_earlier_term_is_not_committed(cluster):
    reader = Reader(cluster)
    produce(cluster, *names(0, 4))
    until(cluster, lambda: len(reader.values) == 4)
    cluster.result(reader.consumer.commit())
    # A chunk of the ownership that ends with the second member's coming.
    stale = reader.consumer._owned[TopicPartition("t", 0)]
    second = Reader(cluster)
    until(cluster, lambda: settled(reader, second))
    assert not stale.may_read
    stale.marked = 77
    cluster.result(reader.consumer.commit())
    for each in (reader, second):
        cluster.result(each.consumer.close())
    again = Reader(cluster)
    until(cluster, lambda: settled(again))
    produce(cluster, *names(4, 8))
    until(cluster, lambda: sorted(again.values) == names(4, 8))


@pytest.mark.parametrize("commit", [True, False])
def test_a_reader_waits_for_the_transaction_that_commits_its_offset(cluster, config, commit):
    produce(cluster, *names(0, 8))
    client = cluster.add_client()
    producer = client.transactional_producer("x", lambda: 2)
    number = cluster.result(producer.begin(60_000))
    offsets = {TopicPartition("t", number): 1 for number in range(PARTITIONS)}
    cluster.result(producer.commit_offsets(number, client.session("g"), no_member("g"), offsets))
    reader = Reader(cluster, config)
    cluster.run_until(lambda: False, 2_000)
    assert reader.values == []
    cluster.result(producer.end(number, commit=commit))
    expected = names(4, 8) if commit else names(0, 8)
    until(cluster, lambda: len(reader.values) >= len(expected))
    cluster.run_until(lambda: False, 500)
    assert sorted(reader.values) == sorted(expected)


def test_an_isolation_that_does_not_exist_is_refused():
    with pytest.raises(errors.InvalidConfig, match="read_committed"):
        dataclasses.replace(CLASSIC, isolation_level="serializable")


@pytest.mark.parametrize(
    ("of_group", "of_partition", "expected"),
    [
        (0, 0, type(None)),
        (113, 0, errors.StaleMemberEpoch),  # a client that took this for "no offset" skipped records
        (0, 29, errors.TopicAuthorizationFailed),
        (0, 88, errors.UnstableOffsetCommit),
    ],
)
def test_an_error_is_not_taken_for_a_missing_offset(of_group, of_partition, expected):
    partitions = [SimpleNamespace(error_code=code) for code in (0, of_partition)]
    group = SimpleNamespace(error_code=of_group, topics=[SimpleNamespace(partitions=partitions)])
    assert type(_fetch_error(SimpleNamespace(groups=[group]))) is expected
