"""What a Python worker of Spark's does once. Thread rule: the worker's one thread."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_settled = False


def settle() -> None:
    """Let collections pass over what the worker has imported.

    Spark has a worker collect behind each task, which takes it 30 ms and more for what pyspark and pyarrow
    bring, where the task itself takes ten. What is alive in the first task, and only that, is never looked at
    again. Elsewhere than in a task nothing is done.
    """
    global _is_settled
    if not _is_settled and TaskContext.get() is not None:
        _is_settled = True
        gc.collect()
        gc.freeze()
