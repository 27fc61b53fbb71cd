"""The garbage collector of Python during a simulated run: seldom.

A run makes many objects that live as long as its cluster, and few cycles; at Python's own thresholds a sixth
of its time went to looking for those. No state but the interpreter's thresholds; for one run at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# How many more objects than before the youngest are looked at: a run of 2,000 events leaves a third of it.
OBJECTS = 100_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector look once for so many new objects, and as it did before afterwards."""
    former = gc.get_threshold()
    gc.set_threshold(OBJECTS, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)
