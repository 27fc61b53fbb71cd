"""Embedded stores as alternatives to a log: lmdb, sqlite3 and rocksdict, each storing numbered values.

A store assigns offsets from 0 to values, and reads them in order or by offset. With `durable` an append
returns when its values survive a power cut. Without it an append survives the death of the process, in all
four. Each store has the settings that its manual names for that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import lmdb
import rocksdict

import kreplica

MAP_BYTES = 16 << 30


class Store(Protocol):
    """An open store."""

    def append(self, values: Sequence[bytes]) -> None: ...

    def scan(self) -> Iterator[tuple[int, bytes]]: ...

    def get(self, offset: int) -> bytes: ...

    def close(self) -> None: ...


class KreplicaStore:
    """A partition's log."""

    def __init__(self, path: Path, durable: bool) -> None:
        config = {"durability": "fsync"} if durable else {}
        self._log = kreplica.Log.open(str(path / "values-0"), config=config)

    def append(self, values: Sequence[bytes]) -> None:
        self._log.append(values)

    def scan(self) -> Iterator[tuple[int, bytes]]:
        for record in self._log.read():
            yield record.offset, record.value

    def get(self, offset: int) -> bytes:
        value = next(iter(self._log.read(start=offset))).value
        assert value is not None
        return value

    def close(self) -> None:
        self._log.close()


class LmdbStore:
    """A database with integer keys, appended in order."""

    def __init__(self, path: Path, durable: bool) -> None:
        self._environment = lmdb.open(
            str(path), map_size=MAP_BYTES, max_dbs=1, sync=durable, metasync=durable
        )
        self._values = self._environment.open_db(b"values", integerkey=True)
        with self._environment.begin(db=self._values) as transaction:
            self._next = transaction.stat(self._values)["entries"]

    def append(self, values: Sequence[bytes]) -> None:
        with self._environment.begin(db=self._values, write=True) as transaction:
            for offset, value in enumerate(values, self._next):
                transaction.put(offset.to_bytes(8, "little"), value, append=True)
        self._next += len(values)

    def scan(self) -> Iterator[tuple[int, bytes]]:
        with self._environment.begin(db=self._values) as transaction:
            for key, value in transaction.cursor():
                yield int.from_bytes(key, "little"), value

    def get(self, offset: int) -> bytes:
        with self._environment.begin(db=self._values) as transaction:
            value = transaction.get(offset.to_bytes(8, "little"))
        assert value is not None
        return bytes(value)

    def close(self) -> None:
        self._environment.close()


class SqliteStore:
    """A table with the offset as its row id, and a write-ahead log."""

    def __init__(self, path: Path, durable: bool) -> None:
        self._database = sqlite3.connect(path / "values.sqlite", isolation_level=None)
        self._database.execute("pragma journal_mode=wal")
        self._database.execute(f"pragma synchronous={'full' if durable else 'off'}")
        self._database.execute("create table if not exists log (offset integer primary key, value blob)")

    def append(self, values: Sequence[bytes]) -> None:
        self._database.execute("begin")
        self._database.executemany("insert into log (value) values (?)", [(value,) for value in values])
        self._database.execute("commit")

    def scan(self) -> Iterator[tuple[int, bytes]]:
        for offset, value in self._database.execute("select offset, value from log order by offset"):
            yield offset - 1, value

    def get(self, offset: int) -> bytes:
        row = self._database.execute("select value from log where offset=?", (offset + 1,)).fetchone()
        return bytes(row[0])

    def close(self) -> None:
        self._database.close()


class RocksStore:
    """RocksDB with big-endian keys, which sort as numbers do."""

    def __init__(self, path: Path, durable: bool) -> None:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self._database = rocksdict.Rdict(str(path / "rocks"), options)
        self._writing = rocksdict.WriteOptions()
        self._writing.sync = durable
        self._next = 0

    def append(self, values: Sequence[bytes]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for offset, value in enumerate(values, self._next):
            batch.put(offset.to_bytes(8, "big"), value)
        self._database.write(batch, self._writing)
        self._next += len(values)

    def scan(self) -> Iterator[tuple[int, bytes]]:
        for key, value in self._database.items():
            yield int.from_bytes(key, "big"), value

    def get(self, offset: int) -> bytes:
        value: bytes = self._database[offset.to_bytes(8, "big")]
        return value

    def close(self) -> None:
        self._database.close()


STORES = {"kreplica": KreplicaStore, "lmdb": LmdbStore, "sqlite3": SqliteStore, "rocksdict": RocksStore}
