"""Partitions as an Arrow stream: what pyarrow, polars and DuckDB make of it is what the logs hold."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars
import pyarrow
import pyarrow.compute
import pytest

import kreplica
from kreplica import arrow
from kreplica.common.errors import DamagedLog, InvalidFile
from kreplica.common.isolation import Isolation
from kreplica.common.types import TopicPartition
from tests.conformance.expectation import FIXTURES

LOGS = FIXTURES / "clean" / "logs"
T0 = 1_700_000_000_000


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A directory with t-0 (20 records), t-1 (10) and u-0 (5), in batches of 5, a second between records."""
    for name, batches in (("t-0", 4), ("t-1", 2), ("u-0", 1)):
        with kreplica.Log.open(tmp_path / name) as log:
            for batch in range(batches):
                numbers = range(5 * batch, 5 * batch + 5)
                log.append(
                    [
                        kreplica.Record(b"%d" % n, key=b"k" if n % 2 else None, timestamp=T0 + 1000 * n)
                        for n in numbers
                    ]
                )
    return tmp_path


def places(stream: arrow.ArrowStream) -> list[tuple[str, int, int]]:
    table = stream.to_arrow()
    columns = (table[name].to_pylist() for name in ("topic", "partition", "offset"))
    return list(zip(*columns, strict=True))


# ---- readers of the stream ------------------------------------------------------------------------------


def test_pyarrow_takes_it(node: Path) -> None:
    stream = arrow.scan(node, columns=["topic", "value", "partition", "key"])
    table = pyarrow.table(stream)
    table.validate(full=True)
    assert table.schema == stream.schema
    assert table["value"].to_pylist() == [b"%d" % n for count in (20, 10, 5) for n in range(count)]
    assert table["topic"].to_pylist() == ["t"] * 30 + ["u"] * 5
    assert pyarrow.compute.sum(table["partition"]).as_py() == 10
    assert table["key"].null_count == 10 + 5 + 3


@pytest.mark.parametrize("views", [False, True])
def test_polars_takes_it(node: Path, views: bool) -> None:
    stream = arrow.scan(node, views=views)
    frame = polars.DataFrame(stream)
    assert frame.columns == list(stream.schema.names)
    counts = frame.group_by("topic", "partition").len().sort("topic", "partition")
    assert [(str(topic), *rest) for topic, *rest in counts.rows()] == [
        ("t", 0, 20),
        ("t", 1, 10),
        ("u", 0, 5),
    ]
    assert frame["value"].to_list() == stream.to_arrow()["value"].to_pylist()
    assert frame["timestamp"].cast(polars.Int64).to_list()[:2] == [T0, T0 + 1000]


@pytest.mark.parametrize("views", [False, True])
def test_duckdb_takes_it(node: Path, views: bool) -> None:
    stream = arrow.scan(node, views=views)  # noqa: F841 (found by its name)
    query = """select topic, "partition", count(*), sum(value::varchar::int), max("offset"), count(key)
        from stream group by all order by all"""
    with duckdb.connect() as connection:
        assert connection.sql(query).fetchall() == [
            ("t", 0, 20, 190, 19, 10),
            ("t", 1, 10, 45, 9, 5),
            ("u", 0, 5, 10, 4, 2),
        ]


@pytest.mark.parametrize("isolation", ["high_watermark", "txn_committed"])
def test_logs_of_kafkas_as_the_logs_themselves_read(isolation: Isolation) -> None:
    stream = arrow.scan(LOGS, topics=["transactions", "compacted", "codec-zstd"], isolation=isolation)
    table = stream.to_arrow()
    for partition in stream.partitions:
        mask = pyarrow.compute.equal(table["topic"].cast(pyarrow.string()), partition.topic)
        mine = table.filter(mask).drop_columns(["topic", "partition"])
        with kreplica.Log.open(LOGS / str(partition), read_only=True) as log:
            assert mine.to_pylist() == log.to_arrow(isolation=isolation).to_pylist()
    assert len(stream.partitions) == 3


# ---- what is not wanted is not read -----------------------------------------------------------------------


def test_ranges_of_offsets(node: Path) -> None:
    assert places(arrow.scan(node, start=8, stop=12)) == [
        *(("t", 0, n) for n in range(8, 12)),
        *(("t", 1, n) for n in range(8, 10)),
    ]
    start, stop = {TopicPartition("t", 0): 18}, {TopicPartition("t", 1): 1, TopicPartition("u", 0): 0}
    assert places(arrow.scan(node, start=start, stop=stop)) == [("t", 0, 18), ("t", 0, 19), ("t", 1, 0)]
    assert places(arrow.scan(node, start=5, stop=3)) == []


def test_topics_and_partitions(node: Path) -> None:
    assert {at[:2] for at in places(arrow.scan(node, topics="u"))} == {("u", 0)}
    assert {at[:2] for at in places(arrow.scan(node, partitions=[0]))} == {("t", 0), ("u", 0)}
    one = arrow.scan(node, partitions=[TopicPartition("t", 1)])
    assert one.partitions == (TopicPartition("t", 1),)
    assert {at[:2] for at in places(arrow.scan([node / "t-0", str(node / "u-0")]))} == {("t", 0), ("u", 0)}


def test_a_range_of_times(node: Path) -> None:
    stream = arrow.scan(node, from_time=T0 + 8000, to_time=T0 + 12_000)
    assert places(stream) == [("t", 0, 8), ("t", 0, 9), ("t", 0, 10), ("t", 0, 11), ("t", 1, 8), ("t", 1, 9)]


def test_columns_of_the_partition_alone(node: Path) -> None:
    table = arrow.scan(node, columns=["partition"]).to_arrow()
    assert table.column_names == ["partition"]
    assert table.num_rows == 35


def test_rot_in_what_is_not_asked_for_is_not_met(node: Path) -> None:
    file = node / "t-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[70] ^= 1  # in the first batch, which holds offsets 0 to 4
    file.write_bytes(data)
    assert len(places(arrow.scan(node, partitions=[1]))) == 10
    assert places(arrow.scan(node, topics="t", partitions=[0], start=7))[0] == ("t", 0, 7)
    with pytest.raises(DamagedLog, match="t-0: damaged records, offsets 0 to 4"):
        arrow.scan(node).to_arrow()
    passing = arrow.scan(node, skip_damaged=True)
    assert len(places(passing)) == 30
    ((partition, damage),) = passing.skipped
    assert (partition, damage.first_offset, damage.next_offset) == (TopicPartition("t", 0), 0, 5)


def test_values_that_are_not_compressed_are_not_copied(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for _ in range(16):
            log.append([bytes(1_000_000)])
    before = pyarrow.total_allocated_bytes()
    table = arrow.scan(tmp_path, columns=["value"], views=True).to_arrow()
    views = [chunk.buffers()[1].size for chunk in table["value"].chunks]
    assert table.num_rows == 16
    # Views of 16 bytes, and the values where they lie: in the mapped segment, which the table keeps.
    assert sum(views) == 16 * 16
    assert pyarrow.total_allocated_bytes() - before < 1 << 20
    assert table["value"][15].as_py() == bytes(1_000_000)


# ---- several replicas, a live writer ----------------------------------------------------------------------


def test_of_several_replicas_the_one_that_knows_more_is_read(tmp_path: Path) -> None:
    for node, count in (("1", 3), ("2", 5), ("3", 4)):
        with kreplica.Log.open(tmp_path / node / "t-0") as log:
            log.append([b"v"] * count)
    stream = arrow.scan([tmp_path / "1", tmp_path / "2", tmp_path / "3", tmp_path / "2"])
    assert stream.partitions == (TopicPartition("t", 0),)
    assert stream.to_arrow().num_rows == 5


def test_each_stream_sees_what_a_writer_has_published_by_then(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as writer:
        writer.append([b"a"])
        stream = arrow.scan(tmp_path)
        assert stream.to_arrow().num_rows == 1
        writer.append([b"b", b"c"])
        assert stream.to_arrow().num_rows == 3


# ---- bad input ------------------------------------------------------------------------------------------


def test_what_is_not_there(node: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="there is no such directory"):
        arrow.scan(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidFile, match="neither a partition's directory, nor a directory"):
        arrow.scan(tmp_path / "empty")
    with pytest.raises(ValueError, match="unknown column 'colour'"):
        arrow.scan(node, columns=["colour"])
    with pytest.raises(ValueError, match="repeated"):
        arrow.scan(node, columns=["key", "key"])
    with pytest.raises(ValueError, match=r"topic 'x' is not in these directories, which have t-0, t-1, u-0"):
        arrow.scan(node, topics=["x"])
    with pytest.raises(ValueError, match="partition 7 is not in"):
        arrow.scan(node, partitions=[7])
    with pytest.raises(ValueError, match="isolation"):
        arrow.scan(node, isolation="serializable")  # type: ignore[arg-type]


def test_arguments_of_wrong_types_are_refused_at_once(node: Path) -> None:
    with pytest.raises(TypeError, match=r"a list of names: \['key'\]"):
        arrow.scan(node, columns="key")
    with pytest.raises(TypeError, match="start must be an integer, not 'a'"):
        arrow.scan(node, start="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="start: a key must be TopicPartition"):
        arrow.scan(node, start={"t-0": 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="must be an integer"):
        arrow.scan(node, stop={TopicPartition("t", 0): "2"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="looks like seconds"):
        arrow.scan(node, from_time=T0 // 1000)
    with pytest.raises(TypeError, match="an int of milliseconds"):
        arrow.scan(node, to_time=T0 / 1000)  # type: ignore[arg-type]


def test_times_may_be_datetimes(node: Path) -> None:
    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(T0 // 1000 + seconds, UTC)

    stream = arrow.scan(node, topics=["t"], partitions=[0], from_time=at(4), to_time=at(7))
    assert places(stream) == [("t", 0, 4), ("t", 0, 5), ("t", 0, 6)]
