"""The example of a Spark job and the snippets of docs/SPARK.md, in this process's session."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.snippets import ROOT, Snippet, snippets

SNIPPETS = snippets("docs/SPARK.md")


# The getOrCreate of a program returns this process's session.
@pytest.mark.usefixtures("spark")
def test_the_example_prints_the_revenue(capsys: pytest.CaptureFixture[str]) -> None:
    assert SparkSession.getActiveSession() is not None
    runpy.run_path(str(ROOT / "examples" / "spark_job.py"), run_name="__main__")
    assert capsys.readouterr().out == "c0 6834\nc1 6633\nc2 6633\n"


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_a_snippet_runs(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippet.run()


def test_the_page_has_snippets() -> None:
    assert len(SNIPPETS) == 4
