"""Reduction: of a random run that fails, of nodes or of brokers, the few actions that it takes to fail so.

A run is repeated without some of its actions, and where the same invariant is violated they are left out for
good: first halves, then ever smaller parts (delta debugging; Zeller and Hildebrandt, 2002). What the others
draw does not change by that, but when messages arrive does, so not every failure survives. Thread rule: one
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from kreplica.sim.broker_story import BrokerStory
from kreplica.sim.driver import RandomDriver
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.driver import ROUNDS, NodeDriver
from kreplica.sim.nodes.node_story import NodeStory
from kreplica.sim.scheduler import NANOSECONDS_PER_MS
from kreplica.sim.story import Story

# After its last action a run that is repeated goes on as long as a violation may need to show.
GRACE_MS = 50
NANOSECONDS_PER_MINUTE = 60_000_000_000
# run_nodes or run_brokers.
Again = Callable[..., "RandomRun"]


class AllBut:
    """All numbers but those of `kept`."""

    def __init__(self, kept: Iterable[int]) -> None:
        self._kept = frozenset(kept)

    def __contains__(self, number: object) -> bool:
        return number not in self._kept


@dataclass(frozen=True, slots=True)
class RandomRun:
    """A run that is over; `again` makes the same one.

    `actions`: how many were drawn; `violation`: what it ended with, if it failed; `story`: what happened in
    it, where it was told.
    """

    again: Again
    seed: int
    events: int
    virtual_ms: int
    event_hash: str
    counts: Counter[str]
    actions: int
    violation: InvariantViolated | None
    round_ends_ns: tuple[int, ...]
    story: list[str] = field(default_factory=list)


def run_nodes(
    seed: int,
    events: int = 2_000,
    *,
    round_ends_ns: Sequence[int] = (),
    without: Container[int] = (),
    tells: bool = False,
) -> RandomRun:
    """One run of NodeDriver; a violation ends it, and is told in the result."""
    driver = NodeDriver(seed, without=without)
    return _run(run_nodes, driver, seed, events, round_ends_ns, NodeStory(driver) if tells else None)


def run_brokers(
    seed: int,
    events: int = 2_000,
    *,
    round_ends_ns: Sequence[int] = (),
    without: Container[int] = (),
    tells: bool = False,
) -> RandomRun:
    """As `run_nodes`, of RandomDriver."""
    driver = RandomDriver(seed, without=without)
    return _run(run_brokers, driver, seed, events, round_ends_ns, BrokerStory(driver) if tells else None)


def _run(
    again: Again,
    driver: NodeDriver | RandomDriver,
    seed: int,
    events: int,
    round_ends_ns: Sequence[int],
    story: Story | None,
) -> RandomRun:
    violation: InvariantViolated | None = None
    try:
        driver.run(events, round_ends_ns=round_ends_ns)
    except InvariantViolated as violated:
        violation = violated
        if story is not None:
            story.tell(f"violated: {violated}")
    ends = list(driver.round_ends_ns)
    if violation is not None and driver.is_in_round:
        ends.append(driver.cluster.time.now_ns + GRACE_MS * NANOSECONDS_PER_MS)
    return RandomRun(
        again=again,
        seed=seed,
        events=driver.cluster.scheduler.events,
        virtual_ms=driver.cluster.now_ms(),
        event_hash=driver.cluster.scheduler.event_hash,
        counts=driver.counts,
        actions=driver.actions.number,
        violation=violation,
        round_ends_ns=tuple(ends),
        story=[] if story is None else story.lines,
    )


def round_ends_ns(minutes: float) -> tuple[int, ...]:
    """When the rounds of a run end that lasts so many minutes of virtual time."""
    return tuple(int(minutes * NANOSECONDS_PER_MINUTE * n / ROUNDS) for n in range(1, ROUNDS + 1))


def reduced(failed: RandomRun, is_over: Callable[[], bool]) -> RandomRun:
    """The same failure with as few actions as were found until `is_over()`, with its story."""
    assert failed.violation is not None
    name = failed.violation.invariant
    ends = failed.round_ends_ns

    def fails(kept: Sequence[int]) -> bool:
        ran = failed.again(failed.seed, round_ends_ns=ends, without=AllBut(kept))
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
    return failed.again(failed.seed, round_ends_ns=ends, without=AllBut(kept), tells=True)
