"""`kreplica sim`: random runs of the simulator, their results, and the shortened form of a run that fails."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from kreplica.cli.output import console, print_json
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_driver import QuorumDriver
from kreplica.sim.reduction import RandomRun, reduced, round_ends_ns, run_brokers, run_nodes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run. `transcript`: the shortest form of the run that fails in the same way."""

    seed: int
    events: int
    virtual_ms: int
    event_hash: str
    counts: dict[str, int]
    violation: InvariantViolated | None
    transcript: Sequence[str] = field(default_factory=list)


def run(
    driver: str, seeds: Iterable[int], minutes: float | None, events: int, reduce: float, as_json: bool
) -> int:
    """Run the seeds until one fails; returns the exit code."""
    with _quiet():
        return _run_all(driver, seeds, minutes, events, reduce, as_json)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the nodes' logs, which report the faults that the run injects."""
    logger = logging.getLogger("kreplica")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run_all(
    driver: str, seeds: Iterable[int], minutes: float | None, events: int, reduce: float, as_json: bool
) -> int:
    for seed in seeds:
        started = time.monotonic()
        try:
            outcome = _run_one(driver, seed, minutes, events, reduce)
        except Exception:
            console(stderr=True).print(f"seed {seed}: {traceback.format_exc()}", markup=False)
            return 2
        if as_json:
            print_json(_fact(driver, outcome))
        else:
            _print(driver, outcome, time.monotonic() - started)
        if outcome.violation is not None:
            return 1
    return 0


def _run_one(driver: str, seed: int, minutes: float | None, events: int, reduce: float) -> Outcome:
    if driver == "nodes":
        ends = () if minutes is None else round_ends_ns(minutes)
        return _outcome(run_nodes(seed, events, round_ends_ns=ends), reduce)
    if driver == "brokers":
        return _outcome(run_brokers(seed, events), reduce)
    made = QuorumDriver(seed)
    violation: InvariantViolated | None = None
    try:
        made.run(events)
    except InvariantViolated as violated:
        violation = violated
    cluster = made.quorum
    scheduler = cluster.scheduler
    return Outcome(
        seed, scheduler.events, cluster.now_ms(), scheduler.event_hash, dict(made.counts), violation
    )


def _outcome(ran: RandomRun, reduce: float) -> Outcome:
    transcript: Sequence[str] = ()
    if ran.violation is not None:
        transcript = _shortened(ran, reduce).story
    return Outcome(
        ran.seed,
        ran.events,
        ran.virtual_ms,
        ran.event_hash,
        dict(ran.counts),
        ran.violation,
        transcript,
    )


def _shortened(ran: RandomRun, seconds: float) -> RandomRun:
    return reduced(ran, partial(_is_over, time.monotonic() + seconds))


def _is_over(deadline: float) -> bool:
    return time.monotonic() >= deadline


def _fact(driver: str, outcome: Outcome) -> dict[str, object]:
    violation = outcome.violation
    return {
        "seed": outcome.seed,
        "driver": driver,
        "events": outcome.events,
        "virtual_ms": outcome.virtual_ms,
        "event_hash": outcome.event_hash,
        "counts": outcome.counts,
        "violations": []
        if violation is None
        else [{"invariant": violation.invariant, "facts": violation.facts}],
        "transcript": list(outcome.transcript),
    }


def _print(driver: str, outcome: Outcome, seconds: float) -> None:
    out = console()
    passed = f"{outcome.events:,} events in {outcome.virtual_ms / 1000:.1f} virtual s ({seconds:.1f} s)"
    ended = "no violation" if outcome.violation is None else f"violated: {outcome.violation}"
    out.print(f"seed {outcome.seed}, {driver}: {passed}, hash {outcome.event_hash}: {ended}", markup=False)
    if outcome.violation is None:
        return
    for line in outcome.transcript:
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"to replay: kreplica sim --driver {driver} --seed {outcome.seed}", markup=False)
