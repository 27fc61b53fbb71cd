"""Each operation of a log while system calls fail: see refused_calls, which does it in a process of its own.

A sample of the cases here, all of them in `make crash` (KREPLICA_REFUSED_STEP=1).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = int(os.environ.get("KREPLICA_REFUSED_STEP", "25"))


@pytest.fixture(scope="module")
def refusing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("library") / "refusing_calls.so"
    source = Path(__file__).with_name("refusing_calls.c")
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(
        [*compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"],
        check=True,
    )
    return library


@pytest.mark.skipif(sys.platform != "linux", reason="calls are replaced by LD_PRELOAD")
def test_no_refused_call_costs_what_was_acknowledged(refusing_calls: Path) -> None:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.refused_calls", path, "1", str(STEP)],
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(refusing_calls)},
            capture_output=True,
            text=True,
            timeout=120 + 3600 / STEP,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-8000:]
    assert int(done.stdout) > 3000 / STEP
