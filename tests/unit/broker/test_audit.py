"""What the audit log has: changes and failures, one JSON object each, without values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import kreplica
from kreplica.broker.api_versions import API_RANGES, request_type
from kreplica.broker.audit import CHANGES
from kreplica.broker.blank_answers import blank
from kreplica.broker.controller_apis import OPERATIONS, OPERATIONS_OF_CLIENT

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
    assert failures[0]["mechanism"] == "PLAIN"
    assert "4711" not in caplog.text
    assert 'wrong"' not in caplog.text.replace('is wrong"', "")
