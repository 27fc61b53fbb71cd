"""InvariantViolated: what a simulation ends with when something happened that must never happen."""

from __future__ import annotations


class InvariantViolated(AssertionError):
    """`invariant`: its name. `facts`: what was found. The simulation adds its seed and the number of the
    event, from which the same run can be had again."""

    def __init__(self, invariant: str, facts: str) -> None:
        super().__init__(f"{invariant}: {facts}")
        self.invariant = invariant
        self.facts = facts
