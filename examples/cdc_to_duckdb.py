"""Change data capture: changes in a topic become a table in DuckDB, each applied once.

The table and the offset up to which it is current change in one transaction of DuckDB. So a program that dies
anywhere continues at the right change. No server has to run: the log's files are read as Arrow columns.
"""

import json
import tempfile

import duckdb

import kreplica

APPLY = """
    create temp table latest as
        select decode(key) as id, arg_max(value, "offset") as value from changes group by key;
    delete from customers where id in (select id from latest);
    insert into customers
        select id, decode(value)::json->>'name', (decode(value)::json->>'credit')::int
        from latest where value is not null;
    drop table latest;
"""


def change(log: kreplica.Log, key: str, row: dict[str, object] | None) -> None:
    """Append a customer's new row, or its deletion."""
    log.append_one(None if row is None else json.dumps(row).encode(), key.encode())


def catch_up(database: duckdb.DuckDBPyConnection, directory: str) -> int:
    """Apply the changes since the last time; return their number."""
    [(position,)] = database.execute("select position from applied").fetchall()
    with kreplica.Log.open(directory, read_only=True) as log:
        changes = log.to_arrow(columns=["offset", "key", "value"], start=position)
    if changes.num_rows:
        database.register("changes", changes)
        database.execute("begin")
        database.execute(APPLY)
        database.execute("update applied set position = ?", [changes["offset"][-1].as_py() + 1])
        database.execute("commit")
    return changes.num_rows


def main(directory: str) -> None:
    database = duckdb.connect(f"{directory}/copy.duckdb")
    database.execute("create table customers (id text primary key, name text, credit int)")
    database.execute("create table applied as select 0::bigint as position")
    with kreplica.Log.open(f"{directory}/customers-0") as log:
        change(log, "1", {"name": "Ada", "credit": 100})
        change(log, "2", {"name": "Bob", "credit": 50})
        print("applied:", catch_up(database, f"{directory}/customers-0"))
        change(log, "1", {"name": "Ada", "credit": 70})
        change(log, "2", None)
        print("applied:", catch_up(database, f"{directory}/customers-0"))
    print(database.execute("from customers order by id").fetchall())
    database.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
