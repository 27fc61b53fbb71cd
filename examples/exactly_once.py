"""An exactly-once pipeline: each order becomes one invoice, also if the program dies halfway.

A transaction holds the invoices and, because of `source`, the progress of the group. The first run dies in
the middle of a batch; its invoices are aborted, and the second run makes them anew.
"""

import kreplica


class Died(Exception):
    """Stands for the death of the process."""


def invoice_orders(cluster: kreplica.Cluster, die_at: bytes | None = None) -> None:
    with cluster.transaction("invoicing-1"):
        pass  # aborts what an earlier run has left open
    orders = cluster.consume(
        "orders", group="invoicing", isolation="read_committed", auto_commit=False, timeout=2
    )
    for records in orders.batches():
        with cluster.transaction("invoicing-1", source=orders) as transaction:
            for record in records:
                invoice = (record.key, b"invoice for " + record.value)
                sent = transaction.append("invoices", [invoice], partition=0)
                if record.value == die_at:
                    sent.result(timeout=20)  # it is in the topic, and aborted with the transaction
                    raise Died(f"died at {record.value.decode()}")


def main() -> None:
    with kreplica.Cluster(brokers=1) as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("invoices")
        cluster.append("orders", [(b"k", b"order %d" % number) for number in range(5)]).result(timeout=20)
        try:
            invoice_orders(cluster, die_at=b"order 3")
        except Died as error:
            print(error)
        invoice_orders(cluster)
        everything = list(cluster.read("invoices", 0))  # those of aborted transactions, too
        committed = list(cluster.read("invoices", 0, isolation="read_committed"))
        print("appended:", len(everything), "committed:", len(committed))
        for record in committed:
            print(record.value.decode())


if __name__ == "__main__":
    main()
