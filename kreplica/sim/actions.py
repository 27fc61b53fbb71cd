"""Actions: the numbered steps of a random run, so that the run can be repeated without some of them.

Each client operation and each fault has a number, and its own random numbers drawn from the seed and that
number. Leaving one out does not change what the others draw, so a failing run can be reduced to the actions
it needs (kreplica.sim.reduction). Thread rule: one thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container


class Actions:
    """The actions of the run of `seed`; those numbered in `without` are skipped. `number`: the last one."""

    def __init__(self, seed: int, without: Container[int] = ()) -> None:
        self.number = 0
        # The random numbers of an action, also for what it postpones.
        self.random = random.Random(f"{seed}/action 0")
        self._seed = seed
        self._without = without
        self._moments = random.Random(f"{seed}/moments")

    def run(self, action: Callable[[], None]) -> None:
        """Run the next action, unless it is to be left out."""
        self.number += 1
        if self.number not in self._without:
            self.random.seed(f"{self._seed}/action {self.number}")
            action()

    def delay_ms(self, mean_ms: float) -> float:
        """Draw the time until the next action of a kind."""
        return self._moments.expovariate(1 / mean_ms)
