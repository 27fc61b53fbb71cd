"""The example of a Spark job prints the revenue of each customer."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_job.py"


@pytest.mark.usefixtures("spark")  # the program's getOrCreate returns this process's session
def test_the_example_prints_the_revenue(capsys: pytest.CaptureFixture[str]) -> None:
    assert SparkSession.getActiveSession() is not None
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == "c0 6834\nc1 6633\nc2 6633\n"
