"""Kafka Connect in distributed mode over three of our nodes: lines of a file go through a topic to another
file, while a worker and nodes are killed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java_program import JavaProcess
from tests.support.node_processes import NodeProcesses
from tests.support.polling import wait_until
from tests.support.ports import free_addresses
from tests.support.secured import java, librdkafka

pytestmark = pytest.mark.conformance

TOPIC = "lines"
TIMEOUT_S = 360.0
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 1000,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
}
# What every worker has. Tasks of a lost worker are taken over after its session, and a second more. The admin
# client remembers leaders, and waits for one that has died until its call times out; a worker has to read the
# topic of configurations meanwhile.
WORKER = {
    "group.id": "workers",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.partitions": 3,
    "status.storage.topic": "connect-status",
    "status.storage.partitions": 1,
    "exactly.once.source.support": "enabled",
    "plugin.discovery": "service_load",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "scheduled.rebalance.max.delay.ms": 1000,
    "offset.flush.interval.ms": 500,
    "request.timeout.ms": 15000,
    "default.api.timeout.ms": 60000,
    "worker.sync.timeout.ms": 30000,
    "producer.transaction.timeout.ms": 10000,
    "consumer.isolation.level": "read_committed",
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path / "nodes", 3, **SETTINGS) as started:
        yield started


class Workers:
    """Two workers of Connect, by their addresses, and what their REST interface does."""

    def __init__(self, nodes: NodeProcesses, directory: Path) -> None:
        self._nodes = nodes
        self._directory = directory
        directory.mkdir(parents=True)
        self.names = [f"{host}:{port}" for host, port in free_addresses(2)]
        self._processes: dict[str, JavaProcess] = {}

    def start(self, name: str) -> None:
        security = {
            f"{prefix}{name}": value
            for prefix in ("", "admin.", "consumer.", "producer.")
            for name, value in java(self._nodes.bootstrap).items()
        }
        servers = {"bootstrap.servers": self._nodes.bootstrap, "listeners": f"http://{name}"}
        settings = {**WORKER, **security, **servers}
        path = self._directory / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log = self._directory / f"{name}.log"
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._processes[name] = JavaProcess(log, main, str(path))

    def kill(self, name: str) -> None:
        self._processes.pop(name).kill()

    def configure(self, connector: str, **settings: object) -> None:
        """Create the connector once a worker takes it."""
        path = f"/connectors/{connector}/config"
        asked = {key.replace("_", "."): str(value) for key, value in settings.items()}
        wait_until(
            lambda: self._ask(path, asked) is not None, f"{connector} is configured", timeout_s=TIMEOUT_S
        )

    def worker_of(self, connector: str) -> str | None:
        """Return the worker that runs the connector's task, None if it does not run."""
        status = self._ask(f"/connectors/{connector}/status")
        running = [
            each["worker_id"] for each in (status or {}).get("tasks", ()) if each["state"] == "RUNNING"
        ]
        return running[0] if running else None

    def _ask(self, path: str, body: Any = None) -> Any:
        """Return the answer of a worker that runs; None without one."""
        data = None if body is None else json.dumps(body).encode()
        for name in self._processes:
            request = urllib.request.Request(
                f"http://{name}{path}",
                data,
                {"Content-Type": "application/json"},
                method="GET" if body is None else "PUT",
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.loads(response.read())
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                continue
        return None

    def close(self) -> None:
        """End the workers."""
        for process in self._processes.values():
            process.stop()


def committed_lines(reader: Consumer, found: list[str]) -> int:
    """Add what the reader gets now; return the number of lines."""
    for message in reader.consume(1000, 0.2):
        assert message.error() is None, message.error()
        found.append(message.value().decode())
    return len(found)


def test_lines_of_a_file_come_exactly_once(nodes: NodeProcesses, tmp_path: Path) -> None:
    admin = AdminClient(librdkafka(nodes.bootstrap))
    topic = NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[TOPIC].result(60)
    source, target = tmp_path / "source", tmp_path / "target"
    written: list[str] = []

    def write(lines: int) -> None:
        more = [f"line {number}" for number in range(len(written), len(written) + lines)]
        written.extend(more)
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in more)

    write(200)
    reader = Consumer(
        {
            **librdkafka(nodes.bootstrap),
            "group.id": "readers",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: list[str] = []
    workers = Workers(nodes, tmp_path / "workers")

    def wait_for_all(what: str) -> None:
        wait_until(lambda: committed_lines(reader, found) >= len(written), what, timeout_s=TIMEOUT_S)

    try:
        for name in workers.names:
            workers.start(name)
        package = "org.apache.kafka.connect.file"
        workers.configure(
            "source",
            connector_class=f"{package}.FileStreamSourceConnector",
            tasks_max=1,
            file=source,
            topic=TOPIC,
            exactly_once_support="required",
        )
        workers.configure(
            "sink",
            connector_class=f"{package}.FileStreamSinkConnector",
            tasks_max=1,
            file=target,
            topics=TOPIC,
        )
        wait_for_all("the first lines have come")
        assert found == written
        killed = workers.worker_of("source")
        assert killed is not None
        for _ in range(20):
            write(20)
            committed_lines(reader, found)
        workers.kill(killed)
        nodes.kill(1)
        write(200)
        wait_for_all("the other worker has taken over")
        nodes.start(1)
        workers.start(killed)
        nodes.kill(2)
        for _ in range(20):
            write(20)
            committed_lines(reader, found)
        wait_for_all("the lines have come in spite of the killed node")
        nodes.start(2)

        def copied() -> list[str]:
            return target.read_text().splitlines() if target.exists() else []

        wait_until(lambda: set(copied()) == set(written), "the sink has all lines", timeout_s=TIMEOUT_S)
    finally:
        workers.close()
    committed_lines(reader, found)
    reader.close()
    assert found == written
    assert nodes.logged("ERROR") == []
    # A sink may repeat what it has not confirmed, in the order of the topic.
    assert list(dict.fromkeys(copied())) == written
