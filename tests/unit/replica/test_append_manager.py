"""Appends that a disk thread makes, while roles change."""

from __future__ import annotations

from typing import Any

import pytest

from kreplica.common.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from kreplica.log.append_queue import AppendQueue
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica.append_manager import APPENDS_A_STEP
from kreplica.replica.partition import Partition
from kreplica.sim.disk import SimDisk
from tests.support.batches import build
from tests.support.replicas import Replicas, batch

NOW_MS = 1_600_000_000_000


@pytest.fixture
def at() -> Replicas:
    return Replicas(with_disks=True)


def stalled(at: Replicas, broker_id: int) -> SimDisk:
    """Stall the broker's disk and return it; it does nothing until `go_on`."""
    manager = at.broker(broker_id).log_manager
    assert manager.disk is not None
    disk = manager.disk(next(iter(manager.directory_ids)))
    assert isinstance(disk, SimDisk)
    disk.stall(0.0)
    return disk


def log_of(at: Replicas, broker_id: int) -> UnifiedLog:
    log = at.broker(broker_id).log_manager.get_log(at.partitions[0])
    assert log is not None
    return log


def end_as_follower(at: Replicas, broker_id: int, leader: int) -> int:
    """Make the broker a follower of `leader`, notifying no other broker, and return its log end offset."""
    decision = at.controller.elect(at.partitions[0], leader)
    at.notify(decision, to=[broker_id])
    return log_of(at, broker_id).log_end_offset


def test_a_leader_epoch_begins_behind_what_was_under_way(at: Replicas) -> None:
    disk = stalled(at, 1)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a", b"b"))
    at.elect(1)
    log = log_of(at, 1)
    assert log.epochs.entries[-1].start_offset == log.log_end_offset == 2
    disk.go_on()
    at.settle()
    assert future.result(0).base_offset == 0


def test_an_append_fails_if_its_leader_was_deposed_meanwhile(at: Replicas) -> None:
    disk = stalled(at, 1)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a"))
    at.elect(2)
    disk.go_on()
    at.settle()
    assert isinstance(future.exception(0), NotLeaderOrFollower)
    assert {log_of(at, broker_id).log_end_offset for broker_id in at.ids} == {0}


def test_pending_appends_are_in_the_log_before_a_follower_reports_its_end(at: Replicas) -> None:
    disk = stalled(at, 1)
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a", b"b"))
    assert log_of(at, 1).log_end_offset == 0
    # The new leader relies on the log end that the first fetch reports.
    assert end_as_follower(at, 1, leader=2) == 2
    disk.go_on()
    at.settle()
    assert log_of(at, 1).log_end_offset == 2
    assert isinstance(future.exception(0), NotLeaderOrFollower)


def test_what_a_new_leader_was_appending_as_a_follower_is_flushed() -> None:
    """Only what is flushed may be committed, and no append may ever come that flushes the rest."""
    at = Replicas(with_disks=True, settings={"durability": "fsync"})
    manager, log = at.broker(1).replica_manager, log_of(at, 2)
    # The first append of a leader epoch is not left to the disk thread.
    manager.append(at.partitions[0], batch(b"a"))
    at.pass_time(100)
    disk = stalled(at, 2)
    manager.append(at.partitions[0], batch(b"b"))
    at.pass_time(10)
    assert log.log_end_offset == 1
    at.elect(2)
    disk.go_on()
    at.pass_time(1_000)
    assert (log.log_end_offset, log.flush_offset, log.high_watermark) == (2, 2, 2)


def test_pending_appends_of_a_deposed_leader_are_flushed_before_it_fetches() -> None:
    """Its first fetch reports its log end to the new leader, which takes that offset for flushed."""
    at = Replicas(with_disks=True, settings={"durability": "fsync_quorum"})
    disk = stalled(at, 1)
    at.broker(1).replica_manager.append(at.partitions[0], batch(b"a", b"b"))
    assert end_as_follower(at, 1, leader=2) == log_of(at, 1).flush_offset == 2
    disk.go_on()
    at.settle()


def test_what_waits_when_a_term_ends_is_not_appended() -> None:
    # The second batch does not fit into the segment: the disk declines it, and gives the third one back.
    at = Replicas(with_disks=True, settings={"segment_bytes": 100})
    disk = stalled(at, 1)
    manager = at.broker(1).replica_manager
    futures = [manager.append(at.partitions[0], batch(value)) for value in (b"a", b"b", b"c")]
    end = end_as_follower(at, 1, leader=2)
    assert end == 1
    disk.go_on()
    at.settle()
    assert log_of(at, 1).log_end_offset == end
    assert [type(future.exception(0)) for future in futures] == [NotLeaderOrFollower] * 3


def shrink_isr(at: Replicas, *isr: int) -> None:
    """Let the leader hear of another ISR, in the same leader epoch."""
    at.notify(at.controller.decide(at.partitions[0], isr=isr), to=[1])


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_isr_is_looked_at_when_an_append_is_made(is_alone: bool) -> None:
    """It may shrink while the append waits for the disk. The second batch does not fit into the segment: the
    disk declines it, and gives the third one back."""
    at = Replicas(with_disks=True, settings={"segment_bytes": 100, "min_insync_replicas": 2})
    disk = stalled(at, 1)
    manager, topic_partition = at.broker(1).replica_manager, at.partitions[0]
    values = (b"a", b"b", b"c")
    if is_alone:
        futures = [manager.append(topic_partition, batch(value)) for value in values]
        errors = [future.exception for future in futures]
    else:
        answers = [manager.append_records({topic_partition: batch(value)}) for value in values]
        errors = [lambda _, each=each: each.result(0)[topic_partition].error for each in answers]
    unasked = manager.append(topic_partition, batch(b"d"), required_acks=1)
    for other in (2, 3):
        at.cluster.cut(1, other)
    shrink_isr(at, 1)
    disk.go_on()
    at.settle()
    expected = [NotEnoughReplicasAfterAppend, NotEnoughReplicas, NotEnoughReplicas]
    assert [type(error(0)) for error in errors] == expected
    assert unasked.result(0).base_offset == 1
    assert at.values(1) == [b"a", b"d"]
    assert at.partition(1).high_watermark == 0


def test_an_append_whose_isr_shrinks_while_it_waits_for_followers_goes_on_waiting() -> None:
    """As Kafka's does: the ISR may grow again in time."""
    at = Replicas(with_disks=True, settings={"min_insync_replicas": 2})
    end = at.cluster.hold(lambda message: not message.is_request and message.receiver in (2, 3))
    future = at.broker(1).replica_manager.append(at.partitions[0], batch(b"a"))
    at.pass_time(10)
    shrink_isr(at, 1)
    at.pass_time(10)
    assert not future.done()
    end()
    for held in at.cluster.held():
        at.cluster.release(held)
    at.pass_time(1_000)
    assert future.result(0).base_offset == 0


def test_a_request_of_many_partitions_is_submitted_in_steps_and_nothing_overtakes_it() -> None:
    count = 2 * APPENDS_A_STEP + 3
    at = Replicas(with_disks=True, partitions=count)
    manager, last = at.manager(1), at.partitions[-1]
    many = manager.append_records({each: batch(b"a") for each in at.partitions})
    behind = manager.append(last, batch(b"b"))
    log = at.broker(1).log_manager.get_log(last)
    assert log is not None
    assert AppendQueue.of(log).is_idle  # its turn is in the third step
    at.settle()
    assert [each.error for each in many.result(0).values()] == [None] * count
    assert behind.result(0).base_offset == 1
    assert at.values(1, count - 1) == at.values(2, count - 1) == [b"a", b"b"]


def test_a_broker_that_stops_answers_what_had_no_turn_yet() -> None:
    at = Replicas(with_disks=True, partitions=APPENDS_A_STEP + 1)
    manager, last = at.manager(1), at.partitions[-1]
    for follower in (2, 3):
        at.cluster.kill(follower)
    many = manager.append_records({each: batch(b"a") for each in at.partitions})
    behind = manager.append(last, batch(b"b"))
    manager.shutdown()
    late = manager.append(last, batch(b"c"))
    at.settle()
    assert isinstance(many.result(0)[last].error, NotLeaderOrFollower)
    for refused in (behind, late):
        assert isinstance(refused.exception(0), NotLeaderOrFollower)
    assert at.values(1, last.partition) == []


def test_a_request_with_an_unexpected_error_fails_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at = Replicas(with_disks=True, partitions=APPENDS_A_STEP + 1)
    manager, last = at.manager(1), at.partitions[-1]
    many = manager.append_records({each: batch(b"a") for each in at.partitions})
    behind = manager.append(at.partitions[0], batch(b"b"))
    submit = Partition.append

    def failing(self: Partition, append: Any) -> bool:
        if self.topic_partition == last:
            raise TypeError("unexpected")
        return submit(self, append)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", failing)
        at.settle()
    assert isinstance(many.exception(0), TypeError)
    assert "failed unexpectedly" in caplog.text
    assert behind.result(0).base_offset == 1
    assert at.values(1, last.partition) == []


def from_producer(sequence: int, value: bytes) -> bytes:
    return build([value], producer_id=7, producer_epoch=0, base_sequence=sequence, now_ms=NOW_MS)


@pytest.mark.parametrize("with_disks", [True, False])
def test_a_batch_of_a_new_producer_is_not_appended_before_one_that_was_refused(with_disks: bool) -> None:
    """The log does not know the producer, and took any first sequence. A client that gets an answer for the
    second batch takes the first one for appended."""
    at = Replicas(with_disks=with_disks, settings={"min_insync_replicas": 2})
    manager, topic_partition = at.broker(1).replica_manager, at.partitions[0]
    everyone = at.partition(1).isr
    shrink_isr(at, 1)
    first, second = from_producer(0, b"first"), from_producer(1, b"second")
    refused = manager.append(topic_partition, first)
    at.settle()
    assert isinstance(refused.exception(0), NotEnoughReplicas)
    shrink_isr(at, *everyone)
    early = manager.append(topic_partition, second)
    at.settle()
    assert isinstance(early.exception(0), OutOfOrderSequenceNumber)
    for number, again in enumerate((first, second)):
        answer = manager.append(topic_partition, again)
        at.settle()
        at.pass_time(100)
        assert answer.result(0).base_offset == number
    assert at.values(1) == [b"first", b"second"]


def test_a_producer_that_gave_up_a_refused_batch_goes_on_in_its_next_epoch() -> None:
    at = Replicas(settings={"min_insync_replicas": 2})
    manager, topic_partition = at.broker(1).replica_manager, at.partitions[0]
    everyone = at.partition(1).isr
    shrink_isr(at, 1)
    manager.append(topic_partition, from_producer(0, b"given up")).exception(0)
    shrink_isr(at, *everyone)
    later = build([b"later"], producer_id=7, producer_epoch=1, base_sequence=0, now_ms=NOW_MS)
    answer = manager.append(topic_partition, later)
    at.settle()
    at.pass_time(100)
    assert answer.result(0).base_offset == 0
