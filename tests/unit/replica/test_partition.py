"""Roles, appends and the high watermark of a partition."""

from __future__ import annotations

import pytest

from kreplica._core.leader_state import FetchClock
from kreplica.common import errors
from kreplica.common.leader_and_isr import NO_LEADER, LeaderRecoveryState
from kreplica.common.types import NO_OFFSET
from kreplica.log.damage import Damage
from kreplica.log.unified_log import UnifiedLog
from kreplica.replica.delayed_requests import after_append, no_longer_leader
from kreplica.replica.partition_state import INCREASED, SAME, CommittedPartitionState, PendingRecovery
from tests.support.batches import build
from tests.support.partitions import LAG_MS, Replicas, append_as_follower, append_as_leader


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas()
    made.lead(1)
    return made


# ---- roles -------------------------------------------------------------------------------------------------


def test_a_partition_without_a_role_has_no_leader():
    partition = Replicas().node(1).partition
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (NO_LEADER, -1, -1)
    assert (partition.isr, partition.replicas, partition.is_leader) == ((), (), False)
    assert partition.watermark.closed
    assert partition.maybe_increment_leader_hw() is SAME
    for step in (
        lambda: partition.high_watermark,
        lambda: append_as_leader(partition, build([b"a"])),
        lambda: partition.fetch_records(0, 100),
        lambda: append_as_follower(partition, build([b"a"]), -1),
        lambda: partition.truncate_to(0),
        lambda: partition.delete_records_on_leader(0),
        lambda: partition.why_not_in_isr(1),
        lambda: partition.last_offset_for_leader_epoch(None, 0),
    ):
        with pytest.raises(errors.NotLeaderOrFollower):
            step()


def test_a_leader_and_its_followers(replicas):
    leader, follower = replicas.leader, replicas.node(2).partition
    assert (leader.is_leader, follower.is_leader) == (True, False)
    assert leader.leader == follower.leader == 1
    assert leader.isr == follower.isr == leader.replicas == (1, 2, 3)
    assert [replica.broker_id for replica in leader.remote_replicas] == [2, 3]
    assert follower.remote_replicas == ()
    assert (leader.watermark.closed, follower.watermark.closed) == (False, True)
    assert (leader.leader_log_if_local, follower.leader_log_if_local) == (replicas.node(1).log, None)
    assert "leader" in repr(leader)
    assert "follower of 1" in repr(follower)


def test_an_epoch_begins_at_the_logs_end_without_an_append(replicas):
    replicas.append(b"a", b"b")
    replicas.catch_up(2)
    became = replicas.lead(2)
    assert (became.is_new_leader, became.is_new_epoch) == (True, True)
    assert [tuple(entry) for entry in replicas.node(2).log.epochs.entries] == [(0, 0), (1, 2)]
    assert replicas.leader.term.epoch_start_offset == 2


def test_a_bump_of_the_same_leaders_epoch_keeps_what_it_knows(replicas):
    replicas.append(b"a")
    replicas.catch_up(2)
    mark = replicas.leader.watermark
    became = replicas.lead(1)
    assert (became.is_new_leader, became.is_new_epoch) == (False, True)
    assert replicas.leader.watermark is mark
    assert not mark.closed
    known = {replica.broker_id: replica.log_end_offset for replica in replicas.leader.remote_replicas}
    assert known == {2: 1, 3: NO_OFFSET}
    assert not any(replica.fetched_in_epoch for replica in replicas.leader.remote_replicas)
    assert [tuple(entry) for entry in replicas.node(1).log.epochs.entries][-1] == (1, 1)


def test_a_leader_that_missed_an_epoch_forgets_the_log_ends_of_followers(replicas):
    """Another broker led in it, and followers cut what they had: their former log ends would commit records
    that only this leader has."""
    replicas.append(b"a")
    replicas.append(b"b")
    replicas.fetch(2)
    replicas.note(2, replicas.read(2))
    replicas.decide(leader=3)
    replicas.notify(3)
    replicas.notify(2)
    replicas.catch_up(2)
    assert replicas.node(2).log.log_end_offset == 0
    mark = replicas.node(1).partition.watermark
    replicas.lead(1)
    assert replicas.leader.watermark is mark  # nothing was cut here, so requests may go on waiting
    assert [r.log_end_offset for r in replicas.leader.remote_replicas] == [NO_OFFSET, NO_OFFSET]
    replicas.catch_up(3)
    assert replicas.high_watermark == 0
    replicas.catch_up(2)
    assert replicas.high_watermark == 2


def test_a_version_that_is_out_of_date_is_ignored(replicas):
    old = replicas.known
    replicas.lead(2)
    node = replicas.node(1)
    became = node.partition.make_leader(old, node.log)
    assert (became.is_new_leader, became.is_new_epoch, became.effects.isr_change) == (False, False, None)
    assert (node.partition.leader, node.partition.leader_epoch) == (2, 1)
    node = replicas.node(2)
    assert not node.partition.make_follower(old, node.log)
    assert node.partition.is_leader


def test_the_same_version_twice_changes_nothing(replicas):
    mark, term = replicas.leader.watermark, replicas.leader.term
    became = replicas.notify(1)
    assert (became.is_new_leader, became.is_new_epoch) == (False, False)
    assert replicas.leader.watermark is mark
    assert replicas.leader.term.epoch_start_offset == term.epoch_start_offset
    assert not replicas.notify(2)


def test_a_mark_is_closed_when_the_term_ends(replicas):
    mark = replicas.leader.watermark
    replicas.lead(2)
    assert mark.closed
    assert replicas.node(1).partition.watermark.closed
    mark = replicas.leader.watermark
    replicas.leader.close()
    assert mark.closed
    with pytest.raises(errors.NotLeaderOrFollower):
        append_as_leader(replicas.node(2).partition, build([b"a"]))


def test_a_partition_may_have_no_leader(replicas):
    replicas.decide(leader=NO_LEADER)
    assert replicas.notify(1)
    partition = replicas.node(1).partition
    assert (partition.leader, partition.is_leader, partition.leader_epoch) == (NO_LEADER, False, 1)
    with pytest.raises(errors.NotLeaderOrFollower):
        append_as_leader(partition, build([b"a"]))


def test_nothing_changes_where_the_epoch_cannot_be_noted(replicas):
    replicas.append(b"a")
    replicas.catch_up(2)
    node = replicas.node(2)

    def refuse(_operation, path):
        if "leader-epoch-checkpoint" in path:
            raise errors.StorageIOError("refused")

    node.storage.before = refuse
    replicas.decide(leader=2)
    with pytest.raises(errors.StorageIOError):
        replicas.notify(2)
    assert (node.partition.is_leader, node.partition.leader, node.partition.leader_epoch) == (False, 1, 0)
    node.storage.before = None
    assert replicas.notify(2).is_new_leader


def test_a_log_whose_recovery_stopped_at_rot_follows_but_cannot_lead(replicas):
    replicas.append(b"a" * 50)
    replicas.append(b"b" * 50)
    replicas.catch_up(2)
    node = replicas.node(2)
    segment = node.log.active.region.path
    node.storage.write_at(segment, 70, b"rot")
    node.restart()
    assert node.partition.is_damaged is False  # no role, no log yet
    assert replicas.notify(2)
    assert node.partition.is_damaged
    assert [damage.first_offset for damage in node.damages] == [0]
    assert not replicas.leader.is_damaged
    replicas.decide(leader=2)
    with pytest.raises(errors.DamagedLog):
        replicas.notify(2)
    assert (node.partition.is_leader, node.partition.leader) == (False, 1)
    assert len(node.damages) == 1  # reported once
    replicas.notify(1)
    with pytest.raises(errors.DamagedLog):
        node.partition.fetch_records(0, 100, isolation="log_end", only_leader=False)


def test_damage_that_is_found_later_is_reported(replicas):
    replicas.append(b"a" * 50)
    node = replicas.node(1)
    damage = Damage(0, 1, node.log.active.region.path, 0, 100, "rot")
    node.log.on_damage(node.log, damage)
    assert node.damages == [damage]


def test_the_leader_of_an_unclean_election_takes_note_of_it(replicas):
    became = replicas.lead(3, isr=(3,), leader_recovery_state=LeaderRecoveryState.RECOVERING)
    proposed = became.effects.isr_change
    assert isinstance(replicas.leader.state, PendingRecovery)
    assert proposed.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERED
    assert proposed.leader_and_isr.isr == (3,)
    # Notified once more before the answer: the change is already requested.
    assert replicas.notify(3).effects.isr_change is None
    replicas.accept(proposed)
    assert isinstance(replicas.leader.state, CommittedPartitionState)
    assert replicas.leader.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERED
    assert replicas.leader.partition_epoch == replicas.known.partition_epoch


def test_a_replica_that_is_removed_and_added_in_one_step_is_another(replicas):
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    assert replicas.leader.replica(3).log_end_offset == 1
    replicas.decide(isr=(1, 2), adding_replicas=(3,))
    replicas.notify(1)
    assert replicas.leader.replica(3).log_end_offset == NO_OFFSET
    assert replicas.leader.replica(2).log_end_offset == 1
    replicas.leader.replica(3).log_end_offset = 1
    replicas.decide()
    replicas.notify(1)
    assert replicas.leader.replica(3).log_end_offset == 1


# ---- append and high watermark -----------------------------------------------------------------------------


def test_the_five_steps_of_a_record(replicas):
    info, change = replicas.append(b"a", required_acks=-1)
    assert (info.base_offset, info.last_offset, info.leader_epoch, change) == (0, 0, 0, SAME)
    assert replicas.fetch(2, 3).high_watermark_change is SAME  # they have it, but the leader does not know
    assert (replicas.high_watermark, replicas.leader.watermark.value) == (0, 0)
    assert replicas.fetch(2).high_watermark_change is SAME
    assert replicas.fetch(3).high_watermark_change is INCREASED
    assert (replicas.high_watermark, replicas.leader.watermark.value) == (1, 1)
    replicas.fetch(2, 3)
    assert [node.log.high_watermark for node in replicas.nodes.values()] == [1, 1, 1]
    assert replicas.leader.log_start_offset == 0
    assert replicas.leader.log_end_offset == 1


def test_a_single_replica_commits_at_once():
    replicas = Replicas(1)
    replicas.lead(1)
    assert replicas.append(b"a", required_acks=-1)[1] is INCREASED
    assert append_as_leader(replicas.leader, build([b"b", (b"k", b"c")]), -1)[1] is INCREASED
    assert replicas.leader.watermark.value == 3


def test_the_mark_never_goes_back_where_a_follower_does(replicas):
    replicas.append(b"a", b"b")
    replicas.catch_up(2, 3)
    assert replicas.high_watermark == 2
    replicas.note(2, replicas.read(2, fetch_offset=0, last_fetched_epoch=None))
    assert replicas.leader.maybe_increment_leader_hw() is SAME
    assert (replicas.high_watermark, replicas.leader.watermark.value) == (2, 2)


def test_the_high_watermark_waits_for_a_follower_that_is_about_to_join(replicas):
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    replicas.fetch(3)  # caught up: a moment later it may be in
    replicas.leader._set_state(CommittedPartitionState((1, 2), LeaderRecoveryState.RECOVERED))
    replicas.append(b"a")
    replicas.catch_up(2)
    assert replicas.high_watermark == 0
    replicas.clock.now_ms += LAG_MS + 1
    assert replicas.leader.maybe_shrink_isr(replicas.clock.now_ms).high_watermark_change is INCREASED
    assert replicas.high_watermark == 1


def test_the_high_watermark_does_not_wait_for_a_follower_that_may_not_join(replicas):
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    replicas.brokers.fenced.add(3)
    replicas.leader.replica(3).last_caught_up_time_ms = replicas.clock.now_ms
    replicas.append(b"a")
    replicas.catch_up(2)
    assert replicas.high_watermark == 1


def test_below_min_isr_nothing_is_appended_with_all_acks_and_nothing_committed():
    replicas = Replicas(min_insync_replicas=2)
    replicas.lead(1, isr=(1,))
    with pytest.raises(errors.NotEnoughReplicas):
        replicas.append(b"a", required_acks=-1)
    assert replicas.leader.log_end_offset == 0
    replicas.append(b"a", required_acks=1)
    assert (replicas.leader.is_under_min_isr, replicas.high_watermark) == (True, 0)
    effects = replicas.catch_up(2)
    assert replicas.high_watermark == 0  # the proposal alone is not enough
    assert replicas.accept(effects.isr_change).high_watermark_change is INCREASED
    assert (replicas.leader.is_at_min_isr, replicas.leader.is_under_replicated) == (True, True)
    assert replicas.high_watermark == 1


def test_min_isr_is_no_more_than_the_replicas():
    replicas = Replicas(1, min_insync_replicas=3)
    replicas.lead(1)
    assert replicas.leader.least_in_sync() == 1
    assert replicas.append(b"a", required_acks=-1)[1] is INCREASED


def test_enough_replicas_after_the_append():
    replicas = Replicas(min_insync_replicas=2)
    replicas.lead(1)
    replicas.append(b"a", required_acks=-1)
    replicas.catch_up(2, 3)
    assert replicas.high_watermark == 1
    assert after_append(replicas.leader) is None
    replicas.decide(isr=(1,))
    replicas.notify(1)
    assert isinstance(after_append(replicas.leader), errors.NotEnoughReplicasAfterAppend)
    replicas.lead(2)
    assert isinstance(no_longer_leader(replicas.node(1).partition), errors.NotLeaderOrFollower)


def test_a_refused_append_leaves_no_trace(replicas):
    damaged = bytearray(build([b"a"]))
    damaged[-1] ^= 1
    with pytest.raises(errors.CorruptMessage):
        append_as_leader(replicas.leader, damaged)
    assert replicas.leader.log_end_offset == 0


def test_fetches_that_are_not_spelled_out_keep_a_follower_in_sync(replicas):
    replicas.catch_up(2, 3)
    session = FetchClock(replicas.clock.now_ms)
    replicas.leader.attach_fetch_clock(2, session)
    replicas.leader.attach_fetch_clock(9, session)
    replicas.clock.now_ms += 10 * LAG_MS
    session.last_fetch_time_ms = replicas.clock.now_ms
    replicas.append(b"a")
    replicas.clock.now_ms += 1
    proposed = replicas.leader.maybe_shrink_isr(replicas.clock.now_ms).isr_change
    assert proposed.leader_and_isr.isr == (1, 2)


def test_a_session_that_leaves_a_partition_out_does_not_keep_the_follower_in_sync(replicas):
    replicas.catch_up(2, 3)
    session, other = FetchClock(replicas.clock.now_ms), FetchClock(replicas.clock.now_ms)
    replicas.leader.attach_fetch_clock(2, session)
    replicas.leader.attach_fetch_clock(3, other)
    replicas.clock.now_ms += 10 * LAG_MS
    left_ms = session.last_fetch_time_ms = replicas.clock.now_ms
    replicas.leader.detach_fetch_clock(session)
    replicas.clock.now_ms += LAG_MS
    session.last_fetch_time_ms = other.last_fetch_time_ms = replicas.clock.now_ms
    replicas.append(b"a")
    caught_up = {r.broker_id: r.last_caught_up_time_ms for r in replicas.leader.remote_replicas}
    assert caught_up == {2: left_ms, 3: replicas.clock.now_ms}


# ---- durability --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "fsync_quorum"])
def test_only_what_the_leader_has_on_disk_is_committed(durability, monkeypatch):
    replicas = Replicas(durability=durability)
    replicas.lead(1)
    log = replicas.node(1).log
    with monkeypatch.context() as held:
        held.setattr(UnifiedLog, "wait_durable", lambda _log, _info: None)
        info, change = replicas.append(b"a")
    assert (log.flush_offset, change) == (0, SAME)
    replicas.catch_up(2, 3)
    assert replicas.high_watermark == 0
    log.wait_durable(info)
    assert replicas.leader.maybe_increment_leader_hw() is INCREASED
    assert replicas.high_watermark == 1
    flushed = [replicas.node(i).log.flush_offset for i in (2, 3)]
    assert flushed == ([1, 1] if durability == "fsync_quorum" else [0, 0])


def test_an_append_that_waits_is_on_disk():
    replicas = Replicas(1, durability="fsync")
    replicas.lead(1)
    assert replicas.append(b"a")[1] is INCREASED
    assert append_as_leader(replicas.leader, build([b"b"]))[1] is INCREASED
    assert replicas.node(1).log.flush_offset == 2
    assert Replicas(1).lead(1).is_new_leader


def test_an_append_waits_for_no_disk_where_the_page_cache_counts(replicas):
    assert replicas.append(b"a")[1] is SAME
    assert replicas.node(1).log.flush_offset == 0


@pytest.mark.parametrize("leads", [True, False])
def test_a_role_begins_with_everything_on_disk(leads):
    replicas = Replicas(durability="fsync_quorum")
    replicas.lead(1)
    node = replicas.node(2)
    node.log.append_as_follower(build([b"a"], base_offset=0, leader_epoch=0), 0, wait=False)
    assert node.log.flush_offset == 0
    replicas.lead(2 if leads else 3)
    assert node.log.flush_offset == 1


def test_a_log_that_failed_takes_no_second_append():
    """KAFKA-10778: the first append's error has to keep a second one out."""
    replicas = Replicas(durability="fsync")
    replicas.lead(1)
    node = replicas.node(1)

    def refuse(operation, _path):
        if operation == "flush":
            raise errors.StorageIOError("refused")

    node.storage.before = refuse
    with pytest.raises(errors.KafkaStorageError):
        replicas.append(b"a", required_acks=-1)
    node.storage.before = None
    with pytest.raises(errors.KafkaStorageError):
        replicas.append(b"b", required_acks=-1)
    assert replicas.high_watermark == 0


@pytest.mark.parametrize("refused", ["create", "write"])
def test_a_log_that_could_not_roll_takes_no_second_append(refused):
    """Nothing was appended, but the disk may hold any part of the attempt (KAFKA-10778)."""
    replicas = Replicas(segment_bytes=100)
    replicas.lead(1)
    node = replicas.node(1)
    replicas.append(b"a")

    def refuse(operation, _path):
        if operation == refused:
            raise errors.StorageIOError("refused")

    node.storage.before = refuse
    with pytest.raises(errors.StorageIOError):
        replicas.append(b"b")
    node.storage.before = None
    with pytest.raises(errors.KafkaStorageError, match="offline"):
        replicas.append(b"b")
    assert node.log.log_end_offset == 1


def test_a_query_of_a_role_that_has_ended_meanwhile_is_no_error() -> None:
    """The thread that has just committed records asks so before it answers producers; this is another one."""
    at = Replicas(min_insync_replicas=2)
    at.lead(1)
    partition = at.leader
    assert partition.has_enough_in_sync
    partition.close()
    assert partition.has_enough_in_sync
    assert (partition.is_under_min_isr, partition.is_at_min_isr) == (False, False)
