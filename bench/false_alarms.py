"""Count live nodes that are considered dead under full load: `python -m bench.false_alarms [seconds]`.

First, three nodes in one process, each controller and broker, with its timeouts, beside busy threads (which
compete for the GIL in turns of 5 ms) and busy processes (which compete for the cores). Then three node
processes with their timeouts, while a client writes to them as fast as it can. Nothing fails meanwhile: every
fence, every new quorum epoch and every new partition leader is a false alarm.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import threading
import time
from pathlib import Path

from bench.local_controllers import LocalControllers
from bench.peers.librdkafka import create_topic, produce_rate
from kreplica._core.records import batches
from kreplica.metadata.records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from kreplica.metadata.serde import decode
from tests.support.node_processes import NodeProcesses

DIRECTORY = Path(__file__).parents[1] / "build" / "bench-false-alarms"
RECORDS = 200_000


def burn(stopped: threading.Event | None = None) -> None:
    """Keep a core, or the GIL, busy."""
    while stopped is None or not stopped.is_set():
        sum(number * number for number in range(1_000))


def run(seconds: float, threads: int, processes: int) -> str:
    """Measure three nodes in one process; return a line with the result."""
    path = DIRECTORY / f"{threads}-{processes}"
    stopped = threading.Event()
    busy = [threading.Thread(target=burn, args=(stopped,), daemon=True) for _ in range(threads)]
    hogs = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(processes)]
    with LocalControllers(path, controllers=3) as cluster:
        epoch = cluster.nodes[1].client.leader_and_epoch.epoch
        for each in (*busy, *hogs):
            each.start()
        time.sleep(seconds)
        epochs = cluster.nodes[1].client.leader_and_epoch.epoch - epoch
        fenced = sum(node.controller.fenced_count for node in cluster.nodes.values() if node.controller)
        stopped.set()
        for hog in hogs:
            hog.kill()
            hog.join()
    for thread in busy:
        thread.join()
    return (
        f"{threads} busy threads, {processes} busy processes, {seconds:.0f} s: {fenced} brokers fenced, "
        f"{epochs} new epochs; {(fenced + epochs) * 3600 / seconds:.0f} false alarms an hour"
    )


def run_processes(seconds: float, processes: int) -> str:
    """As `run`, with node processes; the result comes from their metadata log."""
    hogs = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(processes)]
    with NodeProcesses(DIRECTORY / f"nodes-{processes}") as nodes:
        for topic in range(len(nodes.ids)):
            create_topic(nodes.bootstrap, f"load-{topic}")
        began_ms = time.time_ns() // 1_000_000
        for hog in hogs:
            hog.start()
        written = 0
        while time.time_ns() // 1_000_000 - began_ms < seconds * 1000:
            for topic in range(len(nodes.ids)):
                produce_rate(nodes.bootstrap, f"load-{topic}", records=RECORDS, size=100)
                written += RECORDS
        took_s = time.time() - began_ms / 1000
        for hog in hogs:
            hog.kill()
            hog.join()
        nodes.kill(*nodes.live)
        fenced, leaders, epochs = false_alarms(nodes.node_directory(1), began_ms)
    return (
        f"nodes as processes, {written / took_s:,.0f} records/s, {processes} busy processes, {took_s:.0f} s:"
        f" {fenced} brokers fenced, {leaders} new leaders, {epochs} new epochs;"
        f" {(fenced + epochs) * 3600 / took_s:.0f} false alarms an hour"
    )


def false_alarms(directory: Path, began_ms: int) -> tuple[int, int, int]:
    """Count brokers fenced, partition leaders changed and quorum epochs begun since `began_ms`."""
    fenced = leaders = 0
    epochs = set()
    for path in sorted((directory / "__cluster_metadata-0").glob("*.log")):
        for batch in batches(written_part(path.read_bytes())):
            if batch.max_timestamp < began_ms:
                epochs = {batch.leader_epoch}
                continue
            epochs.add(batch.leader_epoch)
            if batch.is_control:
                continue
            for record in batch:
                change = decode(record.value).message
                fenced += isinstance(change, BrokerRegistrationChangeRecord) and change.fenced == 1
                leaders += isinstance(change, PartitionChangeRecord) and change.leader != NO_LEADER_CHANGE
    return fenced, leaders, len(epochs) - 1


def written_part(data: bytes) -> bytes:
    """Return a segment without the preallocated zeros after its batches."""
    end = 0
    while size := int.from_bytes(data[end + 8 : end + 12], "big"):
        end += 12 + size
    return data[:end]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for threads, processes in ((0, 0), (2, 0), (0, 4), (2, 4)):
        print(run(seconds, threads, processes), flush=True)
    for processes in (0, 4):
        print(run_processes(seconds, processes), flush=True)
    shutil.rmtree(DIRECTORY)


if __name__ == "__main__":
    main()
