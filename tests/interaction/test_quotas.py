"""Clients at their quotas: answers, throttle times, muted connections, and what others notice of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest

from kreplica._core.fetch_lane import FETCHES_DECLINED
from kreplica._core.produce_lane import DECLINED
from kreplica.cli.kafka_connection import KafkaConnection
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidConfig, NetworkException
from kreplica.common.message import in_version
from kreplica.common.messages.administration import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from kreplica.common.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kreplica.common.messages.quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntryData,
    QuotaEntityData,
    QuotaOpData,
)
from kreplica.common.wire import error_of
from kreplica.controller.configuration_control import DELETE, SET
from kreplica.metadata.cluster_metadata import BROKER_RESOURCE
from kreplica.runtime.listener import PLAIN, Login
from kreplica.security.sasl import Secret
from tests.support.batches import build
from tests.support.polling import wait_until
from tests.support.quotas import IN_PLAIN, connection_of, muted, set_quotas
from tests.support.tcp_cluster import TcpCluster

USERS = ("alice", "bob", "carol")
THROTTLED, NONE = ErrorCode.throttling_quota_exceeded, ErrorCode.none
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    """Two nodes whose clients log in, with the topic `orders` on the first."""
    login = Login(mechanisms=(PLAIN,), passwords={user: Secret(user) for user in USERS})
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login) as made:
        with connection_of(made, 1, "carol") as client:
            wait_until(
                lambda: create(client, TOPIC) in (NONE, ErrorCode.topic_already_exists),
                "a quota or a topic is known",
            )
        wait_until(lambda: leader_of(made) is not None, "a quota or a topic is known")
        yield made


@pytest.fixture(autouse=True)
def no_quota_is_left(cluster: TcpCluster) -> Iterator[None]:
    yield
    for key, quotas in list(cluster.nodes[1].node.loader.published.quotas.items()):
        set_quotas(cluster, dict(key), **dict.fromkeys(quotas))


def create(client: KafkaConnection, topic: str, partitions: int = 1, version: int = 7) -> ErrorCode:
    return created(client, topic, partitions, version).topics[0].error_code


def created(client: KafkaConnection, topic: str, partitions: int = 1, version: int = 7) -> Any:
    new = CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    return client.ask(in_version(CreateTopicsRequest(topics=(new,)), version))


def leader_of(cluster: TcpCluster) -> int | None:
    """The node that leads `orders`, once it does."""
    for node_id, node in cluster.nodes.items():
        broker = node.node.broker
        assert broker is not None
        if any(
            each.is_leader
            for each in broker.replica_manager.partitions
            if each.topic_partition.topic == TOPIC
        ):
            return node_id
    return None


def client_of(cluster: TcpCluster, user: str) -> KafkaConnection:
    node_id = leader_of(cluster)
    assert node_id is not None
    return connection_of(cluster, node_id, user)


def produce(client: KafkaConnection, size: int, version: int = 11) -> int:
    """Append a batch with a value of that size; return the throttle time."""
    data = PartitionProduceData(index=0, records=build([bytes(size)]))
    request = ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),),
    )
    answer = client.ask(in_version(request, version))
    assert answer.responses[0].partition_responses[0].error_code == NONE
    return int(answer.throttle_time / timedelta(milliseconds=1))


def fetch(client: KafkaConnection, offset: int | None, session: tuple[int, int] = (0, 0)) -> Any:
    """Fetch from the topic; an offset of None names no partition."""
    answer = client.ask(MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),)))
    part = FetchPartition(
        partition=0,
        fetch_offset=offset or 0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=10 << 20,
    )
    topics = () if offset is None else (FetchTopic(topic_id=answer.topics[0].topic_id, partitions=(part,)),)
    return client.ask(
        FetchRequest(
            max_wait=timedelta(seconds=0),
            min_bytes=1,
            max_bytes=50 << 20,
            isolation_level=0,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
            forgotten_topics_data=(),
        )
    )


def records_in(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


# ---- produce ---------------------------------------------------------------------------------------------

# The entities in the order of precedence, the last first.
LEVELS: list[Mapping[str, str | None]] = [
    {"client-id": None},
    {"client-id": "kreplica-cli"},
    {"user": None},
    {"user": None, "client-id": None},
    {"user": None, "client-id": "kreplica-cli"},
    {"user": "alice"},
    {"user": "alice", "client-id": None},
    {"user": "alice", "client-id": "kreplica-cli"},
]


def test_each_level_is_set_altered_and_removed_under_load(cluster: TcpCluster) -> None:
    with client_of(cluster, "alice") as client:
        for entity in LEVELS:
            set_quotas(cluster, entity, producer_byte_rate=1000)
            # A change of the quotas ends the mute, so the test does not wait for it.
            while not produce(client, 10_000):
                pass
            assert muted(cluster) == 1
            set_quotas(cluster, entity, producer_byte_rate=1 << 40)
            wait_until(lambda: not muted(cluster), "a quota or a topic is known")
            assert produce(client, 10_000) == 0
        for entity in reversed(LEVELS):
            set_quotas(cluster, entity, producer_byte_rate=1000)
            assert produce(client, 10_000) > 0
            set_quotas(cluster, entity, producer_byte_rate=None)
            assert produce(client, 10_000) == 0


def test_a_noisy_client_is_muted_while_others_are_served(cluster: TcpCluster) -> None:
    set_quotas(cluster, {"user": "alice"}, producer_byte_rate=1000)
    with client_of(cluster, "alice") as noisy, client_of(cluster, "bob") as other:
        assert produce(noisy, 900_000) >= 890_000
        for _ in range(100):
            assert produce(other, 1_000) == 0
        # All of that was served while the noisy client waited.
        assert muted(cluster) == 1
        node = cluster.nodes[leader_of(cluster) or 0].node
        values = node.metrics.values()
        assert values["kafka.server:type=Produce,name=throttle-time,client-id=,user=alice"] >= 890_000
        set_quotas(cluster, {"user": "alice"}, producer_byte_rate=None)
        assert produce(noisy, 900_000) == 0


def test_clients_leave_the_native_lane_only_to_be_throttled(cluster: TcpCluster) -> None:
    with client_of(cluster, "bob") as client:
        # A node has lanes once it has answered something.
        produce(client, 10)
    node = cluster.nodes[leader_of(cluster) or 0].node
    lane = node.produce_lane
    assert lane is not None
    quota = DECLINED.index("quota")
    shown = "kafka.server:type={0},name={1},client-id=,user=carol"
    with client_of(cluster, "carol") as limited, client_of(cluster, "bob") as other:
        set_quotas(cluster, {"user": "carol"}, producer_byte_rate=1 << 20, request_percentage=1000)
        before, taken = lane.declined(quota), lane.taken
        for _ in range(5):
            assert produce(limited, 1_000) == 0
            assert produce(other, 10) == 0
        # With its first request each client is found to have a quota, or none.
        assert lane.declined(quota) - before == 2
        assert lane.taken - taken == 8
        # What the lane takes is charged, for its bytes and its time.
        values = node.metrics.values()
        assert 5 * 1_000 <= values[shown.format("Produce", "byte-rate")] * 10 <= 5 * 1_200
        assert values[shown.format("Request", "request-time")] > 0
        set_quotas(cluster, {"user": "carol"}, producer_byte_rate=1_000)
        produce(limited, 1_000)
        before, taken = lane.declined(quota), lane.taken
        assert produce(limited, 50_000) > 40_000
        assert (lane.declined(quota) - before, lane.taken - taken) == (1, 0)
        # Before the client is muted it gets the throttle time, once.
        assert muted(cluster) == 1


def test_a_fetch_outside_of_sessions_is_native_unless_its_client_has_to_wait(cluster: TcpCluster) -> None:
    # On a listener for clients only, Python reads each fetch.
    node_id = leader_of(cluster) or 0
    with (
        client_of(cluster, "bob") as writer,
        KafkaConnection(*cluster.addresses[node_id], IN_PLAIN) as client,
    ):
        produce(writer, 10)
        node = cluster.nodes[node_id].node
        lane = node.fetch_lane
        assert lane is not None
        quota = FETCHES_DECLINED.index("quota")

        def declined() -> tuple[int, int, int]:
            before, taken = lane.declined(quota), lane.taken
            size = records_in(fetch(client, 0, (0, -1)))
            return lane.declined(quota) - before, lane.taken - taken, size

        whole = declined()[2]
        assert whole
        assert declined() == (0, 1, whole)
        # The Metadata request before it has found which quota applies.
        set_quotas(cluster, {"user": "ANONYMOUS"}, consumer_byte_rate=1 << 20)
        assert declined() == (0, 1, whole)
        rate = node.metrics.values()["kafka.server:type=Fetch,name=byte-rate,client-id=,user=ANONYMOUS"]
        assert rate * 10 == pytest.approx(whole, rel=0.5)
        set_quotas(cluster, {"user": "ANONYMOUS"}, consumer_byte_rate=1)
        assert declined() == (1, 0, 0)
        set_quotas(cluster, {"user": "ANONYMOUS"}, consumer_byte_rate=None)
        set_quotas(cluster, {"user": "alice"}, consumer_byte_rate=1)
        assert declined() == (0, 1, whole)


def test_old_requests_and_those_without_an_answer_are_throttled_as_well(cluster: TcpCluster) -> None:
    set_quotas(cluster, {"user": "alice"}, producer_byte_rate=1000)
    with client_of(cluster, "alice") as client:
        assert produce(client, 100_000, version=3) >= 90_000
        assert muted(cluster) == 1


# ---- fetch -----------------------------------------------------------------------------------------------


def test_a_throttled_fetch_is_empty_and_its_session_goes_on(cluster: TcpCluster) -> None:
    # KAFKA-6946: the session, and what it had read, are kept.
    with client_of(cluster, "bob") as writer:
        for _ in range(10):
            produce(writer, 5_000)
    with client_of(cluster, "alice") as reader:
        answer = fetch(reader, 0)
        session = answer.session_id
        assert session
        assert records_in(answer)
        set_quotas(cluster, {"user": "alice"}, consumer_byte_rate=2000)
        epoch, is_throttled = 1, False
        while not is_throttled:
            answer = fetch(reader, 0, (session, epoch))
            assert (answer.error_code, answer.session_id) == (NONE, session)
            is_throttled = answer.throttle_time > timedelta(0)
            epoch += 1
        assert records_in(answer) == 0
        set_quotas(cluster, {"user": "alice"}, consumer_byte_rate=None)
        # The partition is not named again, and comes all the same.
        answer = fetch(reader, None, (session, epoch))
        assert (answer.error_code, answer.session_id) == (NONE, session)
        assert records_in(answer)


def test_a_small_quota_starves_no_reader_of_large_batches(cluster: TcpCluster) -> None:
    # KAFKA-9677
    with client_of(cluster, "bob") as writer:
        produce(writer, 1_000_000)
    set_quotas(cluster, {"user": "alice"}, consumer_byte_rate=1024)
    broker = cluster.nodes[leader_of(cluster) or 0].node.broker
    assert broker is not None
    [partition] = [each for each in broker.replica_manager.partitions if each.topic_partition.topic == TOPIC]
    assert partition.log is not None
    last = partition.log.log_end_offset - 1
    with client_of(cluster, "alice") as reader:
        answer = fetch(reader, last)
        assert records_in(answer) > 1_000_000
        # Its time is sent with it.
        assert answer.throttle_time > timedelta(minutes=15)
        assert muted(cluster) == 1


def test_a_fetch_is_no_larger_than_a_burst_of_its_quota(cluster: TcpCluster) -> None:
    with client_of(cluster, "bob") as writer:
        for _ in range(10):
            produce(writer, 5_000)
    set_quotas(cluster, {"user": "alice"}, consumer_byte_rate=1100)
    with client_of(cluster, "alice") as reader:
        assert 5_000 < records_in(fetch(reader, 0)) <= 11_000


# ---- request time, forwarded requests --------------------------------------------------------------------


def test_forwarded_requests_do_not_escape_the_request_quota(cluster: TcpCluster) -> None:
    # KAFKA-14215
    controller = cluster.nodes[1].node.active_controller()
    [forwarding] = {1, 2} - {controller}
    set_quotas(cluster, {"user": "alice"}, request_percentage=0.000001)
    with connection_of(cluster, forwarding, "alice") as client:
        answer = created(client, TOPIC)
        assert answer.topics[0].error_code == ErrorCode.topic_already_exists
        assert timedelta(0) < answer.throttle_time <= timedelta(seconds=1)


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_changes_of_partitions_are_refused_over_their_quota(cluster: TcpCluster, is_forwarded: bool) -> None:
    controller = cluster.nodes[1].node.active_controller()
    assert controller is not None
    at = 3 - controller if is_forwarded else controller
    set_quotas(cluster, {"user": "alice"}, controller_mutation_rate=1)
    name = f"made-{is_forwarded}"
    with connection_of(cluster, at, "alice") as client:
        # There are 11 tokens at first. One operation may take more.
        assert create(client, name, 20) == NONE
        refused = created(client, f"{name}-refused")
        assert refused.topics[0].error_code == THROTTLED
        assert timedelta(seconds=5) < refused.throttle_time <= timedelta(seconds=9)
        assert muted(cluster) == 1
    with connection_of(cluster, at, "alice") as client:
        more = CreatePartitionsTopic(name=name, count=21, assignments=None)
        answer = client.ask(
            CreatePartitionsRequest(topics=(more,), timeout=timedelta(seconds=10), validate_only=True)
        )
        assert answer.results[0].error_code == THROTTLED
    with connection_of(cluster, at, "alice") as client:
        doomed = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=name, topic_id=None),), timeout=timedelta(seconds=10)
        )
        assert client.ask(doomed).responses[0].error_code == THROTTLED
    with connection_of(cluster, at, "alice") as client:
        # A version that does not know the error: done, and the client waits.
        old = created(client, f"{name}-old", version=5)
        assert old.topics[0].error_code == NONE
        assert old.throttle_time > timedelta(0)
    with connection_of(cluster, at, "bob") as client:
        assert create(client, f"{name}-bob") == NONE


# ---- connections -----------------------------------------------------------------------------------------


def set_of_brokers(cluster: TcpCluster, **settings: str | None) -> None:
    """Set settings of all brokers at run time; None removes one. Return when all nodes have them."""
    configs = tuple(
        AlterableConfig(
            name=name.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in settings.items()
    )
    resource = AlterConfigsResource(resource_type=BROKER_RESOURCE, resource_name="", configs=configs)
    with KafkaConnection(*cluster.addresses[1], IN_PLAIN) as node:
        [answer] = node.ask(
            IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        ).responses
    error = error_of(answer.error_code, answer.error_message)
    if error is not None:
        raise error
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    nodes = [each.node for each in cluster.nodes.values()]

    def is_known() -> bool:
        known = [each.loader.published.config(BROKER_RESOURCE, "") for each in nodes]
        return all(each.get(name) == value for each in known for name, value in wanted.items())

    wait_until(is_known, "all nodes know the settings")


@pytest.mark.parametrize("name", ["listener_name_clients_max_connections", "max_connections"])
def test_numbers_of_connections_change_at_run_time(cluster: TcpCluster, name: str) -> None:
    kept = [connection_of(cluster, 1, "alice") for _ in range(3)]
    set_of_brokers(cluster, **{name: "2"})
    try:
        # The connection that was idle longest makes room for each new one.
        with connection_of(cluster, 1, "bob"):
            for each in kept[1:]:
                with suppress(NetworkException):
                    each.ask(MetadataRequest(topics=()))
            with pytest.raises(NetworkException):
                kept[0].ask(MetadataRequest(topics=()))
    finally:
        set_of_brokers(cluster, **{name: None})
        for each in kept:
            each.close()
    kept = [connection_of(cluster, 1, "alice") for _ in range(3)]
    for each in kept:
        each.ask(MetadataRequest(topics=()))
        each.close()


def test_an_impossible_limit_of_connections_is_refused(cluster: TcpCluster) -> None:
    with pytest.raises(InvalidConfig, match=r"max\.connection\.creation\.rate"):
        set_of_brokers(cluster, max_connection_creation_rate="0")
    with pytest.raises(InvalidConfig, match="no setting"):
        set_of_brokers(cluster, listener_name_clients_no_such="1")


def connect(held: ExitStack, cluster: TcpCluster, times: int) -> None:
    for _ in range(times):
        held.enter_context(connection_of(cluster, 1, "alice"))


def test_an_address_over_its_rate_of_connections_is_closed_without_a_word(cluster: TcpCluster) -> None:
    with connection_of(cluster, 1, "carol") as before:
        set_quotas(cluster, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        with ExitStack() as held:
            with pytest.raises((NetworkException, OSError)):
                connect(held, cluster, 20)
        # Connections that were there are served.
        before.ask(MetadataRequest(topics=()))
        key: dict[str, str | None] = {"ip": "127.0.0.1"}
        entity = tuple(QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in key.items())
        ops = (QuotaOpData(key="connection_creation_rate", remove=True),)
        entry = AlterQuotaEntryData(entity=entity, ops=ops)
        before.ask(AlterClientQuotasRequest(entries=(entry,)))
    wait_until(
        lambda: all(not each.node.loader.published.quotas for each in cluster.nodes.values()),
        "all nodes know that the quota is removed",
    )
    for _ in range(20):
        connection_of(cluster, 1, "alice").close()
