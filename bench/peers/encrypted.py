"""Compare one of our processes with one of Kafka's over TLS: `python -m bench.peers.encrypted`.

Both nodes encrypt by the same key of 256 bits on an elliptic curve, run all the time, and work in turns.
librdkafka is the client. There is one replica: with three nodes on two cores, the followers of Kafka do not
keep up over TLS and leave the ISR. Prints a table and writes build/bench-encrypted.json.

 --rounds N     rounds of each row (3)
 --rows a,b     only these rows
 --scale F      share of each row's records (1.0)
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from bench.peers import librdkafka
from bench.peers.librdkafka import WAIT_S, consume_rate, latencies_us, produce_rate
from bench.peers.rows import KAFKA, OURS, Row, asked_for, print_figure, table_of, write
from kreplica.cluster.security import ClusterSecurity, Security
from tests.conformance.kafka_peer import Node, missing
from tests.support.node_processes import NodeProcesses

BUILD = Path(__file__).parents[2] / "build"
RESULT = BUILD / "bench-encrypted.json"
WARM_UP = 1_000_000


class Bench:
    """Measures the rows on the nodes at `bootstrap`, by name."""

    def __init__(self, rounds: int, scale: float, names: list[str], bootstrap: Mapping[str, str]) -> None:
        self._rounds, self._scale, self._names = rounds, scale, names
        self._bootstrap = bootstrap
        self._topics = 0
        self.rows: list[Row] = []

    def run(self) -> None:
        """Warm up, and measure each row in turns."""
        for servers in self._bootstrap.values():
            self._rate(100, WARM_UP, servers)
        for name, size, records in (("100 B", 100, 1_000_000), ("1 KiB", 1024, 200_000)):
            rate = partial(self._rate, size, int(records * self._scale))
            self._measure(
                [Row(f"TLS: produce, {name}", "records/s", 1.2)], lambda servers, rate=rate: [rate(servers)]
            )
        latency = Row("TLS: latency, p50", "us", 0.8, more_is_better=False)
        self._measure([latency, Row("TLS: latency, p99", "us", more_is_better=False)], self._latencies)
        self._measure([Row("TLS: consume, 100 B", "records/s")], self._consumed)

    def _measure(self, rows: list[Row], measure: Callable[[str], list[float]]) -> None:
        if self._names and not any(name in row.name for name in self._names for row in rows):
            return
        self.rows += rows
        for _ in range(self._rounds):
            for who, servers in self._bootstrap.items():
                for row, figure in zip(rows, measure(servers), strict=True):
                    row.add(who, figure)
                    print_figure(row, who)

    def _topic(self, servers: str) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        admin = AdminClient({**librdkafka.OF_EVERY_CLIENT, "bootstrap.servers": servers})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
        return name

    def _rate(self, size: int, records: int, servers: str) -> float:
        return produce_rate(servers, self._topic(servers), records=records, size=size)

    def _latencies(self, servers: str) -> list[float]:
        return list(latencies_us(servers, self._topic(servers), records=int(5_000 * self._scale)))

    def _consumed(self, servers: str) -> list[float]:
        topic, records = self._topic(servers), int(1_000_000 * self._scale)
        produce_rate(servers, topic, records=records, size=100)
        return [consume_rate(servers, topic, records=records)]


def main() -> None:
    asked = asked_for(__doc__)
    BUILD.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="encrypted-", dir=BUILD))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        security = ClusterSecurity(Security(protocol="SSL"), str(directory))
        librdkafka.OF_EVERY_CLIENT.update(security.librdkafka(None, "PLAIN"))
        settings = {
            "listener_security_protocol_map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": directory / "security" / "node.pem",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": directory / "security" / "ca.pem",
        }
        ours = stack.enter_context(NodeProcesses(directory / OURS, 1, **settings))
        bootstrap = {OURS: ours.bootstrap}
        reason = missing()
        if reason:
            print(f"Kafka is not measured: {reason}")
        else:
            kafka = Node(directory / KAFKA, **settings)
            kafka.format()
            bootstrap[KAFKA] = stack.enter_context(kafka).bootstrap
        bench = Bench(*asked, bootstrap)
        bench.run()
    Console(width=120).print(table_of(bench.rows))
    write(RESULT, bench.rows)


if __name__ == "__main__":
    main()
