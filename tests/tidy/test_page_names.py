"""What the pages name exists: links, headings, and in KAFKA_MAP and ARCHITECTURE files, classes and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    links = LINK.findall((ROOT / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have: lower case, without punctuation, with hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text())
    missing = [
        f"{name}#{anchor}"
        for name, anchor in links
        if anchor not in anchors((path.parent / name) if name else path)
    ]
    assert missing == []


def test_map_names_files_that_exist() -> None:
    named = re.findall(r"`(kreplica/[\w/.]+)`", (ROOT / "docs/KAFKA_MAP.md").read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_map_names_files_beside_those_that_exist() -> None:
    # A name without a folder is of one that its row names.
    missing = []
    for row in re.findall(r"^\|.*$", (ROOT / "docs/KAFKA_MAP.md").read_text(), re.MULTILINE):
        names = re.findall(r"`([\w/]+(?:\.pyx?|/))`", row)
        found = [here for name in names if "/" in name for here in (ROOT / name, ROOT / "tests" / name)]
        folders = [each if each.is_dir() else each.parent for each in found if each.exists()]
        bare = [name for name in names if "/" not in name]
        missing += [name for name in bare if not any((each / name).exists() for each in folders)]
    assert missing == []


def test_map_names_classes_and_members_that_exist() -> None:
    folders = [ROOT / "kreplica", ROOT / "spark_connector"]
    files = [each for folder in folders for each in folder.rglob("*.p*") if each.suffix in {".py", ".pyx"}]
    text = "\n".join(each.read_text() for each in files)
    words, classes = set(re.findall(r"\w+", text)), set(re.findall(r"\bclass (\w+)", text))
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "docs/KAFKA_MAP.md").read_text())
    assert len(named) > 20
    assert [(owner, name) for owner, name in named if owner not in classes or name not in words] == []


def test_architecture_names_classes_and_files_that_exist() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    packages = [ROOT / name for name in ("kreplica", "spark_connector", "bindings")]
    files = [
        path for folder in packages for path in folder.rglob("*.p*") if path.suffix in {".py", ".pyx", ".pxd"}
    ]
    classes = {
        name
        for path in files
        for name in re.findall(r"^(?:cdef class|cdef enum|class) (\w+)", path.read_text(), re.MULTILINE)
    }
    # In prose a class or a file stands in backticks; in the drawings a class is a name in camel case.
    drawn = re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", "".join(re.findall(r"```\n(.*?)```", page, re.DOTALL)))
    named = [name for name in re.findall(r"`([A-Z]\w+)(?:\.\w+)?`", page) if not name.isupper()]
    assert len(named) > 30
    metrics = {"DamagedPartitionsCount"}
    assert {*drawn, *named} - classes - metrics == set()
    paths = re.findall(r"`((?:[\w]+/)+(?:\w+\.\w+)?|\w+\.(?:py|h|pxd))`", page)
    below = ("", "kreplica", "kreplica/_core", "kreplica/controller", "tests")
    tops = [ROOT / each for each in below]
    assert [path for path in paths if not any((top / path).exists() for top in tops)] == []


def test_map_names_tests_that_exist() -> None:
    rows = (ROOT / "docs/KAFKA_MAP.md").read_text().split("## Where to find a class")[0]
    files = re.findall(r"`((?:unit|core|interaction)/[\w/.]+)`", rows)
    transcripts = [
        name
        for text in re.findall(r"transcripts? (`[^|]+)", rows)
        for name in re.findall(r"`([\w*]+)`", text)
    ]
    assert len(files) > 40
    assert len(transcripts) > 5
    assert [name for name in files if not (ROOT / "tests" / name).exists()] == []
    known = ROOT / "tests/interaction/transcripts"
    assert [name for name in transcripts if not list(known.glob(f"{name}.txt"))] == []
