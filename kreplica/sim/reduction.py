"""Reduction: find the few actions of a failing random run that cause the failure.

A run is repeated without some of its actions. If the same invariant is violated they are left out for good:
first halves, then ever smaller parts (delta debugging; Zeller and Hildebrandt, 2002). The random numbers of
the other actions do not change, but the arrival times of messages do, so not every failure survives. Thread
rule: one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from kreplica.common.dataclass import dataclass, field
from kreplica.common.ports import NANOSECONDS_PER_MS
from kreplica.sim.brokers.driver import BrokerDriver
from kreplica.sim.driver import ROUNDS, Driver
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.driver import NodeDriver
from kreplica.sim.quorum.quorum_driver import QuorumDriver

# What a random run may simulate.
DRIVERS: Mapping[str, Callable[..., Driver]] = {
    "nodes": NodeDriver,
    "brokers": BrokerDriver,
    "quorum": QuorumDriver,
}
# How long a repeated run continues after its last action, to let a violation show.
GRACE_MS = 50
NANOSECONDS_PER_MINUTE = 60_000_000_000


class AllBut:
    """All numbers except those in `kept`."""

    def __init__(self, kept: Iterable[int]) -> None:
        self._kept = frozenset(kept)

    def __contains__(self, number: object) -> bool:
        return number not in self._kept


@dataclass(frozen=True, slots=True)
class RandomRun:
    """A finished run of one of DRIVERS.

    `actions`: the number of actions drawn. `violation`: the failure, None without one. `story`: the account
    of the run, if one was requested.
    """

    driver: str
    seed: int
    events: int
    virtual_ms: int
    event_hash: str
    counts: Counter[str]
    actions: int
    violation: InvariantViolated | None
    round_ends_ns: tuple[int, ...]
    story: list[str] = field(default_factory=list)


def run_seed(
    driver: str,
    seed: int,
    events: int = 2_000,
    *,
    round_ends_ns: Sequence[int] = (),
    without: Container[int] = (),
    with_story: bool = False,
) -> RandomRun:
    """Run one of DRIVERS once; a violation ends the run and is part of the result. Parameters as there."""
    made = DRIVERS[driver](seed, without=without)
    story = made.story() if with_story else None
    violation: InvariantViolated | None = None
    try:
        made.run(events, round_ends_ns=round_ends_ns)
    except InvariantViolated as violated:
        violation = violated
        if story is not None:
            story.note(f"violated: {violated}")
    ends = list(made.round_ends_ns)
    if violation is not None and made.is_in_round:
        ends.append(made.cluster.time.now_ns + GRACE_MS * NANOSECONDS_PER_MS)
    return RandomRun(
        driver=driver,
        seed=seed,
        events=made.cluster.scheduler.events,
        virtual_ms=made.cluster.now_ms(),
        event_hash=made.cluster.scheduler.event_hash,
        counts=made.counts,
        actions=made.actions.number,
        violation=violation,
        round_ends_ns=tuple(ends),
        story=[] if story is None else story.lines,
    )


def round_ends_ns(minutes: float) -> tuple[int, ...]:
    """Return the ends of the rounds of a run that lasts `minutes` of virtual time."""
    return tuple(int(minutes * NANOSECONDS_PER_MINUTE * n / ROUNDS) for n in range(1, ROUNDS + 1))


def reduced(failed: RandomRun, is_over: Callable[[], bool]) -> RandomRun:
    """Return a run with the same failure, as few actions as found before `is_over()`, and its story."""
    assert failed.violation is not None
    name = failed.violation.invariant
    again = partial(run_seed, failed.driver, failed.seed, round_ends_ns=failed.round_ends_ns)

    def fails(kept: Sequence[int]) -> bool:
        ran = again(without=AllBut(kept))
        return ran.violation is not None and ran.violation.invariant == name

    kept: Sequence[int] = range(1, failed.actions + 1)
    parts = 2
    while len(kept) > 1 and not is_over():
        size = -(-len(kept) // parts)
        for at in range(0, len(kept), size):
            left = [*kept[:at], *kept[at + size :]]
            if is_over():
                break
            if fails(left):
                kept, parts = left, max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(2 * parts, len(kept))
    return again(without=AllBut(kept), with_story=True)
