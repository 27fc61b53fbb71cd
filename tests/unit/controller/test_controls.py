"""ConfigurationControl, ProducerIdControl and FeatureControl, as requests to the active controller."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.config import LogConfig
from kreplica.common.error_code import ErrorCode
from kreplica.common.errors import InvalidConfig
from kreplica.common.messages.administration import (
    AlterConfigsRequest,
    FeatureUpdateKey,
    IncrementalAlterConfigsRequest,
    UpdateFeaturesRequest,
)
from kreplica.common.messages.administration import AlterConfigsRequestAlterableConfig as PlainConfig
from kreplica.common.messages.administration import AlterConfigsRequestAlterConfigsResource as PlainResource
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from kreplica.common.messages.administration import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from kreplica.common.messages.controllers import AllocateProducerIdsRequest
from kreplica.common.types import INT64_MAX
from kreplica.controller.configuration_control import APPEND, DELETE, SET, SUBTRACT, ConfigurationControl
from kreplica.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
)
from tests.support.one_controller import OneController, registration


@pytest.fixture
def stage() -> OneController:
    stage = OneController()
    stage.start(1)
    stage.create_topic("t", [1])
    return stage


Change = tuple[str, int, str | None]


def resource(*changes: Change, kind: int = TOPIC_RESOURCE, name: str = "t") -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,  # type: ignore[arg-type]
        resource_name=name,
        configs=tuple(
            AlterableConfig(name=key, config_operation=operation, value=value)  # type: ignore[arg-type]
            for key, operation, value in changes
        ),
    )


def alter(stage: OneController, *resources: AlterConfigsResource, validate_only: bool = False) -> Any:
    """The answers, one for each resource."""
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    return stage.ask(request).responses


def settings(stage: OneController, kind: int = TOPIC_RESOURCE, name: str = "t") -> dict[str, str]:
    return dict(stage.committed.config(kind, name))


# ---- settings: IncrementalAlterConfigs -------------------------------------------------------------------


def test_settings_are_set_and_deleted(stage: OneController) -> None:
    (answer,) = alter(stage, resource(("retention.ms", SET, "1000"), ("min.insync.replicas", SET, "2")))
    assert answer.error_code is ErrorCode.none
    assert settings(stage) == {"retention.ms": "1000", "min.insync.replicas": "2"}
    alter(stage, resource(("retention.ms", DELETE, None)))
    assert settings(stage) == {"min.insync.replicas": "2"}


def test_items_are_added_to_a_list_and_taken_from_it(stage: OneController) -> None:
    # The list begins as its default.
    alter(stage, resource(("cleanup.policy", APPEND, "compact")))
    assert settings(stage) == {"cleanup.policy": "delete,compact"}
    alter(stage, resource(("cleanup.policy", SUBTRACT, "delete")))
    assert settings(stage) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (resource(("retention.mz", SET, "1")), ErrorCode.invalid_config, "the nearest is 'retention.ms'"),
        (
            resource(("retention.ms", SET, "soon")),
            ErrorCode.invalid_config,
            "retention.ms=soon is not an integer",
        ),
        (resource(("retention_ms", SET, "1")), ErrorCode.invalid_config, "unknown setting"),
        (resource(("retention.ms", APPEND, "1")), ErrorCode.invalid_config, "is not a list"),
        (resource(("retention.ms", SET, None)), ErrorCode.invalid_request, "needs a value"),
        (resource(("retention.ms", 9, "1")), ErrorCode.invalid_request, "operation 9"),
        (
            resource(("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
            ErrorCode.invalid_request,
            "twice",
        ),
        (
            resource(("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")),
            ErrorCode.invalid_config,
            "is above",
        ),
        (
            resource(("retention.ms", SET, "1"), name="u"),
            ErrorCode.unknown_topic_or_partition,
            "topic 'u' does not exist",
        ),
        (
            resource(("retention.ms", SET, "1"), kind=BROKER_RESOURCE, name="7"),
            ErrorCode.broker_id_not_registered,
            "broker '7' is not registered",
        ),
        (resource(("retention.ms", SET, "1"), kind=16), ErrorCode.invalid_request, "type 16"),
    ],
)
def test_what_cannot_be_set_is_refused_in_words(
    stage: OneController, changed: AlterConfigsResource, error: ErrorCode, words: str
) -> None:
    (answer,) = alter(stage, changed)
    assert (answer.error_code, words in answer.error_message) == (error, True), answer
    assert not settings(stage)


def test_one_resource_that_is_refused_does_not_keep_the_others(stage: OneController) -> None:
    answers = alter(
        stage,
        resource(("nothing", SET, "1")),
        resource(("retention.ms", SET, "1"), kind=BROKER_RESOURCE, name=""),
    )
    assert [answer.error_code for answer in answers] == [ErrorCode.invalid_config, ErrorCode.none]
    assert settings(stage, BROKER_RESOURCE, "") == {"retention.ms": "1"}


def test_a_resource_twice_in_a_request_is_refused(stage: OneController) -> None:
    once = resource(("retention.ms", SET, "1"))
    assert {each.error_code for each in alter(stage, once, once)} == {ErrorCode.invalid_request}


def test_what_is_only_to_be_checked_is_not_written(stage: OneController) -> None:
    (answer,) = alter(stage, resource(("retention.ms", SET, "1000")), validate_only=True)
    assert answer.error_code is ErrorCode.none
    assert not settings(stage)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("leader.replication.throttled.rate", "1000", ErrorCode.none),
        ("log.cleaner.backoff.ms", "10", ErrorCode.none),
        ("log.idle.ms", "10", ErrorCode.invalid_config),
        ("leader.replication.throttled.rate", "0", ErrorCode.invalid_config),
        ("log.cleaner.backoff.ms", "-1", ErrorCode.invalid_config),
        ("broker.id", "2", ErrorCode.invalid_config),
    ],
)
def test_brokers_have_settings_of_their_own(
    stage: OneController, name: str, value: str, error: ErrorCode
) -> None:
    (answer,) = alter(stage, resource((name, SET, value), kind=BROKER_RESOURCE, name="1"))
    assert answer.error_code is error


@pytest.mark.parametrize("resource_name", ["", "1"])
def test_a_setting_of_nodes_files_cannot_be_changed_while_they_run(
    stage: OneController, resource_name: str
) -> None:
    control = ConfigurationControl(stage.committed, frozenset({"num.io.threads", "log.retention.ms"}))
    with pytest.raises(InvalidConfig, match=r"num\.io\.threads cannot be changed at run time"):
        control.check(BROKER_RESOURCE, resource_name, {"num.io.threads": "4"})
    control.check(BROKER_RESOURCE, resource_name, {"log.retention.ms": "5000"})
    for operation in (SET, DELETE):
        change = resource(("num.io.threads", operation, "4"), kind=BROKER_RESOURCE, name=resource_name)
        request = IncrementalAlterConfigsRequest(resources=(change,), validate_only=False)
        (answer,) = control.incremental_alter_configs(request).response.responses
        assert answer.error_code is ErrorCode.invalid_config
        assert "num.io.threads cannot be changed at run time" in answer.error_message


def test_settings_of_groups_are_checked_and_need_no_group(stage: OneController) -> None:
    checked: list[dict[str, str]] = []

    def check(settings: Mapping[str, str]) -> None:
        checked.append(dict(settings))
        if "unknown" in settings:
            raise InvalidConfig("unknown")

    control = ConfigurationControl(stage.committed, (), check)

    def answer(name: str, *changes: Change) -> Any:
        resources = (resource(*changes, kind=GROUP_RESOURCE, name=name),)
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        result = control.incremental_alter_configs(request)
        return result.response.responses[0].error_code, len(result.records)

    assert answer("g", ("share.isolation.level", SET, "read_committed")) == (ErrorCode.none, 1)
    assert answer("g", ("unknown", SET, "1")) == (ErrorCode.invalid_config, 0)
    assert answer("", ("share.isolation.level", SET, "read_committed")) == (ErrorCode.invalid_request, 0)
    assert checked == [{"share.isolation.level": "read_committed"}, {"unknown": "1"}]


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(("retention.ms", "cleanup.policy", "min.compaction.lag.ms", "nothing")),
            st.sampled_from((SET, DELETE, APPEND, SUBTRACT)),
            st.sampled_from((None, "", "1", "-1", "compact", "delete,compact", "x")),
        ),
        max_size=8,
    )
)
def test_whatever_is_asked_what_is_committed_is_a_configuration(changes: list[Change]) -> None:
    stage = OneController()
    stage.start(1)
    stage.create_topic("t", [1])
    for change in changes:
        alter(stage, resource(change))
        LogConfig.parse(settings(stage))
    assert stage.controller.is_active


@pytest.mark.parametrize(("kind", "name"), [(TOPIC_RESOURCE, "t"), (BROKER_RESOURCE, "")])
def test_replicas_eligible_only_by_the_old_min_isr_leave_the_elr(kind: int, name: str) -> None:
    # KIP-966.
    stage = OneController()
    stage.start(1, 2)
    stage.create_topic("t", [1, 2])
    alter(stage, resource(("min.insync.replicas", SET, "2"), kind=kind, name=name))
    stage.pass_with([2], 240)
    assert stage.partition("t").elr == (1,)
    alter(stage, resource(("retention.ms", SET, "1"), kind=kind, name=name))
    assert stage.partition("t").elr == (1,)
    alter(stage, resource(("min.insync.replicas", SET, "1"), kind=kind, name=name))
    assert stage.partition("t").elr == ()
    assert stage.do(lambda term: [each.registration.elr for each in term.context.partitions.values()]) == [()]


def test_a_new_min_isr_keeps_the_elr_of_a_leaderless_partition() -> None:
    stage = OneController()
    stage.start(1, 2)
    stage.create_topic("t", [1, 2], min_insync_replicas="2")
    stage.pass_with([], 400)
    partition = stage.partition("t")
    assert (partition.leader, partition.isr, set(partition.elr)) == (-1, (), {1, 2})
    alter(stage, resource(("min.insync.replicas", SET, "1"), kind=TOPIC_RESOURCE, name="t"))
    assert set(stage.partition("t").elr) == {1, 2}


# ---- settings: AlterConfigs ------------------------------------------------------------------------------


def test_the_older_request_replaces_all_settings(stage: OneController) -> None:
    alter(stage, resource(("retention.ms", SET, "1000"), ("min.insync.replicas", SET, "2")))
    plain = PlainResource(
        resource_type=TOPIC_RESOURCE,  # type: ignore[arg-type]
        resource_name="t",
        configs=(PlainConfig(name="retention.bytes", value="5"),),
    )
    (answer,) = stage.ask(AlterConfigsRequest(resources=(plain,), validate_only=False)).responses
    assert answer.error_code is ErrorCode.none
    assert settings(stage) == {"retention.bytes": "5"}


# ---- producer ids ----------------------------------------------------------------------------------------


def allocate(stage: OneController, epoch: int | None = None) -> Any:
    return stage.ask(
        AllocateProducerIdsRequest(
            broker_id=1,  # type: ignore[arg-type]
            broker_epoch=stage.epochs[1] if epoch is None else epoch,  # type: ignore[arg-type]
        )
    )


def test_each_block_of_producer_ids_is_given_once(stage: OneController) -> None:
    blocks = [allocate(stage) for _ in range(3)]
    assert [(each.producer_id_start, each.producer_id_len) for each in blocks] == [
        (0, 1_000),
        (1_000, 1_000),
        (2_000, 1_000),
    ]
    stage.quorum.lose()
    stage.quorum.win()
    stage.settle()
    assert allocate(stage).producer_id_start == 3_000


def test_a_broker_of_another_epoch_gets_none(stage: OneController) -> None:
    assert allocate(stage, epoch=99).error_code is ErrorCode.stale_broker_epoch
    assert allocate(stage).producer_id_start == 0


@pytest.mark.parametrize(("left", "code"), [(1_000, ErrorCode.none), (999, ErrorCode.unknown_server_error)])
def test_the_last_producer_ids(
    stage: OneController, monkeypatch: pytest.MonkeyPatch, left: int, code: ErrorCode
) -> None:
    monkeypatch.setattr(ClusterMetadata, "next_producer_id", INT64_MAX - left)
    assert allocate(stage).error_code is code


# ---- features --------------------------------------------------------------------------------------------


def update(stage: OneController, name: str, level: int, kind: int = 1, **changes: Any) -> Any:
    request = UpdateFeaturesRequest(
        feature_updates=(
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind),  # type: ignore[arg-type]
        ),
        timeout=datetime.timedelta(seconds=1),  # type: ignore[arg-type]
        **changes,
    )
    return stage.ask(request)


@pytest.mark.parametrize(
    "name", ["eligible.leader.replicas.version", "group.version", "share.version", "streams.version"]
)
def test_a_feature_is_switched_off_and_on_again(stage: OneController, name: str) -> None:
    assert update(stage, name, 0).error_code is ErrorCode.feature_update_failed, "no upgrade"
    assert update(stage, name, 0, kind=2).error_code is ErrorCode.none
    assert stage.committed.features.get(name, 0) == 0
    assert update(stage, name, 1, validate_only=True).error_code is ErrorCode.none
    assert stage.committed.features.get(name, 0) == 0
    assert update(stage, name, 1).error_code is ErrorCode.none
    assert stage.committed.features[name] == 1


@pytest.mark.parametrize(
    ("name", "level", "kind", "error"),
    [
        ("metadata.version", 24, 2, ErrorCode.feature_update_failed),
        ("metadata.version", 26, 1, ErrorCode.unsupported_version),
        ("nothing", 1, 1, ErrorCode.unsupported_version),
        ("group.version", 2, 1, ErrorCode.unsupported_version),
        ("group.version", 0, 1, ErrorCode.feature_update_failed),
        ("share.version", 2, 1, ErrorCode.unsupported_version),
        ("streams.version", 2, 1, ErrorCode.unsupported_version),
        ("metadata.version", -1, 1, ErrorCode.invalid_request),
        ("eligible.leader.replicas.version", 0, 7, ErrorCode.invalid_request),
    ],
)
def test_a_level_that_cannot_be_is_refused(
    stage: OneController, name: str, level: int, kind: int, error: ErrorCode
) -> None:
    before = dict(stage.committed.features)
    response = update(stage, name, level, kind)
    assert (response.error_code, response.results[0].error_code) == (error, error)
    assert stage.committed.features == before


def test_a_level_that_one_broker_does_not_support_is_refused(stage: OneController) -> None:
    name = "eligible.leader.replicas.version"
    update(stage, name, 0, kind=2)
    without = tuple(each for each in registration(2).features if each.name != name)
    assert stage.register(2, features=without).error_code is ErrorCode.none
    response = update(stage, name, 1)
    assert response.error_code is ErrorCode.unsupported_version
    assert "broker 2" in response.error_message
