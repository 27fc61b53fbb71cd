"""Rules for the pages: lines that a terminal shows, and no page that nothing leads to."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.tree import ROOT, tracked_files

LONGEST_LINE = 110
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def pages() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def too_long(text: str) -> list[int]:
    """The numbers of the lines that could be wrapped and are not: neither rows of tables nor single links."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not line.startswith("|") and " " in line.strip()
    ]


def test_lines_of_pages_are_wrapped() -> None:
    assert pages()
    assert {str(p): found for p in pages() if (found := too_long((ROOT / p).read_text()))} == {}


def test_a_long_line_is_found() -> None:
    words = "word " * 30
    assert too_long(f"short\n{words}\n") == [2]
    assert too_long(f"| {words} |\n[link](https://{'x' * LONGEST_LINE})\n") == []


def test_every_page_can_be_reached_from_the_first() -> None:
    known = {(ROOT / path).resolve() for path in pages() if path.parts[0] in {path.name, "docs"}}
    reached, left = set(), [(ROOT / "README.md").resolve()]
    while left:
        page = left.pop()
        if page not in reached:
            reached.add(page)
            found = ((page.parent / name).resolve() for name in LINK.findall(page.read_text()))
            left.extend(found_page for found_page in found if found_page in known)
    assert known - reached == set()
