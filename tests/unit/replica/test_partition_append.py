"""What a follower does with its log: append, cut, drop; and what it refuses."""

from __future__ import annotations

import pytest

from kreplica.common import errors
from tests.support.batches import build
from tests.support.partitions import Replicas, append_as_follower


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas()
    made.lead(1)
    return made


def batch(offset: int, *payload: bytes, epoch: int = 0) -> bytes:
    return build(list(payload), base_offset=offset, leader_epoch=epoch)


def test_a_follower_takes_batches_as_they_are(replicas):
    follower = replicas.node(2).partition
    info = append_as_follower(follower, batch(0, b"a", b"b") + batch(2, b"c"), 0)
    assert (info.base_offset, info.last_offset, follower.log_end_offset) == (2, 2, 3)
    assert append_as_follower(follower, b"", 0) is None


def test_batches_of_a_later_epoch_are_left_out(replicas):
    """KAFKA-18723."""
    follower = replicas.node(2).partition
    append_as_follower(follower, batch(0, b"a") + batch(1, b"b", epoch=1), 0)
    assert follower.log_end_offset == 1


def test_an_answer_of_another_role_is_refused(replicas):
    with pytest.raises(errors.NotLeaderOrFollower):
        append_as_follower(replicas.leader, batch(0, b"a"), 0)
    follower = replicas.node(2).partition
    replicas.lead(1)
    for step in (
        lambda: append_as_follower(follower, batch(0, b"a"), 0),
        lambda: follower.update_follower_high_watermark(1, 0),
        lambda: follower.maybe_increment_log_start_offset(1, 0),
    ):
        with pytest.raises(errors.FencedLeaderEpoch):
            step()
    assert follower.log_end_offset == 0


def test_a_leader_never_cuts(replicas):
    replicas.append(b"a")
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.leader.truncate_to(0)
    with pytest.raises(errors.NotLeaderOrFollower):
        replicas.leader.truncate_fully_and_start_at(0)
    assert replicas.leader.log_end_offset == 1


def test_a_follower_cuts(replicas):
    replicas.append(b"a")
    replicas.append(b"b")
    replicas.catch_up(2)
    follower = replicas.node(2).partition
    assert follower.truncate_to(1)
    assert not follower.truncate_to(1)
    assert follower.log_end_offset == 1
    follower.truncate_fully_and_start_at(7)
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (7, 7, 7)


def test_a_followers_high_watermark_follows_and_never_goes_back(replicas):
    follower = replicas.node(2).partition
    append_as_follower(follower, batch(0, b"a", b"b"), 0)
    assert follower.update_follower_high_watermark(9, 0)
    assert follower.high_watermark == 2  # as far as its log goes
    assert not follower.update_follower_high_watermark(1, 0)
    assert follower.high_watermark == 2


def test_the_log_start_follows_up_to_the_high_watermark(replicas):
    follower = replicas.node(2).partition
    append_as_follower(follower, batch(0, b"a") + batch(1, b"b"), 0)
    follower.update_follower_high_watermark(1, 0)
    assert follower.maybe_increment_log_start_offset(2, 0)
    assert follower.log_start_offset == 1


def test_an_empty_log_may_begin_inside_of_the_leaders_first_batch(replicas):
    """KAFKA-6975: the leader's records were deleted up to the middle of a batch."""
    follower = replicas.node(2).partition
    follower.truncate_fully_and_start_at(2)
    info = append_as_follower(follower, batch(0, b"a", b"b", b"c") + batch(3, b"d"), 0)
    assert info.last_offset == 3
    assert (follower.log_start_offset, follower.log_end_offset) == (0, 4)
    follower.update_follower_high_watermark(4, 0)
    assert follower.maybe_increment_log_start_offset(2, 0)
    assert replicas.node(2).records() == [(2, b"c"), (3, b"d")]


def test_a_log_of_what_the_leader_has_deleted_begins_anew_inside_of_its_first_batch(replicas):
    """The leader had other batches there: whatever is fetched at the log's end lies in one that began before,
    and would be refused for ever."""
    follower = replicas.node(2).partition
    append_as_follower(follower, batch(0, b"x") + batch(1, b"y"), 0)
    fetched = batch(0, b"a", b"b", b"c") + batch(3, b"d")
    with pytest.raises(errors.OffsetsOutOfOrder):
        append_as_follower(follower, fetched, 0, 1)  # offset 1 is not deleted: it has to be cut first
    assert replicas.node(2).records() == [(0, b"x"), (1, b"y")]
    info = append_as_follower(follower, fetched, 0, 2)
    assert info.last_offset == 3
    assert replicas.node(2).records() == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_what_the_leader_has_deleted_is_not_joined_to_what_it_has(replicas):
    """A replica out of sync may hold other records there, and no check could find out. They are removed, so
    that no power cut brings back a log of both. A replica in sync holds the committed ones."""
    follower = replicas.node(2).partition
    for isr, elr, start in (((1, 2, 3), (), 0), ((1, 3), (2,), 0), ((1, 3), (), 2)):
        replicas.lead(1, isr=isr, elr=elr)
        epoch = follower.leader_epoch
        follower.truncate_fully_and_start_at(0)
        append_as_follower(follower, batch(0, b"x", b"y", epoch=epoch), epoch)
        append_as_follower(follower, batch(2, b"a", epoch=epoch), epoch, 2)
        assert follower.log_start_offset == start
        assert follower.local_log.local.segments[0].base_offset == start
        assert replicas.node(2).records()[-1] == (2, b"a")


@pytest.mark.parametrize(
    ("isr", "elr", "is_kept"), [((1, 2, 3), (), True), ((1, 3), (2,), True), ((1, 3), (), False)]
)
def test_a_log_of_which_the_leader_has_deleted_all_keeps_no_state_of_producers(replicas, isr, elr, is_kept):
    """Seed 61002052 of whole nodes: the leader had another record at the end, the marker of a transaction. A
    replica in sync had the same ones."""
    follower = replicas.node(2).partition
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    opening = build([b"x"], leader_epoch=0, transactional=True, **producer)
    append_as_follower(follower, opening + batch(1, b"y"), 0)
    replicas.lead(1, isr=isr, elr=elr)
    epoch = follower.leader_epoch
    follower.update_follower_high_watermark(2, epoch)
    assert follower.maybe_increment_log_start_offset(2, epoch)
    log = follower.local_log
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    assert bool(log.producers.ongoing) == is_kept
    assert log.last_stable_offset == 2


def test_no_epoch_is_left_of_a_log_that_is_cut_at_its_start(replicas):
    """Deleted records lie in its first segment still, of a later epoch than what comes next."""
    for leader in (1, 2, 1):
        replicas.lead(leader)
    follower = replicas.node(2).partition
    append_as_follower(follower, batch(0, b"x", epoch=3) + batch(1, b"y", epoch=3), 3)
    follower.update_follower_high_watermark(1, 3)
    assert follower.maybe_increment_log_start_offset(1, 3)
    assert follower.truncate_to(1)
    assert (follower.log_start_offset, follower.log_end_offset) == (1, 1)
    assert follower.local_log.latest_epoch is None
    append_as_follower(follower, batch(1, b"a", epoch=2), 3)
    assert replicas.node(2).records() == [(1, b"a")]


def test_a_replica_out_of_sync_that_keeps_nothing_begins_at_0(replicas):
    """What it has deleted may be other records than the leader has there."""
    follower = replicas.node(2).partition
    for cut_at in (3, 2, 1):
        replicas.lead(1, isr=(1, 2, 3))
        epoch = follower.leader_epoch
        follower.truncate_fully_and_start_at(2)
        append_as_follower(follower, batch(2, b"a", epoch=epoch), epoch)
        follower.update_follower_high_watermark(3, epoch)
        assert follower.truncate_to(cut_at) == (cut_at < 3)
        assert (follower.log_start_offset, follower.log_end_offset) == (min(cut_at, 2), cut_at)
        replicas.lead(1, isr=(1, 3))
        follower.truncate_to(cut_at)
        assert follower.log_end_offset == (3 if cut_at == 3 else 0)
    assert not follower.truncate_to(0)


def test_an_eligible_replica_that_keeps_nothing_begins_where_it_was(replicas):
    """It may be elected at any moment (KIP-966): offsets that were deleted must not be given again."""
    follower = replicas.node(2).partition
    replicas.lead(1, isr=(1, 3), elr=(2,))
    follower.truncate_fully_and_start_at(2)
    append_as_follower(follower, batch(2, b"a", epoch=1), 1)
    follower.update_follower_high_watermark(3, 1)
    follower.maybe_increment_log_start_offset(3, 1)
    follower.truncate_to(3)
    assert (follower.log_start_offset, follower.log_end_offset, follower.high_watermark) == (3, 3, 3)


@pytest.mark.parametrize("first", [(0, (b"a", b"b")), (0, (b"a",))])
def test_what_lies_below_the_logs_end_is_refused(replicas, first):
    follower = replicas.node(2).partition
    follower.truncate_fully_and_start_at(2)
    with pytest.raises(errors.OffsetsOutOfOrder):
        append_as_follower(follower, batch(first[0], *first[1]), 0)
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 2)
    append_as_follower(follower, batch(2, b"c"), 0)
    with pytest.raises(errors.OffsetsOutOfOrder):
        append_as_follower(follower, batch(2, b"c", b"d"), 0)
    assert follower.log_end_offset == 3


def test_rot_on_the_way_is_refused(replicas):
    rotten = bytearray(batch(0, b"abc"))
    rotten[-2] ^= 1
    with pytest.raises(errors.CorruptMessage):
        append_as_follower(replicas.node(2).partition, bytes(rotten), 0)
    assert replicas.node(2).log.log_end_offset == 0
