"""Plain English: no text has the idioms of this list, which read as translated; see CONTRIBUTING.md."""

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


def test_no_text_has_an_idiom() -> None:
    found: Counter[str] = Counter()
    for path in tracked_files():
        if path.suffix in TEXTS and path != Path(__file__).relative_to(ROOT):
            found[str(path)] += len(IDIOMS.findall((ROOT / path).read_text()))
    assert +found == {}, "idioms found, by file; `git grep -nE` with IDIOMS shows them"


def test_an_idiom_is_found() -> None:
    for text in ("Nobody is told", "whoever asks", "there is none", "by itself", "it tells the owner"):
        assert IDIOMS.search(text), text
    for text in ("value is None", "stellar", "anymore", "retell"):
        assert not IDIOMS.search(text), text
