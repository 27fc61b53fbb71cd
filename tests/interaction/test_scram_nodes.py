"""Nodes and a client that log in by SCRAM from the first start on, with users that `format` has added."""

from __future__ import annotations

import gc
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from kreplica.broker.node import IMAGE
from kreplica.broker.node_directories import BOOTSTRAP_RECORDS
from kreplica.cli.app import app
from kreplica.log.file_names import CLUSTER_METADATA_DIRECTORY
from kreplica.metadata.batch_reader import decoded_batches
from kreplica.metadata.records import FeatureLevelRecord, UserScramCredentialRecord
from kreplica.runtime.tcp_node import KafkaRaftServer
from kreplica.security.jaas import SCRAM_MODULE
from tests.support.polling import wait_until
from tests.support.ports import free_addresses

WAIT_S = 60.0
CLUSTER_ID = "abcdefghijklmnopqrstuv"
NODES = (1, 2, 3)
USERS = (
    "SCRAM-SHA-512=[name=node,password=of-nodes]",
    "SCRAM-SHA-256=[name=alice,password=sesame,iterations=8192]",
)


class ScramNodes:
    def __init__(self, directory: Path, password: str = "of-nodes") -> None:
        self.directory = directory
        self.failures: list[BaseException] = []
        found = [f"{host}:{port}" for host, port in free_addresses(2 * len(NODES))]
        self.clients = dict(zip(NODES, found[: len(NODES)], strict=True))
        self.quorum = dict(zip(NODES, found[len(NODES) :], strict=True))
        self.servers: dict[int, KafkaRaftServer] = {}
        for node_id in NODES:
            arguments = ["--directory", str(self.logs(node_id)), "--node-id", str(node_id)]
            users = [part for each in USERS for part in ("--add-scram", each)]
            made = CliRunner().invoke(app, ["format", *arguments, "--cluster-id", CLUSTER_ID, *users])
            assert made.exit_code == 0, made.output
            assert "of-nodes" not in made.output
            self.servers[node_id] = KafkaRaftServer(self.properties(node_id, password), self.failures.append)

    def logs(self, node_id: int) -> Path:
        return self.directory / f"node-{node_id}"

    def properties(self, node_id: int, password: str) -> dict[str, Any]:
        jaas = f'{SCRAM_MODULE} required username="node" password="{password}";'
        return {
            "node.id": node_id,
            "log.dirs": str(self.logs(node_id)),
            "listeners": f"CLIENTS://{self.clients[node_id]},CONTROLLER://{self.quorum[node_id]}",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{each}@{self.quorum[each]}" for each in NODES),
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": jaas,
            "listener.name.controller.scram-sha-512.sasl.jaas.config": jaas,
            "metadata.log.max.record.bytes.between.snapshots": 1,
        }

    def start(self) -> None:
        for server in self.servers.values():
            server.start()

    def wait(self) -> None:
        for server in self.servers.values():
            server.node.ready.result(WAIT_S)

    def close(self) -> None:
        for server in self.servers.values():
            if server.is_alive:
                server.close()
        assert self.failures == []

    def log_in(self, password: str = "sesame") -> None:
        properties = {
            "bootstrap.servers": ",".join(self.clients.values()),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": password,
        }
        found = AdminClient(properties, logger=logging.getLogger("quiet")).list_topics(timeout=10)
        assert set(found.brokers) == set(NODES)


def test_users_log_in_from_the_first_start_on_and_after_a_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    nodes = ScramNodes(tmp_path)
    try:
        nodes.start()
        nodes.wait()
        nodes.log_in()
        with pytest.raises(KafkaException):
            nodes.log_in("wrong")
        for node_id in NODES:
            metadata = nodes.logs(node_id) / CLUSTER_METADATA_DIRECTORY
            wait_until(lambda at=metadata: list(at.glob("*.checkpoint")), "there is a snapshot")  # type: ignore[misc]
        nodes.close()
        for node_id in NODES:
            # What is left is the snapshot and the log after it (KAFKA-17636).
            shutil.rmtree(nodes.logs(node_id) / IMAGE)
        nodes.start()
        nodes.wait()
        nodes.log_in()
        loaded = nodes.servers[1].node.loader.published
        assert set(loaded.scram_credentials) == {("alice", 1), ("node", 2)}
    finally:
        nodes.close()
        gc.collect()
    assert "sesame" not in caplog.text
    assert "of-nodes" not in caplog.text


def test_a_node_that_does_not_know_its_password_joins_no_quorum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = ScramNodes(tmp_path, password="other")
    try:
        nodes.start()
        wait_until(lambda: "the login as node failed" in caplog.text, "a failed login is logged")
        assert not any(server.node.ready.done() for server in nodes.servers.values())
    finally:
        nodes.close()


def test_the_first_records_are_those_that_kafka_writes(tmp_path: Path) -> None:
    nodes = ScramNodes(tmp_path)
    data = (nodes.logs(1) / BOOTSTRAP_RECORDS).read_bytes()
    records = [each.message for batch in decoded_batches(data) for each in batch.records]
    kinds = {type(each) for each in records}
    assert kinds == {FeatureLevelRecord, UserScramCredentialRecord}
    assert b"sesame" not in data
