"""ReplicaManager over three simulated brokers: appends and their errors, deletions, disks."""

from __future__ import annotations

import threading

import pytest

from kreplica._core.fetch_session import CachedPartition, FetchSession
from kreplica.common.errors import (
    InconsistentTopicId,
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    StaleControllerEpoch,
    StorageIOError,
    UnknownTopicOrPartition,
)
from kreplica.common.types import ACKS_LEADER, ACKS_NONE, TopicPartition, Uuid
from kreplica.replica.delayed_fetch import CONSUMER, FetchParams
from tests.support.batches import build
from tests.support.logs import get_or_create_log
from tests.support.replicas import Replicas, batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def error_of(future):
    assert future.done()
    return future.exception(0)


# ---- waits -------------------------------------------------------------------------------------------------


@pytest.mark.callbacks_may_fail
def test_a_callback_that_fails_delays_no_other_append() -> None:
    at = Replicas()
    futures = [at.manager().append(T0, batch(b"a")) for _ in range(5)]
    futures[1].add_done_callback(lambda _: 1 / 0)
    at.settle()
    assert [each.result(0).base_offset for each in futures] == [0, 1, 2, 3, 4]


def test_a_shutdown_acknowledges_nothing_that_is_not_committed() -> None:
    at = Replicas(partitions=2)
    at.cluster.kill(2)
    at.cluster.kill(3)
    answer = at.manager().append_records({T0: batch(b"a"), T1: batch(b"b")})
    alone = at.manager().append(T0, batch(b"c"))
    at.manager().shutdown()
    assert [type(each.error) for each in answer.result(0).values()] == [NotLeaderOrFollower] * 2
    assert isinstance(error_of(alone), NotLeaderOrFollower)


def test_after_the_shutdown_requests_fail_at_once() -> None:
    at = Replicas()
    at.cluster.kill(2)
    at.cluster.kill(3)
    manager = at.manager()
    manager.shutdown()
    assert isinstance(error_of(manager.append(T0, batch(b"a"))), NotLeaderOrFollower)
    [response] = manager.append_records({T0: batch(b"a")}).result(0).values()
    assert isinstance(response.error, NotLeaderOrFollower)
    session = FetchSession(now_ms=0)
    session.ask([CachedPartition(T0, Uuid.ZERO, fetch_offset=0, max_bytes=100)])
    params = FetchParams(CONSUMER, -1, 500, 1, 100, "high_watermark")
    assert manager.fetches.fetch_messages(session, params).done()


def test_an_append_to_a_closed_log_gets_not_leader_or_follower() -> None:
    at = Replicas()
    at.manager().shutdown()
    at.partition().local_log.close()
    assert isinstance(error_of(at.manager().append(T0, batch(b"a"))), NotLeaderOrFollower)
    [response] = at.manager().append_records({T0: batch(b"a")}).result(0).values()
    assert isinstance(response.error, NotLeaderOrFollower)


def test_a_partition_of_other_brokers_is_not_hosted() -> None:
    at = Replicas()
    elsewhere = TopicPartition("t", 7)
    at.notify(at.controller.create(elsewhere, (2, 3)))
    assert at.manager(1).partitions.get(elsewhere) is None
    assert at.manager(2).partitions.get(elsewhere) is not None


# ---- one partition -----------------------------------------------------------------------------------------


def test_an_append_is_done_when_all_in_sync_replicas_have_it() -> None:
    at = Replicas()
    future = at.manager().append(T0, batch(b"a", b"b"))
    assert not future.done()
    at.settle()
    answer = future.result(0)
    assert (answer.base_offset, answer.last_offset, answer.leader_epoch) == (0, 1, 0)
    assert [at.values(broker) for broker in at.ids] == [[b"a", b"b"]] * 3
    assert at.partition(1).high_watermark == 2


@pytest.mark.parametrize("acks", [ACKS_NONE, ACKS_LEADER])
def test_with_less_than_all_the_leader_answers_at_once(acks: int) -> None:
    at = Replicas()
    assert at.manager().append(T0, batch(b"a"), required_acks=acks).result(0).base_offset == 0
    assert at.partition(1).high_watermark == 0


def test_each_error_has_its_type_and_nothing_is_appended() -> None:
    at = Replicas(settings={"min.insync.replicas": 2, "max.message.bytes": 100})
    manager = at.manager()
    assert isinstance(error_of(manager.append(TopicPartition("x", 0), batch(b"a"))), UnknownTopicOrPartition)
    assert isinstance(error_of(at.manager(2).append(T0, batch(b"a"))), NotLeaderOrFollower)
    assert isinstance(error_of(manager.append(T0, batch(b"a"), required_acks=2)), InvalidRequiredAcks)
    assert isinstance(error_of(manager.append(T0, batch(b"a" * 200))), MessageTooLarge)
    internal = TopicPartition("__consumer_offsets", 0)
    assert isinstance(error_of(manager.append(internal, batch(b"a"))), InvalidTopic)
    at.notify(at.controller.decide(T0, isr=(1,)))
    assert isinstance(error_of(manager.append(T0, batch(b"a"))), NotEnoughReplicas)
    assert manager.append(T0, batch(b"a"), required_acks=ACKS_LEADER).result(0).base_offset == 0


@pytest.mark.parametrize("with_disks", [False, True])
def test_a_leader_that_no_follower_fetches_from_ends_no_producer(with_disks: bool) -> None:
    """It may have stood still, and have been replaced: another leader has what it takes for a gap."""

    def send(sequence: int) -> BaseException | None:
        sent = build(
            [b"v"], producer_id=7, producer_epoch=0, base_sequence=sequence, now_ms=1_600_000_000_000
        )
        future = at.manager().append(T0, sent)
        at.settle()
        return error_of(future)

    at = Replicas(with_disks=with_disks)
    assert send(0) is None
    at.pass_time(1_100)
    assert isinstance(send(5), OutOfOrderSequenceNumber)
    at.cluster.kill(2)
    at.pass_time(1_100)
    assert isinstance(send(5), OutOfOrderSequenceNumber)
    at.cluster.kill(3)
    at.pass_time(1_100)
    assert at.partition().isr == (1, 2, 3)
    assert isinstance(send(5), NotLeaderOrFollower)


def test_a_fetch_from_before_a_standstill_of_the_leader_lets_it_end_no_producer() -> None:
    """It lay in the socket; its sender may follow another leader by now."""

    def send(sequence: int) -> BaseException | None:
        sent = build(
            [b"v"], producer_id=7, producer_epoch=0, base_sequence=sequence, now_ms=1_600_000_000_000
        )
        future = at.manager().append(T0, sent)
        at.settle()
        return error_of(future)

    at = Replicas()
    assert send(0) is None
    at.pass_time(1_100)
    assert isinstance(send(5), OutOfOrderSequenceNumber)
    let_through = at.cluster.hold(lambda message: message.is_request and message.receiver == 1)
    at.pass_time(3_000)
    assert isinstance(send(5), NotLeaderOrFollower)
    fetches = at.cluster.held()
    assert sorted(message.sender_id for message in fetches) == [2, 3]
    for message in fetches:
        at.cluster.release(message)
    at.settle()
    assert at.partition().isr == (1, 2, 3)
    assert isinstance(send(5), NotLeaderOrFollower)
    let_through()
    at.pass_time(600)  # each is answered, and followed by another one
    assert isinstance(send(5), OutOfOrderSequenceNumber)


def test_the_first_error_of_a_request_is_returned() -> None:
    at = Replicas()
    unknown = TopicPartition("x", 0)
    wrong = at.manager().append(unknown, batch(b"a"), required_acks=7)
    assert isinstance(error_of(wrong), UnknownTopicOrPartition)
    assert isinstance(error_of(at.manager(2).append(T0, batch(b"a"), required_acks=7)), NotLeaderOrFollower)
    huge = batch(b"a" * 2_000_000)
    assert isinstance(error_of(at.manager().append(T0, huge, required_acks=7)), InvalidRequiredAcks)


def test_an_append_to_a_stopped_replica_gets_not_leader_or_follower() -> None:
    at = Replicas()
    at.manager(3).stop_replicas({T0: True})
    assert isinstance(error_of(at.manager(3).append(T0, batch(b"a"))), NotLeaderOrFollower)


def test_an_append_that_is_not_committed_in_time_fails_and_stays() -> None:
    at = Replicas()
    at.cluster.cut(1, 2)
    at.cluster.cut(1, 3)
    future = at.manager().append(T0, batch(b"a"), timeout_ms=1_000)
    at.pass_time(999)
    assert not future.done()
    at.pass_time(1)
    assert isinstance(error_of(future), RequestTimedOut)
    assert at.values(1) == [b"a"]


def test_an_append_whose_leader_is_replaced_fails_at_once() -> None:
    at = Replicas()
    at.cluster.cut(1, 2)
    at.cluster.cut(1, 3)
    future = at.manager().append(T0, batch(b"a"))
    at.elect(2)
    assert isinstance(error_of(future), NotLeaderOrFollower)


def test_a_leader_that_stays_leader_in_a_new_epoch_goes_on_waiting() -> None:
    at = Replicas()
    at.cluster.cut(1, 2)
    future = at.manager().append(T0, batch(b"a"), timeout_ms=100_000)
    at.settle()
    at.elect(1)
    assert not future.done()
    at.cluster.heal_all()
    at.pass_time(60_000)
    assert future.result(0).base_offset == 0


def test_a_commit_by_too_few_replicas_is_reported_after_the_append() -> None:
    at = Replicas(settings={"min.insync.replicas": 2})
    at.cluster.cut(1, 2)
    at.cluster.cut(1, 3)
    future = at.manager().append(T0, batch(b"a"))
    # The followers are dropped from the ISR; with one replica in sync the high watermark stands still.
    at.pass_time(50_000)
    assert at.partition().isr == (1,)
    assert at.partition().high_watermark == 0
    assert isinstance(error_of(future), (RequestTimedOut, NotEnoughReplicasAfterAppend))


# ---- several partitions ------------------------------------------------------------------------------------


def test_an_append_to_several_partitions_answers_for_each() -> None:
    at = Replicas(partitions=2)
    nowhere = TopicPartition("x", 3)
    entries = {T0: batch(b"a"), T1: batch(b"b"), nowhere: batch(b"c")}
    future = at.manager().append_records(entries)
    assert not future.done()
    at.settle()
    answers = future.result(0)
    assert answers[T0].error is None
    assert answers[T1].base_offset == 0
    assert isinstance(answers[nowhere].error, UnknownTopicOrPartition)


def test_a_request_whose_parts_all_fail_does_not_wait() -> None:
    at = Replicas()
    answers = at.manager(2).append_records({T0: batch(b"a")}).result(0)
    assert isinstance(answers[T0].error, NotLeaderOrFollower)


def test_a_part_that_was_committed_stays_so_when_another_fails() -> None:
    at = Replicas(partitions=2)
    manager = at.manager()
    # The second partition's followers are stopped, so only the first can be committed.
    for broker in (2, 3):
        at.manager(broker).fetchers.remove_fetcher_for_partitions([T1])
    future = manager.append_records({T0: batch(b"a"), T1: batch(b"b")}, timeout_ms=5_000)
    at.settle()
    assert not future.done()
    at.notify(at.controller.elect(T0, 2))
    at.notify(at.controller.elect(T1, 2))
    answers = future.result(0)
    assert answers[T0].error is None
    assert isinstance(answers[T1].error, NotLeaderOrFollower)


def test_late_parts_time_out_and_those_in_time_succeed() -> None:
    at = Replicas(partitions=2)
    for broker in (2, 3):
        at.manager(broker).fetchers.remove_fetcher_for_partitions([T1])
    future = at.manager().append_records({T0: batch(b"a"), T1: batch(b"b")}, timeout_ms=100)
    at.pass_time(100)
    answers = future.result(0)
    assert answers[T0].error is None
    assert isinstance(answers[T1].error, RequestTimedOut)
    assert answers[T1].base_offset == 0


def test_ten_thousand_appends_are_answered_in_order() -> None:
    at = Replicas(partitions=4)
    orders: list[list[int]] = [[] for _ in range(4)]
    for number in range(10_000):
        future = at.manager().append(TopicPartition("t", number % 4), batch(b"%d" % number))
        future.add_done_callback(
            lambda done, order=orders[number % 4]: order.append(done.result().base_offset)
        )
    at.settle()
    assert at.manager().delayed.produce.delayed == 0
    assert orders == [list(range(2_500))] * 4


# ---- roles -------------------------------------------------------------------------------------------------


def test_a_controller_that_was_replaced_is_refused() -> None:
    at = Replicas()
    state = at.controller.decide(T0, isr=(1, 2))
    at.broker(1).become_leader_or_follower([state], 5)
    with pytest.raises(StaleControllerEpoch):
        at.broker(1).become_leader_or_follower([state], 4)


def test_a_role_is_not_taken_without_a_log() -> None:
    at = Replicas()
    other = TopicPartition("t", 1)
    state = at.controller.create(other, at.ids)
    manager = at.manager()
    refused = manager.become_leader_or_follower([state], at.controller.epoch)[other]
    assert isinstance(refused, KafkaStorageError)
    assert manager.log_manager.get_log(other) is None
    assert manager.partitions.get(other) is None
    get_or_create_log(manager.log_manager, other, topic_id=state.topic_id)
    assert manager.become_leader_or_follower([state], at.controller.epoch) == {other: None}
    assert manager.partitions.get_or_error(other).is_leader


def test_a_role_is_not_taken_with_the_log_of_another_topic() -> None:
    at = Replicas()
    other = TopicPartition("t", 1)
    state = at.controller.create(other, at.ids)
    manager = at.manager()
    get_or_create_log(manager.log_manager, other, topic_id=Uuid(b"another topic's."))
    refused = manager.become_leader_or_follower([state], at.controller.epoch)[other]
    assert isinstance(refused, InconsistentTopicId)
    assert manager.partitions.get(other) is None


def test_a_broker_makes_no_log_where_the_disk_of_the_partition_has_failed() -> None:
    at = Replicas(partitions=2)
    logs = at.manager().log_manager
    at.manager().partitions.take_offline(T0)
    logs.delete_logs([T0])
    assert logs.get_log(T0) is None
    refused = at.broker().become_leader_or_follower([at.controller.elect(T0, 1)], at.controller.epoch)[T0]
    assert isinstance(refused, KafkaStorageError)
    assert logs.get_log(T0) is None


def test_a_leader_runs_no_fetcher_and_a_follower_exactly_one() -> None:
    at = Replicas()
    for leader in (1, 2, 3, 1):
        at.elect(leader)
        at.settle()
        for broker in at.ids:
            fetchers = [f for f in at.manager(broker).fetchers if f.state_of(T0) is not None]
            assert len(fetchers) == (0 if broker == leader else 1)


def test_a_stopped_replica_is_deleted_where_that_is_asked() -> None:
    at = Replicas()
    at.manager().append(T0, batch(b"a"))
    at.settle()
    assert at.manager(3).stop_replicas({T0: False}) == {T0: None}
    assert at.broker(3).log_manager.get_log(T0) is not None
    assert at.manager(2).stop_replicas({T0: True}) == {T0: None}
    assert len(at.manager(2).fetchers) == 0
    assert at.broker(2).log_manager.get_log(T0) is None


# ---- deletion of records ------------------------------------------------------------------------


def test_records_are_deleted_when_every_replica_has_dropped_them() -> None:
    at = Replicas()
    at.manager().append(T0, batch(b"a", b"b", b"c"))
    at.settle()
    at.pass_time(1_000)
    future = at.manager().delete_records({T0: 2, TopicPartition("x", 0): 1})
    assert not future.done()
    at.pass_time(1_000)
    answers = future.result(0)
    assert answers[T0].low_watermark == 2
    assert isinstance(answers[TopicPartition("x", 0)].error, UnknownTopicOrPartition)
    assert [at.partition(broker).log_start_offset for broker in at.ids] == [2, 2, 2]


def test_a_deletion_that_a_follower_does_not_follow_times_out() -> None:
    at = Replicas()
    at.manager().append(T0, batch(b"a", b"b", b"c"))
    at.settle()
    at.pass_time(1_000)
    at.cluster.cut(1, 3)
    future = at.manager().delete_records({T0: -1}, timeout_ms=2_000)
    at.pass_time(2_000)
    answer = future.result(0)[T0]
    assert isinstance(answer.error, RequestTimedOut)
    assert at.partition(1).low_watermark_waiters == 0
    with pytest.raises(OffsetOutOfRange):
        raise at.manager().delete_records({T0: 99}).result(0)[T0].error


# ---- disks -------------------------------------------------------------------------------------------------


def test_a_directory_that_fails_takes_its_partitions_offline() -> None:
    at = Replicas()
    at.manager().append(T0, batch(b"a"))
    at.settle()
    at.cluster.cut(1, 2)
    waiting = at.manager(1).append(T0, batch(b"waits"))
    failure = StorageIOError("the disk is gone")
    at.manager(1).handle_log_directory_failure("/data", failure)
    assert isinstance(error_of(waiting), KafkaStorageError)
    assert isinstance(error_of(at.manager(1).append(T0, batch(b"b"))), KafkaStorageError)
    assert at.manager(1).stop_replicas({T0: False})[T0] is not None
    assert at.broker(1).metrics.values()["kafka.server:type=ReplicaManager,name=OfflineReplicaCount"] == 1
    at.elect(2, isr=(2, 3))
    at.settle()
    again = at.manager(2).append(T0, batch(b"c"))
    at.settle()
    assert again.result(0).base_offset == 1


def test_a_disk_that_refuses_a_leader_epoch_is_offline() -> None:
    at = Replicas()

    def refuse(operation: str, path: str) -> None:
        raise StorageIOError(f"{operation} of {path}")

    at.cluster.set_disk_fault(2, refuse)
    at.elect(2)
    at.cluster.set_disk_fault(2, None)
    assert isinstance(error_of(at.manager(2).append(T0, batch(b"a"))), KafkaStorageError)
    assert list(at.broker(2).log_manager.offline_directories) == ["/data"]


def test_metrics_are_plain_numbers() -> None:
    at = Replicas(settings={"min.insync.replicas": 2})
    numbers = at.broker(1).metrics.values()
    name = "kafka.server:type=ReplicaManager,name="
    assert numbers[name + "LeaderCount"] == numbers[name + "PartitionCount"] == 1
    assert numbers[name + "UnderReplicatedPartitions"] == 0
    at.cluster.cut(1, 3)
    at.manager().append(T0, batch(b"a"))
    at.pass_time(60_000)
    numbers = at.broker(1).metrics.values()
    assert at.partition().isr == (1, 2)
    assert numbers[name + "IsrShrinksPerSec"] == 1
    assert numbers[name + "UnderReplicatedPartitions"] == numbers[name + "AtMinIsrPartitionCount"] == 1
    at.cluster.heal_all()
    at.pass_time(5_000)
    assert at.partition().isr == (1, 2, 3)
    assert at.broker(1).metrics.values()[name + "IsrExpandsPerSec"] == 1


def test_a_transaction_that_stays_open_is_counted_after_twenty_minutes() -> None:
    at = Replicas()
    log = at.partition().log
    assert log is not None
    name = "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount"
    records = build(
        [b"a"], now_ms=log.time_ms(), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append_as_leader(records, log.leader_epoch)
    at.pass_time(1_200_000)
    assert at.broker(1).metrics.values()[name] == 0
    at.pass_time(1)
    assert at.broker(1).metrics.values()[name] == 1


def test_no_lock_is_held_when_a_change_of_roles_resolves_futures() -> None:
    at = Replicas()
    at.cluster.cut(1, 2)
    free: list[bool] = []

    def try_the_lock() -> None:
        lock = at.manager()._role_lock
        free.append(lock.acquire(blocking=False))
        if free[-1]:
            lock.release()

    def look(_: object) -> None:
        # Another thread could take the lock at this moment.
        thread = threading.Thread(target=try_the_lock)
        thread.start()
        thread.join()

    at.manager().append(T0, batch(b"a")).add_done_callback(look)
    at.elect(2)
    assert free == [True]
