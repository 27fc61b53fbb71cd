"""Plans of moves: how they are shown, and the files that keep them."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.cli import reassignment
from kreplica.cli.reassignment import (
    INTERRUPTED,
    MOST_ROWS,
    Change,
    How,
    follow,
    print_plan,
    read_layout,
    write_layout,
)
from kreplica.common.errors import InvalidFile
from kreplica.common.types import TopicPartition

GIB = 1 << 30


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, changes: list[Change], *, as_json: bool = False) -> list[str]:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    admin: Any = SimpleNamespace(layout={each.at: each.before for each in changes})
    print_plan(admin, changes, as_json)
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()


def changes(number: int, topic: str = "orders") -> list[Change]:
    return [Change(TopicPartition(topic, each), (1, 2, 3), (101, 2, 3), GIB) for each in range(number)]


def test_a_plan_says_what_is_copied_where(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, [*changes(2), Change(TopicPartition("z", 0), (1, 2), (2, 1), GIB)])
    text = "\n".join(lines)
    assert lines[0] == "3 of 3 partitions get other replicas: 2 replicas to copy, 2.0 GiB"
    assert max(map(len, lines)) <= 80
    assert re.search(r"orders │ +0 │ 1, 2, 3 +│ 101, 2, 3 +│ 101 +│ 1.0 GiB", text)
    # Broker 101 gets two replicas of one GiB and leads them; broker 2 leads one more.
    assert re.search(r"│ +101 │ +0 │ +2 │ +0 │ +2 │ 2.0 GiB", text)
    assert re.search(r"│ +2 │ +3 │ +3 │ +0 │ +1 │ 0 B", text)


def test_long_names_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, changes(1, "a.topic.with.a.very.long.name.of.the.sort.that.companies.have"))
    assert max(map(len, lines)) <= 80


def test_a_long_plan_is_cut_and_json_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    many = changes(MOST_ROWS + 7)
    assert any("and 7 more partitions" in line for line in shown(monkeypatch, many))
    facts = [json.loads(line) for line in shown(monkeypatch, many, as_json=True)]
    assert sum(fact["what"] == "change" for fact in facts) == len(many)
    assert {"what": "broker", "broker": 101, "bytes": len(many) * GIB}.items() <= facts[-1].items()


def test_an_interrupted_wait_says_that_the_moves_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reassignment, "reachable", interrupted)
    assert follow("127.0.0.1:9092", None, How()) == INTERRUPTED
    assert "the moves go on; `kreplica partition wait`" in capsys.readouterr().err


def test_a_file_of_replicas_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    layout = {TopicPartition("t", 1): (3, 1), TopicPartition("t", 0): (2,)}
    write_layout(path, layout)
    assert read_layout(path) == layout
    assert json.loads(path.read_text())["version"] == 1


def test_a_file_of_kafkas_tool_is_read(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    row = {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}
    path.write_text(json.dumps({"version": 1, "partitions": [row]}))
    assert read_layout(path) == {TopicPartition("t", 0): (1, 2)}


@pytest.mark.parametrize(
    "text", ["{}", '{"partitions": [1]}', '{"partitions": [{"topic": "t"}]}', "nonsense"]
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "replicas.json"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=str(path)):
        read_layout(path)
