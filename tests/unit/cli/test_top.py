"""What `kreplica top` makes of two looks at a cluster."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kreplica.cli.top import Look, frame, isr_changes, screen
from kreplica.common.types import TopicPartition

NOW_MS = 1_700_000_000_000


def partition(leader: int, isr: tuple[int, ...]) -> Any:
    return SimpleNamespace(leader_id=leader, isr_nodes=isr, replica_nodes=(1, 2))


def looks() -> tuple[Look, Look]:
    """Two looks, 2 s apart: broker 2 goes down, 100 records come to t-0, and t-1 begins anew."""
    before, after = Look(10.0, cluster_id="c"), Look(12.0, cluster_id="c", quorum_leader=1)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    before.brokers = {1: "a:1", 2: "b:2"}
    after.brokers = {1: "a:1"}
    before.partitions = {t0: partition(1, (1, 2)), t1: partition(2, (1, 2))}
    after.partitions = {t0: partition(1, (1,)), t1: partition(-1, (1,))}
    before.ends, after.ends = {t0: 50, t1: 7}, {t0: 150, t1: 0}
    after.disks = {1: {"bytes": 3 << 20, "directories": 1, "failed_directories": 0, "usable_bytes": -1}}
    after.groups = [
        {"group": "a", "type": "classic", "state": "Empty", "lag": 1},
        {"group": "[b]", "type": "consumer", "state": "Stable", "lag": 5},
    ]
    return before, after


def test_rates_are_differences_of_two_looks() -> None:
    shown = frame(*looks(), [])
    assert (shown["records_per_s"], shown["partitions"]) == (50.0, 2)
    assert (shown["under_replicated"], shown["without_leader"]) == (2, 1)
    one, two = shown["brokers"]
    assert (one["leads"], one["records_per_s"], one["bytes"], one["out_of_sync"]) == (1, 50.0, 3 << 20, 0)
    assert (two["address"], two["bytes"], two["replicas"], two["out_of_sync"]) == (None, None, 2, 2)
    assert shown["topics"] == [{"topic": "t", "partitions": 2, "under_replicated": 2, "records_per_s": 50.0}]
    assert [each["group"] for each in shown["groups"]] == ["[b]", "a"]


def test_changes_of_leaders_and_isrs_are_found() -> None:
    before, after = looks()
    assert list(isr_changes(before, after, NOW_MS)) == [
        {"timestamp": NOW_MS, "partition": "t-0", "leader": 1, "left": [2], "joined": []},
        {"timestamp": NOW_MS, "partition": "t-1", "leader": -1, "left": [2], "joined": []},
    ]
    assert list(isr_changes(after, after, NOW_MS)) == []
    new = TopicPartition("new", 0)
    after.partitions = {**before.partitions, new: partition(1, (1,))}
    assert list(isr_changes(before, after, NOW_MS)) == []


def test_the_screen_fits_80_columns() -> None:
    before, after = looks()
    after.problems = ["disks of broker 2: refused"]
    out = io.StringIO()
    shown = frame(before, after, list(isr_changes(before, after, NOW_MS)))
    Console(file=out, width=80).print(screen(shown))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("cluster c", "controller 1", "2 under-replicated", "down", "3.0 MiB", "unknown", "[b]"):
        assert words in text, words
    assert "22:13:20" in text
    assert "disks of broker 2: refused" in text
    Console(file=out, width=80).print(screen(frame(None, after, [])))
    assert "No leader and no ISR has changed" in out.getvalue()


def many(number: int) -> dict[str, Any]:
    """A frame with this number of topics, groups and changes."""
    before, after = looks()
    names = [TopicPartition(f"topic-{n:02d}", 0) for n in range(number)]
    after.partitions = {
        **dict.fromkeys(names, partition(1, (1, 2))),
        TopicPartition("__own", 0): partition(1, (1,)),
    }
    after.groups = [{"group": f"g{n}", "type": "classic", "state": "Empty", "lag": 1} for n in range(number)]
    change = {"timestamp": NOW_MS, "leader": 1, "left": [2], "joined": []}
    return frame(before, after, [{**change, "partition": f"topic-{n:02d}-0"} for n in range(number)])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (200, 60), (80, 18)])
def test_all_tables_are_on_a_screen_of_any_size(width: int, height: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(screen(many(30), width, height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    for words in (
        "topic-00",
        "g0",
        "Changes of leaders and ISRs",
        "topic-29-0",
        "22:13:20",
        "1 under-replicated",
    ):
        assert words in text, words


def test_a_first_look_has_no_rates_and_internal_topics_come_last() -> None:
    shown = many(3)
    assert [each["topic"] for each in shown["topics"]][-1] == "__own"
    before, _ = looks()
    first = frame(None, before, [])
    assert (first["records_per_s"], first["topics"][0]["records_per_s"]) == (None, None)
    out = io.StringIO()
    Console(file=out, width=80).print(screen(first))
    assert "\n2 partitions" in out.getvalue()
