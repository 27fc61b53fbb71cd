"""Scripts of replication under the virtual clock, and once more with real threads, files and time.

KREPLICA_REWRITE=1 writes what they print anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kreplica.sim.transcript.simulated import replay_simulated
from tests.support.real_cluster import replay_for_real

SCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_holds(path):
    text = path.read_text()
    replayed = replay_simulated(text)
    if os.environ.get("KREPLICA_REWRITE"):
        path.write_text(replayed)
    else:
        assert replayed == text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_holds_with_real_threads_and_files(path, tmp_path):
    text = path.read_text()
    assert without_times(replay_for_real(text, tmp_path)) == without_times(text)


def without_times(text):
    """The text without its milliseconds: real time goes on while a script runs."""
    return re.sub(r"\d+ ms", "some ms", text)


def test_there_are_scripts():
    assert SCRIPTS
