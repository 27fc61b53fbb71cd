"""Appends to a cluster that are refused before anything is sent."""

from __future__ import annotations

import pytest

from kreplica.cluster import Cluster
from kreplica.common import errors


@pytest.fixture
def cluster(tmp_path):
    with Cluster(1, tmp_path / "data") as cluster:
        yield cluster


def test_one_record_by_itself_is_refused(cluster):
    cluster.create_topic("orders")
    for arguments in ((0, (b"k", b"v")), (0, b"v"), ((b"k", b"v"),), (b"v",), (None,), (0,), (True, [b"v"])):
        with pytest.raises(TypeError, match=r"must be a list|a partition must be an int"):
            cluster.append("orders", *arguments)
    with pytest.raises(errors.NoRecords):
        cluster.append("orders", [])
