"""A forked child is refused the log or the cluster of its parent at once, and leaves it alone."""

import faulthandler
import gc
import os
import threading

import pytest

import kreplica
from kreplica.common.errors import UseAfterFork

PATIENCE_SECONDS = 20
LOG_USES = {
    "append": lambda log: log.append([b"child"]),
    "append_batch": lambda log: log.append_batch(b""),
    "flush": lambda log: log.flush(),
    "roll": lambda log: log.roll(),
    "truncate_to": lambda log: log.truncate_to(0),
    "delete_records": lambda log: log.delete_records(0),
    "delete_old_segments": lambda log: log.delete_old_segments(),
    "compact": lambda log: log.compact(),
    "read": lambda log: next(log.read()),
    "batches": lambda log: next(log.batches()),
    "column_reader": lambda log: log.column_reader(),
    "offset_for_timestamp": lambda log: log.offset_for_timestamp(0),
    "log_start_offset": lambda log: log.log_start_offset,
    "log_end_offset": lambda log: log.log_end_offset,
    "high_watermark": lambda log: log.high_watermark,
    "last_stable_offset": lambda log: log.last_stable_offset,
    "flush_offset": lambda log: log.flush_offset,
    "damage": lambda log: log.damage,
    "damages": lambda log: log.damages,
    "recovery": lambda log: log.recovery,
    "config": lambda log: log.config,
    "size": lambda log: log.size,
}


def _in_child(thing, uses):
    """Try every use; the first that did not raise UseAfterFork."""
    for name, use in uses.items():
        try:
            use(thing)
        except UseAfterFork:
            continue
        except BaseException as error:
            return f"{name}: {error!r}"
        return name
    thing.close()
    del thing
    gc.collect()
    return ""


def _fork_beside(append, in_child):
    """Fork children while threads append, and let each say what `in_child` finds; the number of appends."""
    stop = threading.Event()
    counts = [0] * 4

    def go_on(number):
        while not stop.is_set():
            append()
            counts[number] += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(4)]
    # What tests before this one have left behind is not the children's to collect.
    gc.collect()
    gc.freeze()
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
                os.write(write, in_child().encode())
                os._exit(0)
            os.close(write)
            with open(read, "rb") as answer:
                assert answer.read() == b""
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        gc.unfreeze()
    return sum(counts)


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_a_child_is_refused_a_log_while_threads_of_the_parent_append(tmp_path, durability):
    path = tmp_path / "t-0"
    log = kreplica.Log.open(path, durability=durability, segment_bytes=4_000, compression_type="lz4")
    log.append([b"first"])
    count = _fork_beside(lambda: log.append([b"x" * 200]), lambda: _in_child(log, LOG_USES))
    log.close()
    with kreplica.Log.open(path) as log:
        assert log.recovery.clean
        assert len(list(log.read())) == 1 + count


CLUSTER_USES = {
    "append": lambda cluster: cluster.append("orders", [b"child"], partition=0),
    "read": lambda cluster: next(cluster.read("orders", 0)),
    "consume": lambda cluster: next(cluster.consume("orders", "group")),
    "cluster_id": lambda cluster: cluster.cluster_id,
    "nodes": lambda cluster: cluster.nodes,
    "controller": lambda cluster: cluster.controller,
    "bootstrap_servers": lambda cluster: cluster.bootstrap_servers,
    "node": lambda cluster: cluster.node(1),
    "start": lambda cluster: cluster.start(1),
    "stop": lambda cluster: cluster.stop(1),
    "kill": lambda cluster: cluster.kill(1),
    "pause": lambda cluster: cluster.pause(1),
    "resume": lambda cluster: cluster.resume(1),
    "cut": lambda cluster: cluster.cut(1, 2),
    "heal": lambda cluster: cluster.heal(),
    "wait_until_ready": lambda cluster: cluster.wait_until_ready(),
    "describe": lambda cluster: cluster.describe(),
    "create_topic": lambda cluster: cluster.create_topic("more"),
    "delete_topic": lambda cluster: cluster.delete_topic("orders"),
    "create_partitions": lambda cluster: cluster.create_partitions("orders", 2),
    "alter_config": lambda cluster: cluster.alter_config("orders", {"retention.ms": 1}),
    "topics": lambda cluster: cluster.topics(),
    "partition": lambda cluster: cluster.partition("orders"),
    "reassign": lambda cluster: cluster.reassign("orders", 0, [1, 2]),
    "elect": lambda cluster: cluster.elect("orders", 0),
}


def test_a_child_is_refused_a_cluster_while_threads_of_the_parent_append():
    with kreplica.Cluster(3) as cluster:
        cluster.create_topic("orders")
        _fork_beside(
            lambda: cluster.append("orders", [b"x"], partition=0).result(),
            lambda: _in_child(cluster, CLUSTER_USES),
        )
        cluster.append("orders", [b"last"], partition=0).result()
