"""Appends to a cluster that are refused before anything is sent."""

from __future__ import annotations

import pytest

from kreplica.cluster import Cluster
from kreplica.common import errors


@pytest.fixture
def cluster(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        yield cluster


def test_a_record_outside_a_list_is_refused(cluster):
    cluster.create_topic("orders")
    for records in ((b"k", b"v"), b"v", None, 0):
        for partition in (None, 0):
            with pytest.raises(TypeError, match="must be a list"):
                cluster.append("orders", records, partition=partition)
    with pytest.raises(errors.NoRecords):
        cluster.append("orders", [])


def test_a_partition_is_named_by_keyword_and_by_its_number(cluster):
    cluster.create_topic("orders")
    for partition in (True, "0", 0.0, b"0"):
        with pytest.raises(TypeError, match="a partition must be an int"):
            cluster.append("orders", [b"v"], partition=partition)
    with pytest.raises(TypeError, match="positional argument"):
        cluster.append("orders", 0, [b"v"])
