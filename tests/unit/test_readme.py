"""What the pages show runs: each Python snippet as a program of its own, in an empty directory.

Functions in a snippet whose names begin with `test_` run as pytest runs them. No snippet may need what
another one has imported or written.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kreplica
from tests.support.snippets import ROOT, SNIPPET, Snippet, snippets

pytest_plugins = ["pytester"]

# EMBEDDING.md, SIMULATOR.md and SPARK.md have tests of their own.
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("START", "LOG", "CLUSTER", "TESTING", "API")),
]
ALL = [snippet for page in PAGES for snippet in snippets(page)]
PROGRAMS = [snippet for snippet in ALL if not snippet.tests]
TESTS = [snippet for snippet in ALL if snippet.tests]


@pytest.mark.parametrize("snippet", PROGRAMS, ids=lambda snippet: snippet.name)
def test_a_snippet_runs(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippet.run()


def test_tests_of_the_pages_pass(pytester: pytest.Pytester) -> None:
    assert len(TESTS) >= 4
    for snippet in TESTS:
        name = re.sub(r"\W", "_", snippet.name)
        pytester.makepyfile(**{f"test_{name}": snippet.text})
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'")
    written = sum(snippet.tests for snippet in TESTS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=written)


def test_every_page_has_snippets() -> None:
    assert [page for page in PAGES if not snippets(page)] == []


def test_every_public_name_has_an_entry_with_an_example() -> None:
    page = (ROOT / "docs/API.md").read_text()
    entries = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert set(entries) == set(kreplica.__all__)
    for name, entry in entries.items():
        assert SNIPPET.search(entry), name
        assert re.search(rf"^::: kreplica\.{name}$", entry, re.MULTILINE), name


def test_the_headline_figures_are_those_of_the_benchmarks() -> None:
    table = re.search(
        r"^\| three nodes beside .*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert table is not None
    measured = (ROOT / "docs/BENCHMARKS.md").read_text()
    figures = re.findall(r"\| ([\d.,]+)(?: \w+)? (?=\|)", table[0])
    assert len(figures) == 12
    assert [each for each in figures if f" {each} (" not in measured] == []
