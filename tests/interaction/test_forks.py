"""A forked child of a program that has a log open gets an answer at once, and leaves the log alone."""

import faulthandler
import gc
import os
import threading

import pytest

import kreplica
from kreplica.common.errors import UseAfterFork

PATIENCE_SECONDS = 20
USES = {
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


def _in_child(log):
    """Try everything; the name of the first use that did not raise UseAfterFork."""
    for name, use in USES.items():
        try:
            use(log)
        except UseAfterFork:
            continue
        except BaseException as error:
            return f"{name}: {error!r}"
        return name
    log.close()
    del log
    gc.collect()
    return ""


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_a_child_is_refused_while_threads_of_the_parent_append(tmp_path, durability):
    log = kreplica.Log.open(
        tmp_path / "t-0", durability=durability, segment_bytes=4_000, compression_type="lz4"
    )
    log.append([b"first"])
    stop = threading.Event()
    counts = [0] * 4

    def append(number):
        while not stop.is_set():
            log.append([b"x" * 200])
            counts[number] += 1

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
                os.write(write, _in_child(log).encode())
                os._exit(0)
            os.close(write)
            with open(read, "rb") as answer:
                assert answer.read() == b""
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    log.close()
    with kreplica.Log.open(tmp_path / "t-0") as log:
        assert log.recovery.clean
        assert len(list(log.read())) == 1 + sum(counts)
