"""Runs independent tasks in threads, as the Workers port."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

THREADS_A_CORE = 4


class ThreadWorkers:
    """Runs tasks in `threads` threads, which live for one `run`.

    The default is several per core, because most of these tasks wait for the disk, and flushes that wait at
    the same time cost the disk little more than one.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or THREADS_A_CORE * (os.cpu_count() or 1)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks; see the port. A single task runs in the caller's thread."""
        if len(tasks) == 1:
            tasks[0]()
            return
        with ThreadPoolExecutor(min(self._threads, max(1, len(tasks))), "kreplica-worker") as pool:
            futures = [pool.submit(task) for task in tasks]
        for future in futures:
            future.result()
