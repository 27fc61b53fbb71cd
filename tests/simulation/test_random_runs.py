"""Random runs of a replicated partition: every invariant after every event, and all well after the faults.

KREPLICA_SEEDS runs so many; one that fails tells its seed, and the same seed fails again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from kreplica.sim.driver import RandomDriver

SEEDS = int(os.environ.get("KREPLICA_SEEDS", "25"))
EVENTS = 2_000
# What must have happened in all runs together, or they show nothing.
EXPECTED = (
    "acked",
    "read",
    "kills",
    "power cuts",
    "pauses",
    "partitions",
    "date jumps",
    "slow disks",
    "elections",
    "ISR changes",
    "unclean elections",
    "truncations",
)


def test_no_seed_violates_an_invariant():
    counts: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        driver = RandomDriver(seed)
        driver.run(EVENTS)
        counts += driver.counts
    print(dict(counts))
    assert [name for name in EXPECTED if not counts[name]] == []


PROGRAM = """
from kreplica.sim.driver import RandomDriver
driver = RandomDriver(7)
driver.run(500)
print(driver.cluster.scheduler.event_hash)
"""


def test_the_same_seed_gives_the_same_events_in_another_process():
    driver = RandomDriver(7)
    driver.run(500)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == driver.cluster.scheduler.event_hash
