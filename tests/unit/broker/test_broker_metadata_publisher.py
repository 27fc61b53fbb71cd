"""BrokerMetadataPublisher: from the cluster's decisions to the roles, logs and settings of a broker."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

import pytest

from kreplica.broker.broker_metadata_publisher import FEW_LOGS, RETRY_MS, ROLES_A_STEP
from kreplica.common.errors import StorageFull, StorageIOError, UnknownTopicOrPartition
from kreplica.common.message import replace
from kreplica.common.types import TopicPartition, Uuid
from kreplica.log.log_loader import NewLog
from kreplica.log.log_manager import Logs
from kreplica.log.unified_log import UnifiedLog
from kreplica.metadata import records as kinds
from kreplica.metadata.cluster_metadata import ClusterMetadata, difference
from kreplica.sim.machines import DIRECTORY
from tests.support.logs import get_or_create_log
from tests.support.metadata_log import topic
from tests.support.published import Published
from tests.support.replicas import batch

A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
T0 = TopicPartition("t", 0)


def change(topic_id: Uuid = A, partition: int = 0, **fields: Any) -> kinds.PartitionChangeRecord:
    return kinds.PartitionChangeRecord(partition_id=partition, topic_id=topic_id, **fields)


def config(name: str, value: str | None, resource: str = "t") -> kinds.ConfigRecord:
    return kinds.ConfigRecord(resource_type=2, resource_name=resource, name=name, value=value)


@pytest.fixture
def stage() -> Published:
    made = Published()
    made.apply(*topic(A, "t"))
    return made


def append(stage: Published, broker_id: int, value: bytes) -> None:
    future = stage.on(broker_id).broker.replica_manager.append_records({T0: batch(value)}, required_acks=-1)
    stage.cluster.settle()
    assert future.result(timeout=0)[T0].error is None


def values(stage: Published, broker_id: int) -> list[bytes | None]:
    log = stage.on(broker_id).broker.replica_manager.partitions.get_or_error(T0).local_log
    return [record.value for each in log.batches(log.log_start_offset) for record in each]


def test_a_topic_that_is_made_gets_its_leader_and_followers(stage: Published) -> None:
    first, second = (stage.on(each).broker.replica_manager.partitions.get_or_error(T0) for each in (1, 2))
    assert (first.is_leader, second.is_leader) == (True, False)
    append(stage, 1, b"v")
    assert values(stage, 2) == [b"v"]
    assert stage.on(1).publisher.metadata_offset() == stage.offset - 1
    assert stage.on(1).publisher.first_published.done()


def test_another_leader_takes_over_where_the_first_was(stage: Published) -> None:
    append(stage, 1, b"v")
    stage.apply(change(leader=2, isr=(1, 2)))
    append(stage, 2, b"w")
    assert values(stage, 1) == values(stage, 2) == [b"v", b"w"]
    assert stage.on(1).cache.leader(T0) == 2


def test_a_deleted_topic_takes_its_logs_along(stage: Published) -> None:
    stage.apply(kinds.RemoveTopicRecord(topic_id=A))
    for broker_id in (1, 2):
        with pytest.raises(UnknownTopicOrPartition):
            stage.on(broker_id).broker.replica_manager.partitions.get_or_error(T0)
        (name,) = stage.names(broker_id)
        assert name.startswith("t-0.")
        assert name.endswith("-delete")
        assert stage.on(broker_id).publisher.metadata_offset() == stage.offset - 1
    stage.cluster.pass_time(60_000)
    assert stage.names(1) == []


def test_a_topic_made_anew_under_its_name_begins_empty(stage: Published) -> None:
    append(stage, 1, b"old")
    stage.apply(kinds.RemoveTopicRecord(topic_id=A), *topic(B, "t"))
    assert values(stage, 1) == values(stage, 2) == []
    append(stage, 1, b"new")
    assert values(stage, 2) == [b"new"]
    assert stage.on(2).broker.log_manager.topic_id(T0) == B


def test_a_replica_that_moved_away_is_deleted_and_one_that_came_is_made(stage: Published) -> None:
    append(stage, 1, b"v")
    zero = Uuid.ZERO
    stage.apply(*topic(B, "u", replicas=(1,)))
    stage.apply(change(replicas=(2,), isr=(2,), leader=2, directories=(zero,)))
    stage.apply(change(B, replicas=(1, 2), directories=(zero, zero)))
    assert stage.on(1).broker.log_manager.get_log(T0) is None
    assert values(stage, 2) == [b"v"]
    assert stage.on(2).broker.log_manager.get_log(TopicPartition("u", 0)) is not None


def of_brokers(name: str, value: str | None, resource: str) -> kinds.ConfigRecord:
    return kinds.ConfigRecord(resource_type=4, resource_name=resource, name=name, value=value)


def test_the_defaults_of_brokers_count_where_a_topic_says_nothing(stage: Published) -> None:
    def settings(broker_id: int, topic: str) -> tuple[int, int]:
        log = stage.on(broker_id).broker.log_manager.get_log(TopicPartition(topic, 0))
        assert log is not None
        return log.config.retention_ms, log.config.segment_ms

    at_start = settings(1, "t")
    stage.apply(config("retention.ms", "5"))
    stage.apply(
        of_brokers("log.retention.ms", "7", ""),
        of_brokers("log.roll.ms", "8", ""),
        of_brokers("log.roll.ms", "9", "2"),
        # Another node may know it.
        of_brokers("log.unheard.of", "1", ""),
    )
    # Of a topic that had its own before, of one that is made afterwards.
    stage.apply(*topic(B, "u"))
    assert (settings(1, "t"), settings(2, "t")) == ((5, 8), (5, 9))
    assert (settings(1, "u"), settings(2, "u")) == ((7, 8), (7, 9))
    stage.cluster.stop(2)
    stage.start(2)
    assert (settings(2, "t"), settings(2, "u")) == ((5, 9), (7, 9))
    stage.apply(
        of_brokers("log.retention.ms", None, ""),
        of_brokers("log.roll.ms", None, ""),
        config("retention.ms", None),
    )
    assert settings(1, "t") == settings(1, "u") == at_start


def test_a_replica_that_there_was_no_room_for_is_made_later(stage: Published) -> None:
    storage = stage.cluster.brokers[2].storage
    storage.full = True
    stage.apply(*topic(B, "u"))
    made = TopicPartition("u", 0)
    logs = stage.on(2).broker.log_manager
    assert logs.get_log(made) is None
    storage.full = False
    stage.cluster.pass_time(RETRY_MS)
    assert logs.topic_id(made) == B
    assert not stage.on(2).broker.replica_manager.partitions.get_or_error(made).is_leader


# ---- the first change -------------------------------------------------------------------------------------


def test_a_start_finds_its_roles_and_goes_on(stage: Published) -> None:
    append(stage, 1, b"v")
    stage.cluster.stop(2)
    stage.apply(change(isr=(1,)))
    append(stage, 1, b"w")
    stage.start(2)
    assert stage.on(2).publisher.metadata_offset() == stage.offset - 1
    assert values(stage, 2) == [b"v", b"w"]


def test_a_topic_that_was_deleted_meanwhile_is_a_stray(
    stage: Published, caplog: pytest.LogCaptureFixture
) -> None:
    append(stage, 1, b"v")
    stage.cluster.stop(2)
    stage.apply(kinds.RemoveTopicRecord(topic_id=A))
    with caplog.at_level(logging.WARNING):
        stage.start(2)
    assert "t-0 is a stray" in caplog.text
    (name,) = stage.names(2)
    assert name.endswith("-stray")
    stage.cluster.pass_time(60_000)
    assert stage.names(2) == []


def test_a_stray_outlives_no_crash_before_it_was_removed(stage: Published) -> None:
    stage.cluster.stop(2)
    stage.apply(kinds.RemoveTopicRecord(topic_id=A))
    stage.start(2)
    stage.cluster.kill(2)
    stage.start(2)
    assert len(stage.names(2)) == 1
    stage.cluster.pass_time(60_000)
    assert stage.names(2) == []


def test_a_topic_made_anew_meanwhile_is_not_given_the_old_log(stage: Published) -> None:
    append(stage, 1, b"old")
    stage.cluster.stop(2)
    stage.apply(kinds.RemoveTopicRecord(topic_id=A), *topic(B, "t"))
    append_to_one = stage.on(1).broker.replica_manager.append_records({T0: batch(b"new")}, required_acks=1)
    stage.cluster.settle()
    assert append_to_one.result(timeout=0)[T0].error is None
    stage.start(2)
    assert values(stage, 2) == [b"new"]
    assert sorted(name.rpartition("-")[2] for name in stage.names(2)) == ["0", "stray"]


def test_a_log_without_a_topic_id_is_moved_aside_and_kept(stage: Published) -> None:
    append(stage, 1, b"v")
    stage.cluster.stop(2)
    stage.cluster.brokers[2].storage.remove(f"{DIRECTORY}/t-0/partition.metadata")
    stage.start(2)
    assert values(stage, 2) == [b"v"]  # fetched anew
    stage.cluster.pass_time(60_000)
    assert sorted(name.rpartition("-")[2] for name in stage.names(2)) == ["0", "stray"]


def test_a_replica_that_was_moved_to_another_broker_meanwhile_is_a_stray(stage: Published) -> None:
    stage.cluster.stop(2)
    stage.apply(change(replicas=(1,), isr=(1,), directories=(Uuid.ZERO,)))
    stage.start(2)
    stage.cluster.pass_time(60_000)
    # The topic still exists, so the stray log may be of use and is kept.
    (name,) = stage.names(2)
    assert name.endswith("-stray")


# ---- settings ---------------------------------------------------------------------------------------------


def test_logs_get_the_settings_of_their_topic_and_lose_them(
    stage: Published, caplog: pytest.LogCaptureFixture
) -> None:
    log = stage.on(1).broker.log_manager.get_log(T0)
    assert log is not None
    own = log.config.retention_ms
    with caplog.at_level(logging.WARNING):
        stage.apply(config("retention.ms", "1000"), config("of.a.later.kafka", "x"))
    assert log.config.retention_ms == 1000
    assert "of.a.later.kafka" in caplog.text
    stage.apply(config("retention.ms", None), config("of.a.later.kafka", None))
    assert log.config.retention_ms == own


def test_the_cleaner_goes_by_the_settings_of_its_broker_or_of_all(stage: Published) -> None:
    cleaners = [stage.on(broker_id).broker.log_manager.cleaner for broker_id in (1, 2)]
    own = cleaners[0].config
    stage.apply(
        of_brokers("log.cleaner.backoff.ms", "7", ""),
        of_brokers("log.cleaner.io.buffer.size", "-1", ""),
        of_brokers("log.cleaner.enable", "false", "2"),
    )
    assert [each.config for each in cleaners] == [
        dataclasses.replace(own, backoff_ms=7),
        dataclasses.replace(own, backoff_ms=7, enable=False),
    ]
    stage.apply(of_brokers("log.cleaner.backoff.ms", None, ""), of_brokers("log.cleaner.enable", None, "2"))
    assert [each.config for each in cleaners] == [own, own]


def test_settings_are_there_before_the_log_is(stage: Published) -> None:
    stage.apply(config("segment.bytes", "4096", "u"), *topic(B, "u"))
    log = stage.on(1).broker.log_manager.get_log(TopicPartition("u", 0))
    assert log is not None
    assert log.config.segment_bytes == 4096


def test_replication_quotas_are_those_of_the_broker_or_of_all(stage: Published) -> None:
    def rate(broker_id: str, name: str, value: str | None) -> kinds.ConfigRecord:
        name = f"{name}.replication.throttled.rate"
        return kinds.ConfigRecord(resource_type=4, resource_name=broker_id, name=name, value=value)

    def rates() -> list[tuple[int, int]]:
        managers = [stage.on(broker_id).broker.replica_manager for broker_id in (1, 2)]
        return [
            (each.quotas.leader.bytes_per_second, each.quotas.follower.bytes_per_second) for each in managers
        ]

    own = rates()
    stage.apply(rate("", "leader", "1000"), rate("2", "leader", "2000"), rate("2", "follower", "3000"))
    assert rates() == [(1000, own[0][1]), (2000, 3000)]
    stage.apply(config("leader.replication.throttled.replicas", "0:2"))
    assert stage.on(2).broker.replica_manager.quotas.leader.is_throttled(T0)
    assert not stage.on(1).broker.replica_manager.quotas.leader.is_active
    stage.apply(rate("", "leader", None), rate("2", "leader", None), rate("2", "follower", None))
    assert rates() == own
    stage.apply(config("leader.replication.throttled.replicas", None))
    assert not stage.on(2).broker.replica_manager.quotas.leader.is_active


# ---- steps, errors ----------------------------------------------------------------------------------------


def test_many_roles_are_taken_in_bounded_steps_and_reported_once_all_are(
    stage: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_first = stage.on(1)
    manager = on_first.broker.replica_manager
    sizes, offsets = [], []
    take = manager.become_leader_or_follower

    def counted(states: Any, epoch: int) -> Any:
        taken = take(states, epoch)
        sizes.append(len(taken))
        offsets.append(on_first.publisher.metadata_offset())
        return taken

    monkeypatch.setattr(manager, "become_leader_or_follower", counted)
    before = stage.offset - 1
    stage.apply(*topic(B, "u", partitions=2 * ROLES_A_STEP + 1))
    assert sizes == [ROLES_A_STEP, ROLES_A_STEP, 1]
    assert offsets == [before] * 3
    assert on_first.publisher.metadata_offset() == stage.offset - 1


def test_a_role_that_fails_is_tried_again(
    stage: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = stage.on(1).broker.replica_manager
    take = manager.become_leader_or_follower
    failures = [ValueError("unexpected"), None]

    def failing(states: Any, epoch: int) -> Any:
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        return take(states, epoch)

    monkeypatch.setattr(manager, "become_leader_or_follower", failing)
    with caplog.at_level(logging.ERROR):
        stage.apply(*topic(B, "u"))
    assert "unexpected" in caplog.text
    assert manager.partitions.get(TopicPartition("u", 0)) is None
    stage.cluster.pass_time(RETRY_MS)
    assert manager.partitions.get_or_error(TopicPartition("u", 0)).is_leader
    assert stage.on(1).publisher.error_count == 1


def test_a_directory_that_fails_takes_its_replicas_offline_and_no_others(stage: Published) -> None:
    def broken(operation: str, path: str) -> None:
        if "/u-" in path:
            raise StorageIOError(f"{operation} of {path}")

    stage = Published(directories=2)
    stage.cluster.set_disk_fault(1, broken)
    stage.apply(*topic(B, "u"), *topic(A, "t"))
    logs = stage.on(1).broker.log_manager
    assert len(logs.offline_directories) == 1
    assert stage.on(1).broker.replica_manager.partitions.get_or_error(T0).is_leader


def test_no_role_is_taken_where_the_directory_failed_behind_the_new_log(
    stage: Published, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A log that is made again for the role, in another directory, would be empty where the first one was led.
    stage = Published(directories=2)
    logs = stage.on(1).broker.log_manager
    make, made_in = logs.get_or_create_logs, []

    def made_then_failed(wanted: Iterable[NewLog]) -> Logs:
        made = make(wanted)
        log = made[TopicPartition("u", 0)]
        assert isinstance(log, UnifiedLog)
        made_in.append(log.local.directory.rpartition("/")[0])
        logs.fail(made_in[0], StorageIOError("the disk is gone"))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(logs, "get_or_create_logs", made_then_failed)
        stage.apply(*topic(B, "u", partitions=FEW_LOGS + 1))
    assert "the log directory failed while the log was created" in caplog.text
    assert len(made_in) == 1
    assert logs.get_log(TopicPartition("u", 0)) is None


def test_no_log_is_made_elsewhere_where_the_directory_fails_as_the_role_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Published(directories=2)
    manager = stage.on(1).broker.replica_manager
    logs, take, made = manager.log_manager, manager.become_leader_or_follower, TopicPartition("u", 0)

    def failing(states: Any, epoch: int) -> Any:
        log = logs.get_log(made)
        if log is not None:
            # A disk thread finds that out; what takes its partitions offline comes to its turn later.
            logs.on_failure = lambda _: None
            logs.fail(log.local.directory.rpartition("/")[0], StorageIOError("the disk is gone"))
        return take(states, epoch)

    monkeypatch.setattr(manager, "become_leader_or_follower", failing)
    stage.apply(*topic(B, "u"))
    assert len(logs.offline_directories) == 1
    assert logs.get_log(made) is None
    assert manager.partitions.get(made) is None


def test_the_log_of_another_topic_of_the_name_is_moved_aside(
    stage: Published, caplog: pytest.LogCaptureFixture
) -> None:
    logs, made = stage.on(1).broker.log_manager, TopicPartition("u", 0)
    get_or_create_log(logs, made, topic_id=Uuid(b"c" * 16))
    stage.apply(*topic(B, "u"))
    assert logs.topic_id(made) == B
    assert stage.on(1).broker.replica_manager.partitions.get_or_error(made).is_leader
    assert "u-0 was the log of another topic with the same name: moved to" in caplog.text
    assert any(name.startswith("u-0.") and name.endswith("-stray") for name in stage.names(1))


def test_a_log_of_another_topic_that_cannot_be_moved_is_tried_again_and_logged_once(
    stage: Published, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs, made = stage.on(1).broker.log_manager, TopicPartition("u", 0)
    get_or_create_log(logs, made, topic_id=Uuid(b"c" * 16))

    def refused(_: TopicPartition) -> str:
        raise StorageFull("no room for a name")

    with monkeypatch.context() as patch:
        patch.setattr(logs, "move_stray_aside", refused)
        stage.apply(*topic(B, "u"))
        assert logs.topic_id(made) == Uuid(b"c" * 16)
        assert stage.on(1).broker.replica_manager.partitions.get(made) is None
        failures = stage.on(1).publisher.error_count
        stage.cluster.pass_time(RETRY_MS)
        assert stage.on(1).publisher.error_count > failures
    assert caplog.text.count("broker 1: u-0: no room for a name") == 1
    stage.cluster.pass_time(RETRY_MS)
    assert logs.topic_id(made) == B
    assert stage.on(1).broker.replica_manager.partitions.get_or_error(made).is_leader


def test_logs_are_made_beside_the_loop_that_takes_roles(
    stage: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = stage.on(1)
    logs, make = broker.broker.log_manager, broker.broker.log_manager.get_or_create_logs
    seen: dict[str, int] = {}

    def made(wanted: Iterable[NewLog]) -> Logs:
        # Another commit comes meanwhile: it waits for its turn.
        if not seen:
            stage.commit(*topic(Uuid(b"c" * 16), "v"))
        for each in wanted:
            seen.setdefault(each.partition.topic, broker.publisher.metadata_offset())
        return make(wanted)

    monkeypatch.setattr(logs, "get_or_create_logs", made)
    before = broker.publisher.metadata_offset()
    stage.apply(*topic(B, "u", partitions=FEW_LOGS + 1))
    assert seen["u"] == before
    assert before < seen["v"] < stage.offset - 1
    assert broker.publisher.metadata_offset() == stage.offset - 1
    for name in "uv":
        assert broker.broker.replica_manager.partitions.get_or_error(TopicPartition(name, 0)).is_leader


def test_what_failed_and_is_changed_meanwhile_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Published(directories=2)
    logs = stage.on(1).broker.log_manager
    make, wanted_at_once = logs.get_or_create_logs, []

    def refused(wanted: Iterable[NewLog]) -> Logs:
        return {each.partition: StorageIOError("not now") for each in wanted}

    def made(wanted: Iterable[NewLog]) -> Logs:
        wanted = list(wanted)
        wanted_at_once.append([str(each.partition) for each in wanted])
        return make(wanted)

    with monkeypatch.context() as patch:
        patch.setattr(logs, "get_or_create_logs", refused)
        stage.apply(*topic(B, "u"))
    monkeypatch.setattr(logs, "get_or_create_logs", made)
    stage.apply(kinds.PartitionChangeRecord(partition_id=0, topic_id=B, leader=2))
    assert ["u-0", "u-0"] not in wanted_at_once
    assert wanted_at_once[0] == ["u-0"]
    assert len([log for log in logs.logs() if log.topic_partition.topic == "u"]) == 1


def test_a_directory_that_fails_between_two_steps_gets_no_empty_logs_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Published(directories=2)
    stage.apply(*topic(B, "u", partitions=4 * ROLES_A_STEP))
    stage.cluster.kill(1)
    stage.cluster.start(1)
    broker = stage.on(1).broker
    logs, manager = broker.log_manager, broker.replica_manager
    [path, other] = sorted(logs.directory_ids)
    take = manager.become_leader_or_follower

    def failing(states: Any, epoch: int) -> Any:
        result = take(states, epoch)
        # What is to take its partitions offline has not had its turn when the next step comes.
        logs.on_failure = lambda _: None
        logs.fail(path, StorageIOError("the disk is gone"))
        return result

    before = {log.topic_partition for log in logs.logs() if log.local.directory.startswith(f"{path}/")}
    assert len(before) > ROLES_A_STEP
    monkeypatch.setattr(manager, "become_leader_or_follower", failing)
    everything = difference(ClusterMetadata(), stage.metadata)
    stage.on(1).publisher.on_metadata_update(everything, stage.metadata.copy(), stage.applied)
    stage.cluster.settle()
    elsewhere = {log.topic_partition for log in logs.logs() if log.local.directory.startswith(f"{other}/")}
    assert not before & elsewhere


def test_a_retry_behind_a_deletion_brings_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Published()
    logs, publisher = stage.on(1).broker.log_manager, stage.on(1).publisher

    def refused(wanted: Iterable[NewLog]) -> Logs:
        return {each.partition: StorageIOError("not now") for each in wanted}

    with monkeypatch.context() as patch:
        patch.setattr(logs, "get_or_create_logs", refused)
        stage.apply(*topic(B, "u"))
    show = publisher._cache.set_image

    def due(image: ClusterMetadata) -> None:
        # The time of the retry comes while the deletion is under way.
        publisher._retry()
        show(image)

    monkeypatch.setattr(publisher._cache, "set_image", due)
    stage.apply(kinds.RemoveTopicRecord(topic_id=B))
    assert logs.get_log(TopicPartition("u", 0)) is None
    assert publisher.metadata_offset() == stage.offset - 1


def test_a_replica_is_made_in_the_directory_that_the_controller_chose() -> None:
    stage = Published(directories=2)
    directories = stage.on(1).broker.log_manager.directory_ids
    for number, (path, directory) in enumerate(sorted(directories.items(), reverse=True)):
        name, topic_id = f"topic-{number}", Uuid(bytes([number + 1]) * 16)
        stage.apply(
            kinds.TopicRecord(name=name, topic_id=topic_id),
            kinds.PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1,),
                isr=(1,),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=(directory,),
            ),
        )
        assert f"{name}-0" in stage.names(1, path)


def test_a_replica_on_a_disk_that_is_gone_is_not_made_anew_elsewhere() -> None:
    stage = Published(directories=2)
    logs = stage.on(1).broker.log_manager
    path, directory = sorted(logs.directory_ids.items())[1]
    logs.fail(path, StorageIOError("EIO"))
    partition = topic(A, "t")[1]
    assert isinstance(partition, kinds.PartitionRecord)
    stage.apply(
        kinds.TopicRecord(name="t", topic_id=A),
        replace(partition, directories=(directory, Uuid.ZERO)),
    )
    assert stage.on(1).broker.replica_manager.partitions.is_offline(T0)
    assert logs.get_log(T0) is None
    assert stage.on(2).broker.log_manager.get_log(T0) is not None


def test_the_directory_of_a_replica_is_assigned_unless_the_controller_knows_it() -> None:
    stage = Published()
    (directory,) = stage.on(1).broker.log_manager.directory_ids.values()
    stage.apply(*topic(A, "t"))
    assert stage.on(1).assignments == [(A, 0, directory)]
    stage.apply(change(directories=(directory, Uuid.ZERO)))
    assert stage.on(1).assignments == [(A, 0, directory)]


def test_nothing_is_done_once_it_is_closed(stage: Published) -> None:
    stage.on(1).publisher.close()
    before = stage.on(1).publisher.metadata_offset()
    stage.apply(*topic(B, "u"))
    assert stage.on(1).broker.log_manager.get_log(TopicPartition("u", 0)) is None
    assert stage.on(1).publisher.metadata_offset() == before
