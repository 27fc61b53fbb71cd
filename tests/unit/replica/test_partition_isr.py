"""Which followers join and leave the ISR and why, and what the controller answers."""

from __future__ import annotations

import pytest

from kreplica._core.leader_state import FetchClock
from kreplica.common import errors
from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.replica.partition_state import (
    INCREASED,
    MAX_CHANGES,
    NOTHING,
    SAME,
    CommittedPartitionState,
    IsrChangeReason,
    IsrHistory,
    PendingExpandIsr,
    PendingShrinkIsr,
)
from tests.support.partitions import LAG_MS, Replicas


@pytest.fixture
def replicas() -> Replicas:
    made = Replicas()
    made.lead(1)
    return made


def alone(**settings: object) -> Replicas:
    """Broker 1 leads, alone in sync."""
    made = Replicas(**settings)
    made.lead(1, isr=(1,))
    return made


def shrink(replicas: Replicas, after_ms: int = LAG_MS + 1):
    replicas.clock.now_ms += after_ms
    return replicas.leader.maybe_shrink_isr(replicas.clock.now_ms)


# ---- shrink ------------------------------------------------------------------------------------------------


def test_a_follower_that_lags_too_long_leaves_the_isr(replicas):
    replicas.append(b"a")
    replicas.catch_up(2)
    assert shrink(replicas, LAG_MS) is NOTHING
    effects = shrink(replicas, 1)
    proposed = effects.isr_change
    assert (proposed.leader_and_isr.isr, proposed.leader_and_isr.partition_epoch) == ((1, 2), 0)
    assert proposed.isr_broker_epochs == (101, 102)
    assert (effects.high_watermark_change, replicas.high_watermark) == (SAME, 0)  # 3 may still be elected
    assert replicas.accept(proposed).high_watermark_change is INCREASED
    assert (replicas.high_watermark, replicas.leader.isr) == (1, (1, 2))
    assert shrink(replicas, 0) is NOTHING


def test_one_change_is_in_flight(replicas):
    replicas.append(b"a")
    proposed = shrink(replicas).isr_change
    assert isinstance(replicas.leader.state, PendingShrinkIsr)
    assert (replicas.leader.state.isr, replicas.leader.state.maximal_isr) == ((1, 2, 3), (1, 2, 3))
    assert shrink(replicas) is NOTHING
    assert replicas.catch_up(2).isr_change is None
    replicas.accept(proposed)
    assert replicas.catch_up(3).isr_change.leader_and_isr.isr == (1, 3)


def test_a_replica_that_was_never_assigned_does_not_stay(replicas):
    replicas.decide(isr=(1, 2, 9))
    replicas.notify(1)
    proposed = shrink(replicas, 0).isr_change
    assert proposed.leader_and_isr.isr == (1, 2)
    assert proposed.pending.changes[0].reason is IsrChangeReason.NEW


def lost(replicas, follower, offset, *, leader_epoch=None, broker_epoch=None):
    """A follower says that `offset` is the first one that it lacks."""
    return replicas.leader.note_lost_range(
        follower,
        offset,
        replicas.known.leader_epoch if leader_epoch is None else leader_epoch,
        replicas.brokers.epochs.get(follower, -1) if broker_epoch is None else broker_epoch,
    )


def test_a_damaged_replica_leaves_at_once_and_stays_out(replicas):
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    assert lost(replicas, 2, 0, broker_epoch=1) is NOTHING, "a fetch from before its restart"
    assert lost(replicas, 2, 0, leader_epoch=7) is NOTHING
    assert lost(replicas, 9, 0) is NOTHING
    proposed = lost(replicas, 2, 0).isr_change
    assert proposed.leader_and_isr.isr == (1, 3)
    replicas.accept(proposed)
    assert replicas.catch_up(2).isr_change is None
    why = replicas.leader.why_not_in_isr(2)
    assert (why.reason, why.keeps_out) == (IsrChangeReason.DAMAGED, "a range of its log is damaged")
    assert lost(replicas, 2, 0) is NOTHING
    assert lost(replicas, 2, 1) is NOTHING
    assert replicas.catch_up(2).isr_change.leader_and_isr.isr == (1, 3, 2)


def test_word_of_a_range_does_not_stand_for_a_fetch_of_the_life_that_sends_it(replicas):
    """What is known of the follower's log is from before its restart: it may cut that, or begin again."""
    replicas.append(b"a")
    replicas.catch_up(2, 3)
    replicas.decide(isr=(1, 3))
    replicas.notify(1)
    replicas.brokers.epochs[2] += 100
    lost(replicas, 2, 1)
    assert shrink(replicas, 0) is NOTHING
    assert replicas.leader.why_not_in_isr(2).keeps_out.startswith("it has not fetched")
    assert replicas.catch_up(2).isr_change.leader_and_isr.isr == (1, 3, 2)


def test_only_a_leader_drops_anybody(replicas):
    assert replicas.node(2).partition.maybe_shrink_isr(replicas.clock.now_ms + 10 * LAG_MS) is NOTHING


# ---- expand ------------------------------------------------------------------------------------------------


def test_a_follower_that_has_caught_up_joins_the_isr():
    replicas = alone()
    replicas.append(b"a")
    assert replicas.fetch(2).isr_change is None
    proposed = replicas.fetch(2).isr_change
    assert (proposed.leader_and_isr.isr, proposed.isr_broker_epochs) == ((1, 2), (101, 102))
    state = replicas.leader.state
    assert isinstance(state, PendingExpandIsr)
    assert (state.isr, state.maximal_isr, state.is_inflight) == ((1,), (1, 2), True)
    replicas.append(b"b")
    assert replicas.high_watermark == 1  # 2 counts from now on: it may have been accepted
    replicas.accept(proposed)
    assert isinstance(replicas.leader.state, CommittedPartitionState)
    replicas.fetch(2, 2)
    assert (replicas.leader.isr, replicas.high_watermark) == ((1, 2), 2)


def test_the_maximal_isr_counts_until_the_answer():
    """KIP-497: an ISR that is proposed may be elected from."""
    replicas = alone()
    replicas.append(b"a")
    proposed = replicas.catch_up(2).isr_change
    for _ in range(10):
        replicas.append(b"b")
    assert replicas.high_watermark == 1
    # The controller accepts, and elects 2 before the answer comes: it has all that was committed.
    answer = replicas.commit(proposed)
    replicas.lead(2)
    assert replicas.node(2).log.log_end_offset >= 1
    late = replicas.node(1).partition.handle_alter_partition_response(proposed.pending, answer)
    assert late is NOTHING


def test_below_the_epochs_start_no_follower_joins():
    """KAFKA-7128: a new leader's own high watermark may be behind what was committed."""
    replicas = Replicas()
    replicas.lead(1, isr=(1, 2))
    for _ in range(10):
        replicas.append(b"a")
    replicas.catch_up(2)
    replicas.catch_up(3)
    replicas.node(3).log.truncate_to(9)
    assert replicas.node(2).log.high_watermark < 10
    replicas.lead(2, isr=(1, 2))
    read = replicas.read(3)
    assert replicas.leader.high_watermark <= read.fetch_offset < replicas.leader.term.epoch_start_offset
    assert replicas.note(3, read).isr_change is None
    assert "where leader epoch 1 begins" in replicas.leader.why_not_in_isr(3).keeps_out
    replicas.take(3, read)
    assert replicas.fetch(3).isr_change.leader_and_isr.isr == (1, 2, 3)


def test_below_the_high_watermark_no_follower_joins():
    replicas = alone()
    replicas.append(b"a")
    assert replicas.high_watermark == 1
    assert replicas.fetch(2).isr_change is None
    assert "below the high watermark 1" in replicas.leader.why_not_in_isr(2).keeps_out


def test_a_follower_with_records_below_the_log_start_does_not_join():
    """The leader knows no epochs there, so it cannot check whether they are the committed ones."""
    replicas = Replicas()
    replicas.lead(1)
    replicas.append(b"void", b"void")
    replicas.lead(2, isr=(2, 3))
    replicas.append(b"a")
    replicas.append(b"b")
    replicas.catch_up(3)
    replicas.node(2).partition.delete_records_on_leader(2)
    node = replicas.node(1)
    read = replicas.read(1)
    assert (read.diverging_epoch, read.fetch_offset, node.log.log_start_offset) == (None, 2, 0)
    assert replicas.note(1, read).isr_change is None
    assert "begins at 0, below the leader's at 2" in replicas.leader.why_not_in_isr(1).keeps_out
    replicas.take(1, read)
    node.partition.maybe_increment_log_start_offset(read.log_start_offset, node.partition.leader_epoch)
    assert node.log.log_start_offset == node.log.log_end_offset == 2
    assert replicas.fetch(1).isr_change.leader_and_isr.isr == (2, 3, 1)


@pytest.mark.parametrize("ineligible", ["fenced", "shutting down", "unknown"])
def test_a_broker_that_may_not_lead_does_not_join(ineligible):
    """KIP-841."""
    replicas = alone()
    brokers = replicas.brokers
    if ineligible == "fenced":
        brokers.fenced.add(2)
    elif ineligible == "shutting down":
        brokers.shutting_down.add(2)
    epoch = brokers.epochs.pop(2) if ineligible == "unknown" else brokers.epochs[2]
    now_ms = replicas.clock.now_ms
    assert replicas.leader.update_follower_fetch_state(2, replicas.read(2), 0, now_ms, epoch) is NOTHING
    assert "its broker" in replicas.leader.why_not_in_isr(2).keeps_out
    brokers.fenced.clear()
    brokers.shutting_down.clear()
    brokers.epochs[2] = epoch
    assert replicas.fetch(2).isr_change is not None


def test_a_fetch_of_another_broker_epoch_than_the_registered_does_not_let_in():
    """KIP-903: the epoch that goes to the controller is the one of the fetch, whatever is registered by
    then."""
    replicas = alone()
    read = replicas.read(2)
    effects = replicas.leader.update_follower_fetch_state(2, read, 0, replicas.clock.now_ms, 999)
    assert effects is NOTHING
    assert "it fetched in broker epoch 999" in replicas.leader.why_not_in_isr(2).keeps_out
    replicas.brokers.epochs[2] = 999
    proposed = replicas.fetch(2).isr_change
    replicas.brokers.epochs[2] = 1_000
    assert proposed.isr_broker_epochs == (101, 999)


def test_a_follower_that_has_not_fetched_in_this_epoch_does_not_join():
    replicas = alone()
    session = FetchClock(replicas.clock.now_ms)
    replicas.fetch(2)
    replicas.leader.attach_fetch_clock(2, session)
    replicas.lead(1, isr=(1,))
    assert replicas.leader.replica(2).fetch_clock is session
    assert shrink(replicas, 0) is NOTHING
    assert "has not fetched in leader epoch 1" in replicas.leader.why_not_in_isr(2).keeps_out


def test_a_follower_without_new_records_to_fetch_joins_when_it_can():
    replicas = alone()
    for follower in (2, 3):
        replicas.leader.attach_fetch_clock(follower, FetchClock(replicas.clock.now_ms))
    first = replicas.fetch(2).isr_change
    assert replicas.fetch(3).isr_change is None  # one is in flight
    second = replicas.accept(first).isr_change
    assert second.leader_and_isr.isr == (1, 2, 3)
    assert replicas.accept(second).isr_change is None


def test_a_follower_that_has_stopped_fetching_does_not_join_until_it_fetches():
    replicas = alone()
    replicas.leader.attach_fetch_clock(2, FetchClock(replicas.clock.now_ms))
    replicas.brokers.fenced.add(2)
    replicas.leader.update_follower_fetch_state(2, replicas.read(2), 0, replicas.clock.now_ms, 102)
    replicas.brokers.fenced.clear()
    assert shrink(replicas, LAG_MS + 1) is NOTHING
    replicas.leader.replica(2).fetch_clock.last_fetch_time_ms = replicas.clock.now_ms
    assert shrink(replicas, 0).isr_change.leader_and_isr.isr == (1, 2)


# ---- answers -----------------------------------------------------------------------------------------------


def test_the_controllers_own_word_may_come_first(replicas):
    replicas.append(b"a")
    proposed = shrink(replicas).isr_change
    answer = replicas.commit(proposed)
    replicas.notify(1)
    assert isinstance(replicas.leader.state, CommittedPartitionState)
    assert [change.broker_id for change in replicas.leader.isr_history] == [2, 3]
    assert replicas.leader.handle_alter_partition_response(proposed.pending, answer) is NOTHING
    assert replicas.leader.isr == (1,)


def test_the_base_of_a_proposal_sent_once_more_leaves_it_in_flight():
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    replicas.notify(1)
    assert replicas.leader.state is proposed.pending
    replicas.append(b"a")
    assert replicas.high_watermark == 0
    replicas.accept(proposed)
    assert replicas.leader.isr == (1, 2)


@pytest.mark.parametrize("error", [errors.IneligibleReplica, errors.OperationNotAttempted])
def test_what_was_surely_not_made_is_taken_back(error):
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    replicas.append(b"a")
    assert replicas.high_watermark == 0
    replicas.clock.now_ms += LAG_MS + 1
    effects = replicas.leader.handle_alter_partition_response(proposed.pending, error())
    assert (effects.isr_change, effects.high_watermark_change) == (None, INCREASED)
    assert (replicas.leader.state.isr, replicas.leader.state.is_inflight) == ((1,), False)


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownTopicOrPartition,
        errors.UnknownTopicId,
        errors.FencedLeaderEpoch,
        errors.InvalidUpdateVersion,
        errors.InvalidRequest,
        errors.NewLeaderElected,
    ],
)
def test_what_may_have_been_made_counts_until_the_controller_tells(error):
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    assert replicas.leader.handle_alter_partition_response(proposed.pending, error()) is NOTHING
    assert replicas.leader.state is proposed.pending
    replicas.append(b"a")
    assert replicas.high_watermark == 0
    replicas.decide()
    replicas.notify(1)
    assert not replicas.leader.state.is_inflight


def test_anything_else_is_asked_once_more():
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    effects = replicas.leader.handle_alter_partition_response(proposed.pending, errors.UnknownServerError())
    assert effects.isr_change == proposed
    replicas.accept(effects.isr_change)
    assert replicas.leader.isr == (1, 2)


def test_an_answer_of_another_epoch_is_left_to_the_controllers_word():
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    for wrong in ({"leader": 3}, {"partition_epoch": -1}):
        answer = replicas.commit(proposed)
        fields = {name: getattr(answer, name) for name in answer.__dataclass_fields__}
        fields["leader_epoch"] += "leader" in wrong
        answer = type(answer)(**{**fields, **wrong})
        assert replicas.leader.handle_alter_partition_response(proposed.pending, answer) is NOTHING
        assert replicas.leader.state is proposed.pending


def test_an_answer_that_changes_nothing_ends_the_wait():
    replicas = alone()
    proposed = replicas.fetch(2).isr_change
    unchanged = replicas.known
    replicas.leader.handle_alter_partition_response(proposed.pending, unchanged)
    assert (replicas.leader.state.isr, replicas.leader.state.is_inflight) == ((1,), False)
    assert len(replicas.leader.isr_history) == 0


# ---- why ---------------------------------------------------------------------------------------------------


def left(replicas: Replicas) -> dict[int, IsrChangeReason]:
    return {c.broker_id: c.reason for c in replicas.leader.isr_history if c.kind == "shrink"}


def test_slow_and_stuck_followers_have_different_reasons(replicas):
    for _ in range(3):
        replicas.append(b"a" * 100)
    replicas.catch_up(2, 3)
    start_ms = replicas.clock.now_ms
    for _ in range(3):
        replicas.append(b"b" * 100)
    replicas.clock.now_ms += LAG_MS
    replicas.note(2, replicas.read(2))
    replicas.accept(shrink(replicas, 5).isr_change)
    assert left(replicas) == {2: IsrChangeReason.SLOW, 3: IsrChangeReason.STUCK}
    change = replicas.leader.isr_history.last_of(2)
    assert (change.log_end_offset, change.leader_log_end_offset, change.high_watermark) == (3, 6, 3)
    assert change.last_caught_up_time_ms == start_ms
    assert change.last_fetch_time_ms == start_ms + LAG_MS
    assert change.time_ms == replicas.clock.now_ms
    assert change.isr == (1,)
    assert (change.leader_epoch, change.partition_epoch) == (0, replicas.known.partition_epoch)


def test_a_diverged_follower_has_its_own_reason(replicas):
    replicas.append(b"a", b"b")
    replicas.fetch(3)
    replicas.lead(2)
    replicas.append(b"c")
    replicas.note(3, replicas.read(3))
    replicas.accept(shrink(replicas).isr_change)
    assert left(replicas)[3] is IsrChangeReason.DIVERGED


@pytest.mark.parametrize(("state", "reason"), [("fenced", "FENCED"), ("shutting_down", "SHUTTING_DOWN")])
def test_a_fenced_or_leaving_broker_has_its_own_reason(replicas, state, reason):
    getattr(replicas.brokers, state).add(3)
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    assert left(replicas) == {3: IsrChangeReason[reason]}
    replicas.append(b"a")
    replicas.catch_up(2) if state == "fenced" else replicas.fetch(2)
    getattr(replicas.brokers, state).add(2)
    replicas.append(b"b")
    replicas.accept(shrink(replicas).isr_change)
    assert left(replicas)[2] is IsrChangeReason[reason]


def test_a_broker_that_is_fenced_at_the_end_of_its_shutdown_was_shutting_down(replicas):
    for state in (replicas.brokers.fenced, replicas.brokers.shutting_down):
        state.update({2, 3})
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    replicas.append(b"a")
    replicas.accept(shrink(replicas).isr_change)
    assert left(replicas) == dict.fromkeys((2, 3), IsrChangeReason.SHUTTING_DOWN)


def test_the_controllers_changes_are_kept_too(replicas):
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    replicas.decide(isr=(1, 2, 3))
    replicas.notify(1)
    changes = [(c.kind, c.broker_id, c.reason) for c in replicas.leader.isr_history]
    assert changes == [
        ("shrink", 3, IsrChangeReason.CONTROLLER),
        ("expand", 3, IsrChangeReason.CONTROLLER),
    ]


def test_why_a_replica_is_out():
    replicas = alone()
    leader = replicas.leader
    assert leader.why_not_in_isr(1) is None
    why = leader.why_not_in_isr(2)
    assert (why.reason, why.since_ms, why.change) == (IsrChangeReason.NEW, None, None)
    assert (why.last_fetch_time_ms, why.last_caught_up_time_ms, why.log_end_offset) == (None, None, -1)
    proposed = replicas.fetch(2).isr_change
    assert leader.why_not_in_isr(2).keeps_out == "the controller has not answered"
    replicas.accept(proposed)
    assert leader.why_not_in_isr(2) is None
    replicas.append(b"a")
    replicas.accept(shrink(replicas).isr_change)
    why = leader.why_not_in_isr(2)
    assert (why.reason, why.since_ms) == (IsrChangeReason.STUCK, replicas.clock.now_ms)
    assert why.change == leader.isr_history.last_of(2)
    replicas.brokers.shutting_down.add(3)
    replicas.catch_up(3)
    replicas.brokers.shutting_down.clear()
    assert leader.why_not_in_isr(3).keeps_out == "its next fetch"
    with pytest.raises(errors.ReplicaNotAvailable):
        leader.why_not_in_isr(9)


def test_a_history_is_bounded(replicas):
    replicas.decide(isr=(1, 2))
    replicas.notify(1)
    change = replicas.leader.isr_history.last_of(3)
    history = IsrHistory()
    for time_ms in range(MAX_CHANGES + 10):
        history.add(change._replace(time_ms=time_ms))
    assert len(history) == MAX_CHANGES
    assert [c.time_ms for c in history][:: MAX_CHANGES - 1] == [10, MAX_CHANGES + 9]
    assert history.last_of(3).time_ms == MAX_CHANGES + 9
    assert history.last_of(1) is None


def test_states_say_what_they_are(replicas):
    assert "(1, 2, 3)" in repr(CommittedPartitionState((1, 2, 3), LeaderRecoveryState.RECOVERED))
    replicas.append(b"a")
    shrink(replicas)
    assert repr(replicas.leader.state) == "PendingShrinkIsr((1, 2, 3) -> (1,))"
