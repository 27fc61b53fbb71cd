"""Actions: what a random run does to its cluster, one by one, so that the same run can be had without some.

Each operation of a client and each fault has a number, and chance of its own, drawn from the seed and that
number: one that is left out changes nothing of what the others draw. So a run that fails can be reduced to
those it takes (kreplica.sim.reduction). Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container


class Actions:
    """Of the run of `seed`; those with a number in `without` are left out. `number`: of the last one."""

    def __init__(self, seed: int, without: Container[int] = ()) -> None:
        self.number = 0
        # What an action draws, and what it puts off until later.
        self.random = random.Random(f"{seed}/action 0")
        self._seed = seed
        self._without = without
        self._moments = random.Random(f"{seed}/moments")

    def run(self, action: Callable[[], None]) -> None:
        """The next action."""
        self.number += 1
        if self.number not in self._without:
            self.random.seed(f"{self._seed}/action {self.number}")
            action()

    def delay_ms(self, mean_ms: float) -> float:
        """How long it is until the next action of a kind."""
        return self._moments.expovariate(1 / mean_ms)
