"""`kreplica offsets`: counts, gaps, replicas that lag, and how far a group is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app
from kreplica.common.errors import InvalidFile
from tests.conformance.expectation import FIXTURES

KAFKA = FIXTURES / "clean" / "logs"


def offsets(*arguments: object) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["offsets", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_node_of_kafkas() -> None:
    rows = {row["topic"]: row for row in offsets(KAFKA)}
    assert len(rows) == 14 - 1
    trimmed = rows["trimmed"]
    assert (trimmed["log_start_offset"], trimmed["first_offset"], trimmed["records"]) == (42, 42, 38)
    compacted = rows["compacted"]
    assert compacted["records"] + compacted["missing"] == compacted["log_end_offset"]
    assert compacted["gaps"] > 1
    (committed,) = offsets(KAFKA, "--topic", "transactions", "--isolation", "txn_committed")
    assert offsets(KAFKA, "--topic", "transactions", "--isolation", "read_committed") == [committed]
    assert committed["records"] < rows["transactions"]["records"]
    assert committed["lag"] is None


def test_the_lag_of_a_group(tmp_path: Path) -> None:
    """The offset that Kafka has from a transaction of this group; beside it a replica that is behind."""
    behind = tmp_path / "codec-none-0"
    with kreplica.Log.open(behind) as log:
        log.append([b"x"] * 20)
    first, second = offsets(KAFKA, behind, "--topic", "codec-none", "--group", "group")
    assert {first["directory"], second["directory"]} == {str(KAFKA / "codec-none-0"), str(behind)}
    for row in (first, second):
        assert (row["committed_offset"], row["lag"]) == (5, 45)
    assert {row["behind"] for row in (first, second)} == {0, 30}
    (other,) = offsets(KAFKA, "--topic", "segments", "--group", "group")
    assert (other["committed_offset"], other["lag"]) == (None, None)


def test_the_directory_of_a_cluster(tmp_path: Path) -> None:
    nodes = [tmp_path / f"node-{number}" / "orders-0" for number in (1, 2)]
    for each in nodes:
        with kreplica.Log.open(each) as log:
            log.append([b"a", b"b"])
    assert [(row["directory"], row["records"]) for row in offsets(tmp_path)] == [
        (str(each), 2) for each in nodes
    ]


def test_for_people() -> None:
    result = CliRunner().invoke(app, ["offsets", str(KAFKA / "segments-0")])
    (line,) = [line for line in result.stdout.splitlines() if "segments-0" in line]
    numbers = [cell for cell in line.replace("│", " ").split() if cell.isdecimal()]
    assert numbers == ["0", "120", "120", "120", "120", "0", "119", "0", "0", "0", "0"]


def test_what_cannot_be_looked_at(tmp_path: Path) -> None:
    for arguments, text in (
        ([tmp_path], "neither a partition's directory, nor a directory of partitions, nor that of a cluster"),
        ([KAFKA / "segments-0", "--group", "group"], "none of these directories holds a partition of"),
    ):
        result = CliRunner().invoke(app, ["offsets", *map(str, arguments)])
        assert isinstance(result.exception, InvalidFile)
        assert text in str(result.exception)
    shutil.copytree(KAFKA / "segments-0", tmp_path / "unnamed")
    result = CliRunner().invoke(app, ["offsets", str(tmp_path / "unnamed")])
    assert "is not named like a partition's directory" in str(result.exception)


@pytest.mark.parametrize("name", ["numpy"])
def test_without_numpy_it_says_what_to_install(name: str) -> None:
    program = f"import sys; sys.modules['{name}'] = None; from kreplica.cli import main; main()"
    command = [sys.executable, "-c", program, "offsets", str(KAFKA)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert (
        run.stderr == "kreplica: offsets needs numpy, which is not installed: pip install 'kreplica[arrow]'\n"
    )
