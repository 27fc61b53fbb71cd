"""Noise in a log's files and in a producer's batches: typed errors, and no record that was never written.

A few seconds here, as long as you like in `make fuzz` (FUZZ_SECONDS).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("KREPLICA_FUZZ_SECONDS", "0"))


def test_fuzz() -> None:
    # The same inputs at each run, unless a length of time is asked for.
    seed = random.randrange(1 << 30) if SECONDS else 1
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.fuzz", path, str(SECONDS or 3), str(seed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS + 120,
            check=False,
        )
        tried = (Path(path) / "input").read_text()
    assert done.returncode == 0, f"input {tried}: exit {done.returncode}\n{done.stderr[-4000:]}"
    assert int(done.stdout) > 20
