"""One-time setup of Spark's Python workers. Thread rule: the worker's only thread."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_settled = False


def settle() -> None:
    """Exclude the worker's imports from garbage collection; does nothing outside a task.

    Spark makes a worker collect garbage after each task. Scanning what pyspark and pyarrow have loaded takes
    30 ms and more, when the task itself takes 10 ms. The first task's live objects are frozen, no others.
    """
    global _is_settled
    if not _is_settled and TaskContext.get() is not None:
        _is_settled = True
        gc.collect()
        gc.freeze()
