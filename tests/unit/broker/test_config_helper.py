"""DescribeConfigs: the value of a setting that counts, and where it and its synonyms come from."""

from __future__ import annotations

import dataclasses

import pytest

from kreplica.broker.config_helper import (
    DEFAULT,
    OF_ALL_BROKERS,
    OF_BROKER,
    OF_GROUP,
    OF_NODE,
    OF_TOPIC,
    ConfigHelper,
)
from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_settings import known_names, settings_of, with_settings
from kreplica.common.config import BROKERS_NAMES
from kreplica.common.error_code import ErrorCode
from kreplica.common.messages.administration import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ListConfigResourcesRequest,
)
from kreplica.common.types import Uuid
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
)
from kreplica.metadata.records import ConfigRecord, TopicRecord

NODE = with_settings(
    NodeConfig(node_id=2, cluster_id="c", directories=("/a", "/b")),
    {"log.retention.ms": 5000, "replica.lag.time.max.ms": 7000, "group.share.session.timeout.ms": 46000},
)


@pytest.fixture
def metadata():
    made = ClusterMetadata()
    made.replay(TopicRecord(name="orders", topic_id=Uuid(bytes([1] * 16))))
    for kind, resource, name, value in (
        (TOPIC_RESOURCE, "orders", "retention.ms", "9000"),
        (TOPIC_RESOURCE, "orders", "cleanup.policy", "compact,delete"),
        (GROUP_RESOURCE, "workers", "share.delivery.count.limit", "7"),
        (BROKER_RESOURCE, "", "min.insync.replicas", "2"),
        (BROKER_RESOURCE, "", "log.cleaner.backoff.ms", "11"),
        (BROKER_RESOURCE, "2", "log.cleaner.backoff.ms", "12"),
    ):
        made.replay(ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value))
    return made


@pytest.fixture
def ask(metadata):
    helper = ConfigHelper(NODE, lambda: metadata)

    def ask(kind, name, *keys, synonyms=False):
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys or None
        )
        request = DescribeConfigsRequest(resources=(resource,), include_synonyms=synonyms)
        return helper.handle_describe_configs(request).result(0).results[0]

    return ask


def values_of(result):
    return {each.name: (each.value, each.config_source, each.read_only) for each in result.configs}


def test_a_topics_setting_is_its_own_or_the_brokers_or_the_nodes_or_the_default(ask):
    found = values_of(ask(TOPIC_RESOURCE, "orders"))
    assert found["retention.ms"] == ("9000", OF_TOPIC, False)
    assert found["min.insync.replicas"] == ("2", OF_ALL_BROKERS, False)
    assert found["segment.bytes"] == ("1073741824", DEFAULT, False)
    assert len(found) == len(dataclasses.fields(NODE.log))


def test_synonyms_are_returned_on_request(ask):
    (setting,) = ask(TOPIC_RESOURCE, "orders", "retention.ms", synonyms=True).configs
    assert [(each.name, each.value, each.source) for each in setting.synonyms] == [
        ("retention.ms", "9000", OF_TOPIC),
        ("log.retention.ms", "5000", OF_NODE),
        ("log.retention.ms", "604800000", DEFAULT),
    ]
    assert ask(TOPIC_RESOURCE, "orders", "retention.ms").configs[0].synonyms == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("preallocate", 1), ("compression.type", 2), ("retention.ms", 5), ("cleanup.policy", 7)],
)
def test_types_are_those_of_a_configuration(ask, name, kind):
    assert ask(TOPIC_RESOURCE, "orders", name).configs[0].config_type == kind


def test_a_brokers_settings_are_those_of_its_node_and_its_dynamic_ones(ask):
    found = values_of(ask(BROKER_RESOURCE, "2"))
    assert found["node.id"] == ("2", DEFAULT, True)
    assert found["log.dirs"] == ("/a,/b", DEFAULT, True)
    assert found["replica.lag.time.max.ms"] == ("7000", OF_NODE, True)
    assert found["broker.heartbeat.interval.ms"] == ("2000", DEFAULT, True)
    assert found["log.cleaner.backoff.ms"] == ("12", OF_BROKER, False)
    assert found["log.idle.ms"] == ("600000", DEFAULT, True)
    assert found["log.retention.ms"] == ("5000", OF_NODE, False)
    assert found["log.segment.bytes"] == ("1073741824", DEFAULT, False)
    # No topic's name for what brokers have a name of their own for.
    assert not set(found) & set(BROKERS_NAMES.values())
    assert len(found) == len(settings_of(NODE))
    assert {each.name for each in settings_of(NODE)} & set(known_names(NODE))


def test_a_brokers_setting_that_was_set_by_a_topics_name_is_found_by_its_own(ask, metadata):
    record = ConfigRecord(
        resource_type=BROKER_RESOURCE, resource_name="2", name="segment.bytes", value="4096"
    )
    metadata.replay(record)
    (found,) = ask(BROKER_RESOURCE, "2", "log.segment.bytes").configs
    assert (found.value, found.config_source, found.config_type) == ("4096", OF_BROKER, 3)


def test_the_settings_of_all_brokers_have_no_broker(ask):
    assert values_of(ask(BROKER_RESOURCE, "")) == {
        "log.cleaner.backoff.ms": ("11", OF_ALL_BROKERS, False),
        "min.insync.replicas": ("2", OF_ALL_BROKERS, False),
    }


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC_RESOURCE, "absent", ErrorCode.unknown_topic_or_partition),
        (BROKER_RESOURCE, "3", ErrorCode.invalid_request),
        (BROKER_RESOURCE, "x", ErrorCode.invalid_request),
        (8, "2", ErrorCode.invalid_request),
    ],
)
def test_what_has_no_settings_here(ask, kind, name, code):
    result = ask(kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


def test_a_groups_setting_is_its_own_or_the_nodes_or_the_default(ask):
    found = values_of(ask(GROUP_RESOURCE, "workers"))
    assert found["share.delivery.count.limit"] == ("7", OF_GROUP, False)
    assert found["share.session.timeout.ms"] == ("46000", OF_NODE, False)
    assert found["share.isolation.level"] == ("read_uncommitted", DEFAULT, False)
    assert len(found) == 19
    (setting,) = ask(GROUP_RESOURCE, "workers", "share.delivery.count.limit", synonyms=True).configs
    assert [(each.name, each.value, each.source) for each in setting.synonyms] == [
        ("share.delivery.count.limit", "7", OF_GROUP),
        ("group.share.delivery.count.limit", "5", DEFAULT),
    ]
    assert values_of(ask(GROUP_RESOURCE, "of no settings"))["share.delivery.count.limit"][1] == DEFAULT
    assert ask(GROUP_RESOURCE, "").error_code is ErrorCode.invalid_request


def test_resources_are_listed_by_type(metadata):
    helper = ConfigHelper(NODE, lambda: metadata)

    def listed(*types):
        answer = helper.handle_list_config_resources(ListConfigResourcesRequest(resource_types=types)).result(
            0
        )
        return answer.error_code, [
            (each.resource_type, each.resource_name) for each in answer.config_resources
        ]

    assert listed(GROUP_RESOURCE) == (ErrorCode.none, [(GROUP_RESOURCE, "workers")])
    everything = [(TOPIC_RESOURCE, "orders"), (GROUP_RESOURCE, "workers")]
    assert listed() == (ErrorCode.none, everything)
    assert listed(TOPIC_RESOURCE, 16) == (ErrorCode.none, everything[:1])
    assert listed(GROUP_RESOURCE, 5) == (ErrorCode.unsupported_version, [])
