"""A test of your own application, on a real cluster in the test's process, while nodes fail.

Run it with `pytest examples/test_orders_with_faults.py`. The fixture `kreplica_cluster` comes with kreplica.
After each test it checks that no acknowledged record is lost and that all replicas are equal.
"""

import pytest

import kreplica
from kreplica.testing import faults


class Orders:
    """The application under test: it keeps orders in a topic, on at least two replicas."""

    def __init__(self, cluster: kreplica.Cluster) -> None:
        self.cluster = cluster
        cluster.create_topic("orders", replication_factor=3, config={"min.insync.replicas": 2})

    def place(self, item: str, timeout: float = 20) -> int:
        sent = self.cluster.append_one("orders", item.encode(), partition=0, timeout=timeout)
        return sent.result(timeout + 1).base_offset

    def all(self) -> list[str]:
        return [record.value.decode() for record in self.cluster.read("orders", 0)]


@pytest.fixture
def orders(kreplica_cluster: kreplica.Cluster) -> Orders:
    return Orders(kreplica_cluster)


def test_orders_survive_the_death_of_their_leader(orders: Orders) -> None:
    orders.place("a lamp")
    with faults.killed(orders.cluster, orders.cluster.partition("orders").leader):
        assert orders.place("a chair") == 1
        assert orders.all() == ["a lamp", "a chair"]


def test_an_order_is_placed_while_a_follower_is_cut_off(orders: Orders) -> None:
    follower = next(
        each for each in orders.cluster.nodes if each != orders.cluster.partition("orders").leader
    )
    with faults.isolated(orders.cluster, follower):
        orders.place("a lamp")
    assert orders.all() == ["a lamp"]


def test_a_slow_network_only_takes_longer(orders: Orders) -> None:
    with faults.delayed(orders.cluster, delay_ms=20):
        assert [orders.place(item) for item in ("a lamp", "a chair")] == [0, 1]
