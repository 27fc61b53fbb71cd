"""What random runs from seeds have in common, whatever they drive.

KREPLICA_SEEDS runs so many, KREPLICA_FIRST_SEED says from where on.
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
    """Run `make(seed)` for `least_events` each, `seeds` of them unless KREPLICA_SEEDS says another number.

    So many `events(driver)` must have happened, and of `seeds` or more each of the `expected` counts is above
    0. A failure tells its seed, and how the test in the file `replay` meets it again.
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
    """What the program prints for the seed in a process with other hashes."""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()
