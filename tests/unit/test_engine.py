"""Log by itself: what a closed one still answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest

import kreplica
from kreplica.common.errors import LogClosed


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_log_says_so(tmp_path: Path, read_only: bool) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"a"])
    log = kreplica.Log.open(tmp_path / "t-0", read_only=read_only)
    log.close()
    for use in (
        lambda: log.offset_for_timestamp(0),
        log.flush,
        log.to_arrow,
        lambda: list(log.read()),
        lambda: log.offset_for_timestamp(-2),
    ):
        with pytest.raises(LogClosed):
            use()


@pytest.mark.parametrize("settings", [{}, {"compression_type": "zstd"}, {"cleanup_policy": "compact"}])
def test_arrow_in_and_out(tmp_path: Path, settings: dict[str, object]) -> None:
    pairs = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "key": ["a", "b", "c"],
            "value": [b"1", None, b""],
            "timestamp": pyarrow.array([5, 6, 7], pyarrow.timestamp("ms", "UTC")),
            "headers": pyarrow.array([[], [{"key": "h", "value": b"x"}], []], pyarrow.list_(pairs)),
        }
    )
    with kreplica.Log.open(tmp_path / "t-0", config=settings) as log:
        assert log.append_arrow(batch).last_offset == 2
        assert log.append_arrow(batch.slice(1)).last_offset == 4
        table = log.to_arrow()
        assert table["key"].to_pylist() == [b"a", b"b", b"c", b"b", b"c"]
        assert table["value"].to_pylist() == [b"1", None, b"", None, b""]
        assert table["timestamp"].cast(pyarrow.int64()).to_pylist() == [5, 6, 7, 6, 7]
        assert table["headers"].to_pylist() == [
            *([], [{"key": "h", "value": b"x"}], []),
            *([{"key": "h", "value": b"x"}], []),
        ]
