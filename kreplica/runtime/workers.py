"""Threads for independent work, as the Workers port wants them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


class ThreadWorkers:
    """Runs tasks in `threads` threads (default: one a core) that live as long as one `run`."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(min(self._threads, max(1, len(tasks))), "kreplica-worker") as pool:
            futures = [pool.submit(task) for task in tasks]
        for future in futures:
            future.result()
