"""`kreplica top`: what happens in a cluster now, refreshed in the terminal.

It asks any Kafka-compatible cluster, by requests that all of them have: Metadata, DescribeLogDirs,
DescribeQuorum, ListOffsets and those of groups. Rates are differences between two looks. What the cluster
does not answer, such as the logs of a broker that is down, is left out and named.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
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


def frame(before: Look, after: Look, changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what one refresh shows. Rates are per second, between the looks."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    rates = {
        at: max(end - before.ends[at], 0) / seconds for at, end in after.ends.items() if at in before.ends
    }
    return {
        "cluster_id": after.cluster_id,
        "quorum_leader": after.quorum_leader,
        "partitions": len(after.partitions),
        "under_replicated": sum(
            len(each.isr_nodes) < len(each.replica_nodes) for each in after.partitions.values()
        ),
        "without_leader": sum(each.leader_id == NO_LEADER for each in after.partitions.values()),
        "records_per_s": round(sum(rates.values()), 1),
        "brokers": [_broker(after, node, rates) for node in _all_nodes(after)],
        "topics": _topics(after, rates),
        "groups": sorted(after.groups, key=lambda each: (-each["lag"], each["group"])),
        "changes": changes,
        "problems": after.problems,
    }


def _all_nodes(found: Look) -> list[int]:
    """Return the live brokers, and those that are only named as replicas."""
    return sorted({*found.brokers, *(n for each in found.partitions.values() for n in each.replica_nodes)})


def _broker(found: Look, node: int, rates: Mapping[TopicPartition, float]) -> dict[str, Any]:
    partitions = found.partitions.values()
    leads = [at for at, each in found.partitions.items() if each.leader_id == node]
    return {
        "broker": node,
        "address": found.brokers.get(node),
        "leads": len(leads),
        "replicas": sum(node in each.replica_nodes for each in partitions),
        "out_of_sync": sum(node in each.replica_nodes and node not in each.isr_nodes for each in partitions),
        "records_per_s": round(sum(rates.get(at, 0.0) for at in leads), 1),
        **found.disks.get(node, {"bytes": None}),
    }


def _topics(found: Look, rates: Mapping[TopicPartition, float]) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for at, each in found.partitions.items():
        row = topics.setdefault(
            at.topic, {"topic": at.topic, "partitions": 0, "under_replicated": 0, "records_per_s": 0.0}
        )
        row["partitions"] += 1
        row["under_replicated"] += len(each.isr_nodes) < len(each.replica_nodes)
        row["records_per_s"] += rates.get(at, 0.0)
    for row in topics.values():
        row["records_per_s"] = round(row["records_per_s"], 1)
    return sorted(topics.values(), key=lambda row: (-row["records_per_s"], row["topic"]))


# ---- the screen --------------------------------------------------------------------------------------------


def screen(shown: Mapping[str, Any]) -> RenderableType:
    """Return the frame as tables."""
    leader = shown["quorum_leader"]
    bad = shown["under_replicated"], shown["without_leader"]
    head = Text.assemble(
        ("kreplica top", "bold"),
        f"  cluster {shown['cluster_id']}  controller {'unknown' if leader is None else leader}\n",
        f"{shown['records_per_s']:,.0f} records/s  {shown['partitions']} partitions  ",
        (f"{bad[0]} under-replicated", "yellow" if bad[0] else "green"),
        "  ",
        (f"{bad[1]} without leader", "red" if bad[1] else "green"),
    )
    parts: list[RenderableType] = [head, _brokers_table(shown), _topics_table(shown)]
    if shown["groups"]:
        parts.append(_groups_table(shown))
    parts.append(_changes_table(shown))
    parts += [Text(each, style="yellow") for each in shown["problems"]]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    """Return an empty table; a column with # before its name holds numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=True
    )
    for name in columns:
        is_number = name.startswith("#")
        table.add_column(name.lstrip("#"), justify="right" if is_number else "left", overflow="ellipsis")
    return table


def _brokers_table(shown: Mapping[str, Any]) -> Table:
    table = _table("Brokers", "#id", "address", "#leads", "#replicas", "#out", "#records/s", "#log size")
    for each in shown["brokers"]:
        table.add_row(
            str(each["broker"]),
            Text("down", style="red") if each["address"] is None else each["address"],
            str(each["leads"]),
            str(each["replicas"]),
            Text(str(each["out_of_sync"]), style="yellow" if each["out_of_sync"] else ""),
            f"{each['records_per_s']:,.0f}",
            size_text(each["bytes"]),
        )
    return table


def _topics_table(shown: Mapping[str, Any]) -> Table:
    rows = shown["topics"]
    table = _table(_title("Topics", rows), "topic", "#partitions", "#under-replicated", "#records/s")
    for each in rows[:MOST_ROWS]:
        under = Text(str(each["under_replicated"]), style="yellow" if each["under_replicated"] else "")
        table.add_row(escape(each["topic"]), str(each["partitions"]), under, f"{each['records_per_s']:,.0f}")
    return table


def _groups_table(shown: Mapping[str, Any]) -> Table:
    rows = shown["groups"]
    table = _table(_title("Groups", rows), "group", "type", "state", "#lag")
    for each in rows[:MOST_ROWS]:
        table.add_row(escape(each["group"]), each["type"], each["state"], f"{each['lag']:,}")
    return table


def _changes_table(shown: Mapping[str, Any]) -> RenderableType:
    rows = shown["changes"]
    if not rows:
        return Text("No leader and no ISR has changed since the start.", style="dim")
    table = _table("Changes of leaders and ISRs", "time (UTC)", "partition", "#leader", "left", "joined")
    for each in rows[: -MOST_ROWS - 1 : -1]:
        leader = "none" if each["leader"] == NO_LEADER else str(each["leader"])
        left = Text(", ".join(map(str, each["left"])), style="yellow")
        joined = Text(", ".join(map(str, each["joined"])), style="green")
        table.add_row(moment(each["timestamp"])[11:19], escape(each["partition"]), leader, left, joined)
    return table


def _title(name: str, rows: list[Any]) -> str:
    return name if len(rows) <= MOST_ROWS else f"{name}, {MOST_ROWS} of {len(rows)}"


# ---- the command -------------------------------------------------------------------------------------------


def run(bootstrap: str, interval_s: float, once: bool, as_json: bool) -> int:
    """Show frames until Ctrl-C, or one; returns the exit code. Raises NetworkException if none answers."""
    frames = _frames(bootstrap, interval_s)
    try:
        if as_json or once:
            for shown in frames:
                if as_json:
                    print_json(shown)
                else:
                    _console().print(screen(shown))
                if once:
                    break
            return 0
        with Live(console=_console(), screen=True, auto_refresh=False) as live:
            for shown in frames:
                live.update(screen(shown), refresh=True)
    except KeyboardInterrupt:
        pass
    return 0


def _console() -> Console:
    out = console()
    # Without a terminal a frame has the width that fits anywhere.
    return out if out.is_terminal else Console(file=out.file, width=80, highlight=False)


def _frames(bootstrap: str, interval_s: float) -> Iterator[dict[str, Any]]:
    changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
    before = look(bootstrap)
    while True:
        time.sleep(interval_s)
        try:
            after = look(bootstrap)
        except (KreplicaError, OSError) as error:
            # A cluster that answered once is shown as it was, with the reason, until it answers again.
            shown = frame(before, before, list(changes))
            yield {**shown, "records_per_s": 0.0, "problems": [f"no broker answers: {error}"]}
            continue
        changes.extend(isr_changes(before, after, time.time_ns() // 1_000_000))
        yield frame(before, after, list(changes))
        before = after
