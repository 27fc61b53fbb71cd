"""`kreplica diff`: find where two replicas differ, and how far they agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kreplica.cli.output import print_json, print_table, progress, say
from kreplica.common.isolation import Isolation
from kreplica.log.diff import Pair, agrees, compare_pair, pair_up
from kreplica.log.verify import total_bytes
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.storage import FileStorage

SUMMARY_COLUMNS = (
    "partition",
    "outcome",
    "first_offset",
    "end_offset",
    "agreed_offset",
    "agreed_epoch",
    "problem",
)
LOST_COLUMNS = ("side", "first_offset", "next_offset", "path", "position", "end_position", "reason")
PLACE_COLUMNS = (
    *("side", "base_offset", "last_offset", "records", "leader_epoch", "size", "crc", "codec"),
    *("producer_id", "producer_epoch", "base_sequence", "path", "position"),
)
SIDES = ("left", "right")

Fact = Mapping[str, Any]


def pairs(left: Path, right: Path) -> list[Pair] | None:
    """Return the partitions of both directories, or None if they cannot be compared."""
    return pair_up(FileStorage(), *(str(path.resolve()) for path in (left, right)))


def run(found: Sequence[Pair], by_record: bool, isolation: Isolation, as_json: bool) -> int:
    """Compare each pair; returns the exit code. A partition that only one side has is listed, but is not a
    difference."""
    return report(_facts(found, by_record, isolation), as_json)


def report(facts: Iterable[Fact], as_json: bool) -> int:
    """Print the results of each pair (see kreplica.log.diff.compare_pair); returns the exit code."""
    summary: list[Fact] = []
    for fact in facts:
        summary.append(fact)
        if as_json:
            print_json(fact)
        else:
            _print_details(fact)
    if not as_json:
        print_table("Partitions", SUMMARY_COLUMNS, summary)
    return 0 if all(map(agrees, summary)) else 1


def _facts(found: Sequence[Pair], by_record: bool, isolation: Isolation) -> Iterator[Fact]:
    storage, clock = FileStorage(), SystemClock()
    both = [pair.left for pair in found if pair.left is not None and pair.right is not None]
    size = sum(total_bytes(storage, directory) for directory in both)
    with progress("diff", size) as advance:
        for pair in found:
            yield compare_pair(
                storage, clock, pair, by_record=by_record, isolation=isolation, progress=advance
            )


# ---- for people ------------------------------------------------------------------------------------------


def _print_details(fact: Fact) -> None:
    """Print what a row of the summary cannot hold; nothing if the two sides agree."""
    name, divergence, lost = fact["partition"], fact.get("divergence"), fact.get("lost")
    if divergence:
        print_table(f"{name}: {_told(divergence)}", PLACE_COLUMNS, _places(divergence))
    if lost:
        print_table(f"{name}: lost", LOST_COLUMNS, lost)
    _print_epochs(name, fact.get("epochs") or {})
    for side in SIDES:
        if count := fact.get(f"only_{side}"):
            records = "1 record" if count == 1 else f"{count:,} records"
            first = fact[f"first_only_{side}"]
            say(f"{name}: {records} only on the {side}, the first at offset {first}.")


def _print_epochs(name: str, epochs: Fact) -> None:
    entries = [{"side": side, **epochs[side]} for side in SIDES if epochs.get(side)]
    if not entries:
        return
    print_table(f"{name}: the leader epochs differ", ("side", "epoch", "start_offset"), entries)
    agreed = epochs["agreed"]
    if agreed is not None:
        say(
            f"By leader epochs alone they agree up to epoch {agreed['epoch']},"
            f" offset {agreed['start_offset']}."
        )


def _told(divergence: Fact) -> str:
    where = f"offset {divergence['offset']}, leader epoch {divergence['leader_epoch']}"
    what = {
        "batch": "the batches differ",
        "leader_epoch": "the leader epochs of the batches differ",
        "missing": f"nothing on the {'left' if divergence['left'] is None else 'right'}",
        "record": "the records differ",
    }
    return f"{what[divergence['kind']]} at {where}"


def _places(divergence: Fact) -> Iterator[Fact]:
    for side in SIDES:
        if divergence[side] is not None:
            yield {"side": side, **divergence[side]}
