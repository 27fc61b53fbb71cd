"""Starts as new processes, beside one that imports numpy and lmdb: imports, help pages, a first cluster.

The file cache is warm, and all modules are compiled. A row has the wall time of the process, and its
processor time, which depends less on what else the machine does.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PEER = "import numpy, lmdb"
COMMAND = "import sys; from kreplica.cli import main; sys.argv = 'kreplica {}'.split(); main()"
STARTS = {
    "python -c pass": "pass",
    "import kreplica": "import kreplica",
    "import kreplica; kreplica.Log": "import kreplica; kreplica.Log",
    "import kreplica; kreplica.Cluster": "import kreplica; kreplica.Cluster",
    "kreplica --help": COMMAND.format("--help"),
    "kreplica topic --help": COMMAND.format("topic --help"),
    "kreplica.Cluster(brokers=3).close()": "import kreplica; kreplica.Cluster(brokers=3).close()",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], float]:
    """Run a program in a new process, and return the seconds of processor time that it took.

    Its modules are compiled in a directory of the benchmark.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    paths = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled")),
        "TMPDIR": str(tmp_path_factory.mktemp("clusters")),
    }

    def run(program: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", program]
        subprocess.run(command, env=kept | paths, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


@pytest.mark.parametrize("what", STARTS)
def test_start(row, start, what):
    """python: a new process: {what}"""
    own, peers = [], []
    row.time(lambda: own.append(start(STARTS[what])), 1, tuple, rounds=15)
    row.beside(PEER, lambda: peers.append(start(PEER)), 1, rounds=15)
    ours_ms, peers_ms = statistics.median(own) * 1000, statistics.median(peers) * 1000
    row.note(f"of processor time {ours_ms:.0f} and {peers_ms:.0f} ms ({ours_ms / peers_ms:.2f}x)")
