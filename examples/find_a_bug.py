"""Find a bug by its seed: an application that asks for too few acknowledgements loses an order.

The simulator runs the cluster under a simulated clock. Seeds are tried until one loses an acknowledged order.
The same seed gives the same run in every process, so it can be debugged, and kept as a test of the fix.
"""

import random
from itertools import count

import kreplica

ORDERS = 6


def lost_orders(seed: int, acks: str | int) -> list[int]:
    """Place orders while the leader loses its power; return the acknowledged ones that are missing."""
    choose = random.Random(seed)
    with kreplica.Simulation(seed=seed, brokers=3) as simulation:
        simulation.create_topic("orders", replication_factor=3, config={"min.insync.replicas": 2})
        simulation.set_network(delay_ms=(1, 10))
        acknowledged = []
        unlucky = choose.randrange(ORDERS)
        for number in range(ORDERS):
            order = b"%d" % number
            simulation.append("orders", [order], partition=0, acks=acks).result()
            acknowledged.append(number)
            if number == unlucky:
                leader = simulation.partition("orders").leader
                simulation.power_cut(leader)
        found = {int(record.value) for record in simulation.read("orders", 0)}
        return [number for number in acknowledged if number not in found]


def main() -> None:
    seed, lost = next((seed, lost) for seed in count(1) if (lost := lost_orders(seed, acks=1)))
    print(f"seed {seed} loses orders {lost} with acks=1")
    print("again:", lost_orders(seed, acks=1) == lost)
    print("with acks=all it loses:", lost_orders(seed, acks="all"))


if __name__ == "__main__":
    main()
