"""Compare three of our processes with three of Kafka's: `make bench-peers`, or `python -m bench.peers.wire`.

Both run on the same machine, with the same clients and settings, in turns: each row is measured on one
cluster and then on the other, for some rounds. The result is both medians and their ratio. Both clusters are
up all the time, but only one works. Kafka is warmed up first. Prints a table and writes
build/bench-peers.json. Without Java or Maven only kreplica is measured, and a line says so.

What a row has written is deleted before the next figure is measured, as retention does in a cluster that has
run for a while. Otherwise the page cache grows, and its growth is what is measured: in a virtual machine
whose host gives it memory on first use, a new page costs 15 times as much as copying the records into it.

 --rounds N     rounds of each row (3)
 --rows a,b     only these rows
 --scale F      share of each row's records (1.0)
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.peers import grouping, transacting, work
from bench.peers.connections import request_rate
from bench.peers.fetching import fetch_rate
from bench.peers.kafka_cluster import KafkaCluster, missing
from bench.peers.librdkafka import (
    WAIT_S,
    SilentCluster,
    consume_rate,
    create_topic,
    delete_topics,
    latencies_us,
    leader_of,
    produce_rate,
    silence_ms,
    spread_rate,
)
from bench.peers.recorded import Recorded
from bench.peers.rows import KAFKA, LIMIT, OURS, Row, asked_for, print_figure, table_of, write
from tests.support.node_processes import NodeProcesses

BUILD = Path(__file__).parents[2] / "build"
DIRECTORY, RESULT = BUILD / "bench-peers", BUILD / "bench-peers.json"
# The time until a cluster is idle after a start or a restart of a node.
SETTLE_S = 3.0
# How long the nodes keep the files of a deleted topic.
DELETE_DELAY_MS = 10
# Numbers of connections, with the goals of their rows.
CONNECTIONS = {200: 2.5, 1_000: 2.0}
MANY_PARTITIONS = 1_000
# Transactional producers at work at once, each with its own partition: of librdkafka, and of franz-go.
PRODUCERS, MANY_PRODUCERS = 16, (64, 256)
# Records that a JVM gets before anything is measured.
WARM_UP = 2_000_000


class Bench:
    """The clusters and the rows."""

    def __init__(self, rounds: int, scale: float, names: list[str]) -> None:
        self._rounds = rounds
        self._scale = scale
        self._names = names
        self._clusters: dict[str, Any] = {}
        self._topics = 0
        # Topics to delete before the next figure is measured.
        self._used: list[str] = []
        self.rows: list[Row] = []

    def run(self) -> None:
        """Measure the requested rows."""
        reason = missing()
        if reason:
            print(f"Kafka is not measured: {reason}")
        sides = [OURS] if reason else [OURS, KAFKA]
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(parents=True)
        try:
            self._starts(sides)
            self._warm_up()
            self._work()
            for row, measure in self._measures():
                self._measure(row, measure)
            self._kills()
        finally:
            for cluster in self._clusters.values():
                cluster.close()
            shutil.rmtree(DIRECTORY, ignore_errors=True)

    def _measures(self) -> Iterator[tuple[list[Row], Callable[[Any], list[float]]]]:
        many, few = self._count(1_000_000), self._count(200_000)
        small, large = Row("produce, 100 B", "records/s", 3.0), Row("produce, 1 KiB", "records/s", 3.0)
        yield [small], lambda cluster: self._produce(cluster, small, records=many, size=100)
        yield [large], lambda cluster: self._produce(cluster, large, records=few, size=1024)
        latency = [
            Row("latency, p50", "us", 0.5, more_is_better=False),
            Row("latency, p99", "us", 0.2, more_is_better=False),
        ]
        records = self._count(5_000)
        yield (
            latency,
            lambda cluster: list(latencies_us(cluster.bootstrap, self._topic(cluster), records=records)),
        )
        consume = Row("consume, 100 B", "records/s", 1.5)
        yield [consume], lambda cluster: self._consume(cluster, consume)
        yield [Row("fetch, answers not looked into", "MiB/s", 1.5)], self._fetch
        for connections, goal in CONNECTIONS.items():
            row = Row(f"requests, {connections} connections", "requests/s", goal)
            yield [row], partial(self._requests, connections)
        spread = Row("produce, 100 B, 1,000 partitions", "records/s", 300_000.0, is_absolute=True)
        yield [spread], self._produce_spread
        yield from self._transactions()
        yield from self._groups()

    def _transactions(self) -> Iterator[tuple[list[Row], Callable[[Any], list[float]]]]:
        rows = [
            Row(f"transactions, {PRODUCERS} producers", "commits/s", 1.5),
            Row("nodes' CPU of a transaction", "ms", more_is_better=False),
        ]
        yield rows, partial(self._small_transactions, transacting.transactions_rate, PRODUCERS)
        reason = transacting.FRANZ_GO.missing()
        if reason:
            print(f"franz-go does not work here: {reason}")
        for producers in () if reason else MANY_PRODUCERS:
            rows = [
                Row(
                    f"transactions of franz-go, {producers} producers", "commits/s", 1_000.0, is_absolute=True
                ),
                Row(f"nodes' CPU of a transaction, {producers} producers", "ms", more_is_better=False),
            ]
            yield rows, partial(self._small_transactions, transacting.franz_go_rate, producers)
        yield [Row("transactions, one producer", "commits/s")], self._transactions_alone
        commit = Row("commit, p50", "us", 0.7, more_is_better=False)
        commits = self._count(1_000)
        yield (
            [commit],
            lambda cluster: [
                transacting.commit_us(cluster.bootstrap, self._topic(cluster), transactions=commits)
            ],
        )
        plain = Row("produce, 100 B, idempotent", "records/s")
        share = Row("in transactions of 100 ms, of that rate", "%", 90.0, is_absolute=True)
        pause = Row("pause between transactions of 100 ms, p50", "ms", more_is_better=False)
        yield [plain, share, pause], self._transactional_share
        if not missing():
            java = Row("producer-perf, 100 B", "records/s")
            java_share = Row("producer-perf in transactions of 100 ms", "%", 90.0, is_absolute=True)
            yield [java, java_share], self._share_of_producer_perf

    def _groups(self) -> Iterator[tuple[list[Row], Callable[[Any], list[float]]]]:
        gap = Row("kill -9 of one of 10 members, partitions unread", "ms", 1.0, more_is_better=False)
        yield [gap], self._unread
        yield [Row("share group, 100 B", "records/s", 1.0)], self._share
        latency = Row("share group, from produce to accept, p50", "us", 0.7, more_is_better=False)
        records = self._count(1_000)
        yield (
            [latency],
            lambda cluster: [
                grouping.share_latency_us(cluster.bootstrap, self._topic(cluster), records=records)
            ],
        )

    def _unread(self, cluster: Any) -> list[float]:
        topic = self._new_name()
        create_topic(cluster.bootstrap, topic, grouping.PARTITIONS)
        return [grouping.unavailable_ms(cluster.bootstrap, topic)]

    def _share(self, cluster: Any) -> list[float]:
        topic, records = self._topic(cluster), self._count(200_000)
        produce_rate(cluster.bootstrap, topic, records=records, size=100)
        return [grouping.share_rate(cluster.bootstrap, topic, records=records)]

    def _small_transactions(self, rate: Callable[..., float], producers: int, cluster: Any) -> list[float]:
        topic, count = self._new_name(), self._count(8_000 if producers in MANY_PRODUCERS else 4_000)
        create_topic(cluster.bootstrap, topic, producers)
        rates: list[float] = []

        def run() -> None:
            rates.append(rate(cluster.bootstrap, topic, producers=producers, transactions=count))

        spent_s = work.spent_s(cluster, run)
        return [*rates, spent_s * 1000 / count]

    def _transactions_alone(self, cluster: Any) -> list[float]:
        topic, count = self._topic(cluster), self._count(1_000)
        return [transacting.transactions_rate(cluster.bootstrap, topic, producers=1, transactions=count)]

    def _transactional_share(self, cluster: Any) -> list[float]:
        # Enough for some fifty transactions.
        topic, records = self._topic(cluster), self._count(3_000_000)
        plain = transacting.idempotent_rate(cluster.bootstrap, topic, records=records)
        rate, pause_ms = transacting.transactional_rate(cluster.bootstrap, topic, records=records)
        return [plain, 100 * rate / plain, pause_ms]

    def _share_of_producer_perf(self, cluster: Any) -> list[float]:
        topic, records = self._topic(cluster), self._count(1_000_000)
        rate = partial(transacting.producer_perf_rate, cluster.bootstrap, topic, records=records)
        plain = rate(in_transactions=False)
        return [plain, 100 * rate(in_transactions=True) / plain]

    def _count(self, records: int) -> int:
        return max(1, int(records * self._scale))

    def _measure(self, rows: list[Row], measure: Callable[[Any], list[float]]) -> None:
        if not any(self._is_wanted(row) for row in rows):
            return
        self.rows += rows
        for _ in range(self._rounds):
            for who, cluster in self._clusters.items():
                for row, figure in zip(rows, measure(cluster), strict=True):
                    row.add(who, figure)
                    print_figure(row, who)
                self._delete(cluster)

    def _is_wanted(self, row: Row) -> bool:
        return not self._names or any(name in row.name for name in self._names)

    def _topic(self, cluster: Any) -> str:
        """Create a topic; the time for it is not measured."""
        name = self._new_name()
        create_topic(cluster.bootstrap, name)
        return name

    def _new_name(self) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        self._used.append(name)
        return name

    def _delete(self, cluster: Any) -> None:
        """Delete the topics that the last figure used, and wait until their files are gone."""
        used, self._used = self._used, []
        if not used:
            return
        delete_topics(cluster.bootstrap, used)
        until, prefixes = time.monotonic() + WAIT_S, tuple(f"{name}-" for name in used)
        while any(name.startswith(prefixes) for _, names, _ in os.walk(DIRECTORY) for name in names):
            if time.monotonic() > until:
                raise SilentCluster(f"{used} still have files {WAIT_S:.0f} s after they were deleted")
            time.sleep(0.05)

    # ---- rows with their own method ------------------------------------------------------------------------

    def _starts(self, sides: list[str]) -> None:
        """Restart each cluster some times, and leave the last one of each running."""
        start = Row("start, three nodes", "s", 2.0, is_absolute=True, more_is_better=False)
        idle = Row("memory of an idle node", "MB", 100.0, is_absolute=True, more_is_better=False)
        rounds = self._rounds if self._is_wanted(start) or self._is_wanted(idle) else 1
        self.rows += [row for row in (start, idle) if self._is_wanted(row)]
        for number in range(rounds):
            for who in sides:
                if who in self._clusters:
                    self._clusters.pop(who).close()
                cluster = new_cluster(who, number)
                self._clusters[who] = cluster
                began = time.perf_counter()
                cluster.start_all()
                start.add(who, time.perf_counter() - began)
                time.sleep(SETTLE_S)
                idle.add(who, statistics.mean(resident_mb(cluster.pid(node)) for node in cluster.ids))
                print_figure(start, who)
                print_figure(idle, who)

    def _warm_up(self) -> None:
        """Produce what a JVM needs to be fast; the topic stays, so that no cluster is empty."""
        for cluster in self._clusters.values():
            records = self._count(WARM_UP)
            produce_rate(cluster.bootstrap, self._topic(cluster), records=records, size=100)
        self._used.clear()

    def _work(self) -> None:
        """Measure the processor time of the nodes for fixed work."""
        rows = [
            Row(f"nodes' CPU, {name}", "s", goal, is_absolute=True, more_is_better=False)
            for name, goal in (
                *((each.name, each.goal_s) for each in work.WORKS),
                ("1,000 records, one in flight", 0.35),
                ("idle for a minute", 1.0),
            )
        ]
        if not any(self._is_wanted(row) for row in rows):
            return
        *of_produce, one, idle = rows
        for row, each in zip(of_produce, work.WORKS, strict=True):
            self._measure([row], partial(self._spent, each))
        self._measure([one], self._one_in_flight)
        self._measure([idle], lambda cluster: [work.of_idle(cluster)])

    def _spent(self, each: work.Work, cluster: Any) -> list[float]:
        return [work.of_produce(cluster, self._new_name(), each, self._scale)]

    def _one_in_flight(self, cluster: Any) -> list[float]:
        return [work.of_one_in_flight(cluster, self._new_name(), self._count(5_000))]

    def _produce(self, cluster: Any, row: Row, *, records: int, size: int) -> list[float]:
        topic = self._topic(cluster)
        rate = produce_rate(cluster.bootstrap, topic, records=records, size=size)
        if cluster is self._clusters[OURS]:
            with Recorded(cluster.bootstrap) as recorded:
                produce_rate(recorded.bootstrap, topic, records=1, size=size)
                row.add(LIMIT, produce_rate(recorded.bootstrap, topic, records=records, size=size))
            print_figure(row, LIMIT)
        return [rate]

    def _consume(self, cluster: Any, row: Row) -> list[float]:
        topic, records = self._topic(cluster), self._count(1_000_000)
        produce_rate(cluster.bootstrap, topic, records=records, size=100)
        rate = consume_rate(cluster.bootstrap, topic, records=records)
        if cluster is self._clusters[OURS]:
            with Recorded(cluster.bootstrap) as recorded:
                consume_rate(recorded.bootstrap, topic, records=records)
                row.add(LIMIT, consume_rate(recorded.bootstrap, topic, records=records))
            print_figure(row, LIMIT)
        return [rate]

    def _fetch(self, cluster: Any) -> list[float]:
        topic, records = self._topic(cluster), self._count(1_000_000)
        produce_rate(cluster.bootstrap, topic, records=records, size=100)
        return [fetch_rate(*self._leader_address(cluster, topic), topic, records=records)]

    def _requests(self, connections: int, cluster: Any) -> list[float]:
        topic, requests = self._topic(cluster), self._count(20_000) // connections
        address = self._leader_address(cluster, topic)
        return [request_rate(*address, topic, connections=connections, requests=max(1, requests))]

    def _produce_spread(self, cluster: Any) -> list[float]:
        topic, records = self._new_name(), self._count(1_000_000)
        create_topic(cluster.bootstrap, topic, MANY_PARTITIONS)
        return [spread_rate(cluster.bootstrap, topic, range(MANY_PARTITIONS), records=records, size=100)]

    def _leader_address(self, cluster: Any, topic: str) -> tuple[str, int]:
        leader = leader_of(cluster.bootstrap, topic)
        host, _, port = cluster.bootstrap.split(",")[cluster.ids.index(leader)].rpartition(":")
        return host, int(port)

    def _kills(self) -> None:
        row = Row("kill -9 of the leader, no ack", "ms", 1000.0, is_absolute=True, more_is_better=False)
        if not self._is_wanted(row):
            return
        self.rows.append(row)
        for _ in range(self._rounds):
            for who, cluster in self._clusters.items():
                topic = self._topic(cluster)
                with killed_node(cluster, leader_of(cluster.bootstrap, topic)) as kill:
                    row.add(who, silence_ms(cluster.bootstrap, topic, kill))
                print_figure(row, who)
                leader_of(cluster.bootstrap, topic)


@contextmanager
def killed_node(cluster: Any, node_id: int) -> Iterator[Callable[[], None]]:
    """Yield a function that kills the node; restart the node at the end."""
    yield lambda: cluster.kill(node_id)
    cluster.start(node_id)
    time.sleep(SETTLE_S)


def new_cluster(who: str, number: int) -> Any:
    """Create a formatted cluster whose nodes do not run yet."""
    directory = DIRECTORY / f"{who}-{number}"
    if who == OURS:
        limit = 2 * max(CONNECTIONS)
        return NodeProcesses(
            directory,
            min_insync_replicas=2,
            max_connections=limit,
            max_connections_per_ip=limit,
            log_segment_delete_delay_ms=DELETE_DELAY_MS,
            **grouping.SETTINGS,
        )
    directory.mkdir()
    kafka = KafkaCluster(
        directory,
        log_segment_delete_delay_ms=DELETE_DELAY_MS,
        log_initial_task_delay_ms=1,
        # Kafka's defaults, which are those of kreplica.
        transaction_state_log_num_partitions=50,
        transaction_state_log_replication_factor=3,
        transaction_state_log_min_isr=2,
        **grouping.SETTINGS,
    )
    kafka.format()
    return kafka


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in each)
    return int(line.split()[1]) / 1024


def main() -> None:
    bench = Bench(*asked_for(__doc__))
    bench.run()
    Console(width=120).print(table_of(bench.rows))
    write(RESULT, bench.rows)


if __name__ == "__main__":
    main()
