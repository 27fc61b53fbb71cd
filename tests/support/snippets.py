"""The Python blocks of a page, each a program of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"^def test_", re.MULTILINE)
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """A Python block of a page; its first line has the number `line`, from 0."""

    page: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line + 1}"

    @property
    def tests(self) -> int:
        """The number of its functions that pytest runs."""
        return len(TEST.findall(self.text))

    def run(self) -> None:
        """Run it with names of its own; a failure names the line of the page."""
        exec(compile("\n" * self.line + self.text, self.page, "exec"), {"__name__": "snippet"})


def snippets(page: str) -> list[Snippet]:
    """Return the Python blocks of a page, which is named by its path from the root."""
    text = (ROOT / page).read_text()
    return [Snippet(page, text.count("\n", 0, each.start(1)), each[1]) for each in SNIPPET.finditer(text)]
