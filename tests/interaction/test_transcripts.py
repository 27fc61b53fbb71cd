"""Scripts under the virtual clock, and those of brokers once more with real threads, files and time.

KREPLICA_REWRITE=1 writes what they print anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kreplica.common.errors import StorageIOError
from kreplica.sim.transcript.runner import first_command
from kreplica.sim.transcript.simulated import replay_simulated
from tests.support.breakable_storage import BreakableStorage
from tests.support.real_cluster import replay_for_real

SCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
# The others have a quorum, whose moments only the virtual clock keeps.
OF_BROKERS = [path for path in SCRIPTS if first_command(path.read_text()) == "brokers"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_holds(path):
    text = path.read_text()
    replayed = replay_simulated(text)
    if os.environ.get("KREPLICA_REWRITE"):
        path.write_text(replayed)
    else:
        assert replayed == text


@pytest.mark.parametrize("path", OF_BROKERS, ids=lambda path: path.stem)
def test_a_script_holds_with_real_threads_and_files(path, tmp_path):
    text = path.read_text()
    assert without_times(replay_for_real(text, tmp_path)) == without_times(text)


def test_a_disk_of_files_loses_unflushed_writes_and_refuses_what_a_test_chooses(tmp_path):
    root, aside = tmp_path / "root", tmp_path / "aside"
    root.mkdir()
    aside.mkdir()
    storage = BreakableStorage(root, aside)
    for name in ("flushed", "changed", "unnamed"):
        storage.write_file(f"{root}/{name}", b"old")
        if name != "unnamed":
            storage.sync_file(f"{root}/{name}")
            storage.sync_directory(str(root))
    with storage.open_region(f"{root}/changed", 4096, writable=True) as region:
        region.write(0, b"new")
    storage.rename(f"{root}/flushed", f"{root}/renamed")
    storage.cut_power()
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {"flushed": b"old", "changed": b"old"}
    storage.rename(f"{root}/flushed", f"{root}/renamed")
    storage.cut_power(keeps_names=True)
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {"renamed": b"old", "changed": b"old"}

    def refuse(operation, path):
        raise StorageIOError(f"{operation} of {path}")

    storage.before = refuse
    with pytest.raises(StorageIOError, match=r"flush of .*renamed"):
        storage.sync_file(f"{root}/renamed")


def without_times(text):
    """The text without its milliseconds: real time goes on while a script runs."""
    return re.sub(r"\d+ ms", "some ms", text)


def test_there_are_scripts():
    assert OF_BROKERS
    assert len(SCRIPTS) > len(OF_BROKERS)
