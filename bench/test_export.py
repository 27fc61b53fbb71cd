"""Logs and Arrow: columns, exports to Arrow and Parquet beside pyarrow writing the same table, appends.

One thread. The log has RECORDS records with keys of 12 B and values of 90 B, in batches of 16 or 500, in the
page cache; every CRC is checked. Figures are per record.
"""

import pyarrow
import pytest
from pyarrow import parquet

import kreplica
from kreplica.cli import export
from kreplica.cli.export import GROWING, REPEATING, ROW_GROUP_ROWS
from kreplica.log.column_reader import ColumnReader

RECORDS = 1_000_000


@pytest.fixture(scope="module", params=[16, 500], ids="batches of {}".format)
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "records-0"
    with kreplica.Log.open(path) as log:
        for start in range(0, RECORDS, request.param):
            log.append(
                [
                    (b"key-%08d" % number, b"value %08d " % number * 6)
                    for number in range(start, start + request.param)
                ]
            )
    return path


def test_columns(row, directory):
    """python: a log's records as columns, per record"""
    with kreplica.Log.open(directory, read_only=True) as log:
        row.time(lambda: sum(piece.rows for piece in ColumnReader(log._log)), RECORDS, tuple, rounds=5)
        row.beside("the same, as objects", lambda: sum(1 for _ in log.read()), RECORDS, rounds=1)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_export(row, directory, kind, tmp_path):
    """python: kreplica export --to {kind}, per record"""
    names = export.DEFAULT_COLUMNS

    def run(path):
        options = {"file_rows": None, "as_json": True}
        assert export.run([str(directory)], kind, str(path), names, export.Range(), **options) == 0

    row.time(run, RECORDS, lambda: (tmp_path / "out",), rounds=5)
    table = parquet.read_table(tmp_path / "out") if kind == "parquet" else None
    if table is None:
        with pyarrow.ipc.open_file(tmp_path / "out") as file:
            table = file.read_all()
    row.beside("pyarrow writes the same table", write, RECORDS, lambda: (table, kind, tmp_path), rounds=5)


def test_append_arrow(row, tmp_path):
    """python: Log.append_arrow of 5,000 rows of 12 + 90 B, per record"""
    names = {"key": [b"key-%08d" % number for number in range(5000)], "value": [bytes(90)] * 5000}
    batch = pyarrow.RecordBatch.from_pydict(names)
    pairs = list(zip(*names.values(), strict=True))

    def again(append, records):
        for _ in range(20):
            append(records)

    with kreplica.Log.open(tmp_path / "records-0") as log:
        row.time(again, 100_000, lambda: (log.append_arrow, batch), rounds=5)
        row.beside("Log.append of the same pairs", again, 100_000, lambda: (log.append, pairs), rounds=5)


def write(table, kind, directory):
    if kind == "parquet":
        parquet.write_table(
            table,
            directory / "limit",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=[name for name in table.column_names if name in REPEATING],
            column_encoding=dict.fromkeys(GROWING, "DELTA_BINARY_PACKED"),
        )
    else:
        with pyarrow.ipc.new_file(directory / "limit", table.schema) as file:
            file.write_table(table)
