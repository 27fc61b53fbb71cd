"""An embedded log beside lmdb, sqlite3 and RocksDB: `python -m bench.peers.embedded`.

One thread writes the same values into each store, in turns for some rounds, on the file system of build/. The
table has only what every store can do: a log has no keys to overwrite; the others have no timestamps, record
checksums or replicas. Prints the table and writes build/bench-embedded.json.

 --rounds N     rounds of each row (3)
 --rows a,b     only these rows
 --scale F      share of each row's records (1.0)
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.peers.rows import Row, asked_for, beside_table, print_figure, write
from bench.peers.stores import STORES, Store

BUILD = Path(__file__).parents[2] / "build"
DIRECTORY, RESULT = BUILD / "bench-embedded", BUILD / "bench-embedded.json"
LIMIT = "write+fdatasync"
LOOK_UPS = 5_000
DURABLE = 500
# Values differ as much as real ones would; no store here compresses them.
SEED = 7


class Bench:
    """The rows of the table, and their measurement."""

    def __init__(self, rounds: int, scale: float, names: list[str]) -> None:
        self._rounds = rounds
        self._scale = scale
        self._names = names
        self._random = random.Random(SEED)
        self.rows: list[Row] = []

    def run(self) -> None:
        """Measure the requested rows."""
        for size in (100, 1024):
            for count in (1, 16, 1000):
                total = self._count(300_000 if count > 1 else 100_000)
                self._measure(
                    Row(f"append {count} x {size} B", "records/s", best_of_others=True),
                    lambda who, size=size, count=count, total=total: self._append(who, size, count, total),
                )
        total = self._count(DURABLE)
        self._measure(
            Row("append 1 x 100 B, on disk", "records/s", best_of_others=True),
            lambda who: self._append(who, 100, 1, total, durable=True),
            limit=self._synced_writes,
        )
        with self._filled(100, self._count(1_000_000)) as stores:
            self._measure(
                Row("read all, 100 B", "records/s", best_of_others=True), lambda who: scan(stores[who])
            )
            self._measure(
                Row("read at an offset", "us", more_is_better=False, best_of_others=True),
                lambda who: self._look_up(stores[who]),
            )

    def _count(self, records: int) -> int:
        return max(1, int(records * self._scale))

    def _measure(
        self, row: Row, measure: Callable[[str], float], limit: Callable[[], float] | None = None
    ) -> None:
        if self._names and not any(name in row.name for name in self._names):
            return
        self.rows.append(row)
        for _ in range(self._rounds):
            for who in STORES:
                row.add(who, measure(who))
                print_figure(row, who)
            if limit is not None:
                row.add(LIMIT, limit())
                print_figure(row, LIMIT)

    # ---- measurements -------------------------------------------------------------------------------------

    def _append(self, who: str, size: int, count: int, total: int, *, durable: bool = False) -> float:
        values = [self._random.randbytes(size) for _ in range(count)]
        with opened(who, durable=durable) as store:
            store.append(values)
            began = time.perf_counter()
            for _ in range(total // count):
                store.append(values)
            return total // count * count / (time.perf_counter() - began)

    def _synced_writes(self) -> float:
        """Return the records per second that plain synced writes reach: the disk's limit."""
        with fresh_directory(LIMIT) as path:
            descriptor = os.open(path / "file", os.O_WRONLY | os.O_CREAT)
            value, total = self._random.randbytes(100), self._count(DURABLE)
            began = time.perf_counter()
            for number in range(total):
                os.pwrite(descriptor, value, number * len(value))
                os.fdatasync(descriptor)
            rate = total / (time.perf_counter() - began)
            os.close(descriptor)
            return rate

    @contextmanager
    def _filled(self, size: int, total: int) -> Iterator[dict[str, Store]]:
        """Yield all stores, each with the same values, appended 1,000 at a time."""
        stores: dict[str, Store] = {}
        paths = {who: DIRECTORY / f"filled-{who}" for who in STORES}
        try:
            for who, path in paths.items():
                path.mkdir(parents=True)
                stores[who] = STORES[who](path, False)
                for _ in range(total // 1000):
                    stores[who].append([self._random.randbytes(size) for _ in range(1000)])
            self._sizes(paths, total)
            yield stores
        finally:
            for store in stores.values():
                store.close()
            shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _sizes(self, paths: dict[str, Path], total: int) -> None:
        row = Row("on disk, a record of 100 B", "bytes", more_is_better=False, best_of_others=True)
        if self._names and row.name not in self._names:
            return
        self.rows.append(row)
        for who, path in paths.items():
            used = sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())
            row.add(who, used / total)
            print_figure(row, who)

    def _look_up(self, store: Store) -> float:
        offsets = [self._random.randrange(self._count(1_000_000) // 1000 * 1000) for _ in range(LOOK_UPS)]
        began = time.perf_counter()
        for offset in offsets:
            store.get(offset)
        return (time.perf_counter() - began) / LOOK_UPS * 1e6


def scan(store: Store) -> float:
    """Return records per second of a full read; each offset and value becomes a Python object."""
    began = time.perf_counter()
    count = last = 0
    for offset, _ in store.scan():
        count, last = count + 1, offset
    assert count == last + 1, "a store lost a value"
    return count / (time.perf_counter() - began)


@contextmanager
def fresh_directory(name: str) -> Iterator[Path]:
    """Yield an empty directory, and delete it afterwards."""
    path = DIRECTORY / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def opened(who: str, *, durable: bool) -> Iterator[Store]:
    """Yield an empty store."""
    with fresh_directory(who) as path:
        store = STORES[who](path, durable)
        try:
            yield store
        finally:
            store.close()


def main() -> None:
    bench = Bench(*asked_for(__doc__))
    bench.run()
    Console(width=140).print(beside_table(bench.rows, [*STORES, LIMIT]))
    write(RESULT, bench.rows)


if __name__ == "__main__":
    main()
