"""`kreplica top`: what happens in a cluster now, refreshed in the terminal.

It asks any Kafka-compatible cluster, by requests that all of them have: Metadata, DescribeLogDirs,
DescribeQuorum, ListOffsets and those of groups. Rates are differences between two looks. What the cluster
does not answer, such as the logs of a broker that is down, is left out and named.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kreplica.cli.group import LATEST, Groups
from kreplica.cli.output import console, moment, print_json, size_text
from kreplica.cli.quorum import described_quorum
from kreplica.cli.scope import is_internal
from kreplica.common.dataclass import dataclass, field
from kreplica.common.errors import KreplicaError
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import DescribeLogDirsRequest
from kreplica.common.types import TopicPartition
from kreplica.common.wire import error_of

# Groups whose lag is asked for in one look, the rows of each table, and the ISR changes that are kept.
MOST_GROUPS = 50
MOST_ROWS = 10
MOST_CHANGES = 200
# A terminal with fewer columns shows fewer of each table. The lines of a table above its rows.
NARROW = 60
HEAD_LINES = 2


@dataclass(slots=True)
class Look:
    """The state of the cluster at one time. `problems`: what could not be asked, in words."""

    at_s: float
    cluster_id: str = ""
    quorum_leader: int | None = None
    brokers: dict[int, str] = field(default_factory=dict)
    partitions: dict[TopicPartition, Any] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    disks: dict[int, dict[str, int]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def look(bootstrap: str) -> Look:
    """Look at the cluster. Raises NetworkException if no broker answers."""
    with Groups(bootstrap) as cluster:
        found = Look(time.monotonic())
        found.partitions = cluster.partitions_of(None)
        found.cluster_id = cluster.cluster_id
        found.brokers = {node: f"{host}:{port}" for node, (host, port) in sorted(cluster.addresses.items())}
        found.ends = _ends(cluster, found)
        for node in found.brokers:
            _try(found, f"disks of broker {node}", partial(_look_at_disks, cluster, found, node))
        _try(found, "quorum", lambda: _look_at_quorum(cluster, found))
        _try(found, "groups", lambda: _look_at_groups(cluster, found))
    return found


def _try(found: Look, what: str, ask: Callable[[], None]) -> None:
    try:
        ask()
    except (KreplicaError, OSError) as error:
        found.problems.append(f"{what}: {error or type(error).__name__}")


def _ends(cluster: Groups, found: Look) -> dict[TopicPartition, int]:
    with_leader = [at for at, each in found.partitions.items() if each.leader_id in found.brokers]
    ends = cluster.offsets_at(with_leader, LATEST)
    return {at: end for at, end in ends.items() if isinstance(end, int)}


def _look_at_disks(cluster: Groups, found: Look, node: int) -> None:
    answer = cluster.ask_newest(node, DescribeLogDirsRequest(topics=None), range(1, 5))
    results = [each for each in answer.results if error_of(each.error_code) is None]
    found.disks[node] = {
        "bytes": sum(
            each.partition_size for one in results for topic in one.topics for each in topic.partitions
        ),
        "directories": len(results),
        "failed_directories": len(answer.results) - len(results),
        "usable_bytes": min((getattr(each, "usable_bytes", -1) for each in results), default=-1),
    }


def _look_at_quorum(cluster: Groups, found: Look) -> None:
    found.quorum_leader = described_quorum(cluster.seed).topics[0].partitions[0].leader_id


def _look_at_groups(cluster: Groups, found: Look) -> None:
    listed = cluster.listed()
    if len(listed) > MOST_GROUPS:
        found.problems.append(f"groups: the lag of {MOST_GROUPS} of {len(listed)} is shown")
    for group in listed[:MOST_GROUPS]:
        committed = cluster.committed(group)
        lags = [max(found.ends[at] - offset, 0) for at, offset in committed.items() if at in found.ends]
        found.groups.append(
            {"group": group.group_id, "type": group.kind, "state": group.state, "lag": sum(lags)}
        )


# ---- two looks ---------------------------------------------------------------------------------------------


def isr_changes(before: Look, after: Look, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the partitions whose leader or ISR differs between two looks."""
    for at, new in sorted(after.partitions.items()):
        old = before.partitions.get(at)
        if old is None:
            continue
        was, now = set(old.isr_nodes), set(new.isr_nodes)
        if was != now or old.leader_id != new.leader_id:
            yield {
                "timestamp": now_ms,
                "partition": str(at),
                "leader": new.leader_id,
                "left": sorted(was - now),
                "joined": sorted(now - was),
            }


def frame(before: Look | None, after: Look, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what one refresh shows. Rates are per second, between the looks; None for a first look."""
    rates = _rates(before, after) if before else None
    return {
        "cluster_id": after.cluster_id,
        "quorum_leader": after.quorum_leader,
        "partitions": len(after.partitions),
        "under_replicated": sum(
            len(each.isr_nodes) < len(each.replica_nodes) for each in after.partitions.values()
        ),
        "without_leader": sum(each.leader_id == NO_LEADER for each in after.partitions.values()),
        "records_per_s": _sum(rates, after.ends),
        "brokers": [_broker(after, node, rates) for node in _all_nodes(after)],
        "topics": _topics(after, rates),
        "groups": sorted(after.groups, key=lambda each: (-each["lag"], each["group"])),
        "changes": changes,
        "problems": after.problems,
    }


def _rates(before: Look, after: Look) -> dict[TopicPartition, float]:
    seconds = max(after.at_s - before.at_s, 1e-9)
    return {
        at: max(end - before.ends[at], 0) / seconds for at, end in after.ends.items() if at in before.ends
    }


def _sum(rates: Mapping[TopicPartition, float] | None, of: Iterable[TopicPartition]) -> float | None:
    if rates is None:
        return None
    return round(sum(rates.get(at, 0.0) for at in of), 1)


def _all_nodes(found: Look) -> list[int]:
    """Return the live brokers, and those that are only named as replicas."""
    return sorted({*found.brokers, *(n for each in found.partitions.values() for n in each.replica_nodes)})


def _broker(found: Look, node: int, rates: Mapping[TopicPartition, float] | None) -> dict[str, Any]:
    partitions = found.partitions.values()
    leads = [at for at, each in found.partitions.items() if each.leader_id == node]
    return {
        "broker": node,
        "address": found.brokers.get(node),
        "leads": len(leads),
        "replicas": sum(node in each.replica_nodes for each in partitions),
        "out_of_sync": sum(node in each.replica_nodes and node not in each.isr_nodes for each in partitions),
        "records_per_s": _sum(rates, leads),
        **found.disks.get(node, {"bytes": None}),
    }


def _topics(found: Look, rates: Mapping[TopicPartition, float] | None) -> list[dict[str, Any]]:
    partitions: dict[str, list[TopicPartition]] = {}
    for at in found.partitions:
        partitions.setdefault(at.topic, []).append(at)
    rows = [
        {
            "topic": topic,
            "partitions": len(of),
            "under_replicated": sum(
                len(found.partitions[at].isr_nodes) < len(found.partitions[at].replica_nodes) for at in of
            ),
            "records_per_s": _sum(rates, of),
        }
        for topic, of in partitions.items()
    ]
    return sorted(rows, key=_busy_first)


def _busy_first(row: Mapping[str, Any]) -> tuple[float, bool, str]:
    return -(row["records_per_s"] or 0.0), is_internal(row["topic"]), row["topic"]


# ---- the screen --------------------------------------------------------------------------------------------


def screen(shown: Mapping[str, Any], width: int = 80, height: int | None = None) -> RenderableType:
    """Return the frame as tables, for a terminal of this size; without a height, of any number of lines.

    A narrow terminal gets fewer columns, a low one fewer rows of each table.
    """
    is_narrow = width < NARROW
    leader = shown["quorum_leader"]
    rate = shown["records_per_s"]
    bad = shown["under_replicated"], shown["without_leader"]
    head = Text.assemble(
        ("kreplica top", "bold"),
        "" if is_narrow else f"  cluster {shown['cluster_id']}",
        f"  controller {leader if leader is not None else 'unknown'}\n",
        f"{rate:,.0f} records/s  " if rate is not None else "",
        f"{shown['partitions']} partitions",
        "\n" if is_narrow else "  ",
        (f"{bad[0]} under-replicated", "yellow" if bad[0] else "green"),
        "  ",
        (f"{bad[1]} without leader", "red" if bad[1] else "green"),
    )
    problems = [Text(each, style="yellow", no_wrap=height is not None) for each in shown["problems"]]
    rows = [MOST_ROWS] * 3
    if height is not None:
        taken = len(head.plain.splitlines()) + HEAD_LINES + len(shown["brokers"]) + len(problems)
        wanted = [len(shown[name]) for name in ("topics", "groups", "changes")]
        rows = shares(wanted, height - taken - (0 if shown["changes"] else 1))
    parts: list[RenderableType] = [head, _brokers_table(shown, is_narrow)]
    parts.append(_topics_table(shown, rows[0], is_narrow))
    if shown["groups"]:
        parts.append(_groups_table(shown, rows[1], is_narrow))
    parts.append(_changes_table(shown, rows[2], is_narrow))
    return Group(*parts, *problems)


def shares(wanted: list[int], lines: int) -> list[int]:
    """Return how many rows of each table there are, so that they fit into the lines with their heads.

    The longest one gives way first, down to one row.
    """
    rows = [min(each, MOST_ROWS) for each in wanted]
    lines -= sum(HEAD_LINES if each else 0 for each in rows)
    while sum(rows) > lines and max(rows) > 1:
        rows[rows.index(max(rows))] -= 1
    return rows


def _table(title: str, *columns: str) -> Table:
    """Return an empty table; a column with # before its name holds numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=True
    )
    has_wide = False
    for name in columns:
        is_number = name.startswith("#")
        # The first column of text takes what is left of the width.
        ratio = None if is_number or has_wide else 1
        has_wide = has_wide or ratio is not None
        table.add_column(
            name.lstrip("#"),
            justify="right" if is_number else "left",
            overflow="ellipsis",
            no_wrap=True,
            ratio=ratio,
        )
    return table


def _rate(records_per_s: float | None) -> str:
    return "–" if records_per_s is None else f"{records_per_s:,.0f}"


def _brokers_table(shown: Mapping[str, Any], is_narrow: bool) -> Table:
    replicas = () if is_narrow else ("#replicas",)
    table = _table("Brokers", "#id", "address", "#leads", *replicas, "#out", "#records/s", "#log size")
    for each in shown["brokers"]:
        address = each["address"] if not is_narrow else "up"
        table.add_row(
            str(each["broker"]),
            Text("down", style="red") if each["address"] is None else address,
            str(each["leads"]),
            *([] if is_narrow else [str(each["replicas"])]),
            Text(str(each["out_of_sync"]), style="yellow" if each["out_of_sync"] else ""),
            _rate(each["records_per_s"]),
            size_text(each["bytes"]),
        )
    return table


def _topics_table(shown: Mapping[str, Any], most: int, is_narrow: bool) -> Table:
    rows = shown["topics"]
    counts = ("#out",) if is_narrow else ("#partitions", "#under-replicated")
    table = _table(_title("Topics", rows, most), "topic", *counts, "#records/s")
    for each in rows[:most]:
        under = Text(str(each["under_replicated"]), style="yellow" if each["under_replicated"] else "")
        partitions = [] if is_narrow else [str(each["partitions"])]
        table.add_row(escape(each["topic"]), *partitions, under, _rate(each["records_per_s"]))
    return table


def _groups_table(shown: Mapping[str, Any], most: int, is_narrow: bool) -> Table:
    rows = shown["groups"]
    kinds = () if is_narrow else ("type",)
    table = _table(_title("Groups", rows, most), "group", *kinds, "state", "#lag")
    for each in rows[:most]:
        kind = [] if is_narrow else [each["type"]]
        table.add_row(escape(each["group"]), *kind, each["state"], f"{each['lag']:,}")
    return table


def _changes_table(shown: Mapping[str, Any], most: int, is_narrow: bool) -> RenderableType:
    rows = shown["changes"]
    if not rows:
        return Text("No leader and no ISR has changed since the start.", style="dim")
    title = _title("Changes of leaders and ISRs", rows, most)
    table = _table(title, "#UTC", "partition", "#leader", *(["ISR"] if is_narrow else ["left", "joined"]))
    for each in rows[: -most - 1 : -1]:
        leader = "none" if each["leader"] == NO_LEADER else str(each["leader"])
        sign = ("-", "+") if is_narrow else ("", "")
        left = Text(", ".join(f"{sign[0]}{node}" for node in each["left"]), style="yellow")
        joined = Text(", ".join(f"{sign[1]}{node}" for node in each["joined"]), style="green")
        isr = [Text(" ").join(part for part in (left, joined) if part)] if is_narrow else [left, joined]
        table.add_row(moment(each["timestamp"])[11:19], escape(each["partition"]), leader, *isr)
    return table


def _title(name: str, rows: list[Any], most: int) -> str:
    return name if len(rows) <= most else f"{name}, {most} of {len(rows)}"


# ---- the command -------------------------------------------------------------------------------------------


def run(bootstrap: str, interval_s: float, once: bool, as_json: bool) -> int:
    """Show frames until Ctrl-C, or one; returns the exit code. Raises NetworkException if none answers."""
    out = _console()
    is_live = out.is_terminal and not (as_json or once)
    shown_one_by_one = frames(bootstrap, interval_s, at_once=is_live)
    try:
        if not is_live:
            for shown in shown_one_by_one:
                if as_json:
                    print_json(shown)
                else:
                    out.print(screen(shown, out.width))
                if once:
                    break
            return 0
        with Live(
            Text(f"kreplica top: asks {bootstrap}"), console=out, screen=True, auto_refresh=False
        ) as live:
            live.refresh()
            for shown in shown_one_by_one:
                live.update(screen(shown, out.width, out.height), refresh=True)
    except KeyboardInterrupt:
        pass
    return 0


def _console() -> Console:
    out = console()
    # Without a terminal a frame has the width that fits anywhere.
    return out if out.is_terminal else Console(file=out.file, width=80, highlight=False)


def frames(bootstrap: str, interval_s: float, *, at_once: bool) -> Iterator[dict[str, Any]]:
    """Yield a frame every `interval_s`; with `at_once` the first one without rates.

    Raises NetworkException if no broker answers at first.
    """
    changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
    before = look(bootstrap)
    addresses = _addresses(bootstrap, before)
    if at_once:
        yield frame(None, before, [])
    while True:
        time.sleep(interval_s)
        try:
            after = look(addresses)
        except (KreplicaError, OSError) as error:
            # A cluster that answered once is shown as it was, with the reason, until it answers again.
            yield {**frame(None, before, list(changes)), "problems": [f"no broker answers: {error}"]}
            continue
        changes.extend(isr_changes(before, after, time.time_ns() // 1_000_000))
        yield frame(before, after, list(changes))
        before, addresses = after, _addresses(bootstrap, after)


def _addresses(bootstrap: str, found: Look) -> str:
    """Return where to look next: the brokers that live, since those that were named may die."""
    return ",".join(dict.fromkeys([*found.brokers.values(), *bootstrap.split(",")]))
