"""The settings of single groups: their ranges, the broker's bounds, and the value in use."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidConfig
from kreplica.coordinator.group_config import GroupConfig
from kreplica.coordinator.group_settings import (
    DEFAULTS,
    GROUP_SETTINGS,
    GroupConfigManager,
    broker_name,
    broker_value,
    check_group_settings,
)
from kreplica.metadata.cluster_metadata import GROUP_RESOURCE, ClusterMetadata
from kreplica.metadata.records import ConfigRecord

BROKER = GroupConfig()


@pytest.mark.parametrize(
    "settings",
    [
        {"consumer.session.timeout.ms": "45000"},
        {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "15000"},
        {"consumer.assignment.interval.ms": "0"},
        {"share.record.lock.duration.ms": "15000", "share.delivery.count.limit": "10"},
        {"share.partition.max.record.locks": "4000", "share.isolation.level": "read_committed"},
        {"share.auto.offset.reset": "by_duration:PT1H30M"},
        {"share.auto.offset.reset": "by_duration:P3DT4H5M6.5S"},
        {"share.auto.offset.reset": "earliest", "share.renew.acknowledge.enable": "false"},
        {"errors.deadletterqueue.topic.name": "dlq.t", "errors.deadletterqueue.copy.record.enable": "true"},
        {"errors.deadletterqueue.topic.name": ""},
        {"streams.num.standby.replicas": "2", "streams.initial.rebalance.delay.ms": "0"},
    ],
)
def test_a_group_can_have(settings):
    check_group_settings(settings, BROKER)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"consumer.session.timeout.ms": "44999"}, r"below the minimum of 45,000.*group\.consumer\.min\."),
        ({"consumer.session.timeout.ms": "60001"}, r"above the maximum of 60,000.*group\.consumer\.max\."),
        ({"consumer.session.timeout.ms": "x"}, "not an integer"),
        ({"consumer.heartbeat.interval.ms": "4999"}, "below the minimum of 5,000"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "above the maximum of 15,000"),
        ({"consumer.assignment.interval.ms": "15001"}, "above the maximum of 15,000"),
        ({"share.record.lock.duration.ms": "14999"}, "below the minimum of 15,000"),
        ({"share.delivery.count.limit": "11"}, "above the maximum of 10"),
        ({"share.partition.max.record.locks": "99"}, "below the minimum of 100"),
        ({"share.auto.offset.reset": "none"}, "by_duration"),
        ({"share.auto.offset.reset": "by_duration:PT"}, "by_duration"),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, "by_duration"),
        ({"share.isolation.level": "committed"}, "read_committed"),
        ({"share.renew.acknowledge.enable": "maybe"}, "true or false"),
        ({"errors.deadletterqueue.topic.name": "t"}, r"'dlq\.'.*deadletterqueue\.topic\.name\.prefix"),
        ({"errors.deadletterqueue.topic.name": "dlq.a b"}, "is no name of a topic"),
        ({"errors.deadletterqueue.topic.name": "__t"}, "internal topics"),
        ({"streams.num.standby.replicas": "3"}, r"group\.streams\.max\.standby\.replicas"),
        ({"consumer.session.timeout": "1"}, r"the nearest is 'consumer\.session\.timeout\.ms'"),
        ({"retention.ms": "1"}, "groups have no setting"),
    ],
)
def test_a_group_cannot_have(settings, why):
    with pytest.raises(InvalidConfig, match=why):
        check_group_settings(settings, BROKER)


def test_a_session_is_longer_than_the_interval_of_its_heartbeats():
    broker = GroupConfig(group_share_min_session_timeout_ms=1_000, group_share_heartbeat_interval_ms=6_000)
    check_group_settings({"share.session.timeout.ms": "6001"}, broker)
    with pytest.raises(InvalidConfig, match="is not above"):
        check_group_settings({"share.session.timeout.ms": "6000"}, broker)


def test_every_setting_has_a_default_under_the_brokers_name():
    for name, kind in GROUP_SETTINGS.items():
        assert kind.parse(broker_value(BROKER, name)) == broker_value(BROKER, name)
        assert (broker_name(name) in GroupConfig.property_names()) == (name not in DEFAULTS)


def test_a_value_in_use_is_the_groups_or_the_brokers_and_within_its_bounds():
    metadata = ClusterMetadata()
    given = {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"}
    for name, value in given.items():
        metadata.replay(ConfigRecord(resource_type=GROUP_RESOURCE, resource_name="g", name=name, value=value))
    metadata.replay(
        ConfigRecord(
            resource_type=GROUP_RESOURCE, resource_name="g", name="share.auto.offset.reset", value="of later"
        )
    )
    look_up = GroupConfigManager(GroupConfig(), lambda: metadata)
    assert look_up("g", "share.auto.offset.reset") == "latest"
    assert look_up("g", "consumer.session.timeout.ms") == 50_000
    assert look_up("g", "share.isolation.level") == "read_committed"
    assert look_up("g", "share.renew.acknowledge.enable") is True
    assert look_up("h", "consumer.session.timeout.ms") == 45_000
    for bounds, expected in (
        ({"group_consumer_max_session_timeout_ms": 46_000}, 46_000),
        ({"group_consumer_min_session_timeout_ms": 55_000}, 55_000),
    ):
        narrowed = GroupConfigManager(GroupConfig(**bounds), lambda: metadata)
        assert narrowed("g", "consumer.session.timeout.ms") == expected
        # The broker's own value needs no bounds: tests have short sessions.
        assert narrowed("h", "consumer.session.timeout.ms") == 45_000
