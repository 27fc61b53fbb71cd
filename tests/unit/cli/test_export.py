"""`kreplica export`: what it writes is what the log holds; nothing half done gets a name."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pyarrow
import pytest
from pyarrow import ipc, parquet
from typer.testing import CliRunner, Result

import kreplica
from kreplica.cli import export as command
from kreplica.cli.app import app
from kreplica.common.errors import DamagedLog
from kreplica.common.isolation import Isolation
from tests.conformance.expectation import FIXTURES
from tests.unit.log.diff.replicas import batch, replica

KAFKA = FIXTURES / "clean" / "logs"
PARTITIONS = sorted(path for path in KAFKA.iterdir() if path.is_dir())
NAMES = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
EVERYTHING = ",".join(("topic", "partition", *NAMES, "leader_epoch", "producer_id"))


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def rows_of(table: pyarrow.Table) -> list[tuple[object, ...]]:
    columns = {name: table[name] for name in NAMES}
    columns["timestamp"] = columns["timestamp"].cast(pyarrow.int64())
    lists = {name: column.to_pylist() for name, column in columns.items()}
    lists["headers"] = [[(pair["key"], pair["value"]) for pair in row] for row in lists["headers"]]
    return list(zip(*lists.values(), strict=True))


def table(path: Path) -> pyarrow.Table:
    return parquet.read_table(path) if path.suffix == ".parquet" else ipc.open_file(path).read_all()


def binary(row: dict[str, object], name: str) -> bytes | None:
    if f"{name}_base64" in row:
        return base64.b64decode(str(row[f"{name}_base64"]))
    text = row[name]
    return None if text is None else str(text).encode()


def rows_of_lines(path: Path) -> list[tuple[object, ...]]:
    found = []
    for row in map(json.loads, path.read_text().splitlines()):
        headers = [(pair["key"], binary(pair, "value")) for pair in row["headers"]]
        numbers = (row["offset"], row["timestamp"], row["timestamp_type"])
        found.append((*numbers, binary(row, "key"), binary(row, "value"), headers))
    return found


def read(directory: Path, isolation: Isolation = "log_end") -> list[tuple[object, ...]]:
    with kreplica.Log.open(directory, read_only=True) as log:
        return [tuple(getattr(record, name) for name in NAMES) for record in log.read(isolation=isolation)]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("isolation", ["log_end", "txn_committed"])
def test_logs_of_kafkas(partition: Path, kind: str, isolation: Isolation, tmp_path: Path) -> None:
    out = tmp_path / f"out.{kind}"
    result = export(partition, "--to", kind, "-o", out, "--isolation", isolation)
    assert result.exit_code == 0, result.output
    found = rows_of_lines(out) if kind == "jsonl" else rows_of(table(out))
    assert found == read(partition, isolation)
    assert list(tmp_path.iterdir()) == [out]


def test_the_columns_and_their_order(tmp_path: Path) -> None:
    export(KAFKA / "idempotent-0", "--to", "arrow", "-o", tmp_path / "a", "--columns", EVERYTHING)
    found = table(tmp_path / "a")
    assert found.column_names == EVERYTHING.split(",")
    first = found.slice(0, 1).to_pylist()[0]
    assert (first["topic"], first["partition"], first["leader_epoch"]) == ("idempotent", 0, 0)
    assert first["producer_id"] >= 0
    export(KAFKA / "codec-none-0", "--to", "parquet", "-o", tmp_path / "b", "--columns", "value,producer_id")
    found = parquet.read_table(tmp_path / "b")
    assert found.column_names == ["value", "producer_id"]
    assert found["producer_id"].null_count == 50
    lines = export(KAFKA / "idempotent-0", "--to", "jsonl", "-o", "-", "--columns", "partition,offset")
    assert lines.stdout.splitlines()[:2] == ['{"partition":0,"offset":0}', '{"partition":0,"offset":1}']


def test_bytes_that_are_no_text_are_base64(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append(
            [kreplica.Record(b"\xff\x00", b'"q"\n', headers=[("h", b"\xfe"), ("i", None)], timestamp=5)]
        )
        log.append([kreplica.Record(None, "über".encode(), timestamp=6)])
    columns = "key,value,headers,leader_epoch,producer_id"
    result = export(tmp_path / "t-0", "--to", "jsonl", "-o", "-", "--columns", columns)
    assert list(map(json.loads, result.stdout.splitlines())) == [
        {
            "key": '"q"\n',
            "value_base64": "/wA=",
            "headers": [{"key": "h", "value_base64": "/g=="}, {"key": "i", "value": None}],
            "leader_epoch": 0,
            "producer_id": None,
        },
        {"key": "über", "value": None, "headers": [], "leader_epoch": 0, "producer_id": None},
    ]


def test_several_partitions_of_a_node(tmp_path: Path) -> None:
    out = tmp_path / "two.parquet"
    result = export(
        KAFKA, "--topic", "codec-gzip", "--topic", "segments", "--to", "parquet", "-o", out, "--json"
    )
    summary = json.loads(result.stdout)
    assert summary["rows"] == 170
    assert summary["files"] == [str(out)]
    assert [(each["topic"], each["rows"], each["next_offset"]) for each in summary["partitions"]] == [
        ("codec-gzip", 50, 50),
        ("segments", 120, 120),
    ]
    found = parquet.read_table(out)
    assert found["topic"].to_pylist() == ["codec-gzip"] * 50 + ["segments"] * 120


def test_ranges(tmp_path: Path) -> None:
    out = tmp_path / "some.jsonl"

    def offsets(*arguments: object) -> list[int]:
        result = export(KAFKA / "segments-0", "--to", "jsonl", "-o", out, "--overwrite", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line)["offset"] for line in out.read_text().splitlines()]

    assert offsets("--from-offset", 10, "--to-offset", 13) == [10, 11, 12]
    assert offsets("--from-offset", 118) == [118, 119]
    times = {row[0]: row[1] for row in read(KAFKA / "segments-0")}
    middle = int(str(times[60]))
    assert offsets("--from-time", middle) == [offset for offset in times if int(str(times[offset])) >= middle]
    iso = "2001-02-03T04:05:06.789"
    assert offsets("--from-time", iso) == list(range(120))
    assert offsets("--to-time", f"{iso}+02:00") == []


def test_an_export_is_split_into_files_of_the_given_number_of_rows(tmp_path: Path) -> None:
    result = export(
        *(KAFKA, "--topic", "codec-gzip", "--topic", "codec-zstd", "--topic", "codec-lz4"),
        *("--to", "arrow", "-o", tmp_path / "part.arrow", "--file-rows", 60, "--json"),
    )
    names = ["part-00000.arrow", "part-00001.arrow", "part-00002.arrow"]
    assert [Path(path).name for path in json.loads(result.stdout)["files"]] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [table(tmp_path / name).num_rows for name in names] == [60, 60, 30]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_piece_is_split_over_files(tmp_path: Path, kind: str) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        log.append([b"%d" % number for number in range(2500)])
    out = tmp_path / f"part.{kind}"
    assert export(tmp_path / "t-0", "--to", kind, "-o", out, "--file-rows", 1000).exit_code == 0
    files = sorted(tmp_path.glob("part-*"))
    rows = [rows_of_lines(file) if kind == "jsonl" else rows_of(table(file)) for file in files]
    assert list(map(len, rows)) == [1000, 1000, 500]
    assert list(chain.from_iterable(rows)) == read(tmp_path / "t-0")
    # The last file is full: none that is empty follows it.
    assert export(tmp_path / "t-0", "--to", kind, "-o", tmp_path / "b", "--file-rows", 1250).exit_code == 0
    assert len(list(tmp_path.glob("b-*"))) == 2


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ROW_GROUP_ROWS", 60)
    out = tmp_path / "x.parquet"
    names = ("codec-gzip", "codec-zstd", "codec-lz4", "codec-none")
    export(KAFKA, *(f"--topic={name}" for name in names), "--to", "parquet", "-o", out)
    assert parquet.ParquetFile(out).metadata.num_row_groups == 2
    assert parquet.read_table(out).num_rows == 200


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_an_empty_log(tmp_path: Path, kind: str) -> None:
    kreplica.Log.open(tmp_path / "t-0").close()
    out = tmp_path / f"none.{kind}"
    assert export(tmp_path / "t-0", "--to", kind, "-o", out).exit_code == 0
    assert (out.read_text() == "") if kind == "jsonl" else (table(out).num_rows == 0)


def test_what_json_wants_escaped_and_what_it_does_not(tmp_path: Path) -> None:
    topic = tmp_path / "100%s-0"
    values = [[b"plain %d %s"], [b'a "quote"'], [b"back\\slash"], [b"line\nfeed"], ["ü".encode()], [b""]]
    with kreplica.Log.open(topic) as log:
        for value in values:
            log.append(value)
    out = tmp_path / "out"
    for offset, (value,) in enumerate(values):
        # By itself and with all the others: either way a piece is written may be taken.
        one = ("--from-offset", offset, "--to-offset", offset + 1, "--overwrite")
        export(topic, "--to", "jsonl", "-o", out, *one)
        assert [row[4] for row in rows_of_lines(out)] == [value]
    export(topic, "--to", "jsonl", "-o", out, "--overwrite")
    assert [[row[4]] for row in rows_of_lines(out)] == values
    assert json.loads(out.read_text().splitlines()[0])["topic"] == "100%s-0"


def test_a_file_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    foreign = [tmp_path / "out.jsonl.tmp", tmp_path / "out.jsonl.0.tmp"]
    for path in foreign:
        path.write_text("mine")
    assert export(KAFKA / "codec-none-0", "--to", "jsonl", "-o", out).exit_code == 0
    assert sorted(tmp_path.iterdir()) == sorted([out, *foreign])
    assert [path.read_text() for path in foreign] == ["mine", "mine"]


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "t-0") as log:
        for _ in range(20):
            log.append([bytes(1000)] * 100)
    command = [sys.executable, "-m", "kreplica", "export", tmp_path / "t-0", "--to", "jsonl", "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


# ---- damage, and what fails -------------------------------------------------------------------------------


@pytest.fixture
def rotten(tmp_path: Path) -> str:
    bad = bytearray(batch(2, [b"c", b"d"]))
    bad[-3] ^= 1
    return replica(tmp_path / "logs" / "t-0", [batch(0, [b"a", b"b"]), bytes(bad), batch(4, [b"e"])])


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_rot_names_its_offset_and_leaves_nothing_behind(rotten: str, kind: str, tmp_path: Path) -> None:
    out = tmp_path / "files" / "out"
    out.parent.mkdir()
    result = export(rotten, "--to", kind, "-o", out)
    assert result.exit_code == 1
    assert isinstance(result.exception, DamagedLog)
    assert result.exception.where == 2
    assert list(out.parent.iterdir()) == []


def test_skipped_rot_is_reported(rotten: str, tmp_path: Path) -> None:
    out = tmp_path / "out.arrow"
    result = export(rotten, "--to", "arrow", "-o", out, "--skip-damaged", "--json")
    assert result.exit_code == 0
    assert "t-0: 2 offsets skipped as damaged: offsets 2 to 3 " in result.stderr
    (partition,) = json.loads(result.stdout)["partitions"]
    assert [(each["first_offset"], each["next_offset"]) for each in partition["skipped"]] == [(2, 4)]
    assert table(out)["value"].to_pylist() == [b"a", b"b", b"e"]


def test_what_was_there_stays_until_the_new_one_is_whole(rotten: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    assert export(rotten, "--to", "jsonl", "-o", out).exit_code == 2
    assert export(rotten, "--to", "jsonl", "-o", out, "--overwrite").exit_code == 1
    assert out.read_text() == "before"
    assert export(rotten, "--to", "jsonl", "-o", out, "--overwrite", "--to-offset", 2).exit_code == 0
    assert len(out.read_text().splitlines()) == 2


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for options in ([], ["--overwrite"]):
        assert export(KAFKA / "codec-none-0", "--to", "jsonl", "-o", pipe, *options).exit_code == 2
    assert pipe.is_fifo()


@pytest.mark.parametrize("time", [str(1 << 63), "9" * 5000, "--5", "tomorrow"])
def test_what_is_no_time_is_a_usage_error(time: str) -> None:
    for option in ("--from-time", "--to-time"):
        assert export(KAFKA / "codec-none-0", "--to", "jsonl", "-o", "-", option, time).exit_code == 2


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = export(KAFKA / "codec-gzip-0", "--to", "parquet", "-o", tmp_path / "x")
    assert result.exit_code == 1
    assert "pip install 'kreplica[arrow]'" in result.stderr
    assert list(tmp_path.iterdir()) == []
    result = export(KAFKA / "codec-gzip-0", "--to", "jsonl", "-o", tmp_path / "x")
    assert result.exit_code == 0


def test_the_file_is_named_for_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(KAFKA / "codec-gzip-0", "--to", "arrow")
    export(KAFKA, "--topic", "codec-gzip", "--topic", "segments", "--to", "jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codec-gzip-0.arrow", "export.jsonl"]


@pytest.mark.parametrize(
    "arguments",
    [
        [KAFKA, "--to", "jsonl"],
        [KAFKA, "--topic", "no-such-topic", "--to", "jsonl"],
        [FIXTURES.parent, "--to", "jsonl", "--topic", "segments"],
        [KAFKA / "segments-0", KAFKA / "segments-0", "--to", "jsonl"],
        [KAFKA / "segments-0", "--to", "csv"],
        [KAFKA / "segments-0"],
        [KAFKA / "segments-0", "--to", "jsonl", "--columns", "offset,colour"],
        [KAFKA / "segments-0", "--to", "jsonl", "--columns", "offset,offset"],
        [KAFKA / "segments-0", "--to", "jsonl", "--from-time", "yesterday"],
        [KAFKA / "segments-0", "--to", "jsonl", "--from-offset", "-1"],
        [KAFKA / "segments-0", "--to", "parquet", "-o", "-"],
        [KAFKA / "segments-0", "--to", "jsonl", "-o", "no/such/directory/x"],
        [KAFKA / "segments-0", "--to", "jsonl", "-o", KAFKA],
        [KAFKA / "missing", "--to", "jsonl"],
    ],
    ids=str,
)
def test_usage_errors(arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(*arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []
