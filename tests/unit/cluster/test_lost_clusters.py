"""Clusters that their program did not close: the last reference is gone, or the process ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest

from kreplica.cluster import Cluster

PATIENCE = 30


def _drop(objects):
    objects.clear()
    gc.collect()


def test_a_cluster_without_references_is_closed_with_a_warning():
    cluster = Cluster(brokers=1)
    cluster.create_topic("orders")
    directory = cluster.directory
    lost = [cluster]
    del cluster
    lost[0].partition("orders", 0)
    with pytest.warns(ResourceWarning, match="was not closed"):
        _drop(lost)
    closing = next((each for each in threading.enumerate() if each.name == "kreplica-close"), None)
    if closing is not None:
        closing.join(PATIENCE)
    assert not os.path.exists(directory)


def test_a_cluster_that_is_open_at_the_end_of_the_process_leaves_no_directory():
    program = "import kreplica; cluster = kreplica.Cluster(brokers=1); print(cluster.directory)"
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "ResourceWarning: the cluster in" in done.stderr
    assert not os.path.exists(done.stdout.strip())


def test_the_directory_of_a_lost_cluster_may_be_used_at_once(tmp_path):
    lost = [Cluster(1, tmp_path / "data")]
    lost[0].create_topic("orders")
    with pytest.warns(ResourceWarning, match="was not closed"):
        _drop(lost)
    with Cluster(1, tmp_path / "data") as cluster:
        assert cluster.topics() == ["orders"]


def test_a_program_that_ends_without_closing_its_cluster_closes_all_its_logs(tmp_path):
    program = (
        "import kreplica, sys; cluster = kreplica.Cluster(3, sys.argv[1]);"
        "cluster.create_topic('orders', partitions=4);"
        "cluster.append('orders', [b'a'], partition=0).result(30)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Exception" not in ran.stderr
    assert len(list(tmp_path.rglob(".kafka_cleanshutdown"))) == 3
