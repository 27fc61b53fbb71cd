"""Plain English: no text has the idioms of this list, which read as translated; see CONTRIBUTING.md.

A folder that still has some may have no more than `LEFT` says. Lower the number when you rewrite a file.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.tidy.tree import ROOT, tracked_files

IDIOMS = re.compile(
    r"\b(?:[Ww]hoever|[Nn]obody|[Oo]f which|[Ss]o many|is none|are none|[Tt]here is none|told|[Tt]ells?"
    r"|by itself|[Ss]ee the module|none any|any more)\b"
)
TEXTS = {".py", ".pyx", ".pxd", ".pyi", ".h", ".c", ".java", ".md"}
FOLDERS = {"kreplica", "bindings", "spark_connector", "bench", "docs", "tests"}
LEFT: dict[str, int] = {
    "tests/clients": 4,
    "tests/conformance": 24,
    "tests/core": 18,
    "tests/crash": 30,
    "tests/interaction": 20,
    "tests/spark": 18,
    "tests/support": 1,
    "tests/tidy": 4,
}


def test_no_idiom_is_added() -> None:
    found: Counter[str] = Counter()
    for path in tracked_files():
        if path.suffix in TEXTS and path != Path(__file__).relative_to(ROOT):
            found[folder_of(path)] += len(IDIOMS.findall((ROOT / path).read_text()))
    more = {
        folder: (count, LEFT.get(folder, 0)) for folder, count in found.items() if count > LEFT.get(folder, 0)
    }
    assert more == {}, "idioms found and allowed, by folder; `git grep -nE` with IDIOMS shows them"


def test_an_idiom_is_found() -> None:
    for text in ("Nobody is told", "whoever asks", "there is none", "by itself", "it tells the owner"):
        assert IDIOMS.search(text), text
    for text in ("value is None", "stellar", "anymore", "retell"):
        assert not IDIOMS.search(text), text


def folder_of(path: Path) -> str:
    """Return the package for files of kreplica and of the tests, else the top folder; "" for the root."""
    if path.parts[0] not in FOLDERS:
        return ""
    depth = 2 if path.parts[0] in {"kreplica", "tests"} and len(path.parts) > 2 else 1
    return "/".join(path.parts[:depth])
