"""Stock clients with rights, and without: what is allowed, refused, hidden, and changed while they work."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.runtime.listener import PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.polling import wait_until
from tests.support.tcp_cluster import TcpCluster

WAIT_S = 30
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
USERS = ("admin", "alice", "bob", "carol", "dan", "erin", "frank", "grace", "heidi")
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    # The nodes do not log in to each other.
    "super.users": " User:admin ; User:ANONYMOUS ",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    """Three nodes that ask for rights, and the topics `orders` and `secrets`."""
    login = Login(mechanisms=(PLAIN,), passwords={user: Secret(user) for user in USERS})
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 3, login, settings=SETTINGS) as running:
        admin = admin_of(running, "admin")
        topics = [NewTopic("orders", 3, 3), NewTopic("secrets", 1, 3)]
        for future in admin.create_topics(topics).values():
            future.result(WAIT_S)
        yield running
        admin_of.cache_clear()
        producer_of.cache_clear()
        # Futures refer to their clients, and so do errors.
        gc.collect()


@functools.cache
def admin_of(cluster: TcpCluster, user: str = "admin") -> AdminClient:
    """One client for each user: each has threads and descriptors of its own."""
    return AdminClient(settings(cluster, user))


@functools.cache
def producer_of(cluster: TcpCluster) -> Producer:
    return Producer(settings(cluster, "admin"))


def settings(cluster: TcpCluster, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def rule(
    user: str,
    operation: str,
    kind: ResourceType,
    name: str,
    permission: AclPermissionType = ALLOW,
    pattern: ResourcePatternType = LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", AclOperation[operation], permission)


def add(cluster: TcpCluster, *rules: AclBinding) -> None:
    """Add rules as the administrator, and wait until every broker has them."""
    admin = admin_of(cluster, "admin")
    for future in admin.create_acls(list(rules)).values():
        future.result(WAIT_S)
    wait_for(cluster, lambda known: set(rules) <= set(known))


def remove(cluster: TcpCluster, chosen: AclBindingFilter) -> list[AclBinding]:
    admin = admin_of(cluster, "admin")
    (future,) = admin.delete_acls([chosen]).values()
    gone = list(future.result(WAIT_S))
    wait_for(cluster, lambda known: not set(gone) & set(known))
    return gone


def wait_for(cluster: TcpCluster, is_there: Callable[[list[AclBinding]], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    offset = max(node.node.loader.applied.offset for node in cluster.nodes.values())
    while any(node.node.loader.applied.offset < offset for node in cluster.nodes.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    admin = admin_of(cluster, "admin")
    assert is_there(list(admin.describe_acls(all_of()).result(WAIT_S)))


def all_of(user: str | None = None) -> AclBindingFilter:
    principal = None if user is None else f"User:{user}"
    return AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def produce(producer: Producer, topic: str, count: int = 1) -> list[int | None]:
    """Return the error code of each record, None for those that were appended."""
    codes: list[int | None] = []
    for number in range(count):
        try:
            producer.produce(
                topic,
                str(number).encode(),
                on_delivery=lambda error, _: codes.append(None if error is None else error.code()),
            )
        except KafkaException as error:
            # The client has learned from the metadata that the topic is not for it.
            codes.append(error.args[0].code())
    assert producer.flush(WAIT_S) == 0
    return codes


def taken_natively(cluster: TcpCluster) -> int:
    lanes = [node.node.produce_lane for node in cluster.nodes.values()]
    return sum(lane.taken for lane in lanes if lane is not None)


def read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        found.append(message.value())
    return found


def test_what_exists_is_hidden_from_who_may_not_describe_it(cluster: TcpCluster) -> None:
    admin = admin_of(cluster, "alice")
    assert admin.list_topics(timeout=WAIT_S).topics == {}
    for name in ("secrets", "no-such-topic"):
        described = admin.list_topics(name, timeout=WAIT_S).topics[name]
        assert described.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        (future,) = admin.describe_topics(TopicCollection([name])).values()
        assert code_of(lambda f=future: f.result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        offsets = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()})
        (found,) = offsets.values()
        code_of(lambda f=found: f.result(WAIT_S))
        (deleted,) = admin.delete_topics([name]).values()
        assert code_of(lambda f=deleted: f.result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin.list_consumer_groups().result(WAIT_S).valid == []


def test_a_producer_may_write_where_it_is_allowed_to(cluster: TcpCluster) -> None:
    add(cluster, rule("bob", "WRITE", TOPIC, "ord", pattern=PREFIXED))
    for acks in (1, "all"):
        producer = Producer(settings(cluster, "bob", acks=acks))
        assert produce(producer, "orders", 50) == [None] * 50
        assert produce(producer, "secrets") == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        # What a connection has been allowed once needs no Python again. The client chooses partitions, and so
        # connections, at random.
        taken = taken_natively(cluster)
        wait_until(
            lambda producer=producer, taken=taken: (
                produce(producer, "orders", 50) == [None] * 50 and taken_natively(cluster) > taken
            ),
            "a lane takes what has been allowed",
        )
    # To write a topic is enough for a producer id (KIP-679).
    idempotent = Producer(settings(cluster, "bob", enable_idempotence=True))
    assert produce(idempotent, "orders", 50) == [None] * 50
    # DENY comes first, also for a connection that has been writing.
    add(cluster, rule("bob", "WRITE", TOPIC, "orders", DENY))
    assert produce(producer, "orders") == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert len(remove(cluster, all_of("bob"))) == 2
    assert produce(producer, "orders") == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_a_consumer_needs_its_topic_and_its_group(cluster: TcpCluster) -> None:
    produce(producer_of(cluster), "orders", 30)
    with_group = settings(cluster, "carol", group_id="readers", auto_offset_reset="earliest")
    consumer = Consumer(with_group)
    try:
        consumer.subscribe(["orders"])
        with pytest.raises(KafkaException) as raised:
            read(consumer, 1)
        assert raised.value.args[0].code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
        )
        add(
            cluster,
            rule("carol", "READ", TOPIC, "orders"),
            rule("carol", "READ", GROUP, "read", pattern=PREFIXED),
        )
    finally:
        consumer.close()
    consumer = Consumer(with_group)
    try:
        consumer.subscribe(["orders"])
        assert len(read(consumer, 30)) == 30
        consumer.commit(asynchronous=False)
        # The right is taken away while the consumer reads.
        remove(cluster, all_of("carol"))
        produce(producer_of(cluster), "orders", 30)
        with pytest.raises(KafkaException) as raised:
            # It has fetched some records before.
            read(consumer, 10_000)
        assert raised.value.args[0].code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
        )
    finally:
        consumer.close()
    admin = admin_of(cluster, "carol")
    (described,) = admin.describe_consumer_groups(["readers"]).values()
    assert code_of(lambda: described.result(WAIT_S)) == KafkaError.GROUP_AUTHORIZATION_FAILED
    asked = ConsumerGroupTopicPartitions("readers")
    (offsets,) = admin.list_consumer_group_offsets([asked]).values()
    assert code_of(lambda: offsets.result(WAIT_S)) == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_a_transaction_needs_its_id(cluster: TcpCluster) -> None:
    add(cluster, rule("dan", "WRITE", TOPIC, "orders"))
    settings_ = settings(cluster, "dan", transactional_id="payments")
    assert code_of(lambda: Producer(settings_).init_transactions(WAIT_S)) in (
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    add(cluster, rule("dan", "ALL", TRANSACTIONAL_ID, "pay", pattern=PREFIXED))
    producer = Producer(settings_)
    producer.init_transactions(WAIT_S)
    for _ in range(3):
        producer.begin_transaction()
        assert produce(producer, "orders", 5) == [None] * 5
        producer.commit_transaction(WAIT_S)
    before = read_committed(cluster, "secrets")
    producer.begin_transaction()
    producer.produce("secrets", b"")
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    assert read_committed(cluster, "secrets") == before
    remove(cluster, all_of("dan"))


def read_committed(cluster: TcpCluster, topic: str) -> int:
    admin = admin_of(cluster, "admin")
    asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
    (found,) = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED).values()
    return int(found.result(WAIT_S).offset)


def test_administration_is_denied_and_allowed_topic_by_topic(cluster: TcpCluster) -> None:
    admin = admin_of(cluster, "erin")
    add(
        cluster,
        rule("erin", "CREATE", TOPIC, "erin-", pattern=PREFIXED),
        rule("erin", "ALTER", TOPIC, "erin-", pattern=PREFIXED),
        rule("erin", "DELETE", TOPIC, "erin-", pattern=PREFIXED),
        rule("erin", "DESCRIBE_CONFIGS", TOPIC, "erin-", pattern=PREFIXED),
    )
    made = admin.create_topics([NewTopic("erin-1", 1, 3), NewTopic("other", 1, 3)])
    made["erin-1"].result(WAIT_S)
    assert code_of(lambda: made["other"].result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    grown = admin.create_partitions([NewPartitions("erin-1", 2), NewPartitions("secrets", 2)])
    grown["erin-1"].result(WAIT_S)
    assert code_of(lambda: grown["secrets"].result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    own, others = ConfigResource("TOPIC", "erin-1"), ConfigResource("TOPIC", "secrets")
    node = ConfigResource("BROKER", "1")
    described = admin.describe_configs([own, others])
    assert described[own].result(WAIT_S)["cleanup.policy"].value == "delete"
    assert code_of(lambda: described[others].result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    (of_node,) = admin.describe_configs([node]).values()
    assert code_of(lambda: of_node.result(WAIT_S)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    own.add_incremental_config(ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET))
    (changed,) = admin.incremental_alter_configs([own]).values()
    gone = admin.delete_topics(["erin-1", "secrets"])
    gone["erin-1"].result(WAIT_S)
    assert code_of(lambda: gone["secrets"].result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert set(admin.list_topics(timeout=WAIT_S).topics) == set()
    remove(cluster, all_of("erin"))
    assert code_of(lambda: changed.result(WAIT_S)) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_only_who_may_alter_the_cluster_changes_the_rules(cluster: TcpCluster) -> None:
    admin = admin_of(cluster, "frank")
    wanted = rule("frank", "ALL", TOPIC, "*")
    (made,) = admin.create_acls([wanted]).values()
    assert code_of(lambda: made.result(WAIT_S)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    # librdkafka drops the error.
    assert admin.describe_acls(all_of()).result(WAIT_S) == []
    (gone,) = admin.delete_acls([all_of()]).values()
    assert code_of(lambda: gone.result(WAIT_S)) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    add(cluster, rule("frank", "ALTER", CLUSTER, "kafka-cluster"))
    (made,) = admin.create_acls([wanted]).values()
    made.result(WAIT_S)
    found = admin.describe_acls(all_of("frank")).result(WAIT_S)
    assert wanted in found
    assert len(remove(cluster, all_of("frank"))) == 2


def test_a_consumer_that_may_read_a_topic_is_refused_another(cluster: TcpCluster) -> None:
    add(
        cluster,
        rule("grace", "READ", TOPIC, "orders"),
        rule("grace", "DESCRIBE", TOPIC, "secrets"),
        rule("grace", "DESCRIBE", GROUP, "none"),
    )
    produce(producer_of(cluster), "orders", 30)
    produce(producer_of(cluster), "secrets", 3)
    consumer = Consumer(settings(cluster, "grace", group_id="none", enable_auto_commit=False))
    try:
        consumer.assign([TopicPartition("orders", number, 0) for number in range(3)])
        assert len(read(consumer, 30)) >= 30
        consumer.assign([TopicPartition("secrets", 0, 0)])
        with pytest.raises(KafkaException) as raised:
            read(consumer, 1)
        assert raised.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        consumer.close()
        remove(cluster, all_of("grace"))


def test_a_regular_expression_finds_only_topics_that_its_member_may_describe(cluster: TcpCluster) -> None:
    add(
        cluster,
        rule("heidi", "READ", TOPIC, "orders"),
        rule("heidi", "READ", GROUP, "patterns"),
    )
    produce(producer_of(cluster), "orders", 3)
    with_group = settings(
        cluster, "heidi", group_id="patterns", group_protocol="consumer", auto_offset_reset="earliest"
    )
    consumer = Consumer(with_group)
    try:
        consumer.subscribe(["^(orders|secrets)$"])
        assert len(read(consumer, 3)) >= 3
        assert {at.topic for at in consumer.assignment()} == {"orders"}
        (described,) = admin_of(cluster).describe_consumer_groups(["patterns"]).values()
        (member,) = described.result(WAIT_S).members
        assert {at.topic for at in member.assignment.topic_partitions} == {"orders"}
    finally:
        consumer.close()
        remove(cluster, all_of("heidi"))
