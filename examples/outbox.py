"""Outbox: a database and a topic agree, although no transaction spans both.

An order and its message are written to SQLite in one transaction. A relay moves messages to the topic. If it
dies after it has appended and before it has noted that, the next relay finds the messages in the topic and
does not send them again.
"""

import sqlite3
import tempfile

import kreplica

SCHEMA = """
    create table orders (id integer primary key, item text);
    create table outbox (id integer primary key, message blob, sent integer default 0);
    create table relay (position integer);
    insert into relay values (0);
"""


def place_order(database: sqlite3.Connection, item: str) -> None:
    with database:  # both rows or neither
        database.execute("insert into orders (item) values (?)", (item,))
        database.execute("insert into outbox (message) values (?)", (f"ordered {item}".encode(),))


def relay(database: sqlite3.Connection, cluster: kreplica.Cluster, *, die: bool = False) -> None:
    (position,) = database.execute("select position from relay").fetchone()
    # A relay of the same name that still runs somewhere is fenced here.
    with cluster.transaction("outbox-relay") as transaction:
        found = list(cluster.read("orders", 0, start=position, isolation="read_committed"))
        sent = {int(record.key) for record in found}
        rows = database.execute("select id, message from outbox where not sent order by id").fetchall()
        for number, message in rows:
            if number not in sent:
                transaction.append("orders", [(str(number).encode(), message)], partition=0)
    if die:
        raise SystemExit("the relay dies before it has noted what it sent")
    with database:
        database.executemany("update outbox set sent = 1 where id = ?", [(number,) for number, _ in rows])
        end = found[-1].offset + 1 if found else position
        database.execute("update relay set position = ?", (end,))


def main(directory: str) -> None:
    database = sqlite3.connect(f"{directory}/shop.db")
    database.executescript(SCHEMA)
    with kreplica.Cluster(brokers=1, directory=f"{directory}/cluster") as cluster:
        cluster.create_topic("orders")
        place_order(database, "a lamp")
        try:
            relay(database, cluster, die=True)
        except SystemExit as error:
            print(error)
        place_order(database, "a chair")
        relay(database, cluster)
        for record in cluster.read("orders", 0):
            print(record.key.decode(), record.value.decode())
    database.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(made)
