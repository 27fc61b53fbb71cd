"""PreferredReplicaLeaderElection: who led gets it back, where too many have another leader."""

from __future__ import annotations

from kreplica.controller.partition_state_machine import PreferredReplicaLeaderElection
from tests.support.controllers import ControllerStage


def imbalanced(partitions: int, elsewhere: int) -> ControllerStage:
    """Partitions that prefer broker 0, of which so many are led by broker 1."""
    stage = ControllerStage()
    stage.create("orders", *[(0, 1)] * partitions)
    stage.fence(0)
    stage.unfence(0)
    for number in range(partitions):
        stage.set_isr("orders", 1, 0, number=number)
    stage.machines.preferred_election.elect(stage.context.partitions_of("orders")[elsewhere:])
    assert [stage.state("orders", number).leader for number in range(partitions)].count(1) == elsewhere
    return stage


def leaders(stage: ControllerStage) -> set[int]:
    return {partition.leader_and_isr.leader for partition in stage.context.partitions.values()}


def test_above_the_limit_all_are_handed_over() -> None:
    stage = imbalanced(10, 2)
    assert not stage.machines.preferred_election.balance()
    assert leaders(stage) == {0}


def test_at_the_limit_nothing_is() -> None:
    stage = imbalanced(10, 1)
    appended = len(stage.log)
    stage.machines.preferred_election.balance()
    assert leaders(stage) == {0, 1}
    assert len(stage.log) == appended


def test_so_many_at_a_time() -> None:
    stage = imbalanced(5, 5)
    election = PreferredReplicaLeaderElection(stage.context, stage.machines.partitions, max_elections=3)
    assert election.balance()
    assert [stage.state("orders", number).leader for number in range(5)] == [0, 0, 0, 1, 1]
    assert not election.balance()
    assert leaders(stage) == {0}


def test_those_that_cannot_take_over_are_left_alone() -> None:
    stage = ControllerStage()
    stage.create("orders", *[(0, 1)] * 3)
    stage.fence(0)
    stage.unfence(0)
    stage.set_isr("orders", 1, 0, number=1)
    stage.machines.reassignment.start(stage.partition("orders", 1), [0, 2])
    appended = len(stage.log)
    stage.machines.preferred_election.balance()
    assert leaders(stage) == {1}
    assert len(stage.log) == appended
    assert not any("could not" in line for line in stage.logger.lines())
