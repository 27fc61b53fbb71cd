"""Tables fit the terminal they are printed on."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kreplica.cli import output


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


COLUMNS = ("partition", "log_start_offset", "high_watermark", "last_stable_offset", "log_end_offset", "path")
FACT = dict.fromkeys(COLUMNS, 12_345) | {"path": "cluster/node-1/orders-0"}


def printed(
    monkeypatch: pytest.MonkeyPatch, width: int, *columns: str, fact: output.Fact = FACT
) -> list[str]:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    output.print_table("Offsets", columns, [fact, fact])
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("columns", [COLUMNS[:2], COLUMNS])
def test_no_word_of_a_header_is_broken(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: tuple[str, ...]
) -> None:
    lines = printed(monkeypatch, width, *columns)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.replace("│", " ").replace("┃", " ").split()}
    assert {word for name in columns for word in name.split("_")} <= words


def test_columns_share_the_room_so_that_no_word_of_a_cell_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = {
        "check": "leaders that are not preferred",
        "found": "36",
        "examples": "__consumer_offsets-0, __consumer_offsets-1, __consumer_offsets-3 and 33 more",
        "remedy": "`kreplica partition list --state under-replicated` shows what lags",
    }
    lines = printed(monkeypatch, 80, *cells, fact=cells)
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.replace("│", " ").split()}
    assert {word for text in cells.values() for word in text.split()} <= words


def test_a_table_without_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("users", ("user",), [])
    assert capsys.readouterr().out == "users: none\n"


def test_a_narrow_terminal_gets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.strip() for line in printed(monkeypatch, 40, *COLUMNS)]
    assert sum(line.split() == ["log", "start", "offset", "12345"] for line in lines) == 2
