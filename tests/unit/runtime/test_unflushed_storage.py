"""Files of a temporary cluster are flushed nowhere, and survive the kill of a node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kreplica import Cluster
from kreplica.runtime.lmdb_store import LmdbMetadataStore
from kreplica.runtime.unflushed_storage import UnflushedStorage

# What reaches the disk by names and maps, too.
FLUSHES = "trace=fsync,fdatasync,sync_file_range,msync,sync,syncfs"
CLUSTER = """
import sys
from kreplica import Cluster
with Cluster(brokers=3, directory=sys.argv[1] or None) as cluster:
    cluster.create_topic("orders", partitions=2)
    cluster.append("orders", [b"x"], partition=0, acks="all").result(timeout=60)
    cluster.kill(1)
    cluster.start(1)
    assert [record.value for record in cluster.read("orders", 0)] == [b"x"]
"""


def flushes(*arguments: str) -> int:
    """How many flushes a program makes in which a cluster lives in the directory that it is given."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace to see system calls")
    command = [strace, "-f", "-qq", "-e", FLUSHES, sys.executable, "-c", CLUSTER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return done.stderr.count("sync")


def test_a_temporary_cluster_flushes_nothing_to_the_disk() -> None:
    assert flushes("") == 0


def test_a_cluster_in_a_directory_of_its_own_flushes_its_metadata(tmp_path: Path) -> None:
    assert flushes(str(tmp_path)) > 0


def test_a_node_of_a_temporary_cluster_that_was_killed_finds_what_it_wrote() -> None:
    with Cluster(brokers=1) as cluster:
        cluster.create_topic("orders", partitions=1)
        cluster.append("orders", [b"x", b"y"], partition=0).result(timeout=60)
        cluster.kill(1)
        cluster.start(1)
        assert [record.value for record in cluster.read("orders", 0)] == [b"x", b"y"]


def test_files_are_as_in_other_storages(tmp_path: Path) -> None:
    storage, path = UnflushedStorage(), str(tmp_path / "file")
    storage.write_file_atomically(path, b"one")
    storage.write_file_atomically(path, b"two")
    assert storage.read_file(path) == b"two"
    assert storage.list_directory(str(tmp_path)) == ["file"]
    region = storage.open_region(str(tmp_path / "region"), 1 << 20, writable=True, create=True)
    region.write(0, b"abc")
    region.publish(3)
    region.flush()
    region.close()
    assert storage.read_file(str(tmp_path / "region"))[:3] == b"abc"


def test_an_image_that_is_not_flushed_is_opened_again(tmp_path: Path) -> None:
    store = LmdbMetadataStore(str(tmp_path), is_flushed=False)
    store.write({b"key": b"value"})
    store.close()
    again = LmdbMetadataStore(str(tmp_path), is_flushed=False)
    assert again.get(b"key") == b"value"
    again.close()
