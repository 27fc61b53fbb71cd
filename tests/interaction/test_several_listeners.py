"""Brokers with several listeners for clients: each client gets the addresses of its own.

Broker 1 has a listener on IPv4, one on IPv6 with the same port, and one on IPv6 that broker 2 does not have.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from kreplica.broker.api_versions import API_RANGES, Scope
from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.cli.format import run as format_directories
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.administration import DescribeAclsRequest
from kreplica.common.messages.data import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
)
from kreplica.common.messages.groups import FindCoordinatorRequest
from kreplica.common.messages.users import DescribeUserScramCredentialsRequest
from kreplica.runtime.tcp_node import KafkaRaftServer
from tests.support.asking import answer, is_closed_for_key
from tests.support.polling import wait_until
from tests.support.ports import free_addresses
from tests.support.requests import frame_of
from tests.support.sockets import connected, framed, read_frame

WAIT_S = 60.0
CLUSTER_ID = "abcdefghijklmnopqrstuv"
ALL_TOPICS = MetadataRequest(
    topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")


class Brokers:
    """Broker 1, which is the controller, and broker 2."""

    def __init__(self, directory: Path, **properties: object) -> None:
        (_, shared), (_, quorum) = free_addresses(2)
        listeners = {
            1: f"CLIENTS://127.0.0.1:{shared},SIX://[::1]:{shared},OFFICE://[::1]:0,NODES://127.0.0.1:0,"
            f"CONTROLLER://127.0.0.1:{quorum}",
            2: "CLIENTS://127.0.0.1:0,SIX://[::1]:0,NODES://127.0.0.1:0",
        }
        names = ("CLIENTS", "SIX", "OFFICE", "NODES", "CONTROLLER")
        self.failures: list[BaseException] = []
        self.servers = {}
        for node_id, own in listeners.items():
            logs = str(directory / f"node-{node_id}")
            format_directories([logs], node_id, CLUSTER_ID, True, True)
            settings = {
                "node.id": node_id,
                "log.dirs": logs,
                "process.roles": "broker,controller" if node_id == 1 else "broker",
                "listeners": own,
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
                "inter.broker.listener.name": "NODES",
                "controller.quorum.voters": f"1@127.0.0.1:{quorum}",
                "offsets.topic.num.partitions": 4,
                "offsets.topic.replication.factor": 2,
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
            self.servers[node_id] = KafkaRaftServer(settings, self.failures.append)

    def at(self, node_id: int, listener: str) -> tuple[str, int]:
        return self.servers[node_id].addresses[listener]

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.servers[node_id].start()

    def wait(self) -> None:
        for server in self.servers.values():
            server.node.ready.result(WAIT_S)

    def close(self) -> None:
        for server in self.servers.values():
            if server.is_alive:
                server.close()
        assert self.failures == []


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("nodes"))
    try:
        made.start(1, 2)
        made.wait()
        host, port = made.at(1, "CLIENTS")
        admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
        admin.create_topics([NewTopic("orders", 8, 2)])["orders"].result(WAIT_S)
        wait_until(
            lambda: {each.leader_id for each in partitions(made, "CLIENTS")} == {1, 2}, "both brokers lead"
        )
        yield made
    finally:
        made.close()


def partitions(brokers: Brokers, listener: str) -> Any:
    found = answer(brokers.at(1, listener), ALL_TOPICS).topics
    return [partition for topic in found if topic.name == "orders" for partition in topic.partitions]


def bootstrap(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.mark.parametrize("listener", ["CLIENTS", "SIX"])
def test_stock_clients_are_given_the_addresses_of_their_listener(brokers: Brokers, listener: str) -> None:
    expected = {(node_id, *brokers.at(node_id, listener)) for node_id in (1, 2)}
    servers = bootstrap(brokers.at(2, listener))
    found = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=WAIT_S).brokers
    assert {(each.id, each.host, each.port) for each in found.values()} == expected

    consumer = KafkaConsumer("orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    try:
        assert consumer.partitions_for_topic("orders") == set(range(8))
        known = consumer._client.cluster.brokers()
        assert {(int(each.node_id), each.host, each.port) for each in known} == expected
    finally:
        consumer.close()

    async def described() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            return await admin.describe_cluster()
        finally:
            await admin.close()

    assert {
        (each["node_id"], each["host"], each["port"]) for each in asyncio.run(described())["brokers"]
    } == (expected)


def test_a_broker_without_the_clients_listener_is_left_out_and_what_it_leads_is_out_of_reach(
    brokers: Brokers,
) -> None:
    office = brokers.at(1, "OFFICE")
    found = answer(office, ALL_TOPICS)
    assert [(each.node_id, each.host, each.port) for each in found.brokers] == [(1, *office)]
    leaders = {each.partition_index: each.leader_id for each in partitions(brokers, "CLIENTS")}
    for each in partitions(brokers, "OFFICE"):
        expected = (1, ErrorCode.none) if leaders[each.partition_index] == 1 else (-1, NOT_FOUND)
        assert (each.leader_id, each.error_code) == expected
        assert each.offline_replicas == (2,)
    named = DescribeTopicPartitionsRequestTopicRequest(name="orders")
    [topic] = answer(office, DescribeTopicPartitionsRequest(topics=(named,), cursor=None)).topics
    assert {(each.leader_id, each.error_code) for each in topic.partitions} == {
        (1, ErrorCode.none),
        (-1, NOT_FOUND),
    }


NOT_FOUND = ErrorCode.listener_not_found


def test_coordinators_and_the_cluster_are_described_as_the_listener_knows_them(
    brokers: Brokers,
) -> None:
    keys = tuple(f"group-{number}" for number in range(20))
    request = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=keys)

    def coordinators(listener: str) -> set[tuple[int, str, int, ErrorCode]]:
        found = answer(brokers.at(1, listener), request).coordinators
        return {(each.node_id, each.host, each.port, each.error_code) for each in found}

    both = {(node_id, *brokers.at(node_id, "CLIENTS"), ErrorCode.none) for node_id in (1, 2)}
    wait_until(lambda: coordinators("CLIENTS") == both, "both brokers coordinate")
    away = (-1, "", -1, ErrorCode.coordinator_not_available)
    assert coordinators("OFFICE") == {(1, *brokers.at(1, "OFFICE"), ErrorCode.none), away}
    describe = DescribeClusterRequest(
        include_cluster_authorized_operations=False, include_fenced_brokers=False
    )
    for listener, nodes in (("CLIENTS", (1, 2)), ("SIX", (1, 2)), ("OFFICE", (1,))):
        found = answer(brokers.at(1, listener), describe).brokers
        assert [(each.broker_id, each.host, each.port) for each in found] == [
            (node_id, *brokers.at(node_id, listener)) for node_id in nodes
        ]


def test_registrations_carry_every_listener(brokers: Brokers) -> None:
    registered = brokers.servers[2].node.loader.published
    for node_id, names in ((1, ["CLIENTS", "SIX", "OFFICE", "NODES"]), (2, ["CLIENTS", "SIX", "NODES"])):
        endpoints = registered.brokers[node_id].endpoints
        assert [(each.name, each.host, each.port) for each in endpoints] == [
            (name, *brokers.at(node_id, name)) for name in names
        ]


@pytest.mark.parametrize("api_key", API_RANGES)
def test_an_api_outside_of_a_listeners_scope_closes_the_connection(brokers: Brokers, api_key: int) -> None:
    scopes = {"CLIENTS": Scope.CLIENTS, "SIX": Scope.CLIENTS, "OFFICE": Scope.CLIENTS}
    scopes |= {"NODES": Scope.BROKERS, "CONTROLLER": Scope.BROKERS | Scope.CONTROLLERS}
    refused = [name for name, scope in scopes.items() if not scope & API_RANGES[api_key].scope]
    for name in refused:
        assert is_closed_for_key(brokers.at(1, name), api_key), name
    assert refused or API_RANGES[api_key].scope & Scope.CLIENTS


def test_a_client_waits_until_the_broker_knows_the_access_rules(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    try:
        # Without a controller the broker cannot know them.
        brokers.start(2)
        with connected(brokers.at(2, "CLIENTS")) as client:
            client.sendall(framed(frame_of(VERSIONS, 1)))
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(WAIT_S)
            assert not brokers.servers[2].node.knows_rules.done()
            brokers.start(1)
            assert read_frame(client)
        brokers.wait()
        assert len(answer(brokers.at(2, "CLIENTS"), ALL_TOPICS).brokers) == 2
    finally:
        brokers.close()


def test_a_controller_that_is_no_broker_describes_users_and_rules(tmp_path: Path) -> None:
    logs, [address] = str(tmp_path / "node"), free_addresses(1)
    format_directories([logs], 1, CLUSTER_ID, True, True)
    at = "{}:{}".format(*address)
    failures: list[BaseException] = []
    server = KafkaRaftServer(
        {
            "node.id": 1,
            "log.dirs": logs,
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{at}",
            "controller.quorum.voters": f"1@{at}",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        },
        failures.append,
    )
    server.start()
    try:
        rules = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        wait_until(server.node.knows_rules.done, "the rules are known")
        assert answer(address, rules).error_code is ErrorCode.none
        assert answer(address, DescribeUserScramCredentialsRequest(users=None)).results == ()
    finally:
        server.close()
    assert failures == []


def test_a_port_that_is_taken_names_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_addresses(1)[0][1])) as taken:
        brokers = Brokers(tmp_path)
        port = taken.getsockname()[1]
        listeners = brokers.servers[2].listeners
        brokers.servers[2].listeners = (
            listeners[0],
            listeners[1].__class__("SIX", Scope.CLIENTS, address=("127.0.0.1", port)),
        )
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            brokers.start(2)
