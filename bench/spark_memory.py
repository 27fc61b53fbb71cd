"""Measure the memory of Spark's processes, the JVM and the Python workers, while they read a log directory.

Only their own pages count; mapped pages of logs belong to the page cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kreplica.spark

import kreplica
from bench.peers.spark import processes, session

GIB = 1 << 30
PARTITIONS = 2
VALUES = [os.urandom(1000) for _ in range(1000)]
TOPIC = "large"
LOOK_EVERY_S = 0.1


def grow(directory: Path, gib: int) -> int:
    """Append until the topic has this many GiB; return its number of records."""
    records = 0
    for partition in range(PARTITIONS):
        with kreplica.Log.open(directory / f"{TOPIC}-{partition}") as log:
            while log.size < gib * GIB // PARTITIONS:
                log.append(VALUES)
            records += log.log_end_offset
    return records


@contextmanager
def spark_with_both_readers() -> Iterator[Any]:
    """Yield a session on two cores."""
    kreplica.spark.use_java()
    with session(PARTITIONS, []) as spark:
        yield spark


def peaks_mib(spark: Any, directory: Path, reader: str, records: int) -> tuple[float, float]:
    """Return the peak memory of the JVM and of the Python workers while all records were read.

    Raises AssertionError if the number of records is wrong.
    """
    peaks = {"java": 0.0, "python": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY_S):
            for name, held in _held_mib().items():
                peaks[name] = max(peaks[name], held)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        read = spark.read.format("kreplica").option("subscribe", TOPIC).option("reader", reader)
        [row] = read.load(str(directory)).selectExpr("count(*)", "sum(length(value))").collect()
    finally:
        done.set()
        watcher.join()
    assert tuple(row) == (records, records * len(VALUES[0])), f"{row} of {records} records"
    return peaks["java"], peaks["python"]


def _held_mib() -> dict[str, float]:
    held = {"java": 0.0, "python": 0.0}
    for pid, _ in processes():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue  # the process has ended
        kind = "java" if name == "java" else "python" if name.startswith("python") else ""
        anonymous = next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)
        if kind:
            held[kind] += anonymous / 1024
    return held
