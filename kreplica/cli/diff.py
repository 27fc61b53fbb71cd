"""`kreplica diff`: where two replicas part, and how far they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich import progress as bars

from kreplica.cli.output import Fact, console, print_json, print_table
from kreplica.common.errors import KreplicaError
from kreplica.common.ports import Storage
from kreplica.log.diff import Comparison, Divergence, EpochHistory, Pair, compare, pair_up
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

Progress = Callable[[int], None]


def pairs(left: Path, right: Path) -> list[Pair] | None:
    """The partitions of both directories, or None where they cannot be compared."""
    return pair_up(FileStorage(), *(str(path.resolve()) for path in (left, right)))


def run(found: Sequence[Pair], by_record: bool, as_json: bool) -> int:
    """Compare each pair; returns the exit code. What only one side has is listed and no difference."""
    storage = FileStorage()
    summary: list[Fact] = []
    code = 0
    both = [pair.left for pair in found if pair.left is not None and pair.right is not None]
    with _progress(sum(total_bytes(storage, directory) for directory in both)) as advance:
        for pair in found:
            try:
                compared = _compare(storage, pair, by_record, advance)
            except KreplicaError as error:
                fact: Fact = {"partition": pair.name, "outcome": "unread", "problem": str(error)}
                compared, code = None, 1
            else:
                fact = _fact(pair, compared)
            if compared is not None and not compared.agrees:
                code = 1
            summary.append(fact)
            if as_json:
                print_json(fact)
            elif compared is not None:
                _print_details(pair.name, compared)
    if not as_json:
        print_table("Partitions", SUMMARY_COLUMNS, summary)
    return code


def _compare(storage: Storage, pair: Pair, by_record: bool, progress: Progress | None) -> Comparison | None:
    if pair.left is None or pair.right is None:
        return None
    return compare(storage, SystemClock(), pair.left, pair.right, by_record=by_record, progress=progress)


def _outcome(found: Comparison) -> str:
    if found.divergence is not None:
        return "differ"
    if found.lost:
        return "damaged"
    if found.epochs.differs:
        return "epochs differ"
    if found.first_offset == found.end_offset:
        return "nothing in common"
    return "agree"


def _fact(pair: Pair, found: Comparison | None) -> Fact:
    if found is None:
        return {"partition": pair.name, "outcome": "only right" if pair.left is None else "only left"}
    epochs = {
        name: None if entry is None else entry._asdict()
        for name, entry in (
            ("agreed", found.epochs.agreed),
            ("left", found.epochs.left),
            ("right", found.epochs.right),
        )
    }
    fact: Fact = {"partition": pair.name, "outcome": _outcome(found), **asdict(found), "epochs": epochs}
    return fact


# ---- for people ------------------------------------------------------------------------------------------


def _print_details(name: str, found: Comparison) -> None:
    """What a row of the summary cannot hold; nothing where the two agree."""
    out = console()
    if found.divergence is not None:
        print_table(f"{name}: {_told(found.divergence)}", PLACE_COLUMNS, _places(found.divergence))
    if found.lost:
        print_table(f"{name}: lost", LOST_COLUMNS, map(asdict, found.lost))
    if found.epochs.differs:
        _print_epochs(name, found.epochs)
    for side, count, first in (
        ("left", found.only_left, found.first_only_left),
        ("right", found.only_right, found.first_only_right),
    ):
        if count:
            records = "1 record" if count == 1 else f"{count:,} records"
            out.print(f"{name}: {records} only on the {side}, the first at offset {first}.")


def _print_epochs(name: str, epochs: EpochHistory) -> None:
    entries = [
        {"side": side, "epoch": entry.epoch, "start_offset": entry.start_offset}
        for side, entry in zip(SIDES, (epochs.left, epochs.right), strict=True)
        if entry is not None
    ]
    print_table(f"{name}: the leader epochs differ", ("side", "epoch", "start_offset"), entries)
    agreed = epochs.agreed
    if agreed is not None:
        text = f"By leader epochs alone they agree up to epoch {agreed.epoch}, offset {agreed.start_offset}."
        console().print(text)


def _told(divergence: Divergence) -> str:
    where = f"offset {divergence.offset}, leader epoch {divergence.leader_epoch}"
    what = {
        "batch": "the batches differ",
        "leader_epoch": "the leader epochs of the batches differ",
        "missing": f"nothing on the {'left' if divergence.left is None else 'right'}",
        "record": "the records differ",
    }
    return f"{what[divergence.kind]} at {where}"


def _places(divergence: Divergence) -> Iterator[Fact]:
    for side, place in zip(SIDES, (divergence.left, divergence.right), strict=True):
        if place is not None:
            yield {"side": side, **asdict(place)}


@contextmanager
def _progress(total: int) -> Iterator[Progress | None]:
    """What to tell how many bytes were compared: a bar where somebody watches."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (
        *(bars.BarColumn(), bars.DownloadColumn()),
        *(bars.TransferSpeedColumn(), bars.TimeRemainingColumn()),
    )
    with bars.Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("diff", total=total)
        yield lambda size: bar.advance(task, size)
