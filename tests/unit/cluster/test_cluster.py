"""A cluster in this process: topics, records, nodes that come and go."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest

from kreplica.cluster import Cluster
from kreplica.common import errors
from tests.support.memory import resident_bytes

PATIENCE = 30


@pytest.fixture
def cluster(tmp_path):
    with Cluster(3, tmp_path / "data") as cluster:
        yield cluster
        assert cluster.failures == []


def put(cluster, *values, topic="orders", partition=0, **options):
    return cluster.append(topic, list(values), partition=partition, **options).result(PATIENCE)


def put_later(cluster, *values):
    return cluster.append("orders", list(values), partition=0)


def values(cluster, topic="orders", partition=0, **options):
    return [record.value for record in cluster.read(topic, partition, **options)]


def until(cluster, condition, what="it"):
    cluster._wait(condition, PATIENCE, what)


# ---- topics and records -------------------------------------------------------------------------------


def test_what_is_appended_is_read(cluster):
    cluster.create_topic("orders", partitions=2, replication_factor=3, config={"min.insync.replicas": 2})
    assert cluster.topics() == ["orders"]
    info = put(cluster, b"a", (b"k", b"b"), None)
    assert (info.topic, info.partition, info.base_offset, info.last_offset) == ("orders", 0, 0, 2)
    assert values(cluster) == [b"a", b"b", None]
    assert values(cluster, start=1, stop=2) == [b"b"]
    assert values(cluster, partition=1) == []
    view = cluster.partition("orders", 0)
    assert sorted(view.replicas) == sorted(view.isr) == [1, 2, 3]
    assert (view.leader, view.leader_epoch) == (view.replicas[0], 0)
    assert (view.log_start_offset, view.high_watermark, view.log_end_offset) == (0, 3, 3)
    assert all(view.why_not_in_isr(broker_id) is None for broker_id in view.isr)


def test_appends_that_wait_for_each_other_have_their_own_offsets(cluster):
    cluster.create_topic("orders", partitions=2)
    futures = [put_later(cluster, *[b"%d" % number] * (1 + number % 3)) for number in range(1_000)]
    first = 0
    for number, future in enumerate(futures):
        info = future.result(PATIENCE)
        assert (info.base_offset, info.record_count) == (first, 1 + number % 3)
        first += info.record_count
    assert values(cluster) == [b"%d" % number for number in range(1_000) for _ in range(1 + number % 3)]
    keyed = [cluster.append("orders", [(b"%d" % n, b"v"), (b"%d" % (n + 1), b"v")]) for n in range(100)]
    done, pending = wait(keyed, PATIENCE)
    assert not pending
    assert sum(future.result().record_count for future in done) == 200


def test_threads_append_together_and_each_in_order(cluster):
    cluster.create_topic("orders")

    def run(thread):
        futures = [put_later(cluster, b"%d %d" % (thread, number)) for number in range(300)]
        return [future.result(PATIENCE).base_offset for future in futures]

    with ThreadPoolExecutor(3) as threads:
        offsets = list(threads.map(run, range(3)))
    stored = values(cluster)
    assert len(stored) == 900
    for thread in range(3):
        assert [stored[offset] for offset in offsets[thread]] == [b"%d %d" % (thread, n) for n in range(300)]


def test_a_thread_that_waits_for_each_append_needs_no_other_thread(cluster):
    cluster.create_topic("orders")
    # Nothing is left to do when the call returns, unless another thread was in a turn when it began.
    assert sum(put_and_look(cluster) for _ in range(1_000)) > 500


def put_and_look(cluster):
    future = put_later(cluster, b"v")
    was_done = future.done()
    future.result(PATIENCE)
    return was_done


@pytest.mark.parametrize("way", ["result", "exception", "wait"])
def test_a_callback_that_waits_for_its_cluster_fails_at_once(cluster, way):
    cluster.create_topic("orders")
    made, refused = [], []

    def wait_inside(_):
        made.append(put_later(cluster, b"b"))
        with pytest.raises(errors.WouldDeadlock) as caught:
            getattr(made[0], way)()
        refused.append(caught.value)
        with pytest.raises(errors.WouldDeadlock):
            cluster.create_topic("more")

    first = put_later(cluster, b"a")
    first.add_done_callback(wait_inside)
    first.result(PATIENCE)
    assert made[0].result(PATIENCE).base_offset == 1
    assert "must not wait for its cluster" in str(refused[0])


def test_what_was_appended_is_sent_before_the_cluster_closes(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        cluster.create_topic("orders")
        for number in range(5):
            put_later(cluster, b"%d" % number)
    with Cluster(1, tmp_path / "data") as cluster:
        assert values(cluster) == [b"%d" % number for number in range(5)]


def test_a_program_that_never_waits_for_its_appends_is_slowed_down():
    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        most = 0
        for _ in range(300):
            put_later(cluster, bytes(100_000))
            most = max(most, len(cluster._client.producer.pending()))
        assert most < 60


def test_past_the_buffer_memory_a_program_waits_for_each_of_its_appends():
    """What was appended while no broker answered was kept until its timeout, up to gigabytes."""
    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        cluster.pause(1)
        pool, most = cluster._client.producer._pool, 0
        appended = [cluster.append("orders", [bytes(900_000)], partition=0, timeout=2)]
        while not appended[0].done():
            appended.append(cluster.append("orders", [bytes(900_000)], partition=0, timeout=2))
            most = max(most, pool.used)
        assert 30 << 20 < most < 34 << 20
        assert all(isinstance(each.exception(PATIENCE), errors.RequestTimedOut) for each in appended)
        cluster.resume(1)
        put(cluster, b"a")
        assert pool.used < 8 << 20


def test_records_go_where_their_keys_belong(cluster):
    cluster.create_topic("orders", partitions=4)
    keys = [b"key %d" % number for number in range(40)]
    made = cluster.append("orders", [(key, b"v") for key in keys]).result(PATIENCE)
    parts = made.batches
    assert sum(part.record_count for part in parts) == made.record_count == 40
    with pytest.raises(ValueError, match=r"spread over partitions \[0, 1, 2, 3\]"):
        _ = made.base_offset
    again = cluster.append("orders", [(key, b"w") for key in keys]).result(PATIENCE).batches
    assert [(p.partition, p.record_count) for p in again] == [(p.partition, p.record_count) for p in parts]
    # What has no key goes to one partition, and the next time to another.
    first, second = (cluster.append("orders", [b"a", b"b"]).result(PATIENCE) for _ in range(2))
    assert [len(first.batches), len(second.batches)] == [1, 1]
    assert first.partition != second.partition


def test_a_reader_may_follow(cluster):
    cluster.create_topic("orders")
    put(cluster, b"a")
    records = cluster.read("orders", 0, follow=True, stop=3)
    assert next(records).value == b"a"
    put(cluster, b"b")
    assert next(records).value == b"b"
    put(cluster, b"c", b"d")
    assert [record.value for record in records] == [b"c"]


def test_a_topic_is_deleted_and_made_anew(cluster):
    cluster.create_topic("orders")
    put(cluster, b"a")
    cluster.delete_topic("orders")
    assert cluster.topics() == []
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.append("orders", [b"b"], partition=0)
    cluster.create_topic("orders")
    assert put(cluster, b"c").base_offset == 0
    assert values(cluster) == [b"c"]


def test_more_partitions_and_other_settings(cluster):
    cluster.create_topic("orders", config={"max.message.bytes": 2_000})
    cluster.create_partitions("orders", 3)
    assert put(cluster, b"a", partition=2).base_offset == 0
    with pytest.raises(errors.MessageTooLarge):
        put(cluster, bytes(3_000))
    cluster.alter_config("orders", {"max.message.bytes": None})
    leader = cluster.partition("orders").leader
    log = cluster.node(leader).broker.replica_manager.log_manager.logs()[0]
    until(cluster, lambda: log.config.max_message_bytes > 3_000)
    put(cluster, bytes(3_000))
    with pytest.raises(errors.InvalidConfig):
        cluster.alter_config("orders", {"no.such.setting": 1})


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (errors.TopicAlreadyExists, {"name": "orders"}),
        (errors.InvalidTopic, {"name": "no/name"}),
        (errors.InvalidPartitions, {"name": "t", "partitions": 0}),
        (errors.InvalidReplicationFactor, {"name": "t", "replication_factor": 4}),
        (errors.InvalidReplicaAssignment, {"name": "t", "assignment": {0: [1, 1]}}),
        (errors.InvalidConfig, {"name": "t", "config": {"min.insync.replicas": -1}}),
    ],
)
def test_a_topic_that_cannot_be(cluster, error, arguments):
    cluster.create_topic("orders")
    with pytest.raises(error):
        cluster.create_topic(**arguments)
    assert cluster.topics() == ["orders"]


def test_what_is_not_there(cluster):
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.append("orders", [b"a"], partition=0)
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.append("orders", [b"a"])
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.read("orders", 0)
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.delete_topic("orders")
    cluster.create_topic("orders")
    with pytest.raises(errors.UnknownTopicOrPartition):
        cluster.partition("orders", 1)
    with pytest.raises(errors.InvalidRequiredAcks):
        cluster.append("orders", [b"a"], partition=0, acks=2)
    with pytest.raises(errors.OffsetOutOfRange):
        list(cluster.read("orders", 0, start=7, stop=9, follow=True))


# ---- nodes ----------------------------------------------------------------------------------------------


def test_the_leader_is_killed_and_comes_back(cluster):
    cluster.create_topic("orders", config={"min.insync.replicas": 2})
    put(cluster, b"a")
    view = cluster.partition("orders")
    first = view.leader
    cluster.kill(first)
    assert put(cluster, b"b").base_offset == 1
    assert view.leader != first
    assert first not in view.isr
    assert values(cluster) == [b"a", b"b"]
    cluster.start(first)
    until(cluster, lambda: sorted(view.isr) == [1, 2, 3], "a full ISR")
    assert view.why_not_in_isr(first) is None
    cluster.elect("orders", 0, "preferred")
    until(cluster, lambda: view.leader == first, "the preferred leader")
    assert put(cluster, b"c").base_offset == 2


def test_the_controller_is_killed(cluster):
    cluster.create_topic("orders")
    first = cluster.controller
    cluster.kill(first)
    cluster.create_topic("later", replication_factor=2)
    assert cluster.controller != first
    assert put(cluster, b"a", topic="later").base_offset == 0
    assert put(cluster, b"a").base_offset == 0


def test_all_are_killed_and_nothing_is_lost(cluster):
    cluster.create_topic("orders", partitions=2)
    for number in range(10):
        put(cluster, b"%d" % number, partition=number % 2)
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    for node_id in cluster.nodes:
        cluster.start(node_id)
    cluster.wait_until_ready()
    assert put(cluster, b"x").base_offset == 5
    assert values(cluster) == [b"0", b"2", b"4", b"6", b"8", b"x"]


def test_a_paused_follower_delays_appends_only_briefly(cluster):
    cluster.create_topic("orders", config={"min.insync.replicas": 2})
    view = cluster.partition("orders")
    follower = next(each for each in view.replicas if each not in (view.leader, cluster.controller))
    cluster.pause(follower)
    assert put(cluster, b"a").base_offset == 0
    assert follower not in view.isr
    cluster.resume(follower)
    until(cluster, lambda: sorted(view.isr) == [1, 2, 3], "a full ISR")


def test_a_node_that_is_cut_off(cluster):
    cluster.create_topic("orders", config={"min.insync.replicas": 2})
    view = cluster.partition("orders")
    first = view.leader
    others = [each for each in cluster.nodes if each != first]
    for other in others:
        cluster.cut(first, other)
    until(cluster, lambda: view.leader in others, "another leader")
    assert put(cluster, b"a").base_offset == 0
    cluster.heal()
    until(cluster, lambda: sorted(view.isr) == [1, 2, 3], "a full ISR")
    assert values(cluster) == [b"a"]


def test_what_a_cut_network_lost_is_soon_sent_again(cluster):
    cluster.create_topic("orders")
    put(cluster, b"a")
    view = cluster.partition("orders")
    leader = view.leader
    follower = next(node_id for node_id in view.isr if node_id != leader)
    log = cluster.node(follower).broker.replica_manager.partitions.get(("orders", 0)).local_log
    cluster.cut(leader, follower)
    # The leader answers the fetch that waits with it, and the answer is lost.
    put(cluster, b"b", acks=1)
    cluster.heal()
    cluster._wait(lambda: log.log_end_offset == 2, 15, "the follower fetches again")


def test_a_node_stops_in_order(cluster):
    cluster.create_topic("orders")
    put(cluster, b"a")
    view = cluster.partition("orders")
    first = view.leader
    cluster.stop(first)
    assert view.leader not in (None, first)
    assert put(cluster, b"b").base_offset == 1
    cluster.start(first)
    until(cluster, lambda: first in view.isr, "back in sync")


def test_a_partition_moves(tmp_path):
    with Cluster(4, tmp_path) as cluster:
        cluster.create_topic("orders", assignment={0: [1, 2, 3]})
        for number in range(20):
            put(cluster, b"%d" % number)
        cluster.reassign("orders", 0, [4, 2])
        view = cluster.partition("orders")
        assert (view.replicas, sorted(view.isr), view.removing_replicas) == ((4, 2), [2, 4], ())
        cluster.kill(2)
        assert values(cluster) == [b"%d" % number for number in range(20)]
        with pytest.raises(errors.InvalidReplicaAssignment):
            cluster.reassign("orders", 0, [4, 9])
        with pytest.raises(errors.NoReassignmentInProgress):
            cluster.reassign("orders", 0, None)


def test_lives_are_checked(cluster):
    for act in (cluster.kill, cluster.pause, cluster.resume, cluster.stop, cluster.start):
        with pytest.raises(errors.InvalidRequest):
            act(9)
    with pytest.raises(errors.InvalidRequest):
        cluster.start(1)
    cluster.kill(1)
    for act in (cluster.kill, cluster.pause, cluster.node):
        with pytest.raises(errors.InvalidRequest):
            act(1)


# ---- the cluster as a whole -----------------------------------------------------------------------------


def test_a_directory_is_taken_up_again(tmp_path):
    with Cluster(1, tmp_path) as cluster:
        cluster.create_topic("orders")
        put(cluster, b"a")
        cluster_id = cluster.cluster_id
    with Cluster(2, tmp_path) as cluster:
        assert cluster.cluster_id == cluster_id
        assert cluster.nodes == [1, 2]
        assert values(cluster) == [b"a"]
        cluster.create_topic("wide", replication_factor=2)
        assert put(cluster, b"b").base_offset == 1


def test_controllers_of_their_own(tmp_path):
    with Cluster(2, tmp_path, controllers=3) as cluster:
        assert cluster.nodes == [1, 2, 1001, 1002, 1003]
        cluster.create_topic("orders")
        first = cluster.controller
        assert first > 1000
        cluster.kill(first)
        cluster.create_topic("later")
        assert put(cluster, b"a", topic="later").base_offset == 0
        assert cluster.failures == []


def test_a_description_is_json(cluster):
    cluster.create_topic("orders")
    described = json.loads(json.dumps(cluster.describe()))
    assert described["controller"] in (1, 2, 3)
    assert [node["is_alive"] for node in described["nodes"].values()] == [True] * 3
    assert described["topics"]["orders"]["partitions"]["0"]["isr"]
    assert "Cluster(" in repr(cluster)
    assert "orders-0" in repr(cluster.partition("orders"))


def test_a_temporary_directory_goes():
    with Cluster(1) as cluster:
        directory = cluster.directory
        cluster.create_topic("orders", replication_factor=1)
        put(cluster, b"a")
    import os

    assert not os.path.exists(directory)


def test_settings_are_kafkas(tmp_path):
    with pytest.raises(errors.InvalidConfig, match=r"min\.insync\.replicas"):
        Cluster(1, tmp_path, config={"min.insync.replica": 2})
    for settings in (
        {"controller.quorum.fetch.timeout.ms": 0},
        {"broker.heartbeat.interval.ms": 500},
        {"broker.session.timeout.ms": "soon"},
        {"num.partitions": 0},
        {5: 1},
        ["num.partitions"],
    ):
        with pytest.raises(errors.InvalidConfig):
            Cluster(1, tmp_path, config=settings)
    with pytest.raises(errors.InvalidConfig):
        Cluster(0, tmp_path)
    assert list(tmp_path.iterdir()) == []
    settings = {
        "num.partitions": 3,
        "log.segment.bytes": 1 << 20,
        "controller.quorum.fetch.timeout.ms": "600",
        "metadata.log.cleanup.interval.ms": 1_000,
    }
    with Cluster(1, tmp_path, config=settings) as cluster:
        assert cluster.node(1).config.raft.quorum_fetch_timeout_ms == 600
        assert cluster.node(1).config.raft.metadata_log_cleanup_interval_ms == 1_000
        cluster.create_topic("orders", partitions=-1)
        assert len(cluster.describe()["topics"]["orders"]["partitions"]) == 3


def test_arguments_of_a_wrong_type_are_named():
    with pytest.raises(TypeError, match="brokers must be a number, not 'data'; directory= names a directory"):
        Cluster("data")
    with Cluster(1) as cluster, pytest.raises(TypeError, match="a timeout must be a number of seconds"):
        cluster.transaction("id", timeout="x")


def test_foreign_directories_are_refused(tmp_path):
    with Cluster(1, tmp_path / "one") as cluster:
        with pytest.raises(errors.LogDirLocked):
            Cluster(1, tmp_path / "one")
        cluster.create_topic("orders")
        put(cluster, b"a")
    with Cluster(1, tmp_path / "two"):
        pass
    with pytest.raises(errors.InconsistentClusterId):
        Cluster(1, tmp_path / "one", cluster_id="another")
    (tmp_path / "two" / "node-1").rename(tmp_path / "two" / "aside")
    (tmp_path / "one" / "node-1").rename(tmp_path / "two" / "node-1")
    with pytest.raises(errors.InconsistentClusterId):
        Cluster(1, tmp_path / "two")
    with pytest.raises(errors.InvalidConfig, match="has 0 dedicated controllers, not 3"):
        Cluster(1, tmp_path / "one", controllers=3)


METADATA = "node-1/__cluster_metadata-0"
STATE = {"leaderId": -1, "leaderEpoch": 1, "votedId": -1, "appliedOffset": 0, "currentVoters": []}


def files_of(directory):
    found = (each for each in directory.rglob("*") if each.is_file())
    return {str(each.relative_to(directory)): each.read_bytes() for each in found}


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES = [
    (errors.UnsupportedVersion, f"{METADATA}/quorum-state", json.dumps({**STATE, "data_version": 7})),
    (errors.InvalidFile, f"{METADATA}/quorum-state", ""),
    (errors.InvalidFile, f"{METADATA}/quorum-state", "{"),
    (
        errors.InconsistentClusterId,
        f"{METADATA}/quorum-state",
        json.dumps({**STATE, "clusterId": "another", "data_version": 0}),
    ),
    (errors.InvalidSnapshot, f"{METADATA}/00000000000000000000-0000000000.checkpoint", None),
    (errors.InvalidFile, f"{METADATA}/leader-epoch-checkpoint", None),
    (errors.InvalidFile, "node-1/recovery-point-offset-checkpoint", None),
    (errors.InvalidFile, "node-1/replication-offset-checkpoint", None),
    (errors.InvalidFile, "node-1/log-start-offset-checkpoint", None),
    (errors.InvalidFile, "node-1/meta.properties", None),
    (errors.InvalidFile, "kreplica.cluster.json", None),
]


def test_a_start_on_unreadable_files_fails_and_changes_nothing(tmp_path):
    with Cluster(1, tmp_path / "good") as cluster:
        cluster.create_topic("orders")
        put(cluster, b"a")
    for number, (error, name, content) in enumerate(DAMAGES):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", directory)
        if content is None:
            cut_short(directory / name)
        else:
            (directory / name).write_text(content)
        before = files_of(directory)
        with pytest.raises(error, match=name.rpartition("/")[0] or name):
            Cluster(1, directory)
        assert files_of(directory) == before, name


def test_a_metadata_log_that_is_gone_is_not_begun_anew(tmp_path):
    with Cluster(1, tmp_path):
        pass
    shutil.rmtree(tmp_path / METADATA)
    before = files_of(tmp_path)
    with pytest.raises(errors.InvalidFile, match="which names the voters, does not exist"):
        Cluster(1, tmp_path)
    assert files_of(tmp_path) == before


def test_a_directory_with_data_is_not_formatted_anew(tmp_path):
    with Cluster(2, tmp_path) as cluster:
        cluster.create_topic("orders")
    for node in ("node-1", "node-2"):
        lost = tmp_path / node / "meta.properties"
        kept = lost.read_bytes()
        lost.unlink()
        before = files_of(tmp_path)
        with pytest.raises(errors.InvalidFile, match=f"{node} contains .* but no meta.properties"):
            Cluster(2, tmp_path)
        assert files_of(tmp_path) == before
        lost.write_bytes(kept)
    with Cluster(2, tmp_path) as cluster:
        assert cluster.topics() == ["orders"]


# ---- mistakes, and the end --------------------------------------------------------------------------------


MISTAKES = [
    (TypeError, lambda cluster: cluster.create_topic(None)),
    (TypeError, lambda cluster: cluster.create_topic("new", "2")),
    (TypeError, lambda cluster: cluster.create_topic("new", assignment={0: ["1"]})),
    (errors.InvalidReplicationFactor, lambda cluster: cluster.create_topic("new", 1, 0)),
    (TypeError, lambda cluster: cluster.delete_topic(5)),
    (TypeError, lambda cluster: cluster.create_partitions("orders", 1.5)),
    (ValueError, lambda cluster: cluster.create_topic("new", timeout=float("nan"))),
    (TypeError, lambda cluster: cluster.append("orders", [("key", b"v")])),
    (TypeError, lambda cluster: cluster.append("orders", [(5, b"v")])),
    (errors.InvalidRequiredAcks, lambda cluster: cluster.append("orders", [b"v"], partition=0, acks=True)),
    (ValueError, lambda cluster: cluster.read("orders", 0, isolation="none")),
    (errors.OffsetOutOfRange, lambda cluster: cluster.read("orders", 0, -1)),
    (errors.OffsetOutOfRange, lambda cluster: cluster.read("orders", 0, 1 << 70, follow=True)),
    (TypeError, lambda cluster: cluster.reassign("orders", 0, ["1"])),
    (ValueError, lambda cluster: cluster.elect("orders", 0, "any")),
]


def test_a_wrong_call_fails_at_once_and_reaches_no_node(cluster):
    cluster.create_topic("orders")
    epoch = cluster.describe()["nodes"][1]["quorum_epoch"]
    for error, ask in MISTAKES:
        with pytest.raises(error):
            ask(cluster)
    assert cluster.topics() == ["orders"]
    assert cluster.describe()["nodes"][1]["quorum_epoch"] == epoch


def test_any_time_is_a_timeout(cluster):
    cluster.create_topic("orders", timeout=float("inf"))
    assert put(cluster, b"a", timeout=float("inf")).base_offset == 0
    assert put(cluster, b"a", timeout=1e30).base_offset == 1


def test_a_topic_is_made_while_a_broker_is_cut_off(cluster):
    cluster.create_topic("before")
    cut = next(node_id for node_id in cluster.nodes if node_id != cluster.controller)
    for other in set(cluster.nodes) - {cut}:
        cluster.cut(cut, other)
    until(cluster, lambda: cluster.describe()["nodes"][cut]["is_fenced"])
    cluster.create_topic("orders", replication_factor=2, timeout=5)
    cluster.create_partitions("orders", 2, timeout=5)
    cluster.delete_topic("before", timeout=5)


def test_waiting_for_a_deleted_topic_fails(cluster):
    cluster.create_topic("orders", replication_factor=1, assignment={0: [1]})
    view = cluster.partition("orders")
    cluster.delete_topic("orders")
    with pytest.raises(errors.UnknownTopicOrPartition):
        until(cluster, lambda: view.leader == 2)
    with pytest.raises(errors.UnknownTopicOrPartition):
        assert view.topic_id


def test_one_may_append_again_after_all_nodes_were_gone(cluster):
    cluster.create_topic("orders")
    for node_id in cluster.nodes:
        cluster.pause(node_id)
    future = cluster.append("orders", [b"a"], partition=0)
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    for node_id in cluster.nodes:
        cluster.start(node_id)
    assert future.result(PATIENCE).base_offset == 0
    assert put(cluster, b"b").base_offset == 1


def test_waiting_for_a_killed_node_fails(cluster):
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    cluster.start(1)  # alone it is no quorum, so it is not waited for
    ready = cluster.node(1).ready
    cluster.kill(1)
    assert isinstance(ready.exception(PATIENCE), errors.BrokerNotAvailable)


def test_what_a_node_meets_as_it_is_killed_is_no_failure(cluster):
    """Its tasks go on for a moment, without their storage."""
    node, local = cluster.node(2), cluster._nodes.local(2)
    began, storage = Event(), local._storage

    def write():
        began.set()
        while storage._reason is None:
            pass
        try:
            storage.write_file_atomically("/nowhere/file", b"")
        except errors.KafkaStorageError as error:
            node._on_fatal(error)
            raise

    local.endpoint.loop("writer").post(write)
    assert began.wait(PATIENCE)
    cluster.kill(2)
    assert cluster.failures == []


def test_a_kill_writes_nothing_into_the_image(cluster, tmp_path):
    image = tmp_path / "data" / "node-2" / "kreplica.image"
    cluster.create_topic("orders")
    cluster.pause(2)
    before = (image / "data.mdb").read_bytes()
    cluster.kill(2)
    assert (image / "data.mdb").read_bytes() == before
    # An orderly close leaves this checksum, which proves to the next start that the file is whole.
    assert not (image / "data.crc").exists()
    cluster.start(2)


def test_a_signal_handlers_own_timeout_ends_an_append_that_waits_for_earlier_ones():
    def expire(*_):
        raise TimeoutError("the program's own")

    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        cluster.pause(1)
        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, 0.1)

        def append_many():
            for _ in range(30):
                cluster.append("orders", [bytes(600_000)], partition=0)

        try:
            with pytest.raises(TimeoutError, match="the program's own"):
                append_many()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def test_a_forked_child_leaves_the_cluster_alone():
    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        child = os.fork()
        if child == 0:
            try:
                for ask in (lambda: cluster.append("orders", [b"a"], partition=0), lambda: cluster.kill(1)):
                    with pytest.raises(errors.UseAfterFork):
                        ask()
                cluster.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert put(cluster, b"a").base_offset == 0
        cluster.kill(1)
        cluster.start(1)
        assert values(cluster) == [b"a"]


def test_a_forked_child_waits_for_no_answer_that_only_the_parent_gets():
    with Cluster(1) as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("spread", partitions=2)
        cluster.pause(1)
        futures = [
            cluster.append("orders", [b"a"], partition=0),
            cluster.append("spread", [(b"%d" % n, b"a") for n in range(9)]),
        ]
        child = os.fork()
        if child == 0:
            try:
                for future in futures:
                    with pytest.raises(errors.UseAfterFork):
                        future.result(PATIENCE)
                    assert isinstance(future.exception(PATIENCE), errors.UseAfterFork)
                    assert wait([future], PATIENCE).done == {future}
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        cluster.resume(1)
        assert [future.result(PATIENCE).record_count for future in futures] == [1, 9]


def test_a_closed_cluster_ends_all_waits(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        cluster.create_topic("orders")
        put(cluster, b"a")
        reader = cluster.read("orders", 0, follow=True)
        assert next(reader).value == b"a"
        with ThreadPoolExecutor(1) as pool:
            more = pool.submit(next, reader)
            cluster.pause(1)
            future = cluster.append("orders", [b"b"], partition=0)
            cluster.close()
            assert isinstance(future.exception(PATIENCE), errors.ClusterClosed)
            assert isinstance(more.exception(PATIENCE), errors.ClusterClosed)
        for ask in (
            lambda: cluster.append("orders", [b"c"], partition=0),
            lambda: cluster.append("orders", [b"c"]),
            lambda: cluster.read("orders", 0),
            lambda: cluster.create_topic("more"),
            lambda: cluster.start(1),
        ):
            with pytest.raises(errors.ClusterClosed):
                ask()
        cluster.close()


def test_clusters_that_were_closed_leave_nothing_behind():
    def one():
        with Cluster(1) as cluster:
            cluster.create_topic("orders")
            put(cluster, b"a")
            assert values(cluster) == [b"a"]

    def used():
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd")), sys.getallocatedblocks()

    for _ in range(20):  # caches and the allocator's pools fill
        one()
    threads, descriptors, blocks = used()
    memory = resident_bytes()
    for _ in range(40):
        one()
    assert used()[:2] == (threads, descriptors)
    # A bounded cache keeps the ids that a cluster drew.
    assert used()[2] - blocks < 40 * 150
    assert resident_bytes() - memory < 16 << 20
