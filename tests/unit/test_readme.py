"""What README.md shows runs: its Python snippets, from top to bottom, in an empty directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "README.md").read_text()
    names: dict[str, Any] = {"__name__": "readme"}
    for match in SNIPPET.finditer(page):
        # So that a failure names the line of the page.
        above = "\n" * page.count("\n", 0, match.start(1))
        exec(compile(above + match[1], "README.md", "exec"), names)
