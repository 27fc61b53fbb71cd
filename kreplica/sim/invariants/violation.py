"""InvariantViolated: ends a simulation in which something happened that must never happen."""

from __future__ import annotations


class InvariantViolated(AssertionError):
    """An invariant did not hold in a simulation.

    `invariant`: its name. `facts`: the evidence. The simulation adds its seed and the event's number,
    which reproduce the run.
    """

    def __init__(self, invariant: str, facts: str) -> None:
        super().__init__(f"{invariant}: {facts}")
        self.invariant = invariant
        self.facts = facts
