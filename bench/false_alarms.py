"""How often nodes that live are taken for dead, under full load: `python -m bench.false_alarms [seconds]`.

Three nodes, each controller and broker, with the timeouts of one process, beside busy threads (they take the
GIL in turns of 5 ms) and busy processes (they take the cores). Nothing fails meanwhile: every fence and every
new epoch is a false alarm.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import threading
import time
from pathlib import Path

from bench.local_controllers import LocalControllers

DIRECTORY = Path(__file__).parents[1] / "build" / "bench-false-alarms"


def burn(stopped: threading.Event | None = None) -> None:
    """Keep a core, or the GIL, busy."""
    while stopped is None or not stopped.is_set():
        sum(number * number for number in range(1_000))


def run(seconds: float, threads: int, processes: int) -> str:
    """What came of it, as one line."""
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


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for threads, processes in ((0, 0), (2, 0), (0, 4), (2, 4)):
        print(run(seconds, threads, processes), flush=True)
    shutil.rmtree(DIRECTORY)


if __name__ == "__main__":
    main()
