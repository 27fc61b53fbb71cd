"""Readers of committed records see all of each committed transaction, and nothing of any other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars
import pytest
from typer.testing import CliRunner

import kreplica
import kreplica.aio
from kreplica import arrow
from kreplica.cli.app import app
from tests.support.transaction_history import HistoryWriter

Rows = list[tuple[int, bytes]]
SEEDS = range(6)


# ---- directories -----------------------------------------------------------------------------------------


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


async def by_aio(path: Path) -> Rows:
    async with await kreplica.aio.Log.open(path, read_only=True) as log:
        return [(each.offset, each.value) async for each in log.read(isolation="txn_committed")]


def of_columns(offsets: list[int], values: list[bytes]) -> Rows:
    return list(zip(offsets, values, strict=True))


def by_every_reader(path: Path, scratch: Path) -> Iterator[tuple[str, Rows]]:
    """Yield what each reader of a directory sees, under its name."""
    with kreplica.Log.open(path, read_only=True) as log:
        yield "read", [(each.offset, each.value) for each in log.read(isolation="txn_committed")]
        table = log.to_arrow(isolation="txn_committed", columns=["offset", "value"])
        yield "to_arrow", of_columns(table["offset"].to_pylist(), table["value"].to_pylist())
        middle = (log.log_start_offset + log.last_stable_offset) // 2
        both = [*log.read(stop=middle, isolation="txn_committed")]
        both += log.read(middle, isolation="txn_committed")
        yield "in two parts", [(each.offset, each.value) for each in both]
    for views in (False, True):
        stream = arrow.scan(path, columns=["offset", "value"], isolation="txn_committed", views=views)
        table = stream.to_arrow()
        yield f"scan, views={views}", of_columns(table["offset"].to_pylist(), table["value"].to_pylist())
    stream = arrow.scan(path, columns=["offset", "value"], isolation="txn_committed")
    frame = polars.from_arrow(stream.to_arrow())
    yield "Polars", of_columns(frame["offset"].to_list(), frame["value"].to_list())
    yield "DuckDB", duckdb.sql("select * from stream order by 1").fetchall()
    lines = command("consume", path, "--json").splitlines()
    yield "consume", [(each["offset"], each["value"].encode()) for each in map(json.loads, lines)]
    lines = command("export", path, "--to", "jsonl", "-o", "-", "--isolation", "txn_committed").splitlines()
    yield "export to JSON", [(each["offset"], each["value"].encode()) for each in map(json.loads, lines)]
    target = scratch / "out.parquet"
    command("export", path, "--to", "parquet", "-o", target, "--isolation", "txn_committed", "--overwrite")
    frame = polars.read_parquet(target)
    yield "export to parquet", of_columns(frame["offset"].to_list(), frame["value"].to_list())


def writer_end(path: Path) -> int:
    """Return the end of what is committed."""
    with kreplica.Log.open(path, read_only=True) as log:
        return log.last_stable_offset


def require(path: Path, committed: Rows, scratch: Path, state: str) -> None:
    for reader, found in by_every_reader(path, scratch):
        assert found == committed, (reader, state)
    end = command("consume", path, "--json", "--from", "-3").splitlines()
    last = writer_end(path)
    assert [json.loads(each)["offset"] for each in end] == [at for at, _ in committed if at >= last - 3], (
        state
    )
    [counts] = map(
        json.loads, command("offsets", path, "--isolation", "txn_committed", "--json").splitlines()
    )
    assert counts["records"] == len(committed), state
    assert asyncio.run(by_aio(path)) == committed, state


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_of_a_directory(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "t-0"
    writer = HistoryWriter(path, seed)
    for number in range(3):
        writer.write(30)
        require(path, writer.history().committed, tmp_path, f"beside the writer, {number}")
        writer.log.close()
        require(path, writer.history().committed, tmp_path, f"closed, {number}")
        writer.open()
    writer.log.close()
    # Without its indexes a log cannot know what was aborted.
    for index in path.glob("*.txnindex"):
        index.unlink()
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == 1
    command("repair", path, "--apply")
    command("verify", path)
    require(path, writer.history().committed, tmp_path, "repaired")
