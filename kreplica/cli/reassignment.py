"""Moves of replicas between brokers: a plan that is printed first, its execution, and its progress.

The cluster moves the replicas itself. A command only says where they should be, and watches; when it ends,
the moves go on. A throttle holds until `follow` has seen the end of all moves. Thread rule: one
thread.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kreplica.cli.balance import Layout
from kreplica.cli.cluster_admin import LOOK_AGAIN_S, PREFERRED, ClusterAdmin, Failures, reachable
from kreplica.cli.output import Fact, console, counted, print_json, print_table, say, size_text
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidFile
from kreplica.common.json_file import parse_object
from kreplica.common.types import TopicPartition

# How long moves are followed without an answer of any broker, and how often a log without a terminal has a
# line about them.
PATIENCE_S, REPORT_S = 60.0, 10.0
# How long brokers may take to learn of the end of a move.
NEWS_S = 10.0
# Rows of a plan that are shown; JSON has all.
MOST_ROWS = 40
INTERRUPTED = 130
CHANGE_COLUMNS = ("topic", "partition", "replicas", "new_replicas", "copies", "size")
BROKER_COLUMNS = ("broker", "replicas", "new_replicas", "leaders", "new_leaders", "gets")


class Change(NamedTuple):
    """New replicas of a partition. `size`: its bytes on the leader, 0 if they are unknown."""

    at: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def added(self) -> list[int]:
        """The brokers that get a copy."""
        return [each for each in self.after if each not in self.before]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a plan is carried out. `throttle`: bytes a second. `save`: a file for the replicas before.

    `timeout_s`: how long to wait for the end of the moves; None: without end. `batch`: how many moves to
    begin at a time, which needs `wait`; None: all.
    """

    execute: bool = False
    wait: bool = False
    throttle: int | None = None
    timeout_s: float | None = None
    batch: int | None = None
    save: Path | None = None
    as_json: bool = False


# ---- the plan ----------------------------------------------------------------------------------------------


def changes_to(admin: ClusterAdmin, layout: Layout) -> list[Change]:
    """Return the partitions whose replicas differ in this layout, which has some of the partitions or all."""
    before = admin.layout
    wanted = {at: after for at, after in layout.items() if before[at] != after}
    sizes = admin.leader_sizes()[0] if wanted else {}
    return [Change(at, before[at], after, sizes.get(at, 0)) for at, after in sorted(wanted.items())]


def print_plan(admin: ClusterAdmin, changes: Sequence[Change], as_json: bool) -> None:
    """Print the partitions that change, and what each broker has before and after."""
    before = admin.layout
    brokers = list(_broker_facts(before, {**before, **{each.at: each.after for each in changes}}, changes))
    if as_json:
        for change in changes:
            print_json({"what": "change", **_change_fact(change)})
        for broker in brokers:
            print_json({"what": "broker", **broker})
        return
    copies = sum(len(each.added) for each in changes)
    total = sum(each.size * len(each.added) for each in changes)
    title = f"{len(changes)} of {counted(len(before), 'partition')} get other replicas"
    to_copy = f"{counted(copies, 'replica')} to copy, {size_text(total)}" if copies else "nothing is copied"
    rows = [
        {
            **_change_fact(each),
            "copies": ", ".join(map(str, each.added)),
            "size": size_text(each.size) if each.added else "",
        }
        for each in changes[:MOST_ROWS]
    ]
    print_table(f"{title}: {to_copy}", CHANGE_COLUMNS, rows)
    if len(changes) > MOST_ROWS:
        say(f"and {len(changes) - MOST_ROWS} more partitions; --json prints all of them")
    print_table("Brokers", BROKER_COLUMNS, [{**each, "gets": size_text(each["bytes"])} for each in brokers])


def _change_fact(change: Change) -> Fact:
    return {
        "topic": change.at.topic,
        "partition": change.at.partition,
        "replicas": list(change.before),
        "new_replicas": list(change.after),
        "bytes": change.size * len(change.added),
    }


def _broker_facts(before: Layout, after: Layout, changes: Sequence[Change]) -> Iterator[dict[str, int]]:
    counts = [
        Counter(broker for replicas in layout.values() for broker in replicas) for layout in (before, after)
    ]
    leaders = [Counter(replicas[0] for replicas in layout.values() if replicas) for layout in (before, after)]
    gets: Counter[int] = Counter()
    for change in changes:
        for broker in change.added:
            gets[broker] += change.size
    for broker in sorted(counts[0] | counts[1]):
        yield {
            "broker": broker,
            "replicas": counts[0][broker],
            "new_replicas": counts[1][broker],
            "leaders": leaders[0][broker],
            "new_leaders": leaders[1][broker],
            "bytes": gets[broker],
        }


# ---- files as those of Kafka's tool ------------------------------------------------------------------------


def read_layout(path: Path) -> Layout:
    """Read replicas from a file as kafka-reassign-partitions.sh takes it. Raises InvalidFile."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    rows = parse_object(path.read_bytes(), str(path)).get("partitions")
    for row in rows if isinstance(rows, list) else [None]:
        topic, partition, replicas = (
            (row.get("topic"), row.get("partition"), row.get("replicas"))
            if isinstance(row, dict)
            else (None, None, None)
        )
        if not (
            isinstance(topic, str)
            and isinstance(partition, int)
            and isinstance(replicas, list)
            and replicas
            and all(isinstance(each, int) for each in replicas)
        ):
            raise InvalidFile(
                f'{path}: it must be {{"version":1,"partitions":[{{"topic":"orders","partition":0,'
                f'"replicas":[1,2]}}]}}, and has {str(row)[:80]}'
            )
        found[TopicPartition(topic, partition)] = tuple(replicas)
    return found


def write_layout(path: Path, layout: Layout) -> None:
    """Write replicas so that `read_layout` and Kafka's tool read them. Raises OSError."""
    rows = [
        json.dumps({"topic": at.topic, "partition": at.partition, "replicas": list(replicas)})
        for at, replicas in sorted(layout.items())
    ]
    path.write_text('{"version": 1, "partitions": [\n' + ",\n".join(rows) + "\n]}\n")


# ---- execution ---------------------------------------------------------------------------------------------


def run(admin: ClusterAdmin, layout: Layout, how: How) -> int:
    """Print the plan, and carry it out if `how` says so; returns the exit code.

    The exit code is 1 if a partition could not be moved, or is not moved in time. Preferred leaders that
    changed are elected at the end.
    """
    changes = changes_to(admin, layout)
    if not changes:
        say("nothing has to move: the replicas are where they should be", stderr=True)
        return elect_preferred(admin, layout, how) if how.execute else 0
    print_plan(admin, changes, how.as_json)
    if not how.execute:
        say("nothing was changed: --execute makes these changes", stderr=True)
        return 0
    wanted = {each.at: each.after for each in changes}
    if how.save is not None:
        write_layout(how.save, {each.at: each.before for each in changes})
        say(f"kreplica partition move --file {how.save} --execute moves them back", stderr=True)
    if how.wait:
        return _in_batches(admin.bootstrap, wanted, how)
    failed = begin(admin, wanted, how)
    say("the moves have begun; `kreplica partition wait` shows how far they are", stderr=True)
    return 1 if failed else 0


def _in_batches(bootstrap: str, wanted: Layout, how: How) -> int:
    """Begin the moves, as many at a time as `how` says, and wait for their end; returns the exit code."""
    deadline = None if how.timeout_s is None else time.monotonic() + how.timeout_s
    waiting = sorted(wanted)
    failed: Failures = {}
    while waiting:
        batch, waiting = waiting[: how.batch], waiting[how.batch :] if how.batch else []
        with reachable(bootstrap, PATIENCE_S) as admin:
            failed |= begin(admin, {at: wanted[at] for at in batch}, how)
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        moving = {at: wanted[at] for at in batch if at not in failed}
        code = follow(bootstrap, moving, replace(how, timeout_s=left_s))
        if code:
            if waiting:
                say(f"not begun: {counted(len(waiting), 'partition')}; run the command again", stderr=True)
            return code
    with reachable(bootstrap, PATIENCE_S) as admin:
        moved = {at: after for at, after in wanted.items() if at not in failed}
        return elect_preferred(admin, moved, how) or (1 if failed else 0)


def begin(admin: ClusterAdmin, wanted: Layout, how: How) -> Failures:
    """Begin the moves; return those that failed, which are printed."""
    if how.throttle is not None and (down := admin.throttle(how.throttle, wanted)):
        shown = ", ".join(map(str, down))
        say(f"without a throttle, since they are down: brokers {shown}", stderr=True)
    failed = admin.reassign(wanted)
    print_failures(failed, how.as_json)
    return failed


def elect_preferred(admin: ClusterAdmin, partitions: Layout, how: How) -> int:
    """Let the preferred replicas of these partitions lead; returns the exit code."""
    wanted = [
        at
        for at in partitions
        if at in admin.partitions
        and admin.partitions[at].leader_id != admin.layout[at][0]
        and admin.layout[at][0] in admin.partitions[at].isr_nodes
    ]
    failed = admin.elect(wanted, PREFERRED)
    print_failures(failed, how.as_json)
    return 1 if failed else 0


def print_failures(failed: Failures, as_json: bool) -> None:
    for at, problem in sorted(failed.items()):
        if as_json:
            print_json({"what": "failed", "topic": at.topic, "partition": at.partition, "problem": problem})
        else:
            say(f"{at}: {problem}", stderr=True)


# ---- progress ----------------------------------------------------------------------------------------------


def follow(bootstrap: str, wanted: Layout | None, how: How) -> int:
    """Show the progress of moves until they have ended, then remove their throttle; returns the exit code.

    `wanted`: the replicas that partitions should have at the end; None: follow all moves of the cluster.
    The exit code is 1 if a partition has other replicas, or time is up.
    """
    try:
        with _shown() as show:
            end = _watch(bootstrap, wanted, how.timeout_s, show)
    except KeyboardInterrupt:
        say("the moves go on; `kreplica partition wait` shows how far they are", stderr=True)
        return INTERRUPTED
    if end.moving:
        shown = ", ".join(map(str, end.moving[:5])) + (", ..." if len(end.moving) > 5 else "")
        still = f"{counted(len(end.moving), 'partition')} still to move: {shown}"
        say(f"kreplica: after {how.timeout_s:.3g} s {still}", stderr=True)
        return 1
    with reachable(bootstrap, PATIENCE_S) as admin:
        return _ended(admin, end, how)


class End(NamedTuple):
    """The end of a wait: where partitions should be, which are elsewhere, and which still move."""

    targets: Layout
    failed: Failures
    moving: Sequence[TopicPartition]


def _watch(bootstrap: str, wanted: Layout | None, timeout_s: float | None, show: Show) -> End:
    """Wait until the moves have ended, or time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # Where each partition goes, those included that begin to move meanwhile.
    targets = dict(wanted or {})
    ended_s: float | None = None
    # Addresses that have answered once are those of the cluster.
    patience_s = 0.0 if wanted is None else PATIENCE_S
    while True:
        with reachable(bootstrap, patience_s) as admin:
            moving = sorted(admin.moves if wanted is None else set(wanted) & set(admin.moves))
            if wanted is None:
                targets |= {at: move.target for at, move in admin.moves.items()}
            failed = _elsewhere(admin, targets)
            now_s = time.monotonic()
            ended_s = None if moving else ended_s or now_s
            # A broker learns of the end of a move a moment after the controller.
            is_over = ended_s is not None and (not failed or now_s - ended_s > NEWS_S)
            if is_over or (moving and deadline is not None and now_s > deadline):
                return End(targets, failed, moving)
            show(_progress(admin, targets, len(moving)))
        patience_s = PATIENCE_S
        time.sleep(LOOK_AGAIN_S)


def _elsewhere(admin: ClusterAdmin, targets: Layout) -> Failures:
    """Return the partitions whose replicas are others than these, with the reason."""
    return {
        at: f"has the replicas {list(admin.layout[at])} and not {list(target)}: the move was cancelled or"
        " replaced by another one"
        for at, target in targets.items()
        if at in admin.layout and set(admin.layout[at]) != set(target)
    }


def _ended(admin: ClusterAdmin, end: End, how: How) -> int:
    if not admin.moves and admin.remove_throttle():
        say("removed the throttle of replication", stderr=True)
        if down := ", ".join(str(each) for each in admin.registered if each not in admin.up):
            say(f"brokers that are down may keep its rate, which limits nothing now: {down}", stderr=True)
    print_failures(end.failed, how.as_json)
    done = [at for at in sorted(end.targets) if at not in end.failed]
    if how.as_json:
        for at in done:
            fact = {"topic": at.topic, "partition": at.partition, "replicas": list(end.targets[at])}
            print_json({"what": "moved", **fact})
    elif done:
        say(f"{counted(len(done), 'partition')} moved")
    elif not end.failed:
        say("nothing moves")
    return 1 if end.failed else 0


@dataclass(frozen=True, slots=True)
class Moving:
    """How far moves are. Bytes are those of the replicas that are still being copied."""

    done: int
    total: int
    copied_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        text = f"{self.done} of {self.total} partitions have moved"
        if self.total_bytes:
            text += (
                f"; {size_text(self.copied_bytes)} of {size_text(self.total_bytes)} of the rest are copied"
            )
        return text


def _progress(admin: ClusterAdmin, targets: Layout, moving: int) -> Moving:
    copied = total = 0
    by_broker: dict[int, set[TopicPartition]] = {}
    for at, move in admin.moves.items():
        for broker in {*move.adding, admin.partitions[at].leader_id} if at in admin.partitions else ():
            by_broker.setdefault(broker, set()).add(at)
    # The sizes of a broker that does not answer are missing in this look.
    sizes: dict[int, Mapping[TopicPartition, int]] = {
        broker: {at: size for each in found for at, size in each.logs.items()}
        for broker, found, _ in admin.disks(by_broker)
    }
    for at, move in admin.moves.items():
        if at in admin.partitions:
            size = sizes.get(admin.partitions[at].leader_id, {}).get(at, 0)
            total += size * len(move.adding)
            copied += sum(min(sizes.get(each, {}).get(at, 0), size) for each in move.adding)
    return Moving(len(targets) - moving, len(targets), copied, total)


class Show(Protocol):
    """Shows how far moves are."""

    def __call__(self, found: Moving, /) -> None: ...


@contextmanager
def _shown() -> Iterator[Show]:
    """Yield a function that moves a bar in a terminal, and elsewhere prints a line now and then."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield _lines()
        return
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def show(found: Moving) -> None:
            part = found.copied_bytes / found.total_bytes if found.total_bytes else 0.0
            # What has not been copied counts as part of the partitions that are still moving.
            whole = (found.done + part * (found.total - found.done)) / max(found.total, 1)
            bar.update(task, completed=whole, description=_short(found))

        yield show


def _short(found: Moving) -> str:
    copied = f", {size_text(found.copied_bytes)}/{size_text(found.total_bytes)}" if found.total_bytes else ""
    return f"{found.done}/{found.total} moved{copied}"


def _lines() -> Show:
    last_s = time.monotonic()

    def show(found: Moving) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= REPORT_S:
            last_s = time.monotonic()
            say(str(found), stderr=True)

    return show
