"""An exception from outside (Ctrl-C, a time-out) in the middle of any call of a log, which then goes on.

Each operation runs in a process of its own, so that a hang is noticed; see interrupted_log. Every 199th
instruction is tried; KREPLICA_INTERRUPT_STRIDE=1 tries each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.crash.interrupted_log import OPERATIONS

STRIDE = os.environ.get("KREPLICA_INTERRUPT_STRIDE", "199")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path):
    # In memory where that can be: each of some thousand logs is flushed many times.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as made:
        yield made


# TimeoutError, which a handler of SIGALRM may raise, is an OSError, and must not pass for one of the disk.
@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_log_goes_on_after_an_interrupt(directory, operation, kind):
    _run("interrupted_log", operation, kind, STRIDE, directory)


def test_a_cluster_goes_on_after_a_signal():
    _run("interrupted_cluster", STRIDE)


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "TimeoutError"])
def test_a_cluster_goes_on_after_another_thread_raised_in_its_callers(kind):
    _run("interrupted_cluster", STRIDE, kind)


def _run(program, *arguments):
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.crash.{program}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0
