"""Mutants of the control plane: each is the bug of one history that a script of whole nodes replays.

Where a second mechanism would hide the bug, each mechanism has its mutant, and only both together are the
bug. Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.controller.broker_change import BrokerChange
from kreplica.controller.partition_change_builder import PartitionChangeBuilder
from kreplica.controller.replication_control import ReplicationControl
from kreplica.replica import isr_policy, partition
from tests.mutants.mutants import Mutant, Replacement

CONTROL_MUTANTS: dict[str, Mutant] = {}


def control_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for CONTROL_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        CONTROL_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@control_mutant(PartitionChangeBuilder, "set_assignment")
def reassign_within_an_epoch(set_assignment: Replacement) -> Replacement:
    """The leader epoch stays where replicas go (bug history "reassignment ABA")."""

    def assign(change: Any, *arguments: Any, **named: Any) -> None:
        names_leader = change.names_leader
        set_assignment(change, *arguments, **named)
        change.names_leader = names_leader

    return assign


@control_mutant(partition, "_added_anew")
def remember_who_went(_: Replacement) -> Replacement:
    """A leader keeps what it knew of a replica that went and came back (bug history "reassignment ABA")."""

    def no_nodes(*_: Any) -> tuple[int, ...]:
        return ()

    return no_nodes


@control_mutant(BrokerChange, "on_unclean_shutdown")
def forget_unclean_shutdowns(_: Replacement) -> Replacement:
    """A broker that may have lost what it had is still the last one in sync, and leads (KIP-966)."""

    def nothing(*_: Any) -> None:
        return None

    return nothing


@control_mutant(ReplicationControl, "_check_eligible")
def admit_the_fenced(_: Replacement) -> Replacement:
    """The controller takes into the ISR whomever a leader asks for (KIP-841)."""

    def check_nothing(*_: Any) -> None:
        return None

    return check_nothing


@control_mutant(isr_policy, "what_makes_ineligible")
def ask_for_the_fenced(_: Replacement) -> Replacement:
    """A leader asks for a replica that fetches, whatever its broker's standing (KIP-841)."""

    def nothing(*_: Any) -> None:
        return None

    return nothing


@control_mutant(BrokerChange, "on_broker_failure")
def forget_who_else_expired(on_broker_failure: Replacement) -> Replacement:
    """Of sessions that expire in one tick, each is ended as if it were the only one, and the last one's word
    stands (KAFKA-13173)."""

    def fail_one_by_one(changes: Any, broker_ids: Any) -> None:
        context = changes._context
        with changes._batch.collected():
            live, leaving = set(context.live_broker_ids), set(context.shutting_down_broker_ids)
            for broker_id in sorted(broker_ids):
                context.set_brokers(live, leaving)
                for partition in context.partitions_on_broker(broker_id):
                    if partition.change is not None:
                        partition.change.__init__(partition.registration)
                on_broker_failure(changes, [broker_id])
            context.set_brokers(live - set(broker_ids), leaving - set(broker_ids))

    return fail_one_by_one
