"""Measure how long a killed node stops writers: `python -m bench.failover [rounds] [name=value ...]`.

Three node processes, each controller and broker, run with default settings or the given ones. A topic has six
partitions with three replicas. One librdkafka producer with its own defaults, acks=all among them, sends to
every partition continuously. Each round kills one node with SIGKILL, and restarts it when the others have
continued. The result is the longest time in which a partition had no acknowledgement, the client's back-offs
included.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_processes import NodeProcesses
from tests.support.tcp_cluster import WAIT_S

DIRECTORY = Path(__file__).parents[1] / "build" / "bench-failover"
TOPIC, PARTITIONS = "failover", 6
SEND_EVERY_S = 0.005
SETTLED_S = 3.0
SILENCE_S = 4.0


class Writer:
    """A producer, and the longest silence of each partition since `begin`."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self.last = [time.monotonic()] * PARTITIONS
        self.longest = [0.0] * PARTITIONS
        self.failed = 0

    def begin(self) -> None:
        """Start measuring."""
        self.longest = [0.0] * PARTITIONS

    def write(self, seconds: float) -> None:
        """Send for this time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"v", partition=partition, on_delivery=self._acknowledged)
            self._producer.poll(SEND_EVERY_S)

    def close(self) -> None:
        self._producer.flush(WAIT_S)

    def _acknowledged(self, error: object, message: object) -> None:
        if error is not None:
            self.failed += 1
            return
        now, partition = time.monotonic(), message.partition()  # type: ignore[attr-defined]
        self.longest[partition] = max(self.longest[partition], now - self.last[partition])
        self.last[partition] = now


def controller_of(admin: AdminClient) -> int:
    """Return the id of the active controller's node, as the cluster reports it."""
    return int(admin.list_topics(timeout=WAIT_S).controller_id)


def run(rounds: int, settings: dict[str, object]) -> None:
    """Kill nodes in turn, and print the result of each kill."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    with NodeProcesses(DIRECTORY, **settings) as nodes:
        admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(WAIT_S)
        writer = Writer(nodes.bootstrap)
        writer.write(SETTLED_S)
        worst = 0.0
        for number in range(rounds):
            active = controller_of(admin)
            victim = active if number % 2 else next(each for each in nodes.ids if each != active)
            writer.begin()
            nodes.kill(victim)
            writer.write(SILENCE_S)
            silence = max(writer.longest)
            worst = max(worst, silence)
            role = "leader and controller" if victim == active else "leader"
            print(f"killed node {victim}, {role}: {silence * 1000:.0f} ms without an ack", flush=True)
            nodes.start(victim)
            writer.write(SETTLED_S)
        writer.close()
        print(f"the longest of {rounds}: {worst * 1000:.0f} ms; {writer.failed} records failed")
    shutil.rmtree(DIRECTORY)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    run(rounds, dict(each.split("=", 1) for each in sys.argv[2:]))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
