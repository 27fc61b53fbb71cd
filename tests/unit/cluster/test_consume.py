"""Consumer groups of a cluster in this process, as its program uses them."""

from __future__ import annotations

import threading

import pytest

from kreplica.cluster import Cluster
from kreplica.common import errors

PATIENCE = 30
IDLE = 0.5


@pytest.fixture
def cluster(tmp_path):
    with Cluster(3, tmp_path / "data", config={"offsets.topic.num.partitions": 4}) as cluster:
        cluster.create_topic("orders", partitions=2)
        yield cluster
        assert cluster.failures == []


def put(cluster, *values, partition=0):
    cluster.append("orders", list(values), partition=partition).result(PATIENCE)


def taken(cluster, group="g", **options):
    return sorted(record.value for record in cluster.consume("orders", group, timeout=IDLE, **options))


def test_a_group_goes_on_where_it_stopped(cluster):
    put(cluster, b"a", b"b")
    put(cluster, b"c", partition=1)
    assert taken(cluster) == [b"a", b"b", b"c"]
    put(cluster, b"d", partition=1)
    assert taken(cluster) == [b"d"]
    assert taken(cluster, group="other") == [b"a", b"b", b"c", b"d"]


def test_a_record_counts_when_the_next_one_is_asked_for(cluster):
    put(cluster, b"a", b"b", b"c")
    with cluster.consume("orders", "g") as records:
        assert [next(records).value, next(records).value] == [b"a", b"b"]
    assert taken(cluster) == [b"b", b"c"]


def test_two_members_share_and_one_goes(cluster):
    first, second = cluster.consume("orders", "g"), cluster.consume("orders", "g")
    got: dict[str, list[bytes]] = {"first": [], "second": []}

    def read(name, records, count):
        for record in records:
            got[name].append(record.value)
            if len(got[name]) == count:
                return

    put(cluster, b"0")
    put(cluster, b"1", partition=1)
    read("first", first, 2)
    # A record counts when the next one is asked for, so the last ones taken are delivered again.
    threads = [
        threading.Thread(target=read, args=("first", first, 4)),
        threading.Thread(target=read, args=("second", second, 1)),
    ]
    for thread in threads:
        thread.start()
    number = 2
    while any(thread.is_alive() for thread in threads):
        put(cluster, b"%d" % number, partition=number % 2)
        number += 1
        for thread in threads:
            thread.join(0.05)
    assert got["second"]
    first.close()
    second.close()
    seen = {*got["first"], *got["second"], *taken(cluster)}
    assert seen == {b"%d" % each for each in range(number)}


def test_the_coordinator_may_die(cluster):
    put(cluster, b"a")
    records = cluster.consume("orders", "g", timeout=PATIENCE)
    assert next(records).value == b"a"
    offsets = {at.partition for at, _, _ in cluster._nodes.newest_metadata().partitions() if "__" in at.topic}
    killed = {cluster.partition("__consumer_offsets", number).leader for number in offsets}
    for node_id in sorted(killed)[:1]:
        cluster.kill(node_id)
    put(cluster, b"b", partition=1)
    put(cluster, b"c")
    assert {next(records).value, next(records).value} == {b"b", b"c"}
    records.close()


def test_offsets_outlast_the_cluster(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        cluster.create_topic("orders", partitions=2)
        put(cluster, b"a", b"b")
        assert taken(cluster) == [b"a", b"b"]
    with Cluster(1, tmp_path / "data") as cluster:
        put(cluster, b"c")
        assert taken(cluster) == [b"c"]
        assert "__consumer_offsets" in cluster.topics()


def test_several_topics_and_latest(cluster):
    cluster.create_topic("other")
    put(cluster, b"a")
    cluster.append("other", [b"b"], partition=0).result(PATIENCE)
    both = [record.value for record in cluster.consume(["orders", "other"], "g", timeout=IDLE)]
    assert sorted(both) == [b"a", b"b"]
    assert taken(cluster, group="late", config={"auto.offset.reset": "latest"}) == []


def test_a_cluster_that_is_closed_ends_the_loop(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        cluster.create_topic("orders")
        put(cluster, b"a", b"b")
        records = cluster.consume("orders", "g")
        assert next(records).value == b"a"
    # It has b already, and may hand it out where its membership did not end first.
    with pytest.raises(errors.ClusterClosed):
        list(records)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (errors.InvalidConfig, {"config": {"session.timeout": 1}}),
        (errors.InvalidConfig, {"config": {"session.timeout.ms": "1"}}),
        (
            errors.InvalidSessionTimeout,
            {"protocol": "classic", "config": {"session.timeout.ms": 99, "heartbeat.interval.ms": 9}},
        ),
        (errors.InvalidGroupId, {"group": ""}),
        (errors.InvalidRequest, {"protocol": "classic", "pattern": "o.*"}),
        (errors.InvalidConfig, {"protocol": "eager"}),
    ],
)
def test_a_group_that_cannot_be(cluster, error, options):
    with pytest.raises(error):
        taken(cluster, **options)


@pytest.mark.parametrize("protocol", ["classic", "consumer", None])
def test_a_group_has_the_protocol_asked_for_or_that_of_the_cluster(cluster, protocol):
    put(cluster, b"a", b"b")
    records = cluster.consume("orders", "g", protocol=protocol)
    next(records)
    assert records.consuming._consumer.config.group_protocol == (protocol or "consumer")
    records.close()
    # The next member goes on where the last one stopped, by whichever protocol.
    assert taken(cluster, protocol="classic") == [b"a", b"b"]
    assert taken(cluster) == []


def test_a_consumer_reads_something(cluster):
    with pytest.raises(ValueError, match="topics, or a pattern"):
        cluster.consume(group="g")


@pytest.mark.parametrize("pattern", [5, b"o.*"])
def test_a_pattern_is_text(cluster, pattern):
    with pytest.raises(TypeError, match="pattern"):
        cluster.consume(pattern=pattern, group="g")


def test_a_pattern_finds_no_internal_topic(cluster):
    put(cluster, b"a")
    found = list(cluster.consume(pattern=".*", group="all", timeout=1))  # it does not read its own commits
    assert b"a" in [record.value for record in found]
    assert all(record.key is None for record in found)


def test_the_brokers_reason_is_shown(cluster):
    with pytest.raises(errors.InvalidRegularExpression, match=r"\(\?=a\).*invalid perl operator"):
        list(cluster.consume(pattern="(?=a)a", group="g"))


def test_a_static_member_is_named(cluster):
    put(cluster, b"a")
    assert taken(cluster, instance_id="one") == [b"a"]


def write_half(cluster):
    with cluster.transaction("writer") as txn:
        txn.append("orders", [b"aborted"], partition=0).result(PATIENCE)
        raise InterruptedError


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("read_committed", [b"committed", b"plain"]),
        ("read_uncommitted", [b"aborted", b"committed", b"plain"]),
    ],
)
def test_levels_of_isolation_have_kafkas_names(cluster, level, seen):
    with cluster.transaction("writer") as txn:
        txn.append("orders", [b"committed"], partition=0)
    with pytest.raises(InterruptedError):
        write_half(cluster)
    put(cluster, b"plain", partition=1)
    assert taken(cluster, config={"isolation.level": level}) == seen


def test_a_level_of_isolation_that_does_not_exist(cluster):
    with pytest.raises(errors.InvalidConfig, match=r"isolation.level must be one of"):
        cluster.consume("orders", "g", config={"isolation.level": "serializable"})


def test_another_thread_ends_a_loop_that_waits(cluster):
    consumer = cluster.consume("orders", "g")
    seen, is_reading = [], threading.Event()

    def work():
        for record in consumer:
            seen.append(record.value)
            is_reading.set()

    worker = threading.Thread(target=work)
    worker.start()
    cluster.append("orders", [b"a"]).result(PATIENCE)
    assert is_reading.wait(PATIENCE)
    consumer.close()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert list(consumer) == []


@pytest.mark.parametrize("way", ["consume", "share"])
def test_a_loop_that_a_callback_ends_leaves_its_group(cluster, way):
    """As a collection of garbage does that happens in a thread of the cluster's: it may not wait there."""
    cluster.append("orders", [b"a"], partition=0).result(PATIENCE)
    reading = {"consume": cluster.consume, "share": cluster.share}[way]("orders", "g").batches()
    assert [each.value for each in next(reading)] == [b"a"]
    held, is_dropped = [reading], threading.Event()
    del reading

    def drop(_):
        held.clear()
        is_dropped.set()

    cluster.append("orders", [b"b"], partition=0).add_done_callback(drop)
    assert is_dropped.wait(PATIENCE)
    other = {"consume": cluster.consume, "share": cluster.share}[way]("orders", "g").batches()
    assert next(other)[0].value in (b"a", b"b")
