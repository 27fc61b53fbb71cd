"""`kreplica verify`: exit codes, and where it says the problem is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


def test_sound_files() -> None:
    result = CliRunner().invoke(app, ["verify", str(KAFKA), str(KAFKA / "segments-0")])
    assert result.exit_code == 0
    assert result.stdout.startswith("no problems in ")
    assert CliRunner().invoke(app, ["verify", "--json", str(KAFKA)]).stdout == ""


def test_the_place_of_a_problem(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(damaged)])
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if "InvalidCrc" in line]
    assert " 1029 " in line
    assert " 9 " in line
    assert result.stdout.splitlines()[-1].startswith("1 problem in ")


def test_the_place_of_a_problem_for_programs(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--json", str(damaged)])
    assert result.exit_code == 1
    (problem,) = map(json.loads, result.stdout.splitlines())
    text = problem.pop("text")
    assert "BAD_CRC" in text
    path = str(damaged / "00000000000000000000.log")
    assert problem == {"path": path, "kind": "InvalidCrc", "offset": 9, "position": 1029}


@pytest.mark.parametrize("path", [KAFKA / "meta.properties", KAFKA / "missing", KAFKA.parents[1]])
def test_what_is_no_log_is_a_usage_error(path: Path) -> None:
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == 2
