"""The common part of tests with random runs from seeds.

KREPLICA_SEEDS sets the number of seeds, KREPLICA_FIRST_SEED the first one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SAID_EVERY = 100


def hold_seeds(
    make: Callable[[int], Any],
    events: Callable[[Any], int],
    *,
    least_events: int,
    seeds: int,
    expected: Iterable[str],
    capsys: pytest.CaptureFixture[str],
    replay: str,
) -> None:
    """Run `make(seed)` for at least `least_events` events each, for `seeds` seeds unless KREPLICA_SEEDS is
    set.

    Checks that each run had that number of `events(driver)` and, with at least `seeds` seeds, that each of
    the `expected` counts is above 0. A failure names its seed, and the command that replays it with `replay`.
    """
    count = int(os.environ.get("KREPLICA_SEEDS", seeds))
    first = int(os.environ.get("KREPLICA_FIRST_SEED", "1"))
    counts: Counter[str] = Counter()
    for number, seed in enumerate(range(first, first + count), 1):
        driver = make(seed)
        try:
            driver.run(least_events)
        except Exception as error:
            error.add_note(f"to replay: KREPLICA_SEEDS=1 KREPLICA_FIRST_SEED={seed} pytest {replay}")
            raise
        assert events(driver) >= least_events
        counts += driver.counts
        if number % SAID_EVERY == 0:
            with capsys.disabled():
                print(f"\n{number} seeds, the last was {seed}: {dict(counts)}")
    if count >= seeds:
        assert [name for name in expected if not counts[name]] == []


def hash_elsewhere(program: str, seed: int, hash_seed: str) -> str:
    """Return what the program prints for the seed in a process with another hash seed."""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()
