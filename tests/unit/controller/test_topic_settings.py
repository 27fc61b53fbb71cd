"""TopicSettings: a topic's own before the cluster's before Kafka's."""

from __future__ import annotations

from kreplica.controller.topic_settings import ElectionSettings, TopicSettings
from kreplica.metadata.records import ConfigRecord
from tests.support.controllers import ControllerStage


def set_default(stage: ControllerStage, name: str, value: str | None) -> None:
    with stage.machines.batch.collected():
        record = ConfigRecord(resource_type=4, resource_name="", name=name, value=value)
        stage.machines.batch.add_record(record, 0)


def test_what_counts() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    of = stage.context.settings.of
    assert of("orders") == ElectionSettings(1, False)
    set_default(stage, "min.insync.replicas", "3")
    set_default(stage, "unclean.leader.election.enable", "true")
    assert of("orders") == ElectionSettings(3, True)
    stage.set_config("orders", "min.insync.replicas", "2")
    assert of("orders") == ElectionSettings(2, True)
    assert of("other") == ElectionSettings(3, True)
    stage.set_config("orders", "min.insync.replicas", None)
    assert of("orders") == ElectionSettings(3, True)


def test_what_the_node_is_configured_with_counts_before_kafkas_default() -> None:
    stage = ControllerStage()

    def of(topic: str) -> ElectionSettings:
        return TopicSettings(stage.context.metadata, unclean_leader_election_enable=True).of(topic)

    stage.create("orders", (0,), unclean_leader_election_enable="false")
    assert of("orders") == ElectionSettings(1, False)
    assert of("other") == ElectionSettings(1, True)
    set_default(stage, "unclean.leader.election.enable", "false")
    assert of("other") == ElectionSettings(1, False)


def test_a_value_that_is_not_allowed_counts_for_nothing() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    stage.set_config("orders", "min.insync.replicas", "many")
    stage.set_config("orders", "unclean.leader.election.enable", "true")
    assert stage.context.settings.of("orders") == ElectionSettings(1, True)


def test_a_topic_made_anew_has_nothing_of_the_old_one() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,), min_insync_replicas="2")
    assert stage.context.settings.of("orders").min_insync_replicas == 2
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    stage.create("orders", (0,))
    assert stage.context.settings.of("orders").min_insync_replicas == 1


def test_since_when_there_is_another_min_insync_replicas() -> None:
    stage = ControllerStage()
    changed_at = stage.context.settings.min_isr_changed_at
    stage.create("orders", (0,), min_insync_replicas="2")
    stage.set_config("orders", "retention.ms", "1000")
    assert (changed_at("orders"), changed_at("other")) == (-1, -1)
    stage.set_config("orders", "min.insync.replicas", "1")
    assert (changed_at("orders"), changed_at("other")) == (len(stage.log) - 1, -1)
    set_default(stage, "min.insync.replicas", "3")
    assert changed_at("orders") == changed_at("other") == len(stage.log) - 1
    stage.take_over()
    assert stage.context.settings.min_isr_changed_at("orders") == len(stage.log) - 1


def test_a_topic_made_anew_was_not_changed() -> None:
    stage = ControllerStage()
    stage.create("orders", (0,))
    stage.set_config("orders", "min.insync.replicas", "2")
    stage.machines.topic_deletion.enqueue_topics_for_deletion(["orders"])
    stage.create("orders", (0,))
    assert stage.context.settings.min_isr_changed_at("orders") == -1
