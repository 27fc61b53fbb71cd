"""Reading a partition of a cluster, compared with a standalone log."""

from __future__ import annotations

import pytest

from kreplica import Log
from kreplica.cluster import Cluster
from kreplica.common import errors


@pytest.fixture
def cluster():
    with Cluster(brokers=1) as made:
        yield made


@pytest.mark.parametrize("isolation", ["high_watermark", "txn_committed"])
def test_a_read_behind_the_end_is_out_of_range_as_in_a_log(cluster, tmp_path, isolation):
    cluster.create_topic("orders")
    cluster.append("orders", [b"a", b"b"], partition=0).result(20)
    with Log.open(tmp_path / "alone-0") as log:
        log.append([b"a", b"b"])
        reads = (
            lambda *range_: list(log.read(*range_, isolation=isolation)),
            lambda *range_: list(cluster.read("orders", 0, *range_, isolation=isolation)),
        )
        for read in reads:
            assert [record.offset for record in read(0)] == [0, 1]
            assert read(2) == read(2, 9) == read(1, 1) == read(2, 1) == []
            for bounds in ((3,), (99,), (99, 200), (3, 1)):
                with pytest.raises(errors.OffsetOutOfRange):
                    read(*bounds)
