"""`kreplica sim`: random runs of the simulator, their results, and the shortened form of a run that fails."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from kreplica.cli.output import print_json, say
from kreplica.sim.reduction import RandomRun, reduced, round_ends_ns, run_seed


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
            ends = () if minutes is None else round_ends_ns(minutes)
            ran = run_seed(driver, seed, events, round_ends_ns=ends)
            story = [] if ran.violation is None else _shortened(ran, reduce).story
        except Exception:
            say(f"seed {seed}: {traceback.format_exc()}", stderr=True)
            return 2
        if as_json:
            print_json(_fact(ran, story))
        else:
            _print(ran, story, time.monotonic() - started)
        if ran.violation is not None:
            return 1
    return 0


def _shortened(ran: RandomRun, seconds: float) -> RandomRun:
    return reduced(ran, partial(_is_over, time.monotonic() + seconds))


def _is_over(deadline: float) -> bool:
    return time.monotonic() >= deadline


def _fact(ran: RandomRun, story: Sequence[str]) -> dict[str, object]:
    violation = ran.violation
    return {
        "seed": ran.seed,
        "driver": ran.driver,
        "events": ran.events,
        "virtual_ms": ran.virtual_ms,
        "event_hash": ran.event_hash,
        "counts": dict(ran.counts),
        "violations": []
        if violation is None
        else [{"invariant": violation.invariant, "facts": violation.facts}],
        "transcript": list(story),
    }


def _print(ran: RandomRun, story: Sequence[str], seconds: float) -> None:
    passed = f"{ran.events:,} events in {ran.virtual_ms / 1000:.1f} virtual s ({seconds:.1f} s)"
    ended = "no violation" if ran.violation is None else f"violated: {ran.violation}"
    say(f"seed {ran.seed}, {ran.driver}: {passed}, hash {ran.event_hash}: {ended}")
    if ran.violation is None:
        return
    for line in story:
        say(line)
    say(f"to replay: kreplica sim --driver {ran.driver} --seed {ran.seed}")
