"""Security bugs that Kafka and its clients had, replayed. Each test names its history.

Others are where the parts are tested:

    unit/security                      CVE-2017-12610, CVE-2024-56128, CVE-2026-10143, CVE-2026-33557,
                                       KAFKA-14265, KAFKA-7702, KAFKA-13697
    unit/broker/test_gatekeeper        CVE-2018-1288, CVE-2018-17196, CVE-2024-27309, KAFKA-13889,
                                       KAFKA-14435, KAFKA-13698, KAFKA-14962
    unit/broker/test_sasl_authenticator    KAFKA-10798, KAFKA-9241, KAFKA-13848
    unit/broker/test_client_quotas     KAFKA-9658, KAFKA-10458
    unit/common/test_quota_rate        KAFKA-10162
    unit/controller/test_acl_control   KAFKA-13892
    unit/record/test_compression       CVE-2023-34455; also interaction/test_bombs
    unit/runtime                       CVE-2025-27817, CVE-2026-110985 (test_oauth), CVE-2026-10142
                                       (test_tcp_transport), KAFKA-14770 (test_key_store)
    interaction/test_hostile_arrays    CVE-2026-111108, CVE-2026-111115, CVE-2026-83525
    interaction/test_floods            CVE-2022-34917
    interaction/test_scram_nodes       KAFKA-17636
    interaction/test_quotas            KAFKA-14215, KAFKA-9677, KAFKA-6946
    interaction/test_reauthentication  KAFKA-9854
    clients/test_quotas                KAFKA-16083
"""

from __future__ import annotations

import base64
import contextlib
import gc
import hmac
import logging
import random
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as Mechanism

import kreplica
from kreplica.broker.api_versions import API_RANGES, request_type
from kreplica.cli.client_config import ClientConfig
from kreplica.cli.kafka_connection import KafkaConnection
from kreplica.common.errors import (
    InvalidRecord,
    KreplicaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kreplica.common.message import Message, fields_of, replace
from kreplica.common.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from kreplica.runtime.listener import PLAIN
from kreplica.security.acl import AclOperation, ResourceType
from kreplica.security.client_login import ClientLogin
from kreplica.security.peer import KafkaPrincipal, Peer
from kreplica.security.plain import PlainSaslServer
from kreplica.security.sasl import Secret
from kreplica.security.scram import ScramSaslServer, credential_of, salted_password
from kreplica.security.scram_client import ScramSaslClient
from kreplica.security.scram_credential import ScramMechanism
from kreplica.testing import faults
from tests.support.batches import build
from tests.unit.broker.test_gatekeeper import CLIENT, Node, blank, codes_in, rule, sample

WAIT_S = 30
TRANSACTIONAL: dict[str, Any] = {
    "producer_id": 1,
    "producer_epoch": 0,
    "base_sequence": 0,
    "transactional": True,
}


# ---- records of transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["second partition", "second topic"])
@pytest.mark.parametrize("name", [None, "payments"])
def test_a_batch_of_a_transaction_behind_plain_ones_needs_the_right_to_its_id(
    place: str, name: str | None
) -> None:
    """CVE-2018-17196: only the first batch of a request was looked at."""
    plain, hidden = (
        PartitionProduceData(index=index, records=build([b"x"], **more))
        for index, more in enumerate(({}, TRANSACTIONAL))
    )
    parts = [("a", (plain, hidden))] if place == "second partition" else [("a", (plain,)), ("b", (hidden,))]
    topics = tuple(TopicProduceData(name=topic, partition_data=data) for topic, data in parts)
    node = Node(rule("WRITE", "TOPIC", "*"))
    answer = node.ask(blank(ProduceRequest, acks=1, transactional_id=name, topic_data=topics))
    assert set(codes_in(answer)) == {53}
    assert node.handled == []


# ---- secrets ---------------------------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What is compared in constant time."""
    found: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def compare(a: Any, b: Any) -> bool:
        found.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    return found


def test_passwords_are_compared_in_constant_time(compared: list[tuple[Any, Any]]) -> None:
    """CVE-2021-38153: the time of a plain comparison showed how much of a password was right."""
    PlainSaslServer({"alice": Secret("sesame")}).respond(b"\0alice\0sesame")
    assert (b"sesame", b"sesame") in compared


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_proofs_are_compared_in_constant_time(
    mechanism: ScramMechanism, compared: list[tuple[Any, Any]]
) -> None:
    """CVE-2021-38153, of SCRAM."""
    password, salt = Secret("sesame"), b"salt of eighteen b"
    credential = credential_of(mechanism, salted_password(mechanism, password, salt, 4096), salt, 4096)
    server = ScramSaslServer(mechanism, lambda _: credential, random.Random(1), b"secret")
    client = ScramSaslClient(mechanism.sasl_name, "alice", password, random.Random(2))
    client.check(server.respond(client.final(server.respond(client.first()))))
    assert (credential.stored_key, credential.stored_key) in compared


@pytest.fixture(scope="module")
def cluster() -> Iterator[kreplica.Cluster]:
    security = kreplica.Security(users={"admin": "se-sa-me-1"}, protocol="SASL_PLAINTEXT", acls=True)
    with kreplica.Cluster(1, serve=True, security=security) as made:
        yield made
        gc.collect()


def test_a_login_and_a_change_of_users_at_debug_show_no_secret(
    cluster: kreplica.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """CVE-2026-33558: logs of the level DEBUG had salts, keys and the bytes of tokens."""
    caplog.set_level(logging.DEBUG)
    admin = AdminClient(cluster.client_config("admin"))
    salt, password = b"a salt of the test", b"se-sa-me-2"
    upsertion = UserScramCredentialUpsertion(
        "bob", ScramCredentialInfo(Mechanism.SCRAM_SHA_256, 4096), password, salt
    )
    admin.alter_user_scram_credentials([upsertion])["bob"].result(WAIT_S)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        Producer(cluster.client_config("admin", mechanism=mechanism)).list_topics(timeout=WAIT_S)
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, Secret(password.decode()), salt, 4096)
    made = credential_of(ScramMechanism.SCRAM_SHA_256, salted, salt, 4096)
    token = b"\0admin\0se-sa-me-1"
    assert caplog.text
    for secret in (salt, password, b"se-sa-me-1", salted, made.stored_key, made.server_key, token):
        shown = {secret.hex(), base64.b64encode(secret).decode().rstrip("="), repr(secret)[2:-1]}
        assert not [each for each in shown if each in caplog.text]


# ---- settings from afar ----------------------------------------------------------------------------------

PROVIDERS = ["${file:/etc/passwd:root}", "${env:HOME}", "${directory:/etc:passwd}", "${HOME}", "$HOME"]


@pytest.mark.parametrize("value", PROVIDERS)
def test_no_setting_from_afar_reads_a_file_or_the_environment(cluster: kreplica.Cluster, value: str) -> None:
    """CVE-2024-31141: providers in settings of clients read files and variables for a remote caller."""
    admin = AdminClient(cluster.client_config("admin"))
    if "orders" not in admin.list_topics(timeout=WAIT_S).topics:
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
    resource = ConfigResource("TOPIC", "orders")
    for name in ("retention.ms", "cleanup.policy", "leader.replication.throttled.replicas"):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource.set_config(name, value)
        resource.incremental_configs = [entry]
        with pytest.raises(KafkaException):
            admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    shown = admin.describe_configs([ConfigResource("TOPIC", "orders")])
    (future,) = shown.values()
    assert not [each.value for each in future.result(WAIT_S).values() if "root:" in str(each.value)]


@pytest.mark.parametrize(
    "module",
    ["com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule"],
)
def test_no_login_module_comes_from_afar(cluster: kreplica.Cluster, module: str) -> None:
    """CVE-2023-25194, CVE-2025-27818, CVE-2025-27819: modules that AlterConfigs set ran code."""
    admin = AdminClient(cluster.client_config("admin"))
    for prefix in ("", "listener.name.clients.", "listener.name.clients.plain."):
        resource = ConfigResource("BROKER", "1")
        resource.incremental_configs = [
            ConfigEntry(
                f"{prefix}sasl.jaas.config",
                f'{module} required user.provider.url="ldap://127.0.0.1:1";',
                incremental_operation=AlterConfigOpType.SET,
            )
        ]
        with pytest.raises(KafkaException):
            admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


# ---- rights ----------------------------------------------------------------------------------------------


def test_no_reader_sees_a_rule_without_an_earlier_one_of_its_batch() -> None:
    """KAFKA-14214: a reader saw a later ALLOW without the DENY before it."""
    node = Node()
    peer, ended = CLIENT.peer, threading.Event()
    allowed: list[object] = []

    def read() -> None:
        while not ended.is_set():
            rules = node.gatekeeper.rules
            if rules.authorize(peer, AclOperation.READ, ResourceType.TOPIC, "orders"):
                allowed.append(rules)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    try:
        for _ in range(100):
            node.metadata.replay(rule("READ", "TOPIC", "orders", "DENY"))
            node.metadata.replay(rule("READ", "TOPIC", "ord", pattern="PREFIXED"))
            node.metadata.replay(rule("ALL", "TOPIC", "*"))
            node.publish()
    finally:
        ended.set()
        for each in readers:
            each.join()
    assert allowed == []


def renamed(message: Any, names: dict[str, str]) -> Any:
    """Return the message in which these texts have other values."""
    if isinstance(message, tuple):
        return tuple(renamed(each, names) for each in message)
    if isinstance(message, str):
        return names.get(message, message)
    if isinstance(message, Message):
        fields = [field.name for field in fields_of(type(message))]
        return replace(message, **{name: renamed(getattr(message, name), names) for name in fields})
    return message


@pytest.mark.parametrize("api_key", sorted(API_RANGES))
def test_what_is_absent_and_what_is_forbidden_are_answered_alike(api_key: int) -> None:
    """KAFKA-5547, KAFKA-12394: the error of a request showed a stranger whether a topic exists."""
    there = sample(request_type(api_key, API_RANGES[api_key].handled))
    absent = renamed(there, {"orders": "absent", "readers": "nobodies"})
    seen = []
    for request in (there, absent):
        node = Node()
        try:
            answer = node.ask(request)
        except (KreplicaError, TopicAuthorizationFailed) as error:
            answer = error
        back = {"absent": "orders", "nobodies": "readers"}
        handled = [renamed(each, back) for each in node.handled]
        seen.append((repr(renamed(answer, back)), handled))
    assert seen[0] == seen[1]


def test_a_decision_costs_the_same_with_many_rules() -> None:
    """KAFKA-20667: each decision read all rules along the prefixes of a name."""

    def calls(rules: int) -> int:
        made = [rule("READ", "TOPIC", f"team-{number}-", pattern="PREFIXED") for number in range(rules // 2)]
        made += [rule("READ", "TOPIC", f"topic-{number}") for number in range(rules // 2)]
        authorizer = Node(*made).gatekeeper.rules
        peer = Peer("/10.0.0.1", KafkaPrincipal("User", "alice"), "CLIENTS")
        count = 0

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            for number in range(1_000):
                authorizer.authorize(peer, AclOperation.READ, ResourceType.TOPIC, f"topic-{number % 40}")
        finally:
            sys.setprofile(None)
        return count

    assert calls(10_000) < 2 * calls(100)


# ---- records in the wrong place --------------------------------------------------------------------------


def asked(cluster: kreplica.Cluster, request: Any) -> Any:
    """The answer of the only node to a request of its user."""
    config = ClientConfig({}, ClientLogin(PLAIN, "admin", Secret("se-sa-me-1")))
    host, port = cluster.bootstrap_servers.split(":")
    with KafkaConnection(host, int(port), config) as node:
        return node.ask(request)


@pytest.mark.parametrize("order", ["plain first", "transaction first"])
def test_a_batch_of_a_transaction_in_the_same_partition_as_a_plain_one_is_refused(
    cluster: kreplica.Cluster, order: str
) -> None:
    """CVE-2018-17196 again: the batches of one partition are mixed."""
    topic = f"mixed-{order.split()[0]}"
    cluster.create_topic(topic)
    batches = [build([b"plain"]), build([b"hidden"], **TRANSACTIONAL)]
    if order != "plain first":
        batches.reverse()
    data = PartitionProduceData(index=0, records=b"".join(bytes(each) for each in batches))
    request = blank(
        ProduceRequest,
        acks=-1,
        timeout=timedelta(seconds=10),
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )
    expected = InvalidRecord if order == "plain first" else TransactionalIdAuthorizationFailed
    assert set(codes_in(asked(cluster, request))) - {0} == {expected.code}
    assert list(cluster.read(topic, 0)) == []


def test_reused_and_retried_batches_reach_their_own_topic(tmp_path: Path) -> None:
    """CVE-2026-35554: the memory of a batch that had expired was reused, and sent to another topic."""
    topics = [f"t{number}" for number in range(8)]
    with kreplica.Cluster(2, tmp_path) as cluster:
        for topic in topics:
            cluster.create_topic(topic)
        value = bytearray(64)
        futures = []
        for turn in range(30):
            # What was not sent is sent again once the node is back; some of it has been given up.
            with faults.killed(cluster, 1) if turn % 10 == 5 else contextlib.nullcontext():
                for topic in topics:
                    value[:] = topic.encode() * 32
                    futures.append(cluster.append(topic, [value]))
                    if turn % 3 == 0:
                        futures.pop().cancel()
                    # The caller's memory is free again.
                    value[:] = b"\xff" * 64
        for each in futures:
            each.result(WAIT_S)
        for topic in topics:
            found = [record.value for record in cluster.read(topic, 0)]
            assert len(found) >= 20
            assert set(found) == {topic.encode() * 32}


def test_a_throttle_of_replication_slows_no_consumer(tmp_path: Path) -> None:
    """KAFKA-13614: the quota of what a leader sends to followers was applied to consumers, too."""
    rates = {f"{role}.replication.throttled.rate": 1 for role in ("leader", "follower")}
    throttled = {f"{role}.replication.throttled.replicas": "*" for role in ("leader", "follower")}
    with kreplica.Cluster(2, tmp_path, serve=True, controllers=1, config=rates) as cluster:
        cluster.create_topic("t", config={**throttled, "min.insync.replicas": 1})
        view = cluster.partition("t")
        leader = view.leader
        assert leader is not None
        # More than one fetch: a throttle holds back only what comes after that.
        with faults.killed(cluster, 3 - leader):
            for number in range(20):
                cluster.append("t", [bytes([number]) * 300_000]).result(WAIT_S)
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        try:
            consumer.subscribe(["t"])
            found = [message for _ in range(20) if (message := consumer.poll(WAIT_S)) is not None]
        finally:
            consumer.close()
        assert [message.offset() for message in found] == list(range(20))
        # The follower is still held back.
        assert view.isr == (leader,)
