"""Reads of consumers and followers: epochs, divergence, bounds, slices."""

from __future__ import annotations

import pytest

from kreplica._core.records import batches
from kreplica.common import errors
from kreplica.common.types import NO_OFFSET, AppendOrigin
from kreplica.record.control import EndTransactionMarker, build_end_transaction_marker
from kreplica.replica.partition_state import NOTHING
from tests.support.batches import build
from tests.support.partitions import Replicas, append_as_leader


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas()
    made.lead(1)
    return made


def offsets(records) -> list[int]:
    return [batch.base_offset for batch in batches(records)] if records is not None else []


# ---- consumers ---------------------------------------------------------------------------------------------


def test_a_consumer_reads_what_is_committed(replicas):
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    replicas.append(b"b")
    read = replicas.leader.fetch_records(0, 1 << 20)
    assert offsets(read.records) == [0]
    assert (read.high_watermark, read.log_end_offset, read.log_start_offset) == (1, 2, 0)
    assert (read.leader_epoch, read.diverging_epoch) == (0, None)
    assert replicas.leader.fetch_records(1, 1 << 20).records is None
    assert replicas.leader.fetch_records(2, 1 << 20).records is None
    with pytest.raises(errors.OffsetOutOfRange):
        replicas.leader.fetch_records(3, 1 << 20)


def test_a_consumer_of_committed_transactions_stops_before_an_open_one(replicas):
    replicas.append(b"a")
    sent = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    append_as_leader(replicas.leader, build([b"b"], **sent))
    replicas.catch_up(2, 3)
    read = replicas.leader.fetch_records(0, 1 << 20, isolation="txn_committed")
    assert (offsets(read.records), read.high_watermark, read.last_stable_offset) == ([0], 2, 1)
    assert offsets(replicas.leader.fetch_records(0, 1 << 20).records) == [0, 1]
    marker = build_end_transaction_marker(
        EndTransactionMarker(False, 0), producer_id=5, producer_epoch=0, timestamp_ms=replicas.clock.now_ms
    )
    append_as_leader(replicas.leader, marker, AppendOrigin.COORDINATOR)
    replicas.catch_up(2, 3)
    read = replicas.leader.fetch_records(0, 1 << 20, isolation="txn_committed")
    assert offsets(read.records) == [0, 1, 2]
    assert [(txn.producer_id, txn.first_offset) for txn in read.aborted] == [(5, 1)]


def test_the_first_batch_comes_whole(replicas):
    replicas.append(b"x" * 5_000)
    replicas.append(b"y")
    read = replicas.leader.fetch_records(0, 10, isolation="log_end")
    assert offsets(read.records) == [0]
    assert replicas.leader.fetch_records(0, 10, isolation="log_end", at_least_one=False).records is None


def test_records_are_handed_over_where_they_lie(replicas):
    replicas.append(b"a")
    read = replicas.leader.fetch_records(0, 1 << 20, isolation="log_end")
    region = replicas.node(1).log.active.region
    assert region.contains_address(read.records.address)
    assert read.records.region is region


def test_a_follower_is_read_only_where_that_is_allowed(replicas):
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    replicas.fetch(2)
    follower = replicas.node(2).partition
    with pytest.raises(errors.NotLeaderOrFollower):
        follower.fetch_records(0, 1 << 20)
    read = follower.fetch_records(0, 1 << 20, only_leader=False, current_leader_epoch=0)
    assert (offsets(read.records), read.high_watermark) == ([0], 1)


def test_a_replica_that_is_stopped_meanwhile_leads_no_more(replicas):
    replicas.node(1).log.close()
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.leader.fetch_records(0, 1 << 20)


# ---- epochs ------------------------------------------------------------------------------------------------


def test_a_fetch_from_another_epoch_is_refused(replicas):
    replicas.lead(1)
    with pytest.raises(errors.FencedLeaderEpoch):
        replicas.leader.fetch_records(0, 100, current_leader_epoch=0)
    with pytest.raises(errors.UnknownLeaderEpoch):
        replicas.leader.fetch_records(0, 100, current_leader_epoch=2)
    with pytest.raises(errors.FencedLeaderEpoch):
        replicas.node(2).partition.fetch_records(0, 100, current_leader_epoch=0)  # before: not the leader
    with pytest.raises(errors.FencedLeaderEpoch):
        replicas.leader.last_offset_for_leader_epoch(0, 0)
    with pytest.raises(errors.UnknownLeaderEpoch):
        replicas.leader.last_offset_for_leader_epoch(2, 0)


def test_a_fetch_from_an_unknown_replica_may_come_from_one_of_a_later_epoch(replicas):
    with pytest.raises(errors.UnknownLeaderEpoch):
        replicas.leader.fetch_records(0, 100, replica_id=9, current_leader_epoch=0)
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.leader.fetch_records(0, 100, replica_id=9)
    read = replicas.read(2)
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.leader.update_follower_fetch_state(9, read, 0, 0, 109)


def test_where_an_epoch_ends(replicas):
    replicas.append(b"a", b"b")
    replicas.lead(1)
    replicas.lead(1)
    replicas.append(b"c")
    ends = [tuple(replicas.leader.last_offset_for_leader_epoch(2, epoch)) for epoch in (0, 1, 2, 3)]
    assert ends == [(0, 2), (0, 2), (2, 3), (-1, -1)]  # nothing was written in epoch 1


def test_a_fetch_from_a_diverging_log_gets_the_diverging_epoch(replicas):
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    replicas.append(b"b", b"c")
    replicas.catch_up(2)  # 2 has three records of epoch 0, 3 has one
    replicas.lead(3)
    replicas.append(b"d")
    read = replicas.read(2)
    assert (read.records, read.diverging_epoch) == (None, (0, 1))
    replicas.take(2, read)
    assert replicas.node(2).log.log_end_offset == 1
    replicas.catch_up(2)
    assert replicas.node(2).records() == replicas.node(3).records() == [(0, b"a"), (1, b"d")]


def test_a_diverging_fetch_is_no_progress_of_the_follower(replicas):
    """KAFKA-13141."""
    replicas.append(b"a", b"b", b"c")
    replicas.fetch(2)
    replicas.lead(3)
    replicas.append(b"d", b"e", b"f")
    replica = replicas.leader.replica(2)
    read = replicas.read(2)
    assert read.diverging_epoch is not None
    assert replicas.note(2, read) is NOTHING
    assert (replica.log_end_offset, replica.fetched_in_epoch, replica.diverged) == (NO_OFFSET, False, True)
    replicas.take(2, read)
    replicas.note(2, replicas.read(2))
    assert (replica.fetched_in_epoch, replica.diverged) == (True, False)


def test_below_the_log_start_comes_before_divergence(replicas):
    for _ in range(3):
        replicas.append(b"a")
        replicas.lead(1)
    replicas.catch_up(2, 3)
    replicas.leader.delete_records_on_leader(2)
    with pytest.raises(errors.OffsetOutOfRange):
        replicas.read(2, fetch_offset=1, last_fetched_epoch=0)
    with pytest.raises(errors.OffsetOutOfRange):
        replicas.read(2, fetch_offset=3, last_fetched_epoch=77)


def test_a_follower_with_more_of_the_same_epoch_has_to_cut(replicas):
    """KAFKA-6361 and KIP-101: what only the follower has is of an epoch that ended before."""
    replicas.append(b"a")
    replicas.fetch(2)
    replicas.append(b"b")
    replicas.fetch(2)
    node = replicas.node(1)
    node.log.truncate_to(1)
    read = replicas.read(2)
    assert read.diverging_epoch == (0, 1)


# ---- the leader's end is taken before the read -------------------------------------------------------------


def test_an_append_during_the_fetch_does_not_make_a_follower_lag(replicas):
    replicas.append(b"a")
    replicas.fetch(2)
    read = replicas.read(2)
    replicas.append(b"b")
    replicas.clock.now_ms += 5
    replicas.note(2, read)
    assert replicas.leader.replica(2).last_caught_up_time_ms == replicas.clock.now_ms


def test_a_read_of_an_epoch_that_is_over_is_not_noted(replicas):
    replicas.append(b"a")
    replicas.fetch(2)
    read = replicas.read(2)
    replicas.lead(1)
    assert replicas.note(2, read) is NOTHING
    assert not replicas.leader.replica(2).fetched_in_epoch
    replicas.lead(3)
    assert replicas.node(1).partition.update_follower_fetch_state(2, read, 0, 0) is NOTHING


def test_a_fetch_from_before_a_restart_is_refused(replicas):
    read = replicas.read(2)
    replicas.brokers.epochs[2] += 1
    leader, now_ms = replicas.leader, replicas.clock.now_ms
    with pytest.raises(errors.NotLeaderOrFollower):
        leader.update_follower_fetch_state(2, read, 0, now_ms, replicas.brokers.epochs[2] - 1)
    assert not leader.replica(2).fetched_in_epoch
    leader.update_follower_fetch_state(2, read, 0, now_ms)  # it does not say
    assert leader.replica(2).fetched_in_epoch
    leader.update_follower_fetch_state(2, read, 0, now_ms, replicas.brokers.epochs[2] + 1)  # newer than known
    with pytest.raises(errors.NotLeaderOrFollower):
        leader.update_follower_fetch_state(2, read, 0, now_ms, replicas.brokers.epochs[2])


# ---- low watermark -----------------------------------------------------------------------------------------


def test_records_are_deleted_once_all_live_replicas_have_dropped_them(replicas):
    replicas.append(b"a", b"b")
    replicas.append(b"c")
    replicas.catch_up(2, 3)
    assert replicas.leader.delete_records_on_leader(2) == (2, 0)
    replicas.leader.low_watermark_waiters = 1
    for follower in (2, 3):
        partition = replicas.node(follower).partition
        replicas.fetch(follower)
        assert partition.maybe_increment_log_start_offset(2, 0)
        assert not partition.maybe_increment_log_start_offset(2, 0)
        effects = replicas.fetch(follower)
        assert effects.low_watermark_moved == (follower == 3)
    assert replicas.leader.low_watermark_if_leader() == 2
    assert replicas.leader.delete_records_on_leader(-1) == (3, 2)
    replicas.brokers.fenced |= {2, 3}
    assert replicas.leader.low_watermark_if_leader() == 3


def test_a_deletion_stays_within_what_is_committed(replicas):
    replicas.append(b"a")
    with pytest.raises(errors.OffsetOutOfRange):
        replicas.leader.delete_records_on_leader(1)
    with pytest.raises(errors.OffsetOutOfRange):
        replicas.leader.delete_records_on_leader(-2)
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.node(2).partition.low_watermark_if_leader()
    compacted = Replicas(1, cleanup_policy="compact")
    compacted.lead(1)
    with pytest.raises(errors.PolicyViolation):
        compacted.leader.delete_records_on_leader(-1)
