"""What the audit log has: changes and failures, one JSON object each, without values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import kreplica
from kreplica.broker.api_versions import API_RANGES, request_type
from kreplica.broker.audit import (
    CHANGES,
    MOST_KINDS,
    MOST_OF_ALL,
    SPAN_S,
    Refusals,
    audit,
    report_repeated,
)
from kreplica.broker.blank_answers import blank
from kreplica.broker.controller_apis import OPERATIONS, OPERATIONS_OF_CLIENT
from kreplica.common.messages.administration import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
)
from kreplica.security.peer import KafkaPrincipal, Peer

WAIT_S = 30
# Requests of nodes, and those that change nothing.
OF_NODES = {"AlterPartition", "AssignReplicasToDirs", "BrokerRegistration", "BrokerHeartbeat"}
OF_NODES |= {"ControllerRegistration", "AllocateProducerIds", "ListPartitionReassignments"}


def test_every_change_by_the_controller_is_in_the_log():
    handled = {*OPERATIONS, *OPERATIONS_OF_CLIENT}
    asked = {kind for kind in handled if kind.__name__.removesuffix("Request") not in OF_NODES}
    assert asked <= set(CHANGES)
    handled = {request_type(key, each.handled) for key, each in API_RANGES.items()}
    assert set(CHANGES) <= handled
    for kind, about in CHANGES.items():
        assert all(isinstance(text, str) for text in about(blank(kind)))


def test_changes_and_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    security = kreplica.Security(protocol="SASL_PLAINTEXT", users={"admin": "secret"})
    with (
        caplog.at_level("INFO", "kreplica.audit"),
        kreplica.Cluster(serve=True, security=security) as cluster,
    ):
        admin = AdminClient(cluster.client_config())
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(WAIT_S)
        resource = ConfigResource("TOPIC", "orders")
        entry = ConfigEntry("retention.ms", "4711", incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        admin.create_topics([NewTopic("only-tried", 1, 1)], validate_only=True)["only-tried"].result(WAIT_S)
        # What the program itself does is not a client's.
        cluster.create_topic("own")
        wrong = AdminClient({**cluster.client_config(), "sasl.password": "wrong"})
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=2)
    events = [json.loads(record.getMessage()) for record in caplog.records if record.name == "kreplica.audit"]
    changes = [each for each in events if each["event"] == "change"]
    assert [(each["request"], each["about"], each["errors"]) for each in changes] == [
        ("CreateTopics", ["orders"], []),
        ("CreateTopics", ["orders"], ["topic_already_exists"]),
        ("IncrementalAlterConfigs", ["orders"], []),
    ]
    assert {(each["principal"], each["host"]) for each in changes} == {("User:admin", "127.0.0.1")}
    failures: list[dict[str, Any]] = [each for each in events if each["event"] == "login failed"]
    assert failures
    assert (failures[0]["mechanism"], failures[0]["user"]) == ("PLAIN", "admin")
    assert "4711" not in caplog.text
    assert 'wrong"' not in caplog.text.replace('is wrong"', "")


def test_a_change_of_rules_says_which() -> None:
    creation = AclCreation(
        resource_type=2,
        resource_name="raw-",
        resource_pattern_type=4,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=2,
    )
    (created,) = CHANGES[CreateAclsRequest](CreateAclsRequest(creations=(creation,)))
    assert created == "DENY READ TOPIC:raw- and what it begins for User:alice from *"
    chosen = DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="orders",
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=99,
    )
    (removed,) = CHANGES[DeleteAclsRequest](DeleteAclsRequest(filters=(chosen,)))
    assert removed == "code 99 ANY TOPIC:orders for ANY from ANY"


# ---- refusals in a loop ------------------------------------------------------------------------------------

ALICE, BOB = ({"principal": f"User:{name}", "host": "10.0.0.9"} for name in ("alice", "bob"))


def denied(client: dict[str, str], what: str) -> dict[str, object]:
    return {"event": "denied", **client, "denied": [what]}


def test_a_refusal_in_a_loop_is_logged_once_and_counted() -> None:
    refusals = Refusals()
    first = denied(ALICE, "WRITE TOPIC:orders")
    lines = [line for at in range(1_000) for line in refusals.take(first, ALICE, 100.0 + at / 100)]
    assert [json.loads(line) for line in lines] == [first]
    # Another kind is not lost, and neither is the first one of the next minute.
    second = denied(ALICE, "READ TOPIC:orders")
    assert [json.loads(line) for line in refusals.take(second, ALICE, 111.0)] == [second]
    later = [json.loads(line) for line in refusals.take(first, ALICE, 100.0 + SPAN_S)]
    assert later == [{**first, "repeated": 999}, first]
    assert refusals.end_span(100.0 + SPAN_S + 1) == []
    assert refusals.end_span(100.0 + 2 * SPAN_S) == []


def test_a_client_that_is_refused_many_things_hides_no_other_one() -> None:
    refusals = Refusals()
    lines = []
    for number in range(10_000):
        lines += refusals.take(denied(ALICE, f"READ TOPIC:{number}"), ALICE, 100.0)
    assert len(lines) == MOST_KINDS
    of_bob = denied(BOB, "READ TOPIC:1")
    assert [json.loads(line) for line in refusals.take(of_bob, BOB, 100.0)] == [of_bob]
    (summary,) = [json.loads(line) for line in refusals.end_span(100.0 + SPAN_S)]
    assert summary == {"event": "more refusals", **ALICE, "repeated": 10_000 - MOST_KINDS}


def test_many_clients_are_bounded_too() -> None:
    refusals = Refusals()
    lines = []
    for number in range(2 * MOST_OF_ALL):
        client = {"principal": "User:ANONYMOUS", "host": f"10.0.{number >> 8}.{number & 255}"}
        lines += refusals.take(denied(client, "DESCRIBE TOPIC:orders"), client, 100.0)
    assert len(lines) == MOST_OF_ALL
    (summary,) = [json.loads(line) for line in refusals.end_span(100.0 + SPAN_S)]
    assert summary == {"event": "more refusals", "repeated": MOST_OF_ALL}


def test_a_clock_that_goes_back_begins_another_minute() -> None:
    refusals = Refusals()
    first = denied(ALICE, "WRITE TOPIC:orders")
    assert len(refusals.take(first, ALICE, 1_000.0)) == 1
    assert len(refusals.take(first, ALICE, 1_001.0)) == 0
    assert len(refusals.take(first, ALICE, 10.0)) == 2


def test_clients_that_are_denied_in_a_loop_log_one_line(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer("/10.0.0.9", KafkaPrincipal("User", "alice"), "CLIENTS")
    for _ in range(100):
        audit("denied", peer, is_refused=True, request="Fetch", denied=["READ TOPIC:orders"], count=1)
    report_repeated()
    assert len(caplog.records) == 1
