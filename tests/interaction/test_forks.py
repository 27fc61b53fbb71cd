"""A forked child is refused the log or the cluster of its parent at once, leaves it alone, and opens its own.

The parent bounds the wait for a child. A child must not call faulthandler.dump_traceback_later, which waits
forever for the timer thread that the parent may have started.
"""

import contextlib
import gc
import importlib
import itertools
import multiprocessing
import os
import pkgutil
import select
import signal
import sys
import threading
import traceback

import pytest

import kreplica
from kreplica._core.region import descriptor_budget
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


def _fork(in_child):
    """Fork a child that runs `in_child`; return what that returned.

    A child that takes longer than PATIENCE_SECONDS is aborted, and pytest's faulthandler prints where it was.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, in_child().encode() or b"\n")
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as answer:
        # Not select(), which takes no descriptor above 1023.
        answers = select.poll()
        answers.register(answer, select.POLLIN)
        if not answers.poll(PATIENCE_SECONDS * 1000):
            os.kill(child, signal.SIGABRT)
        said = answer.read().decode().strip()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
    return said


def _beside(append, check, times):
    """Call `check` repeatedly while threads append; the number of appends."""
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
        for _ in range(times):
            check()
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        gc.unfreeze()
    return sum(counts)


def _fork_beside(append, in_child):
    """Fork children while threads append; the number of appends. `in_child` returns "" where all is well."""

    def check():
        assert _fork(in_child) == ""

    return _beside(append, check, 12)


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


def _use_own_log(path):
    """Open a log in a child, append, read and close it."""
    with kreplica.Log.open(path, segment_bytes=4_000, durability="fsync") as log:
        for _ in range(30):
            log.append([b"x" * 200])
        assert len(list(log.read())) == 30


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_child_drops_the_log_of_its_parent_and_opens_one_of_its_own(tmp_path, how):
    # Each use of a file opens it again, so a fork often comes in the middle of that.
    before = descriptor_budget(0)
    held = {"log": kreplica.Log.open(tmp_path / "t-0", segment_bytes=4_000)}
    held["log"].append([b"first"])
    children = itertools.count()

    def append_and_read():
        held["log"].append([b"x" * 200])
        for _ in zip(held["log"].read(), range(20), strict=False):
            pass

    def go_on_alone(child):
        with pytest.raises(UseAfterFork):
            held["log"].append([b"child"])
        held.clear()
        gc.collect()
        _use_own_log(tmp_path / f"own-{child}")
        return ""

    def in_process():
        process = multiprocessing.get_context("fork").Process(target=go_on_alone, args=(next(children),))
        process.start()
        process.join(PATIENCE_SECONDS)
        if process.is_alive():
            os.kill(process.pid, signal.SIGABRT)
            process.join()
        return process.exitcode

    def check():
        if how == "multiprocessing":
            assert in_process() == 0
        else:
            number = next(children)
            assert _fork(lambda: go_on_alone(number)) == ""

    try:
        _beside(append_and_read, check, 5)
        held["log"].close()
    finally:
        descriptor_budget(before)


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


# ---- locks of the whole process ----------------------------------------------------------------------


def _locks_of_modules():
    """Every lock in a field of a kreplica module, or in a field of an object there, by its name."""
    for found in pkgutil.walk_packages(kreplica.__path__, "kreplica."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    locks = {}
    for module in [name for name in sys.modules if name.startswith("kreplica.")]:
        for name, value in vars(sys.modules[module]).items():
            is_own = type(value).__module__.startswith("kreplica.") and hasattr(value, "__dict__")
            for of, field in {"": value, **(vars(value) if is_own else {})}.items():
                if isinstance(field, (type(threading.Lock()), type(threading.RLock()))):
                    locks[id(field)] = (f"{module}.{name}.{of}".rstrip("."), field)
    return dict(locks.values())


def test_the_locks_of_the_whole_process_are_free_in_a_child_although_a_thread_held_them():
    locks = _locks_of_modules()
    assert len(locks) >= 4
    are_held, may_end = threading.Event(), threading.Event()

    def hold_all():
        with contextlib.ExitStack() as held:
            for lock in locks.values():
                held.enter_context(lock)
            are_held.set()
            may_end.wait()

    def taken():
        return " ".join(name for name, lock in locks.items() if not lock.acquire(blocking=False))

    thread = threading.Thread(target=hold_all)
    thread.start()
    try:
        assert are_held.wait(PATIENCE_SECONDS)
        assert _fork(taken) == ""
    finally:
        may_end.set()
        thread.join()
