"""`kreplica repair`: a dry run first, exit codes, and what it prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplica.cli.app import app

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


def test_sound_files() -> None:
    for path in (KAFKA, KAFKA / "segments-0"):
        result = CliRunner().invoke(app, ["repair", str(path)])
        assert (result.exit_code, result.stdout) == (0, "nothing to repair\n")


def test_first_it_only_says_what_it_would_do(damaged: Path) -> None:
    before = {file.name: file.read_bytes() for file in damaged.iterdir()}
    result = CliRunner().invoke(app, ["repair", str(damaged)])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 to repair; nothing was changed: repeat with --apply"
    assert {file.name: file.read_bytes() for file in damaged.iterdir()} == before


def test_it_does_not_promise_what_a_peer_keeps_it_from(damaged: Path, tmp_path: Path) -> None:
    peer = shutil.copytree(KAFKA / "segments-0", tmp_path / "peer")
    for file in peer.glob("*.log"):
        file.write_bytes(file.read_bytes()[:100])
    for options in ([], ["--apply"]):
        result = CliRunner().invoke(app, ["repair", str(damaged), "--from", str(peer), *options])
        assert result.exit_code == 1
        assert "repeat with --apply" not in result.stdout
    assert result.stdout.splitlines()[-1] == "0 repaired, 1 left"


def test_a_peer_without_a_log_is_a_usage_error(damaged: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in damaged.iterdir()}
    peer = tmp_path / "none"
    peer.mkdir()
    for options in ([], ["--apply"]):
        result = CliRunner().invoke(app, ["repair", str(damaged), "--from", str(peer), *options])
        assert (result.exit_code, "--from" in result.stderr) == (2, True)
    assert {file.name: file.read_bytes() for file in damaged.iterdir()} == before


def test_then_it_does_it(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["repair", "--apply", str(damaged)])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "1 repaired, 0 left"
    again = CliRunner().invoke(app, ["repair", "--apply", str(damaged)])
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (0, "nothing to repair")
    checked = CliRunner().invoke(app, ["verify", str(damaged)])
    assert checked.exit_code == 0
    assert checked.stdout.splitlines()[-1].startswith("no problems and 1 known in ")


def test_for_programs(damaged: Path) -> None:
    result = CliRunner().invoke(app, ["repair", "--json", str(damaged)])
    assert result.exit_code == 1
    (finding,) = map(json.loads, result.stdout.splitlines())
    assert (finding["action"], finding["done"]) == ("quarantine", False)
    assert (finding["offset"], finding["next_offset"]) == (9, 12)
    assert (finding["position"], finding["kind"]) == (1029, "Rot")


def test_damage_that_cannot_be_repaired_is_an_error(tmp_path: Path) -> None:
    logs = shutil.copytree(KAFKA, tmp_path / "logs")
    (logs / "segments-0" / "partition.metadata").write_bytes(b"?")
    for arguments in ([], ["--apply"]):
        assert CliRunner().invoke(app, ["repair", *arguments, str(logs)]).exit_code == 1


@pytest.mark.parametrize("path", [KAFKA / "meta.properties", KAFKA / "missing", KAFKA.parents[1]])
def test_what_is_no_log_is_a_usage_error(path: Path) -> None:
    assert CliRunner().invoke(app, ["repair", str(path)]).exit_code == 2
