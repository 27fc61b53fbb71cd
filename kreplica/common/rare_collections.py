"""The collector of Python's garbage while many objects are made that stay: seldom.

A simulated run makes objects that live as long as its cluster, and a node that starts those of all
partitions; at Python's own thresholds a sixth to a quarter of the time went to looking for cycles among them.
Thread rule: any thread may; `_LOCK` guards who is within.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kreplica.common.locks import Lock

# How many more objects than before the youngest are looked at: a run of 2,000 events leaves a third of it.
OBJECTS = 100_000

_LOCK = Lock()
# Guarded by _LOCK: the thresholds that each who is within would have without the others.
_FORMER: list[tuple[int, int, int]] = []


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector look once for so many new objects; as before once nobody is within any more."""
    with _LOCK:
        _FORMER.append(_FORMER[-1] if _FORMER else gc.get_threshold())
        gc.set_threshold(OBJECTS, *_FORMER[-1][1:])
    try:
        yield
    finally:
        with _LOCK:
            former = _FORMER.pop()
            if not _FORMER:
                gc.set_threshold(*former)
