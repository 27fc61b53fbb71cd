"""IsrGrowth: which replicas without all committed records a leader may propose for its ISR."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kreplica.sim.invariants.rules import IsrGrowth
from kreplica.sim.invariants.violation import InvariantViolated


def wanted(leader_epoch: int, replicas: tuple[int, ...]) -> SimpleNamespace:
    """Leader 1, in epoch 3, wants 2, whose log is empty; decided since is what is given."""
    sent = SimpleNamespace(isr=(1, 2))
    pending = SimpleNamespace(is_inflight=True, sent=sent, isr_broker_epochs=(7, 7))
    known = SimpleNamespace(broker_epoch=7, fetched_in_epoch=True)
    leader = SimpleNamespace(
        is_leader=True,
        leader_epoch=3,
        high_watermark=2,
        isr=(1,),
        maximal_isr=(1, 2),
        state=(SimpleNamespace(epoch_start_offset=2), pending),
        partition=SimpleNamespace(replica=lambda _: known),
    )
    follower = SimpleNamespace(is_running=True, broker_epoch=7, leader_epoch=-1, log_end=0)
    decided = SimpleNamespace(leader_epoch=leader_epoch, replicas=replicas)
    return SimpleNamespace(changed=[leader], replicas={2: follower}, decided=decided)


def test_one_that_was_removed_may_have_nothing_where_the_leader_has_not_heard_of_it():
    IsrGrowth().check(wanted(4, (1, 3)))


@pytest.mark.parametrize(("leader_epoch", "replicas"), [(3, (1, 2)), (3, (1, 3)), (4, (1, 2))])
def test_no_other_replica_may_join_without_the_committed_records(leader_epoch, replicas):
    with pytest.raises(InvariantViolated, match="admits"):
        IsrGrowth().check(wanted(leader_epoch, replicas))
