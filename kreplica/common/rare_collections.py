"""Runs Python's garbage collector less often while many long-lived objects are created.

A simulated run creates objects that live as long as its cluster, and so does a node that starts its
partitions. With Python's thresholds a sixth to a quarter of the time went into looking for cycles among them.
Thread rule: any thread may enter; `_LOCK` guards the nesting.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kreplica.common.locks import process_lock

# New objects between two collections of the youngest generation; a run of 2,000 events creates three times
# that.
OBJECTS = 100_000

# Guarded by _LOCK: for each active context, the thresholds without it.
_FORMER: list[tuple[int, int, int]] = []


def _end_all() -> None:
    """In a forked child: restore the thresholds, because most contexts belong to threads of the parent."""
    if _FORMER:
        gc.set_threshold(*_FORMER[0])
        _FORMER.clear()


_LOCK = process_lock(_end_all)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect only once per OBJECTS new objects; restore the thresholds when the last context exits."""
    with _LOCK:
        _FORMER.append(_FORMER[-1] if _FORMER else gc.get_threshold())
        gc.set_threshold(OBJECTS, *_FORMER[-1][1:])
    try:
        yield
    finally:
        with _LOCK:
            # A fork within the context has ended it in the child.
            former = _FORMER.pop() if _FORMER else None
            if former and not _FORMER:
                gc.set_threshold(*former)
