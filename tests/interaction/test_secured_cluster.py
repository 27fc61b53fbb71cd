"""A cluster in which everyone logs in over TLS, the nodes to each other included, and needs rights."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cli.format import run as format_directories
from kreplica.runtime.tcp_node import KafkaRaftServer
from kreplica.security.jaas import PLAIN_MODULE
from tests.support.polling import wait_until
from tests.support.ports import free_addresses

WAIT_S = 60.0
CLUSTER_ID = "abcdefghijklmnopqrstuv"
CONTROLLERS, BROKER = (1, 2, 3), 4
OWN = ("ssl.certificate.location", "ssl.key.location")
USERS = 'user_node="of nodes" user_admin="root" user_alice="sesame"'


class SecuredCluster:
    """Three brokers that are controllers, and one that is not."""

    def __init__(self, directory: Path, *, password: str = "of nodes", protocol: str = "SASL_SSL") -> None:
        self.directory = directory
        self.protocol = protocol
        self.failures: list[BaseException] = []
        self.authority = trustme.CA()
        self.trusted = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.trusted))
        self.keys = directory / "node.pem"
        self.issue_certificate("127.0.0.1")
        nodes = (*CONTROLLERS, BROKER)
        found = iter(free_addresses(3 * len(nodes)))
        self.addresses = {
            node_id: {name: f"127.0.0.1:{next(found)[1]}" for name in ("CLIENTS", "NODES", "CONTROLLER")}
            for node_id in nodes
        }
        self.servers = {
            node_id: KafkaRaftServer(self.properties(node_id, password), self.failures.append)
            for node_id in nodes
        }

    def issue_certificate(self, host: str) -> None:
        made = self.authority.issue_cert(host, common_name="node")
        new = self.keys.with_suffix(".new")
        made.private_key_and_cert_chain_pem.write_to_path(str(new))
        os.replace(new, self.keys)

    def properties(self, node_id: int, password: str) -> dict[str, Any]:
        logs = str(self.directory / f"node-{node_id}")
        format_directories([logs], node_id, CLUSTER_ID, True, True)
        jaas = f'{PLAIN_MODULE} required username="node" password="{password}" {USERS};'
        names = ("CLIENTS", "NODES", "CONTROLLER") if node_id in CONTROLLERS else ("CLIENTS", "NODES")
        own = self.addresses[node_id]
        certificates = {
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),OU=.*$/$1/L,DEFAULT",
        }
        return {
            **(certificates if self.protocol == "SSL" else {}),
            "node.id": node_id,
            "log.dirs": logs,
            "process.roles": "broker,controller" if node_id in CONTROLLERS else "broker",
            "listeners": ",".join(f"{name}://{own[name]}" for name in names),
            "listener.security.protocol.map": ",".join(f"{name}:{self.protocol}" for name in own),
            "inter.broker.listener.name": "NODES",
            "controller.quorum.voters": ",".join(
                f"{each}@{self.addresses[each]['CONTROLLER']}" for each in CONTROLLERS
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keys),
            "ssl.allow.dn.changes": "true",
            "ssl.truststore.location": str(self.trusted),
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in own},
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:node;User:admin",
        }

    def certificate(self, user: str) -> str:
        """Return a file with the user's key and certificate, and let librdkafka find the key there."""
        path = self.directory / f"{user}.pem"
        if not path.exists():
            made = self.authority.issue_cert(f"{user}@example.org", common_name=user)
            made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def start(self) -> None:
        for server in self.servers.values():
            server.start()

    def close(self) -> None:
        for server in self.servers.values():
            if server.is_alive:
                server.close()

    def wait(self) -> None:
        for server in self.servers.values():
            server.node.ready.result(WAIT_S)

    def client(self, user: str, password: str, **more: Any) -> dict[str, Any]:
        own = {"ssl.certificate.location": self.certificate(user)} if self.protocol == "SSL" else {}
        return {
            **own,
            "bootstrap.servers": ",".join(each["CLIENTS"] for each in self.addresses.values()),
            "security.protocol": self.protocol,
            "ssl.ca.location": str(self.trusted),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            **({"ssl.key.location": own["ssl.certificate.location"]} if own else {}),
            **{name.replace("_", "."): value for name, value in more.items()},
        }


@pytest.fixture(scope="module", params=["SASL_SSL", "SASL_PLAINTEXT", "SSL"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredCluster]:
    made = SecuredCluster(tmp_path_factory.mktemp("nodes"), protocol=request.param)
    try:
        made.start()
        made.wait()
        admin = AdminClient(made.client("admin", "root"))
        admin.create_topics([NewTopic("orders", 8, 4)])["orders"].result(WAIT_S)
        yield made
        assert made.failures == []
    finally:
        made.close()
        # Futures refer to their clients, and each has threads and descriptors of its own.
        gc.collect()


def test_records_are_on_every_replica_and_read(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.client("admin", "root"))
    producer = Producer(cluster.client("admin", "root", acks="all", enable_idempotence=True))
    for number in range(1000):
        producer.produce("orders", b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(cluster.client("admin", "root", group_id="readers", auto_offset_reset="earliest"))
    try:
        consumer.subscribe(["orders"])
        found = set()
        deadline = time.monotonic() + WAIT_S
        while len(found) < 1000 and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.add(int(message.value()))
        assert len(found) == 1000
    finally:
        consumer.close()
    described = admin.list_topics("orders", timeout=WAIT_S).topics["orders"]
    assert {len(each.isrs) for each in described.partitions.values()} == {4}
    assert {each.leader for each in described.partitions.values()} == {1, 2, 3, 4}


def test_a_request_that_a_broker_forwards_has_its_clients_rights(cluster: SecuredCluster) -> None:
    alice = AdminClient(
        {**cluster.client("alice", "sesame"), "bootstrap.servers": cluster.addresses[4]["CLIENTS"]}
    )
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        alice.create_topics([NewTopic("of-alice", 1, 1)])["of-alice"].result(WAIT_S)


@pytest.mark.parametrize("cluster", ["SSL"], indirect=True)
def test_a_client_without_a_certificate_gets_nothing(
    cluster: SecuredCluster, caplog: pytest.LogCaptureFixture
) -> None:
    others = trustme.CA().issue_cert("admin@example.org", common_name="admin")
    stranger = cluster.directory / "stranger.pem"
    others.private_key_and_cert_chain_pem.write_to_path(str(stranger))
    right = cluster.client("admin", "")
    without = {name: value for name, value in right.items() if name not in OWN}
    for wrong in (without, {**right, **dict.fromkeys(OWN, str(stranger))}):
        with pytest.raises(KafkaException):
            AdminClient(wrong, logger=logging.getLogger("quiet")).list_topics(timeout=3)
    assert AdminClient(right).list_topics(timeout=WAIT_S).topics
    failed = (
        '"event": "login failed", "principal": "User:ANONYMOUS", "host": "127.0.0.1", "listener": "CLIENTS"'
    )
    for why in ("there is no certificate", "unable to get local issuer certificate"):
        assert f'{failed}, "mechanism": "SSL", "why": "{why}"' in caplog.text


def test_a_node_that_comes_back_logs_in_again(cluster: SecuredCluster) -> None:
    server = cluster.servers[4]
    server.close()
    if cluster.protocol != "SASL_PLAINTEXT":
        # A certificate that is renewed meanwhile is used without a restart of the others.
        cluster.issue_certificate("127.0.0.1")
    server.start()
    server.node.ready.result(WAIT_S)
    admin = AdminClient(cluster.client("admin", "root"))

    def is_whole() -> bool:
        topic = admin.list_topics("orders", timeout=WAIT_S).topics["orders"]
        return {len(each.isrs) for each in topic.partitions.values()} == {4}

    wait_until(is_whole, "all replicas are in sync", timeout_s=WAIT_S)
    # It leads again what it led before, whichever test comes next.
    admin.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S)


def test_a_node_with_a_wrong_password_forms_no_quorum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = SecuredCluster(tmp_path, password="wrong")
    try:
        cluster.start()
        wait_until(lambda: "the login as node failed" in caplog.text, "a failed login is logged")
        assert not any(server.node.ready.done() for server in cluster.servers.values())
    finally:
        cluster.close()
    assert "of nodes" not in caplog.text
    assert "wrong" not in caplog.text.replace("the user or the password is wrong", "")


def test_a_certificate_for_another_host_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = SecuredCluster(tmp_path)
    cluster.issue_certificate("other.example.org")
    try:
        cluster.start()
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text, "the certificate is refused")
        assert not any(server.node.ready.done() for server in cluster.servers.values())
    finally:
        cluster.close()
    assert "other nodes with these stores cannot connect" in caplog.text
