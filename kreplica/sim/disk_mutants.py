"""Mutants of brokers whose logs a disk thread appends to: each is caught in random runs with disks.

As sim.mutants, with its thread rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.replica import partition_role
from kreplica.sim.mutants import Mutant, Replacement

DISK_MUTANTS: dict[str, Mutant] = {}


def disk_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for DISK_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        DISK_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@disk_mutant(partition_role, "_settle")
def change_roles_during_an_append(_: Replacement) -> Replacement:
    """A log is flushed for its next role, and its end told, while the disk thread still appends to it."""

    def go_on(_: Any) -> None:
        return None

    return go_on
